"""Test `on_full: drop_oldest`: a queue drops no more messages than its limits require, and frees the space on disk."""

from typing import Any

import pytest
from hookmq.mqtt_api import Publish
from hookmq_queues.plugin import QueuesPlugin
from hookmq_queues.queue import Queue
from hookmq_testing import Harness, MemoryClient

JOBS = "$queue/jobs"
KIB = bytes(1000)
TYPES = ("classic", "ephemeral")


def start(make: Any, **settings: Any) -> tuple[Harness, MemoryClient, Queue]:
    harness = make(
        queues=[{"name": "jobs", "max_bytes": "64KiB", "on_full": "drop_oldest", **settings}]
    )
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return harness, harness.connect("p"), instance.plugin.queues["jobs"]


def fill(publisher: MemoryClient, first: int, end: int) -> None:
    for number in range(first, end):
        publisher.publish(JOBS, b"%d " % number + KIB, 1, expect=0)


def numbers(client: MemoryClient) -> list[int]:
    """Take the numbers of the messages that a client has received."""
    client.harness.settle()
    found = [int(one.payload.split(b" ")[0]) for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


@pytest.mark.parametrize("type", TYPES)
def test_as_many_messages_stay_as_the_size_allows(make: Any, type: str) -> None:
    harness, publisher, queue = start(make, type=type)
    fill(publisher, 0, 300)
    assert 50 * 1000 < queue.log.bytes <= 64 << 10
    consumer = harness.connect("c")
    consumer.subscribe(JOBS, 1)
    found = numbers(consumer)
    assert found == list(range(300 - len(found), 300))
    assert len(found) > 55


@pytest.mark.parametrize("limit", [{"max_messages": 10}, {}])
def test_the_disk_has_no_dropped_messages_although_nobody_consumes(make: Any, limit: Any) -> None:
    _, publisher, _ = start(make, **limit)
    fill(publisher, 0, 300)
    assert sum(one.stat().st_size for one in (make.path / "jobs").glob("*.segment")) < 160 << 10


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("groups", [["default"], ["default", "other"]])
def test_a_held_message_does_not_drop_the_others(make: Any, type: str, groups: Any) -> None:
    harness, publisher, _ = start(make, type=type, groups=groups, prefetch=1)
    slow = harness.connect("slow", auto_ack=False)
    slow.subscribe(JOBS, 1)
    fill(publisher, 0, 1)
    assert numbers(slow) == [0]
    fill(publisher, 1, 200)
    slow.drop()
    other = harness.connect("other", auto_ack=False)
    other.subscribe(JOBS, 1)
    assert numbers(other) == [0]
    last = harness.connect("last", auto_ack=True)
    last.subscribe(JOBS, 1)
    found = numbers(last)
    assert found == list(range(200 - len(found), 200))
    assert len(found) > 55


def test_messages_settled_behind_a_held_one_drop_no_others(make: Any) -> None:
    harness, publisher, queue = start(make, prefetch=1)
    slow = harness.connect("slow", auto_ack=False)
    slow.subscribe(JOBS, 1)
    fill(publisher, 0, 1)
    fast = harness.connect("fast")
    fast.subscribe(JOBS, 1)
    fill(publisher, 1, 200)
    assert numbers(fast) == list(range(1, 200))
    fast.drop()
    fill(publisher, 200, 240)
    assert (queue.depth, queue.results["dropped_oldest"]) == (41, 0)


def test_a_group_with_busy_consumers_takes_no_messages_from_another(make: Any) -> None:
    harness, publisher, _ = start(make, groups=["default", "offline"])
    consumer = harness.connect("c", auto_ack=False)
    consumer.subscribe(JOBS, 1)
    fill(publisher, 0, 90)
    assert len(numbers(consumer)) > 55  # as many as the size allows
    other = harness.connect("d")
    other.subscribe("$share/offline/$queue/jobs", 1)
    found = numbers(other)
    assert found == list(range(90 - len(found), 90))
    assert len(found) > 55


def test_an_offline_group_takes_no_messages_from_another(make: Any) -> None:
    harness, publisher, _ = start(make, groups=["default", "offline"])
    consumer = harness.connect("c")
    consumer.subscribe(JOBS, 1)
    fill(publisher, 0, 200)
    assert numbers(consumer) == list(range(200))
