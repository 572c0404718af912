"""Test streams in a broker: cursors, replay, positions, retention, compaction and restarts."""

from collections.abc import Mapping
from typing import Any

import pytest
from hookmq.mqtt_api import Publish
from hookmq_queues.plugin import QueuesPlugin
from hookmq_queues.queue import Queue, SeekError
from hookmq_queues.stream import StreamQueue
from hookmq_testing import Harness, HookRecorder, MemoryClient

TOPIC = "$queue/log"


def stream(**settings: Any) -> tuple[dict[str, Any], ...]:
    """Return the configuration for one stream."""
    return ({"name": "log", "type": "stream", **settings},)


def queues_of(harness: Harness) -> Mapping[str, Queue]:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return instance.plugin.queues


def stream_of(harness: Harness) -> StreamQueue:
    queue = queues_of(harness)["log"]
    assert isinstance(queue, StreamQueue)
    return queue


def seek(harness: Harness, position: str, group: str = "default") -> int:
    """Move a group, and return its new offset. Raises the same errors as the plugin's `seek`."""
    ended: list[tuple[Any, BaseException | None]] = []
    awaitable = stream_of(harness).seek(group, position)
    harness.clock.spawn(awaitable, lambda result, error: ended.append((result, error)))
    harness.settle()
    ((result, error),) = ended
    if error is not None:
        raise error
    assert isinstance(result, int)
    return result


def publish(harness: Harness, *payloads: bytes, client: str = "p", **properties: Any) -> None:
    publisher = harness.connect(client)
    for payload in payloads:
        publisher.publish(TOPIC, payload, 1, **properties)
    publisher.drop()
    harness.settle()


def consumer(
    harness: Harness, filter: str = TOPIC, client: str = "c", **options: Any
) -> MemoryClient:
    made = harness.connect(client, **options)
    assert made.subscribe(filter, 1).codes == (1,)
    return made


