"""Decide when to commit a batch: at once, or after a short pause.

A message that its subscriber acknowledges before the commit needs no record. If many messages were just sent, a pause
of a millisecond costs less than writing them to disk. In a cluster, a commit that nothing waits for is delayed longer.
It contains only acknowledgements of subscribers and messages that another node has stored already, and each commit costs
all servers some work.
"""

from collections.abc import Callable
from typing import Final

from hookmq.model.runtime import Runtime, Timer
from hookmq.storage.group_commit import GroupCommit

_PAUSE: Final = 0.001
"""Seconds until a paused batch is checked again."""
_MAX_PAUSES: Final = 4
_GAP: Final = 0.003
"""Seconds between two large commits of a cluster."""
_UNAWAITED: Final = 0.03
"""Seconds that a batch of a cluster waits at first if nothing waits for it. A crash may repeat this much at QoS 1."""
_MAX_UNAWAITED_PAUSES: Final = 20
"""The maximum number of pauses after that, until its messages are acknowledged."""
_IN_GAP: Final = -1
"""The value of `_pauses` during the pause of `finished`."""
_IDLE: Final = -2
"""The value of `_pauses` while a batch waits for `_UNAWAITED`."""
_MIN_UNACKNOWLEDGED: Final = 64
"""The minimum number of messages for a pause. Fewer are faster to record without one."""
_IMPATIENT_COMMITS: Final = 4
"""How many commits are made without a pause after a pause that saved little."""


class CommitPause:
    """Commits the batches of `committer`, after a pause if that saves records or, in a cluster, commits.

    `ended` is called after each such commit.
    """

    __slots__ = (
        "_added", "_clustered", "_committer", "_ended", "_first", "_idled", "_impatience", "_last", "_pauses",
        "_runtime", "_timer",
    )  # fmt: skip

    def __init__(
        self, runtime: Runtime, committer: GroupCommit, ended: Callable[[], None], clustered: bool
    ) -> None:
        self._runtime = runtime
        self._committer = committer
        self._ended = ended
        self._timer: Timer | None = None
        self._pauses = self._first = self._last = 0
        """Pauses so far, and the unacknowledged messages at the first and at the last of them."""
        self._impatience = 0
        self._clustered = clustered
        self._idled = False
        """Whether the batch has waited for `_UNAWAITED`."""
        self._added = 0
        """`GroupCommit.added` when the last commit ended."""

    def commit(self) -> None:
        """Commit immediately or after a pause."""
        if not self._waits():
            self._committer.flush()

    def commit_now(self) -> None:
        """Commit without a pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._committer.flush()

    def finished(self) -> None:
        """Commit the batch collected while the last commit ran. After a large one of a cluster, first wait for `_GAP`, so
        that the messages that follow its acknowledgements can join."""
        self._idled = False
        added, self._added = self._added, self._committer.added
        if self._clustered and self._timer is None and self._added - added >= _MIN_UNACKNOWLEDGED:
            self._begin(_IN_GAP, _GAP)
        else:
            self.commit()

    def _waits(self) -> bool:
        fresh = self._committer.fresh
        if self._timer is not None:
            keeps = fresh if self._pauses != _IDLE else not self._committer.awaited
            if keeps or self._pauses == _IN_GAP:
                return True
            self._timer.cancel()
            self._timer = None
        idle = self._clustered and not self._idled and not self._committer.awaited
        if (fresh < _MIN_UNACKNOWLEDGED and not idle) or self._committer.running:
            return False
        if self._impatience and self._committer.awaited:
            self._impatience -= 1
            return False
        self._first = self._last = fresh
        self._begin(_IDLE if idle else 0, _UNAWAITED if idle else _PAUSE)
        return True

    def _begin(self, pauses: int, seconds: float) -> None:
        self._pauses = pauses
        self._timer = self._runtime.call_later(seconds, self._end)

    def _end(self) -> None:
        self._timer = None
        fresh = self._committer.fresh
        most = _MAX_PAUSES if self._committer.awaited else _MAX_UNAWAITED_PAUSES
        pauses = self._pauses + 1
        if pauses <= 0:
            self._idled |= self._pauses == _IDLE
            self.commit()
        elif fresh and pauses < most and (pauses == 1 or fresh < self._last or most > _MAX_PAUSES):
            self._last = fresh
            self._begin(pauses, _PAUSE)
            return
        else:
            if fresh > self._first // 2:
                self._impatience = _IMPATIENT_COMMITS
            self._committer.flush()
        self._ended()
