"""A connection that one simulated node passes on to another one. Bytes take a turn of the node that gets them."""

from collections.abc import Callable
from functools import partial

from hookmq.cluster_api import RelayedConnection
from hookmq.server_api import Wire

from cluster_simulator.clock import NodeClock


class SimulatedRelay:
    """A relay from the node `near`, which has the client's connection `wire`, to the process `far` of `node`, which has
    the session.
    `ended` is called once neither side needs it.
    """

    def __init__(
        self,
        near: NodeClock,
        node: str,
        far: NodeClock,
        wire: Wire,
        ended: Callable[["SimulatedRelay"], None],
    ) -> None:
        self.near = near
        self.node = node
        self.far = far
        self._wire = wire
        self._ended = ended
        self._connection: RelayedConnection | None = None
        self._closed = False

    def open(self, accept: Callable[[Wire], RelayedConnection | None]) -> None:
        """Open the connection at the node `far`. It refuses if `accept` returns None."""

        def opened() -> None:
            self._connection = accept(_Back(self.near, self._wire, self._far_closed))
            if self._connection is None:
                self.near.call_soon(self._wire.close)
                self._ended(self)

        self.far.call_soon(opened)

    def end(self) -> None:
        """The node `near` has no more clients: close the connection at both ends."""
        self._ended(self)
        self._wire.close()

    def lose(self, clock: NodeClock) -> None:
        """One of the two processes has ended."""
        if clock is self.near:
            self.closed()
        else:
            self.near.call_soon(self._wire.close)
        self._ended(self)

    # hookmq.cluster_api.Relay ------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Pass bytes of the client on."""
        self.far.call_soon(partial(self._feed, data))

    def closed(self) -> None:
        """Close the connection to the node `far`."""
        self.far.call_soon(self._close)

    def pause_writing(self) -> None:
        """Do nothing: a client reads at once."""

    def resume_writing(self) -> None:
        """Do nothing."""

    # parts -------------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        if self._connection is not None and not self._closed:
            self._connection.feed(data)

    def _close(self) -> None:
        if self._connection is not None and not self._closed:
            self._closed = True
            self._connection.closed("")
            self._ended(self)

    def _far_closed(self) -> None:
        """The node `far` has closed the connection."""
        self.far.call_soon(self._close)


class _Back:
    """The wire of the node `far`: it writes to the client through the node `near`."""

    def __init__(self, near: NodeClock, wire: Wire, closed: Callable[[], None]) -> None:
        self._near = near
        self._wire = wire
        self._told = closed
        self._closing = False

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        if not self._closing:
            self._near.call_soon(partial(self._wire.write, data))

    def close(self) -> None:
        """Close the client's connection."""
        if not self._closing:
            self._closing = True
            self._near.call_soon(self._wire.close)
            self._told()

    def abort(self) -> None:
        """Close the client's connection at once."""
        self.close()

    def pause_reading(self) -> None:
        """Do nothing: the packets of clients are small."""

    def resume_reading(self) -> None:
        """Do nothing."""