def payloads(client: MemoryClient) -> list[bytes]:
    """Take the messages that a client has received."""
    client.harness.settle()
    found = [one.payload for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


# --- cursors and replay ----------------------------------------------------------------------------------------------


def test_settled_messages_stay(make: Any) -> None:
    harness = make(queues=stream(groups=["a", "b"]))
    publish(harness, *numbers(0, 5))
    one = consumer(harness, "$share/a/$queue/log", "one")
    assert payloads(one) == numbers(0, 5)
    queue = stream_of(harness)
    assert (queue.log.earliest, queue.log.end) == (0, 5)
    assert queue.dispatchers["a"].group.floor == 5
    other = consumer(harness, "$share/b/$queue/log", "other")
    assert payloads(other) == numbers(0, 5)
    assert seek(harness, "first", "a") == 0
    assert payloads(one) == numbers(0, 5)
    assert payloads(other) == []


def test_a_group_is_shared_and_its_cursor_survives(make: Any) -> None:
    harness = make(queues=stream())
    first, second = consumer(harness, client="1"), consumer(harness, client="2")
    publish(harness, *numbers(0, 10))
    found = payloads(first), payloads(second)
    assert sorted(found[0] + found[1]) == sorted(numbers(0, 10))
    assert min(map(len, found)) > 0
    harness.close()
    harness = make(queues=stream())
    publish(harness, b"10")
    assert payloads(consumer(harness)) == [b"10"]


@pytest.mark.parametrize(
    ("position", "offset"), [("first", 0), ("last", 9), ("next", 10), ("4", 4), ("10", 10)]
)
def test_positions(make: Any, position: str, offset: int) -> None:
    harness = make(queues=stream())
    publish(harness, *numbers(0, 10))
    client = consumer(harness)
    assert len(payloads(client)) == 10
    assert seek(harness, position) == offset
    publish(harness, b"10", client="q")
    assert payloads(client) == numbers(offset, 11)


def test_positions_by_time(make: Any) -> None:
    harness = make(queues=stream())
    times: list[float] = []
    for number in range(10):
        times.append(harness.clock.time())
        publish(harness, b"%d" % number)
        harness.advance(60)
    client = consumer(harness)
    assert len(payloads(client)) == 10
    for number, time in enumerate(times):
        assert seek(harness, f"@{time}") == number
        assert payloads(client) == numbers(number, 10)
        assert seek(harness, f"@{time + 30}") == number + 1
        payloads(client)
    assert seek(harness, "2000-01-01T00:00:00Z") == 0


@pytest.mark.parametrize(
    ("group", "position", "why"),
    [
        (
            "default",
            "11",
            "offset 11 is beyond the end of log: the offset of the next message is 10",
        ),
        ("default", "2999-01-01T00:00:00Z", "time in the future"),
        ("default", "start", "use first, last"),
        ("other", "first", "no group 'other'"),
    ],
)
def test_positions_that_do_not_exist(make: Any, group: str, position: str, why: str) -> None:
    harness = make(queues=stream())
    publish(harness, *numbers(0, 10))
    client = consumer(harness)
    payloads(client)
    with pytest.raises(SeekError, match=why):
        seek(harness, position, group)
    assert payloads(client) == []  # the group is where it was
    assert stream_of(harness).dispatchers["default"].group.floor == 10


def test_other_queues_cannot_seek(make: Any) -> None:
    harness = make()
    queue = queues_of(harness)["jobs"]
    ended: list[BaseException | None] = []
    harness.clock.spawn(queue.seek("default", "first"), lambda result, error: ended.append(error))
    harness.settle()
    assert "the queue jobs is not a stream" in str(ended[0])


def test_a_late_acknowledgement_does_not_settle_the_replay(make: Any) -> None:
    harness = make(queues=stream())
    client = consumer(harness, auto_ack=False)
    publish(harness, b"0", b"1")
    before = [client.expect_message(), client.expect_message()]
    assert seek(harness, "first") == 0
    after = [client.expect_message(), client.expect_message()]
    for one in before:
        client.ack(one)
    harness.settle()
    group = stream_of(harness).dispatchers["default"].group
    assert group.floor == 0
    assert list(group.leases) == [0, 1]
    for one in after:
        client.ack(one)
    harness.settle()
    assert group.floor == 2


def test_a_position_is_stored_before_seek_returns(make: Any) -> None:
    harness = make(queues=stream())
    publish(harness, *numbers(0, 10))
    client = consumer(harness)
    assert len(payloads(client)) == 10
    client.drop()
    assert seek(harness, "7") == 7
    make.crash(harness)
    client = consumer(make(queues=stream()))
    assert payloads(client) == numbers(7, 10)


def test_deliveries_after_a_seek_are_known_after_a_crash(make: Any) -> None:
    """After a crash, a message that may have been sent is sent again with a count above 1, whatever the group's
    position.
    """
    harness = make(queues=stream())
    publish(harness, *numbers(0, 10))
    fast = consumer(harness)
    assert len(payloads(fast)) == 10
    fast.drop()
    slow = consumer(harness, client="slow", auto_ack=False)
    assert seek(harness, "2") == 2
    assert payloads(slow) == numbers(2, 10)
    make.crash(harness)
    client = consumer(make(queues=stream()))
    harness = client.harness
    harness.settle()
    found = [one for one in client.unread if isinstance(one, Publish)]
    assert [one.payload for one in found] == numbers(2, 10)
    for one in found:
        assert ("delivery-count", "2") in (one.properties.user_property or ())


def test_where_a_new_group_starts(make: Any) -> None:
    harness = make(queues=stream(groups=["a"]))
    publish(harness, *numbers(0, 5))
    harness.close()
    both = stream(groups=["a", {"name": "b", "start": "next"}])
    harness = make(queues=both)
    make.crash(harness)  # the start is stored, although the group had no consumer
    harness = make(queues=stream(groups=["a", "b"], start="first"))
    publish(harness, b"5", b"6")
    assert payloads(consumer(harness, "$share/b/$queue/log", "b")) == numbers(5, 7)
    assert payloads(consumer(harness, "$share/a/$queue/log", "a")) == numbers(0, 7)


def subscribe_at(harness: Harness, client: str, start: str, group: str = "mine") -> MemoryClient:
    made = harness.connect(client)
    properties = (("consumer-group", group), ("start", start))
    codes = made.subscribe(TOPIC, 1, user_property=properties).codes
    assert codes == (1,), codes
    return made


@pytest.mark.parametrize(
    ("start", "first"), [("first", 0), ("last", 4), ("next", 5), ("3", 3), ("@{}", 2)]
)
def test_a_subscription_makes_a_group_at_a_position(make: Any, start: str, first: int) -> None:
    settings = stream(groups_on_first_use=True)
    harness = make(queues=settings)
    for number in range(5):
        publish(harness, b"%d" % number)
        if number == 1:
            start = start.format(harness.clock.time() + 1)
        harness.advance(10)
    reader = subscribe_at(harness, "c", start)
    assert payloads(reader) == numbers(first, 5)
    reader.drop()
    again = subscribe_at(harness, "d", "first")  # the group exists, so it stays where it is
    publish(harness, b"5", client="q")
    assert payloads(again) == [b"5"]


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (("6",), "start: offset 6 is beyond the end of log: the offset of the next message is 5"),
        (("@9999999999",), "start: the position is a time in the future"),
        (("soon",), "start: 'soon' is not a position"),
        (("1", "2"), "2 user properties start: expected one"),
    ],
)
def test_a_subscription_with_a_bad_start(make: Any, start: tuple[str, ...], why: str) -> None:
    harness = make(queues=stream(groups_on_first_use=True))
    publish(harness, *numbers(0, 5))
    client = harness.connect("c")
    properties = (("consumer-group", "mine"), *(("start", one) for one in start))
    answer = client.subscribe(TOPIC, 1, user_property=properties)
    assert answer.codes == (0x83,)
    assert why in (answer.properties.reason_string or "")
    assert list(stream_of(harness).dispatchers) == ["default"]


