"""HTTP listeners, built on aiohttp: health, metrics, and routes added by plugins."""

import asyncio
import hmac
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, cast
from urllib.parse import quote

from aiohttp import web

from hookmq.hooks.metric_registry import OPENMETRICS, TEXT, MetricRegistry
from hookmq.model.errors import PluginError
from hookmq.server.addresses import forwarded_for, host_of, is_loopback, parse_networks
from hookmq.server.connection_limit import ListenerConnections, Log
from hookmq.server.settings import ListenerSettings
from hookmq.server.websocket import HttpConnection, WebServer

ServerPhase = Literal["starting", "ready", "draining", "stopping", "failed"]
"""The server's phase, as ``/readyz`` reports it."""
RouteHandler = Callable[..., Awaitable[web.StreamResponse]]
HEALTH: Final = ("/healthz", "/readyz")
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="hookmq"'}
SAFE: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of the listener's own error responses. They stop browsers from storing the response or embedding it in a
page."""


SLICE: Final = 0.002
"""How long reading metrics may block the event loop, in seconds, unless a single metric takes longer."""


def _check_method(request: web.BaseRequest) -> None:
    if request.method not in ("GET", "HEAD"):
        raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])


class PluginRoute(NamedTuple):
    """A route that a plugin added; see `PluginRouter.add`."""

    plugin: str
    authenticates: bool
    streams: bool


class HttpRoutes:
    """The HTTP routes of all plugins. The routes of a plugin are below ``/plugins/ID``."""

    def __init__(self) -> None:
        self._dispatcher = web.UrlDispatcher()
        self._routes: dict[Any, PluginRoute] = {}

    def of(self, plugin: str) -> "PluginRouter":
        """Return the router for the plugin with the id `plugin`."""
        return PluginRouter(self, plugin)

    def add(self, route: PluginRoute, method: str, path: str, handler: RouteHandler) -> None:
        """Add a route; see `PluginRouter.add`."""
        plugin = route.plugin
        if not path.startswith("/") or any(part in (".", "..") for part in path.split("/")):
            raise PluginError(
                plugin, f"invalid path {path!r}: it must start with /, without . or .."
            )
        if not inspect.iscoroutinefunction(handler):
            raise PluginError(plugin, f"the handler of {path} is not an async def")
        whole = f"/plugins/{quote(plugin, safe='')}{path}"
        try:
            added = self._dispatcher.add_route(method, whole, cast("Any", handler))
        except (ValueError, RuntimeError) as error:
            raise PluginError(plugin, f"the route {method} {path}: {error}") from error
        self._routes[added] = route

    async def resolve(
        self, request: web.BaseRequest
    ) -> tuple[PluginRoute, RouteHandler, Mapping[str, str]]:
        """Return the route, its handler and the path's named parts. Raises HTTPNotFound or HTTPMethodNotAllowed."""
        match = await self._dispatcher.resolve(cast("web.Request", request))
        if match.http_exception is not None:
            raise match.http_exception
        return self._routes[match.route], cast("Any", match.handler), dict(match)

    async def authenticates(self, request: web.BaseRequest) -> bool:
        """Return whether a plugin authenticates this request itself."""
        match = await self._dispatcher.resolve(cast("web.Request", request))
        return match.http_exception is None and self._routes[match.route].authenticates


class PluginRouter:
    """Adds HTTP routes for one plugin; the argument of `register_http`."""

    __slots__ = ("_plugin", "_router")

    def __init__(self, router: HttpRoutes, plugin: str) -> None:
        self._router = router
        self._plugin = plugin

    def add(
        self,
        method: str,
        path: str,
        handler: RouteHandler,
        *,
        authenticates: bool = False,
        streams: bool = False,
    ) -> None:
        """Handle requests for ``/plugins/ID`` + `path` with ``await handler(request, **parts)``, using aiohttp's types.

        `path` may contain ``{name}`` parts, and `method` may be ``*``. The body is read before the handler is called
        (``await request.read()`` or ``.json()``), and has at most ``http.max_body`` bytes. The request must be completed
        within ``http.timeout``. Raises PluginError if the path is invalid or taken.

        With `authenticates`, ``http.token`` is not required: the handler must authenticate each request itself. With
        `streams`, ``http.timeout`` ends when the handler is called, and the handler is cancelled if the client
        disconnects. The handler must then limit how long it waits for a client that does not read.
        """
        route = PluginRoute(self._plugin, authenticates, streams)
        self._router.add(route, method, path, handler)


class HttpSite:
    """The content that all HTTP listeners serve. A reload replaces `metrics` and `router`; health
    requests call `state`.
    """

    __slots__ = ("metrics", "router", "state")

    def __init__(self, state: Callable[[], str] = lambda: "ready") -> None:
        self.metrics = MetricRegistry()
        self.router = HttpRoutes()
        self.state = state


