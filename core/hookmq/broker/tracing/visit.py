"""Visit many connections, a slice in each turn, so that a trace of a large broker does not stall the event loop."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from hookmq.broker.connection import ClientConnection
from hookmq.model.runtime import Runtime

SLICE: Final = 200
"""Connections to visit in one turn."""


class Visit:
    """Calls `visit` once for each of `connections`, and then `done`.

    Connections that open later are not visited. Some connections may have closed by the time they are visited.
    """

    def __init__(
        self,
        runtime: Runtime,
        connections: Iterable[ClientConnection],
        visit: Callable[[ClientConnection], None],
        done: Callable[[], object],
    ) -> None:
        self._runtime = runtime
        self._left = deque(connections)
        self._visit = visit
        self._done = done
        self._canceled = False

    def run(self) -> None:
        """Visit the first slice now, and the others in later turns."""
        for _ in range(min(SLICE, len(self._left))):
            self._visit(self._left.popleft())
            if self._canceled:
                return
        if self._left:
            self._runtime.call_soon(self._resume)
        else:
            self._done()

    def _resume(self) -> None:
        if not self._canceled:
            self.run()

    def cancel(self) -> None:
        """Visit no more connections, and do not call `done`."""
        self._canceled = True
        self._left.clear()
