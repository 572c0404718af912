"""Test a plugin client's connection: the order and limits of its packets, and how it ends."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.manager import Hooks
from hookmq.plugin import (
    ClientHandle,
    ClientRequest,
    Delivery,
    DisconnectReason,
    Message,
    PluginError,
    ReasonCode,
    Will,
)
from hookmq_testing import DurableStore, Harness, HookRecorder, SlowStore
from hookmq_testing.plugins import instance_of

Make = Callable[..., Harness]


@pytest.fixture
def harness(broker_harness: Make) -> Harness:
    return broker_harness([HookRecorder("on_event", id="gw")])


def connect(harness: Harness, client_id: str, **fields: Any) -> ClientHandle:
    client: ClientHandle = harness.clock.run(
        harness.handle("gw").connect(ClientRequest(client_id, **fields))
    )
    return client


def payloads(got: list[Delivery]) -> list[bytes]:
    return [one.message.payload for one in got]


# --- packets from the client -----------------------------------------------------------------------------------------


def test_requests_keep_their_order(harness: Harness) -> None:
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 2)
    client = connect(harness, "c")
    for number in range(30):
        client.publish_later(f"a/{number % 4}", b"%d" % number, number % 3)
    client.disconnect()
    harness.settle()
    assert [int(one.payload) for one in watcher.messages] == list(range(30))
    assert not client.connected


def test_many_publishes_take_several_turns(harness: Harness) -> None:
    client = connect(harness, "c")
    subscriber = harness.connect("subscriber")
    subscriber.subscribe("a")
    for _ in range(1000):
        client.publish_later("a", b"")
    began = harness.clock.turns
    harness.settle()
    assert len(subscriber.messages) == 1000
    assert harness.clock.turns - began >= 8


@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_than_receive_maximum_is_unacknowledged(broker_harness: Make, qos: int) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(
        [HookRecorder("on_event", id="gw")],
        store=store,
        config={"broker": {"receive_maximum": 5}},
    )
    sleeper = harness.connect("sleeper", session_expiry_interval=60)
    sleeper.subscribe("a", 1)
    sleeper.drop()
    client = connect(harness, "c")
    store.slow = True
    codes: list[int] = []
    for _ in range(20):
        client.publish_later("a", b"x", qos, done=codes.append)
    harness.settle()
    assert codes == []
    assert harness.broker.sessions["sleeper"].queued == 5
    for _ in range(10):
        store.finish()
        harness.settle()
    assert codes == [0] * 20
    assert client.connected
    assert harness.metrics.receive_maximum_exceeded == 0


def test_done_is_told_of_the_end(broker_harness: Make) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([HookRecorder("on_event", id="gw")], store=store)
    sleeper = harness.connect("sleeper", session_expiry_interval=60)
    sleeper.subscribe("a", 1)
    sleeper.drop()
    client = connect(harness, "c")
    store.slow = True
    codes: list[ReasonCode] = []
    failed: list[BaseException | None] = []
    for qos in (1, 2):
        client.publish_later("a", b"x", qos, done=codes.append)
    harness.clock.spawn(client.publish("a", b"x", 1), lambda _, error: failed.append(error))
    harness.settle()
    harness.handle("gw").disconnect("c")
    client_is_gone: list[DisconnectReason] = []
    client.on_end = client_is_gone.append
    harness.settle()
    assert codes == [ReasonCode.UNSPECIFIED_ERROR] * 2
    assert isinstance(failed[0], PluginError)
    assert client_is_gone[0].code is ReasonCode.ADMINISTRATIVE_ACTION
    store.finish()
    harness.settle()
    assert len(codes) == 2
    store.slow = False


def test_the_shortcut_does_what_the_handler_does(broker_harness: Make) -> None:
    """Clients with sockets and plugin clients receive the same messages with and without the fast
    path.
    """
    results = []
    for shortcuts in (True, False):
        harness = broker_harness([HookRecorder("on_event", id="gw")], store=DurableStore())
        harness.broker.state.shortcuts = shortcuts
        socket = harness.connect("socket", session_expiry_interval=60)
        socket.subscribe("a/+", 1)
        inner = connect(harness, "inner")
        harness.clock.run(inner.subscribe("a/+", 2))
        got: list[Delivery] = []
        inner.on_message = got.append
        client = connect(harness, "c")
        codes: list[int] = []
        for number in range(40):
            topic = ("a/x", "a/y", "none")[number % 3]
            client.publish_later(topic, b"%d" % number, number % 2, done=codes.append)
        harness.settle()
        results.append(
            (
                codes,
                [(one.topic, one.payload, one.qos) for one in socket.messages],
                [(one.message.topic, one.message.payload, one.qos) for one in got],
                harness.metrics.messages_received,
                harness.metrics.messages_delivered,
            )
        )
    assert results[0] == results[1]
    assert results[0][0].count(ReasonCode.NO_MATCHING_SUBSCRIBERS) == 13


@pytest.mark.parametrize("versions", [(5, 5), (4, 4), (5, 4)])
def test_receivers_that_share_an_encoding_get_what_the_handler_sends(
    broker_harness: Make, versions: tuple[int, int]
) -> None:
    """Clean sessions of both MQTT versions receive the same bytes with and without the fast path, even if one of them
    is slow.
    """
    results = []
    for shortcuts in (True, False):
        harness = broker_harness([HookRecorder("on_event", id="gw")])
        harness.broker.state.shortcuts = shortcuts
        receivers = []
        for number, version in enumerate((*versions, *versions)):
            receiver = harness.connect(f"r{number}", version=version)
            receiver.subscribe("a/#", number // 2)
            receivers.append(receiver)
        client = connect(harness, "c")
        codes: list[int] = []
        for number in range(60):
            topic = ("a/x", "a/y", "none")[number % 3]
            client.publish_later(topic, b"%d" % number * 9000, number % 2, done=codes.append)
            if number % 10 == 0:
                harness.settle()
            if number == 30:
                receivers[0].wire.block()
        harness.settle()
        receivers[0].wire.unblock()
        harness.settle()
        results.append(
            (
                codes,
                [[(m.topic, m.payload, m.qos) for m in one.messages] for one in receivers],
                harness.metrics.messages_received,
                harness.metrics.messages_delivered,
                harness.metrics.bytes_sent,
                [one.inflight for one in harness.broker.sessions.values()],
            )
        )
    assert results[0] == results[1]
    codes, received, *_ = results[0]
    assert codes.count(ReasonCode.NO_MATCHING_SUBSCRIBERS) == 20
    assert [len(one) for one in received[1:]] == [40] * 3


def test_a_message_that_no_plugin_sees_is_encoded_once(broker_harness: Make) -> None:
    harness = broker_harness([HookRecorder("on_event", id="gw")])
    for number in range(3):
        harness.connect(f"r{number}").subscribe("a", number % 2)
    client = connect(harness, "c")
    for qos in (0, 1):
        client.publish_later("a", b"first", qos)
        harness.settle()
        before = harness.broker.state.work
        client.publish_later("a", b"then", qos)
        harness.settle()
        # Each receiver that needs its own delivery counts as one unit of work. These receivers share one packet.
        assert harness.broker.state.work - before == 1


# --- the end ---------------------------------------------------------------------------------------------------------


def last_words(harness: Harness) -> tuple[list[DisconnectReason], Any]:
    """Connect a client with a will, and another client that subscribes to the will's topic."""
    watcher = harness.connect("watcher")
    watcher.subscribe("gone", 1)
    client = connect(harness, "c", will=Will(Message("gone", b"c", 1)))
    ended: list[DisconnectReason] = []
    client.on_end = ended.append
    return ended, watcher


