"""Forwarding and inbox: each message arrives where it must, once and in order, whatever the network loses."""

from collections import Counter
from itertools import product
from random import Random

import pytest
from cluster_routing import NAMES, RoutingNode, RoutingWorld
from cluster_source import needs_the_source
from hookmq.plugin import Message
from hookmq.storage_api import CommitId, StoreFailed, group_owner
from hookmq_cluster.engine import Entry, Stored
from hookmq_cluster.forwarding import LONG_PAUSE, MANY, PAUSE
from hookmq_cluster.frames import (
    MessageItem,
    Origin,
    OwnerFrame,
    PeerFrame,
    encode_owner,
    encode_peer,
)
from hookmq_cluster.inbox import Inbox
from hookmq_cluster.wire_messages import FRAME, Packet, encode
from simulated_engine import QUIET, Faults, quiet


def cluster(
    *names: str, seed: int = 1, faults: Faults = QUIET, frame_bytes: int = 1 << 18
) -> RoutingWorld:
    """Return a world with these nodes."""
    world = RoutingWorld(seed, faults, frame_bytes)
    world.join(*names)
    return world


def received(node: RoutingNode, client_id: str) -> list[bytes]:
    """Return what a client has received."""
    return node.broker.sessions[client_id].received


def client(node: RoutingNode, client_id: str, filter: str, qos: int, durable: bool) -> None:
    """Add a client with a subscription."""
    node.connect(client_id, durable)
    node.subscribe(client_id, filter, qos)


