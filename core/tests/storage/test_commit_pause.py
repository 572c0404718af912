"""Test the pause before a commit. A batch waits briefly so that subscribers can acknowledge their messages first."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.packets import (
    Puback,
    Publish,
)
from hookmq.storage.records import (
    Enqueue,
    Record,
)
from hookmq_testing import DurableStore, Harness, MemoryClient, SlowStore

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
    assert store.committing is None
    assert harness.broker.state.commit_pause.waiting is False


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
