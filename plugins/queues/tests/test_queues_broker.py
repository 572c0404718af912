"""Test queues in a broker: publishing, consuming, redelivery, groups, limits, refusals and restarts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Puback, Publish, Suback
from hookmq.plugin import Context, Drop, Plugin, hookimpl
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import Harness, MemoryClient, PluginInstance, make_plugin
from hookmq_testing.contracts import PluginContract

Make = Callable[..., Harness]
JOBS = "$queue/jobs"


class TestContract(PluginContract):
    kind = QueuesPlugin
    use = "queues"
    configs = (
        {"queues": [{"name": "jobs"}]},
        {
            "queues": [
                {"name": "jobs", "bindings": ["a/#", "+/b"], "groups": ["one", "two"]},
                {"name": "small", "bindings": ["#"], "max_messages": 1, "on_full": "drop_oldest"},
            ],
            "sync": False,
        },
        {
            "queues": [
                {
                    "name": "log",
                    "type": "stream",
                    "compact": "topic",
                    "start": "last",
                    "retention": {"age": "7d", "bytes": "1MiB", "wait_for_groups": "2MiB"},
                },
                {"name": "live", "type": "ephemeral", "expires_after": "5m", "max_bytes": "1MiB"},
            ]
        },
    )
    bad_configs = (
        {"max_stored": -1},
        {"on_first_use": [{}]},
        {"on_first_use": [{"pattern": "a/*"}]},
        {"on_first_use": [{"pattern": "a*", "name": "a"}]},
        {"on_first_use": [{"pattern": "a*", "bindings": ["a/#"]}]},
        {"on_first_use": [{"pattern": "a*"}, {"pattern": "a*"}]},
        {"on_first_use": [{"pattern": "a*", "maximum": 0}]},
        {"on_first_use": [{"pattern": "a*", "prefetch": 0}]},
        {"on_first_use": [{"pattern": "a*", "delivery_limit": 1, "dead_letter": "b"}]},
        {"queues": [{"name": "a"}, {"name": "A"}]},
        {"queues": [{"name": "$a"}]},
        {"queues": [{"name": "a", "bindings": ["$queue/#"]}]},
        {"queues": [{"name": "a", "bindings": ["$queue/a"]}]},
        {"queues": [{"name": "a", "bindings": ["a#"]}]},
        {"queues": [{"name": "a", "bindings": ["$share/g/a"]}]},
        {"queues": [{"name": "a", "groups": []}]},
        {"queues": [{"name": "a", "groups": ["g", "g"]}]},
        {"queues": [{"name": "a", "groups": ["a/b"]}]},
        {"queues": [{"name": "a", "max_messages": 0}]},
        {"queues": [{"name": "a", "delivery_limit": 1}]},
        {"queues": [{"name": "a", "delivery_limit": 1, "dead_letter": "b"}]},
        {"queues": [{"name": "a", "delivery_limit": 1, "dead_letter": "a"}]},
        {
            "queues": [
                {"name": "a", "delivery_limit": 1, "dead_letter": "b"},
                {"name": "b", "delivery_limit": 1, "dead_letter": "a"},
            ]
        },
        {"queues": [{"name": "a", "unknown": 1}]},
        {"queues": [{"name": "a", "type": "log"}]},
        {"queues": [{"name": "a", "expires_after": "1s"}]},
        {"queues": [{"name": "a", "type": "ephemeral", "memory": "1MiB"}]},
        {"queues": [{"name": "a", "type": "ephemeral", "retention": {"age": "1h"}}]},
        {
            "queues": [
                {"name": "a", "delivery_limit": 1, "dead_letter": "b"},
                {"name": "b", "type": "ephemeral"},
            ]
        },
        {"queues": [{"name": "a", "start": "last"}]},
        {"queues": [{"name": "a", "groups": [{"name": "g", "start": "last"}]}]},
        {"queues": [{"name": "a", "retention": {"age": "1h"}}]},
        {"queues": [{"name": "a", "compact": "key"}]},
        {"queues": [{"name": "a", "type": "stream", "start": "yesterday"}]},
        {"queues": [{"name": "a", "type": "stream", "groups": [{"name": "g", "start": "-1"}]}]},
        {"queues": [{"name": "a", "type": "stream", "on_full": "drop_oldest"}]},
        {"queues": [{"name": "a", "type": "stream", "max_messages": 5}]},
        {"queues": [{"name": "a", "type": "stream", "compact": "payload"}]},
        {"queues": [{"name": "a", "type": "stream", "retention": {"bytes": "1KiB"}}]},
        {"queues": [{"name": "a", "type": "stream", "retention": {"wait_for_groups": "1GiB"}}]},
    )

    @pytest.fixture(autouse=True)
    def _folders(self, folders: Any) -> None:
        self.folders = folders

    def instance(self, config: Any, id: str = "") -> PluginInstance:
        return super().instance({"path": str(next(self.folders)), **config}, id)


def plugin_of(harness: Harness) -> QueuesPlugin:
    """Return a broker's queues plugin."""
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return instance.plugin


