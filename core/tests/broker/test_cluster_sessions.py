"""Test how sessions move between the nodes of a cluster: `Node.adopt` and `Node.release`."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.state import BrokerState
from hookmq.hooks.verdicts import Deny
from hookmq.mqtt.packets import Connack, Pubrec, Pubrel
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.cluster import Wills
from hookmq.storage.memory_store import MemoryStore
from hookmq.storage.records import Loaded
from hookmq_testing import (
    ClusterRecorder,
    DurableStore,
    Harness,
    HookRecorder,
    MemoryClient,
    SlowStore,
    will,
)

Make = Callable[..., Harness]
SHUTTING_DOWN = ReasonCode.SERVER_SHUTTING_DOWN
UNAWAITED = 0.05
"""Seconds until a cluster commits a batch that nothing waits for."""


@pytest.fixture
def cluster() -> ClusterRecorder:
    return ClusterRecorder()


class Joined(DurableStore):
    """A store that also has what another node has stored, as the store of a cluster does."""

    def join(self, other: DurableStore, **changes: Any) -> list[Loaded]:
        """Take over the data of a node that died, and return its records."""
        records = list(other.load())
        self.sessions |= other.sessions
        self.subscriptions |= other.subscriptions
        self.received |= other.received
        self.messages |= {id: one for id, one in other.messages.items() if id not in self.messages}
        for owner, queue in other.queues.items():
            self.queues.setdefault(owner, dict(queue))
        self.next_id = max(self.next_id, other.next_id)
        return records


class Pair:
    """A node that dies, and one that lives on."""

    def __init__(self, make: Make, **options: Any) -> None:
        self.cluster = ClusterRecorder()
        self.dead = make(store=DurableStore())
        self.store = Joined()
        self.alive = make([self.cluster, *options.pop("plugins", ())], store=self.store, **options)

    def adopt(self) -> tuple[int, Wills]:
        """Let the first node die, and the other one adopt its sessions."""
        store = self.dead.store
        assert isinstance(store, DurableStore)
        records = self.store.join(store)
        adopted = self.cluster.node.adopt(records)
        self.alive.settle()
        return adopted

    def stored(self) -> Joined:
        """Return the living node's store, with everything that was to be stored until now."""
        self.alive.advance(UNAWAITED)
        return self.store

    def resume(self, client: MemoryClient, **changes: Any) -> MemoryClient:
        """Let a client of the first node resume its session on the other one."""
        fields = client.connect
        again = self.alive.connect(
            fields.client_id,
            fields.version,
            clean_start=False,
            properties=fields.properties,
            **changes,
        )
        assert again.session_present
        return again


@pytest.fixture
def pair(broker_harness: Make) -> Pair:
    return Pair(broker_harness)


# adopt -----------------------------------------------------------------------------------------------------------


def test_sessions_are_adopted_with_subscriptions_and_queues(pair: Pair) -> None:
    sub = pair.dead.connect("sub", session_expiry_interval=60)
    sub.subscribe(["t", "u/#"], 1)
    pair.dead.connect("other", session_expiry_interval=60)
    sub.drop()
    pub = pair.dead.connect("pub")
    for number in range(5):
        pub.publish("t", b"%d" % number, 1, expect=0)
    assert pair.adopt() == (2, {})
    told = [(call[1], call[2], call[3].filter) for call in pair.cluster.calls("subscribed")]
    assert told == [("sub", True, "t"), ("sub", True, "u/#")]
    assert pair.alive.broker.state.queued_bytes > 0
    again = pair.resume(sub)
    for number in range(5):
        again.expect_message("t", b"%d" % number, 1)
    pair.alive.connect("pub").publish("u/new", b"new", 1, expect=0)
    again.expect_message("u/new", b"new")
    again.expect_nothing()
    assert pair.alive.broker.state.queued_bytes == 0
    assert pair.stored().queues == {}


