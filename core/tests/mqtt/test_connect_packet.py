"""Test CONNECT: protocol versions, will topics and authentication data."""

import pytest
from hookmq.mqtt.connect_packet import ConnectError
from hookmq.mqtt.decoder import decode
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Connect,
    WillFields,
)
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing.decoder import Decoder


def code_of(decoder: Decoder) -> ReasonCode | None:
    return decoder.error.code if decoder.error else None


@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [
        (b"MQTT", 0, 4), (b"MQTT", 3, 4), (b"MQTT", 0x83, 4), (b"MQTT", 6, 5), (b"MQTT", 127, 5),
        (b"MQTT", 0x85, 5), (b"MQTT", 0x86, 5), (b"MQIsdp", 4, 3), (b"MQIsdp", 5, 3),
        (b"MQIsdp", 0x84, 3), (b"mqtt", 4, 0), (b"", 4, 0),
    ],
)  # fmt: skip
def test_an_unknown_level_is_answered_in_the_nearest_form(
    name: bytes, level: int, answer: int
) -> None:
    """[MQTT-3.1.2-1, 3.1.2-2] A CONNECT with an unknown level is answered in the nearest supported
    version.
    """
    body = len(name).to_bytes(2, "big") + name + bytes((level, 2)) + b"\0\0\0\1c"
    with pytest.raises(ConnectError) as caught:
        decode(0x10, body, 0)
    assert caught.value.code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert caught.value.version == answer


@pytest.mark.parametrize("topic", ["+", "#", "a/+", "a/#", "a+", "a#b"])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_will_topic_has_no_wildcard(topic: str, version: int) -> None:
    """[MQTT-4.7.0-1] A will topic with a wildcard is refused."""
    packet = Connect("c", version, True, 0, will=WillFields(topic, b"", 0, False))
    decoder = Decoder()
    assert decoder.feed(encode(packet, version)) == []
    assert isinstance(decoder.error, ConnectError)
    assert (decoder.error.code, decoder.error.version) == (
        ReasonCode.TOPIC_NAME_INVALID,
        version,
    )


def test_authentication_data_without_a_method_is_refused_in_connack() -> None:
    """[MQTT-4.12.0-1] Authentication data without a method is refused in CONNACK (section
    3.2.2.3.18).
    """
    decoder = Decoder(5, server=False)
    assert decoder.feed(b"\x20\x07\0\0\x04\x16\0\1x") == []
    assert code_of(decoder) is ReasonCode.PROTOCOL_ERROR