def properties_of(message: Publish) -> dict[str, str]:
    return dict(message.properties.user_property or ())


def payloads(client: MemoryClient) -> list[bytes]:
    """Take the messages that a client has received."""
    client.harness.settle()
    found = [one.payload for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


def results(harness: Harness, queue: str = "jobs") -> dict[str, int]:
    """Return a queue's counters, without those that are 0."""
    return {
        name: count for name, count in plugin_of(harness).queues[queue].results.items() if count
    }


def subscribe(client: MemoryClient, filter: str = JOBS, qos: int = 1) -> None:
    assert client.subscribe(filter, qos).codes == (1,)


# --- publishing and consuming ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_message_waits_for_its_consumer(make: Make, version: int) -> None:
    harness = make()
    publisher = harness.connect("p", version)
    publisher.publish(JOBS, b"1", 1, expect=0)
    publisher.publish(f"{JOBS}/a/b", b"2", 2)
    publisher.publish(JOBS, b"3", 0)
    consumer = harness.connect("c", version)
    subscribe(consumer, qos=2)
    for payload in (b"1", b"2", b"3"):
        consumer.expect_message(JOBS, payload, 1, retain=False)
    consumer.expect_nothing()
    assert results(harness) == {"accepted": 3, "delivered": 3, "acknowledged": 3}


def test_the_properties_of_a_delivery(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "bindings": ["in/#"], "groups": ["work"]}])
    publisher, consumer = harness.connect("p"), harness.connect("c")
    subscribe(consumer)
    publisher.publish(
        f"{JOBS}/a", b"x", 1,
        user_property=(("message-id", "forged"), ("mine", "1"), ("delivery-count", "9")), content_type="text/plain",
    )  # fmt: skip
    message = consumer.expect_message(JOBS, b"x")
    assert message.properties.user_property == (
        ("mine", "1"), ("message-id", "jobs:0"), ("group", "work"), ("offset", "0"), ("delivery-count", "1"),
        ("source-topic", "$queue/jobs/a"),
    )  # fmt: skip
    assert message.properties.content_type == "text/plain"
    publisher.publish("in/1", b"y", 1)
    assert properties_of(consumer.expect_message())["source-topic"] == "in/1"


def test_the_topics_of_a_subscription_with_a_wildcard(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "bindings": ["in/#"]}])
    consumer = harness.connect("c", 4)
    subscribe(consumer, "$share/default/$queue/jobs/#")
    publisher = harness.connect("p")
    for topic, delivered in (
        (JOBS, JOBS), (f"{JOBS}/a/b", f"{JOBS}/a/b"), ("in/1", f"{JOBS}/in/1"),
    ):  # fmt: skip
        publisher.publish(topic, b"", 1)
        consumer.expect_message(delivered)


