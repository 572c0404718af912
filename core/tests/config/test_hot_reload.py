"""Test how a changed configuration is applied to a running broker."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hookmq.broker import Broker
from hookmq.config.hot_reload import HotReload
from hookmq.config.model import Config, loads
from hookmq.config.plugins import build
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.hooks.manager import Hooks
from hookmq.model.drain import DrainRequest
from hookmq.model.errors import BindError, ConfigError, PluginError
from hookmq.mqtt.errors import HookMQError
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq.server.addresses import parse_bind
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.extensions import PluginExtensions
from hookmq.server.loop import finished
from hookmq.server.server import Server
from hookmq.storage.memory_store import MemoryStore

BASE = """version: 1
listeners:
  - {name: a, bind: '127.0.0.1:0'}
auth: {default: allow}
authz: {default: allow}
plugins:
  - {use: noted, config: {text: one}}
"""


@dataclass(frozen=True)
class Settings:
    text: str = ""


class Noted(Plugin):
    Config = Settings
    told: list[str] = []

    def note(self, what: str) -> None:
        self.told.append(f"{what} {self.id}={self.config.text}")

    @hookimpl
    async def on_startup(self) -> None:
        if self.config.text == "bad":
            raise RuntimeError("no")
        self.note("start")

    @hookimpl
    async def on_ready(self) -> None:
        self.note("ready")

    @hookimpl
    def on_reload(self, old: Any, new: Any) -> None:
        self.note("reload")

    @hookimpl
    async def on_shutdown(self) -> None:
        self.note("stop")


class Guard(Noted):
    """A plugin that abstains from authorization. Its construction fails if the setting `text` is "broken"."""

    def __init__(self, config: Settings, context: Context) -> None:
        super().__init__(config, context)
        if config.text == "broken":
            raise ConfigError("the file cannot be read")

    @hookimpl
    def authorize(self) -> None:
        return None


class Keeper(Plugin):
    Config = Settings

    @hookimpl
    def provide_store(self) -> MemoryStore:
        return MemoryStore()


class Supple(Noted):
    """A plugin that provides a store and can switch to a new configuration while running."""

    @hookimpl
    def provide_store(self) -> MemoryStore:
        return MemoryStore()

    def reconfigure(self, config: Any) -> Callable[[], None]:
        def apply() -> None:
            self.config = config
            self.note("apply")

        return apply


class Shown(Plugin):
    """A plugin that adds everything that plugins can add to a running broker."""

    Config = Settings

    @hookimpl
    def register_http(self, router: Any) -> None:
        router.add("GET", f"/{self.config.text}", self.answer)

    @hookimpl
    def register_metrics(self, registry: Any) -> None:
        name = self.config.text if self.config.text != "taken" else "sessions"
        registry.gauge(name, "Named in the configuration.", lambda: 1)

    async def answer(self, request: Any) -> web.Response:
        return web.Response(text=self.config.text)


class Typed(Plugin):
    @hookimpl
    def register_listeners(self, registry: Any) -> None:
        registry.add("typed", lambda *_: None)


class Point:
    def __init__(self, load: Callable[[], Any]) -> None:
        self.load = load


def offer(name: str, kind: type[Plugin]) -> InstalledEntry:
    point: Any = Point(lambda: kind)
    return InstalledEntry(name, f"m:{kind.__name__}", f"hookmq-{name}", "1", point)


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        offer("noted", Noted),
        offer("guard", Guard),
        offer("keeper", Keeper),
        offer("supple", Supple),
        offer("shown", Shown),
        offer("typed", Typed),
    )
    monkeypatch.setattr("hookmq.config.plugins.installed", lambda: found)
    Noted.told = []


def config(text: str) -> Config:
    return loads(text, "f", (), {})


@asynccontextmanager
async def running(text: str = BASE) -> AsyncIterator[HotReload]:
    first = config(text)
    runtime = AsyncioRuntime()
    hooks = Hooks(build(first))
    broker = Broker(first.settings, runtime, hooks, hooks.provide_store(first.settings))
    await finished(hooks.startup)
    node = Server(broker, first.listeners, runtime)
    node.use(PluginExtensions(hooks, broker))
    applied: list[Config] = []
    live = HotReload(first, hooks, broker, node, lambda: config(text), applied.append)
    await node.start()
    await finished(hooks.ready)
    try:
        yield live
    finally:
        await live.settle()
        await node.stop()
        await runtime.close()


def port_of(live: HotReload, name: str) -> int:
    return parse_bind(live.node.addresses()[name])[1]


async def ping(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect an MQTT 3.1.1 client and return its streams."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(bytes.fromhex("100c00044d5154540402003c0000"))
    assert await reader.readexactly(4) == bytes.fromhex("20020000")
    return reader, writer


async def still_there(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(bytes.fromhex("c000"))
    assert await reader.readexactly(2) == bytes.fromhex("d000")


async def settled(live: HotReload) -> None:
    """Wait for the tasks started by a reload to end."""
    while live._tasks:
        await asyncio.wait(tuple(live._tasks))


async def test_settings_change_under_connected_clients() -> None:
    async with running() as live:
        reader, writer = await ping(port_of(live, "a"))
        report = await live.reload(config(BASE + "broker: {max_qos: 1}\nloop: asyncio\n"))
        assert [str(change) for change in report.applied] == ["broker.max_qos: 2 -> 1"]
        assert [str(change) for change in report.restart] == ["loop: auto -> asyncio"]
        assert live.broker.settings.broker.max_qos == 1
        await still_there(reader, writer)
        again = await live.reload(config(BASE + "broker: {max_qos: 1}\nloop: asyncio\n"))
        assert again.applied == ()
        assert [change.path for change in again.restart] == ["loop"]
        writer.close()


async def refused(port: int) -> bool:
    """Return whether a listener closes new connections at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(bytes.fromhex("100c00044d5154540402003c0000"))
    try:
        return await reader.read(4) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


