"""An HTTP client for the services that plugins call, with limits on requests, size and time, retries and a breaker.

This module needs the `http` extra, which installs aiohttp.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver
from hookmq.plugin import MetricRegistry
from yarl import URL

from hookmq_toolkit.breaker import Breaker
from hookmq_toolkit.network_errors import network_reason

UNHEALTHY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Status codes which mean that the service is temporarily unable to respond, not that it refuses the request."""
CIRCUIT: Final = {"closed": 0, "half-open": 1, "open": 2}
"""The metric value for each breaker state."""
_NO_LIMIT: Final = aiohttp.ClientTimeout(total=None)


class Unavailable(Exception):
    """The service could not be reached or returned no usable response. The message never contains request data."""


class AnswerTooLarge(Unavailable):
    """The response is larger than the limit."""


class RequestFailed(Unavailable):
    """The service failed on this request (status 500). Other requests may succeed, so the breaker does not count it."""


class HttpRequest(NamedTuple):
    """A request. `url` is sent unchanged, so it must already be percent-encoded."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""

    def __bytes__(self) -> bytes:
        """Return the whole request as bytes, for use in a cache key."""
        lines = [self.method, self.url, *(f"{k}:{v}" for k, v in sorted(self.headers.items()))]
        return "\n".join(lines).encode() + b"\n\n" + self.body


class HttpAnswer(NamedTuple):
    """A response with its complete body."""

    status: int
    body: bytes


def open_session(
    agent: str,
    max_connections: int,
    *,
    tls: ssl.SSLContext | None = None,
    accept: str = "*/*",
    timeout: aiohttp.ClientTimeout = _NO_LIMIT,
    resolver: AbstractResolver | None = None,
    keep_connections: bool = True,
    proxy: URL | None = None,
) -> aiohttp.ClientSession:
    """Return a session that uses no cookies or compression. It has no connections yet. Needs a running event loop.

    All requests go through `proxy`, whose URL may contain credentials; without it, no proxy is used.

    Compressed responses are never decompressed: a few bytes could expand to many. Without `tls`, the system's
    certificate authorities are trusted.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=max_connections,
            ssl=tls or True,
            resolver=resolver,
            force_close=not keep_connections,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=timeout,
        auto_decompress=False,
        trust_env=False,
        proxy=proxy,
        headers={"User-Agent": agent, "Accept": accept, "Accept-Encoding": "identity"},
    )


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body of a response. Raise AnswerTooLarge as soon as more than `limit` bytes have arrived."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise AnswerTooLarge(f"an answer of more than {limit} bytes")
    return bytes(body)


async def send(
    session: aiohttp.ClientSession, request: HttpRequest, max_answer: int, resend: bool = False
) -> HttpAnswer:
    """Send a request and return the response. Redirects are not followed.

    With `resend`, the request is sent once more if the connection ends without a response. A kept-alive connection may
    close just as it is reused. Raises Unavailable and aiohttp's own exceptions.
    """
    try:
        return await _send(session, request, max_answer)
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
        if not resend:
            raise
    return await _send(session, request, max_answer)


async def _send(
    session: aiohttp.ClientSession, request: HttpRequest, max_answer: int
) -> HttpAnswer:
    async with session.request(
        request.method,
        URL(request.url, encoded=True),
        headers=request.headers,
        data=request.body or None,
        allow_redirects=False,
    ) as response:
        if response.status == 500:
            raise RequestFailed("status 500")
        if response.status in UNHEALTHY:
            raise Unavailable(f"status {response.status}")
        return HttpAnswer(response.status, await read_body(response, max_answer))


@dataclass(frozen=True)
class HttpLimits:
    """Limits for an `HttpService`. Times are in seconds."""

    timeout: float
    """Time limit for one attempt."""
    max_answer: int
    """Largest accepted response, in bytes."""
    max_parallel: int
    """Maximum number of requests in progress at the same time."""
    max_waiting: int
    """Maximum number of requests waiting for a turn. Further requests fail at once."""
    deadline: float | None = None
    """Time limit for the whole call, including waiting and retries. None limits only each attempt."""
    retries: int = 0
    """Maximum number of retries of a failed request."""
    retry_delay: float = 0.0
    """Approximate wait before the first retry; doubles with each further retry."""


class HttpCounts:
    """Counters for an `HttpService`."""

    def __init__(self) -> None:
        self.requests = 0
        """Requests sent, including retries."""
        self.failures = 0
        """Requests without a usable response."""
        self.seconds = 0.0
        """Total time that all requests took, in seconds."""
        self.refused = 0
        """Calls refused without sending a request, because too many were waiting or the breaker was open."""
        self.waiting = 0
        """The number of calls that are waiting for a turn."""
        self.running = 0
        """The number of calls in progress."""


