"""Test that messages with subscribers on other nodes of a cluster are forwarded to them."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Deny
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Puback, Pubcomp, Publish, Pubrec
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.plugin import ClientRequest
from hookmq.storage.cluster import Remote
from hookmq.storage.cluster_packets import RemotePackets
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import Enqueue, PutRetained
from hookmq_testing import (
    ClusterRecorder,
    Harness,
    HookRecorder,
    RecordingJournal,
    SlowStore,
    will,
)

Make = Callable[..., Harness]
NO_SUBSCRIBERS = ReasonCode.NO_MATCHING_SUBSCRIBERS


@pytest.fixture
def cluster() -> ClusterRecorder:
    return ClusterRecorder()


def add(
    cluster: ClusterRecorder, filter: str = "t", qos: int = 2, share: str | None = None
) -> Remote:
    remote = Remote("other")
    cluster.node.add_remote(remote, Subscription(filter, filter, qos, share=share))
    return remote


def forwarded(cluster: ClusterRecorder) -> list[bytes]:
    return [message.payload for _, message, _ in cluster.calls("forward")]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("local", ["nobody", "clean", "durable"])
def test_every_message_is_forwarded_once_in_order(
    broker_harness: Make, cluster: ClusterRecorder, qos: int, local: str
) -> None:
    harness = broker_harness([cluster])
    remote = add(cluster, "t/#")
    sub = harness.connect("sub", session_expiry_interval=60 if local == "durable" else None)
    if local != "nobody":
        sub.subscribe("t/+", 2)
    pub = harness.connect("pub")
    for number in range(4):  # from the second on, the connection remembers the route
        pub.publish("t/a", b"%d" % number, qos, expect=0)
    pub.publish("u", b"x", qos, expect=NO_SUBSCRIBERS if qos else None)
    assert forwarded(cluster) == [b"%d" % number for number in range(4)]
    for _, message, route in cluster.calls("forward"):
        assert (message.topic, message.qos, message.sender) == ("t/a", qos, "pub")
        assert [(one.remote, one.subscription.filter) for one in route.matches] == [(remote, "t/#")]
    assert len(sub.messages) == (0 if local == "nobody" else 4)


def test_the_route_is_the_same_object_until_it_changes(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    add(cluster)
    pub = harness.connect("pub")
    for _ in range(3):
        pub.publish("t")
    routes = [route for _, _, route in cluster.calls("forward")]
    assert routes[0] is routes[1] is routes[2]
    assert routes[0].plan is None
    add(cluster)
    pub.publish("t")
    assert cluster.calls("forward")[-1][2] is not routes[0]
    assert len(cluster.calls("forward")[-1][2].matches) == 2


def test_a_shared_entry_has_its_share(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    add(cluster, "t", 1, "group")
    harness.connect("pub").publish("t")
    ((_, _, route),) = cluster.calls("forward")
    assert (route.matches[0].subscription.share, route.matches[0].subscription.qos) == ("group", 1)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_remotes_come_and_go_while_the_route_is_remembered(
    broker_harness: Make, cluster: ClusterRecorder, qos: int
) -> None:
    harness = broker_harness([cluster])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", qos)

    def publish(*payloads: bytes) -> None:
        for payload in payloads:
            pub.publish("t", payload, qos, expect=0)

    publish(b"0", b"1")
    assert pub.connection.memo[b"t"].route.simple  # the fast path: bytes are passed on unchanged
    remote = add(cluster)
    publish(b"2", b"3")
    assert not pub.connection.memo[b"t"].route.simple
    cluster.node.remove_remote(remote, "t")
    publish(b"4", b"5")
    assert pub.connection.memo[b"t"].route.simple
    assert forwarded(cluster) == [b"2", b"3"]
    assert [message.payload for message in sub.messages] == [b"%d" % n for n in range(6)]


def test_an_entry_replaces_the_one_with_the_same_filter(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    remote = add(cluster, "t", 0)
    cluster.node.add_remote(remote, Subscription("t", "t", 1))
    cluster.node.remove_remote(remote, "u")  # there is no such entry
    pub = harness.connect("pub")
    pub.publish("t", qos=1, expect=0)
    ((_, _, route),) = cluster.calls("forward")
    assert [one.subscription.qos for one in route.matches] == [1]
    cluster.node.remove_remote(remote, "t")
    pub.publish("t", qos=1, expect=NO_SUBSCRIBERS)
    assert len(cluster.calls("forward")) == 1


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
@pytest.mark.parametrize("warm", [False, True])
def test_the_acknowledgement_waits_until_the_message_is_flushed_and_committed(
    broker_harness: Make, cluster: ClusterRecorder, qos: int, answer: Any, warm: bool
) -> None:
    store = SlowStore()
    store.slow = False
    harness = broker_harness([cluster], store=store)
    add(cluster)
    pub = harness.connect("pub", auto_ack=False)
    if warm:
        pub.publish("t", b"first", qos, expect=0)
    store.slow = True
    cluster.hold("flush")
    commits = len(store.committed)
    pub.publish("t", b"x", qos, packet_id=7)
    pub.expect_nothing()
    assert store.committing is None  # the flush comes first
    assert cluster.let_go() == 1
    harness.settle()
    pub.expect_nothing()
    assert store.committing == ()  # nothing to store, but a commit nevertheless
    store.finish()
    assert pub.expect(answer) == answer(7)
    assert len(store.committed) == commits + 1
    assert cluster.recorded[-1][1].number == len(store.committed)


def test_one_flush_serves_the_messages_of_a_turn(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    add(cluster)
    pub = harness.connect("pub")
    pub.send(*(Publish("t", b"%d" % n, 1, packet_id=n) for n in range(1, 6)))
    assert [pub.expect(Puback).packet_id for _ in range(5)] == [1, 2, 3, 4, 5]
    names = [call[0] for call in cluster.calls("forward", "flush")]
    assert names == ["forward"] * 5 + ["flush"]


def test_an_answer_waits_for_nothing_if_forward_says_so(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore()
    harness = broker_harness([cluster], store=store)
    cluster.awaited = False
    add(cluster)
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1, expect=0)
    assert forwarded(cluster) == [b"x"]
    assert cluster.calls("flush") == []
    assert store.committing is None


def test_qos_0_waits_for_nothing(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster], store=SlowStore())
    add(cluster)
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t")
    cluster.hold("flush")
    pub.publish("t", b"x")
    sub.expect_message("t", b"x")
    assert cluster.calls("flush") == []


def test_a_failed_flush_stops_the_broker_like_a_failed_commit(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    add(cluster)
    failures: list[str] = []
    harness.broker.on_failure = failures.append
    cluster.failed = StoreFailed("fenced")
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1)
    assert failures == ["fenced"]
    assert pub.unread == type(pub.unread)()


def test_the_other_nodes_are_told_who_match(broker_harness: Make, cluster: ClusterRecorder) -> None:
    observer = HookRecorder("on_published")
    harness = broker_harness([cluster, observer])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    pub.publish("t", b"x", 1, expect=NO_SUBSCRIBERS)
    add(cluster)
    pub.publish("t", b"x", 1, expect=0)
    sub.subscribe("t")
    pub.publish("t", b"x", 2, expect=0)
    harness.settle()
    assert [call.matched for call in observer.calls("on_published")] == [0, 1, 2]


def test_a_message_is_retained_before_it_is_forwarded(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    add(cluster)
    kept: list[Message | None] = []
    forward = cluster.forward

    def look(message: Message, route: Any) -> bool:
        found = harness.broker.state.retained.get("t")
        kept.append(None if found is None else found.message)
        return forward(message, route)

    cluster.forward = look  # type: ignore[method-assign]
    harness.connect("pub").publish("t", b"x", 1, retain=True, expect=0)
    assert kept[0] is not None
    assert kept[0].payload == b"x"
    assert cluster.calls("forward")[0][1].retain


def test_the_retained_record_and_the_forward_share_a_commit(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    store = SlowStore()
    harness = broker_harness([cluster], store=store)
    add(cluster)
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1, retain=True)
    assert [type(one) for one in store.committing or ()][-1:] == [PutRetained]
    assert len(cluster.calls("flush")) == 1
    store.finish()
    pub.expect(Puback)


def test_a_denied_message_is_not_forwarded(broker_harness: Make, cluster: ClusterRecorder) -> None:
    rules = HookRecorder("authorize", "on_publish")
    rules.answer("authorize", lambda topic: Deny() if topic == "t/no" else None)
    rules.answer("on_publish", lambda message: Deny() if message.topic == "t/never" else None)
    harness = broker_harness([rules, cluster])
    add(cluster, "#")
    pub = harness.connect("pub")
    for topic in ("t/no", "t/never"):
        pub.publish(topic, b"x", 1, expect=ReasonCode.NOT_AUTHORIZED)
    assert cluster.calls("forward") == []


def test_the_message_is_forwarded_as_plugins_changed_it(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    plugin = HookRecorder("on_publish")
    plugin.answer("on_publish", lambda message: message.replace(topic="t/new", payload=b"new"))
    harness = broker_harness([plugin, cluster])
    add(cluster, "t/new")
    harness.connect("pub").publish("t/old", b"old", 1, expect=0)
    ((_, message, _),) = cluster.calls("forward")
    assert (message.topic, message.payload) == ("t/new", b"new")


def test_a_will_and_the_message_of_a_plugin_are_forwarded(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    add(cluster)
    harness.connect("pub", will=will("t", b"last", qos=1)).drop()
    harness.handle("cluster").publish("t", b"plugin", qos=1)
    harness.settle()
    assert forwarded(cluster) == [b"last", b"plugin"]


@pytest.mark.parametrize(("qos", "at_once"), [(1, [b"x"]), (2, [])])
def test_a_message_that_waits_for_room_in_a_journal_is_forwarded_once(
    broker_harness: Make, cluster: ClusterRecorder, qos: int, at_once: list[bytes]
) -> None:
    class Full(RecordingJournal):
        full = True

    journal = Full()
    harness = broker_harness([cluster], journals=[journal])
    add(cluster)
    pub = harness.connect("pub", version=4)
    pub.publish("t", b"x", qos)
    assert forwarded(cluster) == at_once
    pub.expect_nothing()
    journal.full = False
    harness.advance(1)
    pub.expect(Puback if qos == 1 else Pubcomp)
    assert forwarded(cluster) == [b"x"]


def test_a_journal_and_the_cluster_are_flushed_before_the_store(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    journal = RecordingJournal(slow=True)
    store = SlowStore()
    harness = broker_harness([cluster], journals=[journal], store=store)
    add(cluster)
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1)
    assert store.committing is None
    assert len(cluster.calls("flush")) == 1
    journal.finish()
    assert store.committing == ()
    store.finish()
    pub.expect(Puback)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_large_fan_out_forwards_the_message_at_once(
    broker_harness: Make, cluster: ClusterRecorder, qos: int
) -> None:
    harness = broker_harness([cluster], config={"broker": {"fan_out_batch": 2}})
    add(cluster)
    subs = [harness.connect(f"sub{number}") for number in range(7)]
    for sub in subs:
        sub.subscribe("t", 2)
    pub = harness.connect("pub")
    with harness.together():
        for number in range(3):
            pub.publish("t", b"%d" % number, qos)
        while not cluster.calls("forward"):
            assert harness.clock.turn()
        assert forwarded(cluster) == [b"0", b"1", b"2"]
    for sub in subs:
        assert [message.payload for message in sub.messages] == [b"0", b"1", b"2"]


# packets -------------------------------------------------------------------------------------------------------------


def collect(cluster: ClusterRecorder) -> list[RemotePackets]:
    """Let the cluster take packets for two nodes."""
    found = [RemotePackets(lambda sender, five: None) for _ in range(2)]
    cluster.collectors = found
    return found


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("local", ["nobody", "same", "other"])
def test_the_fast_path_collects_the_packets_of_qos_0(
    broker_harness: Make, cluster: ClusterRecorder, version: int, local: str
) -> None:
    observer = HookRecorder("on_published")
    harness = broker_harness([cluster, observer])
    nodes = collect(cluster)
    add(cluster, "t/#")
    sub = harness.connect("sub", version=9 - version if local == "other" else version)
    if local != "nobody":
        sub.subscribe("t/a")
    pub = harness.connect("pub", version=version)
    payloads = [b"%d" % number for number in range(6)]
    with harness.together():
        for payload in payloads:
            pub.publish("t/a", payload)
    harness.settle()
    assert forwarded(cluster) == payloads[:1]
    expected = [encode(Publish("t/a", payload), version) for payload in payloads[1:]]
    for node in nodes:
        assert node.packets == expected
        assert node.sender == "pub"
    assert [one.payload for one in sub.messages] == (payloads if local != "nobody" else [])
    assert harness.metrics.messages_delivered == (6 if local != "nobody" else 0)
    assert [call.message.payload for call in observer.calls("on_published")] == payloads


@pytest.mark.parametrize(
    "case", ["retain", "on_publish", "on_deliver", "journal", "qos", "refused"]
)
def test_other_messages_are_forwarded_one_by_one(
    broker_harness: Make, cluster: ClusterRecorder, case: str
) -> None:
    plugins: list[Any] = [HookRecorder(case)] if case.startswith("on_") else []
    journals = [RecordingJournal()] if case == "journal" else []
    harness = broker_harness([cluster, *plugins], journals=journals)
    nodes = collect(cluster)
    if case == "refused":
        cluster.collectors = None
    add(cluster)
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t")
    payloads = [b"%d" % number for number in range(4)]
    for payload in payloads:
        pub.publish("t", payload, int(case == "qos"), retain=case == "retain")
    harness.settle()
    assert forwarded(cluster) == payloads
    assert [node.packets for node in nodes] == [[], []]
    assert [one.payload for one in sub.messages] == payloads


def test_a_plugin_client_forwards_messages(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    nodes = collect(cluster)
    add(cluster)
    client = harness.clock.run(harness.handle("cluster").connect(ClientRequest("c")))
    for number in range(4):
        client.publish_later("t", b"%d" % number)
        harness.settle()
    assert forwarded(cluster) == [b"%d" % number for number in range(4)]
    assert nodes[0].packets == []


def test_forgotten_routes_ask_the_cluster_again(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    first = collect(cluster)
    add(cluster)
    pub = harness.connect("pub")
    for _ in range(3):
        pub.publish("t", b"1")
    second = collect(cluster)
    pub.publish("t", b"1")
    cluster.node.forget_routes()
    for _ in range(3):
        pub.publish("t", b"2")
    assert [len(node.packets) for node in (*first, *second)] == [3, 3, 2, 2]
    assert forwarded(cluster) == [b"1", b"2"]


# shared subscriptions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("large", [False, True])
def test_a_group_without_online_members_is_left_to_another_node(
    broker_harness: Make, cluster: ClusterRecorder, qos: int, large: bool
) -> None:
    options: Any = {"config": {"broker": {"fan_out_batch": 2}}} if large else {}
    harness = broker_harness([cluster], store=SlowStore(slow=False), **options)
    member = harness.connect("member", session_expiry_interval=60)
    member.subscribe(["$share/g/t", "$share/h/t"], 1)
    for number in range(3):
        harness.connect(f"sub{number}").subscribe("t", 1)
    pub = harness.connect("pub")
    cluster.groups_elsewhere = {"g/g/t"}
    pub.publish("t", b"0", qos)  # a member is online here
    assert [message.payload for message in member.messages] == [b"0", b"0"]
    assert cluster.calls("elsewhere") == []
    member.disconnect()
    pub.publish("t", b"1", qos)
    assert sorted(cluster.calls("elsewhere")) == [("elsewhere", "g/g/t"), ("elsewhere", "g/h/t")]
    queued = {one.share: one.queued for one in harness.broker.state.groups.values()}
    assert queued == {"g": 0, "h": qos}
    cluster.groups_elsewhere = set()
    pub.publish("t", b"2", qos)
    queued = {one.share: one.queued for one in harness.broker.state.groups.values()}
    assert queued == {"g": qos, "h": 2 * qos}
    entries = [one for one in harness.store.records(Enqueue) if one.owner == "g/g/t"]  # type: ignore[attr-defined]
    assert len(entries) == qos


def test_without_a_cluster_nothing_changes(broker_harness: Make) -> None:
    harness = broker_harness(store=SlowStore())
    assert harness.broker.state.cluster is None
    member = harness.connect("member")
    member.subscribe("$share/g/t", 1)
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1, expect=0)
    member.expect_message("t", b"x")
    assert harness.broker.state.committer.journals == ()
