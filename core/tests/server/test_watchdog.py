"""Test the watchdog, which counts stalls of the event loop and reports the code that caused them."""

import asyncio
import importlib
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.hooks.manager import Hooks
from hookmq.model.metrics import Metrics
from hookmq.model.settings import Settings
from hookmq.plugin import Context, Plugin
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.extensions import PluginExtensions
from hookmq.server.server import Server
from hookmq.server.watchdog import CodeOwner, LoopWatchdog, blocked_at, owner_among, plugin_package
from hookmq_testing.plugins import instance_of


def nap_like_a_plugin(seconds: float) -> None:
    """Sleep in code compiled under a plugin's file name, so that one of the stack frames belongs to a plugin."""
    source = "import time\ndef on_publish(seconds):\n    time.sleep(seconds)\n"
    scope: dict[str, Any] = {}
    exec(compile(source, "/site-packages/hookmq_slow/plugin.py", "exec"), scope)
    scope["on_publish"](seconds)


async def until(condition: Any) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while not condition():
            future = loop.create_future()
            loop.call_later(0.01, future.set_result, None)
            await future


async def test_a_blocking_plugin_is_named(log: Any) -> None:
    metrics = Metrics()
    watchdog = LoopWatchdog(asyncio.get_running_loop(), metrics, log, limit=0.5)
    watchdog.start()
    try:
        nap_like_a_plugin(1.0)
        await until(lambda: log.records)
    finally:
        watchdog.stop()
    level, event, fields = log.records[0]
    assert (level, event) == ("warning", "loop.blocked")
    assert metrics.watchdog_blocked == 1
    assert metrics.loop_lag.sum > 0.5
    assert fields["plugin"] == "hookmq_slow"
    assert fields["file"].endswith("hookmq_slow/plugin.py")
    assert (fields["function"], fields["line"]) == ("on_publish", 3)
    assert fields["seconds"] > 0.5
    assert any("nap_like_a_plugin" in place for place in fields["stack"])


async def test_a_stuck_loop_is_told_while_it_lasts(log: Any) -> None:
    watchdog = LoopWatchdog(asyncio.get_running_loop(), Metrics(), log, limit=0.4, stuck=0.6)
    watchdog.start()
    try:
        told = threading.Event()
        log.on_record = told.set
        assert told.wait(60)  # block the loop until the thread has logged
        assert log.events() == ["loop.stuck"]
        await until(lambda: len(log.records) > 1)
    finally:
        watchdog.stop()
    assert log.events() == ["loop.stuck", "loop.blocked"]
    assert log.records[0][2]["function"] == log.records[1][2]["function"]


async def test_a_loop_that_turns_is_left_alone(log: Any) -> None:
    metrics = Metrics()
    watchdog = LoopWatchdog(asyncio.get_running_loop(), metrics, log, limit=20.0)
    watchdog.start()
    beaten = watchdog._beaten
    await until(lambda: watchdog._beaten > beaten)
    watchdog.stop()
    watchdog.stop()
    assert log.records == []
    assert metrics.watchdog_blocked == 0
    assert not any(thread.name == "hookmq-watchdog" for thread in threading.enumerate())


def test_stack_without_a_plugin_names_the_innermost() -> None:
    found = blocked_at(sys._getframe())
    assert found.plugin == ""
    assert found.function == "test_stack_without_a_plugin_names_the_innermost"
    assert found.stack[0].endswith(found.function)
    assert len(found.stack) <= 40


def test_no_stack() -> None:
    assert blocked_at(None) == ("", "", 0, "", ())


@pytest.mark.parametrize(
    ("file", "plugin"),
    [
        ("/venv/site-packages/hookmq_auth_file/plugin.py", "hookmq_auth_file"),
        ("/srv/plugins/hookmq_mine.py", "hookmq_mine"),
        ("/venv/site-packages/hookmq/broker/state.py", None),
        ("<frozen importlib>", None),
        ("", None),
    ],
)
def test_plugin_by_its_package(file: str, plugin: str | None) -> None:
    assert plugin_package(file) == plugin


class Own(Plugin):
    """A plugin whose code is in this test file."""

    def frame(self) -> FrameType:
        return sys._getframe()


def owner_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *ids: str) -> CodeOwner:
    """Return a `CodeOwner` for the plugins with these `ids`. Their class is in a package called `name`."""
    folder = tmp_path / name
    folder.mkdir()
    text = "from hookmq.plugin import Plugin\nclass It(Plugin): pass\n"
    (folder / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    kind = importlib.import_module(name).It
    plugins = [kind(None, Context(id)) for id in ids]
    return owner_among([instance_of(one) for one in (*plugins, Own(None, Context("own")))])


@pytest.mark.parametrize(
    ("ids", "told"), [(["night"], "night"), (["first", "second"], "first, second")]
)
def test_a_plugin_is_called_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[str], told: str
) -> None:
    """A plugin that blocks is reported by its id, as in other log events. The name of its package would not identify
    it.
    """
    owner = owner_of(tmp_path, monkeypatch, "hookmq_sleepy", *ids)
    assert owner(f"{tmp_path}/hookmq_sleepy/deep/down.py") == told
    assert owner(f"{tmp_path}/hookmq_sleepy2.py") == "hookmq_sleepy2"
    assert owner(__file__) == "own"
    assert owner(threading.__file__) is None
    assert blocked_at(sys._getframe(), owner).plugin == "own"


def test_the_object_that_runs_tells_plugins_of_one_class_apart() -> None:
    first, second = Own(None, Context("first")), Own(None, Context("second"))
    owner = owner_among([instance_of(first), instance_of(second)])
    assert blocked_at(sys._getframe(), owner).plugin == "first, second"
    found = blocked_at(second.frame(), owner)
    assert (found.plugin, found.function) == ("second", "Own.frame")


async def test_a_node_blames_the_plugins_in_use() -> None:
    runtime = AsyncioRuntime()
    node = Server(Broker(Settings(), runtime), (), runtime)
    assert node._watchdog.owner(__file__) is None
    for id in ("one", "two"):  # at the start, and after a reload
        node.use(PluginExtensions(Hooks([instance_of(Own(None, Context(id)))])))
        assert node._watchdog.owner(__file__) == id
    await runtime.close()
