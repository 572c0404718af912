"""Test how integers, strings and binary data are encoded and decoded."""

from importlib import import_module
from typing import Any

import pytest
from hookmq.mqtt.connect_packet import ConnectError
from hookmq.mqtt.decoder import decode
from hookmq.mqtt.encoder import encode, encode_publish_parts
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import (
    Publish,
)
from hookmq.mqtt.primitives import Reader, encode_varint
from hookmq.mqtt.reason_codes import ReasonCode


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (321, "c102"), (16383, "ff7f"),
        (16384, "808001"), (2097151, "ffff7f"), (2097152, "80808001"), (268435455, "ffffff7f"),
    ],
)  # fmt: skip
def test_varint(number: int, written: str) -> None:
    """[MQTT-1.5.5-1] Variable byte integers are encoded in as few bytes as possible."""
    assert encode_varint(number).hex() == written
    assert Reader(bytes.fromhex(written)).varint("n") == number


@pytest.mark.parametrize("number", [-1, 268435456])
def test_varint_out_of_range(number: int) -> None:
    with pytest.raises(ValueError, match="variable byte integer"):
        encode_varint(number)


def test_reader_stops_at_its_end() -> None:
    for read in ("uint8", "uint16", "uint32", "varint", "binary", "string"):
        with pytest.raises(ProtocolError):
            getattr(Reader(b""), read)("field")
    with pytest.raises(ProtocolError):
        Reader(b"\0\3ab").binary("field")


def test_a_field_of_65535_bytes_fits() -> None:
    longest = "x" * 65_535
    head, tail = encode_publish_parts(longest.encode(), b"", 0, False, False, None)
    assert head + tail == encode(Publish(longest, b""), 4)
    assert decode(0x30, (head + tail)[4:], 4) == Publish(longest, b"")


PAHO: Any = import_module("paho.mqtt.properties")  # it is not annotated


def test_paho_refuses_what_we_refuse_of_strings() -> None:
    for raw in (b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"a\0b"):
        field = len(raw).to_bytes(2, "big") + raw
        with pytest.raises((PAHO.MalformedPacket, UnicodeDecodeError)):
            PAHO.readUTF(field, len(field))
        with pytest.raises(ConnectError) as caught:
            decode(0x10, b"\0\4MQTT\5\2\0\0\0" + field, 0)
        assert caught.value.code is ReasonCode.MALFORMED_PACKET
