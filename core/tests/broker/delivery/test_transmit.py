"""Test the limits on messages in flight to a client: its window and its maximum packet size."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from hookmq_testing import Harness
from numbered import nothing_left, numbers, payloads, send

Make = Callable[..., Harness]


VERSIONS = (3, 4, 5)


KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100_000}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_the_clients_receive_maximum(harness: Harness, kept: bool, learned: bool) -> None:
    """[MQTT-3.3.4-9, 4.9.0-1, 4.9.0-2], edge case 18: PUBACK, PUBCOMP and a PUBREC of 0x80 or above free a slot.

    A successful PUBREC does not free one, and no slot is freed twice.
    """
    client = harness.connect("c", auto_ack=False, receive_maximum=3, **(KEPT if kept else {}))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    if not learned:
        publisher.connection.memo = {}
    for number, qos in enumerate((1, 2, 2, 1, 2, 1, 2, 1)):
        publisher.publish("t", b"%d" % number, qos, expect=0)
    one, two, three = client.messages
    assert payloads(client) == numbers(0, 1, 2)
    client.ack(two)
    assert client.next() == Pubrel(two.packet_id)
    client.expect_nothing()  # a successful PUBREC frees no slot
    client.ack(one)
    assert payloads(client) == numbers(3)
    client.ack(three, 0x80)
    assert payloads(client) == numbers(4)
    client.send(Pubcomp(two.packet_id), Pubcomp(two.packet_id), Puback(one.packet_id))
    assert payloads(client) == numbers(5)  # repeated acknowledgements free only one slot
    client.send(Puback(77), Pubcomp(78), Pubrec(79, 0x80))
    client.expect_nothing()
    assert len(harness.broker.sessions["c"].inflight) == 3


def test_a_full_window_stops_nothing_else(harness: Harness) -> None:
    """[MQTT-3.3.4-10, 4.9.0-3] QoS 0 messages and responses are still sent to a client whose window is full."""
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe("t", 2)
    send(harness, range(3))
    assert payloads(client) == numbers(0)
    send(harness, range(10, 13), 0)
    assert payloads(client) == numbers(10, 11, 12)
    client.send(Pingreq())
    assert client.next() == Pingresp()
    assert client.subscribe("u").codes == (0,)
    client.publish("v", b"", 1, expect=0x10)
    client.publish("v", b"", 2, packet_id=9)
    assert client.next() == Pubrec(9, 0x10)
    client.send(Pubrel(9))
    assert client.next() == Pubcomp(9)
    client.unsubscribe("u")
    client.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_configured_window(broker_harness: Make, version: int) -> None:
    """The configured window also limits MQTT 3 clients and clients with a larger Receive Maximum."""
    harness = broker_harness(config={"session": {"max_inflight": 2}})
    more: dict[str, Any] = {"receive_maximum": 100} if version == 5 else {}
    client = harness.connect("c", version, auto_ack=False, **more)
    client.subscribe("t", 1)
    send(harness, range(5))
    seen = []
    while found := [p for p in list(client.unread) if isinstance(p, Publish)]:
        assert len(found) <= 2
        client.unread.clear()
        seen += [m.payload for m in found]
        for message in found:
            client.ack(message)
    assert seen == numbers(0, 1, 2, 3, 4)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_order_through_a_window_of_one(harness: Harness, qos: int, kept: bool) -> None:
    """[MQTT-4.6.0-5] With a window of one, new messages wait behind queued ones."""
    client = harness.connect("c", receive_maximum=1, **(KEPT if kept else {}))
    client.subscribe("t", qos)
    publisher = harness.connect("p")
    with harness.together():
        for number in range(50):
            publisher.publish("t", b"%d" % number, qos)
    assert payloads(client) == numbers(*range(50))
    assert nothing_left(harness)


@pytest.mark.parametrize("of", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_too_large_for_the_client(harness: Harness, of: int, qos: int, kept: bool) -> None:
    """[MQTT-3.1.2-24, 3.1.2-25], edge case 20: a message that is too large for the client is dropped and counted. It
    uses neither a packet id nor a slot.

    The connection stays open. A packet of exactly the maximum size is sent.
    """
    client = harness.connect(
        "c", maximum_packet_size=100, receive_maximum=1, **(KEPT if kept else {})
    )
    client.subscribe("t", 2)
    publisher = harness.connect("p", of)
    fits = 100 - len(encode(Publish("t", b"", qos, packet_id=1 if qos else 0), 5))
    for size in (fits, fits + 1, 1000, fits, 0):
        publisher.publish("t", b"x" * size, qos, expect=0 if qos else None)
    assert [len(m.payload) for m in client.messages] == [fits, fits, 0]
    assert harness.metrics.dropped == {("too_large", "out"): 2}
    if qos:
        assert [m.packet_id for m in client.messages] == [1, 2, 3]
    assert nothing_left(harness)


def test_too_large_on_return(harness: Harness) -> None:
    """When a client returns, queued and unfinished messages must fit the new connection's maximum packet size."""
    client = harness.connect("c", auto_ack=False, **KEPT)
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    for qos in (1, 2):
        publisher.publish("t", b"x" * 100, qos)
        publisher.publish("t", b"small", qos)
    client.drop()
    publisher.publish("t", b"x" * 100, 1)
    publisher.publish("t", b"waited", 1)
    client.received.clear()
    client.reconnect(maximum_packet_size=60, auto_ack=True)
    assert [m.payload for m in client.messages] == [b"small", b"small", b"waited"]
    assert harness.metrics.dropped == {("too_large", "out"): 3}
    assert nothing_left(harness)
    client.reconnect()
    assert payloads(client) == []
