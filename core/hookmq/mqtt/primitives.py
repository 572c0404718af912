"""MQTT data types: integers, strings, binary data and variable byte integers (MQTT 5.0 section 1.5)."""

import re
from typing import Final

from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.reason_codes import ReasonCode

MAX_VARINT: Final = 268_435_455
"""The largest variable byte integer, and therefore the largest Remaining Length."""

_ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))


def malformed(detail: str) -> ProtocolError:
    """Return the error for bytes that cannot be parsed (0x81)."""
    return ProtocolError(ReasonCode.MALFORMED_PACKET, detail)


def protocol_error(detail: str) -> ProtocolError:
    """Return the error for bytes that can be parsed but are not allowed (0x82)."""
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, detail)


_UNWANTED: Final = re.compile(
    "[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(
        f"{chr(plane | 0xFFFE)}{chr(plane | 0xFFFF)}" for plane in range(0, 0x110000, 0x10000)
    )
    + "]"
)
"""Control characters and non-characters. MQTT strings should not contain them, and a receiver may refuse them (section
1.5.4).
"""


def decode_utf8(raw: bytes, what: str, strict: bool = False) -> str:
    """Decode a string. `what` is the name of the field, for error messages.

    Raises ProtocolError 0x81 for strings that MQTT does not allow. If `strict`, control characters and non-characters
    are errors too. A byte order mark is an ordinary character [MQTT-1.5.4-3] [MQTT311-1.5.3-3].
    """
    try:
        text = raw.decode()  # strict: no surrogates, over-long forms or values above U+10FFFF
    except UnicodeDecodeError:
        raise malformed(f"{what} is not UTF-8") from None  # [MQTT-1.5.4-1] [MQTT311-1.5.3-1]
    if "\0" in text:
        raise malformed(f"{what} contains U+0000")  # [MQTT-1.5.4-2] [MQTT311-1.5.3-2]
    if strict and not (text.isascii() and text.isprintable()) and _UNWANTED.search(text):
        raise malformed(f"{what} contains a control character or non-character")
    return text


class Reader:
    """Reads fields from ``data[pos:end]`` in order. `what` is a field's name for error messages.

    Each method advances `pos`, and raises ProtocolError 0x81 if the field extends beyond `end`.
    """

    __slots__ = ("data", "end", "pos", "strict")

    def __init__(self, data: bytes, pos: int = 0, strict: bool = False) -> None:
        self.data = data
        self.pos = pos
        self.strict = strict
        self.end = len(data)

    def _take(self, size: int, what: str) -> int:
        """Skip `size` bytes and return their start position."""
        start = self.pos
        stop = start + size
        if stop > self.end:
            raise malformed(f"{what} is truncated")
        self.pos = stop
        return start

    def uint8(self, what: str) -> int:
        return self.data[self._take(1, what)]

    def uint16(self, what: str) -> int:
        start = self._take(2, what)
        return self.data[start] << 8 | self.data[start + 1]

    def uint32(self, what: str) -> int:
        start = self._take(4, what)
        return int.from_bytes(self.data[start : start + 4], "big")

    def varint(self, what: str) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.uint8(what)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise malformed(f"{what} is over-long")  # [MQTT-1.5.5-1]
                return value
        raise malformed(f"{what} has more than four bytes")  # [MQTT-1.5.5-1]

    def binary(self, what: str) -> bytes:
        # `uint16` and `_take` in one step, because every packet has such fields.
        start = self.pos + 2
        if start > self.end:
            raise malformed(f"{what} is truncated")
        stop = start + (self.data[start - 2] << 8 | self.data[start - 1])
        if stop > self.end:
            raise malformed(f"{what} is truncated")
        self.pos = stop
        return self.data[start:stop]

    def string(self, what: str) -> str:
        return decode_utf8(self.binary(what), what, self.strict)

    def finish(self, what: str) -> None:
        """Raise ProtocolError 0x81 if there are bytes after the last field."""
        if self.pos != self.end:
            raise malformed(f"{self.end - self.pos} bytes follow the last field of {what}")


def encode_varint(n: int) -> bytes:
    """Encode `n` in as few bytes as possible [MQTT-1.5.5-1]. Raises ValueError if it is outside 0 to 268,435,455."""
    if 0 <= n < 128:
        return _ONE_BYTE[n]
    if n < 0 or n > MAX_VARINT:
        raise ValueError(f"{n} does not fit a variable byte integer")
    out = bytearray()
    while n > 127:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def encode_binary(value: bytes) -> bytes:
    """Encode `value` with a two-byte length prefix. Raises ValueError if it has more than 65,535 bytes."""
    size = len(value)
    if size > 0xFFFF:
        raise ValueError(f"{size} bytes do not fit a field of at most 65,535")
    return size.to_bytes(2, "big") + value


def encode_string(value: str) -> bytes:
    """Encode `value` as UTF-8 with a two-byte length prefix.

    Raises ValueError for strings that MQTT does not allow: with surrogates or U+0000, or longer than 65,535 bytes
    [MQTT-1.5.4-1, 1.5.4-2].
    """
    if "\0" in value:
        raise ValueError("a string cannot contain U+0000")
    return encode_binary(value.encode())