def test_new_messages_follow_the_queue_and_do_not_replace_it(pair: Pair) -> None:
    sub = pair.dead.connect("sub", session_expiry_interval=60)
    sub.subscribe("t", 1)
    sub.drop()
    pub = pair.dead.connect("pub")
    for number in range(3):
        pub.publish("t", b"%d" % number, 1, expect=0)
    pair.adopt()
    here = pair.alive.connect("pub")
    for number in range(3, 6):
        here.publish("t", b"%d" % number, 1, expect=0)
    again = pair.resume(sub)
    assert [again.expect_message("t").payload for _ in range(6)] == [b"%d" % n for n in range(6)]
    assert pair.stored().queues == {}


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_in_flight_are_sent_again_with_their_packet_ids(pair: Pair, qos: int) -> None:
    sub = pair.dead.connect("sub", session_expiry_interval=60, auto_ack=False)
    sub.subscribe("t", 2)
    pair.dead.connect("pub").publish("t", b"x", qos, expect=0)
    first = sub.expect_message("t", b"x", qos)
    pair.adopt()
    again = pair.resume(sub)
    repeated = again.expect_message("t", b"x", qos, dup=True)
    assert repeated.packet_id == first.packet_id
    pair.alive.connect("pub").publish("t", b"y", 1, expect=0)
    assert again.expect_message("t", b"y").packet_id != first.packet_id
    assert pair.stored().queues == {}


def test_a_released_message_continues_with_pubrel(pair: Pair) -> None:
    sub = pair.dead.connect("sub", session_expiry_interval=60, auto_ack=False)
    sub.subscribe("t", 2)
    pair.dead.connect("pub").publish("t", b"x", 2, expect=0)
    first = sub.expect_message("t", b"x", 2)
    sub.send(Pubrec(first.packet_id))
    sub.expect(Pubrel)
    pair.adopt()
    assert pair.resume(sub, auto_ack=False).expect(Pubrel).packet_id == first.packet_id


def test_a_received_packet_id_is_not_delivered_again(pair: Pair) -> None:
    pub = pair.dead.connect("pub", session_expiry_interval=60, auto_ack=False)
    pub.publish("t", b"x", 2, packet_id=9)
    pub.expect(Pubrec)
    pair.adopt()
    sub = pair.alive.connect("sub")
    sub.subscribe("t", 2)
    again = pair.resume(pub)
    again.publish("t", b"x", 2, packet_id=9, dup=True)
    again.expect(Pubrec)
    sub.expect_nothing()


@pytest.mark.parametrize(("delay", "expiry"), [(30, 60), (90, 60)])
@pytest.mark.parametrize("online", [False, True])
def test_wills_become_due(pair: Pair, delay: int, expiry: int, online: bool) -> None:
    watcher = pair.alive.connect("watcher")
    watcher.subscribe("last")
    one = pair.dead.connect(
        "one", session_expiry_interval=expiry, will=will("last", b"will", delay=delay)
    )
    if not online:
        one.drop()
        pair.alive.advance(10)  # the clocks of both nodes agree
        pair.dead.advance(10)
    pair.adopt()
    left = min(delay, expiry) - (0 if online else 10)
    pair.alive.advance(left - 1)
    watcher.expect_nothing()
    pair.alive.advance(1)
    watcher.expect_message("last", b"will")
    pair.alive.advance(1000)
    watcher.expect_nothing()


def test_a_will_that_was_due_meanwhile_is_published_at_once(pair: Pair) -> None:
    watcher = pair.alive.connect("watcher")
    watcher.subscribe("last")
    pair.dead.connect("one", session_expiry_interval=600, will=will("last", delay=5)).drop()
    pair.alive.advance(100)
    pair.adopt()
    watcher.expect_message("last")


