"""The queues of shared subscriptions: each message stays once while lanes move and nodes start again."""

from collections.abc import Iterator

import pytest
from cluster_world import ClusterWorld
from hookmq.mqtt_api import Disconnect, Publish, Unsubscribe
from hookmq.plugin import Properties
from hookmq.storage_api import PutMessage
from hookmq_testing import MemoryClient
from hookmq_testing.contracts import make_entry, make_message

LEASE = 15.0
OPTIONS = {"session_expiry_interval": 3600, "clean_start": False}
FILTER = "$share/g/t"
OWNER = "g/g/t"


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    """Return two nodes that have run for some time. Client mb is offline, with a session on node b."""
    world = ClusterWorld("a", "b")
    world.advance(2 * LEASE)
    join(world, "b", "mb").disconnect()
    world.settle()
    yield world
    world.close()


def join(world: ClusterWorld, node: str, name: str, **options: int) -> MemoryClient:
    """Connect a member of the shared subscription."""
    member = world.connect(node, name, session_expiry_interval=3600, **options)
    member.subscribe(FILTER, 1)
    return member


def back(world: ClusterWorld, node: str, name: str) -> MemoryClient:
    """Connect a member again."""
    member = world.connect(node, name, **OPTIONS)
    world.advance(5.0)
    return member


def publish(world: ClusterWorld, node: str, first: int, last: int) -> None:
    """Publish numbers."""
    publisher = world.connect(node, f"p{first}", session_expiry_interval=0)
    for number in range(first, last):
        publisher.publish("t", b"%d" % number, 1)
    world.settle()


def die(world: ClusterWorld, node: str) -> None:
    """Kill a node, and wait until another one has its lane."""
    world.kill(node)
    world.advance(3 * LEASE)


def numbers(*clients: MemoryClient) -> list[int]:
    """Return the numbers that the clients got, sorted."""
    return sorted(int(one.payload) for client in clients for one in client.messages)


def test_a_queue_served_from_a_lane_stays_when_the_lane_is_given_back(world: ClusterWorld) -> None:
    publish(world, "b", 0, 5)
    die(world, "b")
    publish(world, "a", 5, 8)
    assert world.cluster("a").store.lanes()["b"].groups == [OWNER]
    local = join(world, "a", "ma", receive_maximum=2, auto_ack=False)
    world.settle()
    assert numbers(local) == [0, 1]
    world.start("b")
    assert world.cluster("b").owns("b")
    assert world.cluster("b").store.lanes()["b"].groups == []
    for one in list(local.messages):
        local.ack(one)
    world.settle()
    local.disconnect()
    world.settle()
    other = back(world, "b", "mb")
    publish(world, "a", 8, 10)
    again = back(world, "a", "ma")
    assert set(numbers(local, again, other)) == set(range(10))
    assert numbers(again, other) == list(range(2, 10))
    assert not world.nodes["a"].logged("store.failed")


@pytest.mark.parametrize("published", [0, 3])
def test_waiting_messages_without_a_member_in_the_home_lane_survive_a_restart(
    world: ClusterWorld, published: int
) -> None:
    die(world, "b")
    publish(world, "a", 0, 5)
    assert world.cluster("a").store.lanes()["a"].groups == [OWNER]
    world.kill("a")
    world.start("a")
    publish(world, "a", 5, 5 + published)
    late = join(world, "a", "ma")
    world.settle()
    assert numbers(late, back(world, "a", "mb")) == list(range(5 + published))


def test_waiting_messages_go_to_the_node_with_the_members(world: ClusterWorld) -> None:
    die(world, "b")
    publish(world, "a", 0, 600)
    world.start("b")
    assert world.cluster("b").owns("b")
    world.kill("a")
    world.start("a")
    publish(world, "a", 600, 605)
    assert world.cluster("a").store.lanes()["a"].groups == []
    assert numbers(back(world, "b", "mb")) == list(range(605))


def leave_queue(world: ClusterWorld, count: int) -> None:
    """Leave a queue in the home lane of node a, and end all membership."""
    back(world, "b", "mb").unsubscribe(FILTER)
    cluster = world.cluster("a")
    for number in range(count):
        put = PutMessage(number + 1, make_message("t", payload=b"%d" % number))
        cluster.store.append("a", [put, make_entry(OWNER, number + 1, number + 1)])
    cluster._node.touch()
    world.settle()
    world.kill("a")


def test_waiting_messages_of_a_shared_subscription_that_no_node_has_are_dropped(
    world: ClusterWorld,
) -> None:
    leave_queue(world, 5)
    world.start("a")
    assert world.cluster("a").store.lanes()["a"].groups == []
    [event] = world.nodes["a"].logged("cluster.queue_dropped")
    assert event == {"owner": OWNER, "messages": 5}
    late = join(world, "a", "ma")
    publish(world, "a", 5, 7)
    assert numbers(late) == [5, 6]


def test_returned_messages_are_merged_too(world: ClusterWorld) -> None:
    join(world, "a", "ma").disconnect()
    member = back(world, "b", "mb")
    member.auto_ack = False
    publish(world, "b", 0, 3)
    assert numbers(member) == [0, 1, 2]
    member.disconnect()
    world.settle()
    assert world.cluster("b").store.lanes()["b"].groups == [OWNER]
    die(world, "b")
    assert world.cluster("a").store.lanes()["b"].groups == []
    assert numbers(back(world, "a", "ma")) == [0, 1, 2]


def test_a_queue_without_members_in_its_lane_waits_for_a_member(world: ClusterWorld) -> None:
    leave_queue(world, 5)
    world.advance(3 * LEASE)
    assert world.cluster("b").store.lanes()["a"].groups == [OWNER]
    late = join(world, "b", "late")
    publish(world, "b", 5, 7)
    world.advance(LEASE)
    assert numbers(late) == list(range(7))


@pytest.mark.parametrize("leaves", ["unsubscribes", "ends its session"])
def test_messages_go_on_when_the_last_member_on_a_node_leaves(leaves: str) -> None:
    world = ClusterWorld("a", "b", "c")
    member = join(world, "b", "mb")
    member.auto_ack = False
    join(world, "c", "mc").disconnect()
    publisher = world.connect("a", "p", session_expiry_interval=0)
    with world.nodes["a"].together(), world.nodes["b"].together():
        for number in range(1, 41):
            publisher.send(Publish("t", b"%d" % number, 1, packet_id=number))
            world.advance(0.0005)
            if number == 10:
                acknowledged = set(numbers(member))
                for one in member.messages:
                    member.ack(one)
            elif number == 20 and leaves == "unsubscribes":
                member.send(Unsubscribe(7, (FILTER,)))
            elif number == 20:
                member.send(Disconnect(0, Properties(session_expiry_interval=0)))
        world.advance(2.0)
    done = {int(one.payload) for one in member.messages}
    if leaves == "ends its session":
        done = acknowledged
    other = back(world, "c", "mc")
    missing = set(range(1, 41)) - set(numbers(other)) - done
    assert not missing
    assert len(set(numbers(other))) == len(numbers(other))
    assert len(numbers(other)) > 15
    world.close()
