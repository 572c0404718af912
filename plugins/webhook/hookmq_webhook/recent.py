"""Keep the newest events of an outbox in memory, so that they need not be read back from the disk."""

from collections import deque
from typing import Final

from hookmq_webhook.queues import Numbered

MOST: Final = 4096
"""Maximum number of events."""
BYTES: Final = 8 << 20
"""Approximate maximum size of the events. Beyond it, the oldest events are forgotten."""

Row = tuple[Numbered, int]
"""An event, and how many numbers before it belong to no event."""


class Recent:
    """The newest events, without gaps. Each event is returned at most once."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque()
        self._bytes = 0
        self._complete_from = -1
        """All events from this number on are in memory; -1 if no event has been added."""

    def clear(self) -> None:
        """Forget all events."""
        self._rows.clear()
        self._bytes = 0
        self._complete_from = -1

    def add(self, one: Numbered, skipped: int) -> None:
        """Add the next event. The `skipped` numbers before it belong to no event."""
        if self._complete_from < 0:
            self._complete_from = one.number - skipped
        self._rows.append((one, skipped))
        self._bytes += one.size
        while len(self._rows) > MOST or self._bytes > BYTES:
            self._forget()

    def _forget(self) -> None:
        one, _ = self._rows.popleft()
        self._bytes -= one.size
        self._complete_from = one.number + 1

    def take(self, after: int, end: int, count: int, size: int) -> list[Row] | None:
        """Return the events from number `after` to `end - 1`: at most `count`, of about `size` bytes in total.

        Returns None if some of these events are no longer in memory. The returned events and all earlier ones are
        forgotten.
        """
        if self._complete_from < 0 or after < self._complete_from:
            return None
        rows = self._rows
        found: list[Row] = []
        while rows and rows[0][0].number < after:
            self._forget()
        while rows and rows[0][0].number < end and len(found) < count and (size > 0 or not found):
            size -= rows[0][0].size
            found.append(rows[0])
            self._forget()
        return found
