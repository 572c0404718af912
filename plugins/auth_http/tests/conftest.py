"""Run a real HTTP service on the loopback address, and plugins that query it. Tests choose the service's responses."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hookmq_auth_http.plugin import AuthHttpPlugin
from hookmq_testing import load_plugins

LISTENER = {"name": "tcp", "bind": "127.0.0.1:0"}
Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Service:
    """A service that returns `answers` in order, and then keeps repeating the last one. Each answer is (status, body)
    or a coroutine function.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, str, Any, dict[str, str]]] = []
        self.answers: list[tuple[int, bytes | dict[str, Any]] | Respond] = [
            (200, {"result": "allow"})
        ]
        self.cancelled = asyncio.Event()
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    def answer(self, *answers: tuple[int, bytes | dict[str, Any]] | Respond) -> None:
        self.answers = list(answers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        sent: Any = text
        if request.content_type == "application/json":
            sent = json.loads(text)
        elif request.content_type == "application/x-www-form-urlencoded":
            sent = dict(await request.post())
        self.requests.append((request.method, request.path_qs, sent, dict(request.headers)))
        self.asked.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            return await answer(request)
        status, body = answer
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        return web.Response(status=status, body=data, content_type="application/json")

    async def never(self, request: web.Request) -> web.StreamResponse:
        """Respond once `released` is set. Record the clients that disconnect before then."""
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return web.json_response({"result": "allow"})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", made.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    made.released.set()
    await runner.cleanup()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[AuthHttpPlugin]]]:
    """Return a function that creates and starts a plugin. Its clock is `plugin.clock[0]`."""
    plugins: list[AuthHttpPlugin] = []

    async def make(**config: Any) -> AuthHttpPlugin:
        settings = {"retry_delay": 0, **config}
        entry = {"use": "auth_http", "id": "http", "config": settings}
        path = tmp_path / "hookmq.yaml"
        path.write_text(json.dumps({"version": 1, "listeners": [LISTENER], "plugins": [entry]}))
        plugin = load_plugins(path)[0].plugin
        assert isinstance(plugin, AuthHttpPlugin)
        clock = [100.0]
        plugin.clock = clock  # type: ignore[attr-defined]
        await plugin.start(lambda: clock[0])
        plugins.append(plugin)
        return plugin

    yield make
    for plugin in plugins:
        await plugin.on_shutdown()
