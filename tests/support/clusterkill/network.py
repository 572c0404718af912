"""A network of TCP proxies, each of which can be cut in one or both directions, delayed or refused.

All connections between brokers, NATS servers and relay listeners of a cluster lead through a link. A cut link loses
nothing: as in a real network, TCP delivers the bytes after the cut, unless one side has given up the connection.
"""

import asyncio
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Final, Literal

Cut = Literal["", "there", "back", "both", "refuse"]
"""How a link is cut: nowhere, towards its target, from its target, both ways, or with all connections refused."""
_LINGER: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing a socket resets the connection."""
DIAL: Final = 5.0
"""Seconds within which the target must accept a connection."""


class Link:
    """A proxy to one port of this machine. It listens from the start, and accepts connections after `open`."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.cut: Cut = ""
        self.delay = 0.0
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._sides: set[_Side] = set()
        self.closed = False

    async def open(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self, True), sock=self._socket)

    def set(self, cut: Cut = "", delay: float = 0.0) -> None:
        """Cut or heal the link. `delay` is the time in seconds that bytes need in each direction."""
        self.cut = cut
        self.delay = delay
        if cut == "refuse":
            self.reset()
        for side in list(self._sides):
            side.changed()

    def reset(self) -> None:
        """Abort all connections."""
        for side in list(self._sides):
            side.abort()

    def close(self) -> None:
        """Stop listening and abort all connections. Calling this again is harmless."""
        self.closed = True
        if self._server is not None:
            self._server.close()
        self._socket.close()
        self.reset()
        self._sides.clear()


class _Side(asyncio.Protocol):
    """One of the two sockets of a connection. It passes the bytes that it receives to its peer."""

    def __init__(self, link: Link, near: bool) -> None:
        self.link = link
        self.near = near
        self.peer: _Side | None = None
        self.transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        """Received bytes and the time from which they may be passed on. Empty bytes are the end."""
        self._timer: asyncio.TimerHandle | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._full = False

    @property
    def held(self) -> bool:
        """Return whether the link is cut in the direction in which this side sends."""
        return self.link.cut in ("both", "there" if self.near else "back")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.link.closed or self.link.cut == "refuse":
            self.reset()
            return
        self.link._sides.add(self)
        self.changed()

    def changed(self) -> None:
        """Adapt to the state of the link."""
        if self.near and self.peer is None and self._dialing is None and not self.link.cut:
            self._dialing = asyncio.get_running_loop().create_task(self._dial())
        self._flow()
        self._pass_on()

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL):
                _, peer = await loop.create_connection(
                    lambda: _Side(self.link, False), "127.0.0.1", self.link.target
                )
        except (OSError, TimeoutError):
            self.abort()
            return
        peer.peer = self
        self.peer = peer
        assert peer.transport is not None
        if peer.transport.is_closing():  # the link refuses connections now
            self.abort()
            return
        self.changed()
        peer.changed()

    def data_received(self, data: bytes) -> None:
        self._waiting.append((asyncio.get_running_loop().time() + self.link.delay, data))
        self._pass_on()

    def eof_received(self) -> bool:
        self.data_received(b"")
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.link._sides.discard(self)
        self._waiting.append((0.0, b""))
        self._pass_on()

    def pause_writing(self) -> None:
        self._set_full(True)

    def resume_writing(self) -> None:
        self._set_full(False)

    def abort(self) -> None:
        """Abort this side and its peer at once."""
        self._waiting.clear()
        for side in (self, self.peer):
            if side is not None and side.transport is not None:
                side.reset()

    def reset(self) -> None:
        """Abort this side, so that the other end of its socket gets an error."""
        assert self.transport is not None
        with suppress(OSError):  # closed already
            socket_ = self.transport.get_extra_info("socket")
            socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.transport.abort()

    def _set_full(self, full: bool) -> None:
        self._full = full
        if self.peer is not None:
            self.peer._flow()

    def _flow(self) -> None:
        """Read only while bytes can be passed on."""
        assert self.transport is not None
        stop = self.held or self.peer is None or self.peer._full
        with suppress(RuntimeError):  # the transport is closing
            if stop:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _pass_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.held or self.peer is None:
            return
        loop = asyncio.get_running_loop()
        assert self.peer.transport is not None
        while self._waiting:
            due, data = self._waiting[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self._pass_on)
                return
            self._waiting.popleft()
            if data and not self.peer.transport.is_closing():
                self.peer.transport.write(data)
            elif not data:
                self.peer.transport.close()


class Network:
    """The links of a cluster, by the names of their ends.

    Brokers connect to servers, servers to each other, and brokers to the relay listener of a broker. All brokers share
    the link to a relay listener; its first end is "".
    """

    def __init__(self) -> None:
        self.links: dict[tuple[str, str], Link] = {}

    def add(self, start: str, end: str, port: int) -> Link:
        """Add a link from `start` to the port of `end`."""
        made = self.links[start, end] = Link(port)
        return made

    async def open(self) -> None:
        """Open all links."""
        for link in self.links.values():
            await link.open()

    def between(self, some: set[str], others: set[str]) -> list[tuple[Link, bool]]:
        """Return the links between two groups, and whether each of them leads from the first to the second.

        A link to the relay listener of a broker in `some` counts, because other brokers use it.
        """
        found = []
        for (start, end), link in self.links.items():
            if start in some and end in others:
                found.append((link, True))
            elif end in some and (start in others or not start):
                found.append((link, False))
        return found

    def part(self, some: set[str], others: set[str], cut: Cut = "both") -> None:
        """Cut all links between two groups. With "there", only bytes from the first to the second are held."""
        for link, forward in self.between(some, others):
            turned: Cut = {"there": "back", "back": "there"}.get(cut, cut)  # type: ignore[assignment]
            link.set(cut if forward else turned)

    def heal(self) -> None:
        """Heal all links."""
        for link in self.links.values():
            link.set()

    def close(self) -> None:
        """Close all links."""
        for link in self.links.values():
            link.close()
