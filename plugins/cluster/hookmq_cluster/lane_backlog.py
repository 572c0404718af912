"""Reads the messages that all nodes have sent to a lane before this node opens it."""

from collections.abc import Callable
from functools import partial
from typing import Final

from hookmq.plugin import Runtime

from hookmq_cluster.engine import Engine, Stored, Unavailable
from hookmq_cluster.frames import is_owner_frame
from hookmq_cluster.waiting import answer

MOST: Final = 32 << 20
"""Bytes of frames that are read before a lane is opened. Order is lost if there are more."""
_ATTEMPTS: Final = 3
"""How often in succession a page is read that the log does not answer."""


class LaneBacklog:
    """The frames in the log of a lane, `subject`, with sequences above `after`.

    - `frames`: those that were read and are not the owner's own.
    - `last`: the sequence up to which the log was read.
    """

    def __init__(self, runtime: Runtime, engine: Engine, subject: str, after: int) -> None:
        self.frames: list[Stored] = []
        self.last = after
        self._runtime = runtime
        self._engine = engine
        self._subject = subject
        self._size = 0

    @property
    def too_large(self) -> bool:
        """Whether the log has more frames than can be read now."""
        return self._size >= MOST

    async def read(self) -> bool:
        """Read everything that is in the log now. Return False if the log does not answer."""

        def newest(done: Callable[[Stored | None | Unavailable], None]) -> None:
            self._engine.last(self._subject, done, exact=True)

        stored = await answer(self._runtime, newest)
        if stored is None:
            return True
        if isinstance(stored, Unavailable):
            return False
        failures = 0
        while self.last < stored.sequence and not self.too_large:
            page = await answer(
                self._runtime, partial(self._engine.read, (self._subject,), self.last)
            )
            if page and not isinstance(page, Unavailable):
                failures = 0
                for one in page:
                    self._add(one)
            elif (failures := failures + 1) >= _ATTEMPTS:
                return False
        return True

    def _add(self, stored: Stored) -> None:
        self.last = stored.sequence
        if not is_owner_frame(stored.data):
            self.frames.append(stored)
            self._size += len(stored.data)