def test_a_classic_queue_takes_no_start(make: Any) -> None:
    harness = make()
    answer = harness.connect("c").subscribe("$queue/jobs", 1, user_property=(("start", "first"),))
    assert answer.codes == (0x83,)
    assert "the queue jobs is not a stream" in (answer.properties.reason_string or "")


def test_a_start_that_does_not_exist(make: Any) -> None:
    harness = make(queues=stream(start="7"))
    (logged,) = harness.logged("queue.start_unavailable")
    assert logged["group"] == "default"
    assert "offset 7 is beyond the end" in str(logged["error"])
    publish(harness, b"0")
    assert payloads(consumer(harness)) == [b"0"]


def test_messages_beyond_the_memory(make: Any) -> None:
    harness = make(queues=stream(memory=1000, groups=["a", "b"]))
    publish(harness, *numbers(0, 100))
    slow = consumer(harness, "$share/a/$queue/log", "a")
    fast = consumer(harness, "$share/b/$queue/log", "b")
    assert (payloads(slow), payloads(fast)) == (numbers(0, 100), numbers(0, 100))
    assert seek(harness, "50", "a") == 50
    assert payloads(slow) == numbers(50, 100)


# --- retention -------------------------------------------------------------------------------------------------------


def test_retention_by_number(make: Any) -> None:
    recorder = HookRecorder("on_event")
    harness = make(recorder, queues=stream(retention={"messages": 3}, groups=["a", "b"]))
    reader = consumer(harness, "$share/a/$queue/log", "a")
    publish(harness, *numbers(0, 5))
    assert payloads(reader) == numbers(0, 5)
    assert payloads(consumer(harness, "$share/b/$queue/log", "b")) == numbers(2, 5)
    assert seek(harness, "first", "a") == seek(harness, "1", "a") == 2
    assert stream_of(harness).results["missed"] == 2
    assert [
        dict(one.fields) for one in recorder.calls("on_event") if one.event == "queue.missed"
    ] == [{"queue": "log", "group": "b", "messages": 1}]
    harness.advance(60)  # the rest is reported together
    assert [one["messages"] for one in harness.logged("queue.missed")] == [1, 1]
    harness.close()
    harness = make(queues=stream(retention={"messages": 3}, groups=["a", "b"]))
    assert stream_of(harness).log.earliest == 2


