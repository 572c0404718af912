"""Counts of durations in log-linear buckets: 128 to every doubling, so that a value is told to within 0.8 %.

Durations are whole nanoseconds. A histogram has a fixed size whatever it counts, adds up with others, and its differences
over time are histograms again.
"""

from collections.abc import Iterable, Mapping
from typing import Final

BITS: Final = 7
_STEPS: Final = 1 << BITS
_LARGEST: Final = 1 << 44
"""Nearly five hours; what takes longer is counted there."""


def bucket(value: int) -> int:
    """The number of the bucket that `value` (nanoseconds) belongs into; what is negative counts as 0."""
    if value < _STEPS:
        return value if value > 0 else 0
    if value >= _LARGEST:
        value = _LARGEST - 1
    shift = value.bit_length() - 1 - BITS
    return (shift << BITS) + (value >> shift)


def lower(number: int) -> int:
    """The smallest value of a bucket, in nanoseconds."""
    if number < _STEPS:
        return number
    shift = (number >> BITS) - 1
    return ((number & (_STEPS - 1)) | _STEPS) << shift


def upper(number: int) -> int:
    """The largest value of a bucket."""
    return lower(number + 1) - 1


SIZE: Final = bucket(_LARGEST - 1) + 1


class Histogram:
    """How often durations occurred. `largest` and `total` are exact."""

    __slots__ = ("count", "counts", "largest", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * SIZE
        self.count = 0
        self.total = 0
        self.largest = 0

    def add(self, value: int, times: int = 1) -> None:
        """Count `value` (nanoseconds) `times` times."""
        if value < 0:
            value = 0  # clocks of two machines
        if value > self.largest:
            self.largest = value
        self.count += times
        self.total += value * times
        if value < _STEPS:
            self.counts[value] += times
            return
        if value >= _LARGEST:
            value = _LARGEST - 1
        shift = value.bit_length() - 1 - BITS
        self.counts[(shift << BITS) + (value >> shift)] += times

    def merge(self, other: "Histogram") -> None:
        """Add what `other` counted."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        counts = self.counts
        for number, times in enumerate(other.counts):
            if times:
                counts[number] += times

    def percentile(self, percent: float) -> int:
        """The value (nanoseconds) that `percent` of the durations do not exceed: the end of its bucket, but never more
        than the largest; 0 when nothing was counted."""
        if not self.count:
            return 0
        return min(self.largest, percentile_of(self._pairs(), self.count, percent))

    @property
    def mean(self) -> float:
        """The mean, in nanoseconds; 0 when nothing was counted."""
        return self.total / self.count if self.count else 0.0

    def _pairs(self) -> Iterable[tuple[int, int]]:
        return ((number, times) for number, times in enumerate(self.counts) if times)

    def sparse(self) -> dict[int, int]:
        """The counts by bucket, those of 0 left out."""
        return dict(self._pairs())

    def since(self, before: list[int]) -> dict[int, int]:
        """As `sparse`, less what `before`, an earlier copy of `counts`, has."""
        return {
            number: now - then
            for number, (now, then) in enumerate(zip(self.counts, before, strict=True))
            if now != then
        }


def percentile_of(counts: Iterable[tuple[int, int]], total: int, percent: float) -> int:
    """The end of the bucket in which `percent` of `total` durations are reached. `counts` is in the order of buckets."""
    wanted = max(1, -(-total * percent // 100))
    seen = 0
    last = 0
    for number, times in counts:
        seen += times
        last = number
        if seen >= wanted:
            break
    return upper(last)


def percentile_of_sparse(counts: Mapping[int, int], percent: float) -> int:
    """As `percentile_of`, of what `Histogram.since` gave; 0 when it is empty."""
    if not counts:
        return 0
    return percentile_of(sorted(counts.items()), sum(counts.values()), percent)
