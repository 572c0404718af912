"""Test dead letters: when messages become dead letters, their properties, the single commit, and a full dead-letter
queue.
"""

from collections.abc import Callable
from typing import Any

from hookmq.mqtt_api import Publish
from hookmq.plugin import Context, Drop, Message, Plugin, hookimpl
from hookmq.storage_api import PutState
from hookmq_queues.group import Group
from hookmq_queues.plugin import QueuesPlugin
from hookmq_queues.storage import QueueLog
from hookmq_testing import Harness, HookRecorder, MemoryClient

Make = Callable[..., Harness]
QUEUES = (
    {"name": "jobs", "bindings": ["in/#"], "delivery_limit": 2, "dead_letter": "dead"},
    {"name": "dead"},
)


def properties_of(message: Publish) -> dict[str, str]:
    return dict(message.properties.user_property or ())


def plugin_of(harness: Harness) -> QueuesPlugin:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return instance.plugin


def lose(harness: Harness, times: int = 2) -> None:
    """Let a consumer take all messages and leave without acknowledging them. Repeat this `times` times."""
    for _ in range(times):
        consumer = harness.connect("bad", auto_ack=False)
        consumer.subscribe("$queue/jobs", 1)
        harness.settle()
        consumer.drop()
        harness.settle()


def dead(harness: Harness) -> MemoryClient:
    """Return a client that consumes the dead letters."""
    consumer = harness.connect("undertaker")
    consumer.subscribe("$queue/dead/#", 1)
    return consumer


class Refuses(Plugin):
    """Drops every delivery with the payload ``bad`` from the queue `jobs`."""

    @hookimpl
    def on_deliver(self, message: Message) -> Drop | None:
        bad = message.payload == b"bad" and message.topic.startswith("$queue/jobs")
        return Drop() if bad else None


def test_a_message_that_cannot_be_sent_to_its_consumer(make: Make) -> None:
    harness = make(Refuses(None, Context("refuses")), queues=QUEUES)
    publisher, consumer = harness.connect("p"), harness.connect("c", maximum_packet_size=200)
    consumer.subscribe("$queue/jobs/#", 1)
    for payload in (bytes(300), b"bad", b"good"):
        publisher.publish("$queue/jobs/a", payload, 1)
    consumer.expect_message("$queue/jobs/a", b"good")
    consumer.expect_nothing()
    harness.advance(10)
    consumer.expect_nothing()
    undertaker = dead(harness)
    for payload in (bytes(300), b"bad"):
        found = undertaker.expect_message("$queue/dead/jobs/a", payload, 1)
        assert properties_of(found)["dead-letter-reason"] == "refused"
    undertaker.expect_nothing()


def test_a_refused_message_is_not_doubled_by_a_crash(make: Any) -> None:
    """The broker ends between the commit of the dead letter and the next one."""
    harness = make(Refuses(None, Context("refuses")), queues=QUEUES)
    harness.connect("p").publish("$queue/jobs/a", b"bad", 1)
    commit = make.store.commit
    stopped: list[int] = []

    def until_dead(records: Any, done: Any) -> None:
        if stopped:
            return
        commit(records, done)
        log = plugin_of(harness).queues["dead"].log
        assert isinstance(log, QueueLog)
        if log.log.flushed:
            stopped.append(1)

    make.store.commit = until_dead
    harness.connect("c").subscribe("$queue/jobs/#", 1)
    harness.settle()
    assert stopped
    make.crash(harness)
    make.store.commit = commit
    harness = make(Refuses(None, Context("refuses")), queues=QUEUES)
    harness.connect("c").subscribe("$queue/jobs/#", 1)
    harness.settle()
    undertaker = dead(harness)
    undertaker.expect_message("$queue/dead/jobs/a", b"bad", 1)
    undertaker.expect_nothing()