def test_a_client_that_returns_in_time_cancels_its_will(pair: Pair) -> None:
    watcher = pair.alive.connect("watcher")
    watcher.subscribe("last")
    one = pair.dead.connect("one", session_expiry_interval=60, will=will("last", delay=30))
    pair.adopt()
    pair.resume(one)
    pair.alive.advance(1000)
    watcher.expect_nothing()


@pytest.mark.parametrize("online", [False, True])
def test_sessions_expire(pair: Pair, online: bool) -> None:
    one = pair.dead.connect("one", session_expiry_interval=60)
    one.subscribe("t", 1)
    if not online:
        one.drop()
        for harness in (pair.dead, pair.alive):
            harness.advance(10)
    pair.adopt()
    pair.alive.advance(49 if not online else 59)
    assert len(pair.alive.broker.sessions) == 1
    pair.alive.advance(2)
    assert len(pair.alive.broker.sessions) == 0
    assert pair.store.sessions == {}
    assert pair.cluster.calls("subscribed")[-1][4] is False


def test_clients_that_exist_here_are_left_out(pair: Pair) -> None:
    for harness, topic in ((pair.dead, "old"), (pair.alive, "new")):
        one = harness.connect("one", session_expiry_interval=60)
        one.subscribe([topic, f"$share/g/{topic}"], 1)
        one.drop()
        harness.connect("pub").publish(topic, topic.encode(), 1, expect=0)
    pair.dead.connect("two", session_expiry_interval=60)
    before = pair.alive.broker.state.queued_bytes
    assert pair.adopt() == (1, {})
    state = pair.alive.broker.state
    assert list(state.sessions["one"].subscriptions) == ["new", "$share/g/new"]
    assert state.sessions["one"].queued == 1
    assert state.queued_bytes == before
    assert [group.topic_filter for group in state.groups.values()] == ["new"]


def test_existing_sessions_keep_their_deadlines(pair: Pair) -> None:
    watcher = pair.alive.connect("watcher")
    watcher.subscribe("last")
    pair.alive.connect("here", session_expiry_interval=60, will=will("last", delay=30)).drop()
    pair.dead.connect("there", session_expiry_interval=600)
    pair.alive.advance(20)
    pair.adopt()
    pair.alive.advance(9)
    watcher.expect_nothing()
    pair.alive.advance(1)
    watcher.expect_message("last")
    pair.alive.advance(31)
    assert len(pair.alive.broker.sessions) == 2
    watcher.expect_nothing()


