"""Test the contents of one frame of a lane, and how much of them is written again."""

from collections.abc import Iterator

import pytest
from cluster_source import needs_the_source
from cluster_stores import NAMES, Bench, Process
from cluster_world import ClusterWorld
from hookmq.mqtt_api import Publish, Pubrel
from hookmq.storage_api import Dequeue, PutMessage
from hookmq_cluster import compaction
from hookmq_cluster.frames import is_owner_frame
from hookmq_testing.contracts import make_entry, make_message

LEASE = 15.0
OPTIONS = {"session_expiry_interval": 3600, "clean_start": False}


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    """Return three nodes. Node c has a client without a durable session, subscribed to `v`."""
    world = ClusterWorld("a", "b", "c")
    world.connect("c", "v", session_expiry_interval=0).subscribe("v", 1)
    world.settle()
    yield world
    world.close()


def kill_after_next_commit(world: ClusterWorld, node: str) -> None:
    """Kill `node` when the log has the next frame of its home lane, before the node knows."""
    log, lane = world.log, [f"hmq.test.lane.{node}"]
    before = log.sequence

    def made() -> bool:
        return any(is_owner_frame(one.data) for one in log.messages(lane, before))

    for _ in range(10_000):
        if made():
            break
        world.advance(0.0005)
    assert made()
    world.kill(node)


def test_a_position_is_not_committed_before_its_messages(world: ClusterWorld) -> None:
    subscriber = world.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("s", 1)
    subscriber.disconnect()
    near, far = world.connect("b", "near"), world.connect("a", "far")
    world.settle()
    world.engines["c"].cut()
    with world.nodes["b"].together():
        near.send(Publish("v", b"waits for node c", 1, packet_id=1))
    far.publish("s", b"acknowledged", 1)
    world.advance(1.0)
    world.engines["c"].heal()
    kill_after_next_commit(world, "b")
    world.start("b")
    again = world.connect("b", "s", **OPTIONS)
    world.settle()
    assert [one.payload for one in again.messages] == [b"acknowledged"]


def test_a_message_is_not_forwarded_before_its_packet_id_is_stored(world: ClusterWorld) -> None:
    subscriber = world.connect("a", "s", session_expiry_interval=3600)
    subscriber.subscribe("s", 2)
    near = world.connect("b", "near", session_expiry_interval=3600)
    publisher = world.connect("b", "p", session_expiry_interval=3600)
    world.settle()
    world.engines["c"].cut()
    with world.nodes["b"].together():
        near.send(Publish("v", b"waits for node c", 2, packet_id=1))
    world.advance(1.0)
    with world.nodes["b"].together():
        publisher.send(Publish("s", b"once", 2, packet_id=1))
    world.advance(1.0)
    world.engines["c"].heal()
    kill_after_next_commit(world, "b")
    world.start("b")
    again = world.connect("b", "p", **OPTIONS)
    again.send(Publish("s", b"once", 2, dup=True, packet_id=1))
    again.send(Pubrel(1))
    world.settle()
    assert [one.payload for one in subscriber.messages] == [b"once"]


@needs_the_source
def test_a_commit_writes_as_much_again_as_its_own_records_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "SLACK", 5_000)
    monkeypatch.setattr(compaction, "LEAST", 1_000)
    bench = Bench()
    process = Process(bench)

    def commit(id: int, gone: int) -> int:
        put = PutMessage(id, make_message("m", payload=bytes(1000)))
        process.commit(put, make_entry("c/a", id, id), Dequeue("c/a", gone))
        first, last = bench.log.commits[-1][1:]
        process.store.passed("n1", last)  # no other node sends anything
        stored = bench.log.messages([NAMES.lane("n1")], first - 1)
        return sum(len(one.data) for one in stored if one.sequence <= last)

    for id in range(1, 301):  # these stay
        commit(id, 0)
    own = commit(301, 0)
    again = [commit(id, id - 1) - own for id in range(302, 702)]
    assert sum(again) > 200_000
    assert max(again) < compaction.RATE * own + own
