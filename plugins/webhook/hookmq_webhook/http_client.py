"""Send HTTP/1.1 requests over kept connections, to allowed and pinned addresses, directly or through a proxy."""

import asyncio
import base64
import ipaddress
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, cast

from aiohappyeyeballs import AddrInfoType, start_connection
from aiohttp.abc import AbstractResolver
from hookmq_toolkit.network_errors import UNREACHABLE
from yarl import URL

from hookmq_webhook.config import ProxyConfig
from hookmq_webhook.http_connection import Connection, ExchangeFailed, Response

KEEP_ALIVE: Final = 15.0
"""Seconds after which an idle connection is not used again."""
RESOLVED: Final = 10.0
"""Seconds for which the addresses of a host are used for new connections."""
_DELAY: Final = 0.25
"""Seconds after which the next address is tried at the same time (RFC 8305)."""
_FAMILIES: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

Origin = tuple[str, str, int]
"""Scheme, host and port."""


class ConnectTimeout(TimeoutError):
    """No connection could be opened within `connect_timeout`."""


class HttpClient:
    """Sends requests. It opens a connection for each request in progress, and keeps it for later ones.

    `resolver` returns the addresses that may be connected to. `tls` is the context for https. `timeout` limits a whole
    request, and `connect_timeout` the opening of a connection; both are in seconds. Call the methods on a running event
    loop. Responses are never decompressed. The caller checks hosts; see `hookmq_webhook.destinations.Destinations`.
    """

    def __init__(
        self,
        agent: str,
        resolver: AbstractResolver,
        tls: ssl.SSLContext,
        timeout: float,
        connect_timeout: float,
        proxy: ProxyConfig | None = None,
    ) -> None:
        self._defaults = {
            "User-Agent": agent,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
        }
        self._resolver = resolver
        self._tls = tls
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._proxy = URL(proxy.url) if proxy is not None else None
        self._proxy_headers: dict[str, str] = {}
        if proxy is not None and proxy.username is not None:
            pair = f"{proxy.username}:{proxy.password}".encode()
            self._proxy_headers["Proxy-Authorization"] = "Basic " + base64.b64encode(pair).decode()
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._resolved: dict[tuple[str, int], tuple[float, Sequence[AddrInfoType]]] = {}
        self._closed = False

    async def request(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes, limit: int
    ) -> Response:
        """Send a request, and return the response. At most `limit` bytes of its body are read.

        If a kept connection ends without a response, the request is sent once more: the service may have closed the
        connection just before. Raises OSError, which includes TimeoutError and `ssl.SSLError`, `ExchangeFailed`, and
        ValueError if the URL or a header is not valid.
        """
        data = self._encode(method, url, headers, body)
        origin = _origin(url)
        async with asyncio.timeout(self._timeout):
            connection = self._kept(origin)
            if connection is not None:
                try:
                    return await self._exchange(origin, connection, data, limit)
                except (ExchangeFailed, ConnectionError):
                    if connection.answered:
                        raise
            connection = await self._connect(origin)
            return await self._exchange(origin, connection, data, limit)

    async def close(self) -> None:
        """Close all connections. Requests in progress fail."""
        self._closed = True
        for connection in tuple(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()
        await self._resolver.close()

    def _encode(self, method: str, url: URL, headers: Mapping[str, str], body: bytes) -> bytes:
        sent = self._defaults
        target = url.raw_path_qs
        if self._proxy is not None and url.scheme == "http":
            target = str(url.with_fragment(None))
            sent = sent | self._proxy_headers
        given = {name.lower() for name in headers}
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {url.host_port_subcomponent}",
            *(f"{name}: {value}" for name, value in sent.items() if name.lower() not in given),
            *(f"{name}: {value}" for name, value in headers.items()),
            f"Content-Length: {len(body)}",
        ]
        if _CONTROL.search("".join(lines)):
            raise ValueError("a control character in a header")
        return b"%b\r\n\r\n%b" % ("\r\n".join(lines).encode(), body)

    async def _exchange(
        self, origin: Origin, connection: Connection, data: bytes, limit: int
    ) -> Response:
        try:
            response = await connection.request(data, limit)
        finally:
            if not connection.reusable:
                self._discard(connection)
        if connection.reusable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.setdefault(origin, []).append(connection)
        return response

    def _kept(self, origin: Origin) -> Connection | None:
        """Return a kept connection, or None. The most recently used one comes first, so that others become old."""
        kept = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE
        while kept:
            connection = kept.pop()
            if connection.ready and connection.idle_since >= oldest:
                return connection
            self._discard(connection)
        return None

    def _discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()

    # connections ----------------------------------------------------------------------------------------------------

    async def _connect(self, origin: Origin) -> Connection:
        if self._closed:
            raise ExchangeFailed("other: the client is closed")
        scheme, host, port = origin
        proxy = self._proxy
        near = origin if proxy is None else _origin(proxy)
        addresses = await self._addresses(near[1], near[2])
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._dial(near, addresses)
                try:
                    if proxy is not None and scheme == "https":
                        await self._tunnel(connection, host, port)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError:
            raise ConnectTimeout from None
        self._open.add(connection)
        return connection

    async def _dial(self, origin: Origin, addresses: Sequence[AddrInfoType]) -> Connection:
        """Connect to the first address that accepts a connection."""
        scheme, host, _ = origin
        loop = asyncio.get_running_loop()
        sock = await start_connection(addresses, happy_eyeballs_delay=_DELAY, loop=loop)
        try:
            tls = self._tls if scheme == "https" else None
            name = host.rstrip(".") if tls is not None else None
            _, connection = await loop.create_connection(
                Connection, sock=sock, ssl=tls, server_hostname=name
            )
        except BaseException:
            sock.close()
            raise
        return connection

    async def _tunnel(self, connection: Connection, host: str, port: int) -> None:
        """Ask the proxy for a tunnel to a service, and begin TLS in it. Raises `ExchangeFailed` and OSError."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
        lines += [f"{name}: {value}" for name, value in self._proxy_headers.items()]
        data = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
        status = await connection.open_tunnel(data)
        if not 200 <= status < 300:
            raise ExchangeFailed(f"{UNREACHABLE}: the proxy answered {status}")
        loop = asyncio.get_running_loop()
        assert connection.transport is not None
        transport = await loop.start_tls(
            connection.transport, connection, self._tls, server_hostname=host.rstrip(".")
        )
        connection.transport = cast("asyncio.Transport", transport)

    async def _addresses(self, host: str, port: int) -> Sequence[AddrInfoType]:
        """Return the allowed addresses of a host. If it is an address, the caller of `request` has checked it."""
        with suppress(ValueError):
            family = _FAMILIES[ipaddress.ip_address(host).version]
            return [(family, socket.SOCK_STREAM, 0, "", (host, port))]
        now = asyncio.get_running_loop().time()
        until, found = self._resolved.get((host, port), (0.0, ()))
        if until > now:
            return found
        answers = await self._resolver.resolve(host, port, socket.AF_UNSPEC)
        infos = [
            (one["family"], socket.SOCK_STREAM, one["proto"], "", (one["host"], one["port"]))
            for one in answers
        ]
        if len(self._resolved) >= 100:
            self._resolved.clear()
        self._resolved[host, port] = now + RESOLVED, infos
        return infos


def _origin(url: URL) -> Origin:
    return url.scheme, url.raw_host or "", url.port or 0


@lru_cache(maxsize=1)
def system_context() -> ssl.SSLContext:
    """Return the context that trusts the certificate authorities of the system. The first call blocks."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


__all__ = ["ConnectTimeout", "HttpClient", "system_context"]
