"""Test what a group's stored state reveals about deliveries, after a shutdown and after a crash."""

from typing import Any

from hookmq.mqtt_api import Publish
from hookmq_testing import Harness, MemoryClient

QUEUES = ({"name": "jobs", "prefetch": 3},)


def consumer(harness: Harness, name: str) -> MemoryClient:
    """Return a consumer that can take two messages."""
    client = harness.connect(name, auto_ack=False, receive_maximum=2)
    client.subscribe("$share/default/$queue/jobs", 1)
    return client


def deliveries(client: MemoryClient) -> list[tuple[str, str]]:
    """Take the messages that a client has received, with their delivery counts."""
    client.harness.settle()
    found = [one for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return [
        (one.payload.decode(), dict(one.properties.user_property or ())["delivery-count"])
        for one in found
    ]


def withdraw_one(harness: Harness) -> None:
    """Deliver two messages. A third is leased along with them, but its consumer has no room for it."""
    first, publisher = consumer(harness, "first"), harness.connect("publisher")
    with harness.together():
        for payload in (b"a", b"b", b"c"):
            publisher.publish("$queue/jobs", payload, 1)
    assert deliveries(first) == [("a", "1"), ("b", "1")]


def test_a_message_that_was_not_sent_before_a_shutdown_is_delivered_for_the_first_time(
    make: Any,
) -> None:
    harness = make(queues=QUEUES)
    withdraw_one(harness)
    harness.close()
    harness = make(queues=QUEUES)
    again = [*deliveries(consumer(harness, "second")), *deliveries(consumer(harness, "third"))]
    assert again == [("a", "2"), ("b", "2"), ("c", "1")]


def test_a_message_that_may_have_been_sent_before_a_crash_is_marked(make: Any) -> None:
    harness = make(queues=QUEUES)
    withdraw_one(harness)
    make.crash(harness)
    harness = make(queues=QUEUES)
    again = [*deliveries(consumer(harness, "second")), *deliveries(consumer(harness, "third"))]
    assert again == [("a", "2"), ("b", "2"), ("c", "2")]


def test_nothing_is_sent_for_the_first_time_before_the_state_says_so(make: Any) -> None:
    """A crash directly after a restart must not hide a delivery."""
    harness = make(queues=QUEUES)
    withdraw_one(harness)
    harness.close()
    harness = make(queues=QUEUES)
    commit = make.store.commit
    make.store.commit = lambda records, done: None
    second, third = consumer(harness, "second"), consumer(harness, "third")
    sent = [*deliveries(second), *deliveries(third)]
    make.crash(harness)
    make.store.commit = commit
    harness = make(queues=QUEUES)
    again = [*deliveries(consumer(harness, "second")), *deliveries(consumer(harness, "third"))]
    assert sent == [("a", "2"), ("b", "2")]
    assert again == [("a", "2"), ("b", "2"), ("c", "1")]
