"""The HTTP side of a node: health, metrics, and the routes of plugins. aiohttp speaks HTTP."""

import asyncio
import hmac
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, cast
from urllib.parse import quote

from aiohttp import web

from hookmq.errors import PluginError
from hookmq.metric_registry import OPENMETRICS, TEXT, MetricRegistry
from hookmq.server.addresses import bound_to_loopback, host_of, is_loopback
from hookmq.server.gate import Gate, Log
from hookmq.server.settings import ListenerSettings
from hookmq.server.websocket import HTTP_LIMITS, Handler
from hookmq.types import Peer

State = Literal["starting", "ready", "stopping", "failed"]
"""What a node is doing."""
RouteHandler = Callable[..., Awaitable[web.StreamResponse]]
HEALTH: Final = ("/healthz", "/readyz")
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="hookmq"'}


class Router:
    """The routes that plugins added, each below ``/plugins/ID``."""

    def __init__(self) -> None:
        self._dispatcher = web.UrlDispatcher()
        self._plugins: dict[Any, str] = {}

    def of(self, plugin: str) -> "PluginRouter":
        """The router as the plugin of that id gets it."""
        return PluginRouter(self, plugin)

    def add(self, plugin: str, method: str, path: str, handler: RouteHandler) -> None:
        """As `PluginRouter.add`."""
        if not path.startswith("/") or any(part in (".", "..") for part in path.split("/")):
            raise PluginError(plugin, f"the path {path!r} of a route begins with / and goes down")
        if not inspect.iscoroutinefunction(handler):
            raise PluginError(plugin, f"what handles {path} is no async def")
        whole = f"/plugins/{quote(plugin, safe='')}{path}"
        try:
            route = self._dispatcher.add_route(method, whole, cast("Any", handler))
        except (ValueError, RuntimeError) as error:
            raise PluginError(plugin, f"the route {method} {path}: {error}") from error
        self._plugins[route] = plugin

    async def resolve(
        self, request: web.BaseRequest
    ) -> tuple[str, RouteHandler, Mapping[str, str]]:
        """The plugin, the handler and the named parts of the path; raises HTTPNotFound or HTTPMethodNotAllowed."""
        match = await self._dispatcher.resolve(cast("web.Request", request))
        if match.http_exception is not None:
            raise match.http_exception
        return self._plugins[match.route], cast("Any", match.handler), dict(match)


class PluginRouter:
    """What `register_http` gets."""

    __slots__ = ("_plugin", "_router")

    def __init__(self, router: Router, plugin: str) -> None:
        self._router = router
        self._plugin = plugin

    def add(self, method: str, path: str, handler: RouteHandler) -> None:
        """Have ``/plugins/ID`` + `path` answered by ``await handler(request, **parts)``, with aiohttp's request and
        response (``aiohttp.web.BaseRequest``, ``StreamResponse``). `path` may hold ``{name}`` parts, `method` may be
        ``*``. The body was read when the handler is called (``await request.read()`` or ``.json()``), and was no longer
        than ``http.max_body``; all of it must be answered within ``http.timeout``. Raises PluginError for a path that
        cannot be, or that is taken."""
        self._router.add(self._plugin, method, path, handler)


class Site:
    """What the http listeners of one node show; a reload replaces `metrics` and `router`. `state` is asked at every
    request about health."""

    __slots__ = ("metrics", "router", "state")

    def __init__(self, state: Callable[[], State] = lambda: "ready") -> None:
        self.metrics = MetricRegistry()
        self.router = Router()
        self.state = state


class HttpServer:
    """One http or https listener's side of HTTP."""

    def __init__(self, gate: Gate, settings: ListenerSettings, site: Site, log: Log) -> None:
        self._gate = gate
        self._site = site
        self._log = log
        self._server = web.Server(self._handle, request_factory=self._request)
        self.apply(settings)

    def apply(self, settings: ListenerSettings) -> None:
        """Take over what may change while connections are open."""
        self._options = settings.http
        self._name = settings.name
        self._close_timeout = settings.close_timeout
        self._timeout = settings.connect_timeout
        self._local = bound_to_loopback(settings.bind)

    def make(self, source: Peer | None = None) -> asyncio.BaseProtocol:
        """The protocol of one connection; `source` is the peer as a PROXY header named it."""
        # The timeout of a kept-alive connection is also that of a request's head.
        return Handler(
            self._gate,
            source,
            self._server,
            loop=self._gate.loop,
            keepalive_timeout=self._timeout,
            **HTTP_LIMITS,
        )

    async def close(self) -> None:
        """End every request; connections have been closed before."""
        await self._server.shutdown(self._close_timeout)

    def _request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        limit = self._options.max_body
        return web.BaseRequest(
            message, payload, protocol, writer, task, self._gate.loop, client_max_size=limit
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            async with asyncio.timeout(self._options.timeout):
                response = await self._answer(request)
                # Sent in here, so that a client that does not read is timed as well.
                await response.prepare(request)
                await response.write_eof()
                return response
        except TimeoutError:
            if (response is not None and response.prepared) or request.transport is None:
                cast("Handler", request.protocol).abort()
                return response or web.Response(status=503)
            late = web.Response(status=503, text="it took too long\n")
            late.force_close()
            return late

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            refusal = self._refusal(request)
            if refusal is not None:
                refusal.force_close()  # what follows of its body is not read
                return refusal
            if request.path not in HEALTH and self._site.state() == "starting":
                return web.Response(status=503, text="starting\n")
            if request.path in ("/metrics", *HEALTH):
                return self._own(request)
            return await self._plugin(request)
        except web.HTTPException as error:
            headers = {n: v for n, v in error.headers.items() if not n.startswith("Content-")}
            answer = web.Response(status=error.status, text=error.text, headers=headers)
            if error.status == 413:
                answer.force_close()  # the rest of the body is not read
            return answer

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Who may not ask."""
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
            return web.Response(status=401, headers=CHALLENGE, text="a token is needed\n")
        # Without a token a page in this machine's browser must not get in, neither by its own name for this address
        # (Host) nor by a form that it sends here (Origin).
        if self._local and not options.insecure:
            hosts = request.headers.getall("Host", [])
            hosts += [o.partition("://")[2] for o in request.headers.getall("Origin", [])]
            if not all(is_loopback(host_of(host.lower())) for host in hosts):
                return web.Response(status=403, text="not from this machine\n")
        return None

    def _own(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
        state = self._site.state()
        if request.path == "/healthz":
            good = state != "failed"
            return web.Response(status=200 if good else 503, text="ok\n" if good else "failed\n")
        if request.path == "/readyz":
            return web.Response(status=200 if state == "ready" else 503, text=f"{state}\n")
        openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
        text = self._site.metrics.text(openmetrics)
        kind = OPENMETRICS if openmetrics else TEXT
        return web.Response(body=text.encode(), headers={"Content-Type": kind})

    async def _plugin(self, request: web.BaseRequest) -> web.StreamResponse:
        plugin, handler, parts = await self._site.router.resolve(request)
        length = request.content_length or 0
        if length > self._options.max_body:
            raise web.HTTPRequestEntityTooLarge(self._options.max_body, length)
        try:
            await request.read()
        except web.RequestPayloadError:
            raise web.HTTPBadRequest from None
        try:
            response = await handler(request, **parts)
            if not isinstance(response, web.StreamResponse):
                raise TypeError(f"{response!r} is no response")
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:
            self._log(
                "error", "http.plugin_failed", listener=self._name, plugin=plugin,
                method=request.method, path=request.path, error=repr(error), traceback=error,
            )  # fmt: skip
            return web.Response(status=500, text="the plugin failed\n")
        return response