def test_a_disabled_plugin_takes_its_clients_along(harness: Harness) -> None:
    ended, watcher = last_words(harness)
    harness.hooks.disable("gw", "it broke")
    harness.settle()
    assert watcher.expect_message("gone").payload == b"c"
    (reason,) = ended
    assert (reason.by, reason.will, reason.error) == ("network", True, "the plugin has ended")
    with pytest.raises(PluginError, match="the plugin has ended"):
        harness.handle("gw").connect(ClientRequest("again"))


def test_a_plugin_that_a_reload_removes_takes_its_clients_along(harness: Harness) -> None:
    ended, watcher = last_words(harness)
    before = harness.hooks
    harness.reload(plugins=[])
    assert ended == []
    harness.wait(lambda done: before.shutdown(10.0, lambda: done(None), harness.hooks))
    harness.settle()
    assert watcher.expect_message("gone").payload == b"c"
    assert len(ended) == 1


def test_a_plugin_that_a_reload_makes_anew_takes_its_clients_along(harness: Harness) -> None:
    ended, watcher = last_words(harness)
    before = harness.hooks
    harness.reload(plugins=[HookRecorder("on_event", id="gw")])
    survivor = connect(harness, "of the new plugin")
    harness.wait(lambda done: before.shutdown(10.0, lambda: done(None), harness.hooks))
    harness.settle()
    assert watcher.expect_message("gone").payload == b"c"
    assert len(ended) == 1
    assert survivor.connected


def test_a_plugin_that_a_reload_keeps_keeps_its_clients(harness: Harness) -> None:
    ended, watcher = last_words(harness)
    before = harness.hooks
    (kept,) = before.plugins
    after = Hooks([kept.with_entry(kept.entry)])
    harness.hooks = after
    harness.broker.reload(harness.settings, after)
    harness.wait(lambda done: before.shutdown(10.0, lambda: done(None), after))
    harness.settle()
    assert ended == []
    watcher.expect_nothing()
    after.disable("gw", "later")
    harness.settle()
    assert len(ended) == 1


def test_on_shutdown_may_say_goodbye(broker_harness: Make) -> None:
    recorder = HookRecorder("on_shutdown", id="gw")
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("gone", 1)
    client = connect(harness, "c", will=Will(Message("gone", b"c", 1)))
    recorder.answer("on_shutdown", lambda: client.disconnect())
    before = harness.hooks
    harness.reload(plugins=[])
    harness.wait(lambda done: before.shutdown(10.0, lambda: done(None), harness.hooks))
    harness.settle()
    assert not client.connected
    assert "c" not in harness.broker.sessions
    watcher.expect_nothing()


def test_keep_alive_is_not_for_plugin_clients(broker_harness: Make) -> None:
    harness = broker_harness(
        [HookRecorder("on_event", id="gw")], config={"broker": {"server_keep_alive": 10}}
    )
    client = connect(harness, "c")
    harness.advance(100_000)
    assert client.connected


def test_each_plugin_takes_only_its_own(broker_harness: Make) -> None:
    harness = broker_harness(
        [instance_of(HookRecorder("on_event", id=name)) for name in ("gw", "other")]
    )
    mine = connect(harness, "mine")
    theirs: ClientHandle = harness.clock.run(
        harness.handle("other").connect(ClientRequest("theirs"))
    )
    harness.hooks.disable("other", "it broke")
    harness.settle()
    assert (mine.connected, theirs.connected) == (True, False)
