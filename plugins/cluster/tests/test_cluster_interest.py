"""Interest: all nodes learn all subscriptions, whatever is lost, and nobody is told so too early."""

from random import Random

import pytest
from cluster_routing import ModelBroker, RoutingNode, RoutingWorld, subscription
from hookmq.storage_api import group_owner
from hookmq_cluster.announcements import Begin, Change, Drop, End, Leave, Put, decode_changes
from hookmq_cluster.frames import VERSION
from hookmq_cluster.local_interest import LocalInterest
from hookmq_cluster.nats_stream import SMALLEST
from hookmq_cluster.remote_interest import RemoteInterest
from hookmq_testing import VirtualRuntime
from simulated_engine import Faults, quiet


def test_a_subscription_is_settled_when_all_other_nodes_route_to_it() -> None:
    world = RoutingWorld()
    world.join("a", "b", "c")
    a, b = world.nodes["a"], world.nodes["b"]
    a.connect("volatile", durable=False)
    a.connect("durable", durable=True)
    a.subscribe("volatile", "x/+", 2)
    a.subscribe("durable", "x/+", 1)
    a.subscribe("durable", "zero", 0)
    assert not a.settled
    world.runtime.advance(0.1)
    assert len(a.settled) == 3
    expected = {("node a", None, "x/+"): 2, ("lane a", None, "x/+"): 1, ("node a", None, "zero"): 0}
    assert b.tree() == world.nodes["c"].tree() == expected
    a.unsubscribe("volatile", "x/+")
    a.subscribe("durable", "x/+", 2)
    world.runtime.advance(0.1)
    assert b.tree() == {("lane a", None, "x/+"): 2, ("node a", None, "zero"): 0}


def test_settled_is_true_at_once_without_other_nodes_and_without_changes() -> None:
    world = RoutingWorld()
    a = world.start("a")
    a.connect("one", durable=False)
    a.subscribe("one", "x")
    assert a.settled
    world.join("b")
    assert a.interest.settled(lambda: None)
    a.connect("two", durable=False)
    a.subscribe("two", "x")  # the announced value does not change
    assert len(a.settled) == 2


def test_settled_waits_for_a_silent_node_until_it_leaves() -> None:
    world = RoutingWorld()
    world.join("a", "b", "c")
    a = world.nodes["a"]
    world.nodes["c"].engine.cut()
    a.connect("one", durable=False)
    a.subscribe("one", "x")
    world.runtime.advance(60.0)
    assert not a.settled
    world.lose(a, "c")
    assert a.settled


def test_settled_includes_a_node_that_joins_meanwhile() -> None:
    world = RoutingWorld()
    world.join("a", "b")
    a = world.nodes["a"]
    world.nodes["b"].engine.cut()
    a.connect("one", durable=False)
    a.subscribe("one", "x")
    c = world.start("c")
    world.see(a, c)
    world.lose(a, "b")
    assert not a.settled
    world.runtime.advance(5.0)
    assert not a.settled  # c does not regard a as alive yet
    world.see(c, a)
    world.runtime.advance(5.0)
    assert a.settled
    assert c.tree() == {("node a", None, "x"): 1}


