"""Test the pause before a commit. A batch waits briefly so that subscribers can acknowledge their messages first."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.message import Message
from hookmq.mqtt.packets import (
    Puback,
    Publish,
)
from hookmq.storage.records import (
    Enqueue,
    PutMessage,
    Record,
)
from hookmq_testing import ClusterRecorder, DurableStore, Harness, MemoryClient, SlowStore

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


def kinds(records: tuple[Record, ...] | None) -> list[type]:
    return [type(record) for record in records or ()]


def pubacks(client: MemoryClient) -> int:
    client.harness.settle()
    count = len([p for p in client.unread if isinstance(p, Puback)])
    client.unread.clear()
    return count


MANY = 200


def test_a_large_batch_waits_a_moment_for_its_receivers(harness: Harness, store: SlowStore) -> None:
    one = durable(harness, "one", auto_ack=False)
    one.subscribe("t", 1)
    pub = harness.connect("pub")
    store.slow = True
    with harness.together():
        for number in range(MANY):
            pub.publish("t", b"%d" % number, 1)
    assert store.committing is None
    found = [p for p in one.unread if isinstance(p, Publish)]
    assert len(found) == MANY
    for packet in found:
        one.ack(packet)
    assert pubacks(pub) == MANY
    harness.advance(1.0)
    assert store.committing is None


@pytest.mark.parametrize("answered", [0, 50, MANY - 1])
def test_it_does_not_wait_for_ever(harness: Harness, store: SlowStore, answered: int) -> None:
    """The pause is short. If a pause did not help, later batches are committed without one."""
    one = durable(harness, "one", auto_ack=False)
    one.subscribe("t", 1)
    pub = harness.connect("pub")
    store.slow = True
    with harness.together():
        for number in range(MANY):
            pub.publish("t", b"%d" % number, 1)
    for packet in [p for p in one.unread if isinstance(p, Publish)][:answered]:
        one.ack(packet)
    harness.settle()
    assert store.committing is None
    harness.advance(0.005)
    assert kinds(store.committing or ()).count(Enqueue) == MANY - answered
    assert pubacks(pub) == 0
    store.finish(all=False)
    assert pubacks(pub) == MANY
    with harness.together():
        for number in range(MANY):
            pub.publish("t", b"%d" % number, 1)
    assert (store.committing is None) == (answered == MANY - 1)


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize("publisher", [False, True])
def test_a_batch_of_a_cluster_that_nothing_waits_for_waits_longer(
    broker_harness: Make, store: SlowStore, publisher: bool, count: int
) -> None:
    """It waits even if all messages are acknowledged. Other nodes would send these again after a crash."""
    cluster = ClusterRecorder()
    harness = broker_harness([cluster], store=store)
    one = durable(harness, "one", auto_ack=False)
    one.subscribe("t", 1)
    pub = durable(harness, "pub")
    harness.advance(1.0)
    store.slow = True
    deliver(harness, cluster, count)
    harness.advance(0.012)
    assert store.committing is None
    if publisher:
        pub.publish("t", b"awaited", 1)
        harness.advance(0.004)
        assert kinds(store.committing).count(Enqueue) == count + 1
        return
    for packet in [p for p in one.unread if isinstance(p, Publish)]:
        one.ack(packet)
    cluster.node.touch()
    harness.advance(0.017)
    assert store.committing is None
    harness.advance(0.002)
    assert store.committing == ()


@pytest.mark.parametrize("answered", [0, MANY - 1, MANY])
def test_a_batch_that_nothing_waits_for_waits_for_acknowledgements(
    broker_harness: Make, store: SlowStore, answered: int
) -> None:
    cluster = ClusterRecorder()
    harness = broker_harness([cluster], store=store)
    one = durable(harness, "one", auto_ack=False)
    one.subscribe("t", 1)
    harness.advance(1.0)
    store.slow = True
    deliver(harness, cluster, MANY)
    harness.advance(0.04)
    assert store.committing is None
    for packet in [p for p in one.unread if isinstance(p, Publish)][:answered]:
        one.ack(packet)
    cluster.node.touch()
    harness.settle()
    assert (store.committing is None) == (answered < MANY)
    harness.advance(0.011)
    assert kinds(store.committing) == [PutMessage, Enqueue] * (MANY - answered)


def deliver(harness: Harness, cluster: ClusterRecorder, count: int) -> None:
    """Deliver messages of another node."""
    with harness.together():
        for number in range(count):
            message = Message("t", b"%d" % number, 1, received_at=harness.clock.time())
            cluster.node.deliver(message, lambda *_: True, ())
        cluster.node.flush()


@pytest.mark.parametrize("clustered", [False, True])
def test_a_large_commit_of_a_cluster_is_followed_by_a_pause(
    broker_harness: Make, store: SlowStore, clustered: bool
) -> None:
    harness = broker_harness([ClusterRecorder()] if clustered else [], store=store)
    gone = durable(harness, "gone")
    gone.subscribe("t", 1)
    gone.disconnect()
    pub = harness.connect("pub")
    store.slow = True
    with harness.together():
        for number in range(MANY):
            pub.publish("t", b"%d" % number, 1)
    harness.settle()
    pub.publish("t", b"collected", 1)
    harness.settle()
    store.finish(all=False)
    assert (store.committing is None) == clustered
    pub.publish("t", b"joins", 1)
    harness.advance(0.003)
    assert kinds(store.committing).count(Enqueue) == (2 if clustered else 1)
    store.finish()
    harness.settle()
    harness.advance(1.0)
    pub.publish("t", b"alone", 1)
    assert kinds(store.committing) == [PutMessage, Enqueue]