def test_queues_of_shared_subscriptions_are_adopted_with_their_members(pair: Pair) -> None:
    member = pair.dead.connect("member", session_expiry_interval=60)
    member.subscribe("$share/g/t", 1)
    member.drop()
    pub = pair.dead.connect("pub")
    for number in range(3):
        pub.publish("t", b"%d" % number, 1, expect=0)
    pair.adopt()
    (group,) = pair.alive.broker.state.groups.values()
    assert group.queued == 3
    pair.alive.connect("pub").publish("t", b"3", 1, expect=0)
    again = pair.resume(member)
    assert [again.expect_message("t").payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    assert pair.stored().queues == {}
    assert pair.alive.broker.state.queued_bytes == 0


def test_an_unacknowledged_shared_message_goes_to_another_member(pair: Pair) -> None:
    member = pair.dead.connect("member", session_expiry_interval=60, auto_ack=False)
    member.subscribe("$share/g/t", 1)
    pair.dead.connect("pub").publish("t", b"x", 1, expect=0)
    member.expect_message("t", b"x")
    here = pair.alive.connect("here")
    here.subscribe("$share/g/t", 1)
    pair.adopt()
    here.expect_message("t", b"x")
    pair.resume(member).expect_nothing()


def test_the_queue_of_a_group_that_exists_here_stays_as_it_is(pair: Pair) -> None:
    for harness, payload in ((pair.dead, b"far"), (pair.alive, b"near")):
        member = harness.connect(f"at {payload!r}", session_expiry_interval=60)
        member.subscribe("$share/g/t", 1)
        member.drop()
        harness.connect("pub").publish("t", payload, 1, expect=0)
    pair.adopt()
    (group,) = pair.alive.broker.state.groups.values()
    assert [one.outgoing.message.payload for one in group.queue] == [b"near"]
    assert len(group.members) == 2


def test_a_queue_without_summary_is_not_read(pair: Pair) -> None:
    member = pair.dead.connect("member", session_expiry_interval=60)
    member.subscribe("$share/g/t", 1)
    member.drop()
    pair.dead.connect("pub").publish("t", b"x", 1, expect=0)
    store = pair.dead.store
    assert isinstance(store, DurableStore)
    records = [one for one in pair.store.join(store) if getattr(one, "owner", "") != "g/g/t"]
    pair.cluster.node.adopt(records)
    (group,) = pair.alive.broker.state.groups.values()
    assert group.queued == 0


def test_only_sessions_are_adopted(broker_harness: Make) -> None:
    plugin = ClusterRecorder("dead")
    dead = broker_harness([plugin], store=DurableStore())
    dead.handle("cluster").state.put("key", b"dead")
    dead.connect("pub").publish("t", b"kept", 1, retain=True)
    pair = Pair(broker_harness)
    pair.dead = dead
    pair.alive.handle("cluster").state.put("key", b"alive")
    publisher = pair.alive.connect("near")
    publisher.publish("u", b"kept", 1, retain=True)
    pair.adopt()
    assert pair.alive.handle("cluster").state.get("key") == b"alive"
    state = pair.alive.broker.state
    assert state.retained.get("t") is None
    assert len(state.publishers) == 1
    assert pair.store.publishers.keys() == {1}


def test_ids_of_adopted_messages_are_not_used_again(pair: Pair) -> None:
    sub = pair.dead.connect("sub", session_expiry_interval=60)
    sub.subscribe("t", 1)
    sub.drop()
    pub = pair.dead.connect("pub")
    for number in range(20):
        pub.publish("t", b"%d" % number, 1, expect=0)
    pair.adopt()
    offline = pair.alive.connect("offline", session_expiry_interval=60)
    offline.subscribe("u", 1)
    offline.drop()
    here = pair.alive.connect("pub")
    for number in range(30):
        here.publish("u", b"new %d" % number, 1, expect=0)
    again = pair.resume(sub)
    for number in range(20):
        again.expect_message("t", b"%d" % number)


def test_a_store_that_reads_later_is_a_failure(broker_harness: Make) -> None:
    class Late(Joined):
        def read(
            self, owner: str, after: int, max_count: int, max_size: int, done: Callable[..., None]
        ) -> None:
            """It never answers."""

    cluster = ClusterRecorder()
    dead = broker_harness(store=DurableStore())
    member = dead.connect("member", session_expiry_interval=60)
    member.subscribe("$share/g/t", 1)
    member.drop()
    dead.connect("pub").publish("t", b"x", 1, expect=0)
    store = Late()
    alive = broker_harness([cluster], store=store)
    failures: list[str] = []
    alive.broker.on_failure = failures.append
    assert isinstance(dead.store, DurableStore)
    cluster.node.adopt(store.join(dead.store))
    assert failures == ["a queue was not read at once"]


def test_sessions_that_were_online_are_recorded_as_offline(pair: Pair) -> None:
    pair.dead.connect("one", session_expiry_interval=60)
    pair.alive.advance(100)
    pair.adopt()
    now = pair.alive.clock.time()
    assert pair.stored().sessions["one"].session.ended_at == now


@pytest.mark.parametrize("expiry", [0, 60])
def test_the_will_of_a_client_with_another_session_is_published(pair: Pair, expiry: int) -> None:
    watcher = pair.alive.connect("watcher")
    watcher.subscribe("last", 1)
    pair.dead.connect("one", session_expiry_interval=expiry, will=will("last", b"former", 1))
    one = pair.alive.connect("one", will=will("last", b"new", 1))
    count, wills = pair.adopt()
    watcher.expect_nothing()
    assert (count, list(wills)) == (0, [] if expiry else ["one"])
    for publish in wills.values():
        publish()
        watcher.expect_message("last", b"former", 1)
    watcher.expect_nothing()
    one.drop()
    watcher.expect_message("last", b"new", 1)


def test_sessions_that_the_cluster_names_are_left_out(pair: Pair) -> None:
    """The session of such a client has ended here, but no commit says so yet."""
    watcher = pair.alive.connect("watcher")
    watcher.subscribe("last", 1)
    for name, expiry in (("one", 0), ("two", 60), ("three", 0)):
        last = will("last", name.encode(), 1)
        pair.dead.connect(name, session_expiry_interval=expiry, will=last)
    store = pair.dead.store
    assert isinstance(store, DurableStore)
    count, wills = pair.cluster.node.adopt(pair.store.join(store), True, ["one", "two"])
    pair.alive.settle()
    assert (count, list(wills)) == (1, ["one"])
    watcher.expect_message("last", b"three", 1)
    watcher.expect_nothing()
    wills["one"]()
    watcher.expect_message("last", b"one", 1)


def test_an_empty_lane(broker_harness: Make, cluster: ClusterRecorder) -> None:
    broker_harness([cluster])
    assert cluster.node.adopt(()) == (0, {})


# release ---------------------------------------------------------------------------------------------------------


def idle(state: BrokerState) -> tuple[int, ...]:
    """Return the counts that are zero without sessions."""
    return (
        state.queued_bytes,
        state.loaded_bytes,
        state.session_bytes,
        len(state.sessions),
        len(state.groups),
        len(state.session_index),
        len(state.undecided_wills),
        state.undecided_will_bytes,
    )


def release(harness: Harness, cluster: ClusterRecorder, *names: str) -> None:
    cluster.node.release(names, SHUTTING_DOWN, "moved")
    harness.settle()


@pytest.mark.parametrize(("version", "code"), [(5, 0x8B), (5, 0x8E), (4, 0x8B)])
def test_an_online_client_is_disconnected(
    broker_harness: Make, cluster: ClusterRecorder, version: int, code: int
) -> None:
    observer = HookRecorder("on_disconnect", "on_session", "on_dropped")
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([cluster, observer], store=store)
    watcher = harness.connect("watcher")
    watcher.subscribe("last")
    one = harness.connect("one", version, clean_start=False, will=will("last"), auto_ack=False)
    if version == 5:
        one.reconnect(session_expiry_interval=60)
        harness.settle()
        watcher.unread.clear()
    one.subscribe("t", 1)
    one.publish("t", b"x", 1)
    observer.clear()
    store.committed.clear()
    cluster.node.release(["one", "nobody"], ReasonCode(code), "moved")
    if version == 5:
        packet = one.expect_disconnect(code)
        assert packet is not None
        assert packet.properties.reason_string == "moved"
    else:
        one.expect_disconnect()
    harness.advance(10_000)
    watcher.expect_nothing()
    assert store.committed == []
    assert list(harness.broker.state.sessions) == ["watcher"]
    assert one.connection not in harness.broker.connections
    (call,) = observer.calls()
    assert (call.hook, call.reason.code, call.reason.will) == ("on_disconnect", code, False)


def test_everything_is_forgotten(broker_harness: Make, cluster: ClusterRecorder) -> None:
    config = {"session": {"queue_qos0": False, "max_inflight": 2}}
    inner = DurableStore()
    store = SlowStore(inner, slow=False)
    harness = broker_harness([cluster], store=store, config=config)
    online = harness.connect("online", session_expiry_interval=60, auto_ack=False, high_water=1)
    offline = harness.connect("offline", session_expiry_interval=60, will=will("w", delay=50))
    for one in (online, offline):
        one.subscribe(["t", "u/#", "$share/g/s"], 2)
    harness.settle()
    offline.drop()
    online.pause()
    pub = harness.connect("pub")
    for number in range(6):
        for qos in range(3):
            pub.publish("t", b"%d" % number, qos)
            pub.publish("s", b"%d" % number, qos)
    online.publish("x", b"y", 2, packet_id=3)
    pub.disconnect()
    assert harness.broker.state.queued_bytes > 0
    kept = [(owner, len(queue)) for owner, queue in inner.queues.items()]
    store.committed.clear()
    release(harness, cluster, "online", "offline")
    assert [call[1:3] for call in cluster.calls("subscribed") if not call[4]] == [
        (name, True) for name in ("online", "offline") for _ in range(3)
    ]
    state = harness.broker.state
    waiting = sum(group.queued_bytes for group in state.groups.values())
    assert state.queued_bytes == waiting  # see the next tests
    assert state.session_bytes == state.loaded_bytes == 0
    assert len(state.sessions) == 0
    harness.advance(10_000)
    assert store.committed == []
    assert [(owner, len(queue)) for owner, queue in inner.queues.items()] == kept
    assert inner.sessions.keys() == {"online", "offline"}


def test_no_timer_is_left(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster], store=DurableStore())
    deadlines = harness.broker.state.deadlines
    before = len(deadlines)
    one = harness.connect(
        "one", session_expiry_interval=60, keep_alive=10, will=will("w", delay=50)
    )
    harness.connect("two", session_expiry_interval=60, will=will("w", delay=50)).drop()
    one.subscribe("t", 1)
    assert len(deadlines) == before + 3
    release(harness, cluster, "one", "two")
    assert idle(harness.broker.state) == (0,) * 8
    assert len(deadlines) == before


