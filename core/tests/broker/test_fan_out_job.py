"""Test a fan-out in slices while clients connect and disconnect."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.events import Direction, DropReason
from hookmq.mqtt.packets import Puback, Publish
from hookmq.storage.memory_store import MemoryStore
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient

Make = Callable[..., Harness]


def sliced(make: Make, asynchronous: bool = False, **options: Any) -> Harness:
    return make(config={"broker": {"fan_out_batch": 2, "async_fan_out": asynchronous}}, **options)


def subscribers(
    harness: Harness, count: int = 7, qos: int = 1, **options: Any
) -> list[MemoryClient]:
    made = [harness.connect(f"sub{number}", **options) for number in range(count)]
    for sub in made:
        sub.subscribe("t", qos)
    return made


def served(subs: list[MemoryClient]) -> int:
    """Return how many subscribers have received a message, without running the event loop."""
    return sum(any(isinstance(packet, Publish) for packet in sub.received) for sub in subs)


def later(harness: Harness, pub: MemoryClient, *publishes: tuple[bytes, int]) -> None:
    """Publish without running the event loop."""
    harness._together += 1
    for payload, qos in publishes:
        pub.publish("t", payload, qos)
    harness._together -= 1


@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscriber_that_leaves_between_slices_is_counted_as_dropped(
    broker_harness: Make, qos: int
) -> None:
    observer = HookRecorder("on_dropped")
    harness = sliced(broker_harness, plugins=[observer])
    subs = subscribers(harness)
    pub = harness.connect("pub")
    later(harness, pub, (b"x", qos))
    for _ in range(3):
        harness.clock.turn()
    assert served(subs) < 6
    subs[6].wire.lose()
    harness.settle()
    assert served(subs) == 6
    (call,) = observer.calls("on_dropped")
    assert call.client.client_id == "sub6"
    assert call.message.payload == b"x"
    assert (call.why.reason, call.why.direction) == (DropReason.SESSION_ENDED, Direction.OUT)
    assert harness.metrics.dropped == {("session_ended", "out"): 1}
    if qos:
        pub.expect(Puback)


def test_a_subscriber_that_reconnects_between_slices_is_a_new_session(broker_harness: Make) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness)
    pub = harness.connect("pub")
    later(harness, pub, (b"x", 1))
    for _ in range(3):
        harness.clock.turn()
    again = harness.open()
    again.connect = subs[6].connect
    harness._together += 1
    again.send_connect()
    again.send_subscribe("t", 1)
    harness._together -= 1
    harness.settle()
    assert again.messages == []  # this session was created after the message was published
    pub.publish("t", b"y", 1)
    assert [message.payload for message in again.messages] == [b"y"]


def test_a_new_subscriber_gets_nothing_of_the_old_message(broker_harness: Make) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness)
    new = harness.connect("new")
    pub = harness.connect("pub")
    later(harness, pub, (b"old", 1))
    for _ in range(3):
        harness.clock.turn()
    harness._together += 1
    new.send_subscribe("t", 1)
    harness._together -= 1
    harness.clock.turn()
    harness.clock.turn()
    assert served(subs) < 7
    later(harness, pub, (b"new", 1))
    harness.settle()
    assert [message.payload for message in new.messages] == [b"new"]
    for sub in subs:
        assert [message.payload for message in sub.messages] == [b"old", b"new"]


def test_a_publisher_that_leaves_between_slices_has_still_published(broker_harness: Make) -> None:
    harness = sliced(broker_harness)
    subs = subscribers(harness)
    pub = harness.connect("pub")
    later(harness, pub, (b"x", 1))
    for _ in range(3):
        harness.clock.turn()
    pub.wire.lose()
    harness.settle()
    assert served(subs) == 7
    assert harness.broker.state.fan_outs == {}


@pytest.mark.parametrize("store", [MemoryStore, DurableStore])
def test_an_acknowledgement_between_slices_keeps_the_message_for_others(
    broker_harness: Make, store: Callable[[], Any]
) -> None:
    """A receiver may acknowledge a message between two slices. Its queue entry is then removed before the last entry is
    added, in the same batch.
    """
    harness = sliced(broker_harness, store=store())
    subs = subscribers(harness, session_expiry_interval=60)
    for sub in subs[2:]:
        sub.disconnect()
    pub = harness.connect("pub")
    later(harness, pub, (b"x", 1))
    harness.settle()
    pub.expect(Puback)
    for sub in subs:
        if sub not in subs[:2]:
            sub.reconnect(clean_start=False)
        assert [message.payload for message in sub.messages] == [b"x"]