class HttpServer(WebServer):
    """The HTTP side of an http or https listener."""

    max_line = 320_000
    """Long enough for a path with any client id, or a query with any filter and a cursor. Each may have 65,535 bytes,
    or three times that when quoted."""

    def __init__(
        self, gate: ListenerConnections, settings: ListenerSettings, site: HttpSite, log: Log
    ) -> None:
        super().__init__(gate, settings, web.Server(self._handle, request_factory=self._request))
        self._site = site
        self._log = log

    def apply(self, settings: ListenerSettings) -> None:
        """Apply the settings that can change while the listener is open."""
        super().apply(settings)
        self._options = settings.http
        self._name = settings.name
        self._trusted = parse_networks(settings.trusted_proxies)

    def _request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        limit = self._options.max_body
        source = protocol.source
        name = protocol.transport.get_extra_info("peername") if protocol.transport else None
        host = source.host if source is not None else name[0] if isinstance(name, tuple) else ""
        # The headers of a message that aiohttp could not parse are an empty dict.
        proxies = message.headers.getall("X-Forwarded-For", ()) if message.headers else ()
        return web.BaseRequest(
            message, payload, protocol, writer, task, self._gate.loop, client_max_size=limit,
            remote=forwarded_for(host, proxies, self._trusted),
        )  # fmt: skip

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            async with asyncio.timeout(self._options.timeout) as limit:
                response = await self._answer(request, limit)
                # Send within the timeout, so that a client that does not read is limited too.
                await response.prepare(request)
                await response.write_eof()
                return response
        except TimeoutError:
            if (response is not None and response.prepared) or request.transport is None:
                cast("HttpConnection", request.protocol).abort()
                return response or web.Response(status=503)
            late = web.Response(status=503, headers=SAFE, text="timed out\n")
            late.force_close()
            return late

    async def _answer(self, request: web.BaseRequest, limit: asyncio.Timeout) -> web.StreamResponse:
        try:
            refusal = await self._refusal(request)
            if refusal is not None:
                refusal.force_close()  # the rest of the body is not read
                return refusal
            if request.path not in HEALTH and self._site.state() == "starting":
                return web.Response(status=503, headers=SAFE, text="starting\n")
            if request.path in HEALTH:
                return self._health(request)
            if request.path == "/metrics":
                return await self._metrics(request)
            return await self._plugin(request, limit)
        except web.HTTPException as error:
            headers = {n: v for n, v in error.headers.items() if not n.startswith("Content-")}
            answer = web.Response(status=error.status, text=error.text, headers={**SAFE, **headers})
            if error.status == 413:
                answer.force_close()  # the rest of the body is not read
            return answer

    async def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Return the error response for a forbidden request, or None if the request is allowed."""
        options = self._options
        if options.token:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            right = hmac.compare_digest(
                given.strip().encode("utf-8", "surrogateescape"), options.token.encode()
            )
            if (scheme.lower() == "bearer" and right) or (
                options.public_health and request.path in HEALTH
            ):
                return None
            if await self._site.router.authenticates(request):
                return None
            return web.Response(
                status=401, headers={**SAFE, **CHALLENGE}, text="a token is required\n"
            )
        # Without a token, refuse web pages in a browser on this machine: pages whose own domain name resolves to this
        # address (Host), and pages that submit a form to it (Origin).
        if self._local and not options.insecure:
            hosts = request.headers.getall("Host", [])
            hosts += [o.partition("://")[2] for o in request.headers.getall("Origin", [])]
            if not all(is_loopback(host_of(host.lower())) for host in hosts):
                return web.Response(status=403, headers=SAFE, text="not from this machine\n")
        return None

    def _health(self, request: web.BaseRequest) -> web.Response:
        _check_method(request)
        state = self._site.state()
        if request.path == "/healthz":
            good = state != "failed"
            return web.Response(status=200 if good else 503, text="ok\n" if good else "failed\n")
        return web.Response(status=200 if state == "ready" else 503, text=f"{state}\n")

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        """Return the metrics. There may be so many of them that the loop serves clients in between."""
        _check_method(request)
        openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
        now = self._gate.loop.time
        parts: list[str] = []
        until = now() + SLICE
        for part in self._site.metrics.parts(openmetrics):
            parts.append(part)
            if now() >= until:
                await asyncio.sleep(0)
                until = now() + SLICE
        kind = OPENMETRICS if openmetrics else TEXT
        return web.Response(body="".join(parts).encode(), headers={"Content-Type": kind})

    async def _plugin(self, request: web.BaseRequest, limit: asyncio.Timeout) -> web.StreamResponse:
        route, handler, parts = await self._site.router.resolve(request)
        length = request.content_length or 0
        if length > self._options.max_body:
            raise web.HTTPRequestEntityTooLarge(self._options.max_body, length)
        try:
            await request.read()
        except web.RequestPayloadError:
            raise web.HTTPBadRequest from None
        connection = cast("HttpConnection", request.protocol)
        try:
            if route.streams:
                limit.reschedule(None)
                connection.stream = asyncio.current_task()
            response = await handler(request, **parts)
            if not isinstance(response, web.StreamResponse):
                raise TypeError(f"{response!r} is not a response")
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:
            self._log(
                "error", "http.plugin_failed", listener=self._name, plugin=route.plugin,
                method=request.method, path=request.path, error=repr(error), traceback=error,
            )  # fmt: skip
            return web.Response(status=500, headers=SAFE, text="the plugin failed\n")
        finally:
            if route.streams:
                connection.stream = None
                limit.reschedule(self._gate.loop.time() + self._options.timeout)
        return response
