"""Test the orders `priority` and `by_key`: which message comes next, no loss, no double lease, restarts, and limits."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt_api import EMPTY, Properties, Publish
from hookmq.plugin import ConfigError, Message
from hookmq_queues.config import QueueConfig
from hookmq_queues.group import Group
from hookmq_queues.keys import KeyTemplate
from hookmq_queues.order import ByKey, ByPriority, Selection, priority_of
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import Harness, MemoryClient
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

Make = Callable[..., Harness]
JOBS = "$queue/jobs"
LOOKAHEAD = 4


def message(key: str | None = None, priority: str | None = None, topic: str = JOBS) -> Message:
    pairs = [("key", key)] if key is not None else []
    pairs += [("priority", priority)] if priority is not None else []
    properties = Properties(user_property=tuple(pairs)) if pairs else EMPTY
    return Message(topic, b"", 1, False, properties, "p")


# --- a model ---------------------------------------------------------------------------------------------------------


class OrderMachine(RuleBasedStateMachine):
    """Run random operations on a group and a selection. Track where each message is."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []
        self.in_memory: set[int] = set()
        self.leased: dict[int, int] = {}
        self.deferred: dict[int, float] = {}
        self.settled: set[int] = set()
        self.now = 0.0
        self.kind = ""

    @initialize(kind=st.sampled_from(["priority", "by_key"]))
    def start(self, kind: str) -> None:
        self.kind = kind
        self.group = Group()
        self.select()

    def select(self) -> None:
        strategy: Any = ByPriority()
        if self.kind == "by_key":
            strategy = ByKey(KeyTemplate("${property.key}").key_of)
        self.selection = Selection(self.group, strategy, LOOKAHEAD, self.get)

    def get(self, offset: int) -> Message | None:
        return self.messages[offset] if offset in self.in_memory else None

    @property
    def ready(self) -> list[int]:
        """The messages that are neither leased, deferred nor settled, oldest first."""
        away = {*self.leased, *self.deferred, *self.settled}
        return [offset for offset in range(len(self.messages)) if offset not in away]

    @rule(key=st.sampled_from([None, "a", "b", "c"]), priority=st.integers(0, 9), kept=st.booleans())  # fmt: skip
    def publish(self, key: str | None, priority: int, kept: bool) -> None:
        if kept:
            self.in_memory.add(len(self.messages))
        self.messages.append(message(key, str(priority)))

    def next(self) -> int | None:
        """Return the next message, loading missing messages first as the dispatcher does."""
        for _ in range(len(self.messages) + 1):
            offset = self.selection.next(len(self.messages))
            if self.selection.missing is None:
                return offset
            self.in_memory.add(self.selection.missing)
        raise AssertionError("it always wants another message")

    @rule(sent=st.booleans())
    def lease(self, sent: bool) -> None:
        offset = self.next()
        self.check(offset)
        if offset is None:
            return
        self.selection.leased(offset)
        token, _ = self.group.lease(offset, "consumer", self.now + 10)
        if sent:
            self.leased[offset] = token
        else:
            self.group.withdraw(offset, token)

    def check(self, offset: int | None) -> None:
        """Check that the chosen offset follows the order's rule."""
        ready = self.ready
        window = ready[:LOOKAHEAD]
        if self.kind == "priority":
            assert (offset is None) == (not ready)
            if offset is not None:
                assert offset in ready
                priority = priority_of(self.messages[offset])
                others = {one: priority_of(self.messages[one]) for one in window}
                assert priority >= max(others.values())
                assert all(others[one] < priority for one in others if one < offset)
            return
        free = [one for one in ready if not self.blocked(one)]
        assert offset is None or offset in free
        in_window = [one for one in window if one in free]
        assert not in_window or offset == in_window[0]

    def blocked(self, offset: int) -> bool:
        """Return whether an older unsettled message has the same key."""
        key = self.messages[offset].user_property[0]
        return key[0] == "key" and any(
            self.messages[one].user_property[0] == key
            for one in range(offset)
            if one not in self.settled
        )

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        if self.leased:
            self.settle(data.draw(st.sampled_from(sorted(self.leased))))

    def settle(self, offset: int) -> None:
        assert self.group.settle(offset)
        self.selection.settled(offset)
        self.leased.pop(offset, None)
        self.deferred.pop(offset, None)
        self.settled.add(offset)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.leased:
            offset = data.draw(st.sampled_from(sorted(self.leased)))
            assert self.group.release(offset, self.leased.pop(offset))

    @rule(data=st.data(), delay=st.integers(1, 5))
    def negative(self, data: st.DataObject, delay: int) -> None:
        if self.leased:
            offset = data.draw(st.sampled_from(sorted(self.leased)))
            del self.leased[offset]
            self.deferred[offset] = self.now + delay
            self.group.defer(offset, self.now + delay)

    @rule(data=st.data())
    def late(self, data: st.DataObject) -> None:
        """Acknowledge a message after its lease has ended."""
        late = [one for one in self.group.unsettled if self.group.unsettled[one] and one not in self.leased]  # fmt: skip
        if late:
            self.settle(data.draw(st.sampled_from(late)))

    @rule()
    def drop_oldest(self) -> None:
        offset = self.selection.oldest()
        if offset is not None:
            assert offset not in self.leased
            self.settle(offset)

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.group.wake(self.now)
        self.deferred = {one: due for one, due in self.deferred.items() if due > self.now}

    @rule()
    def forget(self) -> None:
        self.in_memory.clear()

    @rule()
    def restart(self) -> None:
        stored = self.group.encode(self.group.next + 2)
        self.group = Group.decode(stored, 0, len(self.messages), self.now)
        self.leased.clear()
        self.in_memory.clear()
        self.select()

    def teardown(self) -> None:
        """Check that everything is delivered in the end."""
        if not self.kind:
            return
        self.now += 10
        self.group.wake(self.now)
        self.deferred.clear()
        for one in list(self.leased):
            self.settle(one)
        for _ in range(len(self.messages)):
            offset = self.next()
            self.check(offset)
            if offset is None:
                break
            self.selection.leased(offset)
            self.group.lease(offset, "consumer", self.now)
            self.settle(offset)
        assert self.settled == set(range(len(self.messages)))
        strategy: Any = self.selection._strategy
        assert not strategy.waiting
        assert not getattr(strategy, "_lines", None)
        assert not getattr(strategy, "_keys", None)
        assert not getattr(strategy, "_priorities", None)


