"""The watchdog: a blocked loop is counted and the one who blocks it named."""

import asyncio
import sys
import threading
from typing import Any

import pytest
from hookmq.metrics import Metrics
from hookmq.server.watchdog import Watchdog, blocked_at, plugin_package


def nap_like_a_plugin(seconds: float) -> None:
    """Compiled under a plugin's file name, so that its frame is in a plugin."""
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
    watchdog = Watchdog(asyncio.get_running_loop(), metrics, log, limit=0.5)
    watchdog.start()
    try:
        nap_like_a_plugin(1.0)
        await until(lambda: log.records)
    finally:
        watchdog.stop()
    level, event, fields = log.records[0]
    assert (level, event) == ("warning", "loop.blocked")
    assert metrics.watchdog_blocked == 1
    assert fields["plugin"] == "hookmq_slow"
    assert fields["file"].endswith("hookmq_slow/plugin.py")
    assert (fields["function"], fields["line"]) == ("on_publish", 3)
    assert fields["seconds"] > 0.5
    assert any("nap_like_a_plugin" in place for place in fields["stack"])


async def test_a_stuck_loop_is_told_while_it_lasts(log: Any) -> None:
    watchdog = Watchdog(asyncio.get_running_loop(), Metrics(), log, limit=0.4, stuck=0.6)
    watchdog.start()
    try:
        told = threading.Event()
        log.on_record = told.set
        assert told.wait(60)  # blocks the loop until the thread has told
        assert log.events() == ["loop.stuck"]
        await until(lambda: len(log.records) > 1)
    finally:
        watchdog.stop()
    assert log.events() == ["loop.stuck", "loop.blocked"]
    assert log.records[0][2]["function"] == log.records[1][2]["function"]


async def test_a_loop_that_turns_is_left_alone(log: Any) -> None:
    metrics = Metrics()
    watchdog = Watchdog(asyncio.get_running_loop(), metrics, log, limit=20.0)
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
        ("/venv/site-packages/hookmq/broker/core.py", None),
        ("<frozen importlib>", None),
        ("", None),
    ],
)
def test_plugin_by_its_package(file: str, plugin: str | None) -> None:
    assert plugin_package(file) == plugin
