"""Parse positions in a stream, as users write them."""

from datetime import datetime
from math import isfinite
from typing import Final, Literal, NamedTuple

FORMS: Final = (
    "first, last, next, an offset, a time such as 2030-01-31T12:00:00Z, or @ and epoch seconds"
)
"""The forms that `parse_position` accepts, for error messages."""
MAX_OFFSET: Final = (1 << 63) - 1


class Position(NamedTuple):
    """A position in a stream. It is the first, last or next message, a message by offset, or the first message since a
    given time.

    `value` is an offset, or epoch seconds.
    """

    kind: Literal["first", "last", "next", "offset", "time"]
    value: float = 0


def parse_position(text: str) -> Position:
    """Return the position that `text` describes. Raises ValueError with a message for users."""
    if text == "first":
        return Position("first")
    if text == "last":
        return Position("last")
    if text == "next":
        return Position("next")
    if text.isascii() and text.isdigit():
        number = int(text[:20])
        if number > MAX_OFFSET or len(text) > 20:
            raise ValueError(f"{text[:40]!r} is not a position: offsets end at {MAX_OFFSET}")
        return Position("offset", number)
    try:
        if text.startswith("@"):
            seconds = float(text[1:])
        else:
            time = datetime.fromisoformat(text)
            if time.tzinfo is None:
                raise ValueError(
                    f"{text[:40]!r} is not a position: a time needs a UTC offset, such as Z or +01:00"
                )
            seconds = time.timestamp()
    except (ValueError, OverflowError) as error:
        if "UTC offset" in str(error):
            raise
        raise ValueError(f"{text[:40]!r} is not a position; use {FORMS}") from None
    if not isfinite(seconds) or seconds < 0:
        raise ValueError(f"{text[:40]!r} is not a position: times begin at 1970-01-01T00:00:00Z")
    return Position("time", seconds)
