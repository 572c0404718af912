"""Members of shared subscriptions, wills and takeovers, while clients and lanes move between nodes."""

from collections.abc import Iterator

import pytest
from cluster_routing import RoutingWorld
from cluster_world import ClusterWorld
from hookmq.mqtt_api import WillFields
from hookmq_testing import MemoryClient, will
from simulated_engine import QUIET, Faults

LEASE = 15.0


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    """Return two nodes that have run for some time."""
    made = ClusterWorld("a", "b")
    made.advance(2 * LEASE)
    yield made
    made.close()


def payloads(client: MemoryClient) -> list[bytes]:
    """Return the payloads that a client got."""
    return [one.payload for one in client.messages]


@pytest.mark.parametrize("durable", [False, True])
def test_a_message_follows_the_last_member_of_a_group_to_another_node(durable: bool) -> None:
    world = RoutingWorld(1, QUIET, 1 << 18)
    world.join("a", "b", "c")
    a, b, c = (world.nodes[name] for name in "abc")
    b.connect("member", False)
    b.subscribe("member", "$share/g/t", 1)
    world.runtime.advance(1.0)
    acked: list[int] = []
    a.publish("t", b"one", 1, lambda: acked.append(1))
    b.unsubscribe("member", "$share/g/t")
    c.connect("member", durable)
    c.subscribe("member", "$share/g/t", 1)
    c.interest.local.own("c", 1)
    world.runtime.advance(1.0)
    b.commit()
    world.runtime.advance(1.0)
    assert acked == [1]
    assert not b.broker.received_by_group
    assert c.broker.received_by_group == {("g/g/t", b"one"): 1}
    assert b.broker.touched


def test_unacknowledged_messages_of_the_last_member_go_to_another_node(world: ClusterWorld) -> None:
    durable = world.connect("b", "durable", session_expiry_interval=3600)
    durable.subscribe("$share/g/t", 1)
    member = world.connect("a", "member", auto_ack=False)
    member.subscribe("$share/g/t", 1)
    world.connect("a", "p").publish("t", b"one", 1, expect=0)
    world.settle()
    assert payloads(member) == [b"one"]
    assert payloads(durable) == []
    member.drop()
    world.advance(1.0)
    assert payloads(durable) == [b"one"]


def test_a_will_waits_until_a_starting_node_knows_all_subscriptions(world: ClusterWorld) -> None:
    watcher = world.connect("a", "watcher", session_expiry_interval=3600)
    watcher.subscribe("will", 1)
    world.connect("b", "w", session_expiry_interval=3600, will=will("will", b"dead", 1))
    world.settle()
    world.kill("a")
    world.kill("b")
    world.start("b")
    world.advance(4 * LEASE)
    again = world.connect("b", "watcher", clean_start=False, session_expiry_interval=3600)
    assert again.session_present
    assert payloads(again) == [b"dead"]


@pytest.mark.parametrize("fields", [None, will("will", b"x", 1)])
def test_a_client_has_one_connection_although_nodes_do_not_see_its_session_yet(
    world: ClusterWorld, fields: WillFields | None
) -> None:
    world.log.faults = Faults(lag=1.0)
    for number in range(10):
        first = world.connect("b", f"c{number}", will=fields)
        with world.nodes["a"].together():
            second = world.connect("a", f"c{number}", will=fields, expect=None)
        world.advance(2.0)
        assert first.closed
        second.ping()


def test_a_node_that_missed_that_its_lane_was_elsewhere_ends() -> None:
    world = ClusterWorld("a", "b", "c")
    world.advance(2 * LEASE)
    world.engines["b"].cut()
    world.advance(3 * LEASE)
    adopter = next(name for name in "ac" if "b" in world.cluster(name).keeper.open)
    given: list[str] = []
    world.cluster(adopter).keeper.give("b", world.cluster("b").me, given.append)
    world.advance(1.0)
    assert given == [""]
    world.engines["b"].heal()
    world.advance(2 * LEASE)
    assert not world.cluster("b").ready
    reason = "another process has owned the lane meanwhile"
    assert ("error", "cluster.lane_lost", {"lane": "b", "reason": reason}) in world.clock.logged
    world.close()
