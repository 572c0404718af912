"""Test property sections: limits and encoding."""

import pytest
from hookmq.mqtt.connect_packet import ConnectError
from hookmq.mqtt.decoder import decode
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packet_limits import PacketLimits
from hookmq.mqtt.packets import (
    Connect,
    Publish,
)
from hookmq.mqtt.properties import EMPTY, In, Properties
from hookmq.mqtt.property_section import decode_section, encode_properties, encode_section
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing.decoder import Decoder


def code_of(decoder: Decoder) -> ReasonCode | None:
    return decoder.error.code if decoder.error else None


def test_max_user_properties() -> None:
    carried = Properties(user_property=(("k", "v"),) * 3)
    data = encode(Publish("t", b"", properties=carried), 5)
    decoder = Decoder(5, PacketLimits(max_user_properties=3))
    assert len(decoder.feed(data)) == 1
    decoder = Decoder(5, PacketLimits(max_user_properties=2))
    assert decoder.feed(data) == []
    assert code_of(decoder) is ReasonCode.QUOTA_EXCEEDED


def test_max_user_properties_counts_connect_and_will_together() -> None:
    body = b"\0\4MQTT\5\6\0\0" + b"\x07&\0\1k\0\1v" + b"\0\1c" + b"\x07&\0\1k\0\1v" + b"\0\1w\0\0"
    assert isinstance(decode(0x10, body, 0, PacketLimits(max_user_properties=2)), Connect)
    with pytest.raises(ConnectError) as caught:
        decode(0x10, body, 0, PacketLimits(max_user_properties=1))
    assert caught.value.code is ReasonCode.QUOTA_EXCEEDED
    assert caught.value.version == 5


def test_no_properties_are_one_zero_byte() -> None:
    """[MQTT-2.2.2-1] If a packet has no properties, its property length is a single zero byte."""
    assert encode_properties(EMPTY) == b"\0"


def test_a_property_of_more_than_65535_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="65,535"):
        encode_properties(Properties(correlation_data=bytes(65536)))


def test_a_section_is_decoded_as_it_was_encoded() -> None:
    pairs = tuple((f"k{number}", "v") for number in range(100))
    given = Properties(content_type="text", user_property=pairs, message_expiry_interval=5)
    data = encode_section(given, In.PUBLISH)
    assert decode_section(data, In.PUBLISH).values == given.values
    assert decode_section(encode_section(EMPTY, In.PUBLISH), In.PUBLISH).values == {}


@pytest.mark.parametrize("wrong", [b"", b"\x05\x01", b"\x02\x01\x01\x00", b"\x02\x11\x01"])
def test_a_damaged_section_is_refused(wrong: bytes) -> None:
    """A section is refused if it is empty, truncated, followed by more bytes, or taken from another type of packet."""
    with pytest.raises(ProtocolError):
        decode_section(wrong, In.PUBLISH)
