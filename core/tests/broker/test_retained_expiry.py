"""Test the expiry of retained messages, which share one deadline."""

from collections.abc import Callable

import pytest
from hookmq.broker.retained_expiry import SLICE as EXPIRIES
from hookmq.broker.retained_expiry import Expiries
from hookmq.broker.timers import TimerQueue
from hookmq.mqtt.packets import Publish
from hookmq_testing import Harness, MemoryClient
from hookmq_testing.runtime import EPOCH, VirtualRuntime

Make = Callable[..., Harness]


def left(client: MemoryClient) -> list[tuple[bytes, int | None]]:
    """Remove the unread messages and return the payload and Message Expiry Interval of each."""
    client.harness.settle()
    found = [p for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return [(m.payload, m.properties.message_expiry_interval) for m in found]


def test_retained(harness: Harness) -> None:
    """[MQTT-3.3.2-5, 3.3.2-6], edge case 27: the expiry interval of a retained message counts down."""
    publisher = harness.connect("p")
    publisher.publish("t", b"x", retain=True, message_expiry_interval=100)
    client = harness.connect("c")
    for wait, rest in ((0, 100), (30, 70), (69, 1)):
        harness.advance(wait)
        client.subscribe("t")
        assert left(client) == [(b"x", rest)]
    harness.advance(1)
    client.subscribe("t")
    assert left(client) == []
    publisher.publish("t", b"y", retain=True)
    client.subscribe("t")
    assert left(client) == [(b"y", None), (b"y", None)]


def test_retained_and_drawn_later(harness: Harness) -> None:
    """A retained message may expire between the SUBSCRIBE and the moment when the client has room for it. It is then
    not sent.
    """
    publisher = harness.connect("p")
    for number in range(4):
        publisher.publish(f"t/{number}", b"x", 1, retain=True, message_expiry_interval=10)
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe("t/#", 1)
    assert left(client) == [(b"x", 10)]
    harness.advance(4)
    client.ack(client.messages[-1])
    assert left(client) == [(b"x", 6)]
    harness.advance(6)
    client.ack(client.messages[-1])
    assert left(client) == []
    publisher.publish("t/0", b"live", 1)
    assert left(client) == [(b"live", None)]


def test_a_retained_message_that_expired_makes_room(broker_harness: Make) -> None:
    """Edge case 27: an expired message is deleted and no longer counts against the limits. A message that has replaced
    it stays.
    """
    harness = broker_harness(config={"broker": {"max_retained": 2}})
    publisher = harness.connect("p")
    core = harness.broker.state
    publisher.publish("short", b"x", retain=True, message_expiry_interval=10)
    publisher.publish("long", b"x", retain=True, message_expiry_interval=10)
    publisher.publish("long", b"y", retain=True, message_expiry_interval=100)
    harness.clock.advance(10)
    harness.settle()
    assert "short" not in core.retained
    assert "long" in core.retained
    publisher.publish("next", b"z", retain=True)
    assert len(core.retained) == 2
    harness.clock.advance(90)
    harness.settle()
    publisher.publish("next", b"", retain=True)
    harness.settle()
    assert len(core.retained) == core.retained_bytes == 0


def test_replaced_and_cleared_messages_leave_no_deadlines(harness: Harness) -> None:
    """Even after many replacements, all messages share one deadline, and there is little more than one entry per
    retained message.
    """
    publisher = harness.connect("p")
    core = harness.broker.state
    before = len(core.deadlines)
    for number in range(500):
        for interval in (100, 100_000):
            publisher.publish("same", b"x", retain=True, message_expiry_interval=interval)
            publisher.publish(f"r/{number}", b"x", retain=True, message_expiry_interval=interval)
        if number >= 10:
            publisher.publish(f"r/{number}", b"", retain=True)
    assert len(core.retained) == 11
    assert len(core.deadlines) <= before + 1
    assert len(core.expiries) <= 2 * len(core.retained) + 65
    harness.clock.advance(100_000)
    harness.settle()
    assert len(core.retained) == core.retained_bytes == len(core.expiries) == 0


def test_many_that_expire_at_once_and_in_turn(harness: Harness) -> None:
    """Each retained message expires at its own time, whatever the order of publishing. A replacement has its own
    interval.
    """
    publisher = harness.connect("p")
    core = harness.broker.state
    for number in range(300):
        interval = 50 if number % 3 else 1 + number
        publisher.publish(f"r/{number}", b"x", retain=True, message_expiry_interval=interval)
    publisher.publish("r/0", b"y", retain=True)
    for now in (20, 49, 50, 120, 298):
        harness.clock.advance(now - harness.broker.state.runtime.now())
        harness.settle()
        expected = {
            f"r/{n}" for n in range(1, 300) if (50 if n % 3 else 1 + n) > now
        } | {"r/0"}  # fmt: skip
        assert {topic for topic, _ in core.retained.match("#")} == expected


@pytest.mark.parametrize("interval", [10, 4294967295])
def test_a_clock_that_is_set_back(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    """[MQTT-3.3.2-6] If the clock is set back, the remaining interval never exceeds the original
    one.
    """
    publisher = harness.connect("p")
    client = harness.connect("c", receive_maximum=1, auto_ack=False)
    client.subscribe("q", 1)
    publisher.publish("t", b"x", retain=True, message_expiry_interval=interval)
    publisher.publish("q", b"first", 1)
    publisher.publish("q", b"second", 1, message_expiry_interval=interval)
    right = harness.clock.time
    monkeypatch.setattr(type(harness.clock), "time", lambda clock: right() - 5)
    client.ack(client.expect_message(payload=b"first"))
    assert left(client) == [(b"second", interval)]
    other = harness.connect("o")
    other.subscribe("t")
    assert left(other) == [(b"x", interval)]
    monkeypatch.undo()
    harness.clock.advance(min(interval, 100))
    harness.settle()
    assert interval > 100 or "t" not in harness.broker.state.retained


def test_a_clock_that_is_set_forward(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the clock is set forward, an expired retained message is removed within an hour, however long its interval
    was.
    """
    publisher = harness.connect("p")
    publisher.publish("t", b"x", retain=True, message_expiry_interval=1_000_000)
    right = harness.clock.time
    monkeypatch.setattr(type(harness.clock), "time", lambda clock: right() + 2_000_000)
    harness.clock.advance(3600)
    harness.settle()
    assert "t" not in harness.broker.state.retained


class Turns:
    """A runtime with deadlines. `counts` lists how many calls were made in each turn."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.deadlines = TimerQueue(self.runtime, lambda call: call())
        self.counts: list[int] = []
        self._open = False

    def note(self) -> None:
        """Count one call in this turn."""
        if not self._open:
            self._open = True
            self.counts.append(0)
            self.runtime.call_soon(self._close)
        self.counts[-1] += 1

    def _close(self) -> None:
        self._open = False


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.mark.parametrize("early", [0.0, 0.0004, -0.0004, 0.3])
def test_retained_messages_expire_in_slices_whatever_the_clocks_say(
    turns: Turns, early: float
) -> None:
    """Retained messages expire in slices, even if the timer and the expiry times use different clocks. The delay until
    the next slice may then be 0.
    """
    expired: list[str] = []

    def expire(topic: str) -> None:
        turns.note()
        expired.append(topic)

    expiries = Expiries(turns.runtime, turns.deadlines, expire)
    count = 2 * EXPIRIES + 1
    for number in range(count):
        expiries.add(EPOCH + 30.0 - early, f"t/{number}")
    turns.runtime.advance(31.0)
    assert sorted(expired) == sorted(f"t/{number}" for number in range(count))
    assert turns.counts == [EXPIRIES, EXPIRIES, 1]
