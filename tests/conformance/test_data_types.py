"""Test chapters 1 and 2: strings, integers, the fixed header, packet ids and property sections."""

import mqttbytes as m
import pytest
from bytememory import LEVELS, in_memory, join
from hookmq_testing import Harness
from statements import edge, statement

ILL_FORMED = pytest.mark.parametrize(
    "bad",
    [
        b"a\xff",  # no UTF-8 at all
        b"\xed\xa0\x80",  # a surrogate, U+D800
        b"\xed\xbf\xbf",  # a surrogate, U+DFFF
        b"\xc0\xaf",  # over-long
        b"\xe0\x80\x80",  # over-long
        b"\xf4\x90\x80\x80",  # above U+10FFFF
        b"a\xe2\x82",  # truncated
    ],
)
NULL = b"a\x00b"


def texts(level: int, bad: bytes) -> list[tuple[str, bytes]]:
    """For each string that a connected client may send, return a packet with `bad` in place of that string."""
    sent = [
        ("topic", m.publish(bad, b"x", level=level)),
        ("filter", m.subscribe(1, (bad, 0), level=level)),
        ("unsubscribed filter", m.unsubscribe(1, bad, level=level)),
    ]
    if level == 5:
        properties = [
            ("response topic", m.response_topic(bad)),
            ("content type", m.content_type(bad)),
            ("name", m.user(bad, "x")),
            ("value", m.user("x", bad)),
        ]
        sent += [(name, m.publish("t", b"x", properties=value)) for name, value in properties]
        sent.append(("reason", m.disconnect(0, m.reason_string(bad))))
    return sent


def connects(level: int, bad: bytes) -> list[tuple[str, bytes]]:
    """For each string that CONNECT can contain, return a CONNECT packet with `bad` in place of that string."""
    sent = [
        ("client id", m.connect(bad, level=level)),
        ("will topic", m.connect("c", level=level, will=(bad, b"x"))),
        ("user name", m.connect("c", level=level, username=bad)),
    ]
    if level == 5:
        sent.append(("name", m.connect("c", properties=m.user(bad, "x"))))
        sent.append(("value", m.connect("c", properties=m.user("x", bad))))
        sent.append(
            ("will's value", m.connect("c", will=("w", b""), will_properties=m.user("x", bad)))
        )
    return sent


@statement(
    "MQTT-1.5.4-1", "MQTT-1.5.7-1", "MQTT-3.3.2-1", "MQTT-3.3.2-13", "MQTT-3.3.2-19", "MQTT-3.8.3-1",
    "MQTT-3.10.3-1", "MQTT311-1.5.3-1", "MQTT311-3.3.2-1", "MQTT311-3.8.3-1", "MQTT311-3.10.3-1",
)  # fmt: skip
@edge(36)
@LEVELS
@ILL_FORMED
def test_an_ill_formed_string_ends_the_connection(harness: Harness, level: int, bad: bytes) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("#", 0))
    for _, packet in texts(level, bad):
        join(harness, "c", level).send(packet).refused(0x81)
    watcher.expect()


@statement(
    "MQTT-1.5.4-2", "MQTT-4.7.3-2", "MQTT-1.5.7-1", "MQTT311-1.5.3-2", "MQTT311-4.7.3-2"
)  # fmt: skip
@edge(36)
@LEVELS
def test_a_string_with_u_0000_ends_the_connection(harness: Harness, level: int) -> None:
    for _, packet in texts(level, NULL):
        join(harness, "c", level).send(packet).refused(0x81)


@statement(
    "MQTT-1.5.4-1", "MQTT-1.5.4-2", "MQTT-1.5.7-1", "MQTT-3.1.3-4", "MQTT-3.1.3-11", "MQTT-3.1.3-12",
    "MQTT311-1.5.3-1", "MQTT311-1.5.3-2", "MQTT311-3.1.3-4", "MQTT311-3.1.3-10", "MQTT311-3.1.3-11",
    "MQTT311-3.1.4-1",
)  # fmt: skip
@LEVELS
@pytest.mark.parametrize("bad", [b"a\xff", b"\xed\xa0\x80", b"\xc0\xaf", NULL])
def test_connect_with_an_ill_formed_string_is_refused(
    harness: Harness, level: int, bad: bytes
) -> None:
    for _, packet in connects(level, bad):
        client = in_memory(harness, level).send(packet)
        client.not_accepted(*([0x81] if level == 5 else []))
    assert not harness.broker.sessions


