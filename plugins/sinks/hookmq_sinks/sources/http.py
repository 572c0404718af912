"""The `http` source: messages that programs publish with POST ``/publish`` and ``/publish/bulk``.

The server runs in the source's process. Each request carries a token, and each token has an identity. Messages are
published under that identity, so the broker's access rules apply to it. The response is sent after the commit and
contains the message's reason code. If the broker refuses a message, the message is neither retried nor stored: the
program decides what to do.
"""

import asyncio
import hmac
import ipaddress
import math
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hookmq.mqtt_api import compile_filter, validate_filter
from hookmq.plugin import ConfigError, ReasonCode, Seconds, Size, setting

from hookmq_sinks.source import Incoming, Source, SourceContext, SourceUnavailable
from hookmq_sinks.sources.http_request import BadRequest, parse_json, parse_message, status_of

if TYPE_CHECKING:
    from aiohttp import web

_MOST: Final = 1000
"""The maximum number of messages that `read` returns."""
_UNKNOWN: Final = -1
"""The code of a message that may or may not have been published."""
_SHORTEST: Final = 16
"""The minimum length of a token."""


@dataclass(frozen=True)
class HttpToken:
    """A token, and what programs that use it may do."""

    token: str = field(repr=False, metadata={"help": "the token: at least 16 characters"})
    identity: str = field(metadata={"help": "the identity with which its messages are published"})
    topics: tuple[str, ...] = setting(
        (),
        "filters of the topics that may be published; default: those that the access rules allow",
    )
    rate: int = setting(0, "most messages in a second; 0 means no limit", minimum=0)

    def __post_init__(self) -> None:
        if not self.identity:
            raise ConfigError("identity: empty")
        for one in self.topics:
            try:
                validate_filter(one)
            except Exception as error:
                raise ConfigError(f"topics: {one!r} is not a topic filter: {error}") from None


@dataclass(frozen=True)
class HttpTls:
    """The server's TLS certificate."""

    cert_file: Path = field(metadata={"help": "file with the certificate and its chain"})
    key_file: Path = field(metadata={"help": "file with the private key"})


@dataclass(frozen=True)
class HttpSourceSettings:
    """The settings of the server."""

    tokens: tuple[HttpToken, ...] = field(metadata={"help": "who may publish"})
    bind: str = setting("127.0.0.1:8090", "where it listens, HOST:PORT")
    tls: HttpTls | None = setting(None, "certificate and key, for HTTPS")
    plain: bool = setting(
        False,
        "whether HTTP without TLS is allowed on other addresses than loopback, behind a proxy",
    )
    max_body: Size = setting(1 << 20, "largest body of a request", minimum=1024)
    max_batch: int = setting(
        1000, "most messages of one request to /publish/bulk", minimum=1, maximum=10_000
    )
    max_waiting: int = setting(
        10_000, "most messages that wait to be published; then the status is 503", minimum=1
    )
    timeout: Seconds = setting(30.0, "longest time for the response", minimum=0.1, maximum=3600)

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ConfigError("tokens: empty, so that nobody could publish")
        for one in self.tokens:
            if len(one.token) < _SHORTEST or not one.token.isascii() or not one.token.isprintable():
                raise ConfigError(
                    f"tokens: the token of {one.identity} has not at least {_SHORTEST} ASCII characters"
                )
        if len({one.token for one in self.tokens}) < len(self.tokens):
            raise ConfigError("tokens: a token is listed twice")
        host, _ = self.address
        if self.tls is None and not self.plain and not _is_loopback(host):
            raise ConfigError(
                f"bind: {host} is not a loopback address, so tokens could be read by others",
                hint="set `tls`, or `plain: true` behind a proxy with TLS",
            )

    @property
    def address(self) -> tuple[str, int]:
        """The host and port to listen on. Raises ConfigError."""
        host, _, port = self.bind.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"bind: {self.bind!r}: expected HOST:PORT")
        return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


