"""Test chapters 3.12, 3.14 and 4.13: PINGREQ, DISCONNECT in both directions, and how connections end after an error."""

from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from bytememory import LEVELS, in_memory, join
from hookmq.broker.connection_state import Phase
from hookmq.mqtt.packets import Packet
from hookmq.mqtt.reason_codes import PacketType
from hookmq_testing import Harness
from statements import edge, one_broker, statement


@statement("MQTT-3.12.4-1", "MQTT311-3.12.4-1")
@LEVELS
def test_pingreq(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.send(m.PINGREQ)
    client.expect(m.PINGRESP)
    client.send(m.PINGREQ, m.PINGREQ)
    client.expect(m.PINGRESP, m.PINGRESP)
    client.send(b"\xc0\x01\x00").refused(0x81)


@statement("MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT311-3.14.4-3")
@LEVELS
def test_nothing_after_the_clients_disconnect_counts(harness: Harness, level: int) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("#", 0))
    client = join(harness, "c", level)
    client.subscribe(("t", 0))
    client.send(
        m.publish("t", b"before", level=level),
        m.disconnect(),
        m.publish("t", b"after", level=level),
        m.PINGREQ,
    )
    client.ends(m.publish("t", b"before", level=level))
    watcher.expect(m.publish("t", b"before"))


@statement("MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT-4.13.1-1", "MQTT-4.13.2-1", "MQTT311-4.8.0-1")
@LEVELS
def test_nothing_after_our_disconnect(harness: Harness, level: int) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("#", 0))
    client = join(harness, "c", level)
    client.subscribe(("t", 0))
    before = m.publish("t", b"before", level=level)
    client.send(before, m.publish("a/#", b"bad", level=level), m.PINGREQ, before)
    client.refused(0x90, after=before)
    watcher.expect(m.publish("t", b"before"))
    watcher.publish("t", b"x")
    client.send(m.PINGREQ)
    client.ends()


OURS_ONLY = [
    0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2
]  # fmt: skip
NOT_OF_DISCONNECT = [0x01, 0x02, 0x10, 0x18, 0x84, 0x85, 0x91, 0x92, 0xFF]


@statement("MQTT-3.14.2-1")
@pytest.mark.parametrize("code", NOT_OF_DISCONNECT + OURS_ONLY)
def test_codes_that_a_client_cannot_send(harness: Harness, code: int) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("w", 0))
    client = join(harness, "c", will=("w", b"gone"))
    client.send(m.disconnect(code)).refused(0x81, 0x82)
    watcher.expect(m.publish("w", b"gone"))


@statement("MQTT-3.14.2-1")
@pytest.mark.parametrize(
    "code", [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]
)
def test_codes_that_a_client_can_send(harness: Harness, code: int) -> None:
    for packet in (m.disconnect(code), m.disconnect(code, m.reason_string("x") + m.user("a", "b"))):
        join(harness).goodbye(packet)


@edge(44)
@statement("MQTT-3.14.4-3")
def test_short_forms_of_disconnect(harness: Harness) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("w", 0))
    for packet in (b"\xe0\x00", b"\xe0\x01\x00", b"\xe0\x02\x00\x00"):
        join(harness, will=("w", b"gone")).goodbye(packet)
    watcher.expect()
    join(harness, will=("w", b"gone")).goodbye(b"\xe0\x01\x04")
    watcher.expect(m.publish("w", b"gone"))


@statement("MQTT-3.14.1-1", "MQTT311-3.14.1-1", "MQTT311-4.8.0-1")
def test_disconnect_with_a_body_in_3(harness: Harness) -> None:
    join(harness, "c", 4).send(b"\xe0\x01\x00").refused()