def test_only_consumers_get_messages_of_a_queue(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "bindings": ["in/#"]}])
    other, publisher = harness.connect("other"), harness.connect("p")
    other.subscribe("#", 1)
    publisher.publish(JOBS, b"", 1, retain=True, expect=0)
    publisher.publish("in/1", b"captured", 1, expect=0)
    publisher.publish("out", b"", 1, expect=0)
    other.expect_message("in/1", b"captured")
    other.expect_message("out")
    other.expect_nothing()
    assert results(harness) == {"accepted": 2}
    assert not harness.handle("queues").retained("$queue/#").items


def test_each_message_goes_to_one_consumer_of_each_group(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "groups": ["a", "b"]}])
    first, second, other = (harness.connect(name) for name in ("first", "second", "other"))
    subscribe(first)
    subscribe(second, "$share/a/$queue/jobs")
    subscribe(other, "$share/b/$queue/jobs")
    publisher = harness.connect("p")
    for number in range(10):
        publisher.publish(JOBS, b"%d" % number, 1)
    of_a = payloads(first) + payloads(second)
    assert len(of_a) == 10
    assert set(of_a) == {b"%d" % number for number in range(10)}
    assert payloads(other) == [b"%d" % number for number in range(10)]


def test_the_consumer_with_fewer_messages_gets_the_next(make: Make) -> None:
    harness = make()
    busy = harness.connect("busy", auto_ack=False)
    subscribe(busy)
    publisher = harness.connect("p")
    publisher.publish(JOBS, b"0", 1)
    free = harness.connect("free", auto_ack=False)
    subscribe(free)
    publisher.publish(JOBS, b"1", 1)
    assert payloads(busy) == [b"0"]
    assert payloads(free) == [b"1"]
    for number in (2, 3, 4, 5):
        publisher.publish(JOBS, b"%d" % number, 1)
    assert (len(payloads(busy)), len(payloads(free))) == (2, 2)


@pytest.mark.parametrize(("receive_maximum", "prefetch"), [(2, 100), (None, 2)])
def test_prefetch_and_receive_maximum(make: Make, receive_maximum: Any, prefetch: int) -> None:
    harness = make(queues=[{"name": "jobs", "prefetch": prefetch}])
    publisher = harness.connect("p")
    for number in range(5):
        publisher.publish(JOBS, b"%d" % number, 1)
    consumer = harness.connect("c", auto_ack=False, receive_maximum=receive_maximum)
    subscribe(consumer)
    first, second = (consumer.expect_message() for _ in range(2))
    consumer.expect_nothing()
    consumer.ack(second)
    assert consumer.expect_message().payload == b"2"
    consumer.ack(first)
    assert consumer.expect_message().payload == b"3"
    consumer.expect_nothing()


def test_a_window_that_other_messages_use(make: Make) -> None:
    """If a consumer has no room for its first message, it gets the message once it has room again."""
    harness = make()
    consumer = harness.connect("c", auto_ack=False, receive_maximum=1)
    subscribe(consumer)
    consumer.subscribe("t", 1)
    publisher = harness.connect("p")
    publisher.publish("t", b"", 1)
    publisher.publish(JOBS, b"job", 1)
    harness.advance(1)
    other = consumer.expect_message("t")
    consumer.expect_nothing()
    consumer.ack(other)
    harness.advance(1)
    message = consumer.expect_message(JOBS, b"job")
    assert properties_of(message)["delivery-count"] == "1"