async def test_a_drain_that_begins_or_ends_during_a_reload_applies_to_new_listeners() -> None:
    text = BASE.replace("auth:", "  - {name: b, bind: '127.0.0.1:0'}\nauth:")
    async with running() as live:
        drainer: Any = live.broker.drainer
        whole = live._open
        steps: list[Callable[[], Any]] = [lambda: drainer.begin(DrainRequest()), drainer.cancel]

        async def opened(*arguments: Any) -> Any:
            listener = await whole(*arguments)
            assert await refused(parse_bind(listener.address)[1]), "it is not in force yet"
            steps.pop(0)()
            return listener

        patched: Any = live
        patched._open = opened
        await live.reload(config(text))
        assert await refused(port_of(live, "a"))
        assert await refused(port_of(live, "b"))
        await live.reload(config(text.replace("name: b", "name: c")))
        for name in ("a", "c"):
            _, writer = await ping(port_of(live, name))
            writer.close()


async def test_plugins_are_kept_replaced_added_and_ended() -> None:
    async with running() as live:
        first = live.hooks.plugins[0].plugin
        await live.reload(config(BASE + "  - {use: noted, id: two, config: {text: x}}\n"))
        await settled(live)
        assert live.hooks.plugins[0].plugin is first
        assert Noted.told == [
            "start noted=one", "ready noted=one", "start two=x", "reload noted=one", "ready two=x"
        ]  # fmt: skip
        Noted.told.clear()
        await live.reload(config(BASE.replace("one", "new")))
        await settled(live)
        assert Noted.told == ["start noted=new", "ready noted=new", "stop two=x", "stop noted=one"]


GUARDED = BASE.replace("use: noted", "use: guard, required: false")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (GUARDED.replace("one", "broken"), "the file cannot be read"),
        (GUARDED.replace("one", "bad"), "on_startup failed: RuntimeError: no"),
        (GUARDED.replace("use: guard", "use: gone, id: guard"), "no plugin named 'gone'"),
    ],
)
async def test_a_reload_never_goes_on_without_a_guard(changed: str, why: str) -> None:
    async with running(GUARDED) as live:
        before = live.hooks
        with pytest.raises(PluginError, match=why):
            await live.reload(config(changed))
        live._source = lambda: config(changed)
        with pytest.raises(PluginError, match=why) as caught:
            await live.reread()
        assert caught.value.changed
        assert all(path.startswith("plugins.guard.") for path in caught.value.changed)
        await settled(live)
        assert live.hooks is before
        assert live.hooks.plugins[0].plugin.config.text == "one"
        # At startup, the file may be missing, since there is nothing to lose yet.
    async with running(changed) as live:
        assert [one.id for one in live.hooks.plugins if not one.disabled] == []
        await live.reload(config(changed + "broker: {max_qos: 1}\n"))


