"""Test a turn of the event loop. It commits one batch and writes once to each connection."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.packets import (
    Connect,
    Pingreq,
    Puback,
    Publish,
    Subscribe,
    SubscribeRequest,
)
from hookmq_testing import DurableStore, Harness, MemoryClient, SlowStore


def pipeline(client: MemoryClient, version: int) -> None:
    client.send(
        Connect("c", version, True, 0),
        Subscribe(1, (SubscribeRequest("a", 1),)),
        Publish("a", b"1", 1, packet_id=1),
        Publish("a", b"2", 1, packet_id=2),
        Pingreq(),
    )


def test_connack_and_what_follows_are_one_write(harness: Harness) -> None:
    client = harness.open()
    pipeline(client, 5)
    turns = [write.turn for write in client.wire.writes]
    assert len(turns) == len(set(turns))
    assert client.wire.writes[0].data.startswith(b"\x20")
    assert client.wire.writes[0].data.endswith(b"\xd0\x00")


Make = Callable[..., Harness]


@pytest.fixture
def store() -> SlowStore:
    return SlowStore(DurableStore(), slow=False)


@pytest.fixture
def harness(broker_harness: Make, store: SlowStore) -> Harness:
    return broker_harness(store=store)


def durable(harness: Harness, name: str, **options: Any) -> MemoryClient:
    """Return a client whose session outlives its connection."""
    return harness.connect(name, **{"session_expiry_interval": 600, **options})


def away(harness: Harness, name: str, filter: str, qos: int = 2) -> MemoryClient:
    """Return a durable subscriber that has disconnected."""
    client = durable(harness, name)
    client.subscribe(filter, qos)
    client.disconnect()
    return client


def test_one_turn_is_one_commit_and_one_write(harness: Harness, store: SlowStore) -> None:
    away(harness, "sub", "#")
    pubs = [harness.connect(f"pub{number}") for number in range(5)]
    before = len(store.committed)
    with harness.together():
        for pub in pubs:
            pub.publish("t", b"1", 1)
            pub.publish("t", b"2", 1)
    assert len(store.committed) == before + 1
    assert harness.broker.state.committer.commits == len(store.committed)
    for pub in pubs:
        assert [pub.expect(Puback).packet_id, pub.expect(Puback).packet_id] == [1, 2]
        assert len(pub.wire.writes) == 2  # CONNACK, and both acknowledgements


def test_publishes_during_a_commit_are_one_next_commit(harness: Harness, store: SlowStore) -> None:
    away(harness, "sub", "#")
    pub = harness.connect("pub")
    store.slow = True
    before = len(store.committed)
    for number in range(10):
        pub.publish("t", b"%d" % number, 1)  # each in its own turn
    pub.expect_nothing()
    store.finish(all=False)
    harness.settle()
    assert pub.expect(Puback).packet_id == 1
    pub.expect_nothing()
    store.finish(all=False)
    assert [pub.expect(Puback).packet_id for _ in range(9)] == list(range(2, 11))
    assert len(store.committed) == before + 2
    assert store.committing is None


def test_a_store_that_commits_at_once_answers_in_the_same_turn(broker_harness: Make) -> None:
    harness = broker_harness()
    away(harness, "sub", "t")
    pub = harness.connect("pub")
    pub.publish("t", b"", 1, expect=0)
    fed = harness.connect("two")
    turn = harness.clock.turns
    with harness.together():
        fed.publish("t", b"", 1)
    assert fed.wire.writes[-1].turn <= turn + 2  # received in the first turn, written at its end


def test_one_write_for_many_packets(broker_harness: Make) -> None:
    harness = broker_harness()
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t")
    before = harness.metrics.writes
    with harness.together():
        for _ in range(20):
            pub.publish("t", b"x")
    assert harness.metrics.writes == before + 1
    assert len(sub.messages) == 20
