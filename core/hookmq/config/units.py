"""Parse and format durations, sizes and rates."""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

DURATION: Final = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hour": 3600.0,
    "d": 86400.0, "day": 86400.0, "w": 604800.0,
}  # fmt: skip
"""The length of each unit of time, in seconds."""
SIZE: Final = {
    "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip
"""The size of each unit in bytes. Names are in lower case."""

_NUMBER = r"(\d+(?:\.\d+)?)"
_DURATION_PART = re.compile(_NUMBER + r"\s*([a-z]+)")
_DURATION = re.compile(rf"(?:{_NUMBER}\s*[a-z]+\s*)+")
_SIZE = re.compile(_NUMBER + r"\s*([A-Za-z]*)")
_RATE = re.compile(r"(.+?)\s*/\s*(?:(\d+(?:\.\d+)?)\s*)?([a-z]+)")


@dataclass(frozen=True, slots=True)
class Rate:
    """A count per period of time: ``100/s`` is Rate(100, 1), ``5000/min`` Rate(5000, 60), ``10/5s`` Rate(10, 5)."""

    count: float
    per_seconds: float

    def __str__(self) -> str:
        unit = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "d"}.get(self.per_seconds)
        return f"{_digits(self.count)}/{unit or f'{_digits(self.per_seconds)}s'}"


def parse_duration(text: str) -> float:
    """Parse a duration such as ``5s``, ``250ms`` or ``1h30m`` into seconds. Raises ValueError."""
    text = text.strip()
    if not _DURATION.fullmatch(text):
        raise ValueError(text)
    try:
        parts = _DURATION_PART.findall(text)
        return _finite(sum(float(number) * DURATION[unit] for number, unit in parts))
    except KeyError:
        raise ValueError(text) from None


def parse_size(text: str) -> int:
    """Parse a size such as ``64KiB``, ``1MiB``, ``10kB`` or ``512`` into bytes. Raises ValueError
    for anything else, including fractions.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = SIZE.get(match[2].lower() or "b") if match else None
    if match is None or factor is None:
        raise ValueError(text)
    size = _finite(float(match[1]) * factor)
    if size != int(size):
        raise ValueError(text)
    return int(size)


def parse_rate(text: str) -> Rate:
    """Parse a rate such as ``100/s``, ``5000/min``, ``10/5s`` or ``1MiB/s``. Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    if match is None or match[3] not in DURATION:
        raise ValueError(text)
    try:
        count = float(match[1])
    except ValueError:
        count = parse_size(match[1])
    per = _finite(float(match[2] or 1) * DURATION[match[3]])
    # float() also accepts nan and inf
    if not 0 <= count < float("inf") or per <= 0:
        raise ValueError(text)
    return Rate(count, per)


def _finite(number: float) -> float:
    # a number with hundreds of digits is infinite
    if not math.isfinite(number):
        raise ValueError("too large")
    return number


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` reads as exactly `seconds`."""
    for unit, factor in (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 1e-3)):
        count = seconds / factor
        if seconds and count == int(count) and int(count) * factor == seconds:
            return f"{int(count)}{unit}"
    return f"{_digits(seconds)}s"


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads as exactly `size`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _digits(value: float) -> str:
    """Format a number without an exponent, so that reading it back returns exactly `value`."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")
