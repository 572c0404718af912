"""A real HTTP service on the loopback address, whose responses the tests choose."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Receiver:
    """A service that returns `answers` in order and repeats the last one. Each answer is a status or a coroutine
    function.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        """Method, path with query, headers, and the body, decompressed."""
        self.answers: list[int | Respond] = [200]
        self.changed = asyncio.Condition()
        self.released = asyncio.Event()
        self.port = 0
        self._runner: web.AppRunner | None = None

    def answer(self, *answers: int | Respond) -> None:
        self.answers = list(answers)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return the events of all requests in order, whether or not they were answered."""
        found: list[dict[str, Any]] = []
        for *_, body in self.requests:
            one = json.loads(body)
            found += one if isinstance(one, list) else [one]
        return found

    async def wait(self, until: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until `until()` is true. It is checked after each request and each response."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(until)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.method, request.path_qs, headers, body))
        async with self.changed:
            self.changed.notify_all()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        try:
            return await answer(request) if callable(answer) else web.Response(status=answer)
        finally:
            async with self.changed:  # the response itself may have caused the awaited change
                self.changed.notify_all()

    async def never(self, request: web.Request) -> web.StreamResponse:
        """Respond only after `released` is set."""
        await self.released.wait()
        return web.Response()

    async def start(self, port: int = 0, **options: Any) -> None:
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{tail:.*}", self.handle)
        self._runner = web.AppRunner(
            application, shutdown_timeout=0.1, handler_cancellation=True, access_log=None
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True, **options)
        await site.start()
        self.port = self._runner.addresses[0][1]
        scheme = "https" if "ssl_context" in options else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    await made.start()
    yield made
    made.released.set()
    await made.stop()
