"""Histograms count how many values fall into each of a fixed set of ranges."""

import math
import re
from bisect import bisect_left
from typing import Final, NamedTuple

SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Bucket bounds for work that waits or uses a disk or a network, in seconds."""
CALL_SECONDS: Final = (0.00001, 0.0001, 0.0005, 0.0025, 0.01, 0.05, 0.25, 1.0, 5.0)
"""Bucket bounds for in-process calls, which are often shorter. There are few, because every plugin and hook has its own
histogram."""


TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
"""A trace id in W3C Trace Context format."""


class Exemplar(NamedTuple):
    """A value added to a histogram, the id of its trace, and when the value was added (epoch seconds)."""

    value: float
    trace_id: str
    time: float


def check_exemplar(exemplar: Exemplar) -> None:
    """Raise ValueError or TypeError unless the trace id is valid and both numbers are finite."""
    if not TRACE_ID.fullmatch(exemplar.trace_id):
        raise ValueError(f"invalid trace id {exemplar.trace_id!r}")
    if not (math.isfinite(exemplar.value) and math.isfinite(exemplar.time)):
        raise ValueError(
            f"an exemplar needs finite numbers, not {exemplar.value!r} at {exemplar.time!r}"
        )


class Histogram:
    """Counts the values added so far by range. Adding a value never blocks, and allocates at most one number.

    `counts` has one count for each bound: the number of values up to this bound and above the previous one. Its last
    item counts larger values. `sum` is the sum of all values. `exemplars` holds the newest exemplar of each range, or
    is None.
    """

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.exemplars: list[Exemplar | None] | None = None

    def add(self, value: float, count: int = 1) -> None:
        """Add `value`, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def exemplify(self, exemplar: Exemplar) -> None:
        """Make `exemplar` the newest exemplar of its range. You must also pass its value to `add`.

        Raises ValueError if the trace id is not 32 lower-case hex digits, or if a number is not finite. Raises
        TypeError for the wrong type.
        """
        check_exemplar(exemplar)
        if self.exemplars is None:
            self.exemplars = [None] * len(self.counts)
        self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)
