"""Lets the end of a commit wait, so that the broker begins no other one meanwhile."""

from collections import deque
from collections.abc import Callable


class CommitHold:
    """Holds the end of a commit: everything that was forwarded is then in the log, or still waits in memory.

    The holders come one after the other. Each must call `release` soon, because acknowledgements wait.
    """

    def __init__(self) -> None:
        self._holders: deque[Callable[[], None]] = deque()
        self._end: Callable[[], None] | None = None

    def request(self, ready: Callable[[], None]) -> None:
        """Call `ready` when the next commit has been made. It ends after `release`."""
        self._holders.append(ready)

    def finish(self, end: Callable[[], None]) -> None:
        """A commit has been made. Call `end` once nothing holds it."""
        self._end = end
        self.release()

    def release(self) -> None:
        """Let the next holder have the commit, or end it."""
        if self._holders:
            self._holders.popleft()()
            return
        end, self._end = self._end, None
        if end is not None:
            end()
