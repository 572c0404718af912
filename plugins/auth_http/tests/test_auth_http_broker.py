"""Test the plugin in a broker process with real clients and a real service. Also test the plugin contract."""

import asyncio
import contextlib
import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from hookmq_auth_http.plugin import AuthHttpPlugin
from hookmq_testing import AsyncioClient, run_command
from serving import Served, serving

OTHERS = 1000
ACCEPTED = b"\x20\x02\x00\x00"


def test_it_is_installed() -> None:
    # The rest of the contract of plugins is about an in-memory broker, which has no event loop to make requests on.
    [entry] = entry_points(group="hookmq.plugins", name="auth_http")
    assert entry.load() is AuthHttpPlugin


def config(tmp_path: Path, *plugins: dict[str, Any]) -> str:
    path = tmp_path / "hookmq.yaml"
    listeners = [{"name": "tcp", "bind": "127.0.0.1:0"}]
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "listeners": listeners,
                "plugins": list(plugins),
                "log": {"level": "debug"},
            }
        )
    )
    return str(path)


async def refused(port: int, code: int, **options: Any) -> None:
    with pytest.raises(aiomqtt.MqttCodeError) as raised:
        async with aiomqtt.Client("127.0.0.1", port, **options):
            pass
    assert code_of(raised.value.rc) == code


def code_of(code: Any) -> int:
    return int(getattr(code, "value", code))


class Running:
    """An async context manager that runs `serving` in a thread, so that the event loop can answer the broker's
    requests.
    """

    def __init__(self, *arguments: str) -> None:
        self._stack = contextlib.ExitStack()
        self._arguments = arguments

    async def __aenter__(self) -> Served:
        return await asyncio.to_thread(self._stack.enter_context, serving(*self._arguments))

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._stack.__exit__, *error)


async def test_a_broker_that_asks(service: Any, tmp_path: Path) -> None:
    async def answer(request: Any) -> Any:
        from aiohttp import web

        asked = await request.json()
        if request.path == "/in":
            if asked["password"] != "right horse":
                return web.json_response({"result": "deny", "code": 0x86})
            allowed: dict[str, Any] = {"result": "allow", "cache": 0}
            if asked["username"] == "listed":
                allowed["permissions"] = {"publish": ["%c/#"], "subscribe": ["%c/#"]}
            return web.json_response(allowed)
        good = asked["topic"].startswith("open/")
        return web.json_response({"result": "allow" if good else "deny", "cache": 60})

    service.answer(answer)
    plugin = {
        "use": "auth_http",
        "config": {
            "authenticate": {"url": service.url + "/in"},
            "authorize": {"url": service.url + "/may"},
        },
    }
    known: dict[str, Any] = {"username": "ann", "password": "right horse"}
    async with Running("-c", config(tmp_path, plugin)) as served:
        port = served.ports["tcp"]
        v5: dict[str, Any] = {"protocol": aiomqtt.ProtocolVersion.V5}
        await refused(port, 0x86, username="ann", password="battery staple", **v5)
        await refused(port, 0x86, username="ann", password="battery staple")
        async with aiomqtt.Client("127.0.0.1", port, identifier="a", **known, **v5) as one:
            assert [code_of(c) for c in await one.subscribe("open/#", 1)] == [1]
            assert [code_of(c) for c in await one.subscribe("shut/#", 1)] == [0x87]
            assert [code_of(c) for c in await one.subscribe("$share/g/open/+", 1)] == [1]
            for number in range(3):
                await one.publish("open/x", str(number), 1)
            asked = [r for r in service.requests if r[1] == "/may" and r[2]["action"] == "publish"]
            assert len(asked) == 1  # the rest was remembered
            async with asyncio.timeout(60):
                message = await anext(one.messages)
            assert (str(message.topic), message.payload) == ("open/x", b"0")
        service.requests.clear()
        listed = {**known, "username": "listed"}
        async with aiomqtt.Client("127.0.0.1", port, identifier="me", **listed, **v5) as two:
            assert [code_of(c) for c in await two.subscribe([("me/#", 1), ("#", 1)])] == [1, 0x87]
        assert [path for _, path, *_ in service.requests] == ["/in"]
        text = json.dumps(served.log)
    assert "right horse" not in text
    assert "battery staple" not in text


