"""The data types of the wire: integers, strings, binary data and the variable byte integer (MQTT 5.0 section 1.5)."""

import re
from typing import Final

from hookmq.errors import ProtocolError
from hookmq.reason import ReasonCode

MAX_VARINT: Final = 268_435_455
"""The largest variable byte integer, hence the largest Remaining Length."""

_ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))


def malformed(detail: str) -> ProtocolError:
    """The error for bytes that cannot be parsed (0x81)."""
    return ProtocolError(ReasonCode.MALFORMED_PACKET, detail)


def protocol_error(detail: str) -> ProtocolError:
    """The error for bytes that parse but that the protocol forbids (0x82)."""
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, detail)


_UNWANTED: Final = re.compile(
    "[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(
        f"{chr(plane | 0xFFFE)}{chr(plane | 0xFFFF)}" for plane in range(0, 0x110000, 0x10000)
    )
    + "]"
)
"""Control characters and non-characters, which section 1.5.4 says a string should not hold, and a receiver may refuse."""


def decode_utf8(raw: bytes, what: str, strict: bool = False) -> str:
    """Return the string that `raw` encodes. Raises ProtocolError 0x81 if MQTT allows no such string, or if it holds
    control characters or non-characters and `strict` is set.

    A byte order mark is an ordinary character and stays [MQTT-1.5.4-3] [MQTT311-1.5.3-3].
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
    """Reads fields from ``data[pos:end]`` in order; every method moves `pos` and raises ProtocolError 0x81 when the
    field does not fit. `what` names the field in the error."""

    __slots__ = ("data", "end", "pos", "strict")

    def __init__(self, data: bytes, pos: int = 0, strict: bool = False) -> None:
        self.data = data
        self.pos = pos
        self.strict = strict
        self.end = len(data)

    def _take(self, size: int, what: str) -> int:
        """Move over `size` bytes; returns where they start."""
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
        # As `uint16` and `_take` would, in one step: there are some in every packet.
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
        """Raise unless everything was read: what follows the last field makes the packet malformed."""
        if self.pos != self.end:
            raise malformed(f"{self.end - self.pos} bytes follow the last field of {what}")


def encode_varint(n: int) -> bytes:
    """`n` in as few bytes as possible [MQTT-1.5.5-1]. Raises ValueError outside 0 to 268,435,455."""
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
    """`value` behind its length in two bytes. Raises ValueError above 65,535 bytes."""
    size = len(value)
    if size > 0xFFFF:
        raise ValueError(f"{size} bytes do not fit a field of at most 65,535")
    return size.to_bytes(2, "big") + value


def encode_string(value: str) -> bytes:
    """`value` as UTF-8 behind its length. Raises ValueError for what MQTT cannot carry: surrogates, U+0000 and more
    than 65,535 bytes [MQTT-1.5.4-1, 1.5.4-2]."""
    if "\0" in value:
        raise ValueError("a string cannot contain U+0000")
    return encode_binary(value.encode())