def with_a_volatile_subscriber() -> tuple[RoutingWorld, RoutingNode, RoutingNode]:
    """Return a world with the nodes a and b, where the client b1 has subscribed to x without a durable session."""
    world = cluster("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "b1", "x", 1, False)
    world.runtime.advance(1.0)
    return world, a, b


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
@pytest.mark.parametrize("durable", [False, True])
def test_a_message_arrives_once(qos: int, subscribed: int, durable: bool) -> None:
    world = cluster("a", "b", "c")
    a, b, c = (world.nodes[name] for name in "abc")
    client(b, "b1", "x", subscribed, durable)
    client(b, "other", "y", 2, True)
    client(c, "c1", "+", subscribed, durable)
    world.runtime.advance(1.0)
    acked: list[int] = []
    waits = a.publish("x", b"one", qos, lambda: acked.append(1))
    assert waits == (min(qos, subscribed) > 0)
    assert acked == ([] if waits else [1])
    world.runtime.advance(1.0)
    assert received(b, "b1") == received(c, "c1") == [b"one"]
    assert received(b, "other") == []
    assert acked == [1]
    assert (len(world.log.commits) > 0) == (durable and min(qos, subscribed) > 0)


def test_volatile_and_durable_sessions_of_one_node_get_one_copy_each() -> None:
    world = cluster("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    for client_id, qos, durable in (
        ("v0", 0, False),
        ("v1", 1, False),
        ("d0", 0, True),
        ("d1", 1, True),
    ):
        client(b, client_id, "x", qos, durable)
    b.subscribe("d1", "#", 0)  # overlaps
    world.runtime.advance(1.0)
    for qos in (0, 1):
        a.publish("x", b"%d" % qos, qos, lambda: None)
    world.runtime.advance(1.0)
    for client_id in ("v0", "v1", "d0", "d1"):
        assert sorted(received(b, client_id)) == [b"0", b"1"], client_id


def test_qos_0_needs_no_commit_and_follows_the_owner_of_a_lane() -> None:
    world = cluster("a", "b", "c")
    a, b, c = (world.nodes[name] for name in "abc")
    client(b, "b1", "x", 1, True)
    world.runtime.advance(1.0)
    a.publish("x", b"first", 0)
    world.runtime.advance(1.0)
    assert received(b, "b1") == [b"first"]
    world.crash("b")
    world.lose(a, "b")
    world.lose(c, "b")
    assert not a.publish("x", b"dropped", 0)
    assert a.publish("x", b"stored", 1, lambda: None)
    world.runtime.advance(1.0)
    client(c, "b1", "x", 1, True)
    c.places["b1"] = "b"
    c.interest.subscribed("b1", True, c.broker.sessions["b1"].subscriptions["x"], True)
    world.take(c, "b")
    a.interest.lane_owner("b", "c")
    world.runtime.advance(1.0)
    assert received(c, "b1") == [b"stored"]
    a.publish("x", b"second", 0)
    world.runtime.advance(1.0)
    assert received(c, "b1") == [b"stored", b"second"]
    assert c.cursors["b"] > 0


@pytest.mark.parametrize("reported", [True, False])
def test_a_session_that_has_moved_ignores_messages_at_qos_0_from_before(reported: bool) -> None:
    world = cluster("a", "b", "c")
    a, b, c = (world.nodes[name] for name in "abc")
    client(b, "moved", "x", 1, True)
    client(a, "stays", "x", 1, True)
    client(a, "volatile", "x", 0, False)
    world.runtime.advance(1.0)
    if reported:  # A node of an older version reports nothing.
        c.forwarding.owner_known("a", world.log.sequence)
    world.log.break_route(c.engine, a.engine)
    before = [b"before %d" % number for number in range(6)]
    for payload in before:
        c.publish("x", payload, 0)
    world.runtime.advance(1.0)
    assert received(b, "moved") == before
    assert received(a, "stays") == []
    world.log.append([Entry(NAMES.lane("b"), b"")])
    client(a, "moved", "x", 1, True)
    a.places["moved"] = "b"
    world.take(a, "b")
    last = [b"last %d" % number for number in range(6)]
    before.append(b"in the turn of the move")
    c.publish("x", before[-1], 0)
    c.interest.lane_owner("b", "a")
    if reported:
        c.forwarding.owner_known("a", world.log.sequence)
    for payload in last:
        c.publish("x", payload, 0)
    world.log.mend_routes()
    world.runtime.advance(10.0)
    assert received(a, "stays") == received(a, "volatile") == before + last
    assert received(a, "moved") == (last if reported else before + last)


def test_a_frame_whose_last_parts_are_missing_does_not_cost_the_next_one() -> None:
    world = cluster("a")
    a = world.nodes["a"]
    client(a, "a1", "x", 1, False)
    item = MessageItem(Message("x", bytes(1000), 1), (), True)
    parts = encode_peer(PeerFrame(Origin("z", "boot", 1), (item,)), 500)
    for content in (*parts[:-1], peer_entry(2, b"next").data):
        a.inbox._receive("z", "boot", content)
    assert received(a, "a1") == [b"next"]
    assert a.inbox.invalid == 0


def test_a_node_that_announces_a_lane_is_known_as_its_owner() -> None:
    world = cluster("a", "b", "c")
    a, c = world.nodes["a"], world.nodes["c"]
    told: list[tuple[str, int]] = []
    c.interest.remote.begun = lambda node, fence: told.append((node, fence))
    world.take(a, "b")
    world.runtime.advance(1.0)
    assert told == [("a", a.lanes["b"])]


def test_the_messages_of_one_turn_are_one_frame() -> None:
    world = cluster("a", "b", "c")
    a, b, c = (world.nodes[name] for name in "abc")
    for node in (b, c):
        client(node, f"{node.name}1", "#", 1, True)
        client(node, f"{node.name}2", "#", 1, False)
    world.runtime.advance(1.0)
    before = len(world.log.messages([NAMES.lane("b"), NAMES.lane("c")]))
    for number in range(100):
        a.publish(f"t{number}", b"", 1)
    entries, exactly_once = a.forwarding.take_entries()
    assert not exactly_once
    assert sorted(entry.subject for entry in entries) == [NAMES.lane("b"), NAMES.lane("c")]
    assert entries[0].data == entries[1].data
    a.engine.commit(entries, lambda result: None)
    world.runtime.advance(1.0)
    assert len(world.log.messages([NAMES.lane("b"), NAMES.lane("c")])) == before + 2
    assert len(received(b, "b2")) == 100
    assert len(received(b, "b1")) == len(received(c, "c2")) == 100


def test_qos_2_messages_do_not_overtake_those_that_wait_for_a_commit() -> None:
    world = cluster("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "plain", "x", 0, False)
    client(b, "member", "$share/g/x", 2, False)
    world.runtime.advance(1.0)
    assert a.publish("x", b"first", 2)
    b.unsubscribe("member", "$share/g/x")
    world.runtime.advance(1.0)
    assert not a.publish("x", b"second", 2)
    world.runtime.advance(1.0)
    assert received(b, "plain") == []
    a.commit()
    world.runtime.advance(1.0)
    assert received(b, "plain") == [b"first", b"second"]
    assert not a.publish("x", b"third", 2)
    world.runtime.advance(1.0)
    assert received(b, "plain") == [b"first", b"second", b"third"]


def test_large_messages_are_split() -> None:
    world = cluster("a", "b", frame_bytes=1000)
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "durable", "x", 1, True)
    client(b, "volatile", "x", 1, False)
    world.runtime.advance(1.0)
    large = bytes(range(256)) * 40
    for payload in (b"before", large, b"after"):
        a.publish("x", payload, 1, lambda: None)
        world.runtime.advance(0.1)
    assert received(b, "durable") == received(b, "volatile") == [b"before", large, b"after"]
    assert len(world.log.messages([NAMES.lane("b")])) > 12
    assert b.cursors["b"] == world.log.sequence


def test_a_plan_is_used_again_until_the_owner_of_a_lane_changes() -> None:
    world = cluster("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "b1", "x", 1, True)
    world.runtime.advance(1.0)
    a.publish("x", b"", 1)
    route = a.broker.route("x")
    assert route is not None
    plan = route.plan
    a.publish("x", b"", 1)
    assert route.plan is plan
    a.interest.lane_owner("b", None)
    a.publish("x", b"", 1)
    again = a.broker.route("x")
    assert again is not None
    assert again is not route
    assert again.plan is not plan


def test_flush_waits_for_a_silent_node_until_it_leaves() -> None:
    world, a, b = with_a_volatile_subscriber()
    b.engine.cut()
    acked: list[int] = []
    a.publish("x", b"", 1, lambda: acked.append(1))
    world.runtime.advance(30.0)
    assert not acked
    world.lose(a, "b")
    assert acked


def test_flush_all_waits_for_messages_at_qos_0_too() -> None:
    world, a, b = with_a_volatile_subscriber()
    found: list[tuple[bool, list[bytes]]] = []

    def flushed(complete: bool) -> None:
        found.append((complete, list(received(b, "b1"))))

    a.publish("x", b"one", 0)
    a.forwarding.flush_all(5.0, flushed)
    assert found == []
    world.runtime.advance(1.0)
    assert found == [(True, [b"one"])]
    a.forwarding.flush_all(5.0, flushed)
    assert found.pop() == (True, [b"one"])


def test_flush_all_does_not_wait_for_what_is_no_message() -> None:
    world, a, b = with_a_volatile_subscriber()
    found: list[bool] = []
    world.log.break_route(a.engine, b.engine)
    a.forwarding.owner_known("b", 1)
    a.forwarding.flush_all(5.0, found.append)
    assert found == [True]
    a.publish("x", b"one", 0)
    a.forwarding.owner_known("b", 2)
    a.forwarding.flush_all(5.0, found.append)
    world.runtime.advance(4.9)
    assert found == [True]
    world.runtime.advance(0.2)
    assert found == [True, False]


def test_flush_all_ends_if_a_node_is_silent() -> None:
    world, a, b = with_a_volatile_subscriber()
    world.log.break_route(a.engine, b.engine)
    found: list[bool] = []
    acked: list[int] = []
    a.publish("x", b"one", 1, lambda: acked.append(1))
    a.publish("x", b"two", 0)
    a.forwarding.flush_all(5.0, found.append)
    a.publish("x", b"three", 1, lambda: acked.append(3))
    world.runtime.advance(4.9)
    assert found == []
    world.runtime.advance(0.2)
    assert found == [False]
    world.log.mend_routes()
    world.runtime.advance(10.0)
    assert (found, acked) == ([False], [1, 3])


def test_a_flush_does_not_wait_for_later_messages_at_qos_0() -> None:
    world, a, b = with_a_volatile_subscriber()
    done: list[str] = []
    a.publish("x", b"one", 1)
    a.forwarding.end_turn()
    world.log.break_route(a.engine, b.engine, one_way=True)
    a.publish("x", b"two", 0)
    a.forwarding.flush_all(60.0, lambda complete: done.append(f"all flushed: {complete}"))
    a.commit(lambda: done.append("flushed"))
    world.runtime.advance(1.0)
    assert (received(b, "b1"), done) == ([b"one"], ["flushed"])
    world.log.mend_routes()
    world.runtime.advance(10.0)
    assert done == ["flushed", "all flushed: True"]


def test_flush_without_waiting_messages_is_done_at_once() -> None:
    world = cluster("a", "b")
    done: list[StoreFailed | None] = []
    world.nodes["a"].forwarding.flush(CommitId("a", 1), done.append)
    assert done == [None]


def test_frames_are_sent_again_after_a_reconnect_without_duplicates() -> None:
    world, a, b = with_a_volatile_subscriber()
    for number in range(30):
        if number % 7 == 3:
            a.engine.cut()
        if number % 7 == 6:
            a.engine.heal()
        a.publish("x", b"%d" % number, 1, lambda: None)
        world.runtime.advance(0.3)
    a.engine.heal()
    world.runtime.advance(1.0)
    assert received(b, "b1") == [b"%d" % number for number in range(30)]
    link = a.links.link("b")
    assert link is not None
    assert link.resent > 0


def test_a_node_that_was_lost_and_seen_again_gets_each_frame_once() -> None:
    world, a, b = with_a_volatile_subscriber()
    sent = 0
    for _ in range(20):
        for _ in range(3):
            a.publish("x", b"%d" % sent, 1, lambda: None)
            sent += 1
            world.runtime.advance(0.0008)
        world.lose(b, "a")
        a.publish("x", b"%d" % sent, 1, lambda: None)
        sent += 1
        world.runtime.advance(0.2)
        world.see(b, a)
        world.runtime.advance(2.0)
    assert received(b, "b1") == [b"%d" % number for number in range(sent)]


def test_a_new_reader_continues_where_the_one_before_had_stopped() -> None:
    world, a, b = with_a_volatile_subscriber()
    acked: list[int] = []
    send = b.engine.send
    b.engine.send = lambda subject, data: None  # type: ignore[method-assign]
    a.publish("x", b"1", 1, lambda: acked.append(1))
    world.runtime.advance(0.1)
    assert received(b, "b1") == [b"1"]
    assert not acked
    world.lose(b, "a")
    a.publish("x", b"2", 1, lambda: acked.append(2))
    world.runtime.advance(0.1)
    b.engine.send = send  # type: ignore[method-assign]
    world.see(b, a)
    world.runtime.advance(0.5)
    assert acked == [1, 2]
    assert received(b, "b1") == [b"1", b"2"]


def test_a_gap_is_filled_at_once() -> None:
    world, a, b = with_a_volatile_subscriber()
    send = a.engine.send
    a.engine.send = lambda subject, data: None  # type: ignore[method-assign]
    a.publish("x", b"1", 1, lambda: None)
    world.runtime.advance(0.01)
    a.engine.send = send  # type: ignore[method-assign]
    a.publish("x", b"2", 1, lambda: None)
    world.runtime.advance(0.05)
    assert received(b, "b1") == [b"1", b"2"]


def test_a_full_buffer_drops_qos_0_and_delays_qos_1() -> None:
    world = RoutingWorld(buffer=10_000)
    world.join("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "b1", "x", 1, False)
    world.runtime.advance(1.0)
    b.engine.cut()
    acked: list[int] = []
    for number in range(100):
        a.publish("x", b"0" * 1000, 0)
        if number % 10 == 0:
            a.publish("x", b"1%d" % number, 1, lambda: acked.append(1))
        world.runtime.advance(0.01)
    dropped = a.forwarding.dropped
    assert 80 <= dropped <= 91
    assert not acked
    b.engine.heal()
    world.runtime.advance(20.0)
    assert len(acked) == 10
    payloads = received(b, "b1")
    assert [one for one in payloads if one[:1] == b"1"] == [
        b"1%d" % number for number in range(0, 100, 10)
    ]
    assert len(payloads) == 110 - dropped
    a.publish("x", b"last", 0)
    world.runtime.advance(1.0)
    assert received(b, "b1")[-1] == b"last"


@pytest.mark.parametrize(("frames", "calls"), [(1, 0), (2, 2)])
def test_packets_go_to_nodes_that_read_them(frames: int, calls: int) -> None:
    world = RoutingWorld()
    world.start("a")
    world.start("b", frames)
    world.see_all()
    world.runtime.advance(10.0)
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "b1", "x", 0, False)
    world.runtime.advance(1.0)
    for number in range(6):  # two of three are packets, in two runs
        a.publish("x", b"%d" % number, 0)
    world.runtime.advance(1.0)
    assert received(b, "b1") == [b"%d" % number for number in range(6)]
    assert (b.broker.packets > 0) == (calls > 0)
    assert a.forwarding.forwarded == 6


def test_packets_are_dropped_and_counted_if_the_buffer_is_full() -> None:
    world = RoutingWorld(buffer=1000)
    world.join("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "b1", "x", 0, False)
    world.runtime.advance(1.0)
    b.engine.cut()
    route = a.broker.route("x")
    assert route is not None
    packets = a.forwarding.packets(route)
    assert packets is not None
    packets[0].add("a1", False, b"\x30\x03\x00\x01x" * 300)
    world.runtime.advance(0.1)
    for _ in range(3):
        packets[0].add("a1", False, b"\x30\x03\x00\x01x")
    world.runtime.advance(0.1)
    assert (a.forwarding.dropped, a.forwarding.forwarded) == (3, 1)


def test_many_packets_are_sent_before_the_turn_ends() -> None:
    world = cluster("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "b1", "x", 0, False)
    world.runtime.advance(1.0)
    sent: list[bytes] = []
    a.engine.send = lambda subject, data: sent.append(data)  # type: ignore[method-assign]
    route = a.broker.route("x")
    assert route is not None
    packets = a.forwarding.packets(route)
    assert packets is not None
    for number in range(150):
        packets[0].add(f"a{number}", False, b"\x30\x03\x00\x01x" * 200)
    assert len(sent) == 1
    world.runtime.advance(0.01)
    assert len(sent) == 2


@pytest.mark.parametrize(("count", "pause"), [(1, PAUSE), (MANY, LONG_PAUSE)])
def test_packets_wait_longer_after_a_frame_with_many(count: int, pause: float) -> None:
    world = cluster("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "b1", "x", 0, False)
    world.runtime.advance(1.0)
    sent: list[bytes] = []
    a.engine.send = lambda subject, data: sent.append(data)  # type: ignore[method-assign]
    route = a.broker.route("x")
    assert route is not None
    packets = a.forwarding.packets(route)
    assert packets is not None
    for _ in range(count):
        packets[0].add("a1", False, b"\x30\x03\x00\x01x")
    world.runtime.advance(0.0)
    assert len(sent) == 1
    packets[0].add("a1", False, b"\x30\x03\x00\x01x")
    world.runtime.advance(pause * 0.9)
    assert len(sent) == 1
    world.runtime.advance(pause * 0.2)
    assert len(sent) == 2


def test_packets_in_a_lane_are_refused() -> None:
    world = cluster("a", "b")
    b = world.nodes["b"]
    client(b, "b1", "x", 1, True)
    [part] = encode_peer(
        PeerFrame(Origin("z", "z0", 1), (("z1", False, 1, b"\x30\x03\x00\x01x"),)), 1000
    )
    b.engine.commit([Entry(NAMES.lane("b"), part)], lambda _: None)
    world.runtime.advance(1.0)
    assert b.inbox.invalid == 1
    assert received(b, "b1") == []


def test_acknowledgements_are_grouped() -> None:
    world, a, b = with_a_volatile_subscriber()
    sent: list[bytes] = []
    send = b.engine.send

    def spy(subject: str, data: bytes) -> None:
        sent.append(data)
        send(subject, data)

    b.engine.send = spy  # type: ignore[method-assign]
    for _ in range(100):
        a.publish("x", b"", 0)
        world.runtime.advance(0.001)
    world.runtime.advance(1.0)
    assert len(received(b, "b1")) == 100
    assert len(sent) <= 7  # one each 20 ms


@pytest.mark.parametrize("online", ["here", "durable", "volatile", "nobody"])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_group_gets_each_message_once(online: str, qos: int) -> None:
    world = cluster("a", "b", "c", "d")
    a, b, c, d = (world.nodes[name] for name in "abcd")
    owner = group_owner("g", "x/#")
    client(a, "a1", "$share/g/x/#", 1, True)
    client(b, "b1", "$share/g/x/#", 1, True)
    client(b, "plain", "x/#", 1, True)
    client(c, "c1", "$share/g/x/#", 1, False)
    client(d, "d1", "$share/g/x/#", 1, True)
    client(d, "d2", "x/#", 1, False)
    a.online("a1", online == "here")
    b.online("b1", online == "durable")
    d.online("d1", online == "durable")
    c.online("c1", online == "volatile")
    world.runtime.advance(1.0)
    for number in range(60):
        a.publish("x/y", b"%d" % number, qos, lambda: None)
        world.runtime.advance(0.01)
    world.runtime.advance(1.0)
    total: Counter[bytes] = Counter()
    nodes: Counter[str] = Counter()
    for node in world.nodes.values():
        for (group, payload), count in node.broker.received_by_group.items():
            assert group == owner
            total[payload] += count
            nodes[node.name] += count
    assert total == Counter({b"%d" % number: 1 for number in range(60)})
    expected = {"here": {"a"}, "durable": {"b", "d"}, "volatile": {"c"}, "nobody": {"a"}}
    assert nodes.keys() == expected[online]
    assert received(b, "plain") == received(d, "d2") == [b"%d" % number for number in range(60)]


def test_a_client_that_becomes_durable_loses_nothing() -> None:
    world, a, b = with_a_volatile_subscriber()
    sent = 0
    for _ in range(10):
        a.publish("x", b"%d" % sent, 1, lambda: None)
        sent += 1
        world.runtime.advance(0.0003)
        if sent == 5:
            b.broker.sessions["b1"].durable = True
            b.places["b1"] = "b"
            b.subscribe("b1", "x")
    world.runtime.advance(1.0)
    assert set(received(b, "b1")) == {b"%d" % number for number in range(sent)}
    assert not b.interest.local.moving


# --- inbox -----------------------------------------------------------------------------------------------------------


def peer_entry(number: int, payload: bytes = b"payload", lane: str = "a") -> Entry:
    """Return a frame of another node."""
    item = MessageItem(Message("x", payload, 1), (), True)
    (data,) = encode_peer(PeerFrame(Origin("z", "boot", number), (item,)), 10_000)
    return Entry(NAMES.lane(lane), data)


def test_the_inbox_skips_own_frames_and_what_is_below_the_cursor() -> None:
    world = cluster("a")
    a = world.nodes["a"]
    client(a, "a1", "x", 1, True)
    (own,) = encode_owner(OwnerFrame(Origin("a", a.boot, 1), 0, ()), 10_000)
    world.log.append([peer_entry(1, b"1"), Entry(NAMES.lane("a"), own), peer_entry(2, b"2")])
    cursor = world.log.sequence - 1
    world.log.append([peer_entry(3, b"3"), Entry(NAMES.lane("a"), own), peer_entry(4, b"4")])
    a.inbox.open_lane("a", cursor, cursor)
    world.runtime.advance(1.0)
    assert received(a, "a1") == [b"2", b"3", b"4"]
    last = world.log.sequence
    assert a.cursors == {"a": last}
    assert a.sizes == {"a": 3 * len(peer_entry(2, b"2").data)}
    assert a.own_frames[-1] == ("a", last - 1)
    assert a.broker.touched
    assert a.broker.flushed
    a.inbox.close_lane("a")
    world.log.append([peer_entry(5, b"5")])
    world.runtime.advance(1.0)
    assert received(a, "a1") == [b"2", b"3", b"4"]


@pytest.mark.parametrize("waiting", [False, True])
def test_a_lane_is_not_read_beyond_a_frame_of_another_owner(waiting: bool) -> None:
    world = cluster("a")
    a = world.nodes["a"]
    client(a, "a1", "x", 1, True)
    (other,) = encode_owner(OwnerFrame(Origin("a", "another boot", 1), 0, ()), 10_000)
    world.log.append([peer_entry(1, b"1"), Entry(NAMES.lane("a"), other), peer_entry(2, b"2")])
    fence = world.log.sequence
    a.inbox.open_lane("a", fence, 0)
    world.runtime.advance(1.0)
    assert received(a, "a1") == [b"1", b"2"]
    entries = [peer_entry(3, b"3"), Entry(NAMES.lane("a"), other), peer_entry(4, b"4")]
    world.log.append(entries[: 3 if waiting else 1])
    world.runtime.advance(1.0)
    world.log.append(entries[3 if waiting else 1 :])
    world.runtime.advance(1.0)
    assert received(a, "a1") == [b"1", b"2", b"3"]
    assert a.cursors["a"] == fence + 1
    assert not a.inbox.waiting("a")


def test_frames_that_were_read_before_end_at_a_frame_of_another_owner() -> None:
    world = cluster("a")
    a = world.nodes["a"]
    client(a, "a1", "x", 1, True)
    a.inbox.close_lane("a")
    fence = world.log.sequence
    (other,) = encode_owner(OwnerFrame(Origin("a", "another boot", 1), 0, ()), 10_000)
    world.log.append([peer_entry(1, b"1"), Entry(NAMES.lane("a"), other), peer_entry(2, b"2")])
    frames = list(world.log.history())[-3:]
    a.inbox.open_lane("a", fence, fence, frames, frames[-1].sequence)
    world.log.append([peer_entry(3, b"3")])
    world.runtime.advance(1.0)
    assert received(a, "a1") == [b"1"]


def test_a_lane_is_only_for_its_own_sessions() -> None:
    world = cluster("a")
    a = world.nodes["a"]
    client(a, "home", "x", 1, True)
    a.connect("adopted", True, "b")
    a.subscribe("adopted", "x")
    client(a, "volatile", "x", 1, False)
    client(a, "zero", "x", 0, True)
    a.inbox.open_lane("b", 0, 0)
    world.log.append([peer_entry(1, b"a"), peer_entry(2, b"b", "b")])
    world.runtime.advance(1.0)
    assert received(a, "home") == [b"a"]
    assert received(a, "adopted") == [b"b"]
    assert received(a, "volatile") == received(a, "zero") == []
    assert a.cursors == {"a": world.log.sequence - 1, "b": world.log.sequence}


def test_a_damaged_frame_in_a_lane_is_logged_and_skipped() -> None:
    world = cluster("a")
    a = world.nodes["a"]
    client(a, "a1", "x", 1, True)
    damaged = [
        b"",
        b"\xc1",
        peer_entry(1).data[:-3],
        peer_entry(1).data.replace(b"\x98\x01\x02", b"\x98\x07\x02"),
    ]
    for data in damaged:
        world.log.append([Entry(NAMES.lane("a"), data), peer_entry(2)])
    world.runtime.advance(1.0)
    assert received(a, "a1") == [b"payload"] * 4
    assert a.inbox.invalid == 4
    events = [fields for _, name, fields in world.runtime.logged if name == "cluster.frame_invalid"]
    assert [fields["sequence"] for fields in events] == [2, 4, 6, 8] or len(events) == 4
    assert all(fields["subject"] == NAMES.lane("a") for fields in events)


def test_a_message_that_cannot_be_delivered_is_logged_and_skipped() -> None:
    world, a, b = with_a_volatile_subscriber()
    deliver = b.broker.deliver

    def broken(message: Message, wanted: object, groups: object) -> None:
        if message.payload == b"poison":
            raise ZeroDivisionError
        deliver(message, wanted, groups)  # type: ignore[arg-type]

    b.broker.deliver = broken  # type: ignore[method-assign]
    for payload in (b"1", b"poison", b"2"):
        a.publish("x", payload, 1, lambda: None)
    a.links.send("b", Packet(b.boot, 99, 1, True, FRAME, b"other reader"))
    b.links.framed("a", a.boot, b"not a frame")
    world.runtime.advance(1.0)
    assert received(b, "b1") == [b"1", b"2"]
    assert b.inbox.invalid == 2
    assert {name for _, name, _ in world.runtime.logged} == {
        "cluster.delivery_failed", "cluster.frame_invalid",
    }  # fmt: skip
    assert b.links.ignored == 1


def test_packets_for_another_boot_are_ignored() -> None:
    world = cluster("a", "b")
    b = world.nodes["b"]
    for node, boot, to in (("a", "boot1", "old"), ("a", "old", b.boot), ("stranger", "1", b.boot)):
        b._receive("", encode(node, boot, Packet(to, 1, 1, True, FRAME, b"")))
    assert b.links.ignored == 3
    assert not b.inbox.invalid


@needs_the_source
def test_a_backlog_is_delivered_in_slices_and_reading_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hookmq_cluster.inbox.BACKLOG", 2000)
    monkeypatch.setattr("hookmq_cluster.inbox.SLICE", 10)
    world = cluster("a")
    a = world.nodes["a"]
    client(a, "a1", "x", 1, True)
    a.inbox.close_lane("a")
    for number in range(500):
        world.log.append([peer_entry(number, b"%d" % number)])
    follows: list[int] = []
    follow = a.engine.follow

    def spy(filters: object, after: int, receive: object) -> object:
        follows.append(after)
        return follow(filters, after, receive)  # type: ignore[arg-type]

    backlogs: set[int] = set()
    flush = a.broker.flush

    def note_backlog() -> None:
        backlogs.add(a.inbox.backlog)
        flush()

    a.engine.follow = spy  # type: ignore[assignment, method-assign]
    a.broker.flush = note_backlog  # type: ignore[method-assign]
    a.inbox.open_lane("a", 0, 0)
    longest = 0
    before = 0
    while len(received(a, "a1")) < 500:
        world.runtime.advance(0.0001)
        longest = max(longest, len(received(a, "a1")) - before)
        before = len(received(a, "a1"))
    assert received(a, "a1") == [b"%d" % number for number in range(500)]
    assert len(follows) > 5
    assert a.broker.flushed > 40
    assert 1000 < max(backlogs) < 2100
    assert a.inbox.backlog == 0


class Replica:
    """What a lane's commits contain: the payloads of a client, and the cursor."""

    def __init__(self) -> None:
        self.state: tuple[tuple[bytes, ...], int] = ((), 0)


@pytest.mark.parametrize("seed", range(30))
def test_a_lane_gets_each_message_once_although_its_owner_crashes(seed: int) -> None:
    random = Random(seed)
    faults = Faults.drawn(random)
    world = RoutingWorld(seed, faults, frame_bytes=random.choice((200, 1 << 18)))
    world.join("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    client(b, "b1", "x", 1, True)
    world.runtime.advance(30.0)
    replica = Replica()
    published: list[bytes] = []
    acked: set[bytes] = set()
    for number in range(80):
        payload = b"%d" % number + b"." * random.choice((0, 0, 500))
        published.append(payload)
        a.publish("x", payload, 1, lambda payload=payload: acked.add(payload))  # type: ignore[misc]
        if random.random() < 0.8:
            world.runtime.advance(random.choice((0.0, 0.01, 0.3)))
        if random.random() < 0.4:  # a commit of b: what was delivered, and the cursor
            replica.state = (tuple(received(b, "b1")), b.cursors.get("b", 0))
        if random.random() < 0.1:  # b crashes, and its lane is replayed
            b.broker.sessions["b1"].received[:] = replica.state[0]
            b.cursors["b"] = replica.state[1]
            b.inbox.close_lane("b")
            fresh = Inbox(b.engine, NAMES, world.runtime, "b", b.boot, b, b.links, set())
            fresh.attach(b.broker.node)
            b.inbox = fresh
            fresh.open_lane("b", 0, replica.state[1])
    world.log.faults = quiet(world.log.faults)
    world.runtime.advance(600.0)
    assert acked == set(published)
    assert received(b, "b1") == published


@pytest.mark.parametrize("seed", range(40))
def test_frames_arrive_once_and_in_order_whatever_is_lost(seed: int) -> None:
    random = Random(seed)
    faults = Faults.drawn(random)
    world = RoutingWorld(seed, faults, frame_bytes=random.choice((150, 1 << 18)))
    world.join("a", "b", "c")
    nodes = list(world.nodes.values())
    for node in nodes:
        client(node, f"{node.name}1", "#", 1, False)
    world.runtime.advance(60.0)
    published: list[tuple[str, int, bytes]] = []
    acked: set[bytes] = set()
    for number in range(100):
        node = random.choice(nodes)
        qos = random.randrange(3)
        payload = b"%s/%d %d" % (node.name.encode(), qos, number)
        published.append((node.name, qos, payload))

        def done(payload: bytes = payload, qos: int = qos) -> None:
            acked.add(payload)
            assert not qos or all(payload in received(one, f"{one.name}1") for one in nodes)

        node.publish("x", payload, qos, done if random.random() < 0.9 else None)
        if random.random() < 0.1:
            node.engine.cut()
        for one in nodes:
            if one.engine.is_cut and random.random() < 0.3:
                one.engine.heal()
        if random.random() < 0.6:
            world.runtime.advance(random.choice((0.0, 0.001, 0.05, 1.0)))
    world.log.faults = quiet(world.log.faults)
    for node in nodes:
        node.engine.heal()
        node.commit()
    world.runtime.advance(60.0)
    for node in nodes:
        for writer, level in product(nodes, range(3)):
            sent = [one for name, qos, one in published if (name, qos) == (writer.name, level)]
            prefix = b"%s/%d " % (writer.name.encode(), level)
            got = received(node, f"{node.name}1")
            assert [one for one in got if one.startswith(prefix)] == sent


def test_stored_frames_name_their_place() -> None:
    world = cluster("a")
    a = world.nodes["a"]
    reader = a.inbox._lanes["a"]
    a.inbox._stored(reader, Stored(NAMES.lane("a"), 7, b"\xc1", 0.0))
    world.runtime.advance(0.0)
    ((_, _, fields),) = world.runtime.logged
    assert (fields["subject"], fields["sequence"]) == (NAMES.lane("a"), 7)
