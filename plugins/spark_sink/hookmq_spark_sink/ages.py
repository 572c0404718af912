"""Estimate a message's age from its partition and offset, using samples kept in memory."""

import bisect
from typing import Final

_GAP: Final = 1_000_000
"""Microseconds between two samples."""
_MOST: Final = 2048
"""Maximum number of samples per partition. Beyond that, every second one of the older half is dropped."""


class Ages:
    """Samples of the times at which each partition reached certain offsets. Times are in microseconds since the epoch."""

    def __init__(self, partitions: int) -> None:
        self._ends: list[list[int]] = [[] for _ in range(partitions)]
        self._times: list[list[int]] = [[] for _ in range(partitions)]

    def note(self, partition: int, end: int, time: int) -> None:
        """Record the newest time among the messages before offset `end`. Offsets must increase from call to call."""
        ends, times = self._ends[partition], self._times[partition]
        if len(times) > 1 and time - times[-2] < _GAP:
            ends[-1], times[-1] = end, time
            return
        ends.append(end)
        times.append(time)
        if len(ends) > _MOST:
            del ends[0 : _MOST // 2 : 2]
            del times[0 : _MOST // 2 : 2]

    def time(self, partition: int, offset: int) -> int | None:
        """Return the approximate time of the message at `offset`, or None if there is no such message."""
        found = bisect.bisect_right(self._ends[partition], offset)
        times = self._times[partition]
        return times[found] if found < len(times) else None
