"""Test that the rules for a first PUBLISH also apply to similar ones that follow, which may use the fast path."""

from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from bytememory import LEVELS, join
from hookmq_testing import Harness
from statements import edge, statement


def warm(
    harness: Harness, level: int, qos: int, properties: bytes = b""
) -> tuple[ByteClient, ByteClient]:
    """Return (publisher, subscriber) after some messages to "t" and their acknowledgements."""
    reader = join(harness, "reader", level)
    reader.subscribe(("t", 2))
    sender = join(harness, "sender", level)
    for number in range(1, 5):
        sender.publish("t", b"warm", qos, number, properties=properties)
        if qos == 2:
            sender.send(m.pubrel(number))
    assert len(reader.take_frames()) == 4
    if qos == 1:
        sender.expect(*map(m.puback, range(1, 5)))
    elif qos == 2:
        sender.expect(*(make(number) for number in range(1, 5) for make in (m.pubrec, m.pubcomp)))
    return sender, reader


@statement(
    "MQTT-2.2.1-3",
    "MQTT311-2.3.1-1",
    "MQTT-3.3.1-2",
    "MQTT311-3.3.1-2",
    "MQTT-3.3.1-4",
    "MQTT311-3.3.1-4",
)
@edge(39)
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_bad_headers(harness: Harness, level: int, qos: int) -> None:
    for packet, codes in (
        (m.publish("t", b"x", qos or 1, 0, level=level), [0x81, 0x82]),
        (m.publish("t", b"x", dup=True, level=level), [0x81]),
        (b"\x36" + m.publish("t", b"x", 1, 1, level=level)[1:], [0x81]),
        (m.packet(0x30 | qos << 1, b"\x00\x01t"), [0x81] if qos or level == 5 else []),
        (m.packet(0x30 | qos << 1, b"\x00\x02t"), [0x81]),
    ):
        sender, reader = warm(harness, level, qos)
        sender.send(packet)
        if codes:
            sender.refused(*codes)
            reader.expect()
        else:  # an empty payload is valid
            reader.expect(m.publish("t", b"", level=level))


BAD = [
    pytest.param(m.identifier(1), 0x82, marks=statement("MQTT-3.3.4-6")),
    pytest.param(m.response_topic("a/+"), 0x82, marks=statement("MQTT-3.3.2-14")),
    pytest.param(m.response_topic(b"\xff"), 0x81, marks=statement("MQTT-3.3.2-13")),
    pytest.param(m.content_type(b"\xff"), 0x81, marks=statement("MQTT-3.3.2-19")),
    pytest.param(
        m.user("a", b"\xed\xa0\x80"), 0x81, marks=statement("MQTT-1.5.7-1", "MQTT-1.5.4-1")
    ),
    pytest.param(m.user(b"\x00", ""), 0x81, marks=statement("MQTT-1.5.7-1", "MQTT-1.5.4-2")),
    pytest.param(m.alias(0), 0x94, marks=statement("MQTT-3.3.2-8")),
    pytest.param(m.alias(65), 0x94, marks=statement("MQTT-3.3.2-9")),
    pytest.param(m.payload_format(2), 0x82, marks=edge(38)),
    pytest.param(m.content_type("x") * 2, 0x82, marks=edge(38)),
    pytest.param(m.session_expiry(1), 0x81, marks=edge(38)),
    pytest.param(b"\x7f", 0x81, marks=edge(38)),
    pytest.param(b"\x26\x00\x01a", 0x81, marks=edge(38)),  # half a pair
    pytest.param(b"\x02\x00", 0x81, marks=edge(38)),  # half an interval
]


@pytest.mark.parametrize(("properties", "code"), BAD)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("usual", [b"", m.user("a", "b")])
def test_bad_properties(
    harness: Harness, qos: int, usual: bytes, properties: bytes, code: int
) -> None:
    for sent in (properties, usual + properties):
        sender, reader = warm(harness, 5, qos, usual)
        sender.send(m.publish("t", b"x", qos, 9, properties=sent)).refused(code)
        reader.expect()


