"""Test ephemeral queues: when PUBACK is sent, limits, and groups that lose their consumers. Nothing is
written to disk.
"""

from typing import Any

import pytest
from hookmq.mqtt_api import Puback, Publish
from hookmq_queues.ephemeral import EphemeralQueue
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore

TOPIC = "$queue/live"


def live(**settings: Any) -> tuple[dict[str, Any], ...]:
    """Return the configuration for one ephemeral queue."""
    return ({"name": "live", "type": "ephemeral", **settings},)


def queue_of(harness: Harness) -> EphemeralQueue:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    queue = instance.plugin.queues["live"]
    assert isinstance(queue, EphemeralQueue)
    return queue


def results(harness: Harness) -> dict[str, int]:
    return {name: count for name, count in queue_of(harness).results.items() if count}


def payloads(client: MemoryClient) -> list[bytes]:
    """Take the messages that a client has received."""
    client.harness.settle()
    found = [one.payload for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


def consumer(
    harness: Harness, filter: str = TOPIC, client: str = "c", **options: Any
) -> MemoryClient:
    made = harness.connect(client, **options)
    assert made.subscribe(filter, 1).codes == (1,)
    return made


def test_messages_are_shared_settled_and_redelivered(make: Any) -> None:
    harness = make(queues=live())
    publisher = harness.connect("p")
    for number in range(4):
        publisher.publish(TOPIC, b"%d" % number, 1, expect=0)
    one = consumer(harness, auto_ack=False)
    assert payloads(one) == [b"0", b"1", b"2", b"3"]
    one.drop()
    other = consumer(harness, client="other")
    found = [other.expect_message() for _ in range(4)]
    assert [one.payload for one in found] == [b"0", b"1", b"2", b"3"]
    assert ("delivery-count", "2") in (found[0].properties.user_property or ())
    assert results(harness) == {"accepted": 4, "delivered": 4, "redelivered": 4, "acknowledged": 4}
    queue = queue_of(harness)
    assert (queue.log.bytes, queue.log._cached, len(queue.log._cache)) == (0, 0, 0)


def test_puback_waits_for_no_commit_and_nothing_is_on_disk(make: Any) -> None:
    make.store = store = SlowStore(DurableStore(), slow=False)
    harness = make(queues=(*live(), {"name": "jobs"}))
    publisher, reader = harness.connect("p"), consumer(harness)
    store.slow = True
    commits = store.last_commit()
    for _ in range(3):
        number = publisher.publish(TOPIC, b"x", 1)
        assert publisher.expect(Puback).packet_id == number
    assert len(payloads(reader)) == 3
    harness.advance(1)
    assert store.committing is None  # neither messages nor the state of the group
    assert store.last_commit() == commits
    assert not (make.path / "live").exists()
    publisher.publish("$queue/jobs", b"x", 1)
    publisher.expect_nothing()  # whereas a durable queue waits
    store.finish()
    publisher.expect(Puback)


def test_a_restart_empties_the_queue(make: Any) -> None:
    harness = make(queues=live())
    harness.connect("p").publish(TOPIC, b"old", 1)
    harness.close()
    harness = make(queues=live())
    reader = consumer(harness)
    harness.connect("p").publish(TOPIC, b"new", 1)
    assert payloads(reader) == [b"new"]


@pytest.mark.parametrize(
    ("on_full", "kept", "code"),
    [("reject", [0, 1, 2], 0x97), ("drop_newest", [0, 1, 2], 0), ("drop_oldest", [2, 3, 4], 0)],
)
def test_the_queue_is_bounded(make: Any, on_full: str, kept: list[int], code: int) -> None:
    harness = make(queues=live(max_messages=3, on_full=on_full))
    publisher = harness.connect("p")
    for number in range(5):
        publisher.publish(TOPIC, b"%d" % number, 1, expect=code if number >= 3 else 0)
    assert len(queue_of(harness).log._cache) == 3
    assert payloads(consumer(harness)) == [b"%d" % number for number in kept]


def test_a_group_expires_after_its_last_consumer(make: Any) -> None:
    recorder = HookRecorder("on_event")
    harness = make(recorder, queues=live(expires_after="30s"))
    publisher = harness.connect("p")
    one, other = consumer(harness, client="1"), consumer(harness, client="2")
    one.drop()
    harness.advance(100)
    publisher.publish(TOPIC, b"0", 1, expect=0)
    assert payloads(other) == [b"0"]
    other.drop()
    publisher.publish(TOPIC, b"1", 1, expect=0)
    harness.advance(29)
    again = consumer(harness, client="3")
    assert payloads(again) == [b"1"]
    harness.advance(100)
    again.drop()
    publisher.publish(TOPIC, b"2", 1, expect=0)
    harness.advance(31)
    (logged,) = harness.logged("queue.expired")
    assert (logged["queue"], logged["group"], logged["messages"]) == ("live", "default", 1)
    assert [one.event for one in recorder.calls("on_event")] == ["queue.expired"]
    assert len(queue_of(harness).log._cache) == 0
    publisher.publish(TOPIC, b"3", 1, expect=0)
    late = consumer(harness, client="4")
    publisher.publish(TOPIC, b"4", 1, expect=0)
    assert payloads(late) == [b"4"]
    assert results(harness)["dropped_unused"] == 2
    assert results(harness)["accepted"] == 4


def test_one_expired_group_does_not_fill_the_queue(make: Any) -> None:
    harness = make(queues=live(groups=["a", "b"], max_messages=10, expires_after="10s"))
    reader = consumer(harness, "$share/a/$queue/live")
    harness.advance(11)
    publisher = harness.connect("p")
    for number in range(50):
        publisher.publish(TOPIC, b"%d" % number, 1, expect=0)
    assert len(payloads(reader)) == 50
    assert len(queue_of(harness).log._cache) == 0
    other = consumer(harness, "$share/b/$queue/live", "other")
    publisher.publish(TOPIC, b"last", 1, expect=0)
    assert (payloads(other), payloads(reader)) == ([b"last"], [b"last"])


def test_a_queue_that_never_had_a_consumer_expires(make: Any) -> None:
    harness = make(queues=live(expires_after="10s"))
    publisher = harness.connect("p")
    publisher.publish(TOPIC, b"0", 1)
    harness.advance(11)
    publisher.publish(TOPIC, b"1", 1)
    assert payloads(consumer(harness)) == []
    assert results(harness)["dropped_unused"] == 2


def test_delayed_messages_are_refused(make: Any) -> None:
    harness = make(queues=live(max_delay="1h"))
    publisher = harness.connect("p")
    publisher.publish(TOPIC, b"x", 1, user_property=(("delay", "5"),), expect=0x99)


def test_dead_letters_leave_an_ephemeral_queue_in_one_commit(make: Any) -> None:
    queues = (*live(delivery_limit=1, dead_letter="dead"), {"name": "dead"})
    harness = make(queues=queues)
    bad = consumer(harness, auto_ack=False)
    harness.connect("p").publish(TOPIC, b"x", 1)
    harness.settle()
    bad.drop()
    harness.settle()
    make.crash(harness)
    harness = make(queues=queues)
    assert payloads(consumer(harness, "$queue/dead")) == [b"x"]


def test_a_purge_leaves_the_message_of_a_consumer(make: Any) -> None:
    harness = make(queues=live())
    publisher = harness.connect("p")
    reader = consumer(harness, auto_ack=False)
    publisher.publish(TOPIC, b"held", 1, expect=0)
    assert payloads(reader) == [b"held"]
    publisher.publish(TOPIC, b"new", 1)  # not visible yet
    for one in queue_of(harness).dispatchers.values():
        one.purge()
    reader.drop()
    assert payloads(consumer(harness, client="d")) == [b"held", b"new"]


def test_a_new_group_is_not_stuck_behind_settled_messages(make: Any) -> None:
    harness = make(queues=live(groups_on_first_use=True, prefetch=1))
    publisher = harness.connect("p")
    slow, fast = consumer(harness, client="slow", auto_ack=False), consumer(harness, client="fast")
    for number in range(6):
        publisher.publish(TOPIC, b"%d" % number, 1, expect=0)
    assert (payloads(slow), payloads(fast)) == ([b"0"], [b"1", b"2", b"3", b"4", b"5"])
    fast.drop()
    publisher.publish(TOPIC, b"6", 1, expect=0)
    assert payloads(consumer(harness, "$share/new/$queue/live", "new")) == [b"0", b"6"]


def test_a_group_that_a_client_made_is_deleted(make: Any) -> None:
    harness = make(queues=live(groups_on_first_use=True, group_expiry="60s", expires_after="10s"))
    publisher, reader = harness.connect("p"), consumer(harness)
    mine = consumer(harness, "$share/mine/$queue/live", "mine")
    publisher.publish(TOPIC, b"0", 1, expect=0)
    assert (payloads(reader), payloads(mine)) == ([b"0"], [b"0"])
    mine.drop()
    harness.advance(200)
    assert list(queue_of(harness).dispatchers) == ["default"]
    publisher.publish(TOPIC, b"1", 1, expect=0)
    assert payloads(reader) == [b"1"]
    assert len(queue_of(harness).log._cache) == 0
    again = consumer(harness, "$share/mine/$queue/live", "again")
    publisher.publish(TOPIC, b"2", 1, expect=0)
    assert payloads(again) == [b"2"]