async def test_a_reload_goes_on_without_what_guards_nothing() -> None:
    text = BASE.replace("use: noted", "use: noted, required: false")
    async with running(text) as live:
        await live.reload(config(text.replace("one", "bad")))
        assert live.hooks.plugins[0].disabled


async def test_on_ready_comes_when_the_new_configuration_is_in_force() -> None:
    seen: list[tuple[list[str], int]] = []
    async with running() as live:

        class Watching(Noted):
            @hookimpl
            async def on_ready(self) -> None:
                seen.append((sorted(live.node.listeners), live.broker.settings.broker.max_qos))

        found = (offer("noted", Noted), offer("watching", Watching))
        listeners = BASE.replace("auth:", "  - {name: b, bind: '127.0.0.1:0'}\nauth:")
        text = listeners + "  - {use: watching, config: {text: w}}\nbroker: {max_qos: 1}\n"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hookmq.config.plugins.installed", lambda: found)
            await live.reload(config(text))
            await live.reload(config(text))
            await settled(live)
            assert seen == [(["a", "b"], 1)], (
                "once, with the new listener open and the new settings"
            )
            kept = live.hooks.plugins[-1].plugin
            await live.reload(
                config(text.replace("text: w", "text: v").replace("qos: 1", "qos: 0"))
            )
            await settled(live)
            assert live.hooks.plugins[-1].plugin is not kept
    assert seen == [(["a", "b"], 1), (["a", "b"], 0)], (
        "once more, for the object that was made anew"
    )


async def test_a_plugin_that_does_not_start_changes_nothing() -> None:
    async with running() as live:
        before, hooks = live.config, live.hooks
        with pytest.raises(PluginError, match="on_startup failed"):
            await live.reload(
                config(
                    BASE.replace("one", "good") + "  - {use: noted, id: two, config: {text: bad}}\n"
                )
            )
        assert (live.config, live.hooks) == (before, hooks)
        assert Noted.told == [
            "start noted=one", "ready noted=one", "start noted=good", "stop noted=good"
        ]  # fmt: skip


async def test_listeners_open_close_and_move_without_a_client_noticing() -> None:
    async with running() as live:
        port = port_of(live, "a")
        reader, writer = await ping(port)
        await live.reload(config(BASE.replace("name: a,", "name: b,")))
        assert list(live.node.listeners) == ["b"]
        await still_there(reader, writer)
        with pytest.raises(OSError, match="onnect"):
            await ping(port)
        other = await ping(port_of(live, "b"))
        await live.reload(
            config(BASE.replace("name: a, bind: '127.0.0.1:0'", "name: b, bind: 'localhost:0'"))
        )
        await still_there(*other)
        await still_there(reader, writer)
        for end in (writer, other[1]):
            end.close()
        await settled(live)


async def test_an_address_that_is_taken_changes_nothing() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        taken = sock.getsockname()[1]
        async with running() as live:
            text = BASE.replace("plugins:", "broker: {max_qos: 1}\nplugins:").replace(
                "auth:",
                f"  - {{name: b, bind: 'localhost:0'}}\n  - {{name: c, bind: '127.0.0.1:{taken}'}}\nauth:",
                1,
            )
            with pytest.raises(BindError, match="cannot listen"):
                await live.reload(config(text))
            assert list(live.node.listeners) == ["a"]
            assert live.broker.settings.broker.max_qos == 2


async def test_an_open_listener_takes_what_it_can() -> None:
    async with running() as live:
        text = BASE.replace("name: a,", "name: a, max_connections: 1, mount_point: m/, backlog: 5,")
        report = await live.reload(config(text))
        assert {change.path for change in report.applied} == {
            "listeners.a.max_connections", "listeners.a.mount_point",
        }  # fmt: skip
        assert [change.path for change in report.restart] == ["listeners.a.backlog"]
        gate = live.node.listeners["a"].gate
        assert (gate.max_connections, gate.scope.mount_point) == (1, "m/")
        assert live.config.listeners[0].backlog == 1024


