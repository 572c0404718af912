"""Test the harness: an in-memory broker that tests can start, stop, restart, reload and observe."""

import ast
import inspect
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hookmq.hooks.manager import Hooks
from hookmq.mqtt_api import Puback
from hookmq.plugin import (
    AuthSettings,
    BrokerHandle,
    BrokerSettings,
    ClientInfo,
    Context,
    Deny,
    Journal,
    Message,
    Plugin,
    PluginError,
    ReasonCode,
    Settings,
    Store,
    hookimpl,
)
from hookmq_testing import DurableStore, Harness, HookRecorder, RecordingJournal, make_plugin

LIFE = ("on_startup", "on_ready", "on_shutdown", "on_reload")


@dataclass(frozen=True)
class Config:
    word: str = "no"
    times: int = 1


class Polite(Plugin):
    """A plugin that denies messages whose payload contains its word."""

    Config = Config

    @hookimpl
    def on_publish(self, client: ClientInfo, message: Message) -> Deny | None:
        return Deny() if self.config.word.encode() in message.payload else None


class Waiter(Plugin):
    """A plugin that takes time to start."""

    clock: Any = None

    @hookimpl
    async def on_startup(self, broker: Any) -> None:
        await self.clock.sleep(5)


# --- life ---------------------------------------------------------------------------------------------------------------


def test_a_whole_life() -> None:
    recorder = HookRecorder(*LIFE)
    with Harness([recorder]) as harness:
        assert [call.hook for call in recorder.calls()] == ["on_startup", "on_ready"]
        client = harness.connect("c")
    client.expect_disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
    assert [call.hook for call in recorder.calls()] == ["on_startup", "on_ready", "on_shutdown"]
    harness.close()
    assert len(recorder.calls()) == 3


def test_a_failing_on_startup_is_raised_by_the_harness() -> None:
    recorder = HookRecorder("on_startup")
    recorder.answer("on_startup", OSError("no disk"))
    with pytest.raises(PluginError, match="no disk"):
        Harness([recorder])


def test_starting_may_take_virtual_time() -> None:
    plugin = Waiter(None, Context("waiter"))
    harness = Harness([plugin], start=False)
    plugin.clock = harness.clock
    harness.start()
    assert harness.clock.now() == 5
    harness.close()


def test_errors_of_the_broker_fail_the_test() -> None:
    harness = Harness()
    harness.clock.log("error", "internal.error", error="fault")
    with pytest.raises(AssertionError, match="fault"):
        harness.close()
    forgiving = Harness()
    forgiving.allow_errors = True
    forgiving.clock.log("error", "internal.error", error="fault")
    forgiving.close()


def test_the_first_failure_is_the_one_to_see() -> None:
    harness = Harness()
    harness.clock.log("error", "internal.error", error="fault")
    with pytest.raises(ZeroDivisionError), harness:
        raise ZeroDivisionError
    assert not harness.broker.connections


def test_nothing_awaits_after_the_end() -> None:
    recorder = HookRecorder("on_connect")
    with Harness([recorder]) as harness:
        recorder.answer("on_connect", harness.clock.event())
        harness.connect("c", expect=None)
        harness.handle("recorder").publish("a", b"x")
    assert not harness.clock.tasks


def test_it_closes_though_a_client_reads_nothing() -> None:
    with Harness() as harness:
        client = harness.connect("c")
        client.subscribe("a", 1)
        client.pause()
        harness.connect("d").publish("a", b"x" * 200000, 1, expect=0)
    assert client.closed


# --- settings and plugins -----------------------------------------------------------------------------------------------


def test_everything_is_allowed_unless_told() -> None:
    with Harness() as harness:
        harness.connect("c").publish("a", qos=1, expect=0x10)
        assert harness.broker.settings.broker == BrokerSettings()
    with Harness(settings=Settings()) as harness:
        harness.connect("c", expect=0x87)
    with Harness(config={"authz": {"default": "deny"}}) as harness:
        harness.connect("c").publish("a", qos=1, expect=0x87)


def test_config_overrides_settings() -> None:
    settings = Settings(auth=AuthSettings("allow"))
    with Harness(settings=settings, config={"broker": {"max_qos": 1}}) as harness:
        client = harness.connect("c")
        assert client.connack is not None
        assert client.connack.properties.maximum_qos == 1
    with pytest.raises(TypeError, match="max_quos"):
        Harness(config={"broker": {"max_quos": 1}})
    with pytest.raises(AttributeError, match="brocker"):
        Harness(config={"brocker": {}})


