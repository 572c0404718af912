"""Check the spans that other plugins report. A single value that cannot be encoded would make the exporter lose a whole
batch.
"""

from collections.abc import Mapping
from typing import Final

LATEST: Final = 2**63 / 1e9
"""The latest time that OTLP can represent, in epoch seconds."""
LONGEST: Final = 1024
"""Maximum number of characters in a name, an attribute or an error."""
MOST: Final = 64
"""Maximum number of attributes."""
_INTEGERS: Final = range(-(2**63), 2**63)
Value = str | int | float | bool


def check_time(time: float) -> None:
    """Check that `time` is in epoch seconds. Raises ValueError for other numbers, and TypeError for other types."""
    if not 0 <= time < LATEST:
        raise ValueError(f"expected epoch seconds, found {time!r}")


def checked_text(text: str, what: str) -> str:
    """Return `text`, shortened if it is long. Raises TypeError or ValueError if it is not valid Unicode text."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be str, not {type(text).__name__}")
    short = text[:LONGEST]
    short.encode()
    return short


def checked_attributes(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Return the first `MOST` attributes. Raises TypeError or ValueError if any of them cannot be exported."""
    if not isinstance(attributes, Mapping):
        raise TypeError(f"the attributes must be a mapping, not {type(attributes).__name__}")
    found: dict[str, Value] = {}
    for name, value in attributes.items():
        if len(found) == MOST:
            break
        key = checked_text(name, "the name of an attribute")
        if isinstance(value, str):
            found[key] = checked_text(value, key)
        elif isinstance(value, float) or (isinstance(value, int) and value in _INTEGERS):
            found[key] = value
        else:
            raise TypeError(f"{key} must be str, float, bool or an integer of 64 bits")
    return found
