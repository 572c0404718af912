"""Test how a plugin acts on clients."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hookmq.model.errors import ConfigError, PluginError
from hookmq.model.reload_report import ConfigCheck, ReloadDone, ReloadReport, SettingChange
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import DurableStore, Harness, HookRecorder, SlowStore, will

Make = Callable[..., Harness]


@pytest.fixture
def mine() -> HookRecorder:
    return HookRecorder("on_publish", id="mine")


@pytest.fixture
def other() -> HookRecorder:
    return HookRecorder(
        "on_dropped", "on_event", "on_retained", "on_subscribed", "on_unsubscribed", id="other"
    )


@pytest.fixture
def harness(broker_harness: Make, mine: HookRecorder, other: HookRecorder) -> Harness:
    return broker_harness(plugins=[mine, other])


class Told:
    """Records the result of an awaitable."""

    def __init__(self, harness: Harness, awaitable: Awaitable[Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        harness.clock.spawn(awaitable, self._told)

    def _told(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error


def test_disconnect(harness: Harness) -> None:
    broker = harness.handle("mine")
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    one = harness.connect("one", will=will("bye"))
    two = harness.connect("two", 4, will=will("bye"))
    assert not broker.disconnect("nobody")
    assert broker.disconnect("one", reason="maintenance")
    packet = one.expect_disconnect(0x98)
    assert packet is not None
    assert packet.properties.reason_string == "maintenance"
    watcher.expect_message("bye")
    assert broker.disconnect("two", ReasonCode.QUOTA_EXCEEDED, drop_will=True)
    two.expect_closed()
    watcher.expect_nothing()
    assert not broker.disconnect("one")


def test_disconnecting_a_client_within_its_own_hook(harness: Harness, mine: HookRecorder) -> None:
    mine.answer(
        "on_publish", lambda client: harness.handle("mine").disconnect(client.client_id) and None
    )
    sub, one = harness.connect("sub"), harness.connect("one")
    sub.subscribe("t")
    one.publish("t", b"", 1)
    one.expect_disconnect(0x98)
    assert not harness.logged("internal.error")


class Reports:
    """Collects the events about the plugin's calls, as `on_event` and the log receive them."""

    def __init__(self, harness: Harness, other: HookRecorder) -> None:
        self.harness = harness
        self.other = other

    def expect(self, event: str, client_id: str | None, **fields: object) -> None:
        """Check that `on_event` and the log each received this event once."""
        (logged,) = self.harness.logged(event)
        assert logged == {"plugin": "mine", "client_id": client_id, **fields}
        (call,) = [call for call in self.other.calls("on_event") if call.event == event]
        assert (call.plugin, dict(call.fields)) == ("mine", fields)
        assert (call.client.client_id if call.client else None) == client_id


@pytest.fixture
def reports(harness: Harness, other: HookRecorder) -> Reports:
    return Reports(harness, other)


def test_disconnecting_is_reported(harness: Harness, reports: Reports) -> None:
    harness.connect("one")
    harness.handle("mine").disconnect("one", ReasonCode.QUOTA_EXCEEDED, "too much", drop_will=True)
    harness.settle()
    reports.expect("broker.disconnected", "one", code="0x97", reason="too much", drop_will=True)


def test_a_call_that_did_nothing_is_not_reported(harness: Harness, other: HookRecorder) -> None:
    broker = harness.handle("mine")
    assert not broker.disconnect("nobody")
    assert not broker.end_session("nobody")
    assert harness.clock.run(broker.unsubscribe("nobody", "t")) is False
    assert harness.clock.run(broker.purge_queue("nobody")) == 0
    assert not other.calls("on_event")


# --- end_session --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("online", [True, False])
def test_end_session(
    broker_harness: Make, mine: HookRecorder, other: HookRecorder, online: bool
) -> None:
    store = DurableStore()
    harness = broker_harness(plugins=[mine, other], store=store)
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    bye = will("bye", delay=50)
    one = harness.connect("one", session_expiry_interval=60, will=bye)
    one.subscribe("t", 1)
    if not online:
        one.drop()
        harness.connect("pub").publish("t", b"lost", 1)
    assert harness.handle("mine").end_session("one", "moved away")
    assert "one" in harness.broker.sessions  # nothing changes during the call
    harness.settle()
    if online:
        packet = one.expect_disconnect(0x98)
        assert packet is not None
        assert packet.properties.reason_string == "moved away"
    watcher.expect_message("bye")  # immediately, not after the delay
    harness.advance(100)
    watcher.expect_nothing()
    Reports(harness, other).expect("broker.session_ended", "one", reason="moved away")
    assert "one" not in harness.broker.sessions
    assert (store.sessions, store.subscriptions, store.queues) == ({}, {}, {})
    harness.restart()
    assert not harness.connect("one", clean_start=False).session_present


