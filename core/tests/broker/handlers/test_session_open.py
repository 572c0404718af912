"""Test two clients with the same client id: which one stays connected, what the other receives, and what happens if
takeovers repeat.
"""

from collections.abc import Callable

import pytest
from hookmq.hooks.verdicts import Accept
from hookmq.mqtt.packets import Connack, Disconnect, Puback, Publish
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.records import PutSession
from hookmq_testing import Harness, HookRecorder, MemoryClient, SlowStore, will

Make = Callable[..., Harness]

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


@VERSIONS
@pytest.mark.parametrize("other", [4, 5])
def test_the_newer_stays(harness: Harness, version: int, other: int) -> None:
    # Edge case 6 [MQTT-3.1.4-3] [MQTT311-3.1.4-2]
    one = harness.connect("c", version)
    two = harness.connect("c", other)
    one.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    two.ping()
    assert len(harness.broker.connections) == 1
    assert len(harness.broker.sessions) == 1
    assert harness.metrics.takeovers == 1


def test_packets_of_the_older_connection_are_ignored(harness: Harness) -> None:
    watcher = harness.connect("watcher")
    watcher.subscribe("a", 1)
    one = harness.connect("c", session_expiry_interval=100)
    two = harness.connect("c", clean_start=False, session_expiry_interval=100)
    one.connection.feed(b"\x30\x05\x00\x01a\x00x")
    one.connection.closed("late")
    watcher.expect_nothing()
    two.ping()
    assert harness.broker.sessions["c"].connection is two.connection


def test_the_session_is_taken_along(harness: Harness) -> None:
    one = harness.connect("c", session_expiry_interval=100, auto_ack=False)
    one.subscribe("a", 1)
    harness.connect("d").publish("a", b"x", 1, expect=0)
    first = one.expect_message("a", b"x", dup=False)
    two = harness.connect("c", clean_start=False, session_expiry_interval=100)
    assert two.session_present
    again = two.expect_message("a", b"x", dup=True)
    assert again.packet_id == first.packet_id
    harness.connect("e").publish("a", b"y", 1, expect=0)
    two.expect_message("a", b"y")
    assert [message.payload for message in one.messages] == [b"x"]


def test_clean_start_leaves_the_session_behind(harness: Harness) -> None:
    one = harness.connect("c", session_expiry_interval=100)
    one.subscribe("a", 1)
    two = harness.connect("c", clean_start=True)
    assert not two.session_present
    harness.connect("d").publish("a", qos=1, expect=0x10)


def test_a_session_that_ends_with_its_connection_is_not_taken_over(harness: Harness) -> None:
    # The session ends with its connection, and [MQTT-3.1.2-5] applies only to an existing session.
    one = harness.connect("c")
    one.subscribe("a", 1)
    two = harness.connect("c", clean_start=False, session_expiry_interval=100)
    assert not two.session_present
    harness.connect("d").publish("a", qos=1, expect=0x10)


def test_the_old_connection_is_told_before_the_new_one(harness: Harness) -> None:
    one = harness.connect("c")
    two = harness.connect("c")
    told = [write.turn for write in one.wire.writes if write.data.startswith(b"\xe0")]
    assert told
    assert told[0] <= two.wire.writes[0].turn


def test_pending_messages_are_written_before_the_disconnect_of_a_takeover(harness: Harness) -> None:
    one = harness.connect("c")
    one.subscribe("a")
    other = harness.connect("d")
    two = harness.open()
    with harness.together():
        other.publish("a", b"last words")
        two.connect = one.connect
        two.send_connect()
    one.expect_message("a", b"last words")
    one.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    assert two.expect(Connack).code == 0


def test_a_slow_reader_is_taken_over(harness: Harness) -> None:
    one = harness.connect("c")
    one.pause()
    two = harness.connect("c")
    two.ping()
    assert not one.wire.closed  # the client has not read its DISCONNECT yet
    one.resume()
    one.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)