@edge(38)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_bad_property_lengths(harness: Harness, qos: int) -> None:
    head = m.text("t") + (b"\x00\x09" if qos else b"")
    for section in (
        b"\x09\x26\x00\x01a\x00\x01b",
        b"\x06\x26\x00\x01a\x00\x01b",
        b"\x80\x00",
        b"\xff\xff\xff\xff\x01",
    ):
        sender, reader = warm(harness, 5, qos, m.user("a", "b"))
        sender.send(m.packet(0x30 | qos << 1, head, section)).refused(0x81)
        reader.expect()


@statement("MQTT-3.3.4-7")
@edge(19)
def test_too_many_at_once(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"receive_maximum": 2}})
    sender, reader = warm(harness, 5, 2)
    packets = [m.publish("t", b"x", 2, number) for number in (11, 12, 13)]
    sender.send(*packets)
    sender.refused(0x93, after=m.pubrec(11) + m.pubrec(12))
    assert len(reader.take_frames()) == 2


@statement("MQTT-4.3.3-10", "MQTT311-4.3.3-2")
@edge(42)
@LEVELS
def test_qos_2_is_delivered_once(harness: Harness, level: int) -> None:
    sender, reader = warm(harness, level, 2)
    for dup in (False, False, True):
        sender.publish("t", b"x", 2, 9, dup=dup)
        sender.expect(m.pubrec(9))
    reader.expect(m.publish("t", b"x", 2, 5, level=level))
    sender.send(m.pubrel(9))
    sender.expect(m.pubcomp(9))


@statement("MQTT-3.3.1-5", "MQTT-3.3.1-12", "MQTT311-3.3.1-5", "MQTT311-3.3.1-9")
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_is_not_overlooked(harness: Harness, level: int, qos: int) -> None:
    sender, reader = warm(harness, level, qos)
    sender.publish("t", b"x", qos, 9, retain=True)
    reader.expect(m.publish("t", b"x", qos, 5 if qos else 0, level=level))
    late = join(harness, "late", level)
    late.subscribe(("t", 0))
    late.expect(m.publish("t", b"x", level=level, retain=True))


@statement("MQTT-3.3.2-6", "MQTT-3.3.2-5")
@edge(28)
@pytest.mark.parametrize("qos", [1, 2])
def test_expiry_is_not_overlooked(harness: Harness, qos: int) -> None:
    usual = m.expiry(5)
    away = join(harness, "away", clean=False, properties=m.session_expiry(100))
    away.subscribe(("t", qos))
    away.close()
    sender, _ = warm(harness, 5, qos, usual)
    sender.publish("t", b"x", qos, 9, properties=m.expiry(50))
    harness.advance(10)
    away = join(harness, "away", clean=False, present=True, properties=m.session_expiry(100))
    away.expect(m.publish("t", b"x", qos, 1, properties=m.expiry(40)))


@statement(
    "MQTT-3.8.4-3",
    "MQTT-3.10.4-2",
    "MQTT311-3.8.4-3",
    "MQTT311-3.10.4-2",
    "MQTT-4.5.0-1",
    "MQTT311-4.5.0-1",
)
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_changes_of_subscriptions_are_not_overlooked(
    harness: Harness, level: int, qos: int
) -> None:
    sender, reader = warm(harness, level, qos)
    other = join(harness, "other", 9 - level)
    other.subscribe(("+", qos))
    sender.publish("t", b"1", qos, 9)
    reader.expect(m.publish("t", b"1", qos, 5 if qos else 0, level=level))
    other.expect(m.publish("t", b"1", qos, 1 if qos else 0, level=9 - level))
    reader.subscribe(("t", 0))
    sender.publish("t", b"2", qos, 10)
    reader.expect(m.publish("t", b"2", level=level))
    reader.unsubscribe("t")
    other.close()
    sender.publish("t", b"3", qos, 11)
    reader.expect()


@statement("MQTT-3.1.2-25", "MQTT-3.1.2-24", "MQTT-3.3.4-9")
@edge(18, 20)
@pytest.mark.parametrize("qos", [1, 2])
def test_the_subscribers_limits_are_not_overlooked(harness: Harness, qos: int) -> None:
    sender, _ = warm(harness, 5, qos)
    small = join(harness, "small", properties=m.packet_size(60) + m.receive_maximum(1))
    small.subscribe(("t", qos))
    for number in range(10, 14):
        sender.publish("t", bytes(100 if number % 2 else 5), qos, number)
        sender.send(m.pubrel(number))
    small.expect(m.publish("t", bytes(5), qos, 1))
    if qos == 1:
        small.send(m.puback(1))
    else:
        small.send(m.pubrec(1), m.pubcomp(1))
    assert small.take().endswith(m.publish("t", bytes(5), qos, 2))


