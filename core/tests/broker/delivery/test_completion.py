"""Test how a delivery and its packet id change when the receiver acknowledges the message."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.packets import (
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from hookmq.session.inflight import VOLATILE_1, VOLATILE_2, VOLATILE_RELEASED
from hookmq_testing import Harness, MemoryClient

Make = Callable[..., Harness]


VERSIONS = (3, 4, 5)


NOT_FOUND = 0x92


def kept(version: int) -> dict[str, Any]:
    """Return CONNECT options for a session that outlives its connection."""
    return {"clean_start": False, **({"session_expiry_interval": 10000} if version == 5 else {})}


def unread(client: MemoryClient) -> list[Packet]:
    """Remove the unread packets and return them."""
    client.harness.settle()
    packets = list(client.unread)
    client.unread.clear()
    return packets


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_one_delivery_step_by_step(harness: Harness, version: int, qos: int, durable: bool) -> None:
    """[MQTT-4.3.2-1, 4.3.2-2, 4.3.2-3, 4.3.3-1 to 5, 2.2.1-5] At each step of a delivery, the broker waits for the
    client's response. It never sends anything twice on the same connection [MQTT-4.4.0-1].
    """
    client = harness.connect("c", version, auto_ack=False, **(kept(version) if durable else {}))
    client.subscribe("t", 2)
    publisher = harness.connect("p")
    session = harness.broker.sessions["c"]
    for _ in range(3):
        publisher.publish("t", b"x", qos, expect=0)
        message = client.expect_message("t", b"x", qos, dup=False)
        harness.advance(10_000)
        client.expect_nothing()
        number = message.packet_id
        assert list(session.inflight) == [number]
        client.ack(message)
        if qos == 2:
            assert client.next() == Pubrel(number)
            harness.advance(10_000)
            client.expect_nothing()
            client.send(Pubrec(number))  # the client has not seen PUBREL, so the broker repeats it
            assert client.next() == Pubrel(number)
            client.send(Pubcomp(number))
        client.expect_nothing()
        assert session.inflight == {}


def test_refused_by_the_receiver(harness: Harness) -> None:
    """[MQTT-4.3.3-4, 4.4.0-2], edge case 40: after the receiver refuses a message, the broker sends no PUBREL and does
    not retransmit. The packet id is free again, and the drop is counted.
    """
    for options in ({}, kept(5)):
        client = harness.connect("c", auto_ack=False, **options)
        client.subscribe("t", 2)
        publisher = harness.connect("p")
        before = harness.metrics.dropped.get(("refused", "out"), 0)
        for qos in (1, 1, 2, 2):
            publisher.publish("t", b"", qos)
            client.ack(client.expect_message(qos=qos), 0x97)
        client.expect_nothing()
        assert harness.broker.sessions["c"].inflight == {}
        assert harness.metrics.dropped["refused", "out"] == before + 4
    client.reconnect()
    client.expect_nothing()


def test_the_wrong_acknowledgement(harness: Harness) -> None:
    """PUBACK does not complete a QoS 2 delivery. PUBREC and PUBCOMP do not complete a QoS 1
    delivery.
    """
    for options in ({}, kept(5)):
        client = harness.connect("c", auto_ack=False, **options)
        client.subscribe("t", 2)
        publisher = harness.connect("p")
        publisher.publish("t", b"", 1)
        first = client.expect_message(qos=1).packet_id
        publisher.publish("t", b"", 2)
        second = client.expect_message(qos=2).packet_id
        client.send(Pubcomp(first), Puback(second))
        client.expect_nothing()
        client.send(Pubrec(first))
        assert client.next() == Pubrel(first, NOT_FOUND)
        assert list(harness.broker.sessions["c"].inflight) == [first, second]
        client.send(Puback(first), Pubrec(second))
        assert client.next() == Pubrel(second)
        client.send(Pubcomp(second))
        assert harness.broker.sessions["c"].inflight == {}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_ids_wrap_and_pass_over_those_in_use(
    harness: Harness, durable: bool, learned: bool
) -> None:
    """[MQTT-2.2.1-4, 4.3.2-1] After packet id 65,535, the broker uses the lowest free id. It never uses 0."""
    client = harness.connect("c", auto_ack=False, **(kept(5) if durable else {}))
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    publisher.publish("t", b"", 1)
    publisher.publish("t", b"", 1)
    session = harness.broker.sessions["c"]
    session.last_packet_id = 65534
    if not learned:
        publisher.connection.forget_decisions()
    for _ in range(3):
        publisher.publish("t", b"", 1)
    assert [m.packet_id for m in client.messages] == [1, 2, 65535, 3, 4]


@pytest.mark.parametrize("learned", [False, True])
def test_all_ids_in_use(broker_harness: Make, learned: bool) -> None:
    """When all packet ids are in use, a message waits until one is free. Before that, the last free id is used."""
    harness = broker_harness(config={"session": {"max_inflight": 65535}})
    client = harness.connect("c", auto_ack=False)
    client.subscribe("t", 1)
    publisher = harness.connect("p")
    for _ in range(2 * learned):
        publisher.publish("t", b"", 1)
        client.ack(client.expect_message())
    session = harness.broker.sessions["c"]
    session.inflight.update((n, VOLATILE_1) for n in range(1, 65536) if n not in (40000, 50000))
    publisher.publish("t", b"last", 1, expect=0)
    assert client.expect_message("t", b"last").packet_id == 40000
    publisher.publish("t", b"waits", 1, expect=0)
    client.expect_nothing()
    client.send(Puback(7))
    assert client.expect_message("t", b"waits").packet_id in (7, 50000)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeated_pubrec_of_a_session_that_ends_with_its_connection(
    broker_harness: Make, version: int
) -> None:
    """[MQTT-4.3.3-4] The broker answers every PUBREC for a clean session. The state that all clean sessions share does
    not change.
    """
    harness = broker_harness()
    client = harness.connect("c", version, auto_ack=False)
    client.subscribe("t", 2)
    publisher = harness.connect("p", version)
    inflight = harness.broker.sessions["c"].inflight
    publisher.publish("t", b"x", 2)
    client.send(Pubrec(1), Pubcomp(1))
    publisher.publish("t", b"y", 2)
    unread(client)
    ((number, shared),) = inflight.items()
    assert shared is VOLATILE_2
    for _ in range(3):
        client.send(Pubrec(number))
        assert unread(client) == [Pubrel(number)]
        assert inflight == {number: VOLATILE_RELEASED}
    assert not VOLATILE_2.released
    assert not VOLATILE_RELEASED.released
    client.send(Pubcomp(number))
    client.expect_nothing()
    assert inflight == {}