def test_the_store_still_has_everything_for_the_next_owner(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster], store=DurableStore())
    one = harness.connect("one", session_expiry_interval=60, auto_ack=False)
    one.subscribe(["t", "$share/g/s"], 1)
    pub = harness.connect("pub")
    pub.publish("t", b"sent", 1, expect=0)
    pub.publish("s", b"shared", 1, expect=0)
    one.drop()
    pub.publish("t", b"queued", 1, expect=0)
    pub.publish("s", b"shared 2", 1, expect=0)
    pub.disconnect()
    release(harness, cluster, "one")
    pair = Pair(broker_harness)
    pair.dead = harness
    assert pair.adopt() == (1, {})
    again = pair.resume(one)
    found = sorted(again.expect_message().payload for _ in range(4))
    assert found == [b"queued", b"sent", b"shared", b"shared 2"]


def test_messages_of_a_group_wait_for_a_new_member(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    inner = DurableStore()
    harness = broker_harness([cluster], store=inner)
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe("$share/g/s", 1)
    one.drop()
    pub = harness.connect("pub")
    pub.publish("s", b"0", 1, expect=0)
    release(harness, cluster, "one")
    assert cluster.calls("online")[-1] == ("online", "g/g/s", 0)
    assert [one.owner for one in harness.broker.state.groups.values()] == ["g/g/s"]
    assert len(inner.queues["g/g/s"]) == 1
    two = harness.connect("two", session_expiry_interval=60)
    two.subscribe("$share/g/s", 1)
    two.expect_message("s", b"0")
    pub.publish("s", b"1", 1, expect=0)
    two.expect_message("s", b"1")
    harness.advance(UNAWAITED)
    assert inner.queues == {}
    two.unsubscribe("$share/g/s")
    assert harness.broker.state.groups == {}
    assert harness.broker.state.queued_bytes == 0


def test_a_group_keeps_its_other_members(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster], store=DurableStore())
    for name in ("one", "two"):
        harness.connect(name, session_expiry_interval=60).subscribe("$share/g/s", 1)
    release(harness, cluster, "one")
    assert cluster.calls("online")[-1] == ("online", "g/g/s", 1)
    harness.connect("pub").publish("s", b"x", 1, expect=0)
    assert harness.clients[1].expect_message("s", b"x")


