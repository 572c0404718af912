"""The `body` column, which holds an entry and its message in a single row. No other entry uses that message.

The layout, with little-endian numbers:

    text size (2 bytes), property section size (2), text, section, received_at (8), payload

The text is UTF-8. Its fields are separated by NUL, which MQTT strings cannot contain. They are three digits (the
message's flags, the entry's QoS and retain flag), topic, filter, origin, identifiers, and the sender if there is one.
The row's `crc` is the CRC of `KEY` followed by `body`, plus `sent` times `SENT_CHECK`.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final
from zlib import crc32

from hookmq_storage.schema import SENT_CHECK

KEY: Final = Struct("<qqqq")
"""The entry's owner, seq, message and size."""
_SIZES: Final = Struct("<HH")
_TIME: Final = Struct("<d")
LARGEST: Final = 512
"""Largest payload, in bytes, to store in an entry's row. Larger payloads would need overflow pages."""
_LARGEST_HEAD: Final = 320
_HEADS: Final = 16384
"""Number of heads to cache. A head is the part of the body that a publisher's messages share."""

Head = tuple[int, bool, tuple[int, ...], str, str, str, int, bytes | None, str | None, str]
"""The fields qos, retain, identifiers, filter, group, topic, flags, properties, sender, origin."""


def head_of(one: Head) -> bytes | None:
    """Return the part of a body that precedes `received_at`, or None if the message needs a row of its own.

    A message needs its own row if it may move between the queues of a shared subscription, if its text is long, or if
    its text contains NUL.
    """
    qos, retain, identifiers, filter, group, topic, flags, properties, sender, origin = one
    if group:
        return None
    fields = [f"{flags}{qos}{int(retain)}", topic, filter, origin, " ".join(map(str, identifiers))]
    if sender is not None:
        fields.append(sender)
    text = "\0".join(fields)
    if text.count("\0") != len(fields) - 1:
        return None
    data = text.encode()
    section = properties or b""
    if len(data) + len(section) > _LARGEST_HEAD:
        return None
    return _SIZES.pack(len(data), len(section)) + data + section


class Heads(dict[Head, bytes | None]):
    """A cache for `head_of`."""

    def __missing__(self, one: Head) -> bytes | None:
        if len(self) >= _HEADS:
            self.clear()
        head = self[one] = head_of(one)
        return head


def body_of(head: bytes, received_at: float, payload: bytes) -> bytes:
    """Return the value of the `body` column."""
    return head + _TIME.pack(received_at) + payload


def inline_crc(owner: int, seq: int, message: int, size: int, sent: int, body: bytes) -> int:
    """Return the `crc` for an entry that has a body."""
    return crc32(body, crc32(KEY.pack(owner, seq, message, size))) + sent * SENT_CHECK


def parts_of(body: bytes) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Unpack a body. Return the entry's qos, retain, identifiers, filter and group, and the message's columns after
    its id.
    """
    size, section = _SIZES.unpack_from(body)
    start = _SIZES.size + size
    end = start + section
    marks, topic, filter, origin, identifiers, *sender = str(
        body[_SIZES.size : start], "utf-8"
    ).split("\0")
    (received_at,) = _TIME.unpack_from(body, end)
    entry = int(marks[1]), int(marks[2]), identifiers or None, filter or None, None
    message = (
        topic,
        body[end + _TIME.size :],
        int(marks[0]),
        body[start:end] if section else None,
        sender[0] if sender else None,
        origin,
        received_at,
        None,
    )
    return entry, message


def spread(row: Sequence[Any]) -> tuple[Any, ...]:
    """Split the row of an entry that has a body (`COLUMNS["entry"]`).

    Return the columns of an entry without a body, up to `sent`, followed by the message's columns after its id.
    """
    (qos, *rest), message = parts_of(row[10])
    return (*row[:3], qos, row[4], *rest, row[9], *message)