@edge(36)
@LEVELS
def test_bytes_that_are_no_strings_may_be_anything(harness: Harness, level: int) -> None:
    """Password, payload and correlation data are binary data, so they may contain bytes that are
    not valid strings.
    """
    client = join(harness, "c", level, username="u", password=b"\xff\0\xed\xa0\x80")
    client.subscribe(("t", 0))
    properties = m.correlation(b"\xff\0\xfe") if level == 5 else b""
    client.publish("t", b"\xff\0\xed\xa0\x80", properties=properties)
    client.expect(m.publish("t", b"\xff\0\xed\xa0\x80", level=level, properties=properties))


@statement("MQTT-1.5.4-3", "MQTT311-1.5.3-3")
@edge(36)
@LEVELS
def test_a_byte_order_mark_is_a_character(harness: Harness, level: int) -> None:
    mark = b"\xef\xbb\xbf"
    client = join(harness, "c", level)
    client.subscribe((mark + b"t", 0))
    client.publish(mark + b"t", b"marked")
    client.expect(m.publish(mark + b"t", b"marked", level=level))
    client.publish(b"t", b"plain")
    client.expect()


@statement("MQTT-1.5.5-1")
@edge(37)
def test_variable_byte_integers(harness: Harness) -> None:
    # Remaining Length of five bytes: refused before the rest arrives
    join(harness).send(b"\x30\x80\x80\x80\x80\x01").refused(0x81)
    # Over-long forms: Remaining Length, Property Length, Subscription Identifier
    join(harness).send(b"\x30\x85\x00\x00\x01t\x00x").refused(0x81)
    join(harness).send(b"\x30\x06\x00\x01t\x80\x00x").refused(0x81)
    join(harness).send(m.packet(0x82, b"\x00\x01\x03\x0b\x81\x00\x00\x01t\x00")).refused(0x81)
    # Five bytes for a Subscription Identifier
    body = b"\x00\x01\x06\x0b\x80\x80\x80\x80\x01\x00\x01t\x00"
    join(harness).send(m.packet(0x82, body)).refused(0x81)
    # The broker uses the shortest form at each boundary; `frames` checks it.
    client = join(harness)
    client.subscribe(("t", 0))
    for size in (127, 128, 16383, 16384):
        payload = bytes(size - 4)
        client.publish("t", payload)
        found = client.take_one()
        assert len(m.body(found)) == size
        assert found == m.publish("t", payload)


BAD_FLAGS = [
    (0x40, m.puback(1)), (0x50, m.pubrec(1)), (0x62, m.pubrel(1)), (0x70, m.pubcomp(1)),
    (0x82, m.subscribe(1, ("t", 0), level=4)), (0xA2, m.unsubscribe(1, "t", level=4)), (0xC0, m.PINGREQ),
    (0xE0, m.disconnect()),
]  # fmt: skip


@statement(
    "MQTT-2.1.3-1", "MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1", "MQTT-3.14.1-1", "MQTT-3.15.1-1",
    "MQTT311-2.2.2-1", "MQTT311-2.2.2-2", "MQTT311-3.6.1-1", "MQTT311-3.8.1-1", "MQTT311-3.10.1-1",
    "MQTT311-3.14.1-1",
)  # fmt: skip
@edge(39)
@LEVELS
def test_reserved_header_flags_end_the_connection(harness: Harness, level: int) -> None:
    packets = BAD_FLAGS
    if level == 5:
        packets = [*packets, (0xF0, m.auth(0x19, m.auth_method("x")))]
    for right, packet in packets:
        for flags in range(16):
            if flags == right & 15:
                continue
            client = join(harness, "c", level)
            client.send(bytes((packet[0] & 0xF0 | flags,)) + packet[1:]).refused(0x81)