# --- redelivery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["drop", "takeover", "unsubscribe"])
def test_unacknowledged_messages_go_to_others(make: Make, how: str) -> None:
    harness = make()
    first = harness.connect("first", auto_ack=False, clean_start=False, session_expiry_interval=99)
    subscribe(first)
    publisher = harness.connect("p")
    for number in range(3):
        publisher.publish(JOBS, b"%d" % number, 1)
    messages = [first.expect_message() for _ in range(3)]
    first.ack(messages[1])
    second = harness.connect("second")
    if how == "unsubscribe":
        first.unsubscribe(JOBS)
    subscribe(second)
    second.expect_nothing()
    if how == "takeover":
        first = harness.connect("first", clean_start=True)
    else:
        first.drop()
    for payload in (b"0", b"2"):
        message = second.expect_message(JOBS, payload, dup=False)
        assert properties_of(message)["delivery-count"] == "2"
    second.expect_nothing()
    assert results(harness)["redelivered"] == 2


def test_a_returning_consumer_gets_its_messages_again(make: Make) -> None:
    harness = make()
    consumer = harness.connect("c", auto_ack=False, clean_start=False, session_expiry_interval=99)
    subscribe(consumer)
    publisher = harness.connect("p")
    publisher.publish(JOBS, b"1", 1)
    consumer.expect_message()
    consumer.drop()
    publisher.publish(JOBS, b"2", 1)
    again = harness.connect("c", clean_start=False, session_expiry_interval=99)
    assert again.session_present
    counts = [properties_of(again.expect_message(JOBS, p))["delivery-count"] for p in (b"1", b"2")]
    assert counts == ["2", "1"]
    again.expect_nothing()


def test_the_only_consumer_gets_a_message_again_after_the_timeout(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "visibility_timeout": "10s"}])
    consumer = harness.connect("c", auto_ack=False)
    subscribe(consumer)
    harness.connect("p").publish(JOBS, b"1", 1)
    first = consumer.expect_message()
    harness.advance(9.9)
    consumer.expect_nothing()
    harness.advance(0.2)
    again = consumer.expect_message(JOBS, b"1")
    assert properties_of(again)["delivery-count"] == "2"
    consumer.ack(first)  # late, but it counts
    harness.advance(60)
    consumer.expect_nothing()
    consumer.ack(again)
    harness.settle()
    assert results(harness) == {
        "accepted": 1, "delivered": 1, "timed_out": 1, "redelivered": 1, "acknowledged": 1,
    }  # fmt: skip


def test_expired_messages_are_not_delivered(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "message_ttl": "60s"}])
    publisher = harness.connect("p")
    publisher.publish(JOBS, b"its own", 1, message_expiry_interval=10)
    publisher.publish(JOBS, b"long", 1, message_expiry_interval=1000)
    harness.advance(30)
    publisher.publish(JOBS, b"good", 1)
    harness.advance(40)
    consumer = harness.connect("c")
    subscribe(consumer)
    consumer.expect_message(JOBS, b"good")
    consumer.expect_nothing()
    assert results(harness)["expired"] == 2


class Refuses(Plugin):
    """Drops every delivery with the payload ``bad``."""

    @hookimpl
    def on_deliver(self, message: Any) -> Drop | None:
        return Drop() if message.payload == b"bad" else None


def test_a_message_that_a_plugin_refuses_does_not_block_the_queue(make: Make) -> None:
    harness = make(Refuses(None, Context("refuses")))
    publisher, consumer = harness.connect("p"), harness.connect("c")
    subscribe(consumer)
    for payload in (b"bad", b"good"):
        publisher.publish(JOBS, payload, 1)
    consumer.expect_message(JOBS, b"good")
    consumer.expect_nothing()
    assert results(harness)["refused"] == 1


