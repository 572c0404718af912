"""A listener: its socket, its TLS context, and the protocol for each connection."""

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any, Protocol

from hookmq.model.errors import BindError, ConfigError
from hookmq.model.metrics import Metrics
from hookmq.model.settings import BrokerSettings
from hookmq.server.accept import SocketAcceptor
from hookmq.server.addresses import format_address
from hookmq.server.base_listener import BaseListener
from hookmq.server.connection_limit import ListenerConnections, Log
from hookmq.server.http import HttpServer, HttpSite
from hookmq.server.protocols import AcceptConnection
from hookmq.server.settings import HTTP, TYPES, ListenerSettings
from hookmq.server.sockets import open_socket, unlink_socket
from hookmq.server.tcp import stream_factory
from hookmq.server.tls import server_context
from hookmq.server.websocket import WebSocketServer

# Python 3.13 and later would otherwise remove a Unix socket file that the service manager owns.
_UNIX_OPTIONS: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


class _Acceptor(Protocol):
    def close(self) -> None: ...


class Listener(BaseListener):
    """Accepts connections on one address and passes them to `accept`; an http listener serves `site` instead.

    Once the listener is open, `address` contains the actual port. Call all methods on the loop's thread.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        accept: AcceptConnection,
        metrics: Metrics,
        log: Log,
        broker: BrokerSettings,
        loop: asyncio.AbstractEventLoop | None = None,
        site: HttpSite | None = None,
    ) -> None:
        if settings.type not in TYPES:
            raise ConfigError(f"listener {settings.name!r}: unknown type {settings.type!r}")
        self.address = settings.bind
        self._loop = loop or asyncio.get_running_loop()
        self._log = log
        high = broker.max_write_buffer
        super().__init__(
            settings, ListenerConnections(settings, accept, metrics, self._loop, high, log)
        )
        self._web: WebSocketServer | HttpServer | None = None
        if settings.type in ("ws", "wss"):
            self._web = WebSocketServer(self.gate, settings, 2 * broker.max_packet_size)
        elif settings.type in HTTP:
            self._web = HttpServer(self.gate, settings, site or HttpSite(), log)
        if self._web is not None:
            self._make: Callable[..., asyncio.BaseProtocol] = self._web.make
        else:
            self._make = stream_factory(self.gate)
        self._socket: socket.socket | None = None
        self._inode = 0  # inode of the Unix socket file that we must remove
        self._acceptor: _Acceptor | None = None

    async def open(self, inherited: socket.socket | None = None) -> None:
        """Start listening on `inherited`, a listening socket from the service manager. If that is None, listen on the
        configured address. Raises ConfigError for unusable certificates, and BindError for an unusable address.
        """
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
        """Accept connections on a duplicate of the socket. Thus, connections waiting to be accepted are not lost when the
        acceptor is replaced.
        """
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
            return SocketAcceptor(sock, self._make, self.gate, settings, transport, self._log)
        if settings.type == "unix":
            return await self._loop.create_unix_server(
                self._make, sock=sock, backlog=settings.backlog, **_UNIX_OPTIONS
            )
        return await self._loop.create_server(self._make, sock=sock, backlog=settings.backlog)

    async def reload_certificates(self) -> None:
        """Reread the certificate files for new handshakes. If they cannot be used, raises ConfigError and keeps the old
        certificates."""
        context = await self._loop.run_in_executor(None, self._context)
        if context is None or self._acceptor is None:
            return
        # Make a new server instead of changing the context: nothing old remains, not even session tickets.
        acceptor = await self._serve(context)
        self._acceptor.close()
        self._acceptor = acceptor
        self._log("info", "listener.certificates_reloaded", listener=self.settings.name)

    def apply(self, settings: ListenerSettings) -> None:
        """Apply the settings that can change while the listener is open. Open connections keep their scope."""
        super().apply(settings)
        if isinstance(self._web, HttpServer):
            self._web.apply(settings)

    def shut(self) -> None:
        """Stop accepting, but keep open connections. Calling this again is harmless."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if self._inode:
                unlink_socket(self.settings.bind, self._inode)
        super().shut()

    async def close(self) -> None:
        """Stop accepting, close all connections at once, and wait until they have ended."""
        await super().close()
        if self._web is not None:
            await self._web.close()
