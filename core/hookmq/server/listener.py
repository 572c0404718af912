"""One listener: its socket, its TLS context and what serves each connection."""

import asyncio
import contextlib
import os
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any, Protocol

from hookmq.errors import BindError, ConfigError
from hookmq.metrics import Metrics
from hookmq.server.accept import Acceptor
from hookmq.server.addresses import format_address
from hookmq.server.gate import Gate, Log
from hookmq.server.http import HttpServer, Site
from hookmq.server.ports import Accept
from hookmq.server.settings import HTTP, TYPES, ListenerSettings
from hookmq.server.sockets import open_socket, unlink_socket
from hookmq.server.tcp import stream_factory
from hookmq.server.tls import server_context
from hookmq.server.websocket import WebSocketServer
from hookmq.settings import BrokerSettings

# Newer Pythons remove a Unix socket's file by themselves, also that of a socket the service manager lent us.
_UNIX_OPTIONS: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


class _Acceptor(Protocol):
    def close(self) -> None: ...


class Listener:
    """Accepts on one address and hands connections to `accept`; one of type http shows `site`. `address` is where it
    listens once it is open, with the port the system chose for port 0; `gate` knows who is connected. All calls on the
    loop's thread."""

    def __init__(
        self,
        settings: ListenerSettings,
        accept: Accept,
        metrics: Metrics,
        log: Log,
        broker: BrokerSettings,
        loop: asyncio.AbstractEventLoop | None = None,
        site: Site | None = None,
    ) -> None:
        if settings.type not in TYPES:
            raise ConfigError(f"listener {settings.name!r}: there is no type {settings.type!r}")
        self.settings = settings
        self.address = settings.bind
        self._loop = loop or asyncio.get_running_loop()
        self._log = log
        self.gate = Gate(settings, accept, metrics, self._loop, broker.max_write_buffer, log)
        self._web: WebSocketServer | HttpServer | None = None
        if settings.type in ("ws", "wss"):
            self._web = WebSocketServer(self.gate, settings, 2 * broker.max_packet_size)
        elif settings.type in HTTP:
            self._web = HttpServer(self.gate, settings, site or Site(), log)
        if self._web is not None:
            self._make: Callable[..., asyncio.BaseProtocol] = self._web.make
        else:
            self._make = stream_factory(self.gate)
        self._socket: socket.socket | None = None
        self._inode = 0  # of the Unix socket's file, when it is ours to remove
        self._acceptor: _Acceptor | None = None

    async def open(self, inherited: socket.socket | None = None) -> None:
        """Listen, on `inherited` (already listening, of the service manager) when there is one. Raises ConfigError for
        unusable certificates and BindError for unusable addresses."""
        context = self._context()
        if inherited is None:
            self._socket = await self._loop.run_in_executor(None, open_socket, self.settings)
            if self.settings.type == "unix":
                self._inode = os.lstat(self.settings.bind).st_ino
        else:
            self._socket = self._adopt(inherited)
        self.address = format_address(self._socket.getsockname())
        self._acceptor = await self._serve(context)
        self._log(
            "info", "listener.opened", listener=self.settings.name, type=self.settings.type,
            address=self.address,
        )  # fmt: skip

    def _adopt(self, inherited: socket.socket) -> socket.socket:
        unix = inherited.family == getattr(socket, "AF_UNIX", None)
        if inherited.type != socket.SOCK_STREAM or unix != (self.settings.type == "unix"):
            raise BindError(
                f"listener {self.settings.name!r} of type {self.settings.type} cannot use the socket it was given: "
                f"{inherited.family.name} {inherited.type.name}"
            )
        inherited.setblocking(False)
        if not unix:
            inherited.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return inherited

    def _context(self) -> ssl.SSLContext | None:
        if self.settings.tls is None:
            return None
        try:
            return server_context(self.settings.tls)
        except ConfigError as error:
            raise ConfigError(
                f"listener {self.settings.name!r}: {error.message}", hint=error.hint
            ) from error

    async def _serve(self, context: ssl.SSLContext | None) -> _Acceptor:
        """Accept on a duplicate of the socket, so that another acceptor can take over without losing who waits."""
        assert self._socket is not None
        sock = self._socket.dup()
        sock.setblocking(False)
        settings = self.settings
        transport: dict[str, Any] = {}
        if context is not None and settings.tls is not None:
            transport = {
                "ssl": context,
                "ssl_handshake_timeout": settings.tls.handshake_timeout,
                "ssl_shutdown_timeout": settings.close_timeout,
            }
        uvloop = type(self._loop).__module__.startswith("uvloop")
        if transport or settings.proxy_protocol != "off" or not uvloop:
            return Acceptor(sock, self._make, self.gate, settings, transport, self._log)
        if settings.type == "unix":
            return await self._loop.create_unix_server(
                self._make, sock=sock, backlog=settings.backlog, **_UNIX_OPTIONS
            )
        return await self._loop.create_server(self._make, sock=sock, backlog=settings.backlog)

    async def reload_certificates(self) -> None:
        """Use the certificate files as they are now for new handshakes; open connections stay. Raises ConfigError, and
        goes on with the old ones, when the new ones cannot be used."""
        context = await self._loop.run_in_executor(None, self._context)
        if context is None or self._acceptor is None:
            return
        # A new server rather than a changed context: nothing of the old one, tickets of sessions included, lives on.
        acceptor = await self._serve(context)
        self._acceptor.close()
        self._acceptor = acceptor
        self._log("info", "listener.certificates_reloaded", listener=self.settings.name)

    def apply(self, settings: ListenerSettings) -> None:
        """Take over what may change while connections are open; those that are open keep their scope."""
        self.settings = settings
        self.gate.apply(settings)
        if isinstance(self._web, HttpServer):
            self._web.apply(settings)

    def shut(self) -> None:
        """Accept no more; open connections stay. Harmless when shut."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if self._inode:
                unlink_socket(self.settings.bind, self._inode)
        self.gate.shut()

    async def close(self) -> None:
        """Shut, end at once what is still connected, and return when all are gone."""
        self.shut()
        self.gate.abort_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.close_timeout):
                await self.gate.emptied()
        if self._web is not None:
            await self._web.close()
