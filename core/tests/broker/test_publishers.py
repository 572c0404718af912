"""Test that all of a publisher's retained messages share a single publisher record."""

from collections.abc import Callable
from random import Random

import pytest
from hookmq.storage.memory_store import MemoryStore
from hookmq_testing import Harness
from publish_rights import Rights, fetched, started
from simulator.disk import Disk

Make = Callable[..., Harness]


@pytest.fixture
def rights() -> Rights:
    return Rights()


def make_disk() -> Disk:
    """Return a disk without faults."""

    def complain(kind: str, text: str) -> None:
        raise AssertionError(f"{kind}: {text}")

    return Disk(None, Random(1), 0.0, 0.0, complain)  # type: ignore[arg-type]


def test_one_record_for_all_messages_of_a_client(broker_harness: Make, rights: Rights) -> None:
    """All of a client's messages share one record, which outlives its connections. The record is deleted with the last
    message, both in memory and in the store.
    """
    disk = make_disk()
    harness = started(broker_harness, rights, store=disk.open())
    core = harness.broker.state
    for turn in range(3):
        client = harness.connect("ann", username="ann", keep_alive=turn * 10)
        for number in range(5):
            client.publish(f"{turn}/{number}", b"x", retain=True)
        client.disconnect()
        harness.advance(10)
    assert len(core.publishers) == len(disk.image.publishers) == 1
    other = harness.connect("bob", username="bob")
    for turn in range(3):
        for number in range(5):
            other.publish(f"{turn}/{number}", b"x" * (turn != 1), retain=True)
    harness.settle()
    [publisher] = disk.image.publishers.values()
    assert publisher.client_id == "bob"
    assert len(core.publishers) == 1
    for turn in (0, 2):
        for number in range(5):
            other.publish(f"{turn}/{number}", b"", retain=True)
    harness.settle()
    assert len(core.publishers) == len(disk.image.publishers) == core.retained_bytes == 0


def test_a_publisher_counts_against_the_bounds(broker_harness: Make) -> None:
    """A publisher's record counts against the limits. Otherwise, a publisher with a 60 KB name could use 60,000 times
    the memory counted for its one-byte message.
    """
    harness = broker_harness(config={"broker": {"max_retained_bytes": 100_000}})
    live = harness.connect("live")
    live.subscribe("#")
    for number in range(4):
        client = harness.connect(f"c{number}", username="n" * 40_000)
        client.publish(f"t/{number}", b"x", retain=True)
        client.disconnect()
    core = harness.broker.state
    assert len(core.retained) == len(core.publishers) == 2
    assert 80_000 < core.retained_bytes <= 100_000
    assert len(live.messages) == 4


def test_a_volatile_store_needs_none(broker_harness: Make, rights: Rights) -> None:
    harness = started(broker_harness, rights, store=MemoryStore())
    harness.connect("ann").publish("t", b"x", retain=True)
    rights.denied.add("ann")
    harness.reload()
    assert fetched(harness) == set()
