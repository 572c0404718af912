"""Test a plugin's lifecycle in ``hookmq serve``: the order in which its hooks run, and which sockets are open at each
step.
"""

import argparse
import asyncio
import logging
import os
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.cli.serve import serve
from hookmq.config.model import load
from hookmq.hooks.instance import PluginEntry, PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.model.errors import PluginError, StoreError
from hookmq.plugin import BrokerHandle, Context, LogLevels, Plugin, hookimpl
from hookmq.storage.memory_store import MemoryStore
from hookmq.storage.protocols import StoreFailed

CONFIG = """version: 1
listeners: [{name: unix, type: unix, bind: SOCKET}]
auth: {default: allow}
log: {level: error}
"""


class Kept(MemoryStore):
    """A store that records when it is loaded and closed."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__("kept")
        self.note = note

    def load(self) -> Any:
        self.note("load")
        return super().load()

    def close(self, done: Callable[[], None]) -> None:
        self.note("close")
        super().close(done)


class Watches(Plugin):
    """A plugin that records every call to a lifecycle hook, and whether the listener's socket exists at the time of the
    call.
    """

    path: pathlib.Path
    told: list[str]
    wake: asyncio.Event
    fails: str
    broker: BrokerHandle

    def note(self, what: str) -> None:
        self.told.append(f"{self.id} {what} {'open' if self.path.exists() else 'shut'}")
        self.wake.set()

    @hookimpl
    def provide_store(self, broker: Any) -> Any:
        self.note(f"store {broker.time() > 0}")
        return Kept(self.note) if self.id == "a" else None

    @hookimpl
    def provide_journal(self, broker: Any) -> None:
        self.note(f"journal {list(broker.sessions().items)}")

    @hookimpl
    async def on_startup(self, broker: Any) -> None:
        if self.id == self.fails:
            raise RuntimeError("no database")
        self.broker = broker
        self.note("startup")

    @hookimpl
    def register_metrics(self) -> None:
        self.note("metrics")

    @hookimpl
    def on_ready(self) -> None:
        self.note("ready")

    @hookimpl
    def on_reload(self, old: Any, new: Any) -> None:
        self.note(f"reload {old.broker.max_qos} {new.broker.max_qos}")

    @hookimpl
    def on_shutdown(self, deadline: float) -> None:
        self.note(f"shutdown {deadline > 0}")


def watching(tmp_path: pathlib.Path, fails: str = "") -> tuple[Hooks, list[str], asyncio.Event]:
    """Return the hooks of plugins a and b, a list that records their calls, and an event that is set on each call."""
    told: list[str] = []
    wake = asyncio.Event()
    instances = []
    for name in "ab":
        plugin = Watches(None, Context(name))
        plugin.path, plugin.told, plugin.wake = tmp_path / "s", told, wake
        plugin.fails = fails
        instances.append(PluginInstance(PluginEntry(use=name, id=name), plugin))
    return Hooks(instances), told, wake


async def test_the_life_of_two_plugins(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(CONFIG.replace("SOCKET", str(tmp_path / "s")))
    hooks, told, wake = watching(tmp_path)
    monkeypatch.setattr("hookmq.config.hot_reload.build", lambda *_, known, **__: known)
    arguments = argparse.Namespace(config=str(path), option=[], data_dir=None)
    running = asyncio.create_task(serve(load(path), hooks, arguments))

    async def until(last: str) -> None:
        async with asyncio.timeout(60):
            while not told or told[-1] != last:
                wake.clear()
                await wake.wait()

    await until("b ready open")
    assert told == [
        "a store True shut", "b store True shut", "a journal [] shut", "b journal [] shut",
        "a load shut", "a startup shut", "b startup shut", "a metrics shut", "b metrics shut",
        "a ready open", "b ready open",
    ]  # fmt: skip
    plugin: Any = hooks.plugins[0].plugin
    broker: BrokerHandle = plugin.broker
    broker.set_log_level("debug")
    assert broker.log_levels() == LogLevels("debug", "error")
    found = await broker.check_configuration(path.read_text() + "broker: {max_qos: 1}\n")
    assert found.changes is not None
    assert [str(one) for one in found.changes.applied] == ["broker.max_qos: 2 -> 1"]
    told.clear()
    path.write_text(path.read_text() + "broker: {max_qos: 1}\n")
    os.kill(os.getpid(), signal.SIGHUP)
    await until("b reload 2 1 open")
    assert [one for one in told if "metrics" not in one] == [
        "a reload 2 1 open",
        "b reload 2 1 open",
    ]
    # The reload restored the configured level.
    assert broker.log_levels() == LogLevels("error", "error")
    told.clear()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(60):
        await running
    assert told == ["b shutdown True shut", "a shutdown True shut", "a close shut"]


async def test_stopped_is_logged_when_plugins_and_store_have_ended(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log event is written after the plugins and the store have shut down. A supervisor that sees it may then start
    the next broker on the same folders.
    """
    path = tmp_path / "f.yaml"
    path.write_text(CONFIG.replace("SOCKET", str(tmp_path / "s")))
    hooks, told, wake = watching(tmp_path)
    caplog.set_level("INFO", "hookmq")
    ends: list[list[str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: (  # type: ignore[method-assign]
        ends.append(list(told)) if record.getMessage() == "node.stopped" else None
    )
    logging.getLogger("hookmq").addHandler(handler)
    arguments = argparse.Namespace(config=str(path), option=[], data_dir=None)
    running = asyncio.create_task(serve(load(path), hooks, arguments))
    try:
        async with asyncio.timeout(60):
            while not told or told[-1] != "b ready open":
                wake.clear()
                await wake.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await running
    finally:
        logging.getLogger("hookmq").removeHandler(handler)
    assert [seen[-1] for seen in ends] == ["a close shut"]


async def test_a_plugin_that_does_not_start_opens_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(CONFIG.replace("SOCKET", str(tmp_path / "s")))
    hooks, told, _ = watching(tmp_path, fails="b")
    with pytest.raises(PluginError, match=r"plugin 'b': on_startup failed: .*no database"):
        await serve(
            load(path), hooks, argparse.Namespace(config=str(path), option=[], data_dir=None)
        )
    assert told[-3:] == ["a startup shut", "a shutdown True shut", "a close shut"]


async def test_a_store_that_fails_ends_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(CONFIG.replace("SOCKET", str(tmp_path / "s")))
    failed: list[Any] = []

    class Full(Plugin):
        @hookimpl
        def provide_store(self) -> Any:
            class Store(MemoryStore):
                def commit(self, records: Any, done: Any) -> None:
                    failed.append(records)
                    done(StoreFailed("disk full"))

            return Store("full")

        @hookimpl
        def on_ready(self, broker: Any) -> None:
            broker.publish("a", b"x", qos=1, retain=True)

    hooks = Hooks.of(Full(None, Context("full")))
    with pytest.raises(StoreError, match=r"the store failed: .*disk full"):
        async with asyncio.timeout(60):
            await serve(
                load(path), hooks, argparse.Namespace(config=str(path), option=[], data_dir=None)
            )
    assert failed
