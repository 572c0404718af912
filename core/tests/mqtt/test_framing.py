"""Test where packets begin and end, and which first bytes are valid."""

import pytest
from hookmq.mqtt.connect_packet import ConnectError
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import frame
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing.decoder import Decoder


def code_of(decoder: Decoder) -> ReasonCode | None:
    return decoder.error.code if decoder.error else None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", None),
        (b"\x30", None),
        (b"\x30\x00", (2, 2)),
        (b"\x30\x7f", (2, 129)),
        (b"\x30\x80", None),
        (b"\x30\x80\x01", (3, 131)),
        (b"\x30\xff\x7f", (3, 16386)),
        (b"\x30\x80\x80", None),
        (b"\x30\x80\x80\x01", (4, 16388)),
        (b"\x30\xff\xff\x7f", (4, 2097155)),
        (b"\x30\x80\x80\x80", None),
        (b"\x30\x80\x80\x80\x01", (5, 2097157)),
        (b"\x30\xff\xff\xff\x7f", (5, 268435460)),
    ],
)
def test_frame(data: bytes, expected: tuple[int, int] | None) -> None:
    assert frame(data, 0) == expected
    shifted = None if expected is None else (expected[0] + 3, expected[1] + 3)
    assert frame(b"abc" + data, 3) == shifted


@pytest.mark.parametrize("length", ["8000", "808000", "80808000", "80808080", "8080808001"])
def test_frame_refuses_a_bad_length(length: str) -> None:
    """[MQTT-1.5.5-1] A length that is too long or not in its shortest form is refused."""
    with pytest.raises(ProtocolError) as caught:
        frame(b"\x30" + bytes.fromhex(length), 0)
    assert caught.value.code is ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize("header", [h for h in range(256) if h >> 4 != 1])
def test_first_byte_must_be_connect(header: int) -> None:
    """[MQTT-3.1.0-1] A single byte is enough to refuse a packet, and no data is retained."""
    decoder = Decoder()
    assert decoder.feed(bytes((header,))) == []
    assert isinstance(decoder.error, ConnectError)
    assert decoder.error.version == 0
    assert code_of(decoder) is ReasonCode.PROTOCOL_ERROR
    assert decoder.buffered == 0


@pytest.mark.parametrize("header", [0x10, 0x20, 0x36, 0x80, 0x90, 0xB0, 0xC1, 0xD0, 0xE4, 0x00])
def test_a_bad_first_byte_is_refused_before_the_length(header: int) -> None:
    decoder = Decoder(5)
    decoder.feed(bytes((header,)))
    assert decoder.error is not None
