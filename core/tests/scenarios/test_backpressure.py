"""Test `inflight_overflow: backpressure`. Within limits, a message is acknowledged only when its delivery has started."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.events import Action, DropReason
from hookmq.mqtt.packets import Puback, Pubcomp, Pubrec, Pubrel
from hookmq_testing import Harness, HookRecorder, MemoryClient

Make = Callable[..., Harness]


def pressed(make: Make, plugins: Any = (), **session: Any) -> Harness:
    given = {"inflight_overflow": "backpressure", "max_inflight": 1, **session}
    return make(plugins=plugins, config={"session": given})


def slow_sub(harness: Harness, name: str = "sub", **options: Any) -> MemoryClient:
    """Return a subscriber that does not acknowledge automatically."""
    sub = harness.connect(name, auto_ack=False, **options)
    sub.subscribe("t", 2)
    return sub


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("version", [4, 5])
def test_the_acknowledgement_is_withheld_until_a_slot_opens(
    broker_harness: Make, version: int, durable: bool
) -> None:
    harness = pressed(broker_harness)
    sub = slow_sub(harness, session_expiry_interval=60 if durable else 0)
    pub = harness.connect("pub", version)
    pub.publish("t", b"1", 1, expect=0)
    second, third = pub.publish("t", b"2", 1), pub.publish("t", b"3", 1)
    pub.expect_nothing()
    pub.ping()
    sub.ack(sub.messages[0])
    assert pub.expect(Puback).packet_id == second
    pub.expect_nothing()
    sub.ack(sub.messages[1])
    assert pub.expect(Puback).packet_id == third
    assert [message.payload for message in sub.messages] == [b"1", b"2", b"3"]
    assert len(pub.connection.answers or ()) == 0


def test_pending_acknowledges_at_once(broker_harness: Make) -> None:
    harness = pressed(broker_harness, inflight_overflow="pending")
    slow_sub(harness)
    pub = harness.connect("pub")
    for _ in range(3):
        pub.publish("t", b"", 1, expect=0)


@pytest.mark.parametrize("durable", [False, True])
def test_qos_2_waits_with_its_pubrec(broker_harness: Make, durable: bool) -> None:
    harness = pressed(broker_harness)
    sub = slow_sub(harness, session_expiry_interval=60 if durable else 0)
    pub = harness.connect("pub", auto_ack=False)
    first = pub.publish("t", b"1", 2)
    assert pub.expect(Pubrec).packet_id == first
    second = pub.publish("t", b"2", 2)
    pub.expect_nothing()
    sub.ack(sub.messages[0])
    sub.expect(Pubrel)
    pub.expect_nothing()  # PUBREC frees no slot [MQTT-4.9.0-2]
    sub.send(Pubcomp(sub.messages[0].packet_id))
    assert pub.expect(Pubrec).packet_id == second


def test_qos_0_and_a_subscriber_of_qos_0_hold_nobody(broker_harness: Make) -> None:
    harness = pressed(broker_harness)
    slow_sub(harness)
    zero = harness.connect("zero")
    zero.subscribe("z", 0)
    zero.pause()
    pub = harness.connect("pub")
    pub.publish("t", b"", 1, expect=0)
    pub.publish("t", b"", 0)
    for _ in range(3):
        pub.publish("z", b"", 1, expect=0)


def test_after_a_time_the_message_waits_alone(broker_harness: Make) -> None:
    harness = pressed(broker_harness, backpressure_timeout=5.0)
    sub = slow_sub(harness)
    pub = harness.connect("pub")
    pub.publish("t", b"1", 1, expect=0)
    pub.publish("t", b"2", 1)
    harness.advance(4.9)
    pub.expect_nothing()
    harness.advance(0.2)
    pub.expect(Puback)
    sub.ack(sub.messages[0])
    sub.ack(sub.messages[1])
    assert [message.payload for message in sub.messages] == [b"1", b"2"]
    pub.expect_nothing()  # not acknowledged twice


def test_no_deadline_is_left_behind(broker_harness: Make) -> None:
    harness = pressed(broker_harness)
    sub = slow_sub(harness)
    pub = harness.connect("pub")
    before = len(harness.broker.state.deadlines)
    for _ in range(5):
        pub.publish("t", b"", 1)
    for number in range(5):
        sub.ack(sub.messages[number])
    assert len(sub.messages) == 5
    assert len(harness.broker.state.deadlines) == before


def test_an_offline_session_is_not_waited_for(broker_harness: Make) -> None:
    harness = pressed(broker_harness)
    sub = slow_sub(harness, session_expiry_interval=60)
    sub.disconnect()
    pub = harness.connect("pub")
    for _ in range(3):
        pub.publish("t", b"", 1, expect=0)


def test_a_client_does_not_wait_for_itself(broker_harness: Make) -> None:
    harness = pressed(broker_harness)
    one = slow_sub(harness)
    for _ in range(3):
        one.publish("t", b"", 1, expect=0)
    assert len(one.messages) == 1


@pytest.mark.parametrize("expiry", [0, 60])
@pytest.mark.parametrize("how", ["drop", "disconnect", "takeover"])
def test_a_subscriber_that_leaves_lets_go(broker_harness: Make, how: str, expiry: int) -> None:
    harness = pressed(broker_harness)
    sub = slow_sub(harness, session_expiry_interval=expiry)
    pub = harness.connect("pub")
    pub.publish("t", b"1", 1, expect=0)
    pub.publish("t", b"2", 1)
    pub.publish("t", b"3", 1)
    pub.expect_nothing()
    if how == "drop":
        sub.drop()
    elif how == "disconnect":
        sub.disconnect()
    else:
        harness.connect("sub", session_expiry_interval=expiry, clean_start=False, auto_ack=False)
    assert [pub.expect(Puback).packet_id for _ in range(2)] == [2, 3]


def test_all_subscribers_are_waited_for(broker_harness: Make) -> None:
    harness = pressed(broker_harness)
    subs = [slow_sub(harness, f"sub{number}") for number in range(3)]
    pub = harness.connect("pub")
    pub.publish("t", b"1", 1, expect=0)
    pub.publish("t", b"2", 1)
    for sub in subs:
        pub.expect_nothing()
        sub.ack(sub.messages[0])
    pub.expect(Puback)


def test_other_publishers_are_not_held(broker_harness: Make) -> None:
    harness = pressed(broker_harness)
    slow_sub(harness)
    pub, other = harness.connect("pub"), harness.connect("other")
    for _ in range(2):
        pub.publish("t", b"", 1)
    other.publish("elsewhere", b"", 1, expect=0x10)
    pub.expect(Puback)
    behind = pub.publish("elsewhere", b"", 1)
    pub.expect_nothing()  # PUBACKs are sent in order, so this one must wait too
    harness.advance(6)
    assert [pub.expect(Puback).packet_id for _ in range(2)] == [2, behind]


def test_a_message_that_is_dropped_lets_go(broker_harness: Make) -> None:
    observer = HookRecorder("on_dropped")
    harness = pressed(broker_harness, [observer], queue_messages=1)
    slow_sub(harness)
    pub = harness.connect("pub")
    for _ in range(2):
        pub.publish("t", b"", 1)
    pub.expect(Puback)
    pub.expect_nothing()
    full = pub.publish("t", b"3", 1)
    pub.expect_nothing()  # PUBACKs are sent in order
    harness.settle()
    (call,) = observer.calls("on_dropped")
    assert (call.message.payload, call.why.reason) == (b"3", DropReason.QUEUE_FULL)
    harness.advance(6)
    assert [pub.expect(Puback).packet_id for _ in range(2)] == [2, full]


def test_a_message_that_is_revoked_lets_go(broker_harness: Make) -> None:
    recorder = HookRecorder("authorize")
    recorder.answer("authorize", Allow())
    harness = broker_harness(
        plugins=[recorder],
        config={
            "session": {"inflight_overflow": "backpressure", "max_inflight": 1},
            "broker": {"on_revoke": "silent"},
        },
    )
    slow_sub(harness)
    pub = harness.connect("pub")
    pub.publish("t", b"1", 1, expect=0)
    pub.publish("t", b"2", 1)
    pub.expect_nothing()
    recorder.answer("authorize", lambda action: Deny() if action is Action.SUBSCRIBE else Allow())
    harness.handle(recorder.id).invalidate_authz("sub")
    assert pub.expect(Puback).code == 0


def test_a_client_that_does_not_read_presses_back(broker_harness: Make) -> None:
    harness = pressed(broker_harness, max_inflight=100)
    sub = harness.connect("sub", high_water=1000)
    sub.subscribe("t", 1)
    pub = harness.connect("pub")
    sub.pause()
    numbers = [pub.publish("t", bytes(600), 1) for _ in range(4)]
    assert [pub.expect(Puback).packet_id for _ in range(2)] == numbers[:2]
    pub.expect_nothing()
    sub.resume()
    assert [pub.expect(Puback).packet_id for _ in range(2)] == numbers[2:]
    assert len(sub.messages) == 4


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_fan_out_in_slices_presses_back_too(broker_harness: Make, asynchronous: bool) -> None:
    harness = broker_harness(
        config={
            "session": {"inflight_overflow": "backpressure", "max_inflight": 1},
            "broker": {"fan_out_batch": 2, "async_fan_out": asynchronous},
        },
    )
    subs = [slow_sub(harness, f"sub{number}") for number in range(5)]
    pub = harness.connect("pub")
    pub.publish("t", b"1", 1, expect=0)
    pub.publish("t", b"2", 1)
    for sub in subs:
        pub.expect_nothing()
        sub.ack(sub.messages[0])
    pub.expect(Puback)