def test_unacknowledged_messages_of_a_group_are_bounded(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "max_unacknowledged": 3}])
    consumers = [harness.connect(f"c{n}", auto_ack=False) for n in range(2)]
    for consumer in consumers:
        subscribe(consumer)
    publisher = harness.connect("p")
    for _ in range(10):
        publisher.publish(JOBS, b"", 1)
    first, second = (len(payloads(consumer)) for consumer in consumers)
    assert first + second == 3
    consumers[0].drop()
    assert len(payloads(consumers[1])) == first


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "max_messages": 2}, {"name": "other"}])
    publisher, old = harness.connect("p"), harness.connect("old", 4)
    for _ in range(2):
        publisher.publish(JOBS, b"kept", 1, expect=0)
    publisher.publish(JOBS, b"no", 1, expect=0x97)
    publisher.publish(JOBS, b"no", 0)
    publisher.publish("$queue/other", b"", 1, expect=0)
    old.publish(JOBS, b"waits", 1)
    old.expect_nothing()
    consumer = harness.connect("c")
    subscribe(consumer)
    harness.advance(1)
    old.expect(Puback)
    harness.advance(1)
    assert payloads(consumer) == [b"kept", b"kept", b"waits"]
    assert results(harness)["rejected"] >= 2
    assert len(harness.logged("queue.full")) == len(harness.logged("queue.has_room")) == 1
    publisher.publish(JOBS, b"", 1, expect=0)


def test_bytes_are_limited_too(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "max_bytes": "64KiB"}])
    publisher = harness.connect("p")
    publisher.publish(JOBS, bytes(65536), 1, expect=0)
    publisher.publish(JOBS, b"", 1, expect=0x97)
    consumer = harness.connect("c")
    subscribe(consumer)
    consumer.expect_message()
    publisher.publish(JOBS, b"", 1, expect=0)


@pytest.mark.parametrize(
    ("on_full", "kept"), [("drop_oldest", [b"0", b"3", b"4"]), ("drop_newest", [b"0", b"1", b"2"])]
)
def test_a_full_queue_drops(make: Make, on_full: str, kept: list[bytes]) -> None:
    """A full queue never drops a message that a consumer holds."""
    harness = make(queues=[{"name": "jobs", "max_messages": 3, "on_full": on_full, "prefetch": 1}])
    slow, publisher = harness.connect("slow", auto_ack=False), harness.connect("p")
    subscribe(slow)
    for number in range(5):
        publisher.publish(JOBS, b"%d" % number, 1, expect=0)
    assert payloads(slow) == [b"0"]
    slow.drop()
    consumer = harness.connect("c")
    subscribe(consumer)
    harness.settle()
    assert payloads(consumer) == kept
    assert results(harness)[on_full.replace("drop", "dropped")] == 2


# --- refusals --------------------------------------------------------------------------------------------------------


def test_bad_subscriptions(make: Make) -> None:
    harness = make()
    client, old = harness.connect("c"), harness.connect("old", 4)
    for filter, qos, code, why in (
        ("$queue/none", 1, 0x8F, "there is no queue 'none'"),
        ("$queue/#", 1, 0x8F, "a subscription names one queue"),
        ("$queue/+/#", 1, 0x8F, "a subscription names one queue"),
        ("$queue", 1, 0x8F, "a subscription names one queue"),
        ("$queue/jobs/a/$b", 1, 0x8F, "the levels of a filter below a queue must not start with $"),
        ("$share/x/$queue/jobs", 1, 0x8F, "the queue jobs has no group 'x'"),
        (JOBS, 0, 0x83, "a subscription to a queue needs QoS 1, because a message is settled by its PUBACK"),
    ):  # fmt: skip
        client.send_subscribe(filter, qos)
        answer = client.expect(Suback)
        assert (answer.codes, answer.properties.reason_string) == ((code,), why)
        old.send_subscribe(filter, qos)
        assert old.expect(Suback).codes == (0x80,)


def test_bad_publishes(make: Make) -> None:
    harness = make()
    client = harness.connect("c")
    for topic, why in (
        ("$queue/none", "there is no queue 'none'"),
        ("$queue/", "there is no queue ''"),
        ("$queue/jobs/a/$ack", "the levels of a queue's topic must not start with $"),
    ):
        client.publish(topic, b"", 1)
        answer = client.expect(Puback)
        assert (answer.code, answer.properties.reason_string) == (0x90, why)
    assert results(harness) == {}


