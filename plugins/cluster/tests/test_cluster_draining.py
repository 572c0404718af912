"""Take nodes out of service and put them back, on a simulated log and one clock."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from cluster_world import ClusterWorld
from hookmq.cluster_api import Refused
from hookmq.mqtt_api import Puback
from hookmq.plugin import PluginError
from hookmq.storage_api import DropSession
from hookmq_cluster.claims import MOVING
from hookmq_cluster.engine import Entry
from hookmq_cluster.membership import decode_member
from hookmq_testing import MemoryClient
from hookmq_toolkit.cluster import ClusterError
from simulated_engine import QUIET, Faults

LEASE = 15.0


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    """Return three nodes that have run for some time. Clients know two of them as a.example and b.example."""
    world = ClusterWorld("a", "b", clients={"a": "a.example", "b": "b.example"})
    world.advance(2 * LEASE)
    yield world
    world.close()


def durable(world: ClusterWorld, node: str, client_id: str, **options: Any) -> MemoryClient:
    """Connect a client with a durable session."""
    return world.connect(
        node, client_id, clean_start=False, session_expiry_interval=3600, **options
    )


def payloads(client: MemoryClient) -> list[bytes]:
    """Return the payloads that a client got."""
    return [one.payload for one in client.messages]


# drain -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("moved", "code"), [(False, 0x9C), (True, 0x9D)])
def test_all_clients_learn_where_to_go(world: ClusterWorld, moved: bool, code: int) -> None:
    clients = [durable(world, "a", "durable"), world.connect("a", "volatile")]
    old = world.connect("a", "old", version=4)
    other = world.connect("b", "other")
    world.complete_drain("a", moved=moved)
    for client in clients:
        packet = client.expect_disconnect(code)
        assert packet is not None
        assert packet.properties.server_reference == "b.example"
    old.expect_closed()
    other.ping()


def test_a_drained_node_refuses_clients(world: ClusterWorld) -> None:
    durable(world, "a", "s")
    world.complete_drain("a")
    assert world.cluster("a").unready() == "drained"
    for client_id in ("s", "new"):
        client = world.connect("a", client_id, expect=0x9C)
        assert client.connack is not None
        assert client.connack.properties.server_reference == "b.example"
    world.connect("a", "old", version=4, expect=3)


def test_no_client_is_relayed_after_the_drain(world: ClusterWorld) -> None:
    """The log tells where its session is, when the node is drained already."""
    durable(world, "b", "s").drop()
    places: list[object] = []
    world.cluster("a").locate("s", places.append)
    assert places == []
    world.complete_drain("a")
    [place] = places
    assert isinstance(place, Refused)
    assert place.reference == "b.example"


def test_sessions_move_with_their_messages(world: ClusterWorld) -> None:
    subscriber = durable(world, "a", "s", auto_ack=False)
    subscriber.subscribe(["t", "$share/g/u"], 2)
    publisher = world.connect("b", "p")
    publisher.publish("t", b"in flight", 2)
    subscriber.drop()
    publisher.publish("t", b"queued", 1)
    publisher.publish("u", b"shared", 1)
    world.complete_drain("a")
    publisher.publish("t", b"later", 1)
    again = durable(world, "b", "s")
    assert again.session_present
    world.settle()
    assert sorted(payloads(again)) == [b"in flight", b"later", b"queued", b"shared"]
    assert world.nodes["a"].broker.state.queued_bytes == 0


class LoadedPublisher:
    """A client that publishes numbered messages without a pause. If a node sends it away, it connects to another one, and
    repeats each unacknowledged message."""

    def __init__(self, world: ClusterWorld, name: str, node: str) -> None:
        self.name = name
        self.acked: set[int] = set()
        self.longest = 0.0
        """The longest time between two acknowledgements, in seconds."""
        self._world = world
        self._client = world.connect(node, name)
        self._sent: dict[int, int] = {}
        """The messages that wait for their acknowledgements, by packet id."""
        self._number = 0
        self._last = world.clock.now()

    def step(self) -> None:
        """Publish a message, and read the acknowledgements."""
        client, now = self._client, self._world.clock.now()
        while client.unread:
            packet = client.unread.popleft()
            if isinstance(packet, Puback) and packet.code == 0:
                self.acked.add(self._sent.pop(packet.packet_id))
                self.longest = max(self.longest, now - self._last)
                self._last = now
        if client.wire.closed:
            serving = [one for one in "ab" if not self._world.cluster(one).unready()]
            self._client = client = self._world.connect(serving[-1], self.name, expect=None)
            again, self._sent = self._sent, {}
            for number in again.values():
                self._publish(number)
        self._publish(self._number)
        self._number += 1

    def _publish(self, number: int) -> None:
        payload = f"{self.name} {number}".encode()
        self._sent[self._client.publish("t", payload, 1)] = number


def test_publishers_wait_less_than_a_second(world: ClusterWorld) -> None:
    subscribers = [durable(world, "a", f"s{number}") for number in range(20)]
    for subscriber in subscribers:
        subscriber.subscribe("t", 1)
        subscriber.drop()
    publishers = [LoadedPublisher(world, f"p-{node}", node) for node in "ab"]
    with ExitStack() as stack:
        for node in world.nodes.values():
            stack.enter_context(node.together())
        for tick in range(900):
            if tick == 100:
                world.manager("a").drain_node("a", 1.0, False)
            if tick == 500:
                assert world.status("a").state == "drained"
                world.manager("a").undrain_node("a")
            for publisher in publishers:
                publisher.step()
            world.advance(0.01)
    assert world.status("a").state == "ready"
    assert max(publisher.longest for publisher in publishers) < 1.0
    again = durable(world, "a", "s0")
    world.advance(1.0)
    got = {payload.decode() for payload in payloads(again)}
    for publisher in publishers:
        assert len(publisher.acked) > 800
        assert {f"{publisher.name} {number}" for number in publisher.acked} <= got
    times = Counter(payloads(again))
    assert sum(times.values()) - len(times) < 100  # only repeated messages


def test_clients_without_a_durable_session_go_in_slices(world: ClusterWorld) -> None:
    clients = [world.connect("a", f"c{number}") for number in range(100)]
    world.manager("a").drain_node("a", 10.0, False)
    gone: list[int] = []
    for _ in range(10):
        gone.append(sum(client.wire.closed for client in clients))
        world.advance(1.0)
    assert gone[1] < 60
    world.advance(2.0)
    assert world.status("a").state == "drained"
    assert all(client.wire.closed for client in clients)


def test_adopted_lanes_go_too(world: ClusterWorld) -> None:
    world.start("c")
    world.advance(2 * LEASE)
    durable(world, "c", "s").subscribe("t", 1)
    world.kill("c")
    world.advance(3 * LEASE)
    owner, other = ("a", "b") if world.cluster("a").owns("c") else ("b", "a")
    world.complete_drain(owner)
    assert world.cluster(other).keeper.open == {"a", "b", "c"}
    world.connect(other, "p").publish("t", b"x", 1)
    again = durable(world, other, "s")
    world.settle()
    assert payloads(again) == [b"x"]


# a drained node ------------------------------------------------------------------------------------------------------


def test_a_drained_node_stays_a_member(world: ClusterWorld) -> None:
    world.complete_drain("a")
    world.advance(10 * LEASE)
    assert set(world.cluster("b").membership.others) == {"a"}
    assert not world.nodes["a"].logged("node.store_failed")
    assert world.cluster("b").keeper.open == {"a", "b"}


def test_a_late_renewal_of_a_drained_node_does_not_replace_the_lease_of_its_next_process(
    world: ClusterWorld,
) -> None:
    world.complete_drain("a")
    world.log.faults = Faults(late=1.0)
    world.advance(LEASE / 3)
    world.log.faults = QUIET
    world.kill("a")
    world.start("a")
    [owner] = world.log.messages(["hmq.test.own.a"])
    world.advance(3 * LEASE)
    boots = [
        decoded.boot
        for stored in world.log.history()
        if stored.subject == "hmq.test.lease.a" and stored.sequence > owner.sequence
        if (decoded := decode_member(stored.data)) is not None
    ]
    assert len(boots) > 5
    assert set(boots) == {world.cluster("a").me.boot}


def test_a_drained_node_can_be_cut_off_for_a_while(world: ClusterWorld) -> None:
    world.complete_drain("a")
    world.engines["a"].cut()
    world.advance(3 * LEASE)
    assert world.cluster("b").membership.others == {}
    world.engines["a"].heal()
    world.advance(2 * LEASE)
    assert world.status("a").state == "drained"
    assert world.cluster("b").is_stopping(world.cluster("b").membership.others["a"])
    world.complete_undrain("a")


def test_a_drained_node_gets_no_lanes(world: ClusterWorld) -> None:
    world.complete_drain("a")
    world.start("c")
    world.advance(2 * LEASE)
    cluster = world.cluster("c")
    assert cluster.is_stopping(cluster.membership.others["a"])
    world.clock.spawn(cluster.leave(), lambda *_: None)
    world.advance(2.0)
    assert world.cluster("b").keeper.open == {"a", "b", "c"}


def test_a_drained_node_passes_a_lane_on(world: ClusterWorld) -> None:
    """Another node may not know yet that this one is drained."""
    durable(world, "b", "s").subscribe("t", 1)
    world.complete_drain("a")
    world.start("c")
    world.advance(2 * LEASE)
    a = world.cluster("a")
    lane = "a" if world.cluster("b").owns("a") else "c"
    given: list[str] = []
    giver = world.cluster("b" if world.cluster("b").owns(lane) else "c")
    world.clock.spawn(giver.give_lane(lane, a.me), lambda result, _: given.append(result))
    world.advance(2.0)
    assert given == [""]
    assert a.keeper.open == set()
    assert world.cluster("b").owns(lane) or world.cluster("c").owns(lane)


def test_a_drained_node_that_cannot_pass_a_lane_on_tries_again(world: ClusterWorld) -> None:
    world.complete_drain("a")
    a, b = world.cluster("a"), world.cluster("b")
    world.clock.spawn(b.give_lane("a", a.me), lambda *_: None)
    while a.lanes.owners["a"].node != "a":
        if not world.clock.turn():
            world.advance(0.001)
    world.log.stop()
    world.advance(2 * LEASE)
    assert world.nodes["a"].logged("cluster.lane_not_given")
    world.log.start()
    world.advance(LEASE / 2)
    assert b.owns("a")


def test_a_drained_node_tells_again_that_it_takes_no_lanes(world: ClusterWorld) -> None:
    """Another node may have missed it."""
    world.start("c")
    world.engines["c"].cut()
    world.complete_drain("a")
    world.engines["c"].heal()
    a, b, c = (world.cluster(node) for node in "abc")
    assert not c.is_stopping(a.me)
    world.clock.spawn(b.give_lane("a", a.me), lambda *_: None)
    world.advance(2.0)
    assert c.is_stopping(a.me)
    assert b.owns("a") or c.owns("a")


def test_a_node_that_was_put_back_tells_again_that_it_takes_lanes(world: ClusterWorld) -> None:
    """Another node may have missed it."""
    world.start("c")
    world.complete_drain("a")
    a, b, c = (world.cluster(node) for node in "abc")
    assert b.is_stopping(a.me)
    world.log.break_route(world.engines["a"], world.engines["c"])
    world.manager("a").undrain_node("a")
    world.advance(LEASE)
    assert world.status("a").state == "ready"
    assert [one.is_stopping(a.me) for one in (b, c)] == [False, True]
    world.log.mend_routes()
    world.advance(LEASE)
    assert not c.is_stopping(a.me)
    sent: list[str] = []
    a._messages.send = lambda node, message: sent.append(node)  # type: ignore[method-assign]
    world.advance(LEASE)
    assert not sent


def test_a_node_that_is_drained_again_does_not_say_that_it_takes_lanes(world: ClusterWorld) -> None:
    world.start("c")
    world.complete_drain("a")
    a, c = world.cluster("a"), world.cluster("c")
    world.log.break_route(world.engines["a"], world.engines["c"])
    world.manager("a").undrain_node("a")
    world.advance(LEASE)
    world.log.mend_routes()
    world.complete_drain("a")
    world.advance(2 * LEASE)
    assert c.is_stopping(a.me)


def test_nodes_that_were_drained_at_once_get_their_lanes_back(world: ClusterWorld) -> None:
    """Each has given its lane to the other, before it knew that the other one is drained, too."""
    for node in "ab":
        durable(world, node, f"s-{node}").subscribe("t", 1)
    for node in "ab":
        world.manager(node).drain_node(node, 0.0, False)
    world.advance(10.0)
    for node in "ab":
        assert world.status(node).state in ("draining", "drained")
    for node in "ab":
        world.manager(node).undrain_node(node)
    world.advance(5.0)
    for node in "ab":
        assert (world.status(node).state, world.status(node).problem) == ("ready", "")
        assert durable(world, node, f"s-{node}").session_present


def test_plugins_publish_on_a_drained_node(world: ClusterWorld) -> None:
    world.complete_drain("a")
    subscriber = durable(world, "b", "s")
    subscriber.subscribe("t", 1)
    publish = world.nodes["a"].handle("cluster").publish_and_wait
    told: list[object] = []
    world.clock.spawn(publish("t", b"x", qos=1, retain=True), lambda *one: told.append(one[1]))
    world.settle()
    assert told == [None]
    assert payloads(subscriber) == [b"x"]
    retained = world.connect("b", "r")
    retained.subscribe("t", 1)
    assert payloads(retained) == [b"x"]


@pytest.mark.parametrize("undo", [False, True])
def test_plugins_store_their_state_on_a_drained_node(world: ClusterWorld, undo: bool) -> None:
    world.change_state("a", old=b"1", gone=b"1", kept=b"1")
    world.complete_drain("a")
    world.change_state("a", old=b"2", gone=None, new=b"2", short=b"2")
    world.change_state("a", short=None)
    assert world.log.messages(["hmq.test.away.a"])
    wanted = [("kept", b"1"), ("new", b"2"), ("old", b"2")]
    if undo:
        world.complete_undrain("a")
        assert world.read_state("a") == wanted
    for _ in range(2):
        world.kill("a")
        world.advance(3 * LEASE)
        world.start("a")
        world.advance(1.0)
        assert world.read_state("a") == wanted
        assert not any(one.data for one in world.log.messages(["hmq.test.away.a"]))
    world.change_state("a", new=b"3")
    world.kill("a")
    world.advance(3 * LEASE)
    world.start("a")
    assert world.read_state("a") == [("kept", b"1"), ("new", b"3"), ("old", b"2")]


def test_damaged_state_of_plugins_stops_the_node(world: ClusterWorld) -> None:
    world.complete_drain("a")
    world.change_state("a", key=b"1")
    world.kill("a")
    world.log.append([Entry("hmq.test.away.a", b"damaged")])
    world.advance(3 * LEASE)
    with pytest.raises(PluginError, match=r"hmq\.test\.away\.a is damaged"):
        world.start("a")


def test_a_session_of_a_plugin_waits_until_the_node_is_put_back(world: ClusterWorld) -> None:
    """The core does not begin one, because the node refuses clients. The store must not lose it either."""
    world.complete_drain("a")
    store = world.cluster("a").store
    told: list[object] = []
    store.commit((DropSession("late"),), told.append)
    world.advance(2.0)
    assert told == []
    assert world.nodes["a"].logged("cluster.commit_waits")
    world.complete_undrain("a")
    assert len(told) == 1


# undrain -------------------------------------------------------------------------------------------------------------


def test_a_node_is_put_back_with_its_sessions(world: ClusterWorld) -> None:
    subscriber = durable(world, "a", "s")
    subscriber.subscribe(["t", "$share/g/u"], 1)
    world.complete_drain("a")
    publisher = world.connect("b", "p")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 1)
        publisher.publish("u", b"u%d" % number, 1)
    world.complete_undrain("a")
    assert world.cluster("a").unready() == ""
    again = durable(world, "a", "s")
    assert again.session_present
    publisher.publish("t", b"3", 1)
    world.settle()
    assert sorted(payloads(again)) == [b"0", b"1", b"2", b"3", b"u0", b"u1", b"u2"]
    new = durable(world, "a", "new")
    new.subscribe("t", 1)
    publisher.publish("t", b"4", 1)
    world.settle()
    assert payloads(new) == [b"4"]
    # The node takes lanes again.
    assert not world.cluster("b").is_stopping(world.cluster("b").membership.others["a"])


def test_a_node_can_be_drained_again_and_again(world: ClusterWorld) -> None:
    subscriber = durable(world, "a", "s")
    subscriber.subscribe("$share/g/t", 1)
    subscriber.drop()
    publisher = world.connect("b", "p")
    for number in range(3):
        world.complete_drain("a")
        publisher.publish("t", b"%d" % number, 1)
        world.complete_undrain("a")
    world.advance(10 * LEASE)
    again = durable(world, "a", "s")
    world.settle()
    assert payloads(again) == [b"0", b"1", b"2"]


def test_a_drained_node_that_restarts_is_back(world: ClusterWorld) -> None:
    durable(world, "a", "s").subscribe("t", 1)
    world.complete_drain("a")
    world.clock.spawn(world.cluster("a").leave(), lambda *_: None)
    world.advance(1.0)
    world.kill("a")
    world.start("a")
    world.advance(2.0)
    assert world.status("a").state == "ready"
    assert durable(world, "a", "s").session_present


def test_the_lane_of_a_dead_owner_comes_back(world: ClusterWorld) -> None:
    durable(world, "a", "s").subscribe("t", 1)
    world.complete_drain("a")
    world.kill("b")
    world.manager("a").undrain_node("a")
    world.advance(3 * LEASE)
    assert world.status("a").state == "ready"
    assert durable(world, "a", "s").session_present


def test_a_shared_subscription_gets_a_message_once_that_is_stored_when_its_lane_leaves(
    world: ClusterWorld,
) -> None:
    durable(world, "a", "m").subscribe("$share/g/t", 2)
    world.nodes["a"].clients[-1].drop()
    sent = []
    got: list[bytes] = []
    for number in range(12):
        sent.append(b"%d" % number)
        publisher = durable(world, "a", f"p{number}")
        with world.nodes["a"].together():
            publisher.publish("t", sent[-1], 2)
            world.advance(number / 4000)
            world.manager("a").drain_node("a", 0.0, False)
        world.advance(3.0)
        assert world.status("a").state == "drained"
        member = durable(world, "b", f"n{number}")
        member.subscribe("$share/g/t", 2)
        world.advance(1.0)
        world.complete_undrain("a")
        world.advance(1.0)
        got += payloads(member)
        member.unsubscribe("$share/g/t")
    assert sorted(got) == sorted(sent)


# requests that are refused ---------------------------------------------------------------------------------------


def refusal(world: ClusterWorld, node: str, undo: bool = False, reason: str = "conflict") -> str:
    """Return why node a refuses to drain a node, or to put it back."""
    manager = world.manager("a")
    change = (
        partial(manager.undrain_node, node)
        if undo
        else partial(manager.drain_node, node, 0.0, False)
    )
    with pytest.raises(ClusterError) as caught:
        change()
    assert caught.value.reason == reason
    return str(caught.value)


def test_refused_requests(world: ClusterWorld) -> None:
    assert refusal(world, "b") == "this is node 'a'; ask node 'b' itself"
    assert refusal(world, "b", undo=True) == "this is node 'a'; ask node 'b' itself"
    assert refusal(world, "x", reason="missing") == "no other live node 'x'; found: b"
    assert refusal(world, "a", undo=True) == "node 'a' is ready"
    world.complete_drain("a")
    assert refusal(world, "a") == "node 'a' is drained already"
    with pytest.raises(ClusterError, match="no other node can take the lanes of node 'b'"):
        world.manager("b").drain_node("b", 0.0, False)
    world.manager("a").undrain_node("a")
    assert refusal(world, "a", undo=True) == "node 'a' is returning"


def test_a_drain_that_did_not_end_can_be_undone(world: ClusterWorld) -> None:
    """The node does not know yet whether the log has stored the new owner of its lane."""
    durable(world, "a", "s").subscribe("t", 1)
    world.manager("a").drain_node("a", 0.0, False)
    while world.cluster("a").owns("a"):
        if not world.clock.turn():
            world.advance(0.001)
    world.engines["a"].cut()
    world.advance(LEASE / 2)
    assert world.status("a").problem
    world.manager("a").undrain_node("a")
    world.engines["a"].heal()
    world.advance(2 * LEASE)
    assert (world.status("a").state, world.status("a").problem) == ("ready", "")
    assert [node for node in "ab" if world.cluster(node).owns("a")] == ["a"]
    assert durable(world, "a", "s").session_present


def test_a_node_that_is_back_in_service_looks_for_lanes(world: ClusterWorld) -> None:
    world.complete_drain("a")
    world.advance(2 * LEASE)
    world.complete_undrain("a")
    world.kill("b")
    world.advance(3 * LEASE)
    assert world.cluster("a").keeper.open == {"a", "b"}


def test_without_a_log_a_drain_fails_and_can_be_repeated(world: ClusterWorld) -> None:
    durable(world, "a", "s").subscribe("t", 1)
    world.log.available = False
    world.manager("a").drain_node("a", 0.0, False)
    world.advance(8.0)
    assert world.status("a").state == "draining"
    assert (
        world.status("a").problem == "lane 'a' was not given to node 'b': the log does not answer"
    )
    world.log.available = True
    world.advance(2 * LEASE)
    world.manager("a").drain_node("a", 0.0, False)
    world.advance(5.0)
    assert (world.status("a").state, world.status("a").problem) == ("drained", "")
    assert durable(world, "b", "s").session_present


def test_what_could_not_be_put_back_is_as_drained_as_before(world: ClusterWorld) -> None:
    """A drain that failed has not ended all relays, so the node must not count as drained."""
    durable(world, "a", "s").subscribe("t", 1)
    world.log.available = False
    world.manager("a").drain_node("a", 0.0, False)
    world.advance(8.0)
    world.manager("a").undrain_node("a")
    world.advance(90.0)
    assert world.status("a").state == "draining"
    assert "was not returned within 30 s" in world.status("a").problem
    world.log.available = True
    world.advance(2 * LEASE)
    world.complete_drain("a")
    world.log.available = False
    world.manager("a").undrain_node("a")
    world.advance(90.0)
    assert world.status("a").state == "drained"


@pytest.mark.parametrize("drained", [True, False])
def test_messages_of_members_that_leave_go_to_members_on_other_nodes(
    world: ClusterWorld, drained: bool
) -> None:
    other = durable(world, "b", "other")
    other.subscribe("$share/g/t", 1)
    member = world.connect("a", "member", auto_ack=False)
    member.subscribe("$share/g/t", 1)
    world.connect("a", "p").publish("t", b"one", 1, expect=0)
    world.settle()
    assert (payloads(member), payloads(other)) == ([b"one"], [])
    if drained:
        world.complete_drain("a")
    else:  # The member leaves by itself while its node stops.
        world.clock.spawn(world.cluster("a").leave(), lambda *_: None)
        world.advance(0.01)
        assert world.cluster("a").owns("a")
        member.wire.lose("lost")
        world.advance(2.0)
    assert payloads(other) == [b"one"]


# clients that connect while their lane moves ---------------------------------------------------------------------


def test_no_client_connects_while_its_lane_is_committed_for_the_last_time(
    world: ClusterWorld,
) -> None:
    """The broker has forgotten the session by then. A new one would replace it in the lane."""
    client = durable(world, "a", "s")
    client.drop()
    cluster = world.cluster("a")
    cluster.keeper.give("a", cluster.membership.others["b"], lambda _: None)
    while cluster.owns("a"):
        assert "s" in world.nodes["a"].broker.state.sessions
        if not world.clock.turn():
            world.advance(0.001)
    assert "s" not in world.nodes["a"].broker.state.sessions
    assert cluster.store.lane_of("s") == "a"
    places: list[object] = []
    assert client.connection.client is not None
    cluster.claim(client.connection.client, True, places.append)
    assert places == [MOVING]


def test_a_client_that_connects_meanwhile_keeps_its_session(world: ClusterWorld) -> None:
    """Whatever the moment at which it connects: its session is resumed, or the client is refused."""
    subscriber = durable(world, "a", "s")
    subscriber.subscribe("t", 1)
    subscriber.drop()
    publisher = world.connect("b", "p")
    attempts = []
    for round in range(40):
        publisher.publish("t", b"%d" % round, 1)
        world.manager("a").drain_node("a", 0.0, False)
        world.advance(round / 500)
        with world.nodes["a"].together():
            attempts.append(durable(world, "a", "s", expect=None, auto_ack=False))
        world.advance(3.0)
        assert world.status("a").state == "drained"
        world.complete_undrain("a")
    answers = {client.connack.code for client in attempts if client.connack is not None}
    assert all(
        client.session_present for client in attempts if client.connack and not client.connack.code
    )
    assert answers
    again = durable(world, "a", "s")
    world.settle()
    assert set(payloads(again)) == {b"%d" % number for number in range(40)}