async def test_a_slow_service_keeps_only_who_waits_for_it(service: Any, tmp_path: Path) -> None:
    async def answer(request: Any) -> Any:
        from aiohttp import web

        if (await request.json())["clientid"] == "slow":
            return await service.never(request)
        return web.json_response({"result": "allow"})

    service.answer(answer)
    plugin = {
        "use": "auth_http",
        "config": {"authenticate": {"url": service.url}, "timeout": "60s"},
    }
    async with Running("-c", config(tmp_path, plugin), "-o", "authz.default=allow") as served:
        port = served.ports["tcp"]

        async def connected(name: str) -> AsyncioClient:
            client = AsyncioClient(name, 4, username="u", password=b"p")
            return await client.connect(port)

        slow = asyncio.create_task(connected("slow"))
        await service.asked.wait()
        gate = asyncio.Semaphore(100)

        async def other(number: int) -> None:
            async with gate:
                client = await connected(f"c{number}")
                await client.ping()
                client.disconnect()
                await client.wait_closed()

        await asyncio.gather(*(other(number) for number in range(OTHERS)))
        assert not slow.done()
        service.released.set()
        client = await slow
        client.disconnect()
        await client.wait_closed()


async def test_a_dead_service_refuses_and_says_where(tmp_path: Path) -> None:
    plugin = {
        "use": "auth_http",
        "config": {"authenticate": {"url": "http://127.0.0.1:1/in"}, "retries": 0},
    }
    path = config(tmp_path, plugin)
    with contextlib.suppress(AssertionError):  # the broker logs an error, as it must
        async with Running("-c", path) as served:
            await refused(served.ports["tcp"], 0x88, username="ann", password="secret-word")
            await refused(
                served.ports["tcp"], 0x88, username="ann", password="secret-word",
                protocol=aiomqtt.ProtocolVersion.V5,
            )  # fmt: skip
    failures = [entry for entry in served.log if entry["level"] == "error"]
    assert failures
    assert all("http://127.0.0.1:1/in: connection refused" in str(entry) for entry in failures)
    assert "secret-word" not in json.dumps(served.log)


async def test_the_service_of_the_readme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from aiohttp import web

    readme = (Path(__file__).parents[1] / "README.md").read_text()
    shown: dict[str, Any] = {"__name__": "shown"}
    exec(readme.split("```python\n")[1].split("```")[0], shown)
    runner = web.AppRunner(shown["application"](), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    endpoints = {
        "authenticate": {"url": f"{url}/connect"},
        "authorize": {"url": f"{url}/authorize"},
    }
    path = config(tmp_path, {"use": "auth_http", "config": endpoints})
    password = tmp_path / "password"

    def tried(word: str, *arguments: str) -> tuple[int, list[str]]:
        password.write_text(f"{word}\n")
        command = [
            "auth-http",
            "try",
            "-c",
            path,
            "--username",
            "ann",
            "--password-file",
            str(password),
        ]
        return run_command([*command, *arguments]), capsys.readouterr().out.splitlines()

    good = await asyncio.to_thread(
        tried,
        "right horse",
        "--publish",
        "ann/1",
        "--subscribe",
        "$share/g/news/+",
        "--publish",
        "bob/1",
    )
    granted = '{"publish": ["%u/#"], "subscribe": ["%u/#", "news/+"]}'
    assert good == (
        1,
        [
            f'connect: allowed {{"identity": "ann", "claims": {{"hookmq:auth_http": {{"permissions": {granted}}}}}}}',
            "publish ann/1: allowed",
            "publish bob/1: refused, 0x87 not authorized: no permission",
            "subscribe news/+: allowed",
        ],
    )
    assert (await asyncio.to_thread(tried, "right horse", "--publish", "ann/1"))[0] == 0
    bad = await asyncio.to_thread(tried, "battery staple")
    assert bad == (1, ["connect: refused, 0x86 bad user name or password"])
    await runner.cleanup()
    code, lines = await asyncio.to_thread(tried, "right horse")
    assert code == 1
    assert lines == [f"connect: undecided, so refused: {url}/connect: connection refused"]