# --- restarts --------------------------------------------------------------------------------------------------------


def test_a_clean_restart_keeps_messages_and_counts(make: Make) -> None:
    harness = make()
    consumer, publisher = harness.connect("c", auto_ack=False), harness.connect("p")
    subscribe(consumer)
    for number in range(4):
        publisher.publish(JOBS, b"%d" % number, 1)
    messages = [consumer.expect_message() for _ in range(4)]
    consumer.ack(messages[0])
    consumer.ack(messages[2])
    consumer.disconnect()
    publisher.publish(JOBS, b"4", 1)
    harness.close()
    harness = make()
    consumer = harness.connect("c")
    subscribe(consumer)
    found = [consumer.expect_message() for _ in range(3)]
    consumer.expect_nothing()
    assert [(one.payload, properties_of(one)["delivery-count"]) for one in found] == [
        (b"1", "2"), (b"3", "2"), (b"4", "1"),
    ]  # fmt: skip


def test_a_crash_repeats_only_marked_messages(make: Any) -> None:
    harness = make()
    consumer, publisher = harness.connect("c", auto_ack=False), harness.connect("p")
    subscribe(consumer)
    for number in range(4):
        publisher.publish(JOBS, b"%d" % number, 1)
    messages = [consumer.expect_message() for _ in range(4)]
    consumer.ack(messages[1])
    harness.settle()
    make.crash(harness)
    harness = make()
    harness.connect("p").publish(JOBS, b"new", 1)
    consumer = harness.connect("c")
    subscribe(consumer)
    found = [consumer.expect_message() for _ in range(4)]
    consumer.expect_nothing()
    assert [(one.payload, properties_of(one)["delivery-count"]) for one in found] == [
        (b"0", "2"), (b"2", "2"), (b"3", "2"), (b"new", "1"),
    ]  # fmt: skip


def test_counts_of_lost_deliveries_survive_a_crash(make: Any) -> None:
    harness = make()
    harness.connect("p").publish(JOBS, b"1", 1)
    for count in ("1", "2"):
        consumer = harness.connect("c", auto_ack=False)
        subscribe(consumer)
        assert properties_of(consumer.expect_message())["delivery-count"] == count
        consumer.drop()
        harness.settle()
    make.crash(harness)
    harness = make()
    consumer = harness.connect("c")
    subscribe(consumer)
    assert properties_of(consumer.expect_message())["delivery-count"] == "3"


def test_settled_messages_do_not_fill_a_queue_after_a_restart(make: Make) -> None:
    queues = [{"name": "jobs", "max_bytes": "64KiB"}]
    harness = make(queues=queues)
    consumer, publisher = harness.connect("c"), harness.connect("p")
    subscribe(consumer)
    publisher.publish(JOBS, bytes(65536), 1)
    consumer.expect_message()
    harness.close()
    harness = make(queues=queues)
    harness.connect("p").publish(JOBS, b"", 1, expect=0)


def test_the_size_after_a_restart_is_that_of_the_unsettled_messages(make: Make) -> None:
    queues = [{"name": "jobs", "max_bytes": "64KiB", "prefetch": 1}]
    harness = make(queues=queues)
    consumer, publisher = harness.connect("c", auto_ack=False), harness.connect("p")
    subscribe(consumer)
    with harness.together():  # one block, so that the log knows the size of all messages only
        for _ in range(20):
            publisher.publish(JOBS, bytes(3000), 0)
    for _ in range(19):
        consumer.ack(consumer.expect_message())
    harness.close()
    harness = make(queues=queues)
    log = plugin_of(harness).queues["jobs"].log
    assert 3000 <= log.bytes <= 2 * 3100
    publisher = harness.connect("p")
    for number in range(18):
        assert log.bytes < 4 * 3100 + 3100 * number
        publisher.publish(JOBS, bytes(3000), 1, expect=0)


