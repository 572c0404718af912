"""Test message expiry. The interval counts down while a message waits, and no longer applies once the message is sent."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.packets import Pubcomp, Publish, Pubrel
from hookmq_testing import Harness, MemoryClient

Make = Callable[..., Harness]
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100_000}


def left(client: MemoryClient) -> list[tuple[bytes, int | None]]:
    """Remove the unread messages and return the payload and Message Expiry Interval of each."""
    client.harness.settle()
    found = [p for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return [(m.payload, m.properties.message_expiry_interval) for m in found]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_live(harness: Harness, qos: int) -> None:
    """[MQTT-3.3.2-6] A live message keeps its Message Expiry Interval, because no time has passed. The broker does not
    add the property to messages without one, and does not send it to MQTT 3 clients.
    """
    five = harness.connect("five")
    five.subscribe("t", 2)
    four = harness.connect("four", 4)
    four.subscribe("t", 2)
    publisher = harness.connect("p")
    for interval in (1, 4294967295, None, 7):
        publisher.publish("t", b"x", qos, message_expiry_interval=interval)
        assert left(five) == [(b"x", interval)]
        assert left(four) == [(b"x", None)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_queued_for_one_who_is_away(harness: Harness, version: int, qos: int) -> None:
    """[MQTT-3.3.2-5, 3.3.2-6], edge case 28: expired messages are dropped and counted. The other
    messages arrive with a reduced interval.
    """
    options = KEPT if version == 5 else {"clean_start": False}
    client = harness.connect("c", version, **options)
    client.subscribe("t", 2)
    client.drop()
    publisher = harness.connect("p")
    for interval in (5, 10, 11, None, 4294967295):
        publisher.publish("t", b"%d" % (interval or 0), qos, message_expiry_interval=interval)
    harness.advance(10)
    client.reconnect()
    expected: list[tuple[bytes, int | None]] = [
        (b"11", 1),
        (b"0", None),
        (b"4294967295", 4294967285),
    ]
    if version == 4:
        expected = [(payload, None) for payload, _ in expected]
    assert left(client) == expected
    assert harness.metrics.dropped == {("expired", "out"): 2}
    assert harness.broker.state.queued_bytes == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_queued_behind_a_full_window(harness: Harness, qos: int, kept: bool) -> None:
    """Messages for a connected client also expire while they wait."""
    options = KEPT if kept else {}
    client = harness.connect("c", auto_ack=False, receive_maximum=1, **options)
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    for interval in (None, 5, 20, 5, 30):
        publisher.publish("t", b"%d" % (interval or 0), qos, message_expiry_interval=interval)
    first = client.expect_message(payload=b"0")
    harness.advance(6)
    client.ack(first)
    assert left(client) == [(b"20", 14)]
    harness.advance(10)
    client.ack(client.messages[-1])
    assert left(client) == [(b"30", 14)]
    assert harness.metrics.dropped == {("expired", "out"): 2}


def test_queued_for_a_slow_reader(harness: Harness) -> None:
    """QoS 0 messages waiting for a slow reader expire as well."""
    client = harness.connect("c", high_water=10)
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    client.pause()
    publisher.publish("t", b"fills the buffer")
    for qos in (0, 1):
        publisher.publish("t", b"short", qos, message_expiry_interval=5)
        publisher.publish("t", b"long", qos, message_expiry_interval=50)
    harness.advance(6)
    client.resume()
    assert left(client) == [(b"fills the buffer", None), (b"long", 44), (b"long", 44)]
    assert harness.metrics.dropped == {("expired", "out"): 2}


@pytest.mark.parametrize("wait", [0.0, 0.4, 1.0, 9.6])
def test_parts_of_seconds(harness: Harness, wait: float) -> None:
    """The remaining time is rounded up, because 0 would mean that the message has expired."""
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    publisher.publish("t", b"first", 1)
    publisher.publish("t", b"second", 1, message_expiry_interval=10)
    harness.advance(wait)
    client.ack(client.expect_message())
    assert left(client) == [(b"second", {0.0: 10, 0.4: 10, 1.0: 9, 9.6: 1}[wait])]


@pytest.mark.parametrize("qos", [1, 2])
def test_never_once_it_was_sent(harness: Harness, qos: int) -> None:
    """[MQTT-4.3.3-7, 4.3.3-13], edge case 28: a message never expires once it has been sent. It is retransmitted, and
    its exchange is completed.
    """
    client = harness.connect("c", auto_ack=False, **KEPT)
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    publisher.publish("t", b"x", qos, message_expiry_interval=5)
    number = client.expect_message("t", b"x", qos).packet_id
    harness.advance(10)
    client.reconnect()
    again = client.expect_message("t", b"x", qos, dup=True)
    assert again.packet_id == number
    client.ack(again)
    if qos == 2:
        assert client.next() == Pubrel(number)
        harness.advance(10)
        client.reconnect()
        assert client.next() == Pubrel(number)
        client.send(Pubcomp(number))
    client.expect_nothing()
    assert harness.broker.sessions["c"].inflight == {}
    assert not harness.metrics.dropped


def test_room_is_not_taken_by_what_is_over(harness: Harness) -> None:
    """Expired messages take up no room. With a window of one, the broker skips many expired messages and sends the next
    valid one at once, without using up packet ids.
    """
    client = harness.connect("c", receive_maximum=1, **KEPT)
    client.subscribe("t", 1)
    client.drop()
    publisher = harness.connect("p")
    for _ in range(600):  # more than a page of the store
        publisher.publish("t", b"over", 1, message_expiry_interval=1)
    publisher.publish("t", b"good", 1)
    harness.advance(2)
    client.reconnect()
    assert left(client) == [(b"good", None)]
    assert harness.metrics.dropped == {("expired", "out"): 600}
    session = harness.broker.sessions["c"]
    assert (session.queued, session.stored, session.queued_bytes, session.inflight) == (0, 0, 0, {})


def test_a_queue_where_all_is_over_makes_room(broker_harness: Make) -> None:
    """The limit counts all queued messages. The oldest one is dropped whether or not it has expired."""
    harness = broker_harness(config={"session": {"queue_messages": 2, "queue_drop": "oldest"}})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    publisher = harness.connect("p")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 1, message_expiry_interval=1 if number < 2 else 100)
    harness.advance(2)
    client.reconnect()
    assert left(client) == [(b"2", 98)]
    assert harness.metrics.dropped == {("queue_full", "out"): 1, ("expired", "out"): 1}


def test_twice_or_cut_short(harness: Harness) -> None:
    """Edge case 38: a repeated or truncated expiry interval is an error."""
    for properties in (b"\x02\0\0\0\1\x02\0\0\0\1", b"\x02\0\0\1"):
        client = harness.connect("c")
        body = b"\0\1t" + bytes((len(properties),)) + properties
        client.raw(bytes((0x30, len(body))) + body)
        client.expect_disconnect(0x82 if len(properties) == 10 else 0x81)