@statement("MQTT-3.14.2-2", "MQTT-3.14.2-1", "MQTT-3.14.4-2")
@edge(1)
@one_broker("the node with the connection may only relay it")
def test_our_disconnects(broker_harness: Any) -> None:
    """Every DISCONNECT from the broker has a code that a server may send, and no Session Expiry Interval."""
    harness = broker_harness(config={"broker": {"server_reference": "other"}})
    keep: dict[str, Any] = {"clean": False, "properties": m.session_expiry(100)}
    found = []

    def ended(client: ByteClient) -> None:
        assert client.wire.closed
        found.append(client.take_one())

    old = join(harness, **keep)
    join(harness, present=True, **keep).send(b"\xf0\x00")
    ended(old)
    idle = join(harness, "idle", keep_alive=1, **keep)
    harness.advance(2)
    ended(idle)
    for code in range(0x80, 0x100):  # including codes that a plugin might choose
        client = (
            join(harness, "kicked", **keep)
            if code == 0x80
            else join(harness, "kicked", present=True, **keep)
        )
        client.connection.disconnect(code)  # type: ignore[arg-type]
        harness.settle()
        ended(client)
    last = join(harness, "last", **keep)
    harness.wait(lambda done: harness.broker.drain("elsewhere", lambda: done(None)))
    ended(last)
    for packet in found:
        assert packet[0] == 0xE0
        assert packet[2] in {
            0x80,
            0x81,
            0x82,
            0x83,
            0x87,
            0x89,
            0x8B,
            0x8D,
            0x8E,
            0x8F,
            0x90,
            *range(0x93, 0xA3),
        }
        properties = m.split_section(packet[3:])[0] if len(packet) > 3 else []
        assert not [one for one in properties if one[0] == 0x11]
    assert [packet[2] for packet in found[:2]] == [0x8E, 0x8D]
    assert found[-1] == m.disconnect(0x9C, b"\x1c" + m.text("elsewhere"))


@statement("MQTT-3.14.0-1")
@LEVELS
def test_a_drain_before_connack(harness: Harness, level: int) -> None:
    silent = in_memory(harness, level)
    harness.wait(lambda done: harness.broker.drain("", lambda: done(None)))
    silent.ends()
    in_memory(harness, level).connect().ends()


ONLY_SERVERS_SEND = [b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x00", b"\xb0\x02\x00\x01", b"\xd0\x00"]


@statement("MQTT-4.13.1-1", "MQTT311-4.8.0-1", "MQTT-2.1.3-1", "MQTT311-2.2.2-2")
@LEVELS
@pytest.mark.parametrize("packet", [*ONLY_SERVERS_SEND, b"\x00\x00", b"\x0f\x00"])
def test_packets_that_no_client_sends(harness: Harness, level: int, packet: bytes) -> None:
    join(harness, "c", level).send(packet).refused(0x81, 0x82)


@statement("MQTT-4.13.1-1", "MQTT311-4.8.0-1")
@LEVELS
def test_one_bad_client_concerns_no_other(harness: Harness, level: int) -> None:
    good = join(harness, "good", level)
    good.subscribe(("t", 1))
    for packet in (b"\xff\xff\xff\xff\xff", b"\x82\x00", m.publish("#", b"", level=level)):
        bad = join(harness, "bad", level)
        bad.send(packet)
        assert bad.wire.closed
    good.publish("t", b"x", 1, 1)
    good.expect(m.publish("t", b"x", 1, 1, level=level), m.puback(1))


@statement("MQTT311-4.8.0-2")
@LEVELS
@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_our_own_failure_closes_the_connection(
    harness: Harness, level: int, error: type[Exception]
) -> None:
    good, bad = join(harness, "good", level), join(harness, "bad", level)

    def fail(connection: Any, packet: Packet) -> None:
        raise error("out of luck")

    bad.connection.table = {**bad.connection.table, (Phase.OPEN, PacketType.PINGREQ): fail}
    bad.send(m.PINGREQ).refused(0x80, 0x83)
    good.send(m.PINGREQ)
    good.expect(m.PINGRESP)
    assert [event for _, event, _ in harness.logs].count("internal.error") == 1
    harness.allow_errors = True


@statement("MQTT311-7.0.0-2")
@LEVELS
def test_nothing_special_is_needed(harness: Harness, level: int) -> None:
    """To use the broker, a client needs nothing beyond what the standard describes."""
    client = in_memory(harness, level)
    client.connect("c", keep_alive=60)
    client.accepted()
    client.subscribe(("t", 2))
    client.publish("t", b"x", 2, 1)
    client.expect(m.publish("t", b"x", 2, 1, level=level), m.pubrec(1))
    client.send(m.pubrel(1), m.pubrec(1))
    client.expect(m.pubcomp(1), m.pubrel(1))
    client.send(m.pubcomp(1), m.PINGREQ)
    client.expect(m.PINGRESP)
    client.unsubscribe("t")
    client.goodbye()
