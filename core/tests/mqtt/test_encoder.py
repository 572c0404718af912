"""Test which packets the encoder refuses, and which fields it omits."""

import pytest
from hookmq.mqtt.encoder import encode, encode_publish_parts, publish_size
from hookmq.mqtt.framing import frame
from hookmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    WillFields,
)
from hookmq.mqtt.properties import In, Properties
from hookmq.mqtt.property_section import encode_section
from hookmq_testing.decoder import Decoder


@pytest.mark.parametrize("number", [0, 65536])
def test_a_packet_identifier_out_of_range(number: int) -> None:
    """[MQTT-2.2.1-3, 2.2.1-4] A packet id outside 1 to 65535 is refused."""
    with pytest.raises(ValueError, match="packet id"):
        encode(Publish("t", b"", 1, packet_id=number), 5)


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (Publish("a\0b", b""), 5),
        (Publish("\ud800", b""), 5),
        (Publish("x" * 65536, b""), 4),
        (Publish("t", b"", qos=3, packet_id=1), 4),
        (Publish("t", b"", qos=1), 4),
        (Publish("t", b"", qos=1, packet_id=65536), 4),
        (Publish("t", b"", properties=Properties(topic_alias=65536)), 5),
        (Publish("t", b"", properties=Properties(payload_format_indicator=2)), 5),
        (Publish("t", b"", properties=Properties(subscription_identifier=(0,))), 5),
        (Publish("t", b"", properties=Properties(reason_string="no")), 5),
        (Puback(0), 4),
        (Puback(1, 256), 5),
        (Puback(1, properties=Properties(topic_alias=1)), 5),
        (Connack(256), 4),
        (Connack(0, properties=Properties(maximum_qos=2)), 5),
        (Subscribe(1, ()), 5),
        (Subscribe(1, (SubscribeRequest("t", 3),)), 5),
        (Subscribe(1, (SubscribeRequest("t", 0, retain_handling=3),)), 5),
        (Subscribe(0, (SubscribeRequest("t", 0),)), 4),
        (Unsubscribe(1, ()), 4),
        (Auth(0x18), 4),
        (Connect("c", 6, True, 0), 6),
        (Connect("c", 5, True, 0, bridge=True), 5),
        (Connect("c", 5, True, 65536), 5),
        (Connect("c", 5, True, -1), 5),
        (Connect("c", 4, True, 0, password=b"p"), 4),
        (Connect("c", 4, True, 0, username="u", password=bytes(65536)), 4),
        (Connect("c", 5, True, 0, will=WillFields("w", b"", 3, False)), 5),
        (Connect("c", 5, True, 0, properties=Properties(will_delay_interval=1)), 5),
    ],
)  # fmt: skip
def test_refuses_what_mqtt_cannot_express(packet: Packet, version: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        encode(packet, version)


def test_properties_are_left_out_of_3x() -> None:
    carried = Properties(user_property=(("k", "v"),), reason_string="r", content_type="c")
    for version in (3, 4):
        for packet in (
            Connack(0, properties=carried),
            Publish("t", b"p", properties=carried),
            Puback(1, 0x80, carried),
            Suback(1, (0,), carried),
            Unsuback(1, (0,), carried),
            Disconnect(0x80, carried),
        ):
            plain = encode(packet, version)
            assert b"v" not in plain
            assert plain[1] == len(plain) - 2
        assert encode(Puback(1, 0x80), version) == b"\x40\2\0\1"
        assert encode(Unsuback(1, (0x11,)), version) == b"\xb0\2\0\1"
        assert encode(Disconnect(0x8E), version) == b"\xe0\0"


def test_every_failure_is_0x80_in_3x_subacks() -> None:
    """[MQTT311-3.9.3-2] Every failure becomes 0x80 in a SUBACK for MQTT 3 clients."""
    assert encode(Suback(1, (2, 0x87, 0x8F, 0x80)), 4) == b"\x90\6\0\1\2\x80\x80\x80"


def test_subscription_options_are_left_out_of_3x() -> None:
    request = SubscribeRequest("t", 1, True, True, 2)
    assert encode(Subscribe(1, (request,)), 4) == b"\x82\6\0\1\0\1t\1"


def test_session_present_only_with_success_and_never_in_31() -> None:
    """[MQTT-3.2.2-6] [MQTT311-3.2.2-4] Session Present is set only on success, and never for MQTT 3.1."""
    assert encode(Connack(0, True), 5) == b"\x20\3\1\0\0"
    assert encode(Connack(0x87, True), 5) == b"\x20\3\0\x87\0"
    assert encode(Connack(5, True), 4) == b"\x20\2\0\5"
    assert encode(Connack(0, True), 3) == b"\x20\2\0\0"


def test_dup_never_with_qos_0() -> None:
    """[MQTT-3.3.1-2] DUP is never set at QoS 0."""
    assert encode(Publish("t", b"", dup=True), 4)[0] == 0x30
    assert encode_publish_parts(b"t", b"", 0, False, True, None)[0][0] == 0x30
    assert encode_publish_parts(b"t", b"", 2, True, True, None)[0][0] == 0x3D


@pytest.mark.parametrize("size", [0, 117, 118, 119, 120, 121, 122, 16370, 16380, 16390])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("properties", [None, b"\0", b"\5\2\0\0\0\1"])
def test_publish_parts_have_the_right_length(size: int, qos: int, properties: bytes | None) -> None:
    head, tail = encode_publish_parts(b"topic", bytes(size), qos, False, False, properties)
    data = head + (b"\0\7" if qos else b"") + tail
    assert frame(data, 0) is not None
    version = 4 if properties is None else 5
    (packet,) = Decoder(version).feed(data)
    assert isinstance(packet, Publish)
    assert (packet.topic, packet.payload, packet.packet_id) == ("topic", bytes(size), qos * 7)


def test_publish_parts_share_the_payload() -> None:
    payload = b"payload"
    assert encode_publish_parts(b"t", payload, 1, False, False, None)[1] is payload


def test_publish_parts_refuse_a_long_topic() -> None:
    with pytest.raises(ValueError, match="65,535"):
        encode_publish_parts(bytes(65536), b"", 0, False, False, None)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("payload", [0, 115, 116, 117, 16_300, 16_400, 2_097_200])
def test_the_size_of_a_publish_is_known_before_it_is_encoded(qos: int, payload: int) -> None:
    properties = Properties(content_type="x")
    section = encode_section(properties, In.PUBLISH)
    packet = Publish("topic", bytes(payload), qos, False, False, qos, properties)
    assert publish_size(5, payload, qos, len(section)) == len(encode(packet, 5))