class _Publisher:
    """A token in a running source, with the state of its rate limit."""

    def __init__(self, config: HttpToken) -> None:
        self.identity = config.identity
        self.digest = sha256(config.token.encode()).digest()
        self._topics = [compile_filter(one) for one in config.topics]
        self._rate = config.rate
        self._left = float(config.rate)
        self._at = 0.0

    def may(self, topic: str) -> bool:
        """Return whether programs with this token may publish to the topic."""
        return not self._topics or any(one(topic) for one in self._topics)

    def wait_for(self, messages: int, now: float) -> float:
        """Count messages against the rate limit. Return 0 if they are within the limit, or else how many seconds to
        wait.
        """
        if not self._rate:
            return 0.0
        self._left = min(float(self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < min(messages, self._rate):
            return (min(messages, self._rate) - self._left) / self._rate
        self._left -= messages
        return 0.0


class _Refused(Exception):
    """Refuses a request with an HTTP status."""

    def __init__(self, status: int, text: str, field: str = "", **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.field = field
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HttpSource(Source):
    """Serves publish requests; see the module docstring."""

    Settings: ClassVar[type] = HttpSourceSettings
    settings: HttpSourceSettings

    def __init__(self, settings: HttpSourceSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        self._publishers = [_Publisher(one) for one in settings.tokens]
        self._runner: web.AppRunner | None = None
        self._queue: deque[Incoming] = deque()
        self._more = asyncio.Event()
        self._waiting: set[asyncio.Future[int]] = set()
        self._counts = {"requests": 0, "refused_requests": 0, "wrong_tokens": 0}
        self.port = 0
        """The port on which the source listens."""

    async def open(self) -> None:
        """Start listening."""
        from aiohttp import web

        settings = self.settings
        app = web.Application(client_max_size=settings.max_body)
        app.router.add_post("/publish", self._publish_one)
        app.router.add_post("/publish/bulk", self._publish_many)
        app.middlewares.append(self._middleware())
        host, port = settings.address
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        try:
            context = (
                None if settings.tls is None else await asyncio.to_thread(_context, settings.tls)
            )
            await self._runner.setup()
            site = web.TCPSite(self._runner, host, port, ssl_context=context)
            await site.start()
        except (OSError, ssl.SSLError) as error:
            raise SourceUnavailable(f"{settings.bind}: {error.strerror or error}") from error
        self.port = self._runner.addresses[0][1]

    def _middleware(self) -> Any:
        from aiohttp import web

        @web.middleware
        async def middleware(request: web.Request, handler: Any) -> web.StreamResponse:
            self._counts["requests"] += 1
            try:
                return await handler(request)  # type: ignore[no-any-return]
            except _Refused as error:
                found = error
            except BadRequest as error:
                found = _Refused(400, str(error), error.field)
            except web.HTTPRequestEntityTooLarge:
                found = _Refused(
                    413,
                    f"the body has more than {self.settings.max_body} bytes",
                    Connection="close",
                )
            except web.HTTPMethodNotAllowed as error:
                found = _Refused(
                    405, "expected POST", Allow=",".join(sorted(error.allowed_methods))
                )
            except web.HTTPNotFound:
                found = _Refused(404, "there are only /publish and /publish/bulk")
            self._counts["refused_requests"] += 1
            body = {"message": str(found)} | ({"field": found.field} if found.field else {})
            return web.json_response(body, status=found.status, headers=found.headers)

        return middleware

    # requests --------------------------------------------------------------------------------------------------------

    def _authenticate(self, request: "web.Request") -> _Publisher:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        digest = sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for one in self._publishers:
            if hmac.compare_digest(one.digest, digest):
                found = one
        if kind.lower() != "bearer" or found is None:
            self._counts["wrong_tokens"] += 1
            raise _Refused(
                401, "expected the header Authorization: Bearer TOKEN", WWW_Authenticate="Bearer"
            )
        return found

    async def _body(self, request: "web.Request") -> Any:
        if request.content_type != "application/json":
            raise _Refused(415, "expected the header Content-Type: application/json")
        return parse_json(await request.read())

    async def _publish_one(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        publisher = self._authenticate(request)
        message = parse_message(await self._body(request))
        (code,) = await self._publish(publisher, [message], [""])
        headers = {"Retry-After": "1"} if status_of(code) in (429, 503) else {}
        return web.json_response(_result(code), status=status_of(code), headers=headers)

    async def _publish_many(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        publisher = self._authenticate(request)
        found = await self._body(request)
        if not isinstance(found, list) or not found:
            raise BadRequest("expected a JSON array of messages")
        if len(found) > self.settings.max_batch:
            raise _Refused(
                413, f"{len(found)} messages, but at most {self.settings.max_batch} are allowed"
            )
        places = [f"{at}." for at in range(len(found))]
        messages = [parse_message(one, at) for one, at in zip(found, places, strict=True)]
        codes = await self._publish(publisher, messages, places)
        statuses = {status_of(one) for one in codes}
        if statuses <= {200, 202}:
            status = min(statuses)
        else:
            status = statuses.pop() if len(statuses) == 1 else 207
        return web.json_response([_result(one) for one in codes], status=status)

    async def _publish(
        self, publisher: _Publisher, messages: list[Incoming], places: Sequence[str]
    ) -> list[int]:
        for one, at in zip(messages, places, strict=True):
            if not publisher.may(one.topic):
                raise _Refused(403, "the token does not allow this topic", f"{at}topic")
        loop = asyncio.get_running_loop()
        delay = publisher.wait_for(len(messages), loop.time())
        if delay:
            raise _Refused(429, "too many messages", Retry_After=str(math.ceil(delay)))
        if len(self._waiting) + len(messages) > self.settings.max_waiting:
            raise _Refused(503, "too many messages wait to be published", Retry_After="1")
        futures: list[asyncio.Future[int]] = []
        for one in messages:
            one.identity = publisher.identity
            one.handle = future = loop.create_future()
            future.add_done_callback(self._waiting.discard)
            self._waiting.add(future)
            futures.append(future)
            self._queue.append(one)
        self._more.set()
        try:
            async with asyncio.timeout(self.settings.timeout):
                codes = list(await asyncio.shield(asyncio.gather(*futures)))
        except TimeoutError:
            codes = [_UNKNOWN]
        if _UNKNOWN in codes:
            raise _Refused(504, "no result in time; the messages may be published nevertheless")
        return codes

    # Source ----------------------------------------------------------------------------------------------------------

    async def read(self) -> Sequence[Incoming]:
        """Wait for requests. Return their messages."""
        if self._runner is None:
            raise SourceUnavailable("not open")
        while not self._queue:
            self._more.clear()
            await self._more.wait()
        return [self._queue.popleft() for _ in range(min(len(self._queue), _MOST))]

    async def acknowledge(self, messages: Sequence[Incoming], codes: Sequence[int]) -> None:
        """Complete the HTTP responses for these messages."""
        for one, code in zip(messages, codes, strict=True):
            if not one.handle.done():
                one.handle.set_result(code)

    async def close(self) -> None:
        """Refuse waiting requests, and stop listening. A message already returned by `read` may still be published."""
        while self._queue:
            future = self._queue.popleft().handle
            if not future.done():
                future.set_result(int(ReasonCode.SERVER_SHUTTING_DOWN))
        for one in list(self._waiting):
            if not one.done():
                one.set_result(_UNKNOWN)
        runner, self._runner = self._runner, None
        if runner is not None:
            with suppress(Exception):
                await runner.cleanup()

    def metrics(self) -> Mapping[str, float]:
        """Return how many requests arrived, were refused, or lacked a valid token."""
        return self._counts


def _result(code: int) -> dict[str, Any]:
    return {"reason_code": int(code), "message": ReasonCode(code).text}


def _context(tls: HttpTls) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        raise SourceUnavailable(
            f"{tls.cert_file} or {tls.key_file}: {error.strerror or error}", True
        ) from error
    return context
