"""See the cluster and move lanes, on a simulated log and one clock."""

from collections.abc import Iterator

import pytest
from cluster_world import ClusterWorld
from hookmq_cluster.control import ClusterControl
from hookmq_testing import MemoryClient
from hookmq_toolkit.cluster import ClusterError, ClusterLane, ClusterMember

LEASE = 15.0


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    """Return two nodes, one of which has the lane of a third one that has died."""
    world = ClusterWorld("a", "b", "c")
    world.advance(2 * LEASE)
    subscriber = world.connect("c", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 1)
    world.kill("c")
    world.advance(3 * LEASE)
    yield world
    world.close()


def pair(world: ClusterWorld) -> tuple[str, str]:
    """Return the node that has lane c, and the other one."""
    return ("a", "b") if world.cluster("a").owns("c") else ("b", "a")


def move(world: ClusterWorld, node: str, lane: str, to: str) -> BaseException | None:
    """Ask a node to move a lane. Return the error."""
    ended: list[BaseException | None] = []
    world.clock.spawn(world.manager(node).move_lane(lane, to), lambda _, error: ended.append(error))
    world.advance(6.0)
    [error] = ended
    return error


def payloads(client: MemoryClient) -> list[bytes]:
    """Return the payloads that a client got."""
    return [one.payload for one in client.messages]


def test_status_shows_members_and_lanes(world: ClusterWorld) -> None:
    owner, other = pair(world)
    status = world.manager(owner).show_cluster()
    assert (status.name, status.node, status.state, status.lease) == ("test", owner, "ready", LEASE)
    assert status.lease_age is not None
    assert status.lease_age < LEASE
    assert status.members == [ClusterMember("a", "a:1"), ClusterMember("b", "b:1")]
    lanes = {one.name: one for one in status.lanes}
    assert list(lanes) == ["a", "b", "c"]
    assert lanes[other] == ClusterLane(other, other, True, None, None)
    assert (lanes["c"].owner, lanes["c"].live, lanes["c"].sessions) == (owner, True, 1)
    assert (lanes["c"].bytes or 0) > 0


def test_status_without_a_log(world: ClusterWorld) -> None:
    world.engines["a"].crash()
    world.advance(LEASE + 1.0)
    assert world.manager("a").show_cluster().state == "isolated"


def test_status_before_the_start() -> None:
    with pytest.raises(ClusterError, match="has not started") as caught:
        ClusterControl(lambda: None).show_cluster()
    assert caught.value.reason == "conflict"


def test_a_moved_lane_keeps_its_messages(world: ClusterWorld) -> None:
    owner, other = pair(world)
    publisher = world.connect(owner, "p")
    publisher.publish("t", b"1", 1)
    assert move(world, owner, "c", other) is None
    assert not world.cluster(owner).owns("c")
    assert world.cluster(other).owns("c")
    publisher.publish("t", b"2", 1)
    world.settle()
    subscriber = world.connect(other, "s", clean_start=False, session_expiry_interval=3600)
    world.settle()
    assert payloads(subscriber) == [b"1", b"2"]
    [lane] = [one for one in world.manager(owner).show_cluster().lanes if one.name == "c"]
    assert lane == ClusterLane("c", other, True, None, None)


@pytest.mark.parametrize(
    ("lane", "to", "reason", "field", "text"),
    [
        ("x", "other", "missing", "lane", "the cluster has no lane 'x'"),
        ("c", "x", "missing", "node", "no other live node 'x'; found: {other}"),
        ("c", "owner", "conflict", "node", "node '{owner}' already owns lane 'c'"),
        ("owner", "other", "conflict", "lane", "drain the node to move it"),
        ("other", "owner", "conflict", "lane", "node '{other}' owns lane '{other}'"),
    ],
)
def test_refused_moves(
    world: ClusterWorld, lane: str, to: str, reason: str, field: str, text: str
) -> None:
    owner, other = pair(world)
    names = {"owner": owner, "other": other}
    error = move(world, owner, names.get(lane, lane), names.get(to, to))
    assert isinstance(error, ClusterError)
    assert (error.reason, error.field) == (reason, field)
    assert text.format(**names) in str(error)
    assert world.cluster(owner).owns("c")


def test_a_node_that_stops_takes_no_lane(world: ClusterWorld) -> None:
    owner, other = pair(world)
    cluster = world.cluster(owner)
    world.clock.spawn(world.cluster(other).leave(), lambda *_: None)
    while not cluster.is_stopping(cluster.membership.others[other]):
        world.advance(0.001)
    error = move(world, owner, "c", other)
    assert isinstance(error, ClusterError)
    assert (error.reason, error.field) == ("conflict", "node")
    assert world.cluster(owner).owns("c")


def test_without_a_log_no_lane_moves(world: ClusterWorld) -> None:
    owner, other = pair(world)
    world.engines[owner].crash()
    error = move(world, owner, "c", other)
    assert isinstance(error, ClusterError)
    assert error.reason == "failed"
    assert str(error) == "the move of lane 'c' was not confirmed: the log does not answer"
