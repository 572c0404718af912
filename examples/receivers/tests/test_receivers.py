"""Test the receivers with requests from a real broker over TCP, and with requests from senders that they must refuse."""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import aiomqtt
import httpx
import pytest
from aiohttp import ClientSession, web
from hookmq_webhook.envelope import Envelope, encode, request_id
from hookmq_webhook.queues import Numbered
from hookmq_webhook.samples import sample
from hookmq_webhook_receiver import new_secret
from hookmq_webhook_receiver.keys import key_of
from hookmq_webhook_receiver.signature import sign
from serving import serving

FOLDER = Path(__file__).parents[1]
SECRETS = [new_secret(), new_secret()]
WAIT = 60.0


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Front:
    """A receiver on a loopback port. A test can wait until the receiver has responded to a request."""

    def __init__(self) -> None:
        self.url = ""
        self.answered = asyncio.Condition()

    async def until(self, good: Callable[[], Any]) -> Any:
        async with asyncio.timeout(WAIT), self.answered:
            while True:
                found = await good()
                if found:
                    return found
                await self.answered.wait()

    async def tell(self) -> None:
        async with self.answered:
            self.answered.notify_all()


async def aiohttp_application(front: Front, path: Path) -> web.Application:
    application: web.Application = load("aiohttp_receiver").make(
        SECRETS, str(path / "events.sqlite")
    )

    async def finished(request: web.Request, response: web.StreamResponse) -> None:
        if request.path == "/hook":
            await front.tell()

    application.on_response_prepare.append(finished)
    return application


async def fastapi_application(front: Front, path: Path) -> web.Application:
    """Return an aiohttp application that passes its requests on to FastAPI."""
    inner = httpx.AsyncClient(
        transport=httpx.ASGITransport(load("fastapi_receiver").make(SECRETS)), base_url="http://inner"
    )  # fmt: skip

    async def forward(request: web.Request) -> web.Response:
        headers = [(key, value) for key, value in request.headers.items() if key != "Host"]
        answer = await inner.request(
            request.method, request.path, headers=headers, content=await request.read()
        )
        if request.path == "/hook":
            await front.tell()
        kind = answer.headers.get("content-type")
        return web.Response(
            status=answer.status_code, body=answer.content, headers={"Content-Type": kind} if kind else {}
        )  # fmt: skip

    application = web.Application(client_max_size=16 << 20, handler_args={"auto_decompress": False})
    application.router.add_route("*", "/{tail:.*}", forward)

    async def close(_: web.Application) -> None:
        await inner.aclose()

    application.on_cleanup.append(close)
    return application


@pytest.fixture(params=["aiohttp", "fastapi"])
async def front(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Front]:
    made = Front()
    makes = {"aiohttp": aiohttp_application, "fastapi": fastapi_application}
    application = await makes[request.param](made, tmp_path)
    runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def missing(front: Front) -> tuple[int, int]:
    """Return how many events were received and how many are missing. The first number is -1 for the aiohttp receiver,
    which does not report it.
    """
    async with ClientSession() as session:
        async with session.get(f"{front.url}/gaps") as response:
            if response.status == 200:
                return -1, sum((await response.json()).values())
        async with session.get(f"{front.url}/counts") as response:
            told = await response.json()
            return sum(told["counts"].values()), told["missing"]


def request(number: int, *secrets: str, age: int = 0) -> tuple[dict[str, str], bytes]:
    events = [Numbered(number, sample("message.published"), 0)]
    headers, body = encode(Envelope("urn:x", "e"), events)
    keys = [key_of(one) for one in secrets]
    headers |= sign(request_id("e", events), int(time.time()) - age, body, keys)
    return headers, body


async def test_who_is_believed(front: Front) -> None:
    async with ClientSession() as session:

        async def post(headers: dict[str, str], body: bytes) -> int:
            async with session.post(f"{front.url}/hook", headers=headers, data=body) as response:
                return response.status

        headers, body = request(0, SECRETS[0])
        assert await post(headers, body) == 204
        assert await post(headers, body) == 204  # again
        assert await missing(front) in ((-1, 0), (1, 0))
        assert await post(*request(3, SECRETS[1])) == 204
        assert await missing(front) in ((-1, 2), (2, 2))
        assert await post(*request(1, new_secret(), SECRETS[1])) == 204
        assert await missing(front) in ((-1, 1), (3, 1))
        assert await post(*request(2, new_secret())) == 401
        assert await post(*request(2, SECRETS[0], age=1000)) == 401
        assert await post({"Content-Type": "application/json"}, body) == 401
        headers, body = request(2, SECRETS[0])
        assert await post(headers, body.replace(b"4.2", b"4.3")) == 401
        other = b'{"no": "event"}'
        signed = sign("x", int(time.time()), other, [key_of(SECRETS[0])])
        assert await post({**signed, "Content-Type": "application/json"}, other) == 400
        assert await missing(front) in ((-1, 1), (3, 1))


def test_fastapi_is_served_by_uvicorn() -> None:
    """The command in the example's docstring serves the FastAPI receiver."""
    command = "-m uvicorn --factory fastapi_receiver:from_environment --port 0 --no-use-colors"
    with subprocess.Popen(
        [sys.executable, *command.split()],
        cwd=FOLDER,
        env={**os.environ, "HOOK_SECRETS": " ".join(SECRETS)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        try:
            url = next(found[0] for line in lines if (found := re.search(r"http://[\d.:]+", line)))
            for secret, status in ((SECRETS[1], 204), (new_secret(), 401)):
                headers, body = request(0, secret)
                assert (
                    httpx.post(f"{url}/hook", headers=headers, content=body).status_code == status
                )
            assert httpx.get(f"{url}/counts").json()["counts"] == {"hookmq.message.published": 1}
        finally:
            process.terminate()


@pytest.mark.parametrize("gzip", [0, 1])
@pytest.mark.parametrize("envelope", ["structured", "batch"])
@pytest.mark.slow
async def test_a_broker_tells(front: Front, tmp_path: Path, envelope: str, gzip: int) -> None:
    settings = {
        "url": f"{front.url}/hook",
        "events": ["message.published", "client.*"],
        "mode": "best_effort",
        "envelope": envelope,
        "gzip": gzip,
        "batch": {"count": 5 if envelope == "batch" else 1},
        "sign": {"secret": SECRETS[1], "previous_secret": new_secret()},
    }
    path = tmp_path / "hookmq.yaml"
    plugins = [{"use": "webhook", "config": settings}]
    listeners = [{"name": "tcp", "bind": "127.0.0.1:0"}]
    open_to_all = {"auth": {"default": "allow"}, "authz": {"default": "allow"}}
    path.write_text(
        json.dumps({"version": 1, "listeners": listeners, "plugins": plugins, **open_to_all})
    )
    with contextlib.ExitStack() as stack:
        served = await asyncio.to_thread(stack.enter_context, serving("-c", str(path)))
        async with aiomqtt.Client("127.0.0.1", served.ports["tcp"], identifier="c") as client:
            for number in range(20):
                await client.publish("a/b", str(number), 1)
        # The broker delivers waiting events before it stops.
        assert await asyncio.to_thread(served.stop) == 0
    count, gaps = await missing(front)
    assert gaps == 0
    if count < 0:
        import sqlite3

        with contextlib.closing(sqlite3.connect(tmp_path / "events.sqlite")) as database:
            [count] = database.execute("SELECT count(*) FROM seen").fetchone()
            assert database.execute("SELECT * FROM latest").fetchall() == [("a/b", "19")]
    assert count == 22