def test_while_connack_waits_for_its_commit(broker_harness: Make) -> None:
    store = SlowStore()
    harness = broker_harness(store=store)
    one = harness.connect("c", session_expiry_interval=100, expect=None)
    two = harness.connect("c", clean_start=False, session_expiry_interval=100, expect=None)
    one_said = [type(packet) for packet in one.received]
    store.finish()
    assert two.expect(Connack).code == 0
    store.slow = False
    # The client was never accepted, so it gets no DISCONNECT [MQTT-3.14.0-1].
    assert Disconnect not in one_said
    refused = one.expect(Connack)
    assert refused.code >= 0x80
    assert not refused.session_present
    one.expect_closed()
    two.publish("a", qos=1, expect=0x10)
    assert harness.broker.sessions["c"].paused == 0
    assert len(store.records(PutSession)) >= 2


def test_a_publish_that_waits_for_a_plugin_is_not_acknowledged_to_the_new(
    broker_harness: Make,
) -> None:
    recorder = HookRecorder("on_publish")
    harness = broker_harness([recorder])
    one = harness.connect("c", session_expiry_interval=100)
    pending = harness.clock.event()
    recorder.answer("on_publish", pending, None)
    one.publish("a", b"x", 1, packet_id=7)
    two = harness.connect("c", clean_start=False, session_expiry_interval=100)
    pending.set(None)
    two.expect_nothing()
    assert not [packet for packet in one.received if isinstance(packet, Puback)]
    two.send(Publish("a", b"x", 1, dup=True, packet_id=7))
    assert two.expect(Puback).packet_id == 7
    assert not harness.clock.tasks


def test_observers_are_told(broker_harness: Make) -> None:
    recorder = HookRecorder("on_session", "on_disconnect")
    harness = broker_harness([recorder])
    harness.connect("c", session_expiry_interval=100)
    harness.connect("c", clean_start=False, session_expiry_interval=100)
    harness.settle()
    told = [(call.hook, getattr(call, "event", None)) for call in recorder.calls()]
    assert told == [
        ("on_session", "created"),
        ("on_session", "taken_over"),
        ("on_disconnect", None),
        ("on_session", "resumed"),
    ]
    [call] = recorder.calls("on_disconnect")
    assert (call.reason.by, call.reason.code) == ("takeover", ReasonCode.SESSION_TAKEN_OVER)


# --- reject -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(3, 2), (4, 2), (5, 0x85)])
def test_the_older_stays_where_configured(broker_harness: Make, version: int, code: int) -> None:
    harness = broker_harness(config={"broker": {"duplicate_client_id": "reject"}})
    one = harness.connect("c", version)
    harness.connect("c", version, expect=code).expect_closed()
    one.ping()
    one.disconnect()
    harness.connect("c", version)
    assert harness.metrics.takeovers == 0


def test_reject_does_not_keep_a_client_from_its_own_session(broker_harness: Make) -> None:
    harness = broker_harness(config={"broker": {"duplicate_client_id": "reject"}})
    one = harness.connect("c", session_expiry_interval=100)
    one.drop()
    one.reconnect()
    assert one.session_present


def test_reject_when_both_are_decided_on_at_once(broker_harness: Make) -> None:
    recorder = HookRecorder("on_connect")
    harness = broker_harness([recorder], config={"broker": {"duplicate_client_id": "reject"}})
    first, second = harness.clock.event(), harness.clock.event()
    recorder.answer("on_connect", first, second)
    one, two = (harness.connect("c", expect=None) for _ in range(2))
    second.set(Accept())
    assert two.expect(Connack).code == 0
    first.set(Accept())
    assert one.expect(Connack).code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    one.expect_closed()
    two.ping()


# --- flapping -----------------------------------------------------------------------------------------------------------


FLAPPING = {"broker": {"flapping_takeovers": 3, "flapping_delay": 2.0}}


def take_over(harness: Harness, times: int, clean: bool, expiry: int | None) -> list[MemoryClient]:
    return [
        harness.connect("c", clean_start=clean, session_expiry_interval=expiry)
        for _ in range(times)
    ]


