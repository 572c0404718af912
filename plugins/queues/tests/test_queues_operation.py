"""Test the operations on queues (list, peek, pause, purge and redrive), and stalled consumers."""

import json
from typing import Any

import pytest
from hookmq.mqtt_api import Publish
from hookmq.plugin import MetricRegistry, TraceKind, TraceRequest
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import Harness, HookRecorder, MemoryClient
from hookmq_toolkit.queues import SERVICE, QueueError, QueueManager, RedriveRequest

WORK: Any = {"name": "work", "groups": ["a", "b"], "delivery_limit": 1, "dead_letter": "dead"}
DEAD: Any = {"name": "dead"}


def plugin_of(harness: Harness) -> QueuesPlugin:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return instance.plugin


def manager_of(harness: Harness) -> QueueManager:
    found = plugin_of(harness).offered_services[SERVICE]
    assert isinstance(found, QueueManager)
    return found


def run(harness: Harness, call: Any) -> Any:
    ended: list[Any] = []
    harness.clock.spawn(call, lambda result, error: ended.append(error or result))
    harness.settle()
    assert ended, "the call has not ended"
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def deliveries(client: MemoryClient) -> list[Publish]:
    client.harness.settle()
    found = [one for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


def payloads(client: MemoryClient) -> list[bytes]:
    return [one.payload for one in deliveries(client)]


def fill(harness: Harness, count: int, topic: str = "$queue/jobs", first: int = 0) -> None:
    publisher = harness.connect("filler")
    for number in range(first, first + count):
        publisher.publish(topic, b"%d" % number, 1, expect=0)


# --- look ---------------------------------------------------------------------------------------------------------------


def test_the_status_of_a_queue(make: Any) -> None:
    harness = make(queues=[{"name": "jobs", "groups": ["a", "b"], "prefetch": 2}, {"name": "an"}])
    manager = manager_of(harness)
    fill(harness, 3)
    consumer = harness.connect("c", auto_ack=False)
    consumer.subscribe("$queue/jobs", 1)
    consumer.ack(deliveries(consumer)[0])
    harness.advance(5)
    assert [one.name for one in manager.list_queues()] == ["an", "jobs"]
    empty = manager.show_queue("an")
    assert (empty.messages, empty.oldest, empty.groups[0].oldest) == (0, 0.0, 0.0)
    status = manager.show_queue("jobs")
    assert (status.messages, status.end, status.full, status.paused) == (3, 3, False, False)
    assert status.oldest is not None
    assert 5 <= status.oldest < 6
    assert (status.counts["accepted"], status.counts["delivered"]) == (3, 3)
    first, second = status.groups
    assert (first.unsettled, first.unacknowledged, first.next, first.consumer_count) == (2, 2, 3, 1)
    assert [(one.client_id, one.unacknowledged, one.stalled) for one in first.consumers] == [
        ("c", 2, False)
    ]
    assert (second.unsettled, second.next, second.consumer_count) == (3, 0, 0)
    json.dumps(dict(status.settings))
    with pytest.raises(QueueError, match="there is no queue 'none'"):
        manager.show_queue("none")


@pytest.mark.parametrize(
    ("mode", "active"), [("single_active", [True, False]), ("shared", [True, True])]
)
def test_the_active_consumer_is_told(make: Any, mode: str, active: list[bool]) -> None:
    harness = make(queues=[{"name": "jobs", "consumers": mode}])
    first, second = harness.connect("first"), harness.connect("second")
    first.subscribe("$queue/jobs", 1)
    second.subscribe("$queue/jobs", 1)

    def consumers() -> list[tuple[str, bool]]:
        group = manager_of(harness).show_queue("jobs").groups[0]
        return [(one.client_id, one.active) for one in group.consumers]

    assert consumers() == list(zip(["first", "second"], active, strict=True))
    first.disconnect()
    assert consumers() == [("second", True)]


def test_the_age_of_a_message_on_disk_is_known(make: Any) -> None:
    harness = make()
    fill(harness, 2)
    make.crash(harness)
    harness = make()
    manager = manager_of(harness)
    harness.advance(7)
    manager.show_queue("jobs")  # reads the message, if it is not in memory
    harness.settle()
    found = manager.show_queue("jobs").oldest
    assert found is not None
    assert found >= 7


def test_peek_leases_nothing_and_pages(make: Any) -> None:
    harness = make(queues=[{"name": "jobs", "prefetch": 1, "memory": 0}])
    manager = manager_of(harness)
    fill(harness, 5)
    consumer = harness.connect("c", auto_ack=False)
    consumer.subscribe("$queue/jobs", 1)
    assert payloads(consumer) == [b"0"]
    page = run(harness, manager.peek_queue("jobs", "", None, 2))
    assert [(one.offset, one.state, one.deliveries, one.client_id) for one in page.items] == [
        (0, "unacknowledged", 1, "c"), (1, "waiting", 0, None),
    ]  # fmt: skip
    assert page.items[1].message.payload == b"1"
    page = run(harness, manager.peek_queue("jobs", "default", page.cursor, 100))
    assert ([one.offset for one in page.items], page.cursor) == ([2, 3, 4], None)
    assert run(harness, manager.peek_queue("jobs", "", 4, 100)).items == []
    assert manager.show_queue("jobs").groups[0].unacknowledged == 1
    with pytest.raises(QueueError, match="the queue jobs has no group 'x', only: default"):
        run(harness, manager.peek_queue("jobs", "x", None, 1))


# --- pause --------------------------------------------------------------------------------------------------------------


def test_a_paused_group_gets_nothing_even_after_a_restart(make: Any) -> None:
    queues = [{"name": "jobs", "groups": ["a", "b"]}]
    harness = make(queues=queues)
    manager = manager_of(harness)
    run(harness, manager.pause_queue("jobs", "a", True))
    run(harness, manager.pause_queue("jobs", "a", True))
    a, b = harness.connect("a"), harness.connect("b")
    a.subscribe("$share/a/$queue/jobs", 1)
    b.subscribe("$share/b/$queue/jobs", 1)
    fill(harness, 1)
    assert (payloads(a), payloads(b)) == ([], [b"0"])
    assert [one.paused for one in manager.show_queue("jobs").groups] == [True, False]
    make.crash(harness)
    harness = make(queues=queues)
    manager = manager_of(harness)
    a = harness.connect("a")
    a.subscribe("$share/a/$queue/jobs", 1)
    assert payloads(a) == []
    run(harness, manager.pause_queue("jobs", "", True))
    run(harness, manager.pause_queue("jobs", "a", False))
    assert payloads(a) == []
    assert manager.show_queue("jobs").paused
    run(harness, manager.pause_queue("jobs", "", False))
    assert payloads(a) == [b"0"]
    assert [one["group"] for one in harness.logged("queue.resumed")] == ["a", None]
    with pytest.raises(QueueError, match="no group 'x'"):
        run(harness, manager.pause_queue("jobs", "x", True))


def test_a_group_that_a_client_makes_in_a_paused_queue_is_paused(make: Any) -> None:
    harness = make(queues=[{"name": "jobs", "groups_on_first_use": True}])
    manager = manager_of(harness)
    run(harness, manager.pause_queue("jobs", "", True))
    consumer = harness.connect("c")
    consumer.subscribe("$share/new/$queue/jobs", 1)
    fill(harness, 1)
    assert payloads(consumer) == []
    run(harness, manager.pause_queue("jobs", "", False))
    assert payloads(consumer) == [b"0"]


# --- purge --------------------------------------------------------------------------------------------------------------


def test_purge_drops_what_no_consumer_has(make: Any) -> None:
    queues = [{"name": "jobs", "groups": ["a", "b"], "prefetch": 1}, {"name": "other"}]
    harness = make(queues=queues)
    manager = manager_of(harness)
    fill(harness, 4)
    fill(harness, 1, "$queue/other")
    consumer = harness.connect("c", auto_ack=False)
    consumer.subscribe("$queue/jobs", 1)
    (delivery,) = deliveries(consumer)
    assert run(harness, manager.purge_queue("jobs", "a")) == 3
    assert [one.unsettled for one in manager.show_queue("jobs").groups] == [1, 4]
    fill(harness, 1, first=9)
    consumer.ack(delivery)
    assert payloads(consumer) == [b"9"]
    assert run(harness, manager.purge_queue("jobs", "")) == 5
    status = manager.show_queue("jobs")
    assert (status.messages, status.counts["purged"]) == (1, 8)
    assert manager.show_queue("other").messages == 1
    make.crash(harness)
    assert [one.unsettled for one in manager_of(make(queues=queues)).show_queue("jobs").groups] == [
        1,
        0,
    ]


# --- seek ---------------------------------------------------------------------------------------------------------------


def test_seek(make: Any) -> None:
    harness = make(queues=[{"name": "jobs"}, {"name": "events", "type": "stream"}])
    manager = manager_of(harness)
    fill(harness, 3, "$queue/events")
    assert run(harness, manager.seek_queue("events", "default", "2")) == 2
    assert manager.show_queue("events").groups[0].next == 2
    with pytest.raises(QueueError, match="is not a stream") as raised:
        run(harness, manager.seek_queue("jobs", "default", "first"))
    assert (raised.value.reason, raised.value.field) == ("invalid", "position")
    with pytest.raises(QueueError):
        run(harness, manager.seek_queue("events", "default", "yesterday"))
    with pytest.raises(QueueError, match="no group ''"):
        run(harness, manager.seek_queue("events", "", "first"))


# --- redrive ------------------------------------------------------------------------------------------------------------


def kill(harness: Harness, count: int, topic: str = "$queue/work", share: str = "a") -> None:
    """Turn `count` messages into a group's dead letters."""
    fill(harness, count, topic)
    consumer = harness.connect("victim", auto_ack=False)
    consumer.subscribe(f"$share/{share}/$queue/work", 1)
    harness.settle()
    consumer.drop()
    harness.settle()


def redrive(harness: Harness, **request: Any) -> Any:
    manager = manager_of(harness)
    manager.start_redrive("dead", RedriveRequest(**request))
    for _ in range(200):
        harness.advance(0.5)
        status = manager.redrive_status("dead")
        if status.state != "running":
            return status
    return status


def test_dead_letters_return_to_their_group_only(make: Any) -> None:
    harness = make(queues=[WORK, DEAD])
    other = harness.connect("other")
    other.subscribe("$share/b/$queue/work/#", 1)
    kill(harness, 3, "$queue/work/x")
    assert payloads(other) == [b"0", b"1", b"2"]
    manager = manager_of(harness)
    assert manager.show_queue("dead").messages == 3
    status = redrive(harness)
    assert (status.state, status.moved, status.skipped, status.examined, status.total) == (
        "done",
        3,
        0,
        3,
        3,
    )
    assert manager.show_queue("dead").messages == 0
    consumer = harness.connect("c")
    consumer.subscribe("$share/a/$queue/work/#", 1)
    found = deliveries(consumer)
    assert [(one.topic, one.payload) for one in found] == [
        ("$queue/work/x", b"%d" % n) for n in range(3)
    ]
    names = {name for name, _ in found[0].properties.user_property or ()}
    assert not any(name.startswith("dead-letter-") or name == "redrive-group" for name in names)
    assert payloads(other) == []
    assert [one.unsettled for one in manager.show_queue("work").groups] == [0, 0]
    assert manager.show_queue("dead").counts["redriven"] == 3


def test_a_redrive_is_neither_lost_nor_doubled_by_a_crash(make: Any) -> None:
    """If the broker crashes before the commit of a redrive is stored, each message is still a dead letter, exactly
    once.
    """
    harness = make(queues=[WORK, DEAD])
    kill(harness, 3)
    store = make.store
    commit = store.commit
    store.commit = lambda records, done: None
    manager_of(harness).start_redrive("dead", RedriveRequest())
    harness.settle()
    make.crash(harness)
    store.commit = commit
    harness = make(queues=[WORK, DEAD])
    manager = manager_of(harness)
    assert manager.show_queue("dead").messages == 3
    assert [one.unsettled for one in manager.show_queue("work").groups] == [0, 3]
    assert redrive(harness).moved == 3
    make.crash(harness)
    harness = make(queues=[WORK, DEAD])
    manager = manager_of(harness)
    assert manager.show_queue("dead").messages == 0
    assert [one.unsettled for one in manager.show_queue("work").groups] == [3, 6]
    consumer = harness.connect("c")
    consumer.subscribe("$share/b/$queue/work", 1)
    assert sorted(payloads(consumer)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("request_", "moved"),
    [
        ({"topic": "$queue/work/x"}, 2),
        ({"topic": "$queue/work/+"}, 3),
        ({"topic": "other/#"}, 0),
        ({"reason": "delivery-limit"}, 3),
        ({"reason": "rejected"}, 0),
        ({"queue": "work"}, 3),
        ({"queue": "dead"}, 0),
        ({"older_than": 1000.0}, 0),
        ({"older_than": 1.0}, 3),
        ({"limit": 2}, 2),
        ({"group": "default", "topic": "$queue/work/y"}, 1),
    ],
)
def test_filters_of_a_redrive(make: Any, request_: Any, moved: int) -> None:
    harness = make(queues=[WORK, DEAD])
    kill(harness, 2, "$queue/work/x")
    kill(harness, 1, "$queue/work/y")
    harness.advance(10)
    status = redrive(harness, **request_)
    assert (status.state, status.moved) == ("done", moved)
    assert manager_of(harness).show_queue("dead").messages == 3 - moved


@pytest.mark.parametrize("order", ["fifo", "priority", "by_key"])
def test_what_a_redrive_leaves_is_still_delivered(make: Any, order: str) -> None:
    """After a redrive moves some messages, the remaining ones are still delivered, whatever the queue's order."""
    harness = make(queues=[WORK, {**DEAD, "order": order}])
    for topic in ("keep", "move", "keep", "move"):
        kill(harness, 1, f"$queue/work/{topic}")
    assert redrive(harness, topic="$queue/work/move").moved == 2
    consumer = harness.connect("c")
    consumer.subscribe("$queue/dead/#", 1)
    found = [one.topic for one in deliveries(consumer)]
    assert found == ["$queue/dead/work/keep"] * 2
    assert manager_of(harness).show_queue("dead").messages == 0


def test_the_rate_of_a_redrive_and_stopping_it(make: Any) -> None:
    harness = make(queues=[WORK, DEAD])
    kill(harness, 20)
    manager = manager_of(harness)
    manager.start_redrive("dead", RedriveRequest(rate=2.0))
    harness.advance(4)
    assert 8 <= manager.redrive_status("dead").moved <= 10
    with pytest.raises(QueueError, match="a redrive of dead is running"):
        manager.start_redrive("dead", RedriveRequest())
    status = manager.stop_redrive("dead")
    assert status.state == "stopped"
    harness.advance(10)
    assert manager.redrive_status("dead").moved == status.moved
    assert manager.show_queue("dead").messages == 20 - status.moved
    with pytest.raises(QueueError, match="no redrive of dead is running"):
        manager.stop_redrive("dead")
    with pytest.raises(QueueError, match="not a topic filter"):
        manager.start_redrive("dead", RedriveRequest(topic="a#"))
    with pytest.raises(
        QueueError, match="expected one of delivery-limit, rejected, expired, found 'reject'"
    ):
        manager.start_redrive("dead", RedriveRequest(reason="reject"))
    assert manager.redrive_status("work").state == "idle"


def test_messages_that_cannot_be_redriven_are_skipped(make: Any) -> None:
    harness = make(queues=[WORK, DEAD])
    kill(harness, 1)
    forged = (
        ("dead-letter-queue", "work"),
        ("dead-letter-topic", "$queue/work"),
        ("dead-letter-group", "a"),
    )
    harness.connect("p").publish("$queue/dead", b"forged", 1, expect=0, user_property=forged)
    status = redrive(harness)
    assert (status.moved, status.skipped, status.note) == (
        1,
        1,
        "the message 1 is not a dead letter",
    )
    kill(harness, 1)
    consumer = harness.connect("c", auto_ack=False)
    consumer.subscribe("$queue/dead", 1)
    harness.settle()
    status = redrive(harness)
    assert (status.moved, status.skipped) == (0, 3)
    assert "a consumer has the message" in status.note


def test_a_redrive_waits_for_room(make: Any) -> None:
    harness = make(queues=[{**WORK, "groups": ["a"], "max_messages": 2}, DEAD])
    kill(harness, 2)
    fill(harness, 2, "$queue/work")
    manager = manager_of(harness)
    manager.start_redrive("dead", RedriveRequest())
    harness.advance(2)
    status = manager.redrive_status("dead")
    assert (status.state, status.waiting_for, status.moved) == ("running", "work", 0)
    run(harness, manager.purge_queue("work", ""))
    harness.advance(2)
    status = manager.redrive_status("dead")
    assert (status.state, status.waiting_for, status.moved) == ("done", "", 2)


# --- consumers that are stalled -----------------------------------------------------------------------------------------


def test_a_stalled_consumer_is_reported_once(make: Any) -> None:
    recorder = HookRecorder("on_event")
    harness = make(recorder, queues=[{"name": "jobs", "visibility_timeout": 10}])
    manager = manager_of(harness)
    fill(harness, 1)
    consumer = harness.connect("slow", auto_ack=False)
    consumer.subscribe("$queue/jobs", 1)
    for _ in range(5):
        harness.advance(10.1)
    found = harness.logged("consumer.stalled")
    assert len(found) == 1
    assert (found[0]["client_id"], found[0]["queue"], found[0]["group"], found[0]["timed_out"]) == (
        "slow", "jobs", "default", 3,
    )  # fmt: skip
    events = [one for one in recorder.calls("on_event") if one.event == "consumer.stalled"]
    assert len(events) == 1
    assert manager.show_queue("jobs").groups[0].stalled == 1
    assert manager.show_queue("jobs").groups[0].consumers[0].stalled
    consumer.ack(deliveries(consumer)[-1])
    harness.settle()
    assert manager.show_queue("jobs").groups[0].stalled == 0


def test_a_consumer_that_can_take_no_more_is_stalled_at_once(make: Any) -> None:
    harness = make(queues=[{"name": "jobs", "visibility_timeout": 10, "prefetch": 1}])
    fill(harness, 2)
    consumer = harness.connect("slow", auto_ack=False)
    consumer.subscribe("$queue/jobs", 1)
    harness.settle()
    harness.advance(10.1)
    assert len(harness.logged("consumer.stalled")) == 1


def test_a_consumer_that_is_late_once_is_not_stalled(make: Any) -> None:
    harness = make(queues=[{"name": "jobs", "visibility_timeout": 10}])
    consumer = harness.connect("slow", auto_ack=False)
    consumer.subscribe("$queue/jobs", 1)
    for _ in range(5):
        fill(harness, 1)
        harness.advance(10.1)
        consumer.ack(deliveries(consumer)[-1])
        harness.settle()
    assert harness.logged("consumer.stalled") == []


# --- metrics and traces -------------------------------------------------------------------------------------------------


def test_metrics_of_operation(make: Any) -> None:
    queues = [{"name": "jobs", "visibility_timeout": 10, "prefetch": 1, "max_messages": 4}]
    harness = make(queues=queues)
    fill(harness, 2)
    consumer = harness.connect("c", auto_ack=False)
    consumer.subscribe("$queue/jobs", 1)
    harness.settle()
    harness.advance(11)
    run(harness, manager_of(harness).pause_queue("jobs", "default", True))
    registry = MetricRegistry()
    plugin_of(harness).register_metrics(registry)
    values = registry.values()
    labels = '{group="default",queue="jobs"}'
    assert values[f"queues_stalled_consumers{labels}"] == 1
    assert values[f"queues_paused{labels}"] == 1
    assert 11 <= values[f"queues_oldest_seconds{labels}"] < 12
    assert values['queues_fill{queue="jobs"}'] == 0.5


def test_a_trace_shows_the_way_of_a_message_through_a_queue(make: Any) -> None:
    """The traces of the publisher and the consumer show the PUBLISH, the queue that stores it, the delivery and the
    acknowledgement.
    """
    harness = make()
    publisher, consumer = harness.connect("p"), harness.connect("c")
    consumer.subscribe("$queue/jobs/#", 1)
    traces = [harness.handle("queues").trace(TraceRequest(client_id=one)) for one in ("p", "c")]
    harness.settle()
    publisher.publish("$queue/jobs/x", b"1", 1, expect=0)
    assert payloads(consumer) == [b"1"]
    found: list[Any] = []

    async def read(trace: Any) -> None:
        trace.stop()
        found.append([one async for one in trace])

    for trace in traces:
        run(harness, read(trace))
    published, delivered = found
    assert [one.name for one in published if one.kind is TraceKind.RECEIVED] == ["PUBLISH"]
    (route,) = (one for one in published if one.kind is TraceKind.ROUTE)
    assert (route.topic, route.fields["journals"]) == ("$queue/jobs/x", ["queues: queue jobs"])
    calls = [one for one in published if one.kind is TraceKind.HOOK and one.name == "on_publish"]
    assert [one.fields["plugin"] for one in calls] == ["queues"]
    assert [(one.name, one.topic) for one in delivered if one.kind is TraceKind.SENT][:1] == [
        ("PUBLISH", "$queue/jobs/x")
    ]
    assert "PUBACK" in [one.name for one in delivered if one.kind is TraceKind.RECEIVED]
