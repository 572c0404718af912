"""Accepting behind a load balancer: the PROXY header comes off the socket before TLS or anything else looks at it."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, Literal, cast

from hookmq.server.addresses import parse_networks, within
from hookmq.server.gate import Gate
from hookmq.server.proxy import V2_LIMIT, ProxyError, ProxyHeader, ProxyParser
from hookmq.server.settings import ListenerSettings
from hookmq.types import Peer

Make = Callable[[Peer | None], asyncio.BaseProtocol]
"""Makes the protocol of one connection; the argument is the peer a PROXY header named."""
Log = Callable[..., None]
AT_ONCE: Final = 128
"""Connections accepted in one turn of the loop."""


class ProxyAcceptor:
    """Accepts from `sock` and hands over what announced itself with a header from a trusted proxy. Others are closed and
    counted as refused. `transport` are the keyword arguments of `connect_accepted_socket` (TLS)."""

    def __init__(
        self,
        sock: socket.socket,
        make: Make,
        gate: Gate,
        settings: ListenerSettings,
        transport: dict[str, Any],
        log: Log,
    ) -> None:
        self._sock = sock
        self._make = make
        self._gate = gate
        self._versions = cast('Literal["v1", "v2", "any"]', settings.proxy_protocol)
        self._timeout = settings.proxy_timeout
        self._trusted = parse_networks(settings.trusted_proxies)
        self._transport = transport
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._announcing: set[asyncio.Task[None]] = set()  # those that read a header
        self._retry: asyncio.TimerHandle | None = None
        gate.loop.add_reader(sock.fileno(), self._ready)

    def close(self) -> None:
        """Stop accepting. Who is still telling his header is let go."""
        if self._retry is not None:
            self._retry.cancel()
        self._gate.loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for task in self._announcing:
            task.cancel()

    def _ready(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except (
                OSError
            ) as error:  # out of file descriptors: it stays readable, so look away for a while
                self._log("error", "listener.accept_failed", error=str(error))
                self._gate.loop.remove_reader(self._sock.fileno())
                self._retry = self._gate.loop.call_later(1.0, self._again)
                return
            self._enter(sock, address)

    def _again(self) -> None:
        self._gate.loop.add_reader(self._sock.fileno(), self._ready)

    def _enter(self, sock: socket.socket, address: Any) -> None:
        gate = self._gate
        full = len(gate.entered) + len(self._announcing) >= gate.max_connections
        trusted = sock.family == socket.AF_UNIX or within(str(address[0]), self._trusted)
        if full or not trusted:
            self._refuse(sock, "full" if full else "proxy not trusted", address)
            return
        sock.setblocking(False)
        task = gate.loop.create_task(self._welcome(sock, address))
        self._tasks.add(task)
        self._announcing.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._announcing.discard)

    def _refuse(self, sock: socket.socket, why: str, address: Any) -> None:
        self._gate.metrics.connections_refused += 1
        self._log("info", "listener.refused", why=why, peer=str(address))
        sock.close()

    async def _welcome(self, sock: socket.socket, address: Any) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                header = await read_header(sock, ProxyParser(self._versions))
        except asyncio.CancelledError:
            sock.close()
            raise
        except TimeoutError:
            self._refuse(sock, "no PROXY header in time", address)
            return
        except (ProxyError, OSError) as error:
            self._refuse(sock, str(error), address)
            return
        # From here on it must not be cancelled: uvloop would drop the transport without a word to its protocol.
        task = asyncio.current_task()
        assert task is not None
        self._announcing.discard(task)
        try:
            await self._gate.loop.connect_accepted_socket(
                lambda: self._make(header.source), sock, **self._transport
            )
        except (OSError, TimeoutError) as error:  # TLS handshake; the loop closes the socket
            self._log("debug", "listener.handshake_failed", error=str(error), peer=str(address))


async def read_header(sock: socket.socket, parser: ProxyParser) -> ProxyHeader:
    """The PROXY header at the start of `sock`, a non-blocking socket that no transport owns; what follows it stays in
    the socket. Raises ProxyError, or OSError when the peer left."""
    loop = asyncio.get_running_loop()
    while parser.header is None:
        try:
            seen = sock.recv(V2_LIMIT, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            await _readable(loop, sock)
            continue
        if not seen:
            raise ProxyError("closed before its PROXY header was complete")
        sock.recv(parser.feed(seen))
    return parser.header


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(sock.fileno(), wake)
    try:
        await future
    finally:
        loop.remove_reader(sock.fileno())
