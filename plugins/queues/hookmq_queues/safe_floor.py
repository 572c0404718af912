"""Compute the offset below which a queue's segments may be deleted.

A message that moves to another log must remain in this one until the commit that adds it there is stored.
"""

from collections import deque


class SafeFloor:
    """The offset below which no message is needed, even after a crash. Commits are identified by number."""

    def __init__(self) -> None:
        self._floor = 0
        self._safe = 0
        self._held = False
        self._commits: deque[tuple[int, int]] = deque()
        """(commit, offset): once this commit is stored, messages below the offset are no longer needed."""

    @property
    def value(self) -> int:
        """The safe offset."""
        return self._safe if self._held or self._commits else self._floor

    def rise(self, floor: int) -> None:
        """Record that all messages below `floor` are settled."""
        self._floor = floor

    def hold(self) -> None:
        """Record that this turn's commit moves a message to another log. Call this before `rise`."""
        if not self._held and not self._commits:
            self._safe = self._floor
        self._held = True

    def flush(self, commit: int) -> None:
        """Record that a commit is starting. It contains all moves so far."""
        if self._held or self._commits:
            self._commits.append((commit, self._floor))
            self._held = False

    def committed(self, commit: int) -> bool:
        """Record that a commit is stored. Return whether `value` may have changed."""
        changed = False
        while self._commits and self._commits[0][0] <= commit:
            self._safe = self._commits.popleft()[1]
            changed = True
        return changed
