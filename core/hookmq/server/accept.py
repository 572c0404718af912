"""Accept connections: read the PROXY header, do the TLS handshake, then hand the socket to its protocol.

For connections that need neither, `Listener` uses the event loop's own server. For other connections, that server is
unsuitable: it does not report failed handshakes, and drops the TLS alert with the reason. When file descriptors run out,
asyncio's server also logs a thousand lines a second.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final, Literal, cast

from hookmq.model.client import Peer
from hookmq.server.addresses import format_address, parse_networks, within
from hookmq.server.connection_limit import ListenerConnections, Log
from hookmq.server.proxy_protocol import V2_LIMIT, ProxyError, ProxyHeader, ProxyParser
from hookmq.server.settings import ListenerSettings
from hookmq.server.tls import HANDSHAKE, Handshake

MakeProtocol = Callable[[Peer | None], asyncio.BaseProtocol]
"""Makes one connection's protocol. The argument is the peer from the PROXY header, or None."""
AT_ONCE: Final = 128
"""The maximum number of connections accepted in one turn."""
RETRY: Final = 1.0
"""The number of seconds to wait after file descriptors have run out."""
LINGERING: Final = 64
"""How many refused TLS clients per listener get time to read their alert. Any others are closed at once."""


class SocketAcceptor:
    """Accepts connections on `sock` and hands them to protocols made by `make`.

    With `settings.proxy_protocol`, it closes connections that lack a header or do not come from a trusted proxy.
    `transport` holds the TLS arguments for `connect_accepted_socket`.
    """

    def __init__(
        self,
        sock: socket.socket,
        make: MakeProtocol,
        gate: ListenerConnections,
        settings: ListenerSettings,
        transport: dict[str, Any],
        log: Log,
    ) -> None:
        self._sock = sock
        self._make = make
        self._gate = gate
        self._name = settings.name
        self._proxied = settings.proxy_protocol != "off"
        self._versions = cast('Literal["v1", "v2", "any"]', settings.proxy_protocol)
        self._timeout = settings.proxy_timeout
        self._trusted = parse_networks(settings.trusted_proxies)
        self._transport = transport
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._announcing: set[asyncio.Task[None]] = set()  # tasks that read a header
        self._lingering = 0
        self._retry: asyncio.TimerHandle | None = None
        gate.loop.add_reader(sock.fileno(), self._ready)

    def close(self) -> None:
        """Stop accepting. Close connections whose PROXY header is incomplete; TLS handshakes continue."""
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
            except OSError as error:
                # Out of file descriptors. The socket stays readable, so stop watching it for a while.
                self._log("error", "listener.accept_failed", listener=self._name, error=str(error))
                self._gate.loop.remove_reader(self._sock.fileno())
                self._retry = self._gate.loop.call_later(RETRY, self._again)
                return
            self._enter(sock, address)

    def _again(self) -> None:
        self._retry = None
        self._gate.loop.add_reader(self._sock.fileno(), self._ready)

    def _enter(self, sock: socket.socket, address: Any) -> None:
        gate = self._gate
        if len(gate.entered) + len(gate.arriving) + len(self._announcing) >= gate.max_connections:
            self._refuse(sock, "max_connections", address)
            return
        sock.setblocking(False)
        if not self._proxied:
            self._begin(self._connect(sock, address, None))
            return
        if sock.family != socket.AF_UNIX and not within(str(address[0]), self._trusted):
            self._refuse(sock, "proxy not trusted", address)
            return
        self._announcing.add(self._begin(self._welcome(sock, address)))

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._gate.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._announcing.discard)
        return task

    def _refuse(self, sock: socket.socket, why: str, address: Any) -> None:
        self._gate.refuse(why, _name(address))
        sock.close()

    async def _welcome(self, sock: socket.socket, address: Any) -> None:
        """Read the PROXY header, then connect."""
        try:
            async with asyncio.timeout(self._timeout):
                header = await read_header(sock, ProxyParser(self._versions))
        except asyncio.CancelledError:
            sock.close()
            raise
        except TimeoutError:
            self._refuse(sock, "PROXY header timed out", address)
            return
        except (ProxyError, OSError) as error:
            self._refuse(sock, str(error), address)
            return
        # Do not cancel the task from here on: uvloop would drop the transport without notifying its protocol.
        task = asyncio.current_task()
        assert task is not None
        self._announcing.discard(task)
        await self._connect(sock, address, header.source)

    async def _connect(self, sock: socket.socket, address: Any, source: Peer | None) -> None:
        """Do the TLS handshake, if any, and hand `sock` to a protocol."""
        gate = self._gate
        protocol = self._make(source)
        handshake = Handshake(sock)
        if self._transport:
            HANDSHAKE.set(handshake)  # in the context of this task only
            gate.arriving.add(protocol)
        try:
            await gate.loop.connect_accepted_socket(lambda: protocol, sock, **self._transport)
        except (OSError, TimeoutError) as error:  # the loop closes the socket
            self._log(
                "info" if handshake.error else "debug",
                "listener.handshake_failed",
                listener=self._name,
                peer=str(source) if source is not None else _name(address),
                error=handshake.error or str(error) or type(error).__name__,
            )
        finally:
            gate.arriving.discard(protocol)
        if handshake.lingering is not None:
            await self._linger(handshake.lingering)

    async def _linger(self, sock: socket.socket) -> None:
        """Read until the client closes. Closing earlier, with bytes unread, would reset the connection, and the client
        might lose the alert."""
        if self._lingering >= LINGERING:
            sock.close()
            return
        self._lingering += 1
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(self._gate.close_timeout):
                    while await self._gate.loop.sock_recv(sock, V2_LIMIT):
                        pass
        finally:
            self._lingering -= 1
            sock.close()


def _name(address: Any) -> str:
    return format_address(address) or "unix"


async def read_header(sock: socket.socket, parser: ProxyParser) -> ProxyHeader:
    """Read and return the PROXY header from `sock`. Bytes after the header remain in the socket.

    `sock` must be non-blocking and not owned by a transport. Raises ProxyError for an invalid header, and OSError if the
    peer disconnected.
    """
    loop = asyncio.get_running_loop()
    while parser.header is None:
        try:
            seen = sock.recv(V2_LIMIT, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            await _readable(loop, sock)
            continue
        if not seen:
            raise ProxyError("closed within the PROXY header")
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
