"""A message that waits in one queue only, and the entry that it waits in, as one row: `body` of the table `entry` has
what the columns of `message` and the rest of those of `entry` would have.

    text size (2 bytes), property section size (2), text, section, received_at (8), payload

Numbers are little-endian. The text is UTF-8, its fields stand between NULs, which nothing in MQTT has: three digits
(flags of the message, QoS and retain of the entry), topic, filter, origin, identifiers, and the sender if there is one.
Such a row's `crc` is that of `body`, which goes on from that of `KEY`, plus `sent` times `SENT_CHECK`: no text is made of
it.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final
from zlib import crc32

from hookmq_storage.schema import SENT_CHECK

KEY: Final = Struct("<qqqq")
"""owner, seq, message, size."""
_SIZES: Final = Struct("<HH")
_TIME: Final = Struct("<d")
LARGEST: Final = 512
"""Bytes of a payload in a row of a queue: larger ones would go into pages of their own there."""
_LARGEST_HEAD: Final = 320
_HEADS: Final = 16384
"""Heads remembered: what a publisher's messages have in common."""

Head = tuple[int, bool, tuple[int, ...], str, str, str, int, bytes | None, str | None, str]
"""qos, retain, identifiers, filter, group, topic, flags, properties, sender, origin."""


def head_of(one: Head) -> bytes | None:
    """What comes before `received_at`; None where the message must have a row of its own: one of a share group may go to
    another queue, and strange or long text is for those who can find it there."""
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
    """`head_of`, remembered."""

    def __missing__(self, one: Head) -> bytes | None:
        if len(self) >= _HEADS:
            self.clear()
        head = self[one] = head_of(one)
        return head


def body_of(head: bytes, received_at: float, payload: bytes) -> bytes:
    """The column `body`."""
    return head + _TIME.pack(received_at) + payload


def inline_crc(owner: int, seq: int, message: int, size: int, sent: int, body: bytes) -> int:
    """The `crc` of an entry with a body."""
    return crc32(body, crc32(KEY.pack(owner, seq, message, size))) + sent * SENT_CHECK


def parts_of(body: bytes) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What is in a body: of the entry qos, retain, identifiers, filter, group; and the columns of the message after its
    id. Both as a row has them."""
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
    """An entry with a body (the columns `COLUMNS["entry"]`) as one without, up to `sent`, and the columns of its message
    after its id."""
    (qos, *rest), message = parts_of(row[10])
    return (*row[:3], qos, row[4], *rest, row[9], *message)
