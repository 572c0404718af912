"""The order of messages while lanes move between nodes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from cluster_world import ClusterWorld
from hookmq.mqtt_api import Puback, Pubcomp, Publish
from hookmq_cluster.names import Names
from simulated_engine import LateAnswers

LEASE = 15.0
STEP = 0.0005
WINDOW = 50
OPTIONS = {"session_expiry_interval": 3600, "clean_start": False}


@pytest.fixture(params=["ab", "abc"])
def world(request: pytest.FixtureRequest) -> Iterator[ClusterWorld]:
    """Return nodes that have run for some time. Client s has a session on node b."""
    world = ClusterWorld(*request.param)
    world.advance(2 * LEASE)
    subscriber = world.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t/#", 2)
    subscriber.disconnect()
    world.settle()
    yield world
    world.close()


class Stream:
    """A client of `node` that publishes numbers, as fast as `WINDOW` allows."""

    def __init__(self, world: ClusterWorld, node: str, qos: int) -> None:
        self.node = node
        self.sent = 0
        self._qos = qos
        self._world = world
        self._client = world.connect(node, f"p{node}", session_expiry_interval=0)
        self._stopped = True
        self._read = self._answers = 0

    def start(self) -> None:
        """Publish from now on."""
        self._stopped = False
        self._publish()

    def stop(self) -> None:
        """Publish no more."""
        self._stopped = True

    def _publish(self) -> None:
        if self._stopped:
            return
        packets = self._client.received
        self._answers += sum(isinstance(one, Puback | Pubcomp) for one in packets[self._read :])
        self._read = len(packets)
        if self.sent - self._answers < WINDOW:
            self.sent += 1
            text = b"%d" % self.sent
            self._client.send(Publish(f"t/{self.node}", text, self._qos, packet_id=self.sent))
        self._world.clock.call_later(STEP, self._publish)


def publish(world: ClusterWorld, streams: list[Stream], until: Callable[[], bool]) -> None:
    """Publish until `until`, and a moment longer."""
    with ExitStack() as together:
        for stream in streams:
            together.enter_context(world.nodes[stream.node].together())
            stream.start()
        while not until():
            world.advance(STEP)
        world.advance(10 * STEP)
        for stream in streams:
            stream.stop()
    world.advance(5.0)


def check_order(world: ClusterWorld, streams: list[Stream], least: int) -> None:
    """Check that client s gets each message once and in order. Each stream must have at least `least` messages."""
    assert all(stream.sent >= least for stream in streams)
    client = world.connect("a", "s", **OPTIONS)
    world.settle()
    found: dict[str, list[int]] = {}
    for one in client.messages:
        found.setdefault(one.topic, []).append(int(one.payload))
    assert found == {f"t/{stream.node}": list(range(1, stream.sent + 1)) for stream in streams}


@pytest.mark.parametrize(("qos", "cut"), [(1, False), (2, False), (2, True)])
def test_messages_stay_in_order_while_a_node_adopts_sessions(
    world: ClusterWorld, qos: int, cut: bool
) -> None:
    live = [name for name in world.nodes if name != "b"]
    streams = [Stream(world, name, qos) for name in live]
    world.kill("b")
    while any("b" in world.cluster(name).membership.others for name in live):
        world.advance(0.01)
    faults = ["b"] if cut else []

    def adopted() -> bool:
        for name in live:
            if faults and "b" in world.cluster(name).lanes.fences:
                assert not world.cluster(name).owns(faults.pop())
                world.engines[name].cut()
                world.clock.call_later(0.1, world.engines[name].heal)
        return any(world.cluster(name).owns("b") for name in live)

    publish(world, streams, adopted)
    check_order(world, streams, 100)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("world", ["abc"], indirect=True)
def test_messages_stay_in_order_while_a_node_gives_sessions_away(
    world: ClusterWorld, qos: int
) -> None:
    world.kill("b")
    world.advance(3 * LEASE)
    owner, other = ("a", "c") if world.cluster("a").owns("b") else ("c", "a")
    streams = [Stream(world, name, qos) for name in "ac"]
    world.connect(other, "volatile").subscribe("t/#", 1)
    given: list[str] = []
    give, to = world.cluster(owner).keeper.give, world.cluster(other).me
    world.clock.call_later(0.05, lambda: give("b", to, given.append))
    publish(world, streams, lambda: world.cluster(other).owns("b"))
    assert given == [""]
    assert not world.nodes[owner].logged("cluster.messages_unsent")
    check_order(world, streams, 50)


@pytest.mark.parametrize(
    ("broken", "order"), [(5.0, ([b"1", b"2"], [])), (30.0, ([b"2", b"1"], ["b"]))]
)
@pytest.mark.parametrize("world", ["abc"], indirect=True)
def test_qos_0_messages_stay_in_order_while_their_publisher_moves(
    world: ClusterWorld, broken: float, order: tuple[list[bytes], list[str]]
) -> None:
    subscriber = world.connect("c", "other")
    subscriber.subscribe("t/#", 0)
    publisher = world.connect("b", "p", **OPTIONS)
    world.advance(1.0)
    log, engines = world.log, world.engines
    log.break_route(engines["b"], engines["c"])
    world.clock.call_later(broken, log.mend_routes)
    publisher.publish("t", b"1")
    given: list[str] = []
    world.clock.spawn(
        world.cluster("b").give_lane("b", world.cluster("a").me),
        lambda reason, _: given.append(str(reason)),
    )
    world.advance(4.0)
    assert not publisher.wire.closed
    while not given:
        world.advance(0.1)
    again = world.connect("a", "p", **OPTIONS)
    again.publish("t", b"2")
    world.advance(broken + 10.0)
    assert given == [""]
    found = [one.payload for one in subscriber.messages]
    unsent = [one["lane"] for one in world.nodes["b"].logged("cluster.messages_unsent")]
    assert (found, unsent) == order


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("world", ["ab"], indirect=True)
def test_messages_stay_in_order_while_a_node_gets_its_lane_back(
    world: ClusterWorld, qos: int
) -> None:
    world.kill("b")
    world.advance(3 * LEASE)
    stream = Stream(world, "a", qos)
    keeper = world.cluster("a").keeper
    with world.nodes["a"].together():
        stream.start()
        world.start("b")
        stream.stop()
    world.advance(5.0)
    assert keeper.open == {"a"}
    check_order(world, [stream], 500)


@pytest.mark.parametrize("world", ["abc"], indirect=True)
def test_messages_stay_in_order_while_a_node_adopts_two_lanes(world: ClusterWorld) -> None:
    other = world.connect("c", "other", session_expiry_interval=3600)
    other.subscribe("t/#", 1)
    stream = Stream(world, "a", 1)
    world.kill("b")
    world.kill("c")
    while world.cluster("a").membership.others:
        world.advance(0.01)
    publish(world, [stream], lambda: world.cluster("a").keeper.open == {"a", "b", "c"})
    check_order(world, [stream], 100)
    again = world.connect("a", "other", **OPTIONS)
    world.settle()
    assert [int(one.payload) for one in again.messages] == list(range(1, stream.sent + 1))


@pytest.mark.parametrize("world", ["ab"], indirect=True)
def test_a_large_backlog_loses_order_but_no_message(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookmq_cluster.lane_backlog.MOST", 1000)
    publisher = world.connect("a", "p", session_expiry_interval=0)
    world.kill("b")
    for number in range(150):
        publisher.publish("t/a", b"%d" % number, 1)
    world.advance(3 * LEASE)
    assert world.nodes["a"].logged("cluster.lane_behind") == [{"lane": "b"}]
    client = world.connect("a", "s", **OPTIONS)
    world.settle()
    assert sorted(int(one.payload) for one in client.messages) == list(range(150))


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.002, 0.003, 0.004, 0.008])
def test_a_message_for_a_lane_that_is_taken_is_not_acknowledged_and_lost(delay: float) -> None:
    world = ClusterWorld("a", "b", "c")
    world.advance(2 * LEASE)
    subscriber = world.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 1)
    subscriber.disconnect()
    world.kill("b")
    world.advance(3 * LEASE)
    owner, other = ("a", "c") if world.cluster("a").owns("b") else ("c", "a")
    publisher = world.connect(owner, "p", session_expiry_interval=0)
    lanes = world.cluster(other).lanes
    with world.nodes[owner].together():
        lanes.take("b", lanes.owners["b"], lambda _: None)
        world.advance(delay)
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        world.advance(5.0)
    acknowledged = any(isinstance(one, Puback) for one in publisher.received)
    assert world.cluster(other).owns("b")
    assert not world.cluster(owner).ready
    assert world.nodes[owner].logged("store.failed")
    again = world.connect(other, "s", **OPTIONS)
    world.settle()
    assert [one.payload for one in again.messages] == [b"x"] * acknowledged
    world.close()


def test_a_lane_that_comes_back_before_the_answer_is_opened() -> None:
    world = ClusterWorld("a", "b", "c")
    world.advance(2 * LEASE)
    world.connect("c", "s", **OPTIONS)
    world.kill("c")
    world.advance(3 * LEASE)
    owner, other = ("a", "b") if world.cluster("a").owns("c") else ("b", "a")
    late = LateAnswers(world.engines[owner], Names("test").own("c"))
    given: list[str] = []
    world.cluster(owner).keeper.give("c", world.cluster(other).me, given.append)
    world.advance(1.0)
    world.cluster(other).keeper.give("c", world.cluster(owner).me, given.append)
    world.advance(1.0)
    late.give()
    world.advance(1.0)
    assert given == ["", ""]
    assert world.cluster(owner).owns("c")
    assert "c" in world.cluster(owner).store.lanes()
    assert not world.nodes[owner].logged("cluster.lane_unusable")
    assert world.connect(other, "s", **OPTIONS).session_present
    world.close()


def test_a_node_that_stops_gives_its_home_lane_last() -> None:
    world = ClusterWorld("a", "b", "c", "d")
    world.advance(2 * LEASE)
    for name in "bcd":
        subscriber = world.connect(name, f"s{name}", session_expiry_interval=3600)
        subscriber.subscribe("t", 1)
        subscriber.disconnect()
    for name in "bcd":
        world.kill(name)
    world.advance(3 * LEASE)
    world.connect("a", "p", session_expiry_interval=3600).publish("t", b"x", 1)
    node = world.nodes["a"]
    world.clock.spawn(world.cluster("a").leave(), lambda *_: None)
    world.advance(5.0)
    assert [one["lane"] for one in node.logged("cluster.lane_freed")] == ["b", "c", "d", "a"]
    assert not node.logged("store.failed")
    world.kill("a")
    world.start("b")
    client = world.connect("b", "sb", **OPTIONS)
    world.settle()
    assert [one.payload for one in client.messages] == [b"x"]
    world.close()