def test_retention_by_age(make: Any) -> None:
    settings = stream(retention={"age": "1h"})
    harness = make(queues=settings)
    for number in range(10):
        publish(harness, b"%d" % number)
        harness.advance(600)
    queue = stream_of(harness)
    assert queue.log.earliest == 4
    assert payloads(consumer(harness)) == numbers(4, 10)
    harness.advance(1800)
    assert queue.log.earliest == 7
    assert seek(harness, "first") == 7
    harness.close()
    harness = make(queues=settings)
    assert stream_of(harness).log.earliest == 7
    assert stream_of(harness).log.log.earliest == 7  # segments end by age, too
    harness.advance(4 * 3600)  # the clock of the test began again
    publish(harness, b"10")
    assert stream_of(harness).log.earliest == 10
    harness.settle()
    assert len(stream_of(harness).log.log.segments) <= 2


def test_retention_by_size(make: Any) -> None:
    harness = make(queues=stream(retention={"bytes": "128KiB"}))
    publisher = harness.connect("p")
    for _ in range(600):
        publisher.publish(TOPIC, bytes(1000), 1)
        harness.settle()
    log = stream_of(harness).log
    assert log.bytes <= 128 << 10
    assert log.log.earliest > 100  # deleted from the disk
    before = log.earliest
    assert 110 < log.end - before < 130
    harness.close()
    harness = make(queues=stream(retention={"bytes": "128KiB"}))
    assert stream_of(harness).log.bytes <= 128 << 10


def test_retention_waits_for_a_group_within_its_bound(make: Any) -> None:
    recorder = HookRecorder("on_event")
    retention = {"bytes": "64KiB", "messages": 10, "wait_for_groups": "512KiB"}
    harness = make(recorder, queues=stream(retention=retention))
    publisher = harness.connect("p")

    def fill(count: int) -> None:
        for _ in range(count):
            publisher.publish(TOPIC, bytes(1000), 1)
        harness.settle()

    fill(300)
    queue = stream_of(harness)
    assert queue.log.earliest == 0
    assert harness.logged("queue.group_behind") == []
    fill(120)
    (logged,) = harness.logged("queue.group_behind")
    assert logged["group"] == "default"
    assert queue.results["missed"] == 0
    fill(400)
    assert queue.log.bytes <= 512 << 10
    missed = queue.results["missed"]
    assert 256 < missed < 400
    reader = consumer(harness)
    assert len(payloads(reader)) == 820 - missed
    assert queue.log.earliest == 810  # nobody needs the others any more
    harness.advance(61)
    events = [one.event for one in recorder.calls("on_event")]
    assert events[0] == "queue.group_behind"
    assert "queue.missed" in events
    assert events.count("queue.group_caught_up") == 1


def test_a_consumer_whose_message_was_deleted(make: Any) -> None:
    harness = make(queues=stream(retention={"messages": 2}))
    client = consumer(harness, auto_ack=False)
    publish(harness, b"0")
    message = client.expect_message()
    publish(harness, *numbers(1, 5), client="q")
    client.ack(message)
    harness.settle()
    assert stream_of(harness).results["missed"] > 0
    group = stream_of(harness).dispatchers["default"].group
    assert group.floor >= 3


# --- compaction ------------------------------------------------------------------------------------------------------


