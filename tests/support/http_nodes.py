"""A server with an HTTP listener, and a plugin with several kinds of routes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq.server.server import Server
from hookmq.server.settings import HttpSettings, ListenerSettings

OPEN = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))
Begin = Callable[..., Awaitable[Server]]
Ask = Callable[..., Awaitable[Any]]


def http(name: str = "http", **options: Any) -> ListenerSettings:
    section = HttpSettings(**options.pop("http", {}))
    defaults: dict[str, Any] = {"bind": "127.0.0.1:0", "close_timeout": 2.0, "type": "http"}
    return ListenerSettings(name=name, http=section, **defaults | options)


class Pages(Plugin):
    """A plugin whose routes cover all kinds of handlers."""

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.never = asyncio.Event()
        self.more = asyncio.Event()
        self.left = asyncio.Event()

    @hookimpl
    def register_http(self, router: Any) -> None:
        router.add("GET", "/hello/{name}", self.hello)
        router.add("POST", "/echo", self.echo)
        router.add("*", "/any", self.any)
        router.add("GET", "/slow", self.slow)
        router.add("GET", "/endless", self.endless)
        router.add("GET", "/fails", self.fails)
        router.add("GET", "/nothing", self.nothing)
        router.add("GET", "/moved", self.moved)
        router.add("GET", "/own/{name}", self.hello, authenticates=True)
        router.add("GET", "/address", self.address)
        router.add("GET", "/stream", self.stream, streams=True)

    @hookimpl
    def register_metrics(self, registry: Any) -> None:
        registry.counter("pages_total", "Pages shown.", lambda: 7)

    async def hello(self, request: web.BaseRequest, name: str) -> web.Response:
        return web.json_response({"hello": name, "id": self.id})

    async def echo(self, request: web.BaseRequest) -> web.Response:
        return web.Response(body=await request.read())

    async def address(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text=request.remote)

    async def stream(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send a line, wait for `more`, send another line, and wait until the client disconnects."""
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await self.more.wait()
        await response.write(b"two\n")
        try:
            await self.never.wait()
        finally:
            self.left.set()
        return response

    async def any(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text=request.method)

    async def slow(self, request: web.BaseRequest) -> web.Response:
        await self.never.wait()
        return web.Response()

    async def endless(self, request: web.BaseRequest) -> web.Response:
        return web.Response(body=bytes(64 << 20))

    async def fails(self, request: web.BaseRequest) -> web.Response:
        raise TimeoutError("secret of the plugin")

    async def nothing(self, request: web.BaseRequest) -> Any:
        return None

    async def moved(self, request: web.BaseRequest) -> web.Response:
        raise web.HTTPFound("/elsewhere")
