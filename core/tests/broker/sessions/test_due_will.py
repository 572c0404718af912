"""Test how the publish pipeline handles a due will, which may be replaced, be dropped, or wait for a verdict."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.sessions.due_will import LONGEST, MAX_WAITING_BYTES, PATIENCE
from hookmq.hooks.verdicts import Allow, Deny, Drop
from hookmq.model.message import Message
from hookmq.plugin import Action
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, will

Make = Callable[..., Harness]


@pytest.fixture
def watcher(harness: Harness) -> MemoryClient:
    client = harness.connect("watcher")
    client.subscribe("#", 2)
    return client


HOOKS = ("authorize", "on_will", "on_publish", "on_published", "on_disconnect", "on_dropped")


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder(*HOOKS)


def observed(broker_harness: Make, recorder: HookRecorder) -> tuple[Harness, MemoryClient]:
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 2)
    recorder.clear()
    return harness, watcher


def test_it_goes_the_way_of_every_message(broker_harness: Make, recorder: HookRecorder) -> None:
    harness, watcher = observed(broker_harness, recorder)
    client = harness.connect("c", username="u", will=will("w", b"x", 1))
    client.drop()
    watcher.expect_message("w", b"x")
    harness.settle()
    told = [call for call in recorder.calls() if call.hook != "on_disconnect"]
    assert [call.hook for call in told] == [
        "authorize",  # at CONNECT
        "authorize",  # when the will is published
        "on_will",
        "on_publish",
        "on_published",
    ]
    assert {call.action for call in recorder.calls("authorize")} == {Action.WILL}
    for call in told:
        assert (call.client.client_id, call.client.username) == ("c", "u")
        assert call.message.origin == "will"
        assert call.message.sender == "c"
    [call] = recorder.calls("on_disconnect")
    assert call.reason.will is True


def test_a_right_that_was_lost(broker_harness: Make, recorder: HookRecorder) -> None:
    harness, watcher = observed(broker_harness, recorder)
    recorder.answer("authorize", Allow(), Deny())
    client = harness.connect("c", will=will("w", b"x", 1))
    client.drop()
    watcher.expect_nothing()
    assert harness.metrics.dropped == {("denied", "in"): 1}
    [call] = recorder.calls("on_dropped")
    assert (call.message.topic, call.why.client_id) == ("w", "c")


@pytest.mark.parametrize("hook", ["on_will", "on_publish"])
def test_a_plugin_may_change_it(broker_harness: Make, recorder: HookRecorder, hook: str) -> None:
    harness, watcher = observed(broker_harness, recorder)
    recorder.answer(hook, lambda message: message.replace(topic="elsewhere", payload=b"y"))
    harness.connect("c", will=will("w", b"x", 1)).drop()
    watcher.expect_message("elsewhere", b"y", 1)
    watcher.expect_nothing()
    topics = [call.topic for call in recorder.calls("authorize")]
    assert topics == ["w", "w", "elsewhere"]


@pytest.mark.parametrize("hook", ["on_will", "on_publish"])
@pytest.mark.parametrize(
    ("verdict", "why"),
    [(Drop(), "plugin"), (Deny(), "denied")],
)
def test_a_plugin_may_stop_it(
    broker_harness: Make, recorder: HookRecorder, hook: str, verdict: Any, why: str
) -> None:
    harness, watcher = observed(broker_harness, recorder)
    recorder.answer(hook, verdict)
    harness.connect("c", will=will("w", b"x", 1)).drop()
    watcher.expect_nothing()
    assert harness.metrics.dropped == {(why, "in"): 1}


BY_HOOK = pytest.mark.parametrize("hook", ["authorize", "on_will", "on_publish"])


UNDECIDED: tuple[Any, ...] = (ValueError("broken"), Deny(decided=False))


@BY_HOOK
@pytest.mark.parametrize("verdict", UNDECIDED)
@pytest.mark.parametrize("expiry", [0, 100_000])
def test_it_waits_for_a_decision(
    broker_harness: Make, recorder: HookRecorder, hook: str, verdict: Any, expiry: int
) -> None:
    harness, watcher = observed(broker_harness, recorder)
    client = harness.connect("c", session_expiry_interval=expiry, will=will("w", b"x", 1))
    recorder.answer(hook, verdict)
    client.drop()
    harness.advance(PATIENCE - LONGEST)
    watcher.expect_nothing()
    assert harness.metrics.dropped == {}
    assert len(recorder.calls(hook)) < 100
    recorder.answer(hook, Allow() if hook == "authorize" else None)
    harness.advance(LONGEST)
    watcher.expect_message("w", b"x", 1)
    assert harness.metrics.wills_published == 1
    assert recorder.calls("on_denied") == recorder.calls("on_dropped") == []
    core = harness.broker.state
    assert (core.undecided_wills, core.undecided_will_bytes) == ({}, 0)


@BY_HOOK
def test_it_does_not_wait_for_ever(broker_harness: Make, recorder: HookRecorder, hook: str) -> None:
    harness, watcher = observed(broker_harness, recorder)
    client = harness.connect("c", will=will("w", b"x", 1))
    recorder.answer(hook, ValueError("broken"))
    client.drop()
    harness.advance(PATIENCE + LONGEST)
    watcher.expect_nothing()
    assert harness.metrics.dropped == {("undecided", "in"): 1}
    [call] = recorder.calls("on_dropped")
    assert (call.message.topic, call.why.client_id) == ("w", "c")
    asked = len(recorder.calls(hook))
    harness.advance(1e6)
    assert len(recorder.calls(hook)) == asked


@BY_HOOK
def test_the_log_names_who_could_not_decide(
    broker_harness: Make, recorder: HookRecorder, hook: str
) -> None:
    harness, _ = observed(broker_harness, recorder)
    client = harness.connect("c", will=will("w", b"x", 1))
    recorder.answer(hook, Deny(reason="no database", decided=False))
    client.drop()
    harness.advance(PATIENCE)
    [fields] = harness.logged("will.undecided")
    assert fields == {
        "client_id": "c", "topic": "w", "plugin": "recorder", "reason": "no database"
    }  # fmt: skip


@pytest.mark.parametrize("topic", ["", "/" * 201])
@pytest.mark.parametrize("hook", ["on_will", "on_publish"])
def test_a_plugin_moves_it_where_no_topic_is(
    broker_harness: Make, recorder: HookRecorder, hook: str, topic: str
) -> None:
    """If a plugin redirects a will to an invalid topic, the will is not published. The log names
    the plugin.
    """
    harness, watcher = observed(broker_harness, recorder)
    client = harness.connect("c", will=will("w", b"x", 1))
    recorder.answer(hook, Message(topic, b""))
    client.drop()
    harness.advance(1)
    watcher.expect_nothing()
    [fields] = harness.logged("will.undecided")
    assert fields["plugin"] == "recorder"
    assert "topic" in str(fields["reason"])


def test_a_will_that_expires_while_it_waits(broker_harness: Make, recorder: HookRecorder) -> None:
    harness, watcher = observed(broker_harness, recorder)
    client = harness.connect("c", will=will("w", b"x", 1, message_expiry_interval=10))
    recorder.answer("authorize", ValueError("broken"))
    client.drop()
    harness.advance(11)
    recorder.answer("authorize", Allow())
    harness.advance(60)
    watcher.expect_nothing()
    assert harness.metrics.dropped == {("expired", "in"): 1}


@pytest.mark.parametrize("well", [True, False])
def test_its_client_comes_back_while_it_waits(
    broker_harness: Make, recorder: HookRecorder, well: bool
) -> None:
    """If a client returns while its will is waiting for a verdict, the will is authorized one last time. It is never
    published after a message that the client sends on its new connection.
    """
    harness, watcher = observed(broker_harness, recorder)
    client = harness.connect("c", will=will("state", b"gone", 1))
    recorder.answer("authorize", ValueError("broken"))
    client.drop()
    harness.advance(30)
    if well:
        recorder.answer("authorize", Allow())
    client = harness.connect("c")
    recorder.answer("authorize", Allow())
    client.publish("state", b"here", 1, expect=0)
    harness.advance(1e5)
    expected = [b"gone", b"here"] if well else [b"here"]
    assert [message.payload for message in watcher.messages] == expected
    assert harness.metrics.dropped == ({} if well else {("undecided", "in"): 1})


def test_wills_that_wait_are_bounded(broker_harness: Make, recorder: HookRecorder) -> None:
    harness, watcher = observed(broker_harness, recorder)
    # Pretend that other wills are waiting, because the limit itself is compiled in.
    harness.broker.state.undecided_will_bytes = MAX_WAITING_BYTES - 1000
    clients = [harness.connect(f"c{n}", will=will("w", b"x" * 100, 1)) for n in range(20)]
    recorder.answer("authorize", ValueError("broken"))
    for client in clients:
        client.drop()
    harness.settle()
    assert harness.metrics.dropped == {("undecided", "in"): 11}
    recorder.answer("authorize", Allow())
    harness.advance(LONGEST)
    assert len(watcher.messages) == 9


@pytest.mark.parametrize("delay", [0, 5])
def test_a_will_that_waits_survives_a_crash(
    broker_harness: Make, recorder: HookRecorder, delay: int
) -> None:
    harness = broker_harness([recorder], store=DurableStore())
    watcher = harness.connect("watcher", session_expiry_interval=1000)
    watcher.subscribe("#", 2)
    client = harness.connect(
        "c", session_expiry_interval=1000, will=will("w", b"x", 1, delay=delay)
    )
    recorder.answer("authorize", ValueError("broken"))
    client.drop()
    harness.advance(20)
    recorder.answer("authorize", Allow())
    harness.restart()
    watcher.reconnect()
    watcher.expect_message("w", b"x", 1)


@pytest.mark.parametrize("hook", ["authorize", "on_will", "on_publish"])
def test_a_plugin_may_take_its_time(
    broker_harness: Make, recorder: HookRecorder, hook: str
) -> None:
    harness, watcher = observed(broker_harness, recorder)
    pending = harness.clock.event()
    client = harness.connect("c", will=will("w", b"x", 1))
    recorder.answer(hook, pending)
    client.drop()
    watcher.expect_nothing()
    pending.set(Allow() if hook == "authorize" else None)
    watcher.expect_message("w", b"x")


def test_it_is_not_lost_when_its_client_returns_meanwhile(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    # The will was already due. A plugin that takes long to decide does not change that.
    harness, watcher = observed(broker_harness, recorder)
    pending = harness.clock.event()
    recorder.answer("on_will", pending)
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"x", 1))
    client.drop()
    client.reconnect(will=None)
    pending.set(None)
    watcher.expect_message("w", b"x")