TestOrderMachine = OrderMachine.TestCase
TestOrderMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("kind", ["priority", "by_key"])
def test_the_heap_stays_small(kind: str) -> None:
    group = Group()
    strategy: Any = ByPriority() if kind == "priority" else ByKey(lambda one: None)
    selection = Selection(group, strategy, 10, lambda offset: message())
    for _ in range(2000):
        offset = selection.next(10)
        assert offset is not None
        selection.leased(offset)
        token, _ = group.lease(offset, "a", 1.0)
        group.release(offset, token)
    assert len(strategy._heap) <= 64 + 2 * 10 + 1
    assert (group.next, selection.waiting) == (10, 9)


def test_priorities() -> None:
    for text, priority in (("0", 0), ("9", 9), (None, 0), ("10", 0), ("-1", 0), ("", 0), ("¹", 0)):
        assert priority_of(message(priority=text)) == priority
    assert priority_of(message(priority="9", topic="captured")) == 0


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("${property.key}", "k"),
        ("${topic}", "$queue/jobs/a/b"),
        ("${topic.3}-${topic.4}", "a-b"),
        ("${topic.5}", None),
        ("${client_id}/${property.key}", "p/k"),
        ("${property.other}", None),
    ],
)
def test_the_key_of_a_message(template: str, key: str | None) -> None:
    assert KeyTemplate(template).key_of(message("k", topic=f"{JOBS}/a/b")) == key


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("${topic", "'\\${topic' contains a '\\${' that is not closed"),
        ("", "'' is the same for all messages"),
        ("key", "'key' is the same for all messages"),
        ("${topic.0}", "unknown placeholder \\${topic.0}"),
        ("${payload}", "unknown placeholder \\${payload}"),
        ("${property.}", "unknown placeholder"),
    ],
)
def test_bad_templates(template: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"order_key: {problem}"):
        QueueConfig("jobs", order_key=template)


