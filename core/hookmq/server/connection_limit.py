"""The state shared by all connections of a listener, and the limit on their number."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from hookmq.model.metrics import Metrics
from hookmq.server.protocols import AcceptConnection
from hookmq.server.settings import ListenerSettings

Log = Callable[..., None]
READ_BUFFER: Final = 262144
QUIET: Final = 1.0
"""Minimum time in seconds between two log lines about a listener's refused connections."""


class OpenTransport(Protocol):
    """The owner of an open transport."""

    def abort(self) -> None:
        """Close the transport at once."""

    def retire(self) -> None:
        """Close the transport because the listener is closing. Do nothing if the broker knows the connection, because
        the broker will close it.
        """


class ListenerConnections:
    """The connections of one listener. `entered` holds every open transport; `high_water` is in bytes."""

    __slots__ = (
        "_buffer", "_empty", "_log", "_told", "_unsaid", "accept", "arriving", "close_timeout", "entered", "high_water",
        "loop", "max_connections", "metrics", "name", "open", "scope", "transport",
    )  # fmt: skip

    def __init__(
        self,
        settings: ListenerSettings,
        accept: AcceptConnection,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        high_water: int,
        log: Log,
    ) -> None:
        self.accept = accept
        self.metrics = metrics
        self.loop = loop
        self.high_water = high_water
        self.entered: set[OpenTransport] = set()
        self.arriving: set[object] = set()
        """Protocols whose TLS handshake is in progress. They count towards the limit."""
        self._log = log
        self._told = -QUIET
        self._unsaid = 0
        self.open = True
        self._empty: asyncio.Future[None] | None = None
        self._buffer: memoryview | None = None
        self.apply(settings)

    def apply(self, settings: ListenerSettings) -> None:
        """Apply the settings that can change at run time; open connections keep their scope."""
        self.name = settings.name
        self.transport: str = settings.type
        self.scope = settings.scope()
        self.max_connections = settings.max_connections
        self.close_timeout = settings.close_timeout

    @property
    def buffer(self) -> memoryview:
        """The buffer that asyncio reads into. All connections share it, since each read is processed before the next."""
        if self._buffer is None:
            # Use a view: asyncio's TLS slices the buffer, and slicing a bytearray copies it.
            self._buffer = memoryview(bytearray(READ_BUFFER))
        return self._buffer

    @property
    def full(self) -> bool:
        """True if the listener has reached its connection limit."""
        return len(self.entered) + len(self.arriving) >= self.max_connections

    def enter(self, transport: OpenTransport, peer: object) -> bool:
        """Add `transport` and return True. If the listener is full or closed, count a refusal and return False.

        `peer` is the address to log.
        """
        self.arriving.discard(transport)
        if not self.open:
            self.metrics.connections_refused += 1
            return False
        if self.full:
            self.refuse("max_connections", peer)
            return False
        self.entered.add(transport)
        return True

    def refuse(self, why: str, peer: object) -> None:
        """Count a connection that is closed before the broker sees it. Log ``listener.refused`` at most once per
        second. The field `unsaid` is the number of refusals since the last log line."""
        self.metrics.connections_refused += 1
        now = self.loop.time()
        if now - self._told < QUIET:
            self._unsaid += 1
            return
        unsaid, self._unsaid = self._unsaid, 0
        self._told = now
        self._log(
            "info", "listener.refused", listener=self.name, why=why, peer=str(peer), unsaid=unsaid or None,
        )  # fmt: skip

    def leave(self, transport: OpenTransport) -> None:
        """Remove `transport`. Does nothing if it was never added."""
        self.entered.discard(transport)
        if not self.entered and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def emptied(self) -> None:
        """Return once no transport is open."""
        if self.entered:
            if self._empty is None or self._empty.done():
                self._empty = self.loop.create_future()
            await asyncio.shield(self._empty)

    def shut(self) -> None:
        """Refuse new transports, and close those that the broker does not know yet."""
        self.open = False
        for transport in tuple(self.entered):
            transport.retire()

    def abort_all(self) -> None:
        """Close every open transport at once."""
        for transport in tuple(self.entered):
            transport.abort()