def test_nothing_is_sent_beyond_the_stored_reserve(make: Any) -> None:
    """After a crash, a consumer receives everything that it had already received, with a higher count. This holds even
    if no commit has ended in the meantime.
    """
    harness = make()
    publisher = harness.connect("p")
    with harness.together():
        for number in range(1500):
            publisher.publish(JOBS, b"%d" % number, 0)
    harness.advance(0.01)  # so many messages wait a moment for more of them
    consumer = harness.connect("c", auto_ack=False)
    commit = make.store.commit
    held: list[Any] = []
    make.store.commit = lambda records, done: held.append((records, done))
    consumer.send_subscribe(JOBS, 1)
    harness.settle()
    assert payloads(consumer) == []  # the first reserve waits for its commit
    make.store.commit = commit
    for records, done in held:
        commit(records, done)
    harness.settle()
    assert len(payloads(consumer)) == 100


def test_a_group_that_is_no_longer_configured(make: Make) -> None:
    both = {"name": "jobs", "groups": ["a", "b"]}
    harness = make(queues=[both])
    consumer = harness.connect("c")
    subscribe(consumer, "$share/b/$queue/jobs")
    harness.connect("p").publish(JOBS, b"1", 1)
    consumer.expect_message()
    harness.close()
    harness = make(queues=[{"name": "jobs", "groups": ["a"]}])
    assert [one["key"] for one in harness.logged("queue.group_removed")] == ["group/jobs/b"]
    harness.close()
    harness = make(queues=[both])
    consumer = harness.connect("c")
    subscribe(consumer, "$share/b/$queue/jobs")
    consumer.expect_message(JOBS, b"1")  # the new group begins with the oldest stored message


def test_a_queue_that_is_no_longer_configured(make: Make) -> None:
    harness = make()
    harness.connect("p").publish(JOBS, b"1", 1)
    harness.close()
    with pytest.raises(Exception, match="jobs contains a queue that is not configured"):
        make(queues=[{"name": "new"}])


# --- operation -------------------------------------------------------------------------------------------------------


def test_the_metrics(make: Make) -> None:
    harness = make()
    consumer, publisher = harness.connect("c", auto_ack=False), harness.connect("p")
    subscribe(consumer)
    for _ in range(3):
        publisher.publish(JOBS, b"12345", 1)
    consumer.ack(consumer.expect_message())
    harness.settle()
    found = {
        (name, labels.get("group") or labels.get("result") or ""): value
        for name, labels, value in sampled(harness)
        if value
    }
    assert found.pop(("queues_bytes", "")) > 10
    assert 0 < found.pop(("queues_fill", "")) < 0.001
    assert 0 < found.pop(("queues_oldest_seconds", "default")) < 1
    assert found == {
        ("queues_messages_total", "accepted"): 3,
        ("queues_messages_total", "delivered"): 3,
        ("queues_messages_total", "acknowledged"): 1,
        ("queues_unsettled", "default"): 2,
        ("queues_unacknowledged", "default"): 2,
        ("queues_consumers", "default"): 1,
    }


def sampled(harness: Harness) -> list[tuple[str, dict[str, str], float]]:
    """Return the current values of the plugin's metrics."""
    found: list[tuple[str, dict[str, str], float]] = []

    class Registry:
        def counter(self, name: str, help: str, read: Any) -> None:
            found.extend((name, labels, value) for labels, value in read())

        gauge = counter

    registry: Any = Registry()
    plugin_of(harness).register_metrics(registry)
    return found


def test_check_names_the_queues_that_capture(tmp_path: Path) -> None:
    queues = [{"name": "jobs"}, {"name": "all", "bindings": ["a/#", "b"]}]
    plugin = make_plugin(QueuesPlugin, {"path": str(tmp_path), "queues": queues}).plugin
    assert list(plugin.notes) == ["queue all stores the messages of all clients on a/#, b"]
