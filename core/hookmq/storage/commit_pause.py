"""Decide when to commit a batch: at once, or after a short pause.

A message that its subscriber acknowledges before the commit needs no record. If many messages were just sent, a pause
of a millisecond costs less than writing them to disk.
"""

from collections.abc import Callable
from typing import Final

from hookmq.model.runtime import Runtime, Timer
from hookmq.storage.group_commit import GroupCommit

_PAUSE: Final = 0.001
"""Seconds until a paused batch is checked again."""
_MAX_PAUSES: Final = 4
_MIN_UNACKNOWLEDGED: Final = 64
"""The minimum number of messages for a pause. Fewer are faster to record without one."""
_IMPATIENT_COMMITS: Final = 4
"""How many commits are made without a pause after a pause that saved little."""


class CommitPause:
    """Commits the batches of `committer`, after a pause if that saves records. `ended` is called after each such
    commit."""

    __slots__ = (
        "_committer", "_ended", "_first", "_impatience", "_last", "_pauses", "_runtime", "_timer",
    )  # fmt: skip

    def __init__(self, runtime: Runtime, committer: GroupCommit, ended: Callable[[], None]) -> None:
        self._runtime = runtime
        self._committer = committer
        self._ended = ended
        self._timer: Timer | None = None
        self._pauses = self._first = self._last = 0
        """Pauses so far, and the unacknowledged messages at the first and at the last of them."""
        self._impatience = 0

    @property
    def waiting(self) -> bool:
        """Whether a commit is being delayed."""
        return self._timer is not None

    def commit(self) -> None:
        """Commit immediately or after a pause."""
        if not self._waits():
            self._committer.flush()

    def commit_now(self) -> None:
        """Commit without a pause."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._committer.flush()

    def _waits(self) -> bool:
        committer = self._committer
        fresh = committer.fresh
        timer = self._timer
        if timer is not None:
            if fresh:
                return True
            timer.cancel()
            self._timer = None
            return False
        if fresh < _MIN_UNACKNOWLEDGED or committer.running:
            return False
        if self._impatience:
            self._impatience -= 1
            return False
        self._pauses = 0
        self._first = self._last = fresh
        self._timer = self._runtime.call_later(_PAUSE, self._look)
        return True

    def _look(self) -> None:
        self._timer = None
        fresh = self._committer.fresh
        self._pauses += 1
        if fresh and self._pauses < _MAX_PAUSES and (self._pauses == 1 or fresh < self._last):
            self._last = fresh
            self._timer = self._runtime.call_later(_PAUSE, self._look)
            return
        if fresh > self._first // 2:
            self._impatience = _IMPATIENT_COMMITS
        self._committer.flush()
        self._ended()