def test_plugins_come_in_any_form() -> None:
    made = make_plugin(Polite, {"word": "bad"}, "second", filters=("a/#",))
    assert made.plugin.config == Config("bad", 1)
    assert made.plugin.context.id == made.id == "second"
    assert made.entry.filters == ("a/#",)
    with Harness([Polite, made, HookRecorder("on_connect")]) as harness:
        assert [one.id for one in harness.hooks.plugins] == ["polite", "second", "recorder"]
        client = harness.connect("c")
        client.publish("b", b"no", 1, expect=0x87)
        client.publish("b", b"bad", 1, expect=0x10)
        client.publish("a/b", b"bad", 1, expect=0x87)
    hooks = Hooks.of(Polite(Config("x"), Context("third")))
    with Harness(hooks=hooks) as harness:
        harness.connect("c").publish("b", b"x", 1, expect=0x87)


def test_a_handle_of_ones_own() -> None:
    with Harness([HookRecorder("on_published")]) as harness:
        client = harness.connect("c")
        client.subscribe("a")
        harness.handle("recorder").publish("a", b"x")
        client.expect_message("a", b"x")
        with pytest.raises(ValueError, match="nobody"):
            harness.handle("nobody")


class Provider(Plugin):
    store: Store
    journal: Journal

    @hookimpl
    def provide_store(self, config: Settings) -> Store:
        return self.store

    @hookimpl
    def provide_journal(self, config: Settings) -> Journal:
        return self.journal


def test_a_plugin_may_provide_store_and_journal() -> None:
    plugin = Provider(None, Context("provider"))
    plugin.store, plugin.journal = DurableStore(), RecordingJournal()
    with Harness([plugin]) as harness:
        assert harness.store is plugin.store
        assert harness.journals == (plugin.journal,)
    other = DurableStore()
    with Harness([plugin], store=other, journals=[]) as harness:
        assert harness.store is other


class Threaded(Plugin):
    """A plugin whose `def` observer runs in a thread, and whose ``async def`` observer runs on the event loop."""

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.seen: list[tuple[str, bool]] = []

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        self.runtime = broker.runtime

    @hookimpl
    def on_published(self, message: Message, broker: BrokerHandle) -> None:
        self.seen.append((message.topic, self.runtime.on_loop()))
        if message.payload == b"bad":
            raise ValueError("broken")
        if message.payload == b"ask":
            broker.client("one")

    @hookimpl
    async def on_disconnect(self, client: ClientInfo) -> None:
        self.seen.append((client.client_id, self.runtime.on_loop()))


def test_plain_observers_run_in_a_thread_as_in_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Threaded(None, Context("threaded"))
    with Harness([plugin]) as harness:
        client = harness.connect("one")
        batches = 0
        blocking = harness.clock.run_blocking

        def counted(*work: Any) -> Any:
            nonlocal batches
            batches += 1
            return blocking(*work)

        monkeypatch.setattr(harness.clock, "run_blocking", counted)
        with harness.together():
            for topic in "abc":
                client.publish(topic, b"x")
        assert (plugin.seen, batches) == ([("a", False), ("b", False), ("c", False)], 1)
        client.publish("d", b"ask", 1)
        [failed] = harness.logged("plugin.failed")
        assert "PluginError" in str(failed["error"])  # threads must not access the broker's state
        client.disconnect()
    assert plugin.seen[-1] == ("one", True)


def test_a_failure_is_logged_once_with_its_traceback_and_again_at_debug() -> None:
    with Harness([Threaded(None, Context("threaded"))]) as harness:
        client = harness.connect("one")
        for _ in range(3):
            client.publish("a", b"bad", 1)
        first = harness.logged("plugin.failed")
        again = harness.logged("plugin.failed_again")
    line = inspect.getsource(Threaded).splitlines().index('            raise ValueError("broken")')
    line += inspect.getsourcelines(Threaded)[1]
    assert [(one["file"], one["line"]) for one in first] == [(__file__, line)]
    assert isinstance(first[0]["traceback"], ValueError)
    assert [type(one["traceback"]) for one in again] == [ValueError, ValueError]
    levels = {event: level for level, event, _ in harness.logs}
    assert (levels["plugin.failed"], levels["plugin.failed_again"]) == ("error", "debug")


def test_a_reload_calls_on_ready_on_new_objects_only() -> None:
    kept = HookRecorder("on_ready", "on_reload", id="kept")
    with Harness([kept]) as harness:
        instance = harness.hooks.plugins[0]
        added, remade = (HookRecorder("on_ready", id=name) for name in ("added", "kept"))
        harness.reload(plugins=[instance, added])
        assert len(kept.calls("on_ready")) == len(added.calls("on_ready")) == 1
        harness.reload(plugins=[remade])
        assert (len(kept.calls("on_ready")), len(remade.calls("on_ready"))) == (1, 1)


def test_reload() -> None:
    recorder = HookRecorder("on_publish", "on_startup", "on_ready")
    with Harness() as harness:
        client = harness.connect("c")
        client.publish("a", b"x", 1, expect=0x10)
        harness.reload({"broker": {"max_qos": 1}}, [recorder])
        client.publish("a", b"x", 1, expect=0x10)
        hooks = [call.hook for call in recorder.calls()]
        assert hooks == ["on_startup", "on_ready", "on_publish"]
        client = harness.connect("d")
        client.publish("a", b"x", 2)
        client.expect_disconnect(ReasonCode.QOS_NOT_SUPPORTED)


