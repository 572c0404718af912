"""Asking a service over HTTP: bounded in number, size and time, tried again, and left alone while it is down."""

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from hookmq.breaker import Breaker
from hookmq.files import check_regular, shown_path
from yarl import URL

from hookmq_auth_http import template
from hookmq_auth_http.config import AuthHttpConfig, Endpoint, TlsConfig

_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of a service that is not well, as against one that says no."""


class Unavailable(Exception):
    """The service could not be asked, or did not answer: nothing is decided. It never holds what was sent."""


class Stumbled(Unavailable):
    """The service is there, but failed at this question: others may be answered."""


class Request(NamedTuple):
    """What is sent; `bytes` is all of it, for a cache's key."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes

    def __bytes__(self) -> bytes:
        lines = [self.method, self.url, *(f"{k}:{v}" for k, v in sorted(self.headers.items()))]
        return "\n".join(lines).encode() + b"\n\n" + self.body


def render(endpoint: Endpoint, members: Mapping[str, str], values: template.Values) -> Request:
    """The request for some values. Raises ValueError where a value does not fit."""
    url = template.url(endpoint.url, values)
    headers = {k: template.header(v, values) for k, v in (endpoint.headers or {}).items()}
    made = template.body(members if endpoint.body is None else endpoint.body, values)
    if endpoint.method == "get":
        query = template.encode(made, form=True).decode()
        joint = "&" if urlsplit(url).query else "?"
        return Request("GET", f"{url}{joint}{query}" if query else url, headers, b"")
    form = endpoint.format == "form"
    kind = "application/x-www-form-urlencoded" if form else "application/json"
    if not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = kind
    return Request(endpoint.method.upper(), url, headers, template.encode(made, form))


class Counts:
    """What the exporter shows."""

    def __init__(self) -> None:
        self.requests = 0
        self.failures = 0
        self.seconds = 0.0
        self.refused = 0
        self.waiting = 0
        self.running = 0


class Service:
    """One plugin's way to its service. `start` on a running loop; `close` ends what is under way."""

    def __init__(self, config: AuthHttpConfig, now: Callable[[], float]) -> None:
        self.config = config
        self.counts = Counts()
        self.breaker = Breaker(config.breaker_failures, config.breaker_pause, now)
        self._now = now
        self._slots = asyncio.Semaphore(config.max_parallel)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open nothing yet, but read the files of `tls`. Raises OSError, ssl.SSLError."""
        context = context_of(self.config.tls) if self.config.tls is not None else None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.config.max_parallel, ssl=context or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self.config.timeout),
            auto_decompress=False,
            headers={
                "User-Agent": "hookmq-auth-http",
                "Accept": "*/*",
                "Accept-Encoding": "identity",
            },
        )

    async def close(self) -> None:
        """Let go of all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(self, request: Request) -> tuple[int, bytes]:
        """The status and the body of the answer, read in full. Raises Unavailable. May be cancelled at any time."""
        counts = self.counts
        if self._slots.locked() and counts.waiting >= self.config.max_waiting:
            counts.refused += 1
            raise Unavailable(f"{counts.waiting} requests are waiting already")
        counts.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            counts.waiting -= 1
        counts.running += 1
        try:
            return await self._attempts(request)
        finally:
            counts.running -= 1
            self._slots.release()

    async def _attempts(self, request: Request) -> tuple[int, bytes]:
        delay = self.config.retry_delay
        for left in range(self.config.retries, -1, -1):
            ask = self.breaker.ask()
            if ask is None:
                self.counts.refused += 1
                raise Unavailable("the service failed too often and is left alone for a while")
            try:
                answer = await self._once(request)
                ask.end(True)
                return answer
            except Unavailable as error:
                ask.end(None if isinstance(error, Stumbled) else False)
                self.counts.failures += 1
                if not left:
                    raise
            finally:
                ask.end(None)  # cancelled: nothing is known
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))
            delay *= 2
        raise AssertionError("unreachable")

    async def _once(self, request: Request) -> tuple[int, bytes]:
        if self._session is None:
            raise Unavailable("not started")
        self.counts.requests += 1
        began = self._now()
        try:
            async with self._session.request(
                request.method,
                URL(request.url, encoded=True),
                headers=request.headers,
                data=request.body or None,
                allow_redirects=False,
            ) as response:
                if response.status == 500:
                    raise Stumbled("status 500")
                if response.status in _TRY_AGAIN:
                    raise Unavailable(f"status {response.status}")
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > self.config.max_answer:
                        raise Unavailable(f"an answer of more than {self.config.max_answer} bytes")
                return response.status, bytes(body)
        except TimeoutError:
            raise Unavailable(f"no answer within {self.config.timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(type(error).__name__) from None
        finally:
            self.counts.seconds += self._now() - began


def context_of(tls: TlsConfig) -> ssl.SSLContext:
    """The TLS context for requests. Blocks. Raises OSError, ssl.SSLError."""
    for path in filter(None, (tls.ca_file, tls.cert_file, tls.key_file)):
        # OpenSSL does not name a missing file, and waits at a pipe.
        try:
            check_regular(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, shown_path(path)) from None
    context = ssl.create_default_context(cafile=str(tls.ca_file) if tls.ca_file else None)
    if tls.cert_file is not None:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    return context