def test_long_keys_take_little_memory() -> None:
    strategy = ByKey(KeyTemplate("${property.key}").key_of)
    for offset in range(2):
        strategy.add(offset, message("x" * 60_000 + str(offset)))
        strategy.ready(offset)
    assert len(strategy._lines) == 2
    assert all(len(key) <= 64 for key in strategy._lines)


# --- in a broker -----------------------------------------------------------------------------------------------------


def plugin_of(harness: Harness) -> QueuesPlugin:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return instance.plugin


def received(client: MemoryClient) -> list[Publish]:
    client.harness.settle()
    found = [one for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


def texts(messages: list[Publish]) -> str:
    return " ".join(one.payload.decode() for one in messages)


def publish(client: MemoryClient, payload: str, *pairs: tuple[str, str], topic: str = JOBS) -> None:
    client.publish(topic, payload.encode(), 1, user_property=pairs)


def consumer_of(harness: Harness, name: str = "c", **more: Any) -> MemoryClient:
    consumer = harness.connect(name, auto_ack=False, **more)
    assert consumer.subscribe(JOBS, 1).codes == (1,)
    return consumer


def test_messages_with_a_higher_priority_come_first(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "order": "priority", "bindings": ["in/#"]}])
    publisher = harness.connect("p")
    for number, priority in enumerate("1952"):
        publish(publisher, f"{number}:{priority}", ("priority", priority))
    publish(publisher, "none")
    publish(publisher, "captured", ("priority", "9"), topic="in/1")
    publish(publisher, "captured", ("priority", "high"), topic="in/1")
    publish(publisher, "last:9", ("priority", "9"))
    assert texts(received(consumer_of(harness))) == (
        "1:9 last:9 2:5 3:2 0:1 none captured captured"
    )


@pytest.mark.parametrize("priority", ["10", "-1", "", "high", "¹"])
def test_a_bad_priority_is_refused(make: Make, priority: str) -> None:
    harness = make(queues=[{"name": "jobs", "order": "priority"}])
    publisher = harness.connect("p")
    publisher.publish(JOBS, b"", 1, user_property=(("priority", priority),))
    answer: Any = publisher.unread.pop()
    assert (answer.code, answer.properties.reason_string) == (
        0x99,
        f"priority: expected a digit from 0 to 9, found {priority!r}",
    )


def test_the_window_is_bounded(make: Make) -> None:
    """A message's priority takes effect once the message is among the oldest `lookahead` messages."""
    harness = make(queues=[{"name": "jobs", "order": "priority", "lookahead": 3}])
    publisher = harness.connect("p")
    for number in range(6):
        publish(publisher, str(number), ("priority", str(number)))
    assert texts(received(consumer_of(harness))) == "2 3 4 5 1 0"


def test_each_key_is_processed_in_order(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "order": "by_key"}])
    publisher = harness.connect("p")
    for text in ("a1", "a2", "b1", "-1", "a3", "b2", "-2"):
        publish(publisher, text, *([] if text[0] == "-" else [("key", text[0])]))
    first, second = consumer_of(harness, "first"), consumer_of(harness, "second")
    got = {one.payload.decode(): (who, one) for who in (first, second) for one in received(who)}
    assert set(got) == {"a1", "b1", "-1", "-2"}
    who, one = got["a1"]
    who.ack(one)
    (again,) = received(first) + received(second)
    assert again.payload == b"a2"
    who, one = got["b1"]
    who.ack(one)
    assert texts(received(first) + received(second)) == "b2"


def test_a_message_that_is_delivered_again_keeps_the_order_of_its_key(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "order": "by_key"}])
    publisher = harness.connect("p")
    for text in ("a1", "a2", "b1"):
        publish(publisher, text, ("key", text[0]))
    bad = consumer_of(harness, "bad")
    assert texts(received(bad)) == "a1 b1"
    good = harness.connect("good")
    good.subscribe(JOBS, 1)
    bad.drop()
    found = received(good)
    assert texts(found) == "a1 b1 a2"
    counts = [dict(one.properties.user_property or ())["delivery-count"] for one in found]
    assert counts == ["2", "2", "1"]


