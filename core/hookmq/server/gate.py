"""What all connections of one listener share: where they are handed over, how many may be there, who is there."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from hookmq.metrics import Metrics
from hookmq.server.ports import Accept
from hookmq.server.settings import ListenerSettings

Log = Callable[..., None]
READ_BUFFER: Final = 262144
QUIET: Final = 1.0
"""Seconds between two log lines about refused connections of one listener."""


class Entrant(Protocol):
    """What owns an open transport."""

    def abort(self) -> None:
        """Close at once."""

    def retire(self) -> None:
        """The listener accepts no more: end, unless the broker knows of the connection and ends it."""


class Gate:
    """The shared part of one listener's connections. `entered` holds every transport that is open, `high_water` is in
    bytes, `buffer` is what asyncio reads into (one for all: a read is handed over before the next begins)."""

    __slots__ = (
        "_buffer", "_empty", "_log", "_told", "_unsaid", "accept", "arriving", "close_timeout", "entered", "high_water",
        "loop", "max_connections", "metrics", "name", "open", "scope", "transport",
    )  # fmt: skip

    def __init__(
        self,
        settings: ListenerSettings,
        accept: Accept,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        high_water: int,
        log: Log,
    ) -> None:
        self.accept = accept
        self.metrics = metrics
        self.loop = loop
        self.high_water = high_water
        self.entered: set[Entrant] = set()
        self.arriving: set[object] = set()
        """Protocols whose TLS handshake runs; they count against the limit too."""
        self._log = log
        self._told = -QUIET
        self._unsaid = 0
        self.open = True
        self._empty: asyncio.Future[None] | None = None
        self._buffer: memoryview | None = None
        self.apply(settings)

    def apply(self, settings: ListenerSettings) -> None:
        """Take over what may change while connections are open; those that are open keep their scope."""
        self.name = settings.name
        self.transport: str = settings.type
        self.scope = settings.scope()
        self.max_connections = settings.max_connections
        self.close_timeout = settings.close_timeout

    @property
    def buffer(self) -> memoryview:
        """The shared read buffer, made when first asked for."""
        if self._buffer is None:
            # A view and not the bytearray: asyncio's TLS slices what it gets, and a slice of a bytearray is a copy.
            self._buffer = memoryview(bytearray(READ_BUFFER))
        return self._buffer

    @property
    def full(self) -> bool:
        """Whether one connection more is too many."""
        return len(self.entered) + len(self.arriving) >= self.max_connections

    def enter(self, transport: Entrant, peer: object) -> bool:
        """Count `transport` in; False (and counted as refused) when the listener is full or no longer open. `peer` is
        the address that the log names."""
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
        """Count a connection that is closed before the broker sees it, and log it as ``listener.refused``. A stranger
        makes as many as it likes, so there is one line a second; `unsaid` counts the others."""
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

    def leave(self, transport: Entrant) -> None:
        """Count `transport` out; harmless when it never entered."""
        self.entered.discard(transport)
        if not self.entered and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def emptied(self) -> None:
        """Return when nobody is in."""
        if self.entered:
            if self._empty is None or self._empty.done():
                self._empty = self.loop.create_future()
            await asyncio.shield(self._empty)

    def shut(self) -> None:
        """Let nobody in any more; who has not got through to the broker has to go."""
        self.open = False
        for transport in tuple(self.entered):
            transport.retire()

    def abort_all(self) -> None:
        """End every open transport at once."""
        for transport in tuple(self.entered):
            transport.abort()
