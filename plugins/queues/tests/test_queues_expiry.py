"""Test messages that expire. With or without consumers, they are dropped or become dead letters, in one commit and in
bounded steps.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt_api import Publish
from hookmq_queues import dispatch
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import Harness, MemoryClient

Make = Callable[..., Harness]
JOBS = "$queue/jobs"
QUEUES = (
    {
        "name": "jobs",
        "message_ttl": "60s",
        "dead_letter": "dead",
        "dead_letter_expired": True,
    },
    {"name": "dead"},
)


def plugin_of(harness: Harness) -> QueuesPlugin:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return instance.plugin


def results(harness: Harness, queue: str = "jobs") -> dict[str, int]:
    found = plugin_of(harness).queues[queue].results
    return {name: count for name, count in found.items() if count}


def texts(client: MemoryClient) -> str:
    client.harness.settle()
    found = [one.payload.decode() for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return " ".join(found)


def drain(harness: Harness, filter: str) -> str:
    consumer = harness.connect("drain")
    consumer.subscribe(filter, 1)
    found = texts(consumer)
    consumer.drop()
    harness.settle()
    return found


@pytest.mark.parametrize("order", ["fifo", "priority", "by_key"])
def test_expired_messages_are_dead_letters_without_any_consumer(make: Make, order: str) -> None:
    harness = make(queues=[{**QUEUES[0], "order": order}, QUEUES[1]])
    publisher = harness.connect("p")
    publisher.publish(f"{JOBS}/a", b"1", 1, user_property=(("key", "k"), ("priority", "1")))
    harness.advance(30)
    publisher.publish(JOBS, b"2", 1, user_property=(("key", "k"),))
    undertaker = harness.connect("undertaker")
    undertaker.subscribe("$queue/dead/#", 1)
    harness.advance(29)
    undertaker.expect_nothing()
    harness.advance(2)
    first = undertaker.expect_message("$queue/dead/jobs/a", b"1")
    properties = dict(first.properties.user_property or ())
    assert properties["dead-letter-reason"] == "expired"
    assert properties["dead-letter-count"] == "0"
    undertaker.expect_nothing()
    harness.advance(30)
    undertaker.expect_message("$queue/dead/jobs", b"2")
    assert results(harness) == {"accepted": 2, "expired": 2, "dead_lettered": 2}
    publisher.publish(JOBS, b"3", 1)
    assert drain(harness, JOBS) == "3"


def test_expired_messages_are_dropped_without_any_consumer(make: Make) -> None:
    harness = make()
    publisher = harness.connect("p")
    for number in range(3):
        publisher.publish(JOBS, b"%d" % number, 1, message_expiry_interval=10 * (number + 1))
    queue = plugin_of(harness).queues["jobs"]
    for left in (3, 2, 1, 0):
        assert queue.depth == left
        harness.advance(10.1)
    assert queue.log.bytes == 0
    assert results(harness) == {"accepted": 3, "expired": 3}


def test_expired_messages_make_room_without_any_consumer(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "max_bytes": "64KiB", "message_ttl": "10s"}])
    publisher = harness.connect("p")
    for _ in range(2):
        publisher.publish(JOBS, bytes(65536), 1, expect=0)
        publisher.publish(JOBS, b"", 1, expect=0x97)
        harness.advance(11)


def test_a_busy_consumer_does_not_keep_messages_from_expiring(make: Make) -> None:
    harness = make(queues=QUEUES)
    busy = harness.connect("busy", auto_ack=False, receive_maximum=1)
    busy.subscribe(JOBS, 1)
    publisher = harness.connect("p")
    for payload in (b"1", b"2"):
        publisher.publish(JOBS, payload, 1)
    assert texts(busy) == "1"
    harness.advance(29)
    assert results(harness)["delivered"] == 1
    harness.advance(32)
    assert results(harness)["dead_lettered"] >= 1
    assert drain(harness, "$queue/dead").split()[-1] == "2"


def test_a_message_does_not_expire_while_a_consumer_has_it(make: Make) -> None:
    harness = make(queues=[{**QUEUES[0], "message_ttl": "5s"}, QUEUES[1]])
    consumer = harness.connect("c", auto_ack=False)
    consumer.subscribe(JOBS, 1)
    harness.connect("p").publish(JOBS, b"1", 1)
    message = consumer.expect_message()
    harness.advance(20)
    consumer.ack(message)
    harness.advance(60)
    assert results(harness) == {"accepted": 1, "delivered": 1, "acknowledged": 1}


def test_many_messages_expire_in_bounded_steps(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SLICE", 10)
    harness = make(queues=[{**QUEUES[0], "memory": "1KiB"}, QUEUES[1]])
    publisher = harness.connect("p")
    for number in range(95):
        publisher.publish(JOBS, b"%d" % number, 1)
    dispatcher = plugin_of(harness).queues["jobs"].dispatchers["default"]
    steps: list[int] = []
    drop = dispatcher._drop_expired

    def counted(most: int) -> int:
        steps.append(drop(most))
        return steps[-1]

    monkeypatch.setattr(dispatcher, "_drop_expired", counted)
    harness.advance(62)
    assert max(steps) == 10
    assert sum(steps) == 95
    assert drain(harness, "$queue/dead") == " ".join(map(str, range(95)))


def test_a_crash_neither_loses_nor_doubles_an_expired_message(make: Any) -> None:
    harness = make(queues=QUEUES)
    publisher = harness.connect("p")
    for payload in (b"1", b"2"):
        publisher.publish(JOBS, payload, 1)
    commit = make.store.commit
    make.store.commit = lambda records, done: None
    harness.advance(61)
    assert results(harness)["dead_lettered"] == 2
    make.crash(harness)
    make.store.commit = commit
    harness = make(queues=QUEUES)
    assert plugin_of(harness).queues["jobs"].depth == 2
    harness.advance(61)
    make.crash(harness)
    harness = make(queues=QUEUES)
    harness.advance(61)
    assert plugin_of(harness).queues["jobs"].depth == 0
    assert drain(harness, "$queue/dead") == "1 2"


def test_an_expired_message_waits_for_room_in_the_queue_for_dead_letters(make: Make) -> None:
    """While an expired message waits for room in the dead-letter queue, it is not delivered and does not hold up other
    messages.
    """
    harness = make(queues=[{**QUEUES[0], "message_ttl": 0}, {"name": "dead", "max_messages": 1}])
    publisher = harness.connect("p")
    for number in range(3):
        publisher.publish(JOBS, b"%d" % number, 1, message_expiry_interval=10 if number < 2 else 99)
    harness.advance(11)
    assert results(harness)["dead_lettered"] == 1
    assert drain(harness, JOBS) == "2"
    assert drain(harness, "$queue/dead") == "0"
    harness.advance(1.5)
    assert drain(harness, "$queue/dead") == "1"
    assert plugin_of(harness).queues["jobs"].depth == 0


def test_each_group_has_its_own_expired_messages(make: Make) -> None:
    harness = make(queues=[{**QUEUES[0], "groups": ["a", "b"]}, QUEUES[1]])
    consumer = harness.connect("c")
    consumer.subscribe("$share/a/$queue/jobs", 1)
    harness.connect("p").publish(JOBS, b"1", 1)
    assert texts(consumer) == "1"
    harness.advance(61)
    undertaker = harness.connect("undertaker")
    undertaker.subscribe("$queue/dead", 1)
    message = undertaker.expect_message()
    assert dict(message.properties.user_property or ())["dead-letter-group"] == "b"
    undertaker.expect_nothing()