@statement(
    "MQTT-4.3.2-3", "MQTT-4.3.3-4", "MQTT-4.3.3-12", "MQTT-3.8.4-8", "MQTT-3.3.4-9", "MQTT311-4.3.2-1", "MQTT311-4.3.3-1",
    "MQTT311-3.8.4-6",
)  # fmt: skip
@edge(18)
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_every_exchange_is_completed(harness: Harness, level: int, qos: int, granted: int) -> None:
    properties = m.receive_maximum(1) if level == 5 else b""
    reader = join(harness, "reader", level, properties=properties)
    reader.subscribe(("t", granted))
    sender = join(harness, "sender", level)
    given = min(qos, granted)
    for number in range(1, 8):
        sender.publish("t", b"x", qos, number)
        sender.send(m.pubrel(number))
        reader.expect(m.publish("t", b"x", given, number if given else 0, level=level))
        if given == 1:
            reader.send(m.puback(number))
        elif given == 2:
            reader.send(m.pubrec(number))
            reader.expect(m.pubrel(number))
            reader.send(m.pubrec(number))  # repeated
            reader.expect(m.pubrel(number))
            reader.send(m.pubcomp(number))
        reader.expect()
    assert not harness.broker.sessions["reader"].inflight
    assert not harness.broker.sessions["sender"].received


@statement("MQTT-4.4.0-2", "MQTT-4.3.3-4", "MQTT-3.3.4-9")
@edge(40)
@pytest.mark.parametrize("qos", [1, 2])
def test_refusals_end_an_exchange(harness: Harness, qos: int) -> None:
    reader = join(harness, "reader", properties=m.receive_maximum(1))
    reader.subscribe(("t", qos))
    sender = join(harness, "sender")
    for number in range(1, 8):
        sender.publish("t", b"x", qos, number)
        sender.send(m.pubrel(number))
        reader.expect(m.publish("t", b"x", qos, number))
        reader.send(m.puback(number, 0x80) if qos == 1 else m.pubrec(number, 0x80))
        reader.expect()


@statement("MQTT-2.2.1-5", "MQTT311-2.3.1-6")
@edge(41)
@LEVELS
def test_an_acknowledgement_of_another_kind_completes_nothing(harness: Harness, level: int) -> None:
    sender, reader = warm(harness, level, 2)
    reader.send(m.puback(1), m.pubcomp(1))
    reader.expect()
    reader.send(m.pubrec(1))
    reader.expect(m.pubrel(1))
    reader.send(m.puback(1))
    reader.send(m.pubcomp(1))
    reader.expect()
    other, late = warm(harness, level, 1)
    assert other.level == late.level == level
    late.send(m.pubcomp(1))
    late.expect()
    late.send(m.pubrec(1))
    late.expect(m.pubrel(1, 0x92 if level == 5 else None))
    late.send(m.puback(1))
    assert sorted(harness.broker.sessions["reader"].inflight) == [2, 3, 4]
    sender.take()


@statement("MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.8.3-3")
@edge(30, 31)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("usual", [b"", m.user("a", "b")])
@pytest.mark.parametrize("no_local", [False, True])
def test_options_of_subscriptions_are_not_overlooked(
    harness: Harness, qos: int, usual: bytes, no_local: bool
) -> None:
    plain = join(harness, "plain")
    plain.subscribe(("t", qos))
    named = join(harness, "named")
    named.subscribe(("t", qos), ("+", 0), properties=m.identifier(7))
    sender = join(harness, "sender")
    if no_local:
        sender.subscribe(("t", qos | 0x04))
    for number in range(1, 6):
        sender.publish("t", b"x", qos, number, properties=usual)
        sender.send(m.pubrel(number))
        id = number if qos else 0
        plain.expect(m.publish("t", b"x", qos, id, properties=usual))
        first, _, packet_id, properties, payload = named.take_publish()
        assert (first, packet_id, payload) == (0x30 | qos << 1, id, b"x")
        assert set(properties) == {m.identifier(7), *([usual] if usual else [])}
    assert all(frame[0] >> 4 != 3 for frame in sender.take_frames())
