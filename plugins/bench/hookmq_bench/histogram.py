"""Count durations in logarithmic buckets. Each doubling has 128 buckets, so values are accurate to 0.8 %.

Durations are whole nanoseconds. All histograms have the same fixed size, so they can be added and subtracted.
"""

from collections.abc import Iterable, Mapping
from typing import Final

BITS: Final = 7
_STEPS: Final = 1 << BITS
_LARGEST: Final = 1 << 44
"""Nearly five hours. Longer durations are counted in the last bucket."""


def bucket(value: int) -> int:
    """Return the index of the bucket that counts `value` (nanoseconds). Negative values count as 0."""
    if value < _STEPS:
        return value if value > 0 else 0
    if value >= _LARGEST:
        value = _LARGEST - 1
    shift = value.bit_length() - 1 - BITS
    return (shift << BITS) + (value >> shift)


def lower(number: int) -> int:
    """Return a bucket's smallest value in nanoseconds."""
    if number < _STEPS:
        return number
    shift = (number >> BITS) - 1
    return ((number & (_STEPS - 1)) | _STEPS) << shift


def upper(number: int) -> int:
    """Return a bucket's largest value in nanoseconds."""
    return lower(number + 1) - 1


SIZE: Final = bucket(_LARGEST - 1) + 1


class Histogram:
    """Counts how often each duration occurred. `largest` and `total` are exact."""

    __slots__ = ("count", "counts", "largest", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * SIZE
        self.count = 0
        self.total = 0
        self.largest = 0

    def add(self, value: int, times: int = 1) -> None:
        """Count `value` (nanoseconds) `times` times."""
        if value < 0:
            value = 0  # the clocks of two machines disagree
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
        """Add the counts of `other`."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        counts = self.counts
        for number, times in enumerate(other.counts):
            if times:
                counts[number] += times

    def percentile(self, percent: float) -> int:
        """Return the value, in nanoseconds, that `percent` percent of the durations do not exceed.

        The result is the upper end of a bucket, capped at the largest duration. It is 0 if the histogram is empty.
        """
        if not self.count:
            return 0
        return min(self.largest, percentile_of(self._pairs(), self.count, percent))

    @property
    def mean(self) -> float:
        """The mean duration in nanoseconds, or 0 if the histogram is empty."""
        return self.total / self.count if self.count else 0.0

    def _pairs(self) -> Iterable[tuple[int, int]]:
        return ((number, times) for number, times in enumerate(self.counts) if times)

    def sparse(self) -> dict[int, int]:
        """Return the non-zero counts by bucket."""
        return dict(self._pairs())

    def since(self, before: list[int]) -> dict[int, int]:
        """Return how many durations each bucket gained since `before`, an earlier copy of `counts`."""
        return {
            number: now - then
            for number, (now, then) in enumerate(zip(self.counts, before, strict=True))
            if now != then
        }


def percentile_of(counts: Iterable[tuple[int, int]], total: int, percent: float) -> int:
    """Return the upper end of the bucket in which the running total reaches `percent` of `total` durations. `counts` is
    sorted by bucket.
    """
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
    """Return a percentile, in nanoseconds, of counts from `Histogram.since`. Return 0 if there are none."""
    if not counts:
        return 0
    return percentile_of(sorted(counts.items()), sum(counts.values()), percent)
