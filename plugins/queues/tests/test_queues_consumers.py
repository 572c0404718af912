"""Test how a group chooses among its consumers: fairness, weights, the active consumer, and cost."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt_api import Publish
from hookmq.plugin import ConfigError
from hookmq_queues import consumers as module
from hookmq_queues.config import QueueConfig
from hookmq_queues.consumers import Consumer, Consumers
from hookmq_testing import Harness, HookRecorder, MemoryClient
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Harness]
JOBS = "$queue/jobs"


def consumer(name: str, weight: int = 1, filter: str = JOBS) -> Consumer:
    return Consumer(name, filter, filter, True, weight)


def filled(prefetch: int, mode: Any = "shared", **weights: int) -> tuple[Consumers, list[Consumer]]:
    consumers = Consumers(prefetch, mode)
    made = [consumer(name, weight) for name, weight in weights.items()]
    for one in made:
        consumers.add(one)
    return consumers, made


# --- the choice ------------------------------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["take", "free", "block", "unblock", "add", "remove"]), st.integers(0, 4)),
    max_size=80,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(OPERATIONS, st.lists(st.integers(1, 5), min_size=5, max_size=5))
def test_it_is_the_one_with_the_fewest_messages_for_its_weight(
    operations: list[tuple[str, int]], weights: list[int]
) -> None:
    consumers = Consumers(prefetch=3)
    filters = [JOBS, f"{JOBS}/a", f"{JOBS}/b", JOBS, f"{JOBS}/b"]
    known = [consumer(str(n), weights[n], filters[n]) for n in range(5)]
    for word, number in operations:
        one = known[number]
        if word == "add":
            consumers.add(one)
        elif word == "remove":
            consumers.remove(one.key)
            known[number] = consumer(str(number), weights[number], filters[number])
        elif word == "free" and one.held:
            consumers.freed(one)
        elif word == "unblock":
            consumers.unblock()
        elif word in ("take", "block"):
            chosen = consumers.choose()
            free = [c for c in consumers.by_key.values() if not c.blocked and c.held < 3]
            assert (chosen is None) == (not free)
            assert set(consumers.free_filters()) == {c.topic_filter for c in free}
            for filter in filters:
                same = [c.held / c.weight for c in free if c.topic_filter == filter]
                found = consumers.choose_if(lambda one, filter=filter: one == filter)  # type: ignore[misc]
                assert (None if found is None else found.held / found.weight) == min(
                    same, default=None
                )
            if chosen is not None:
                assert chosen in free
                least = min(c.held / c.weight for c in free)
                assert chosen.held / chosen.weight == least
                (consumers.took if word == "take" else consumers.block)(chosen)
        assert consumers.is_stuck == any(
            c.blocked and not c.held for c in consumers.by_key.values()
        )
    for line in consumers._lines.values():
        assert len(line.heap) <= 64 + 2 * len(consumers)


def test_equals_take_turns() -> None:
    consumers, _ = filled(10, a=1, b=1, c=1)
    order = []
    for _ in range(9):
        chosen = consumers.choose()
        assert chosen is not None
        order.append(chosen.client_id)
        consumers.took(chosen)
        consumers.freed(chosen)
    assert "".join(order) == "abcabcabc"


@pytest.mark.parametrize("acknowledged", [True, False])
def test_messages_are_shared_in_proportion_to_the_weights(acknowledged: bool) -> None:
    """Messages are shared by weight, both among consumers that acknowledge at once and among slow ones."""
    consumers, _ = filled(1000, slow=1, fast=4)
    served: Counter[str] = Counter()
    for _ in range(100):
        chosen = consumers.choose()
        assert chosen is not None
        consumers.took(chosen)
        served[chosen.client_id] += 1
        if acknowledged:
            consumers.freed(chosen)
    assert served == {"slow": 20, "fast": 80}


def test_a_new_consumer_does_not_make_up_for_the_past() -> None:
    consumers, (first,) = filled(10, first=1)
    for _ in range(50):
        consumers.took(first)
        consumers.freed(first)
    consumers.add(consumer("second"))
    served: Counter[str] = Counter()
    for _ in range(10):
        chosen = consumers.choose()
        assert chosen is not None
        consumers.took(chosen)
        consumers.freed(chosen)
        served[chosen.client_id] += 1
    assert served == {"first": 5, "second": 5}


def test_a_choice_among_a_thousand_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending 10,000 messages to 1,000 consumers takes a limited number of heap changes."""
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(module, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return real(*args)

        return call

    consumers, known = filled(20, **{f"c{number}": 1 for number in range(1000)})
    for name in ("heappush", "heappop", "heapreplace", "heapify"):
        monkeypatch.setattr(module, name, counted(name))
    for number in range(10_000):
        chosen = consumers.choose()
        assert chosen is not None
        consumers.took(chosen)
        if number >= 1000:
            consumers.freed(known[number % 1000])
    assert sum(calls.values()) <= 3 * 10_000
    assert calls["heapify"] <= 10


def test_a_choice_by_filter_looks_at_filters_and_not_at_consumers() -> None:
    """The cost of a choice depends on the number of filters, not of consumers. One filter therefore does not slow down
    a group with many consumers.
    """
    consumers, _ = filled(20, **{f"c{number}": 1 for number in range(1000)})
    consumers.add(consumer("narrow", filter=f"{JOBS}/a"))
    looked: list[str] = []
    for _ in range(100):
        chosen = consumers.choose_if(lambda one: looked.append(one) or one == JOBS)  # type: ignore[func-returns-value]
        assert chosen is not None
        consumers.took(chosen)
    assert Counter(looked) == {JOBS: 100, f"{JOBS}/a": 100}
    assert consumers.free_filters() == [JOBS, f"{JOBS}/a"]


def test_only_the_active_consumer_is_chosen() -> None:
    consumers, (first, second, third) = filled(1, "single_active", a=1, b=1, c=1)
    assert consumers.choose() is first
    consumers.took(first)
    assert consumers.choose() is None
    consumers.freed(first)
    consumers.remove(second.key)
    assert consumers.choose() is first
    consumers.remove(first.key)
    assert (consumers.choose(), consumers.active) == (third, third)
    consumers.remove(third.key)
    assert (consumers.choose(), consumers.active) == (None, None)


@pytest.mark.parametrize(
    ("weight", "message"), [(0, "found 0"), (101, "found 101"), (-1, "from 1 to 100")]
)
def test_bad_weights(weight: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QueueConfig("jobs", weights={"a*": weight})


def test_the_first_pattern_that_matches_gives_the_weight() -> None:
    config = QueueConfig("jobs", weights={"fast-1": 9, "fast-*": 4})
    assert [config.weight_of(name) for name in ("fast-1", "fast-2", "Fast-2", "x")] == [9, 4, 1, 1]


# --- in a broker -----------------------------------------------------------------------------------------------------


def payloads(client: MemoryClient) -> list[bytes]:
    client.harness.settle()
    found = [one.payload for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


def test_weights_in_a_broker(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "weights": {"fast-*": 3}}])
    clients = [harness.connect(name, auto_ack=False) for name in ("fast-1", "slow")]
    for one in clients:
        one.subscribe(JOBS, 1)
    publisher = harness.connect("p")
    for _ in range(40):
        publisher.publish(JOBS, b"", 1)
    assert [len(payloads(one)) for one in clients] == [30, 10]


def test_a_consumer_gives_its_weight(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "weights": {"c1": 9}}])
    clients = [harness.connect(name, auto_ack=False) for name in ("c1", "c2")]
    clients[0].subscribe(JOBS, 1, user_property=(("weight", "3"),))
    clients[1].subscribe(JOBS, 1)
    publisher = harness.connect("p")
    for _ in range(40):
        publisher.publish(JOBS, b"", 1)
    assert [len(payloads(one)) for one in clients] == [30, 10]
    clients[0].subscribe(JOBS, 1)  # without a weight, that of the configuration
    harness.settle()
    dispatcher = harness.hooks.instance("queues").plugin.queues["jobs"].dispatchers["default"]  # type: ignore[union-attr]
    assert [one.weight for one in dispatcher.consumers.by_key.values()] == [9, 1]