def test_end_session_asked_twice_ends_it_once(harness: Harness, reports: Reports) -> None:
    harness.connect("one", session_expiry_interval=60)
    broker = harness.handle("mine")
    assert broker.end_session("one")
    assert broker.end_session("one")
    harness.settle()
    reports.expect("broker.session_ended", "one", reason="")


def test_end_session_within_the_clients_own_hooks(
    broker_harness: Make, mine: HookRecorder, other: HookRecorder
) -> None:
    """A hook may end the session of the client whose message it is deciding on. The message is still accepted, and no
    record outlives the session.
    """
    store = DurableStore()
    harness = broker_harness(plugins=[mine, other], store=store)
    sub = harness.connect("sub")
    sub.subscribe("t", 2)
    one = harness.connect("one", session_expiry_interval=60)
    mine.answer("on_publish", lambda client: harness.handle("mine").end_session("one") and None)
    one.publish("t", b"x", 2, expect=None)
    sub.expect_message("t", b"x", 2)
    one.expect_disconnect(0x98)
    assert (store.sessions, store.received) == ({}, set())
    harness.restart()


# --- unsubscribe --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("online", [True, False])
def test_unsubscribe(
    broker_harness: Make, mine: HookRecorder, other: HookRecorder, online: bool
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(plugins=[mine, other], store=store)
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe("t", 1)
    if not online:
        one.disconnect()
    broker = harness.handle("mine")
    assert harness.clock.run(broker.unsubscribe("one", "other")) is False
    store.slow = True
    told = Told(harness, broker.unsubscribe("one", "t"))
    harness.settle()
    assert not told.done
    store.finish()
    harness.settle()
    assert (told.done, told.result) == (True, True)
    Reports(harness, other).expect("broker.unsubscribed", "one", filter="t")
    (call,) = other.calls("on_unsubscribed")
    assert call.subscription.filter == "t"
    store.slow = False
    harness.connect("pub").publish("t", b"x", 1)
    if not online:
        one.reconnect()
    one.expect_nothing()


# --- clear_retained -----------------------------------------------------------------------------------------------------


def test_clear_retained(broker_harness: Make, mine: HookRecorder, other: HookRecorder) -> None:
    store = DurableStore()
    harness = broker_harness(plugins=[mine, other], store=store)
    sub, pub = harness.connect("sub"), harness.connect("pub")
    for topic in ("a/1", "a/2", "b/1"):
        pub.publish(topic, b"x", 1, retain=True)
    harness.handle("mine").publish("$SYS/x", b"1", retain=True)
    sub.subscribe("#", retain_handling=2)
    other.clear()
    broker = harness.handle("mine")
    assert harness.clock.run(broker.clear_retained("a/#")) == 2
    Reports(harness, other).expect("broker.retained_cleared", None, filter="a/#", messages=2)
    assert {(c.topic, c.message) for c in other.calls("on_retained")} == {
        ("a/1", None), ("a/2", None)
    }  # fmt: skip
    sub.expect_nothing()
    assert set(store.retained) == {"b/1", "$SYS/x"}
    assert harness.clock.run(broker.clear_retained("#")) == 1
    assert set(store.retained) == {"$SYS/x"}
    harness.restart()
    late = harness.connect("late")
    late.subscribe("#")
    late.expect_nothing()


def test_clearing_many_takes_turns_and_waits_for_the_commit(
    broker_harness: Make, mine: HookRecorder
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(plugins=[mine], store=store)
    pub = harness.connect("pub")
    for number in range(700):
        pub.publish(f"a/{number}", b"x", retain=True)
    store.slow = True
    told = Told(harness, harness.handle("mine").clear_retained("a/+"))
    state = harness.broker.state
    left, before = [], 700
    while len(state.retained):
        harness.clock.turn()
        left.append(before - len(state.retained))
        before = len(state.retained)
    assert max(left) <= 256
    harness.settle()
    assert not told.done
    while store.committing is not None:
        store.finish()
        harness.settle()
    assert (told.done, told.result) == (True, 700)
    assert state.retained_bytes == 0


@pytest.mark.parametrize("filter", ["a/#/b", "", "$share/g/a"])
def test_clear_retained_refuses_an_invalid_filter_at_once(harness: Harness, filter: str) -> None:
    with pytest.raises(PluginError, match="cannot clear retained messages: "):
        harness.handle("mine").clear_retained(filter)


def test_a_wrong_type_is_refused_at_once(harness: Harness) -> None:
    broker: Any = harness.handle("mine")
    with pytest.raises(PluginError, match="cannot unsubscribe: filter is int, not str"):
        broker.unsubscribe("c", 5)
    with pytest.raises(PluginError, match="cannot purge a queue: client_id is bytes, not str"):
        broker.purge_queue(b"c")
    with pytest.raises(PluginError, match="cannot clear retained messages: filter is None"):
        broker.clear_retained(None)


def test_a_loop_of_calls_ends(broker_harness: Make) -> None:
    """If an observer responds to an event by repeating the call that caused it, the loop ends."""
    mine = HookRecorder("on_event", id="mine")
    harness = broker_harness(plugins=[mine])
    one = harness.connect("one")
    one.subscribe("t")

    async def again(event: str) -> None:
        await harness.handle("mine").purge_queue("one")

    mine.answer("on_event", lambda event: again(event))
    harness.handle("mine").disconnect("one")
    one.reconnect()
    harness.handle("mine").purge_queue("one")
    harness.settle()
    count = len(mine.calls("on_event"))
    assert count <= 2 * harness.settings.broker.publish_depth + 2


# --- reload -------------------------------------------------------------------------------------------------------------

CHANGED = ReloadReport((SettingChange("broker.max_qos", "2", "1"),))


def test_a_broker_without_a_configuration_cannot_reload(harness: Harness) -> None:
    with pytest.raises(PluginError, match="cannot reload: this broker has no configuration"):
        harness.clock.run(harness.handle("mine").reload())


def test_reload_returns_what_changed(harness: Harness, reports: Reports) -> None:
    asked: list[ReloadDone] = []
    harness.broker.reloader = asked.append
    told = Told(harness, harness.handle("mine").reload())
    assert not asked  # in a later turn
    harness.settle()
    assert not told.done
    asked.pop()(CHANGED, None)
    harness.settle()
    assert told.result is CHANGED
    reports.expect(
        "broker.reload_applied", None, applied=["broker.max_qos: 2 -> 1"], needs_restart=[]
    )


def test_reload_raises_why_it_was_refused(harness: Harness, reports: Reports) -> None:
    asked: list[ReloadDone] = []
    harness.broker.reloader = asked.append
    told = Told(harness, harness.handle("mine").reload())
    harness.settle()
    asked.pop()(None, ConfigError("max_qos is 7"))
    harness.settle()
    assert isinstance(told.error, PluginError)
    assert "cannot reload: max_qos is 7" in str(told.error)
    reports.expect("broker.reload_refused", None, error="max_qos is 7")


def test_an_observer_is_switched_off_and_on(
    harness: Harness, other: HookRecorder, mine: HookRecorder
) -> None:
    """If no plugin observes a hook, the broker does not even collect its events. Another plugin's observer is not
    affected.
    """
    broker = harness.handle("other")
    state = harness.broker.state
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe("t")
    away.disconnect()
    pub = harness.connect("pub")

    def drops() -> int:
        other.clear()
        pub.publish("t", b"", 0)
        harness.settle()
        return len(other.calls("on_dropped"))

    assert drops() == 1
    broker.observe("on_dropped", False)
    assert "on_dropped" not in state.observed
    assert "on_retained" in state.observed
    assert drops() == 0
    broker.observe("on_dropped", False)
    broker.observe("on_dropped", True)
    assert drops() == 1


def test_an_observer_that_is_off_stays_off_after_a_reload(
    harness: Harness, other: HookRecorder
) -> None:
    harness.handle("other").observe("on_dropped", False)
    harness.reload()
    assert "on_dropped" not in harness.broker.state.observed
    harness.handle("other").observe("on_dropped", True)
    assert "on_dropped" in harness.broker.state.observed


@pytest.mark.parametrize(
    ("plugin", "hook", "why"),
    [
        ("other", "on_published", "'on_published' cannot be switched on and off"),
        ("other", "on_publish", "'on_publish' cannot be switched on and off"),
        ("mine", "on_dropped", "the plugin does not implement on_dropped"),
    ],
)
def test_other_hooks_cannot_be_switched(harness: Harness, plugin: str, hook: str, why: str) -> None:
    with pytest.raises(PluginError, match=why):
        harness.handle(plugin).observe(hook, False)


def test_a_configuration_is_checked_in_a_thread(harness: Harness) -> None:
    broker: Any = harness.handle("mine")
    with pytest.raises(PluginError, match="text is int, not str"):
        broker.check_configuration(1)
    with pytest.raises(PluginError, match="this broker has none"):
        harness.clock.run(broker.check_configuration("a"))
    asked: list[str] = []

    def check(text: str) -> ConfigCheck:
        asked.append(text)
        if text == "broken":
            raise ValueError("hunter2")
        if text == "busy":
            raise ConfigError("another check is running")
        return ConfigCheck()

    harness.broker.check_config = check
    assert harness.clock.run(broker.check_configuration("a")) == ConfigCheck()
    with pytest.raises(PluginError, match=r"cannot check a configuration: ValueError$"):
        harness.clock.run(broker.check_configuration("broken"))
    with pytest.raises(PluginError, match="another check is running"):
        harness.clock.run(broker.check_configuration("busy"))
    assert asked == ["a", "broken", "busy"]