@pytest.mark.parametrize("memory", ["16MiB", 0])
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_the_order_of_keys_survives_a_restart(make: Any, how: str, memory: Any) -> None:
    queues = [{"name": "jobs", "order": "by_key", "memory": memory, "lookahead": 7}]
    harness = make(queues=queues)
    publisher = harness.connect("p")
    for number in range(30):
        publish(publisher, f"{'abc'[number % 3]}{number}", ("key", "abc"[number % 3]))
    consumer = consumer_of(harness)
    for one in received(consumer)[:2]:
        consumer.ack(one)
    received(consumer)
    if how == "stop":
        harness.close()
        make.made.remove(harness)
    else:
        make.crash(harness)
    harness = make(queues=queues)
    consumers = [consumer_of(harness, f"c{number}", receive_maximum=1) for number in range(2)]
    order: dict[str, list[int]] = {}
    for _ in range(80):
        found = [(who, one) for who in consumers for one in received(who)]
        keys = [one.payload[:1] for _, one in found]
        assert len(set(keys)) == len(keys)
        for who, one in found:
            order.setdefault(one.payload[:1].decode(), []).append(int(one.payload[1:]))
            who.ack(one)
    assert all(numbers == sorted(set(numbers)) for numbers in order.values())
    assert all(numbers[-1] >= 27 and len(numbers) >= 9 for numbers in order.values())


def test_unacknowledged_messages_are_bounded_in_any_order(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "order": "priority", "max_unacknowledged": 3}])
    consumer = consumer_of(harness)
    publisher = harness.connect("p")
    for _ in range(10):
        publish(publisher, "")
    found = received(consumer)
    assert len(found) == 3
    consumer.ack(found[0])
    assert len(received(consumer)) == 1


def test_a_full_queue_drops_the_oldest_message_in_any_order(make: Make) -> None:
    harness = make(
        queues=[{"name": "jobs", "order": "priority", "max_messages": 3, "on_full": "drop_oldest"}]
    )
    consumer = consumer_of(harness, receive_maximum=1)
    publisher = harness.connect("p")
    for number in range(6):
        publish(publisher, str(number), ("priority", str(9 - number)))
    (first,) = received(consumer)
    assert first.payload == b"0"
    consumer.ack(first)
    assert texts(received(consumer)) == "4"
    assert plugin_of(harness).queues["jobs"].results["dropped_oldest"] == 3


def test_dead_letters_free_their_key(make: Make) -> None:
    queues = [
        {"name": "jobs", "order": "by_key", "delivery_limit": 1, "dead_letter": "dead"},
        {"name": "dead"},
    ]
    harness = make(queues=queues)
    publisher = harness.connect("p")
    for text in ("a1", "a2"):
        publish(publisher, text, ("key", "a"))
    bad = consumer_of(harness, "bad")
    assert texts(received(bad)) == "a1"
    bad.drop()
    assert texts(received(consumer_of(harness, "good"))) == "a2"
    undertaker = harness.connect("undertaker")
    undertaker.subscribe("$queue/dead", 1)
    undertaker.expect_message("$queue/dead", b"a1")


@pytest.mark.parametrize("order", ["priority", "by_key"])
def test_messages_that_leave_the_queue_elsewhere(make: Make, order: str) -> None:
    """The remaining messages are delivered in order after an operator purges the queue or takes a message out."""
    harness = make(queues=[{"name": "jobs", "order": order, "lookahead": 2}])
    consumer = consumer_of(harness, receive_maximum=1)
    publisher = harness.connect("p")
    for number in range(5):
        publish(publisher, str(number), ("key", "k"), ("priority", "1"))
    (first,) = received(consumer)
    dispatcher = plugin_of(harness).queues["jobs"].dispatchers["default"]
    dispatcher.take(3)
    consumer.ack(first)
    (second,) = received(consumer)
    assert second.payload == b"1"
    assert dispatcher.purge() == 2
    for number in (6, 7):
        publish(publisher, str(number), ("key", "k"), ("priority", "1"))
    consumer.ack(second)
    (third,) = received(consumer)
    consumer.ack(third)
    assert (third.payload, texts(received(consumer))) == (b"6", "7")
