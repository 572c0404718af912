"""Test that a plugin's failure is logged with the line number in the plugin's code, however the hook was called."""

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.hooks.manager import Hooks
from hookmq.hooks.place import CodePlace, at, place_of
from hookmq.model.errors import PluginError
from hookmq.model.settings import Settings
from hookmq.mqtt.topics import validate_filter
from hookmq.plugin import Context, Plugin
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq_testing import Harness
from hookmq_testing.plugins import instance_of

Make = Callable[..., Harness]

HELPER = """
def fail(message):
    raise ValueError(message)
"""
PLUGIN = """
from failing.helper import fail
from hookmq.plugin import Plugin, hookimpl


class Sync(Plugin):
    @hookimpl
    def on_publish(self, message):
        fail("sync")


class Async(Plugin):
    @hookimpl
    async def on_publish(self, message):
        fail("async")


class Blocking(Plugin):
    blocking = True

    @hookimpl
    def on_publish(self, message):
        fail("blocking")


class Observer(Plugin):
    @hookimpl
    def on_published(self, message):
        fail("observer")


class AsyncObserver(Plugin):
    @hookimpl
    async def on_published(self, message):
        fail("async observer")


class Deliverer(Plugin):
    @hookimpl
    def on_deliver(self, message):
        fail("deliverer")


class Meter(Plugin):
    @hookimpl
    def provide_rate_limiter(self, client):
        fail("rate_limiter")


class Ready(Plugin):
    @hookimpl
    def on_ready(self):
        fail("ready")


class Hiding(Plugin):
    def hides_username(self, username):
        fail(username)


class Startup(Plugin):
    @hookimpl
    async def on_startup(self):
        fail("startup")


class Provider(Plugin):
    @hookimpl
    def provide_store(self):
        fail("provider")
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a package with plugins that fail inside one of its modules."""
    folder = tmp_path / "failing"
    folder.mkdir()
    (folder / "__init__.py").write_text(PLUGIN)
    (folder / "helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("failing")
    monkeypatch.delitem(sys.modules, "failing")
    monkeypatch.delitem(sys.modules, "failing.helper")
    return module


def make(failing: ModuleType, name: str) -> Plugin:
    kind: type[Plugin] = getattr(failing, name)
    return kind(None, Context(name.lower()))


@pytest.mark.parametrize(
    "name",
    ["Sync", "Async", "Blocking", "Observer", "AsyncObserver", "Deliverer", "Meter", "Ready"],
)
def test_every_way_to_call_a_hook_names_the_line(
    broker_harness: Make, failing: ModuleType, name: str
) -> None:
    harness = broker_harness(plugins=[make(failing, name)])
    client = harness.connect("c", expect=None)
    if not client.closed:
        client.subscribe("t")
        client.publish("t", b"")
    (fields,) = harness.logged("plugin.failed")
    assert (Path(str(fields["file"])).name, fields["line"]) == ("helper.py", 3)
    assert isinstance(fields["traceback"], ValueError)


@pytest.mark.parametrize("name", ["Startup", "Provider"])
def test_an_error_that_prevents_the_start_names_its_line(failing: ModuleType, name: str) -> None:
    with pytest.raises(PluginError) as caught:
        Harness([make(failing, name)])
    if name == "Provider":
        assert str(caught.value).endswith("/failing/helper.py:3)")


def test_a_secret_is_not_logged(broker_harness: Make, failing: ModuleType) -> None:
    """No secret is logged. Values passed to `hides_username` may be secrets, and so may the text of an exception that
    it raises.
    """
    harness = broker_harness(plugins=[make(failing, "Hiding")])
    for number in range(3):
        harness.connect(f"c{number}", username="eyJhbGciOi")
    (fields,) = harness.logged("plugin.failed")
    assert str(fields["error"]).startswith("ValueError (")
    assert str(fields["error"]).endswith("helper.py:3)")
    assert "eyJhbGciOi" not in repr(harness.logs)


def test_real_threads_and_tasks(failing: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    names = ["Blocking", "Async", "Observer"]

    async def main() -> None:
        runtime = AsyncioRuntime()
        hooks = Hooks([instance_of(make(failing, name)) for name in names])
        broker = Broker(Settings(), runtime, hooks)
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        broker.start(ended.set_result)
        await ended
        for name in ("async", "blocking"):
            instance = hooks.instance(name)
            assert instance is not None
            assert instance.broker is not None
            # each skips its own hook, so the other one fails
            with pytest.raises(PluginError):
                await instance.broker.publish_and_wait("t", b"")
        hooks.observers.notify("on_published", "", None, None, 0)
        drained: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        hooks.observers.drain(drained.set_result, 10)
        await drained
        await runtime.close()

    with caplog.at_level(logging.ERROR, "hookmq"):
        asyncio.run(main())
    failed: list[Any] = [r for r in caplog.records if r.getMessage() == "plugin.failed"]
    assert {record.fields["plugin"] for record in failed} == {"blocking", "async", "observer"}
    for record in failed:
        assert (Path(record.fields["file"]).name, record.fields["line"]) == ("helper.py", 3)
        assert record.exc_info[0] is ValueError
        assert "traceback" not in record.fields


def test_an_error_within_the_core_is_the_plugin_s_line() -> None:
    try:
        validate_filter("a/#/b")
    except Exception as error:
        found = place_of(error)
        assert found is not None
        assert found.file == __file__


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert place_of(ValueError()) is None
    assert at(ValueError()) == ""
    assert str(CodePlace("a.py", 3)) == "a.py:3"