@statement("MQTT-2.1.3-1", "MQTT311-2.2.2-1", "MQTT311-2.2.2-2", "MQTT311-3.1.4-1")
@LEVELS
def test_connect_with_header_flags_is_refused(harness: Harness, level: int) -> None:
    packet = m.connect(level=level)
    for flags in range(1, 16):
        client = in_memory(harness, level).send(bytes((0x10 | flags,)) + packet[1:])
        client.not_accepted()  # without the version, the broker cannot send a reason
    assert not harness.broker.sessions


@statement("MQTT-2.1.3-1", "MQTT311-2.2.2-1")
@LEVELS
def test_our_header_flags(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.send(
        m.subscribe(1, ("t", 2), level=level),
        m.publish("t", b"x", 2, 7, level=level),
        m.pubrel(7),
        m.PINGREQ,
        m.pubrec(1),
        m.unsubscribe(2, "t", level=level),
    )
    firsts = [frame[0] for frame in client.take_frames()]
    # SUBACK, PUBREC, PUBLISH, PUBCOMP, PINGRESP, PUBREL, UNSUBACK
    assert sorted(firsts) == sorted([0x90, 0x50, 0x34, 0x70, 0xD0, 0x62, 0xB0])


@statement("MQTT-2.2.1-2", "MQTT311-2.3.1-5")
@LEVELS
def test_qos_0_has_no_packet_id(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("t", 2))
    client.publish("t", b"\x00\x07rest")
    client.expect(m.publish("t", b"\x00\x07rest", level=level))


@statement("MQTT-2.2.1-3", "MQTT311-2.3.1-1")
@edge(39)
@LEVELS
def test_packet_id_0_ends_the_connection(harness: Harness, level: int) -> None:
    for packet in (
        m.publish("t", b"x", 1, 0, level=level),
        m.publish("t", b"x", 2, 0, level=level),
        m.subscribe(0, ("t", 0), level=level),
        m.unsubscribe(0, "t", level=level),
    ):
        join(harness, "c", level).send(packet).refused(0x81, 0x82)


@statement("MQTT-2.2.1-4", "MQTT311-2.3.1-4", "MQTT311-2.3.1-1", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
@LEVELS
def test_our_packet_ids_are_not_in_flight_and_never_0(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("t", 2), ("u", 1))
    sender = join(harness, "sender", level)
    sender.publish("t", b"stays", 2, 1)
    first = client.take_publish()[2]
    harness.broker.sessions["c"].last_packet_id = 65_530  # instead of sending 65,000 messages
    seen = []
    for _ in range(10):  # past the wrap-around, and past the id that is still in flight
        sender.publish("u", b"", 1, 2)
        seen.append(client.take_publish()[2])
        client.send(m.puback(seen[-1]))
    assert first == 1
    assert seen == [65_531, 65_532, 65_533, 65_534, 65_535, 2, 3, 4, 5, 6]
    client.send(m.pubrec(1))
    client.expect(m.pubrel(1))


@edge(39)
@LEVELS
def test_ids_of_client_and_broker_are_independent(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("t", 1))
    client.publish("t", b"one", 1, 1)
    client.expect(m.publish("t", b"one", 1, 1, level=level), m.puback(1))
    client.publish("t", b"two", 1, 1)
    client.expect(m.publish("t", b"two", 1, 2, level=level), m.puback(1))


@statement("MQTT-2.2.1-5", "MQTT311-2.3.1-6")
@LEVELS
def test_acknowledgements_echo_the_id(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("t", 2))
    client.publish("t", b"x", 1, 0x1234)
    found = m.frames(client.take())
    assert m.puback(0x1234) in found
    client.publish("t", b"y", 2, 0xFFFF)
    assert m.pubrec(0xFFFF) in client.take_frames()
    client.send(m.pubrel(0xFFFF))
    client.expect(m.pubcomp(0xFFFF))
    client.send(m.pubrec(2))
    client.expect(m.pubrel(2))


@statement(
    "MQTT-2.2.1-6", "MQTT-3.8.4-2", "MQTT-3.10.4-5", "MQTT311-2.3.1-7", "MQTT311-3.8.4-2", "MQTT311-3.10.4-4"
)  # fmt: skip
@LEVELS
def test_suback_and_unsuback_echo_the_id(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    for packet_id in (1, 0x0102, 0xFFFF):
        client.send(m.subscribe(packet_id, ("t", 1), level=level))
        client.expect(m.suback(packet_id, 1, level=level))
        client.send(m.unsubscribe(packet_id, "t", level=level))
        client.expect(m.unsuback(packet_id, 0, level=level))


@statement("MQTT-2.2.2-1")
def test_no_properties_are_written_as_length_0(harness: Harness) -> None:
    client = join(harness)
    client.send(b"\x82\x07\x00\x01\x00\x00\x01t\x01")
    client.expect(b"\x90\x04\x00\x01\x00\x01")
    client.send(b"\x32\x06\x00\x01t\x00\x05\x00")
    client.expect(b"\x32\x06\x00\x01t\x00\x01\x00", b"\x40\x02\x00\x05")
    client.send(b"\xa2\x06\x00\x02\x00\x00\x01t")
    client.expect(b"\xb0\x04\x00\x02\x00\x00")
    # and a packet that leaves the length out is malformed
    client.send(b"\x82\x02\x00\x01").refused(0x81)


WRONG_PLACE = [
    m.publish("t", b"", properties=m.session_expiry(1)),
    m.publish("t", b"", properties=m.receive_maximum(1)),
    m.publish("t", b"", properties=m.will_delay(1)),
    m.subscribe(1, ("t", 0), properties=m.expiry(1)),
    m.unsubscribe(1, "t", properties=m.identifier(1)),
    m.puback(1, 0, m.identifier(1)),
    m.pubrel(1, 0, m.content_type("x")),
    m.disconnect(0, m.auth_method("x")),
    m.publish("t", b"", properties=b"\x7f\x00"),  # there is no such property
    m.publish("t", b"", properties=b"\x00\x00"),
]
TWICE = [
    m.publish("t", b"", properties=m.expiry(1) * 2),
    m.publish("t", b"", properties=m.payload_format(0) * 2),
    m.publish("t", b"", properties=m.content_type("x") * 2),
    m.publish("t", b"", properties=m.response_topic("x") * 2),
    m.publish("t", b"", properties=m.correlation(b"x") * 2),
    m.publish("t", b"", properties=m.alias(1) * 2),
    m.puback(1, 0, m.reason_string("x") * 2),
    m.disconnect(0, m.session_expiry(0) * 2),
]
NOT_BOOLEAN = [
    m.publish("t", b"", properties=m.payload_format(2)),
    m.publish("t", b"", properties=m.payload_format(255)),
]


@edge(38)
@pytest.mark.parametrize(
    ("packets", "code"), [(WRONG_PLACE, 0x81), (TWICE, 0x82), (NOT_BOOLEAN, 0x82)]
)
def test_properties_out_of_place(harness: Harness, packets: list[bytes], code: int) -> None:
    for packet in packets:
        join(harness).send(packet).refused(code)


@edge(38)
@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (m.expiry(1), 0x81),
        (m.alias(1), 0x81),
        (m.will_delay(1), 0x81),
        (m.reason_string("x"), 0x81),
        (m.session_expiry(1) * 2, 0x82),
        (m.receive_maximum(5) * 2, 0x82),
        (m.packet_size(500) * 2, 0x82),
        (m.alias_maximum(5) * 2, 0x82),
        (m.problem_information(1) * 2, 0x82),
        (m.problem_information(2), 0x82),
        (m.response_information(2), 0x82),
        (m.receive_maximum(0), 0x82),
        (m.packet_size(0), 0x82),
    ],
)
def test_properties_out_of_place_in_connect(harness: Harness, properties: bytes, code: int) -> None:
    client = in_memory(harness).connect(properties=properties)
    client.not_accepted(code)
    assert not harness.broker.sessions


@edge(38)
def test_user_properties_may_repeat(harness: Harness) -> None:
    client = join(harness, properties=m.user("a", "1") * 3)
    client.subscribe(("t", 0), properties=m.user("a", "1") * 2)
    client.publish("t", b"", properties=m.user("a", "1") * 2)
    client.expect(m.publish("t", b"", properties=m.user("a", "1") * 2))
