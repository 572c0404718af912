"""Test what other nodes of a cluster cause on this one: their messages, retained messages, and disconnected clients."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Deny, Drop
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.packets import Connack, Puback
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.plugin import ClientRequest
from hookmq.storage.cluster import Remote
from hookmq.storage.records import (
    DropRetained,
    Enqueue,
    PutMessage,
    PutRetained,
    PutState,
)
from hookmq_testing import (
    EPOCH,
    ClusterRecorder,
    DurableStore,
    Harness,
    HookRecorder,
    RecordingJournal,
    SlowStore,
    will,
)

Make = Callable[..., Harness]
UNAWAITED = 0.05
"""Seconds until a cluster commits a batch that nothing waits for."""


@pytest.fixture
def cluster() -> ClusterRecorder:
    return ClusterRecorder()


def message(payload: bytes = b"x", qos: int = 1, topic: str = "t", **fields: Any) -> Message:
    return Message(topic, payload, qos, **{"received_at": EPOCH, **fields})


def everyone(client_id: str, durable: bool, qos: int) -> bool:
    return True


def deliver(
    harness: Harness,
    cluster: ClusterRecorder,
    *messages: Message,
    wanted: Callable[[str, bool, int], bool] = everyone,
    groups: tuple[str, ...] = (),
) -> None:
    for one in messages or (message(),):
        cluster.node.deliver(one, wanted, groups)
    cluster.node.flush()
    harness.settle()


# deliver ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_message_of_another_node_is_delivered(
    broker_harness: Make, cluster: ClusterRecorder, qos: int, version: int
) -> None:
    harness = broker_harness([cluster])
    sub = harness.connect("sub", version)
    sub.subscribe("t", 1)
    for number in range(3):
        deliver(harness, cluster, message(b"%d" % number, qos))
    for number in range(3):
        sub.expect_message("t", b"%d" % number, min(qos, 1), retain=False)
    sub.expect_nothing()


def test_several_messages_of_a_turn_keep_their_order_and_share_a_write(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    sub = harness.connect("sub")
    sub.subscribe("#", 1)
    writes = len(sub.wire.writes)
    deliver(harness, cluster, *(message(b"%d" % n, n % 2, f"t/{n}") for n in range(6)))
    assert [one.payload for one in sub.messages] == [b"%d" % n for n in range(6)]
    assert len(sub.wire.writes) == writes + 1


def test_only_the_wanted_sessions_get_it(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    subs = {
        name: harness.connect(name, session_expiry_interval=expiry)
        for name, expiry in (("durable0", 60), ("durable1", 60), ("clean0", 0), ("clean1", 0))
    }
    for name, sub in subs.items():
        sub.subscribe("t", int(name[-1]))
    asked: list[tuple[str, bool, int]] = []

    def wanted(client_id: str, durable: bool, qos: int) -> bool:
        asked.append((client_id, durable, qos))
        return durable and qos > 0

    deliver(harness, cluster, wanted=wanted)
    assert sorted(asked) == [
        ("clean0", False, 0), ("clean1", False, 1), ("durable0", True, 0), ("durable1", True, 1),
    ]  # fmt: skip
    assert [name for name, sub in subs.items() if sub.messages] == ["durable1"]


def test_overlapping_subscriptions_are_asked_about_once(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    sub = harness.connect("sub")
    sub.subscribe(["t", "#"], 0)
    sub.subscribe("+", 1)
    asked: list[int] = []

    def wanted(client_id: str, durable: bool, qos: int) -> bool:
        asked.append(qos)
        return True

    deliver(harness, cluster, wanted=wanted)
    assert asked == [1]
    sub.expect_message("t", b"x", 1)
    sub.expect_nothing()


def test_it_does_nothing_else(broker_harness: Make, cluster: ClusterRecorder) -> None:
    hooks = HookRecorder("authorize", "on_publish", "on_published", "on_retained", deliver=False)
    journal = RecordingJournal()
    store = SlowStore(slow=False)
    harness = broker_harness([hooks, cluster], journals=[journal], store=store)
    cluster.node.add_remote(Remote("other"), Subscription("#", "#", 2))
    sub = harness.connect("sub")
    sub.subscribe("t", 1, retain_as_published=True)
    hooks.clear()
    cluster.recorded.clear()
    commits = len(store.committed)
    deliver(harness, cluster, message(retain=True))
    sub.expect_message("t", b"x", 1, retain=True)
    assert hooks.calls() == []
    assert cluster.recorded == []
    assert journal.appended == []
    assert harness.broker.state.retained.get("t") is None
    assert len(store.committed) == commits


def test_on_deliver_decides(broker_harness: Make, cluster: ClusterRecorder) -> None:
    hooks = HookRecorder("on_deliver", "on_delivered")
    hooks.answer("on_deliver", lambda client, message: Drop() if client.client_id == "no" else None)
    harness = broker_harness([hooks, cluster])
    yes, no = harness.connect("yes"), harness.connect("no")
    yes.subscribe("t", 1)
    no.subscribe("t", 1)
    deliver(harness, cluster)
    yes.expect_message("t", b"x")
    no.expect_nothing()
    assert [call.client.client_id for call in hooks.calls("on_delivered")] == ["yes"]


def test_a_client_does_not_get_its_own_message_if_it_does_not_want_it(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    one, two = harness.connect("one"), harness.connect("two")
    one.subscribe("t", 1, no_local=True)
    two.subscribe("t", 1, no_local=True)
    deliver(harness, cluster, message(sender="one"))
    one.expect_nothing()
    two.expect_message("t", b"x")


@pytest.mark.parametrize("kept", [False, True])
def test_the_retain_flag(broker_harness: Make, cluster: ClusterRecorder, kept: bool) -> None:
    harness = broker_harness([cluster])
    sub = harness.connect("sub")
    sub.subscribe("t", 1, retain_as_published=kept)
    deliver(harness, cluster, message(retain=True))
    sub.expect_message("t", retain=kept)


def test_properties_and_the_expiry_are_passed_on(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    sub = harness.connect("sub")
    sub.subscribe("t", 1, identifier=5)
    now = harness.clock.time()
    deliver(
        harness, cluster, message(b"gone", expires_at=now - 1), message(b"x", expires_at=now + 9)
    )
    found = sub.expect_message("t", b"x")
    assert found.properties.message_expiry_interval == 9
    assert found.properties.subscription_identifier == (5,)
    sub.expect_nothing()


def test_an_offline_session_queues_it_in_one_commit_with_what_the_cluster_records(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([cluster], store=store)
    sub = harness.connect("sub", session_expiry_interval=60)
    sub.subscribe("t", 1)
    sub.drop()
    harness.advance(UNAWAITED)
    store.slow = True
    for number in range(2):
        cluster.node.deliver(message(b"%d" % number), everyone, ())
    done: list[bool] = []
    cluster.node.after_commit(lambda: done.append(True))
    cluster.node.flush()
    assert store.committing is None  # not before the end of the turn
    harness.settle()
    batch = store.committing
    assert batch is not None
    kinds = [type(record) for record in batch]
    assert kinds == [PutMessage, Enqueue, PutMessage, Enqueue]
    assert done == []
    store.finish()
    assert done == [True]
    store.slow = False
    harness.restart()
    sub.reconnect()
    assert [sub.expect_message("t").payload for _ in range(2)] == [b"0", b"1"]


def test_touch_commits_without_records(broker_harness: Make, cluster: ClusterRecorder) -> None:
    store = SlowStore()
    harness = broker_harness([cluster], store=store)
    cluster.node.touch()
    harness.settle()
    assert store.committing is None
    harness.advance(UNAWAITED)
    assert store.committing == ()
    store.finish()
    harness.settle()
    assert store.committed == [()]


def test_after_commit_runs_at_once_if_nothing_is_recorded(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster], store=SlowStore())
    done: list[bool] = []
    cluster.node.after_commit(lambda: done.append(True))
    harness.settle()
    assert done == [True]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_large_fan_out_is_served_in_slices(
    broker_harness: Make, cluster: ClusterRecorder, qos: int
) -> None:
    harness = broker_harness([cluster], config={"broker": {"fan_out_batch": 2}})
    subs = [harness.connect(f"sub{number}") for number in range(8)]
    for sub in subs:
        sub.subscribe("t", 1)
    written = [len(sub.wire.writes) for sub in subs]
    for number in range(2):
        cluster.node.deliver(
            message(b"%d" % number, qos), lambda client_id, durable, qos: client_id != "sub7", ()
        )
    cluster.node.flush()
    harness.settle()
    turns = [
        sub.wire.writes[before].turn for sub, before in zip(subs[:7], written[:7], strict=True)
    ]
    assert turns == sorted(turns)
    assert len(set(turns)) > 2
    for sub in subs[:7]:
        assert [one.payload for one in sub.messages] == [b"0", b"1"]
    assert subs[7].messages == []


def test_a_large_fan_out_to_durable_sessions_is_one_commit(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([cluster], store=store, config={"broker": {"fan_out_batch": 2}})
    for number in range(6):
        sub = harness.connect(f"sub{number}", session_expiry_interval=60)
        sub.subscribe("t", 1)
        sub.drop()
    harness.advance(UNAWAITED)
    store.committed.clear()
    deliver(harness, cluster)
    harness.advance(UNAWAITED)
    (batch,) = store.committed
    assert [type(one) for one in batch] == [PutMessage] + [Enqueue] * 6


def test_messages_of_this_node_and_of_others_on_a_topic_do_not_overtake_each_other(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster], config={"broker": {"fan_out_batch": 2}})
    subs = [harness.connect(f"sub{number}") for number in range(6)]
    for sub in subs:
        sub.subscribe("t", 1)
    pub = harness.connect("pub")
    with harness.together():
        pub.publish("t", b"0", 1)
        while not harness.broker.state.fan_outs:
            assert harness.clock.turn()
        cluster.node.deliver(message(b"1"), everyone, ())
        # A small one must wait as well.
        cluster.node.deliver(message(b"2"), lambda client_id, durable, qos: client_id == "sub5", ())
        cluster.node.flush()
    for sub in subs[:5]:
        assert [one.payload for one in sub.messages] == [b"0", b"1"]
    assert [one.payload for one in subs[5].messages] == [b"0", b"1", b"2"]


def test_a_group_gets_it_only_if_it_is_named_and_whatever_is_elsewhere(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster], store=SlowStore(slow=False))
    member = harness.connect("member", session_expiry_interval=60)
    member.subscribe(["$share/g/t", "$share/h/t"], 1)
    deliver(harness, cluster)
    member.expect_nothing()
    deliver(harness, cluster, groups=("g/g/t", "g/none/t"))
    member.expect_message("t", b"x", 1)
    member.expect_nothing()
    member.drop()
    cluster.groups_elsewhere = {"g/g/t", "g/h/t"}
    deliver(harness, cluster, groups=("g/g/t",))
    queued = {one.share: one.queued for one in harness.broker.state.groups.values()}
    assert queued == {"g": 1, "h": 0}
    assert cluster.calls("elsewhere") == []
    member.reconnect()
    member.expect_message("t", b"x", 1)


def test_a_message_nobody_wants_is_dropped_silently(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    deliver(harness, cluster, groups=("g/g/t",))
    assert harness.metrics.messages_delivered == 0


# disconnect ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expiry", [0, 60])
def test_disconnect(broker_harness: Make, cluster: ClusterRecorder, expiry: int) -> None:
    observer = HookRecorder("on_disconnect", "on_published")
    harness = broker_harness([cluster, observer], store=DurableStore())
    sub = harness.connect("sub")
    sub.subscribe("last", 1)
    one = harness.connect("one", session_expiry_interval=expiry, will=will("last", b"will"))
    one.subscribe("t", 1)
    taken = ReasonCode.SESSION_TAKEN_OVER
    assert cluster.node.disconnect("one", taken, "connected to another node")
    assert not cluster.node.disconnect("one", taken, "again")
    assert not cluster.node.disconnect("nobody", taken, "never here")
    packet = one.expect_disconnect(taken)
    assert packet is not None
    assert packet.properties.reason_string == "connected to another node"
    sub.expect_message("last", b"will")
    (call,) = observer.calls("on_disconnect")
    assert (call.reason.code, call.reason.by.value) == (taken, "takeover")
    assert ("one" in harness.broker.state.sessions) == bool(expiry)
    gone = [call[1] for call in cluster.calls("subscribed") if not call[4]]
    assert gone == ([] if expiry else ["one"])


def test_disconnect_for_another_reason(broker_harness: Make, cluster: ClusterRecorder) -> None:
    observer = HookRecorder("on_disconnect")
    harness = broker_harness([cluster, observer])
    one, old = harness.connect("one"), harness.connect("old", version=4)
    for name in ("one", "old"):
        cluster.node.disconnect(name, ReasonCode.SERVER_SHUTTING_DOWN, "moved")
    one.expect_disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
    old.expect_closed()
    assert {call.reason.by.value for call in observer.calls()} == {"server"}


def test_a_disconnected_client_learns_its_server(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    one = harness.connect("one")
    cluster.node.disconnect("one", ReasonCode.USE_ANOTHER_SERVER, "drained", "b.example:1883")
    packet = one.expect_disconnect(ReasonCode.USE_ANOTHER_SERVER)
    assert packet is not None
    assert packet.properties.server_reference == "b.example:1883"


def test_clients_are_those_of_listeners(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    harness.connect("online")
    harness.connect("offline", session_expiry_interval=60).drop()
    request = harness.handle("cluster").connect(ClientRequest("plugin"))
    harness.clock.spawn(request, lambda *_: None)
    harness.settle()
    assert sorted(harness.broker.state.sessions) == ["offline", "online", "plugin"]
    assert cluster.node.clients() == ["online"]


def test_disconnect_a_client_whose_session_is_not_committed_yet(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore()
    harness = broker_harness([cluster], store=store)
    one = harness.connect("one", session_expiry_interval=60, expect=None)
    one.expect_nothing()
    assert cluster.node.disconnect("one", ReasonCode.SERVER_BUSY, "connected elsewhere")
    assert one.expect(Connack).code == ReasonCode.SERVER_BUSY
    one.expect_closed()
    store.finish()
    harness.settle()


# retain ----------------------------------------------------------------------------------------------------------

PUBLISHER = ClientInfo("far", 5, "user", Peer("192.0.2.9"), Scope())


def kept(harness: Harness) -> dict[str, bytes]:
    reader = harness.connect("reader")
    reader.subscribe("#")
    found = {one.topic: one.payload for one in reader.messages}
    reader.disconnect()
    return found


@pytest.mark.parametrize("publisher", [None, PUBLISHER])
def test_retain_replaces_and_clears(
    broker_harness: Make, cluster: ClusterRecorder, publisher: ClientInfo | None
) -> None:
    observer = HookRecorder("on_retained")
    store = SlowStore(slow=False)
    harness = broker_harness([cluster, observer], store=store)
    sub = harness.connect("sub")
    sub.subscribe("#")
    bytes_before = harness.broker.state.retained_bytes
    cluster.node.retain(message(b"one", retain=True), publisher)
    assert kept(harness) == {"t": b"one"}
    cluster.node.retain(message(b"two", retain=True), publisher)
    assert kept(harness) == {"t": b"two"}
    cluster.node.retain(message(b"", retain=True), publisher)
    cluster.node.retain(message(b"", retain=True), publisher)  # there is none any more
    assert kept(harness) == {}
    found = [call.message and call.message.payload for call in observer.calls()]
    assert found == [b"one", b"two", None]
    sub.expect_nothing()
    assert harness.broker.state.retained_bytes == bytes_before
    assert len(harness.broker.state.publishers) == 0
    assert store.committed == []


def test_a_retained_message_of_another_node_expires_here_without_a_record(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore(slow=False)
    harness = broker_harness([cluster], store=store)
    pub = harness.connect("pub")
    pub.publish("u", b"mine", 1, retain=True, message_expiry_interval=10)
    cluster.node.retain(message(retain=True, expires_at=harness.clock.time() + 10), None)
    cluster.node.retain(message(b"new", retain=True, topic="v", expires_at=EPOCH + 10), None)
    cluster.node.retain(message(b"newer", retain=True, topic="v"), None)
    assert kept(harness).keys() == {"t", "u", "v"}
    harness.advance(11)
    assert kept(harness) == {"v": b"newer"}
    assert store.records(DropRetained) == []


def test_without_a_cluster_the_expiry_is_recorded(broker_harness: Make) -> None:
    store = SlowStore(slow=False)
    harness = broker_harness(store=store)
    pub = harness.connect("pub")
    pub.publish("u", b"mine", 1, retain=True, message_expiry_interval=10)
    harness.advance(11)
    assert store.records(DropRetained) == [DropRetained("u")]


def test_a_client_here_clears_and_replaces_what_another_node_retained(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore(slow=False)
    harness = broker_harness([cluster], store=store)
    pub = harness.connect("pub")
    for topic in ("t", "u"):
        cluster.node.retain(message(b"far", retain=True, topic=topic), PUBLISHER)
    pub.publish("t", b"", 1, retain=True)
    pub.publish("u", b"near", 1, retain=True)
    assert store.records(DropRetained) == [DropRetained("t")]
    assert [one.message.payload for one in store.records(PutRetained)] == [b"near"]  # type: ignore[union-attr]
    assert kept(harness) == {"u": b"near"}


def test_the_publisher_must_still_have_the_permission(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    rules = HookRecorder("authorize")
    rules.answer("authorize", lambda client: Deny() if client.client_id == "far" else None)
    harness = broker_harness([rules, cluster])
    cluster.node.retain(message(b"far", retain=True), PUBLISHER)
    cluster.node.retain(message(b"plugin", retain=True, topic="u"), None)
    assert kept(harness) == {"u": b"plugin"}


# the connection to the cluster -----------------------------------------------------------------------------------


def test_provide_cluster_attaches_the_cluster_before_state_is_loaded() -> None:
    order: list[str] = []

    class Order(ClusterRecorder):
        def attach(self, node: Any) -> None:
            order.append("attach")
            super().attach(node)

    class Loading(DurableStore):
        def load(self) -> Any:
            order.append("load")
            return super().load()

    with Harness([Order()], store=Loading()):
        assert order == ["attach", "load"]


def test_state_of_plugins_is_recorded_as_usual(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore(slow=False)
    harness = broker_harness([cluster], store=store)
    harness.handle("cluster").state.put("key", b"value")
    harness.settle()
    assert len(store.records(PutState)) == 1
    assert cluster.calls("flush") == []


def test_a_slow_reader_gets_the_messages_later(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    sub = harness.connect("sub", high_water=1)
    sub.subscribe("t", 1)
    sub.pause()
    deliver(harness, cluster, *(message(b"%d" % n) for n in range(5)))
    sub.resume()
    assert [one.payload for one in sub.messages] == [b"%d" % n for n in range(5)]


def test_acknowledgements_of_delivered_messages(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = DurableStore()
    harness = broker_harness([cluster], store=store)
    sub = harness.connect("sub", session_expiry_interval=60, auto_ack=False)
    sub.subscribe("t", 1)
    deliver(harness, cluster)
    found = sub.expect_message("t", b"x", 1)
    harness.advance(UNAWAITED)
    assert len(store.queues["c/sub"]) == 1
    sub.send(Puback(found.packet_id))
    harness.advance(UNAWAITED)
    assert store.queues == {}


@pytest.mark.parametrize("count", [1, 6])
def test_a_message_follows_the_one_that_the_commit_waits_for(
    broker_harness: Make, cluster: ClusterRecorder, count: int
) -> None:
    harness = broker_harness(
        [cluster], store=DurableStore(), config={"broker": {"fan_out_batch": 2}}
    )
    subs = [harness.connect(f"sub{number}", session_expiry_interval=60) for number in range(6)]
    for sub in subs:
        sub.subscribe("t", 1)
        sub.drop()
    pub = harness.connect("pub")
    with harness.together():
        pub.publish("t", b"0", 1)
        while harness.broker.state.collecting is None:
            assert harness.clock.turn()
        wanted = {f"sub{number}" for number in range(6 - count, 6)}
        cluster.node.deliver(message(b"1"), lambda client_id, durable, qos: client_id in wanted, ())
        cluster.node.flush()
    for number, sub in enumerate(subs):
        sub.reconnect()
        expected = [b"0", b"1"] if f"sub{number}" in wanted else [b"0"]
        assert [one.payload for one in sub.messages] == expected
