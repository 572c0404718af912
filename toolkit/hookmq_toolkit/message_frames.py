"""The messages in a frame of a segmented log, with their offsets. A message's offset is the number of its record.

A frame's payload is usually a block of `hookmq_toolkit.message_record`, with one message per record. If messages were
removed from the frame, the payload consists of `_HEAD`, the positions of the remaining messages, and a block of these
messages. The first byte distinguishes the two forms.
"""

import struct
from collections.abc import Sequence
from typing import Final

from hookmq.plugin import Message

from hookmq_toolkit.message_record import Names, decode_block, encode_block
from hookmq_toolkit.segment_log import Frame

_HEAD: Final = struct.Struct("<BI")
"""`_SPARSE`, and the number of remaining messages."""
_SPARSE: Final = 0xFE

Entry = tuple[int, Message]
"""A message with its offset."""


def encode_sparse(base: int, entries: Sequence[Entry]) -> bytes:
    """Return the payload of a frame that begins at the offset `base` and in which only `entries` remain. This call does
    not block.
    """
    places = (offset - base for offset, _ in entries)
    return b"".join(
        (
            _HEAD.pack(_SPARSE, len(entries)),
            struct.pack(f"<{len(entries)}I", *places),
            encode_block([message for _, message in entries]),
        )
    )


def decode_frame(
    frame: Frame, names: Names | None = None
) -> tuple[list[Entry], list[tuple[int, int]]]:
    """Return the messages in a frame, and the ranges of offsets without a message. See `decode_block` for `names`.
    Raises ValueError if the frame is damaged."""
    payload = frame.payload
    if not payload or payload[0] != _SPARSE:
        messages = decode_block(payload, names)
        if len(messages) != frame.records:
            raise ValueError(f"a block of {frame.records} messages has {len(messages)}")
        return list(enumerate(messages, frame.offset)), []
    try:
        _, count = _HEAD.unpack_from(payload)
        places = struct.unpack_from(f"<{count}I", payload, _HEAD.size)
    except struct.error as error:
        raise ValueError(f"not a compacted block: {error}") from error
    messages = decode_block(payload[_HEAD.size + 4 * count :], names)
    if len(messages) != count:
        raise ValueError(f"a compacted block of {count} messages has {len(messages)}")
    entries = [(frame.offset + place, one) for place, one in zip(places, messages, strict=True)]
    gaps: list[tuple[int, int]] = []
    at = frame.offset
    for offset, _ in entries:
        if offset > at:
            gaps.append((at, offset))
        at = offset + 1
    if at < frame.end:
        gaps.append((at, frame.end))
    return entries, gaps