def test_a_node_is_synced_when_it_knows_all_tables() -> None:
    world = RoutingWorld()
    world.join("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    a.connect("one", durable=True)
    for number in range(3000):
        a.subscribe("one", f"x/{number}")
    c = world.start("c")
    assert c.interest.synced  # it is alone
    for other in (a, b):
        world.see(c, other)
        world.see(other, c)
    assert not c.interest.synced
    while not c.tree():
        world.runtime.advance(0.0005)
    assert len(c.tree()) < 3000
    assert not c.interest.synced
    world.runtime.advance(3.0)
    assert c.interest.synced
    assert len(c.tree()) == 3000
    c.interest.lane_owner("lost", None)
    assert not c.interest.synced  # nobody announces the lane


def test_a_lane_keeps_its_entries_while_its_owner_is_dead() -> None:
    world = RoutingWorld()
    world.join("a", "b", "c")
    a, b, c = (world.nodes[name] for name in "abc")
    a.connect("durable", durable=True)
    a.subscribe("durable", "x")
    a.subscribe("durable", "gone")
    a.connect("volatile", durable=False)
    a.subscribe("volatile", "y")
    world.runtime.advance(1.0)
    world.crash("a")
    world.lose(b, "a")
    world.lose(c, "a")
    world.runtime.advance(1.0)
    assert b.tree() == c.tree() == {("lane a", None, "x"): 1, ("lane a", None, "gone"): 1}
    # b adopts the lane. One subscription had ended before the crash, and c never learned it.
    b.connect("durable", durable=True, lane="a")
    b.subscribe("durable", "x")
    world.take(b, "a")
    assert not b.publish("x", b"here")
    c.interest.lane_owner("a", "b")
    world.runtime.advance(1.0)
    assert b.tree() == {}
    assert c.tree() == {("lane a", None, "x"): 1}


def test_a_node_that_restarts_replaces_its_volatile_table() -> None:
    world = RoutingWorld()
    world.join("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    a.connect("old", durable=False)
    a.subscribe("old", "old")
    world.runtime.advance(1.0)
    world.crash("a")
    again = world.start("a")
    again.connect("new", durable=False)
    again.subscribe("new", "new")
    world.see(again, b)
    world.see(b, again)
    world.runtime.advance(5.0)
    assert b.tree() == {("node a", None, "new"): 1}


def test_a_lane_that_is_handed_over_is_never_without_entries() -> None:
    world = RoutingWorld()
    world.join("a", "b", "c")
    a, b, c = (world.nodes[name] for name in "abc")
    for number in range(1500):
        a.connect(f"c{number}", durable=True)
        a.subscribe(f"c{number}", f"x/{number}")
    world.runtime.advance(5.0)
    full = {("lane a", None, f"x/{number}"): 1 for number in range(1500)}
    assert c.tree() == full
    prepared: list[bool] = []
    a.interest.lane_leaving("a", lambda: prepared.append(True))
    a.subscribe("c0", "late")
    a.unsubscribe("c1", "x/1")
    del full["lane a", None, "x/1"]
    full["lane a", None, "late"] = 1
    world.runtime.advance(1.0)
    assert prepared
    assert a.tree() == full
    route = a.broker.route("x/7")
    assert route is not None
    assert not a.publish("x/7", b"local")  # the prepared table is not used yet
    moved = dict(a.broker.sessions)
    a.interest.lane_left("a")
    assert a.publish("x/7", b"remote")
    for client_id, session in moved.items():  # Node.release
        for one in session.subscriptions.values():
            a.interest.subscribed(client_id, True, one, False)
        del a.broker.sessions[client_id]
    world.runtime.advance(1.0)
    assert a.tree() == full
    assert c.tree() == full
    for client_id, session in moved.items():
        b.connect(client_id, durable=True, lane="a")
        for filter, one in session.subscriptions.items():
            b.subscribe(client_id, filter, one.qos)
    world.take(b, "a")
    for node in (a, c):
        node.interest.lane_owner("a", "b")
    for _ in range(200):
        world.runtime.advance(0.01)
        assert a.tree() == full
        assert c.tree() == full
    assert a.interest.remote.lanes["a"].announcer == "b"


def test_a_group_goes_to_online_members_first() -> None:
    world = RoutingWorld()
    world.join("a", "b", "c")
    a, b, c = (world.nodes[name] for name in "abc")
    owner = group_owner("g", "x")
    b.connect("b1", durable=True)
    b.subscribe("b1", "$share/g/x")
    c.connect("c1", durable=False)
    c.subscribe("c1", "$share/g/x")
    c.connect("c2", durable=False)
    c.subscribe("c2", "$share/g/x")
    world.runtime.advance(1.0)
    assert a.tree() == {("lane b", "g", "x"): 1, ("node c", "g", "x"): 1}

    def shares(node: RoutingNode) -> dict[str, float]:
        found: dict[str, float] = {}
        for _ in range(3000):
            table = node.interest.choose(owner)
            name = "here" if table is None else table.name
            found[name] = found.get(name, 0.0) + 1 / 3000
        return found

    found = shares(a)
    assert found == {"b": pytest.approx(1 / 3, abs=0.04), "c": pytest.approx(2 / 3, abs=0.04)}
    assert a.interest.elsewhere(owner)
    # A member here that is online has priority.
    a.connect("a1", durable=True)
    a.subscribe("a1", "$share/g/x")
    assert shares(a) == {"here": pytest.approx(1.0)}
    a.online("a1", False)
    assert shares(a).keys() == {"b", "c"}
    # If nobody is online, the group that exists here has priority.
    for node, client_id in ((b, "b1"), (c, "c1"), (c, "c2")):
        node.online(client_id, False)
    world.runtime.advance(1.0)
    assert not a.interest.elsewhere(owner)
    a.unsubscribe("a1", "$share/g/x")
    assert shares(a) == {"b": pytest.approx(1.0)}  # a lane stores the message
    world.crash("b")
    world.lose(a, "b")
    assert shares(a) == {"b": pytest.approx(1.0)}


def test_members_of_a_dead_node_do_not_count_as_online() -> None:
    world = RoutingWorld()
    world.join("a", "b", "c")
    a, b, c = (world.nodes[name] for name in "abc")
    b.connect("b1", durable=True)
    b.subscribe("b1", "$share/g/x")
    c.connect("c1", durable=False)
    c.subscribe("c1", "$share/g/x", 0)
    world.runtime.advance(1.0)
    world.crash("b")
    world.lose(a, "b")
    chosen = {a.interest.choose(group_owner("g", "x")) for _ in range(20)}
    assert [table.name for table in chosen if table is not None] == ["c"]


def test_a_group_with_volatile_and_durable_members_is_announced_once() -> None:
    world = RoutingWorld()
    world.join("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    b.connect("volatile", durable=False)
    b.subscribe("volatile", "$share/g/x")
    world.runtime.advance(1.0)
    assert a.tree() == {("node b", "g", "x"): 1}
    b.connect("durable", durable=True)
    b.subscribe("durable", "$share/g/x")
    world.runtime.advance(1.0)
    assert a.tree() == {("lane b", "g", "x"): 1}
    (entry,) = a.interest.remote.groups[group_owner("g", "x")].values()
    assert entry.online == 2
    b.unsubscribe("durable", "$share/g/x")
    world.runtime.advance(1.0)
    assert a.tree() == {("node b", "g", "x"): 1}


def test_a_node_whose_lease_had_ended_is_settled_when_all_nodes_know_it_again() -> None:
    world = RoutingWorld()
    world.join("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    a.connect("one", durable=False)
    a.subscribe("one", "x")
    world.runtime.advance(1.0)
    world.lose(b, "a")
    a.interest.lapsed()
    a.connect("two", durable=False)
    a.subscribe("two", "x")
    world.runtime.advance(10.0)
    assert len(a.settled) == 1
    assert b.tree() == {}
    world.see(b, a)
    world.runtime.advance(1.0)
    assert len(a.settled) == 2
    assert b.tree() == {("node a", None, "x"): 1}
    # The other node may also not have noticed anything.
    a.interest.lapsed()
    a.connect("three", durable=False)
    a.subscribe("three", "x")
    assert len(a.settled) == 2
    world.runtime.advance(1.0)
    assert len(a.settled) == 3
    assert b.tree() == {("node a", None, "x"): 1}


def test_a_new_reader_is_not_settled_by_what_the_one_before_knew() -> None:
    world = RoutingWorld()
    world.join("a", "b")
    a, b = world.nodes["a"], world.nodes["b"]
    send = b.engine.send
    b.engine.send = lambda subject, data: None  # type: ignore[method-assign]
    a.connect("one", durable=False)
    a.subscribe("one", "x")
    world.runtime.advance(0.1)  # the acknowledgement is lost
    assert b.tree() == {("node a", None, "x"): 1}
    world.lose(b, "a")
    b.engine.send = send  # type: ignore[method-assign]
    world.see(b, a)
    while not a.settled:
        world.runtime.advance(0.0005)
    assert b.tree() == {("node a", None, "x"): 1}


class Announced:
    """The entries that another node has after each change of a feed. The feed begins with what exists by then."""

    def __init__(self, local: LocalInterest) -> None:
        self.feed = local.feed()
        self.feed.begin()
        self.entries: set[tuple[str, str | None, str]] = set()
        self.states: list[set[tuple[str, str | None, str]]] = []
        self.read()

    def read(self) -> None:
        self.states.clear()
        while (content := self.feed.next()) is not None:
            for change in decode_changes(content):
                if isinstance(change, Put):
                    self.entries.add(change[:3])
                elif isinstance(change, Drop):
                    self.entries.discard(change[:3])
                self.states.append(set(self.entries))


def local_interest(lanes: dict[str, str]) -> LocalInterest:
    """Return the interest of node a, which announces its home lane. `lanes` are those of its clients."""
    local = LocalInterest("a", lanes.get, lambda: None)
    local.own("a", 1)
    return local


@pytest.mark.parametrize("earlier", [False, True], ids=["announced", "waiting"])
def test_a_group_is_never_without_an_entry(earlier: bool) -> None:
    lanes: dict[str, str] = {"d2": "b"}
    local = local_interest(lanes)
    share = subscription("$share/g/x")
    node, lane, other = ("", "g", "x"), ("a", "g", "x"), ("b", "g", "x")
    local.subscribed("v", False, share, True)
    other_node = Announced(local)
    assert other_node.entries == {node}

    def step(*expected: tuple[str, str | None, str]) -> None:
        other_node.read()
        assert other_node.entries == set(expected)
        assert all(other_node.states)

    if earlier:
        local.online("g/g/x", 1)
    local.subscribed("d1", True, share, True)
    step(lane)
    if earlier:
        local.online("g/g/x", 2)
    local.subscribed("d1", True, share, False)
    step(node)
    local.subscribed("d2", True, share, True)  # its lane is not announced yet
    step(node)
    local.own("b", 2)
    step(other)
    local.leave("b")
    other_node.read()
    assert other_node.entries == {node, other}


@pytest.mark.parametrize("share", [None, "x" * 30_000, "\u20ac" * 10_000])
def test_every_announcement_is_smaller_than_a_message_may_be(share: str | None) -> None:
    local = local_interest({})
    for number in range(60):
        prefix = "" if share is None else f"$share/{share}/"
        topic_filter = f"{prefix}{number}/" + "\u20ac" * 10_000
        local.subscribed("c", False, subscription(topic_filter), True)
    feed = local.feed()
    feed.begin()
    contents = list(iter(feed.next, None))
    assert sum(isinstance(one, Put) for data in contents for one in decode_changes(data)) == 60
    assert max(map(len, contents)) < SMALLEST // 2


def test_a_subscription_that_moves_is_never_without_an_entry() -> None:
    local = local_interest({})
    local.subscribed("c", True, subscription("x", 0), True)
    other_node = Announced(local)
    for qos, target in ((1, "a"), (0, ""), (2, "a")):
        local.subscribed("c", True, subscription("x", qos), True)
        other_node.read()
        assert other_node.entries == {(target, None, "x")}
        assert all(other_node.states)


def test_an_entry_that_is_hidden_during_the_first_announcement_is_announced_before() -> None:
    local = local_interest({})
    share = subscription("$share/g/x")
    local.subscribed("v", False, share, True)
    feed = local.feed()
    feed.begin()
    local.subscribed("d", True, share, True)
    contents = [feed.next(), feed.next()]
    first, second = (decode_changes(content) for content in contents if content is not None)
    assert Put("", "g", "x", 1, 0) in first
    assert second == [Put("a", "g", "x", 1, 0), Drop("", "g", "x")]


def test_the_owner_with_the_highest_fence_announces_a_lane() -> None:
    runtime = VirtualRuntime()
    remote = RemoteInterest(runtime)
    broker = ModelBroker()
    remote.attach(broker.node)
    for node in "bc":
        remote.member_joined(node)
    remote.announced("c", [Begin("l", 7), Put("l", None, "new", 1, 0), End("l", 7)])
    # The former owner's announcements arrive late.
    late: list[Change] = [
        Begin("l", 5),
        Put("l", None, "old", 1, 0),
        Drop("l", None, "new"),
        End("l", 5),
        Leave("l"),
    ]
    remote.announced("b", late)
    runtime.advance(1.0)
    assert remote.lanes["l"].announcer == "c"
    assert list(remote.lanes["l"].entries) == [(None, "new")]
    remote.own("l", 9)
    remote.announced("c", [Begin("l", 7), Put("l", None, "new", 1, 0)])
    runtime.advance(1.0)
    assert "l" not in remote.lanes
    assert broker.remotes == {}


def test_announcements_that_cannot_be_read_are_counted() -> None:
    world = RoutingWorld()
    world.join("a", "b")
    a = world.nodes["a"]
    for content in (b"", b"\xc1", b"\x01", b"\x91\x92\x00\x01", b"\x91\x91\x63", b"\x91\xc0"):
        a.links.announced("b", "boot", content)
    assert a.interest.malformed == 6
    logged = [name for _, name, _ in world.runtime.logged]
    assert logged == ["cluster.announcement_invalid"]


FILTERS = ("x", "y", "x/#", "$share/g/x", "$share/h/#")


class History:
    """A random history: clients come and go, nodes crash, start, are lost and seen again, and lanes change hands."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.world = RoutingWorld(seed, Faults.drawn(random))
        self.dead: dict[str, RoutingNode] = {}
        self.orphans: dict[str, RoutingNode] = {}
        """Lanes without an owner, and the node that had them."""
        self.world.join("a", "b", "c")
        self.clients = 0
        self.checked = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.world.step += 1
            self.act()
            self.mend()
            self.check_lanes()
            if self.random.random() < 0.7:
                self.world.runtime.advance(self.random.choice((0.0, 0.001, 0.05, 1.0, 3.0)))
                self.check_lanes()
        self.settle()
        self.check_lanes()

    def check_lanes(self) -> None:
        """Assert that a node which routes to a confirmed subscription of a durable session always does so, whoever owns
        the lane, until the subscription changes."""
        nodes = [*self.world.nodes.values(), *self.orphans.values()]
        for confirmed, (one, lane, names) in list(self.world.confirmed.items()):
            client_id, filter = confirmed
            holder = next((node for node in nodes if client_id in node.broker.sessions), None)
            if holder is None or holder.broker.sessions[client_id].subscriptions.get(filter) != one:
                del self.world.confirmed[confirmed]
                continue
            for name, boot in names:
                node = self.world.nodes.get(name)
                if node is not None and node.boot == boot and lane not in node.lanes:
                    assert node.covers(f"lane {lane}", one), (name, client_id, filter, lane)
                    self.checked += 1

    def act(self) -> None:
        random, world = self.random, self.world
        node = world.nodes[random.choice(sorted(world.nodes))]
        what = random.random()
        sessions = sorted(node.broker.sessions)
        if what < 0.2 or not sessions:
            self.clients += 1
            lane = random.choice(sorted(node.lanes))
            node.connect(f"c{self.clients}", random.random() < 0.6, lane)
        elif what < 0.6:
            node.subscribe(random.choice(sessions), random.choice(FILTERS), random.randrange(3))
        elif what < 0.75:
            client_id = random.choice(sessions)
            for filter in sorted(node.broker.sessions[client_id].subscriptions)[:1]:
                node.unsubscribe(client_id, filter)
        elif what < 0.8:
            session = node.broker.sessions[random.choice(sessions)]
            node.online(session.client_id, not session.online)
        elif what < 0.84:
            node.engine.cut()
        elif what < 0.85:
            node.interest.lapsed()
        elif what < 0.88 and node.peers:
            world.lose(node, random.choice(sorted(node.peers)))
        elif what < 0.92 and len(world.nodes) > 1:
            self.dead[node.name] = world.crash(node.name)
            for lane in node.lanes:
                self.orphans[lane] = node
        elif what < 0.96 and self.dead:
            self.restart(random.choice(sorted(self.dead)))
        elif what < 0.98 and self.orphans:
            self.adopt(node, random.choice(sorted(self.orphans)))
        elif len(node.lanes) and len(world.nodes) > 1:
            self.hand_over(node, random.choice(sorted(node.lanes)))

    def mend(self) -> None:
        """End some of the faults."""
        for node in list(self.world.nodes.values()):
            if node.engine.is_cut and self.random.random() < 0.2:
                node.engine.heal()
            for gone in [name for name in node.peers if name not in self.world.nodes]:
                if self.random.random() < 0.2:
                    self.world.lose(node, gone)
            if self.random.random() < 0.2:
                self.see(node)

    def see(self, node: RoutingNode) -> None:
        missing = [
            other
            for name, other in sorted(self.world.nodes.items())
            if name != node.name and name not in node.peers
        ]
        if missing:
            self.world.see(node, self.random.choice(missing))

    def restart(self, name: str) -> None:
        del self.dead[name]
        for other in self.world.nodes.values():
            if name in other.peers:
                self.world.lose(other, name)
        node = RoutingNode(self.world, name, f"boot{self.world.boots + 1}", 1 << 26, VERSION)
        self.world.boots += 1
        self.world.nodes[name] = node
        owner = next((one for one in self.world.nodes.values() if name in one.lanes), None)
        if owner is not None:
            # Another node has the home lane, so this one uses another.
            node.home = f"{name}{self.world.boots}"
            node.interest.local._home = node.home
            self.world.take(node, node.home)
        elif name in self.orphans:
            self.adopt(node, name)
        else:
            self.world.take(node, name)

    def adopt(self, node: RoutingNode, lane: str) -> None:
        before = self.orphans.pop(lane)
        self.move(before, node, lane)

    def move(self, before: RoutingNode, node: RoutingNode, lane: str) -> None:
        """Let `node` adopt a lane with all its sessions."""
        for client_id, session in before.broker.sessions.items():
            if session.durable and before.places[client_id] == lane:
                node.connect(client_id, True, lane)
                node.online(client_id, False)
                for filter, one in session.subscriptions.items():
                    node.broker.sessions[client_id].subscriptions[filter] = one
                    node.interest.subscribed(client_id, True, one, True)
                    node._report_online(one)
        self.world.take(node, lane)
        for other in self.world.nodes.values():
            if other is not node:
                other.interest.lane_owner(lane, node.name if node.name in other.peers else None)

    def hand_over(self, node: RoutingNode, lane: str) -> None:
        to = self.random.choice([one for one in self.world.nodes.values() if one is not node])
        if node.home == lane:
            return
        prepared: list[bool] = []
        node.interest.lane_leaving(lane, lambda: prepared.append(True))
        self.world.runtime.advance(0.0)
        assert prepared
        node.inbox.close_lane(lane)
        node.interest.lane_left(lane)
        del node.lanes[lane]
        moved = {
            client_id: session
            for client_id, session in node.broker.sessions.items()
            if session.durable and node.places[client_id] == lane
        }
        source = RoutingNode.__new__(RoutingNode)
        source.broker = type(node.broker)()
        source.broker.sessions = moved
        source.places = dict(node.places)
        for client_id, session in moved.items():
            del node.broker.sessions[client_id]
            for one in session.subscriptions.values():
                node.interest.subscribed(client_id, True, one, False)
                node._report_online(one)
        self.move(source, to, lane)

    def settle(self) -> None:
        """End all faults, let all nodes see each other, and compare all tables."""
        world = self.world
        world.log.faults = quiet(world.log.faults)
        for node in world.nodes.values():
            node.engine.heal()
        for lane in sorted(self.orphans):
            self.adopt(world.nodes[min(world.nodes)], lane)
        for node in world.nodes.values():
            for gone in [name for name in node.peers if name not in world.nodes]:
                world.lose(node, gone)
            for other in world.nodes.values():
                if other is not node and other.name not in node.peers:
                    world.see(node, other)
            for other in world.nodes.values():
                for lane in other.lanes:
                    if other is not node:
                        node.interest.lane_owner(lane, other.name)
        world.runtime.advance(120.0)
        for node in world.nodes.values():
            expected = {
                key: qos
                for other in world.nodes.values()
                if other is not node
                for key, qos in other.wants().items()
            }
            assert node.tree() == expected, node.name
            assert node.interest.synced, node.name
            assert node.interest.settled(lambda: None), node.name
            assert not node.interest.local.moving
            assert not node.interest.remote.busy
            members = {
                (owner, table.is_lane, table.name): entry.online
                for owner, tables in node.interest.remote.groups.items()
                for table, entry in tables.items()
                if entry.online
            }
            for other in world.nodes.values():
                if other is not node:
                    for owner, online in other.broker.groups().items():
                        found = members.get((owner, False, other.name), 0)
                        found += sum(members.get((owner, True, lane), 0) for lane in other.lanes)
                        assert found == online, (node.name, other.name, owner)


@pytest.mark.parametrize("seed", range(100))
def test_all_tables_converge_after_any_history(seed: int) -> None:
    History(seed).run(120)


def test_the_histories_check_something() -> None:
    histories = [History(seed) for seed in range(10)]
    for history in histories:
        history.run(60)
    assert sum(history.checked for history in histories) > 3000
