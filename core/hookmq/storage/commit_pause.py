"""Decide when to commit a batch: at once, or after a short pause.

A message that its subscriber acknowledges before the commit needs no record. If many messages were just sent, a pause
of a millisecond costs less than writing them to disk. The pause is longer if nothing waits for the commit, as with
messages that another node of a cluster has stored already.
"""

from collections.abc import Callable
from typing import Final

from hookmq.model.runtime import Runtime, Timer
from hookmq.storage.group_commit import GroupCommit

_PAUSE: Final = 0.001
"""Seconds until a paused batch is checked again."""
_MAX_PAUSES: Final = 4
_MAX_UNAWAITED_PAUSES: Final = 20
"""The maximum number of pauses if nothing waits for the commit."""
_IN_GAP: Final = -1
"""The value of `_pauses` during the pause of `finished`."""
_MIN_UNACKNOWLEDGED: Final = 64
"""The minimum number of messages for a pause. Fewer are faster to record without one."""
_IMPATIENT_COMMITS: Final = 4
"""How many commits are made without a pause after a pause that saved little."""


class CommitPause:
    """Commits the batches of `committer`, after a pause if that saves records. `ended` is called after each such
    commit."""

    __slots__ = (
        "_added", "_committer", "_ended", "_first", "_gap", "_impatience", "_last", "_pauses", "_runtime", "_timer",
    )  # fmt: skip

    def __init__(
        self, runtime: Runtime, committer: GroupCommit, ended: Callable[[], None], gap: float = 0.0
    ) -> None:
        self._runtime = runtime
        self._committer = committer
        self._ended = ended
        self._timer: Timer | None = None
        self._pauses = self._first = self._last = 0
        """Pauses so far, and the unacknowledged messages at the first and at the last of them."""
        self._impatience = 0
        self._gap = gap
        self._added = 0
        """`GroupCommit.added` when the last commit ended."""

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

    def finished(self) -> None:
        """Commit the batch collected while the last commit ran. After a large one, first wait for `gap` seconds, so that
        the messages that follow its acknowledgements can join."""
        added, self._added = self._added, self._committer.added
        if self._gap and self._timer is None and self._added - added >= _MIN_UNACKNOWLEDGED:
            self._pauses = _IN_GAP
            self._timer = self._runtime.call_later(self._gap, self._end_gap)
        else:
            self.commit()

    def _end_gap(self) -> None:
        self._timer = None
        self.commit()
        self._ended()

    def _waits(self) -> bool:
        committer = self._committer
        fresh = committer.fresh
        timer = self._timer
        if timer is not None:
            if fresh or self._pauses == _IN_GAP:
                return True
            timer.cancel()
            self._timer = None
            return False
        if fresh < _MIN_UNACKNOWLEDGED or committer.running:
            return False
        if self._impatience and committer.awaited:
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
        most = _MAX_PAUSES if self._committer.awaited else _MAX_UNAWAITED_PAUSES
        hopeful = self._pauses == 1 or fresh < self._last or most > _MAX_PAUSES
        if fresh and self._pauses < most and hopeful:
            self._last = fresh
            self._timer = self._runtime.call_later(_PAUSE, self._look)
            return
        if fresh > self._first // 2:
            self._impatience = _IMPATIENT_COMMITS
        self._committer.flush()
        self._ended()
