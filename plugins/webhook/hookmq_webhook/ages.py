"""Estimate the age of waiting events from their numbers."""

from collections import deque
from typing import Final

MARKS: Final = 4096
"""Maximum number of marks. Beyond it, every second mark is removed."""
APART: Final = 1.0
"""Minimum seconds between two marks, and so the precision while there are fewer than `MARKS`."""


class Ages:
    """Records when some of the waiting events were created.

    Call `added` for each new event, and `read` for each event that an earlier process wrote.
    """

    __slots__ = ("_born", "_live", "_past")

    def __init__(self) -> None:
        self._born = 0
        self._past: deque[tuple[int, float]] = deque()
        """Marks with numbers below `_born`, for events that an earlier process wrote."""
        self._live: deque[tuple[int, float]] = deque()

    def begin(self, born: int, first: int, time: float) -> None:
        """Start over after a restart.

        Events numbered below `born` come from an earlier process. `first` is the first waiting event, created at
        `time`.
        """
        self._born = born
        self._past = deque([(first, time)] if first < born else ())
        self._live = deque()

    def added(self, number: int, time: float) -> None:
        """Record an event that was added to the queue."""
        _mark(self._live, number, time)

    def read(self, number: int, time: float) -> None:
        """Record an event that was read from the queue. Events of this process are ignored."""
        if number < self._born and self._past and number > self._past[-1][0]:
            _mark(self._past, number, time)

    def oldest(self, start: int) -> float | None:
        """Return when event `start` was created, in seconds since 1970, or None if unknown.

        The result is up to `APART` seconds too early.
        """
        if start >= self._born:
            self._past.clear()
        marks = self._past or self._live
        while len(marks) > 1 and marks[1][0] <= start:
            marks.popleft()
        return marks[0][1] if marks else None


def _mark(marks: deque[tuple[int, float]], number: int, time: float) -> None:
    if marks and abs(time - marks[-1][1]) < APART:
        return
    marks.append((number, time))
    if len(marks) > MARKS:
        kept = list(marks)[::2]
        marks.clear()
        marks.extend(kept)


__all__ = ["Ages"]