def fill_by_key(harness: Harness, rounds: int) -> None:
    """Fill several segments: in each round, publish one message for each of ten keys."""
    publisher = harness.connect("filler")
    for number in range(rounds):
        for key in range(10):
            publisher.publish(
                TOPIC, b"%d " % number + bytes(1000), 1, user_property=(("key", f"k{key}"),)
            )
        harness.settle()
    publisher.drop()
    harness.settle()


def received(client: MemoryClient) -> list[tuple[int, str, int]]:
    """Take the messages that a client has received. Return the offset, key and round of each."""
    client.harness.settle()
    found = []
    for one in client.unread:
        assert isinstance(one, Publish)
        properties = dict(one.properties.user_property or ())
        found.append((int(properties["offset"]), properties["key"], int(one.payload.split()[0])))
    client.unread.clear()
    return found


def test_compaction_keeps_the_newest_of_each_key_at_its_offset(make: Any) -> None:
    settings = stream(compact="key", memory=0)
    settings[0]["retention"] = {"bytes": "1MiB"}
    harness = make(queues=settings)
    fill_by_key(harness, 60)
    queue = stream_of(harness)
    assert queue.results["compacted"] > 300
    found = received(consumer(harness))
    assert len(found) == 600 - queue.results["compacted"] < 300
    for offset, key, number in found:
        assert offset == 10 * number + int(key[1:])
    assert [one[2] for one in found[-10:]] == [59] * 10
    offsets = [one[0] for one in found]
    assert offsets == sorted(offsets)
    assert queue.log.bytes < 450_000  # of about 620,000
    make.crash(harness)
    harness = make(queues=settings)
    client = consumer(harness)
    assert seek(harness, "0") == 0
    again = received(client)
    assert set(again) <= set(found)
    assert again[-10:] == found[-10:]


def test_compaction_and_a_group_in_a_gap(make: Any) -> None:
    settings = stream(compact="key", memory=0)
    settings[0]["retention"] = {"bytes": "1MiB"}
    harness = make(queues=settings)
    fill_by_key(harness, 60)
    client = consumer(harness)
    whole = received(client)
    kept = {one[0] for one in whole}
    gap = next(offset for offset in range(600) if offset not in kept and offset > 5)
    assert seek(harness, str(gap)) == gap
    assert received(client) == [one for one in whole if one[0] > gap]
    assert stream_of(harness).dispatchers["default"].backlog == 0


@pytest.mark.parametrize("order", ["fifo", "priority"])
def test_a_compacted_stream_becomes_a_classic_queue(make: Any, order: str) -> None:
    settings = stream(compact="key", memory=0)
    settings[0]["retention"] = {"bytes": "1MiB"}
    harness = make(queues=settings)
    fill_by_key(harness, 60)
    left = 600 - stream_of(harness).results["compacted"]
    assert left < 300
    harness.close()
    harness = make(queues=({"name": "log", "order": order, "memory": 0},))
    found = received(consumer(harness))
    assert len(found) == left
    assert [one[2] for one in found[-10:]] == [59] * 10


def test_a_stream_has_no_narrow_filters(make: Any) -> None:
    harness = make(queues=stream())
    assert harness.connect("c").subscribe(f"{TOPIC}/1", 1).codes == (0x8F,)


def test_compaction_by_topic(make: Any) -> None:
    settings = stream(compact="topic", memory=0, bindings=["devices/#"])
    settings[0]["retention"] = {"bytes": "512KiB"}
    harness = make(queues=settings)
    publisher = harness.connect("p")
    for number in range(300):
        publisher.publish(f"devices/{number % 3}", b"%d " % number + bytes(1000), 1)
        harness.settle()
    compacted = stream_of(harness).results["compacted"]
    assert compacted > 100
    client = consumer(harness)
    found = [int(one.split()[0]) for one in payloads(client)]
    assert len(found) + compacted == 300
    assert found[-3:] == [297, 298, 299]
