"""The plugin in a real broker, with real clients and a real service; and the contract of every plugin."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiomqtt
import mqttbytes as m
import pytest
from hookmq.testing.contracts import PluginContract
from hookmq_auth_http.plugin import AuthHttpPlugin
from serving import Served, serving

OTHERS = 1000
ACCEPTED = b"\x20\x02\x00\x00"


class TestAuthHttp(PluginContract):
    """Configurations are bound by `test_auth_http_decisions`; here nobody can be asked, so that everybody is refused."""

    kind = AuthHttpPlugin
    use = "auth_http"

    def instance(self, config: Mapping[str, Any], id: str = "") -> Any:
        from hookmq.testing.plugins import make_plugin
        from hookmq_auth_http.config import AuthHttpConfig, Endpoint

        made = AuthHttpConfig(authenticate=Endpoint("http://127.0.0.1:1/"))
        return make_plugin(self.kind, made, id or self.use, use=self.use)

    @pytest.mark.skip("it needs a running event loop: test_a_broker_that_asks")
    def test_it_starts_and_stops(self) -> None: ...

    @pytest.mark.skip("it needs a running event loop: test_a_broker_that_asks")
    def test_two_of_it_live_together(self) -> None: ...

    @pytest.mark.skip("it needs a running event loop: test_a_broker_that_asks")
    def test_ordinary_traffic(self) -> None: ...


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
    assert int(getattr(raised.value.rc, "value", raised.value.rc)) == code


class Running:
    """`serving` in a thread, so that the loop can serve its requests meanwhile."""

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
        v5 = {"protocol": aiomqtt.ProtocolVersion.V5}
        await refused(port, 0x86, username="ann", password="battery staple", **v5)
        await refused(port, 0x86, username="ann", password="battery staple")
        async with aiomqtt.Client("127.0.0.1", port, identifier="a", **known, **v5) as one:
            assert [int(c.value) for c in await one.subscribe("open/#", 1)] == [1]
            assert [int(c.value) for c in await one.subscribe("shut/#", 1)] == [0x87]
            assert [int(c.value) for c in await one.subscribe("$share/g/open/+", 1)] == [1]
            for number in range(3):
                await one.publish("open/x", str(number), 1)
            asked = [r for r in service.requests if r[1] == "/may" and r[2]["action"] == "publish"]
            assert len(asked) == 1  # the rest was remembered
            async with asyncio.timeout(10):
                message = await anext(one.messages)
            assert (str(message.topic), message.payload) == ("open/x", b"0")
        service.requests.clear()
        listed = {**known, "username": "listed"}
        async with aiomqtt.Client("127.0.0.1", port, identifier="me", **listed, **v5) as two:
            assert [int(c.value) for c in await two.subscribe([("me/#", 1), ("#", 1)])] == [1, 0x87]
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

        async def connected(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(m.connect(name, level=4, username="u", password=b"p"))
            return reader, writer, await reader.readexactly(4)

        slow = asyncio.create_task(connected("slow"))
        await service.asked.wait()
        gate = asyncio.Semaphore(100)

        async def other(number: int) -> None:
            async with gate:
                reader, writer, connack = await connected(f"c{number}")
                assert connack == ACCEPTED
                writer.write(b"\xc0\x00")
                assert await reader.readexactly(2) == b"\xd0\x00"
                writer.close()

        await asyncio.gather(*(other(number) for number in range(OTHERS)))
        assert not slow.done()
        service.released.set()
        _, writer, connack = await slow
        assert connack == ACCEPTED
        writer.close()


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
    assert all("http://127.0.0.1:1/in: ClientConnectorError" in str(entry) for entry in failures)
    assert "secret-word" not in json.dumps(served.log)