async def test_a_plugin_that_can_goes_on_with_another_configuration() -> None:
    text = BASE + "  - {use: supple, config: {text: TEXT}}\n"
    async with running(text.replace("TEXT", "a")) as live:
        plugin = live.hooks.plugins[-1].plugin
        Noted.told.clear()
        bad = text.replace("TEXT", "b") + "  - {use: noted, id: other, config: {text: bad}}\n"
        with pytest.raises(PluginError):
            await live.reload(config(bad))
        assert [one for one in Noted.told if "supple" in one] == []  # none of it was applied
        await live.reload(config(text.replace("TEXT", "b")))
        assert live.hooks.plugins[-1].plugin is plugin
        assert [one for one in Noted.told if "supple" in one] == [
            "apply supple=b",
            "reload supple=b",
        ]
        Noted.told.clear()
        await live.reload(config(text.replace("TEXT", "b")))
        assert [one for one in Noted.told if "supple" in one] == ["reload supple=b"]


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "keeper"), ("keeper", ""), ("keeper, config: {text: a}", "keeper, config: {text: b}")],
)
async def test_the_store_stays_until_a_restart(before: str, after: str) -> None:
    def text(use: str) -> str:
        return BASE + (f"  - {{use: {use}}}\n" if use else "")

    async with running(text(before)) as live:
        with pytest.raises(
            ConfigError, match=r"'keeper' \(provide_store\) cannot be added, removed or changed"
        ):
            await live.reload(config(text(after)))
        assert len(live.hooks.plugins) == 1 + bool(before)


async def test_routes_and_metrics_follow_a_reload_and_commands_do_not_forbid_it() -> None:
    def text(word: str, token: str) -> str:
        http = f"  - {{name: h, type: http, bind: '127.0.0.1:0', http: {{token: {token}}}}}\n"
        listed = BASE.replace("auth:", http + "auth:", 1)
        return listed + f"  - {{use: shown, config: {{text: {word}}}}}\n"

    async with running(text("one", "a")) as live, aiohttp.ClientSession() as session:

        async def get(path: str, token: str) -> tuple[int, str]:
            url = f"http://127.0.0.1:{port_of(live, 'h')}{path}"
            async with session.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
                return answer.status, await answer.text()

        assert await get("/plugins/shown/one", "a") == (200, "one")
        report = await live.reload(config(text("two", "b")))
        assert {change.path for change in report.applied} == {
            "listeners.h.http.token", "plugins.shown.config.text",
        }  # fmt: skip
        assert "a" not in [change.old for change in report.applied]
        assert (await get("/plugins/shown/two", "a"))[0] == 401
        assert await get("/plugins/shown/two", "b") == (200, "two")
        assert (await get("/plugins/shown/one", "b"))[0] == 404
        metrics = (await get("/metrics", "b"))[1]
        assert 'hookmq_two{plugin="shown"} 1\n' in metrics
        assert "hookmq_one" not in metrics
        with pytest.raises(PluginError, match="register_metrics failed"):
            await live.reload(config(text("taken", "c")))
        assert await get("/plugins/shown/two", "b") == (200, "two")
        assert (await get("/plugins/shown/two", "c"))[0] == 401
        await settled(live)


async def test_types_of_listeners_stay_until_a_restart() -> None:
    async with running() as live:
        with pytest.raises(ConfigError, match=r"'typed' \(register_listeners\) cannot be added"):
            await live.reload(config(BASE + "  - {use: typed}\n"))
        unknown = BASE.replace("{name: a,", "{name: a, type: typed,")
        with pytest.raises(ConfigError, match=r"f:3:21: listeners\[0\].type: expected one of tcp"):
            await live.reload(config(unknown))


async def test_reading_again_tells_what_happened(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hookmq")
    async with running() as live:
        caplog.clear()
        await live.reread()
        (record,) = caplog.records
        fields = record.__dict__["fields"]
        assert record.getMessage() == "config.reloaded"
        assert fields == {"applied": [], "needs_restart": []}

        def fail() -> Config:
            raise ConfigError("gone")

        live._source = fail
        with pytest.raises(HookMQError, match="gone"):
            await live.reread()
