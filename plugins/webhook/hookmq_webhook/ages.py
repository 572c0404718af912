"""How old what waits in a queue is, from its numbers alone."""

from collections import deque
from typing import Final

MARKS: Final = 4096
"""Marks kept at most; beyond that every second one goes."""
APART: Final = 1.0
"""Seconds between the events of two marks: so exact is the answer, until there are too many."""


class Ages:
    """Times of some of the events that wait. `added` is told each new event, `read` those from before a restart."""

    __slots__ = ("_born", "_live", "_past")

    def __init__(self) -> None:
        self._born = 0
        self._past: deque[tuple[int, float]] = deque()
        """Marks below `_born`: events that an earlier process wrote."""
        self._live: deque[tuple[int, float]] = deque()

    def begin(self, born: int, first: int, time: float) -> None:
        """Begin at a restart: events below `born` were there before, the first that waits is `first` of `time`."""
        self._born = born
        self._past = deque([(first, time)] if first < born else ())
        self._live = deque()

    def added(self, number: int, time: float) -> None:
        """Note that an event was put into the queue."""
        _mark(self._live, number, time)

    def read(self, number: int, time: float) -> None:
        """Note an event that was read, if nothing else is known of its like."""
        if number < self._born and self._past and number > self._past[-1][0]:
            _mark(self._past, number, time)

    def oldest(self, start: int) -> float | None:
        """Return the epoch seconds at which event `start` happened, at most `APART` too early; None if not known."""
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