def test_restart() -> None:
    recorder = HookRecorder("on_published")
    with Harness([recorder], store=DurableStore()) as harness:
        client = harness.connect("c", session_expiry_interval=100)
        client.subscribe("a", 1)
        first = harness.broker
        harness.restart()
        assert harness.broker is not first
        assert client.closed
        assert not client.session_present
        harness.handle("recorder").publish("a", b"x", 1)
        client.reconnect()
        assert client.session_present
        client.expect_message("a", b"x", 1)


# --- time ---------------------------------------------------------------------------------------------------------------


def test_together_is_one_turn() -> None:
    with Harness() as harness:
        watcher = harness.connect("watcher")
        watcher.subscribe("a/#")
        clients = [harness.connect(f"c{number}") for number in range(5)]
        before = len(watcher.wire.writes)
        with harness.together():
            for client in clients:
                client.publish("a/b", b"x")
                assert not watcher.received[2:]
        assert len(watcher.messages) == 5
        assert len(watcher.wire.writes) == before + 1
        for client in clients:
            client.publish("a/b", b"x")
        assert len(watcher.wire.writes) == before + 6


def test_settling_runs_what_is_due_now() -> None:
    with Harness() as harness:
        called: list[float] = []
        harness.clock.call_later(0, lambda: called.append(harness.clock.now()))
        harness.clock.call_later(1, lambda: called.append(harness.clock.now()))
        harness.settle()
        assert called == [0]
        harness.advance(1)
        assert called == [0, 1]


def test_waiting_for_what_never_happens() -> None:
    with Harness() as harness:
        assert harness.wait(lambda done: None, required=False) is None
        with pytest.raises(AssertionError, match="will never be called"):
            harness.wait(lambda done: None)
        assert harness.wait(lambda done: done("yes")) == "yes"


def test_logs_and_metrics() -> None:
    with Harness() as harness:
        harness.connect("c")
        assert harness.logged("client.connected")[0]["client_id"] == "c"
        assert ("info", "client.connected") in [(level, event) for level, event, _ in harness.logs]
        assert harness.metrics.connections_accepted == 1


# --- faults -------------------------------------------------------------------------------------------------------------


def test_faults() -> None:
    with Harness([Polite]) as harness:
        client = harness.connect("c")
        harness.fail("polite", "on_publish", RuntimeError("broken"), times=2)
        for code in (0x83, 0x83, 0x10):
            client.publish("a", b"x", 1, expect=code)
        harness.fail("polite", "on_publish", Deny(ReasonCode.QUOTA_EXCEEDED))
        client.publish("a", b"x", 1, expect=0x97)
        harness.fail("polite", "on_publish", lambda message: message.replace(topic="b"))
        watcher = harness.connect("watcher")
        watcher.subscribe("b")
        client.publish("a", b"x", 1, expect=0)
        watcher.expect_message("b", b"x")
        harness.heal()
        client.publish("a", b"x", 1, expect=0x10)
        harness.fail("polite", "on_publish", "timeout", times=1)
        client.publish("a", b"x", 1)
        client.expect_nothing()
        harness.advance(1.1)
        assert client.expect(Puback).code == 0x83


def test_faults_that_cannot_be() -> None:
    with Harness([Polite, HookRecorder("on_deliver")]) as harness:
        with pytest.raises(ValueError, match="'polite' implements on_connect"):
            harness.fail("polite", "on_connect", OSError())
        with pytest.raises(ValueError, match="'nobody' implements"):
            harness.fail("nobody", "on_publish", OSError())
        with pytest.raises(ValueError, match="cannot time out"):
            harness.fail("recorder", "on_deliver", "timeout")


# --- pytest -------------------------------------------------------------------------------------------------------------


def test_fixtures(harness: Harness, broker_harness: Any) -> None:
    other = broker_harness(config={"broker": {"max_qos": 1}})
    assert isinstance(harness, Harness)
    assert isinstance(other, Harness)
    assert other.broker is not harness.broker


def test_the_plugin_imports_nothing_of_hookmq() -> None:
    # pytest loads the plugin in every run of every project that has HookMQ installed.
    code = (
        "import sys, hookmq_testing.pytest_plugin; "
        "print(sorted(name for name in sys.modules if name.startswith('hookmq')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    names = set(ast.literal_eval(done.stdout)) - {
        "hookmq__mypyc"
    }  # the library of a compiled build
    assert names == {
        "hookmq_testing", "hookmq_testing.pytest_plugin"
    }  # fmt: skip


def test_every_name_is_there() -> None:
    import hookmq_testing

    for name in hookmq_testing.__all__:
        found = getattr(hookmq_testing, name)
        assert name == "EPOCH" if isinstance(found, float) else found.__name__ == name
    with pytest.raises(AttributeError, match="Harnes'"):
        hookmq_testing.Harnes  # noqa: B018
