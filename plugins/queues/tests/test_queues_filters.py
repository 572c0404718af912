"""Test consumers that accept only messages on certain topics, by subscribing to filters below a queue."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hookmq.mqtt_api import Publish, compile_filter
from hookmq.plugin import Message
from hookmq_queues.consumers import Consumer, Consumers
from hookmq_queues.filters import MAX_FILTERS, ByFilter
from hookmq_testing import Harness, MemoryClient
from hypothesis import given
from hypothesis import strategies as st

from .conftest import plugin_of

Make = Callable[..., Harness]
JOBS = "$queue/jobs"


def consumer(harness: Harness, name: str, filter: str, **connect: Any) -> MemoryClient:
    client = harness.connect(name, **connect)
    assert client.subscribe(filter, 1).codes == (1,)
    return client


def publish(harness: Harness, *topics: str) -> None:
    client = harness.connect("publisher")
    for topic in topics:
        client.publish(topic, topic.encode(), 1, expect=0)
    client.drop()
    harness.settle()


def take(client: MemoryClient) -> list[str]:
    """Take the messages that a client has received, and check that they have their own topics."""
    client.harness.settle()
    found = [one for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return [one.topic.removeprefix(f"{JOBS}/") for one in found]


def test_a_consumer_gets_only_messages_that_match(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "bindings": ["in/#"]}])
    some = consumer(harness, "some", f"{JOBS}/resize/+")
    captured = consumer(harness, "captured", f"$share/default/{JOBS}/in/#")
    publish(
        harness,
        f"{JOBS}/resize/1",
        f"{JOBS}/crop/1",
        f"{JOBS}/resize/a/b",
        "in/x",
        f"{JOBS}/resize/2",
    )
    assert take(some) == ["resize/1", "resize/2"]
    assert take(captured) == ["in/x"]
    rest = consumer(harness, "rest", JOBS)
    harness.settle()
    assert [one.payload for one in rest.unread if isinstance(one, Publish)] == [
        b"$queue/jobs/crop/1", b"$queue/jobs/resize/a/b",
    ]  # fmt: skip
    assert plugin_of(harness).queues["jobs"].depth == 0


def test_messages_without_a_consumer_wait_for_one(make: Make) -> None:
    harness = make()
    publish(harness, f"{JOBS}/a", f"{JOBS}/b", f"{JOBS}/a")
    first = consumer(harness, "first", f"{JOBS}/b")
    assert take(first) == ["b"]
    second = consumer(harness, "second", f"{JOBS}/+")
    assert take(second) == ["a", "a"]


def test_the_window_bounds_how_many_messages_are_passed(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "lookahead": 3}])
    client = consumer(harness, "c", f"{JOBS}/b")
    publish(harness, f"{JOBS}/a", f"{JOBS}/a", f"{JOBS}/b", f"{JOBS}/a", f"{JOBS}/b")
    assert take(client) == ["b"]
    stuck = {"plugin": "queues", "queue": "jobs", "group": "default", "messages": 3}
    assert harness.logged("queue.filters_stuck") == [stuck]
    other = consumer(harness, "other", f"{JOBS}/a")
    assert take(other) == ["a", "a", "a"]
    assert take(client) == ["b"]


def test_a_message_that_is_delivered_again_goes_to_a_consumer_that_takes_it(make: Make) -> None:
    harness = make()
    a = consumer(harness, "a", f"{JOBS}/a", auto_ack=False)
    b = consumer(harness, "b", f"{JOBS}/b")
    publish(harness, f"{JOBS}/a", f"{JOBS}/b")
    assert take(a) == ["a"]
    assert take(b) == ["b"]
    a.drop()
    assert take(b) == []
    assert take(consumer(harness, "again", f"{JOBS}/+")) == ["a"]


def test_without_narrow_filters_the_messages_that_waited_come_first(make: Make) -> None:
    harness = make()
    narrow = consumer(harness, "narrow", f"{JOBS}/b")
    publish(harness, f"{JOBS}/1", f"{JOBS}/2", f"{JOBS}/b")
    assert take(narrow) == ["b"]
    narrow.drop()
    publish(harness, f"{JOBS}/3")
    assert take(consumer(harness, "all", f"{JOBS}/#")) == ["1", "2", "3"]
    dispatcher = plugin_of(harness).queues["jobs"].dispatchers["default"]
    assert dispatcher._choice.selection is None


def test_the_filter_of_a_durable_session_survives_a_restart(make: Any) -> None:
    how: dict[str, Any] = {"session_expiry_interval": 3600, "clean_start": False}
    harness = make()
    client = consumer(harness, "c", f"{JOBS}/b", **how)
    publish(harness, f"{JOBS}/a", f"{JOBS}/b")
    assert take(client) == ["b"]
    make.crash(harness)
    harness = make()
    client = harness.connect("c", **how)
    publish(harness, f"{JOBS}/b")
    assert take(client) == ["b"]
    assert plugin_of(harness).queues["jobs"].depth == 1


def test_expired_messages_leave_the_window(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "lookahead": 2, "message_ttl": 10}])
    client = consumer(harness, "c", f"{JOBS}/b")
    publish(harness, f"{JOBS}/a", f"{JOBS}/a")
    harness.advance(5)
    publish(harness, f"{JOBS}/a", f"{JOBS}/b")
    assert take(client) == []
    harness.advance(5)
    assert take(client) == ["b"]
    assert plugin_of(harness).queues["jobs"].results["expired"] == 2
    harness.advance(5)
    assert plugin_of(harness).queues["jobs"].results["expired"] == 3
    assert plugin_of(harness).queues["jobs"].depth == 0


def test_filters_after_a_purge(make: Make) -> None:
    harness = make()
    client = consumer(harness, "c", f"{JOBS}/b")
    publish(harness, f"{JOBS}/a", f"{JOBS}/a", f"{JOBS}/b")
    assert take(client) == ["b"]
    dispatcher = plugin_of(harness).queues["jobs"].dispatchers["default"]
    assert dispatcher.purge() == 2
    publish(harness, f"{JOBS}/a", f"{JOBS}/b")
    assert take(client) == ["b"]
    assert dispatcher.backlog == 1


def test_a_dead_letter_needs_no_consumer(make: Make) -> None:
    queues = [
        {"name": "jobs", "delivery_limit": 1, "dead_letter": "dead", "groups": [{"name": "g", "settle": "explicit"}]},
        {"name": "dead"},
    ]  # fmt: skip
    harness = make(queues=queues)
    consumer(harness, "b", f"{JOBS}/b")
    client = consumer(harness, "a", f"{JOBS}/a")
    publish(harness, f"{JOBS}/a")
    assert take(client) == ["a"]
    client.drop()
    harness.settle()
    assert plugin_of(harness).queues["dead"].depth == 1


def test_filters_that_are_refused(make: Make) -> None:
    queues = [
        {"name": "jobs"}, {"name": "sorted", "order": "priority"}, {"name": "kept", "type": "stream"},
    ]  # fmt: skip
    harness = make(queues=queues)
    client = harness.connect("c")
    wide = "a subscription to this queue is $queue/{0} or $queue/{0}/#"
    for filter, why in (
        ("$queue/jobs/$ack", "the levels of a filter below a queue must not start with $"),
        ("$queue/jobs/a/$b", "the levels of a filter below a queue must not start with $"),
        ("$queue/sorted/a", wide.format("sorted")),
        ("$queue/kept/+", wide.format("kept")),
    ):
        answer = client.subscribe(filter, 1)
        assert (answer.codes, answer.properties.reason_string) == ((0x8F,), why)


def test_the_number_of_filters_is_limited(make: Make) -> None:
    harness = make()
    client = harness.connect("c")
    for number in range(MAX_FILTERS):
        assert client.subscribe(f"{JOBS}/{number}", 1).codes == (1,)
        harness.settle()
    assert client.subscribe(f"{JOBS}/more", 1).codes == (0x97,)
    assert harness.connect("other").subscribe(f"{JOBS}/1", 1).codes == (1,)
    assert client.subscribe(JOBS, 1).codes == (1,)
    client.unsubscribe(f"{JOBS}/5")
    harness.settle()
    assert client.subscribe(f"{JOBS}/more", 1).codes == (1,)


FILTERS = ("$queue/q", "$queue/q/#", "$queue/q/a", "$queue/q/+", "$queue/q/a/#", "$queue/q/b/+")
TOPICS = ("$queue/q", "$queue/q/a", "$queue/q/b", "$queue/q/a/b", "$queue/q/b/c", "a/b")


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40), st.data()
)
def test_any_order_of_messages_and_consumers(steps: list[tuple[int, int]], data: Any) -> None:
    """The strategy always chooses the oldest waiting message that some consumer accepts and has room for."""
    consumers = Consumers(2)
    strategy = ByFilter("q", consumers, lambda offset: False, lambda message: inf, lambda: 0.0)
    topics: list[str] = []

    def takes(one: Consumer, offset: int) -> bool:
        topic = (
            topics[offset] if topics[offset].startswith("$queue/") else f"$queue/q/{topics[offset]}"
        )
        return one.topic_filter == "$queue/q" or compile_filter(one.topic_filter)(topic)

    for kind, number in steps:
        if kind == 0:
            filter = FILTERS[number]
            consumers.add(Consumer(f"c{number}", filter, filter, True))
        elif kind == 1 and consumers.by_key:
            key = data.draw(st.sampled_from(sorted(consumers.by_key)))
            consumers.remove(key)
            strategy.forget(key[1])
        elif kind == 2 and topics:
            strategy.gone(number)
        else:
            topics.append(TOPICS[number])
            strategy.add(len(topics) - 1, Message(TOPICS[number], b"", 1))
            strategy.ready(len(topics) - 1)
        wanted = next(
            (
                offset
                for offset in sorted(strategy.waiting)
                if any(one.held < 2 and takes(one, offset) for one in consumers.by_key.values())
            ),
            None,
        )
        assert strategy.peek() == wanted
        if wanted is not None and number % 2:
            one = strategy.choose(wanted)
            assert one is not None
            assert takes(one, wanted)
            strategy.leased(wanted)
            consumers.took(one)


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_messages_that_are_not_in_memory(make: Make, memory: int) -> None:
    harness = make(queues=[{"name": "jobs", "memory": memory}])
    publish(harness, *(f"{JOBS}/{number % 3}" for number in range(30)))
    client = consumer(harness, "c", f"{JOBS}/1")
    assert take(client) == ["1"] * 10
    assert len(take(consumer(harness, "d", f"{JOBS}/#"))) == 20