class HttpService:
    """Sends requests to one service, within `limits`. Create and use it on a running event loop.

    The breaker counts failed attempts. `now` is a monotonic clock used to time requests.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        limits: HttpLimits,
        breaker: Breaker,
        now: Callable[[], float],
    ) -> None:
        self.session = session
        self.limits = limits
        self.breaker = breaker
        self.counts = HttpCounts()
        self._now = now
        self._slots = asyncio.Semaphore(limits.max_parallel)

    async def close(self) -> None:
        """Close all connections. Requests in progress fail."""
        await self.session.close()

    async def exchange(self, request: HttpRequest) -> HttpAnswer:
        """Make one attempt. Subclasses override this to authenticate requests. Raises the same errors as `send`."""
        return await send(self.session, request, self.limits.max_answer)

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """Send `request` and return the response. Raises Unavailable. A cancelled call does not count as a failure."""
        deadline = None
        if self.limits.deadline is not None:
            deadline = asyncio.get_running_loop().time() + self.limits.deadline
        await self._enter(deadline)
        self.counts.running += 1
        try:
            return await self._attempts(request, deadline)
        finally:
            self.counts.running -= 1
            self._slots.release()

    async def _enter(self, deadline: float | None) -> None:
        counts = self.counts
        if self._slots.locked() and counts.waiting >= self.limits.max_waiting:
            counts.refused += 1
            raise Unavailable(f"{counts.waiting} requests are waiting already")
        counts.waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable(f"no answer within {self.limits.deadline:g} s") from None
        finally:
            counts.waiting -= 1

    async def _attempts(self, request: HttpRequest, deadline: float | None) -> HttpAnswer:
        delay = self.limits.retry_delay
        for left in range(self.limits.retries, -1, -1):
            ask = self.breaker.ask()
            if ask is None:
                self.counts.refused += 1
                raise Unavailable("the service failed too often and is not asked for a while")
            try:
                answer = await self._attempt(request, deadline)
                ask.end(True)
                return answer
            except Unavailable as error:
                ask.end(None if isinstance(error, RequestFailed) else False)
                self.counts.failures += 1
                if not left:
                    raise
            finally:
                ask.end(None)  # cancelled: the service may be healthy
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(delay * random.uniform(0.5, 1.5))
            except TimeoutError:
                raise Unavailable(f"no answer within {self.limits.deadline:g} s") from None
            delay *= 2
        raise AssertionError("unreachable")

    async def _attempt(self, request: HttpRequest, deadline: float | None) -> HttpAnswer:
        if self.session.closed:
            raise Unavailable("the client is closed")
        self.counts.requests += 1
        began = self._now()
        timeout = self.limits.timeout
        end = asyncio.get_running_loop().time() + timeout
        if deadline is not None and deadline < end:
            end, timeout = deadline, self.limits.deadline or timeout
        try:
            async with asyncio.timeout_at(end):
                return await self.exchange(request)
        except TimeoutError:
            raise Unavailable(f"no answer within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(network_reason(error)) from None
        finally:
            self.counts.seconds += self._now() - began


def register_service_metrics(
    registry: MetricRegistry, prefix: str, service: Callable[[], HttpService | None]
) -> None:
    """Add a service's metrics, named ``PREFIX_...``, to a `MetricRegistry`.

    `service` returns the service, or None before start and after shutdown.
    """

    def counts() -> HttpCounts:
        found = service()
        return found.counts if found is not None else HttpCounts()

    def circuit() -> int:
        found = service()
        return 0 if found is None else CIRCUIT[found.breaker.state]

    registry.counter(
        f"{prefix}_failures_total", "Requests without a usable answer.", lambda: counts().failures
    )
    registry.counter(
        f"{prefix}_refused_total",
        "Requests not made: too many were waiting, or the circuit was open.",
        lambda: counts().refused,
    )
    registry.gauge(f"{prefix}_waiting", "Requests that wait for a turn.", lambda: counts().waiting)
    registry.gauge(f"{prefix}_running", "Requests in progress.", lambda: counts().running)
    registry.gauge(
        f"{prefix}_circuit", "State of the circuit: 0 closed, 1 half-open, 2 open.", circuit
    )
    registry.summary(
        f"{prefix}_request_seconds",
        "Duration of one request.",
        lambda: [({}, counts().requests, counts().seconds)],
    )