def test_a_message_reaches_its_limit(make: Make) -> None:
    recorder = HookRecorder("on_event")
    harness = make(recorder, queues=QUEUES)
    publisher = harness.connect("p")
    publisher.publish(
        "$queue/jobs/a", b"x", 1, message_expiry_interval=9999,
        user_property=(("mine", "1"), ("dead-letter-id", "forged")),
    )  # fmt: skip
    lose(harness, 1)
    undertaker = dead(harness)
    undertaker.expect_nothing()
    lose(harness, 1)  # without another consumer
    message = undertaker.expect_message("$queue/dead/jobs/a", b"x", 1)
    found = properties_of(message)
    assert float(found.pop("dead-letter-time")) > 0
    assert found == {
        "mine": "1", "dead-letter-queue": "jobs", "dead-letter-group": "default", "dead-letter-id": "jobs:0",
        "dead-letter-topic": "$queue/jobs/a", "dead-letter-reason": "delivery-limit", "dead-letter-count": "2",
        "message-id": "dead:0", "group": "default", "offset": "0", "delivery-count": "1",
        "source-topic": "$queue/dead/jobs/a",
    }  # fmt: skip
    assert message.properties.message_expiry_interval is None
    assert [(one.event, dict(one.fields)) for one in recorder.calls("on_event")] == [
        (
            "queue.dead_lettered",
            {"queue": "jobs", "group": "default", "offset": 0, "deliveries": 2, "reason": "delivery-limit"},
        )
    ]  # fmt: skip
    publisher.publish("in/1", b"y", 1)
    lose(harness)
    undertaker.expect_message("$queue/dead/jobs/in/1", b"y")


def test_a_client_cannot_forge_dead_letters(make: Make) -> None:
    harness = make(queues=QUEUES)
    harness.connect("p").publish("$queue/dead", b"", 1, user_property=(("dead-letter-id", "a"),))
    assert "dead-letter-id" not in properties_of(dead(harness).expect_message())


def test_it_is_neither_lost_nor_doubled_by_a_crash(make: Any) -> None:
    """Crash before and after the commit that moves the messages is stored."""
    harness = make(queues=QUEUES)
    publisher = harness.connect("p")
    for number in range(3):
        publisher.publish("$queue/jobs", b"%d" % number, 1)
    lose(harness, 1)
    consumer = harness.connect("bad", auto_ack=False)
    consumer.subscribe("$queue/jobs", 1)
    harness.settle()
    commit = make.store.commit
    batches: list[list[Any]] = []
    make.store.commit = lambda records, done: batches.append(records)
    consumer.drop()
    harness.settle()
    states = [
        one for one in batches[0] if isinstance(one, PutState) and one.key == "group/jobs/default"
    ]
    assert not Group.decode(states[-1].value, 0, 3).unsettled
    log = plugin_of(harness).queues["dead"].log
    assert isinstance(log, QueueLog)
    assert (log.log.flushed, log.visible) == (3, 0)  # in this commit, too
    make.crash(harness)
    make.store.commit = commit
    harness = make(queues=QUEUES)
    lose(harness, 1)  # the deliveries of the last consumer were not stored
    make.crash(harness)
    harness = make(queues=QUEUES)
    lose(harness, 1)
    make.crash(harness)
    harness = make(queues=QUEUES)
    undertaker = dead(harness)
    found = [undertaker.expect_message().payload for _ in range(3)]
    undertaker.expect_nothing()
    assert sorted(found) == [b"0", b"1", b"2"]


def test_a_full_queue_takes_no_dead_letters(make: Make) -> None:
    """While the dead-letter queue is full, the messages are delivered again."""
    harness = make(queues=[QUEUES[0], {"name": "dead", "max_messages": 1}])
    publisher = harness.connect("p")
    for number in range(2):
        publisher.publish("$queue/jobs", b"%d" % number, 1)
    lose(harness, 3)
    assert len(harness.logged("queue.full")) == 1
    undertaker = dead(harness)
    undertaker.expect_message(None, b"0")
    lose(harness, 1)
    undertaker.expect_message(None, b"1")
    undertaker.expect_nothing()