@pytest.mark.parametrize(("clean", "expiry"), [(False, 100), (True, 100), (True, None)])
def test_frequent_takeovers_are_slowed(
    broker_harness: Make, clean: bool, expiry: int | None
) -> None:
    harness = broker_harness(config=FLAPPING)
    clients = take_over(harness, 4, clean, expiry)
    client = harness.connect("c", clean_start=clean, session_expiry_interval=expiry, expect=None)
    client.expect_nothing()
    clients[-1].expect_nothing()  # stays connected while the new connection waits
    harness.advance(1.9)
    client.expect_nothing()
    harness.advance(0.2)
    assert client.expect(Connack).code == 0
    clients[-1].expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)


def test_others_are_not_slowed(broker_harness: Make) -> None:
    harness = broker_harness(config=FLAPPING)
    take_over(harness, 4, False, 100)
    harness.connect("d")


def test_takeovers_are_forgotten(broker_harness: Make) -> None:
    harness = broker_harness(config=FLAPPING)
    take_over(harness, 4, False, 100)
    harness.advance(61)
    take_over(harness, 1, False, 100)


def test_a_return_is_no_takeover(broker_harness: Make) -> None:
    harness = broker_harness(config=FLAPPING)
    client = harness.connect("c", session_expiry_interval=100)
    for _ in range(10):
        client.drop()
        client.reconnect()
    assert harness.metrics.takeovers == 0


def test_a_slowed_client_may_leave(broker_harness: Make) -> None:
    harness = broker_harness(config=FLAPPING)
    clients = take_over(harness, 4, False, 100)
    client = harness.connect("c", clean_start=False, expect=None)
    client.drop()
    harness.advance(10)
    clients[-1].ping()


def test_packets_of_a_slowed_client_wait_for_its_connack(broker_harness: Make) -> None:
    harness = broker_harness(config=FLAPPING)
    take_over(harness, 4, False, 100)
    client = harness.connect("c", clean_start=False, expect=None)
    client.publish("a", b"x", 1)
    client.expect_nothing()
    harness.advance(2.1)
    assert client.expect(Connack).code == 0
    assert client.expect(Puback).code == ReasonCode.NO_MATCHING_SUBSCRIBERS


def test_a_slowed_client_finds_the_place_free(broker_harness: Make) -> None:
    harness = broker_harness(config=FLAPPING)
    clients = take_over(harness, 4, False, 100)
    client = harness.connect("c", clean_start=False, expect=None)
    clients[-1].disconnect()
    harness.advance(2.1)
    assert client.expect(Connack).session_present


def test_two_slowed_clients(broker_harness: Make) -> None:
    harness = broker_harness(config=FLAPPING)
    take_over(harness, 4, False, 100)
    one, two = (harness.connect("c", clean_start=False, expect=None) for _ in range(2))
    harness.advance(2.1)
    # The second client takes over from the first. Whether the first was accepted before that depends on the commit.
    one.expect(Connack)
    assert one.closed
    assert two.expect(Connack).code == 0
    two.ping()
    assert len(harness.broker.connections) == 1


# --- the will of the older ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expiry", "delay", "clean", "sent"),
    [
        (None, None, True, True),
        (None, 10, True, True),  # the session ends, so the will is published
        (None, 10, False, True),
        (100, None, False, True),
        (100, 0, False, True),
        (100, 10, False, False),  # the client returns within the delay [MQTT-3.1.3-9]
        (100, 10, True, True),  # Clean Start ends the session
    ],
)
def test_the_will_of_who_is_taken_over(
    harness: Harness, expiry: int | None, delay: int | None, clean: bool, sent: bool
) -> None:
    # Edge case 4
    watcher = harness.connect("watcher")
    watcher.subscribe("will")
    harness.connect("c", session_expiry_interval=expiry, will=will("will", b"x", delay=delay))
    harness.connect("c", clean_start=clean, session_expiry_interval=expiry)
    if sent:
        watcher.expect_message("will", b"x")
    harness.advance(50)
    watcher.expect_nothing()
    assert harness.metrics.wills_published == sent