@pytest.mark.parametrize("weight", ["0", "101", "1000000000", "-1", "1.5", "", "many", "²"])
def test_a_bad_weight_is_refused(make: Make, weight: str) -> None:
    client = make().connect("c")
    answer = client.subscribe(JOBS, 1, user_property=(("weight", weight),))
    assert answer.codes == (0x83,)
    assert (
        answer.properties.reason_string
        == f"weight: expected a number from 1 to 100, found {weight!r}"
    )
    answer = client.subscribe(JOBS, 1, user_property=(("weight", "1"), ("weight", "1")))
    assert answer.codes == (0x83,)


@pytest.mark.parametrize("version", [4, 5])
def test_a_second_consumer_of_an_exclusive_group_is_refused(make: Make, version: int) -> None:
    harness = make(
        queues=[{"name": "jobs", "consumers": "exclusive", "groups": ["default", "other"]}]
    )
    first, second = harness.connect("first"), harness.connect("second", version)
    assert first.subscribe(JOBS, 1).codes == (1,)
    assert first.subscribe(JOBS, 1).codes == (1,)  # again
    refused = second.subscribe(JOBS, 1)
    assert refused.codes == (0x97 if version == 5 else 0x80,)
    if version == 5:
        assert (
            refused.properties.reason_string
            == "the group default of the queue jobs has a consumer and takes no other"
        )
    assert second.subscribe("$share/other/$queue/jobs", 1).codes == (1,)
    assert first.subscribe(f"{JOBS}/#", 1).codes == (0x97,)
    first.drop()
    harness.settle()
    assert second.subscribe(JOBS, 1).codes == (1,)