def test_a_client_whose_session_is_not_committed_yet(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore()
    harness = broker_harness([cluster], store=store)
    one = harness.connect("one", session_expiry_interval=60, expect=None)
    one.expect_nothing()
    release(harness, cluster, "one")
    assert one.expect(Connack).code == ReasonCode.SERVER_UNAVAILABLE
    one.expect_closed()
    store.finish()
    harness.settle()
    assert idle(harness.broker.state) == (0,) * 8


def test_a_will_that_no_plugin_could_decide_on_is_not_published(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    rules = HookRecorder("authorize")
    harness = broker_harness([rules, cluster], store=DurableStore())
    watcher = harness.connect("watcher")
    watcher.subscribe("last")
    one = harness.connect("one", session_expiry_interval=600, will=will("last"))
    rules.answer("authorize", lambda action: Deny(decided=False) if action == "will" else None)
    one.drop()
    assert len(harness.broker.state.undecided_wills) == 1
    release(harness, cluster, "one")
    assert harness.broker.state.undecided_wills == {}
    assert harness.broker.state.undecided_will_bytes == 0
    rules.answer("authorize", None)
    harness.advance(120)
    watcher.expect_nothing()


def test_a_large_fan_out_that_is_in_progress(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster], config={"broker": {"fan_out_batch": 2}})
    subs = [harness.connect(f"sub{number}", session_expiry_interval=60) for number in range(8)]
    for sub in subs:
        sub.subscribe("t", 0)
    pub = harness.connect("pub")
    with harness.together():
        pub.publish("t", b"x")
        while not harness.broker.state.fan_outs:
            assert harness.clock.turn()
        cluster.node.release([f"sub{number}" for number in range(4, 8)], SHUTTING_DOWN, "moved")
    for sub in subs[:4]:
        sub.expect_message("t", b"x")
    assert harness.broker.state.fan_outs == {}
    for sub in subs[6:]:
        assert sub.messages == []


def test_a_released_client_learns_its_server(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    one = harness.connect("one", session_expiry_interval=60)
    cluster.node.release(["one"], ReasonCode.SERVER_MOVED, "moved", "b.example:1883")
    packet = one.expect_disconnect(ReasonCode.SERVER_MOVED)
    assert packet is not None
    assert packet.properties.server_reference == "b.example:1883"


def test_queues_without_members_are_forgotten(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([cluster], store=store)
    for name in ("one", "two"):
        client = harness.connect(name, session_expiry_interval=60)
        client.subscribe(["$share/g/t", f"$share/{name}/t"], 1)
        client.drop()
    harness.connect("pub").publish("t", b"x", 1)
    release(harness, cluster, "one")
    store.committed.clear()
    cluster.node.forget_queues({"g/g/t", "g/one/t"})
    harness.settle()
    state = harness.broker.state
    assert store.committed == []
    assert sorted(state.groups) == [("g", "t"), ("two", "t")]
    assert len(state.group_index) == 2
    release(harness, cluster, "two")
    cluster.node.forget_queues({"g/g/t", "g/two/t"})
    assert (state.groups, state.queued_bytes) == ({}, 0)


def test_a_client_can_come_back_and_gets_a_new_session(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster], store=DurableStore())
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe("t", 1)
    release(harness, cluster, "one")
    one.reconnect()
    assert not one.session_present
    harness.connect("pub").publish("t", b"x", 1)
    one.expect_nothing()


def test_the_memory_store_works_too(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster], store=MemoryStore())
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe("t", 1)
    one.drop()
    harness.connect("pub").publish("t", b"x", 1, expect=0)
    release(harness, cluster, "one")
    assert list(harness.broker.state.sessions) == ["pub"]
    assert harness.broker.state.queued_bytes == 0
