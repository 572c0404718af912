"""Parse positions in a sink's log in the form that operators write."""

from datetime import datetime
from math import isfinite
from typing import Final

from hookmq_toolkit.message_columns import decode_columns
from hookmq_toolkit.segment_log import SegmentLog, Trimmed

FORMS: Final = "first, next, an offset, a time such as 2030-01-31T12:00:00Z, or @ and epoch seconds"
_PAGE: Final = 1 << 20


def parse_time(text: str) -> float:
    """Parse a time. Return it in epoch seconds. Raises ValueError with a message for users."""
    try:
        if text.startswith("@"):
            seconds = float(text[1:])
        else:
            time = datetime.fromisoformat(text)
            if time.tzinfo is None:
                raise ValueError("a time needs a UTC offset, such as Z or +01:00")
            seconds = time.timestamp()
    except (ValueError, OverflowError) as error:
        reason = str(error) if "UTC offset" in str(error) else f"use {FORMS}"
        raise ValueError(f"{text[:40]!r} is not a position; {reason}") from None
    if not isfinite(seconds):
        raise ValueError(f"{text[:40]!r} is not a position; use {FORMS}")
    return seconds


def find_offset(log: SegmentLog, text: str) -> int:
    """Return the offset of a position: either a stored message's offset or the end of the log. This may read the log
    and block. Raises ValueError with a message for users, or StoreError.
    """
    first, end = log.earliest, log.readable
    if text == "first":
        return first
    if text == "next":
        return end
    if text.isascii() and text.isdigit():
        return min(max(first, int(text[:20])), end)
    return _first_since(log, parse_time(text))


def _first_since(log: SegmentLog, time: float) -> int:
    """Return the offset of the first message that arrived at `time` or later, or the end of the log."""
    start = log.earliest
    for segment in list(log.segments)[1:]:
        if segment.base >= log.readable:
            break
        frames = log.read(segment.base, 1)
        if not frames or decode_columns(frames[0].payload)[0].received_at >= time:
            break
        start = segment.base
    while start < log.readable:
        try:
            frames = log.read(start, _PAGE)
        except Trimmed as error:
            start = error.earliest
            continue
        for frame in frames:
            for at, message in enumerate(decode_columns(frame.payload)):
                if message.received_at >= time:
                    return frame.offset + at
            start = frame.end
    return log.readable