def test_two_subscribers_at_the_same_time(make: Make) -> None:
    """The second subscriber is refused, even though the first is not a consumer yet."""
    harness = make(queues=[{"name": "jobs", "consumers": "exclusive"}])
    dispatcher = harness.hooks.instance("queues").plugin.queues["jobs"].dispatchers["default"]  # type: ignore[union-attr]
    assert dispatcher.claim(("a", JOBS))
    assert not dispatcher.claim(("b", JOBS))
    harness.advance(1.1)  # the first one did not subscribe after all
    assert dispatcher.claim(("b", JOBS))


def test_an_exclusive_consumer_that_returns_too_late_waits(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "consumers": "exclusive"}])
    first = harness.connect("first", clean_start=False, session_expiry_interval=99)
    first.subscribe(JOBS, 1)
    first.drop()
    harness.settle()
    second = harness.connect("second")
    assert second.subscribe(JOBS, 1).codes == (1,)
    first = harness.connect("first", clean_start=False, session_expiry_interval=99)
    publisher = harness.connect("p")
    publisher.publish(JOBS, b"1", 1)
    second.expect_message(JOBS, b"1")
    first.expect_nothing()
    second.drop()
    publisher.publish(JOBS, b"2", 1)
    first.expect_message(JOBS, b"2")


def test_another_consumer_takes_over_from_the_active_one(make: Make) -> None:
    recorder = HookRecorder("on_event")
    harness = make(recorder, queues=[{"name": "jobs", "consumers": "single_active"}])
    first, second = (harness.connect(name, auto_ack=False) for name in ("first", "second"))
    for one in (first, second):
        assert one.subscribe(JOBS, 1).codes == (1,)
    publisher = harness.connect("p")
    for number in range(3):
        publisher.publish(JOBS, b"%d" % number, 1)
    assert payloads(first) == [b"0", b"1", b"2"]
    second.expect_nothing()
    first.drop()
    assert payloads(second) == [b"0", b"1", b"2"]
    second.unsubscribe(JOBS)
    harness.settle()
    events = [dict(one.fields) for one in recorder.calls("on_event")]
    assert events == [
        {"queue": "jobs", "group": "default", "client_id": name} for name in ("first", "second", None)
    ]  # fmt: skip


def test_a_subscription_with_qos_0_from_before_the_plugin_is_not_the_active_consumer(
    make: Any,
) -> None:
    how: dict[str, Any] = {"session_expiry_interval": 3600, "clean_start": False}
    with Harness(store=make.store) as before:
        before.connect("old", **how).subscribe(JOBS, 0)
    harness = make(queues=[{"name": "jobs", "consumers": "single_active"}])
    old = harness.connect("old", **how)
    harness.settle()
    consumer = harness.connect("new")
    consumer.subscribe(JOBS, 1)
    harness.connect("p").publish(JOBS, b"x", 1, expect=0)
    assert payloads(consumer) == [b"x"]
    assert payloads(old) == []
