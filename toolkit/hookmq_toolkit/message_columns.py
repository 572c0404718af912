"""Encode the messages of a sink's log. A block holds the messages of a commit in offset order, field by field.

Unlike `hookmq_toolkit.message_record`, this module does not need a `Message` object for each message. A block begins
with `_HEAD`. The columns follow: the flags, arrival times, topics, client ids, origins and payloads of all messages.
The expiry times and properties are optional, and `_HEAD` says whether the block has them. A text that all messages
share is stored once.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isnan, nan
from typing import Final, cast

from hookmq.mqtt_api import EMPTY, In, decode_section, encode_section
from hookmq.plugin import Message
from hookmq.storage_api import MessageColumns, make_message

_HEAD: Final = struct.Struct("<BBI")
"""The fields version, optional columns, and number of messages."""
_VERSION: Final = 1
_EXPIRES: Final = 1
_PROPERTIES: Final = 2
"""The bits of the optional columns."""
_QOS: Final = 3
_NO_SENDER: Final = 4
_RETAIN: Final = 8
"""The flags of a message: its QoS, whether it has no sender, and RETAIN."""
_QOS_OF: Final = bytes(flags & _QOS for flags in range(256))
"""The QoS for each value of the flags."""
_SAME: Final = struct.Struct("<BH")
"""The fields before a text: whether all messages share it, and its length."""
_CLIENT: Final = "client"
_LONG: Final = 1 << 10
_REMEMBERED: Final = 1 << 14
"""Limits on the texts whose encoding is remembered: the length of each in characters, and their number."""


class _Encoded(dict[str, bytes]):
    """Caches texts encoded as UTF-8. Topics and client ids repeat, so most of them are found here."""

    def __missing__(self, text: str) -> bytes:
        if len(text) > _LONG:
            return text.encode()
        if len(self) >= _REMEMBERED:
            self.clear()
        found = self[text] = text.encode()
        return found


_encoded = _Encoded()


def encode_columns(columns: MessageColumns) -> bytes:
    """Return the messages in `columns` as bytes. Does not block.

    The function processes whole columns, because calling Python code for each message would take most of the time.
    """
    count = len(columns)
    if not count:
        return b""
    flags = bytearray(columns.qos)
    senders = cast("list[str]", columns.senders)
    if None in senders:
        for row, sender in enumerate(columns.senders):
            if sender is None:
                flags[row] |= _NO_SENDER
        senders = [sender or "" for sender in senders]
    for row in columns.retained:
        flags[row] |= _RETAIN
    origins = [_CLIENT]
    if columns.origins:
        origins = [_CLIENT] * count
        for row, origin in columns.origins.items():
            origins[row] = origin
    optional = (_EXPIRES if columns.expires else 0) | (_PROPERTIES if columns.properties else 0)
    parts: list[bytes | bytearray] = [
        _HEAD.pack(_VERSION, optional, count), flags, struct.pack(f"<{count}d", *columns.times),
    ]  # fmt: skip
    _add_texts(parts, columns.topics)
    _add_texts(parts, senders)
    _add_texts(parts, origins)
    _add_values(parts, columns.payloads)
    if columns.expires:
        expires = map(columns.expires.get, range(count), [nan] * count)
        parts.append(struct.pack(f"<{count}d", *expires))
    if columns.properties:
        sections = [b""] * count
        for row, properties in columns.properties.items():
            sections[row] = encode_section(properties, In.PUBLISH)
        _add_values(parts, sections)
    return b"".join(parts)


def _add_texts(parts: list[bytes | bytearray], texts: Sequence[str]) -> None:
    first = texts[0]
    if texts.count(first) == len(texts):
        data = _encoded[first]
        parts += (_SAME.pack(1, len(data)), data)
        return
    encoded = list(map(_encoded.__getitem__, texts))
    parts += (
        _SAME.pack(0, 0), struct.pack(f"<{len(encoded)}H", *map(len, encoded)), b"".join(encoded),
    )  # fmt: skip


def _add_values(parts: list[bytes | bytearray], values: Sequence[bytes]) -> None:
    parts += (struct.pack(f"<{len(values)}I", *map(len, values)), b"".join(values))


def decode_columns(data: bytes) -> list[Message]:
    """Return the messages in a block. Raises ValueError if the bytes are damaged."""
    found = read_columns(data)
    retained, properties, origins, expires = (
        found.retained, found.properties, found.origins, found.expires,
    )  # fmt: skip
    return [
        make_message(
            topic, payload, qos, row in retained, properties.get(row, EMPTY), sender, origins.get(row, _CLIENT),
            time, expires.get(row),
        )
        for row, (topic, payload, qos, sender, time) in enumerate(
            zip(found.topics, found.payloads, found.qos, found.senders, found.times, strict=True)
        )
    ]  # fmt: skip


def read_columns(data: bytes) -> MessageColumns:
    """Return the messages in a block, without an object for each message. Raises ValueError if the bytes are damaged."""
    if not data:
        return MessageColumns()
    try:
        return _Block(data).columns()
    except Exception as error:
        raise ValueError(f"not a block of messages: {error}") from error


class _Block:
    """A block that is being decoded."""

    def __init__(self, data: bytes) -> None:
        version, self._optional, self._count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"unknown version {version}")
        self._data = data
        self._at = _HEAD.size

    def columns(self) -> MessageColumns:
        count, found = self._count, MessageColumns()
        flags = self._take(count)
        found.qos = list(flags.translate(_QOS_OF))
        found.times = list(struct.unpack(f"<{count}d", self._take(8 * count)))
        found.topics = self._texts()
        senders: list[str | None] = [*self._texts()]
        if max(flags, default=0) > _QOS:
            for row, flag in enumerate(flags):
                if flag & _NO_SENDER:
                    senders[row] = None
                if flag & _RETAIN:
                    found.retained[row] = True
        found.senders = senders
        origins = self._texts()
        if origins.count(_CLIENT) != count:
            found.origins = {row: one for row, one in enumerate(origins) if one != _CLIENT}
        found.payloads = self._values("I")
        if self._optional & _EXPIRES:
            expires = struct.unpack(f"<{count}d", self._take(8 * count))
            found.expires = {row: one for row, one in enumerate(expires) if not isnan(one)}
        if self._optional & _PROPERTIES:
            sections = enumerate(self._values("I"))
            found.properties = {
                row: decode_section(one, In.PUBLISH) for row, one in sections if one
            }
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes too many")
        return found

    def _take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        begin = self._at
        self._at += size
        if self._at > len(self._data):
            raise ValueError("it is incomplete")
        return self._data[begin : self._at]

    def _texts(self) -> list[str]:
        same, length = _SAME.unpack(self._take(_SAME.size))
        if same:
            return [self._take(length).decode()] * self._count
        return [value.decode() for value in self._values("H")]

    def _values(self, kind: str) -> list[bytes]:
        size = struct.calcsize(f"<{self._count}{kind}")
        lengths = struct.unpack(f"<{self._count}{kind}", self._take(size))
        joined = self._take(sum(lengths))
        first = lengths[0]
        if lengths.count(first) == len(lengths):
            return (
                [joined[a : a + first] for a in range(0, len(joined), first)]
                if first
                else [b""] * len(lengths)
            )
        return [joined[a:b] for a, b in pairwise(accumulate(lengths, initial=0))]
