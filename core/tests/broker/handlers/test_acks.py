"""Test acknowledgements in both directions: from clients and to clients."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.packets import (
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
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


def flow(packets: list[Packet]) -> list[tuple[Any, ...]]:
    """Return (kind, id, payload, DUP) for each PUBLISH and (kind, id) for each acknowledgement."""
    return [
        (type(p), p.packet_id, p.payload, p.dup) if isinstance(p, Publish) else (type(p), p.packet_id)
        for p in packets
        if isinstance(p, Publish | Puback | Pubrec | Pubrel | Pubcomp)
    ]  # fmt: skip


# --- into the broker ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("learned", [0, 2])
def test_a_repeated_id_is_one_message(
    harness: Harness, version: int, durable: bool, learned: int
) -> None:
    """[MQTT-4.3.3-10, 4.3.3-11, 4.3.3-12] [MQTT311-4.3.3-2], edge case 42: until PUBREL, a repeated packet id refers to
    the same message, with or without DUP.
    """
    subscriber = harness.connect("s")
    subscriber.subscribe("t", 2)
    client = harness.connect("c", version, auto_ack=False, **(kept(version) if durable else {}))
    for number in range(learned):
        client.publish("t", b"before", 2, packet_id=100 + number, expect=0)
        subscriber.expect_message("t")
    for _ in range(2):
        for dup in (False, True, False):
            client.publish("t", b"x", 2, packet_id=5, dup=dup)
            assert client.next() == Pubrec(5)
        subscriber.expect_message("t", b"x", 2, dup=False)
        subscriber.expect_nothing()
        client.send(Pubrel(5))
        assert client.next() == Pubcomp(5)
    client.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_qos_1_id_is_new_after_puback(harness: Harness, version: int) -> None:
    """[MQTT-4.3.2-5] [MQTT311-4.3.2-2], edge case 42: after PUBACK, the packet id may be reused for a new message."""
    subscriber = harness.connect("s")
    subscriber.subscribe("t", 1)
    client = harness.connect("c", version)
    for dup in (False, True, True, False):
        client.publish("t", b"x", 1, packet_id=5, dup=dup, expect=0)
        subscriber.expect_message("t", b"x", 1, dup=False)
    subscriber.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_ids(harness: Harness, version: int) -> None:
    """[MQTT-3.6.2-1, 3.7.2-1, 4.3.3-11], edge case 41: packets with unknown ids are answered, and the
    connection stays open.
    """
    client = harness.connect("c", version)
    client.auto_ack = False
    client.send(Pubrel(9))
    assert client.next() == Pubcomp(9, NOT_FOUND if version == 5 else 0)
    client.send(Pubrec(9))
    assert client.next() == Pubrel(9, NOT_FOUND if version == 5 else 0)
    client.send(Puback(9), Pubcomp(9))
    if version == 5:
        client.send(Pubrec(9, 0x80))
        client.raw(b"\x40\x04\x00\x09\x00\x00" + b"\x70\x04\x00\x09\x92\x00")
    client.expect_nothing()


@pytest.mark.parametrize("durable", [False, True])
def test_pubrel_twice(harness: Harness, durable: bool) -> None:
    """If a client sends PUBREL twice, both are answered, although the first one frees the packet id."""
    client = harness.connect("c", auto_ack=False, **(kept(5) if durable else {}))
    client.publish("t", b"", 2, packet_id=5)
    client.expect(Pubrec)
    client.send(Pubrel(5), Pubrel(5))
    assert unread(client) == [Pubcomp(5), Pubcomp(5, NOT_FOUND)]


def test_short_and_long_acknowledgements_mean_the_same(harness: Harness) -> None:
    """Edge case 44: acknowledgements may be shortened to a Remaining Length of 2, 3 or 4."""
    client = harness.connect("c", auto_ack=False)
    client.subscribe("t", 2)
    for end in (b"", b"\0", b"\0\0"):
        size = bytes((2 + len(end),))
        client.publish("t", b"", 1, packet_id=1)
        assert isinstance(client.next(), Publish)
        assert client.next() == Puback(1)
        number = client.messages[-1].packet_id.to_bytes(2, "big")
        client.raw(b"\x40" + size + number + end)
        client.publish("t", b"", 2, packet_id=1)
        assert isinstance(client.next(), Publish)
        assert client.next() == Pubrec(1)
        client.raw(b"\x62" + size + b"\0\1" + end)
        assert client.next() == Pubcomp(1)
        number = client.messages[-1].packet_id.to_bytes(2, "big")
        client.raw(b"\x50" + size + number + end)
        assert isinstance(client.next(), Pubrel)
        client.raw(b"\x70" + size + number + end)
        assert harness.broker.sessions["c"].inflight == {}
    client.expect_nothing()


def test_both_ends_count_on_their_own(harness: Harness) -> None:
    """[MQTT-2.2.1-5], edge case 39: the client and the broker may use the same packet id at the same time."""
    client = harness.connect("c", auto_ack=False)
    client.subscribe("t", 2)
    client.publish("t", b"x", 2, packet_id=1)
    assert flow(unread(client)) == [(Publish, 1, b"x", False), (Pubrec, 1)]
    client.send(Pubrec(1))
    assert unread(client) == [Pubrel(1)]
    client.send(Pubrel(1))
    assert unread(client) == [Pubcomp(1)]
    client.send(Pubcomp(1))
    client.expect_nothing()
    assert not harness.broker.sessions["c"].inflight


@pytest.mark.parametrize("version", VERSIONS)
def test_an_id_taken_outlives_the_connection(harness: Harness, version: int) -> None:
    """[MQTT-4.3.3-10] A packet id outlives the connection. If the sender has not received PUBREC or PUBCOMP, it may
    repeat PUBLISH or PUBREL.
    """
    subscriber = harness.connect("s")
    subscriber.subscribe("t", 2)
    client = harness.connect("c", version, auto_ack=False, **kept(version))
    client.publish("t", b"x", 2, packet_id=5)
    client.reconnect()
    client.publish("t", b"x", 2, packet_id=5, dup=True)
    assert client.next() == Pubrec(5)
    client.send(Pubrel(5))
    client.expect(Pubcomp)
    client.reconnect()
    client.send(Pubrel(5))
    assert client.next() == Pubcomp(5, NOT_FOUND if version == 5 else 0)
    subscriber.expect_message("t", b"x")
    subscriber.expect_nothing()
    client.publish("t", b"y", 2, packet_id=5, dup=True)
    subscriber.expect_message("t", b"y")


def test_a_refused_id_is_free(broker_harness: Make) -> None:
    """[MQTT-4.3.3-9], edge case 40: after a PUBREC of 0x80 or above, the next PUBLISH with the same id is a new
    message.
    """
    harness = broker_harness(config={"broker": {"check_payload_format": True}})
    client = harness.connect("c", auto_ack=False)
    client.publish("t", b"\xff", 2, packet_id=5, payload_format_indicator=1, expect=0x99)
    client.send(Pubrel(5))
    assert client.next() == Pubcomp(5, NOT_FOUND)
    client.publish("t", b"", 2, packet_id=5)
    assert client.next() == Pubrec(5, 0x10)


# --- out of the broker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("header", "qos"), [(0x41, 1), (0x48, 1), (0x51, 2), (0x60, 2), (0x71, 2)])
def test_reserved_flags(
    harness: Harness, header: int, qos: int, version: int, durable: bool
) -> None:
    """[MQTT-2.1.3-1, 3.6.1-1] Invalid flags are an error, even in an acknowledgement that the broker expects."""
    client = harness.connect("c", version, auto_ack=False, **(kept(version) if durable else {}))
    client.subscribe("t", 2)
    harness.connect("p").publish("t", b"", qos)
    message = client.expect_message(qos=qos)
    if header >= 0x60:
        client.publish("u", b"", 2, packet_id=message.packet_id)
        client.ack(message)
        client.expect(Pubrel)
    client.raw(bytes((header, 2)) + message.packet_id.to_bytes(2, "big"))
    client.expect_disconnect(0x81)


# --- again --------------------------------------------------------------------------------------------------------------


def test_ping(harness: Harness) -> None:
    """[MQTT-3.12.4-1] [MQTT311-3.12.4-1] PINGREQ is answered with PINGRESP."""
    for version in VERSIONS:
        client = harness.connect("c", version)
        client.send(Pingreq(), Pingreq())
        assert client.next() == Pingresp()
        assert client.next() == Pingresp()
        client.expect_nothing()
