"""Test the service that tells other plugins which part of a stream they can read."""

from collections.abc import Awaitable
from typing import Any

from hookmq.mqtt_api import Publish
from hookmq_queues.plugin import QueuesPlugin
from hookmq_queues.stream import StreamQueue
from hookmq_testing import Harness
from hookmq_toolkit import queues
from hookmq_toolkit.message_frames import decode_frame
from hookmq_toolkit.queue_streams import SERVICE, QueueStreams, StreamFiles
from hookmq_toolkit.segment_log import LogReader, frames

STREAM = {"name": "log", "type": "stream", "bindings": ["in/#"]}


def streams_of(harness: Harness) -> QueueStreams:
    found = harness.handle("queues").services(SERVICE)["queues"]
    assert isinstance(found, QueueStreams)
    return found


def stream_of(harness: Harness) -> StreamQueue:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    found = instance.plugin.queues["log"]
    assert isinstance(found, StreamQueue)
    return found


def run(harness: Harness, call: Awaitable[Any]) -> Any:
    return harness.clock.run(call)


class Reader:
    """A follower that reads the messages from the files."""

    def __init__(self, harness: Harness, name: str = "log") -> None:
        self.reports: list[StreamFiles | str] = []
        self.end = streams_of(harness).follow(name, self.reports.append)

    @property
    def last(self) -> StreamFiles:
        found = self.reports[-1]
        assert isinstance(found, StreamFiles)
        return found

    def read(self) -> dict[int, bytes]:
        found = self.last
        log = LogReader(found.folder)
        log.refresh()
        assert {one.log for one in log.segments} == {found.log_id}
        entries: list[tuple[int, Any]] = []
        for one in frames(log.segments, found.earliest, found.latest):
            entries += decode_frame(one)[0]
        return {offset: one.payload for offset, one in entries if offset >= found.earliest}


def publish(harness: Harness, count: int, size: int = 0, key: bool = False) -> None:
    publisher = harness.connect("p")
    for number in range(count):
        properties = (("key", f"k{number % 10}"),) if key else ()
        payload = b"%d " % number + bytes(size)
        publisher.publish("$queue/log", payload, 1, user_property=properties)
        if number % 10 == 9:
            harness.settle()
    publisher.drop()
    harness.settle()


def test_a_follower_is_told_of_each_commit(make: Any) -> None:
    harness = make(queues=[STREAM])
    reader = Reader(harness)
    assert (reader.last.earliest, reader.last.latest) == (0, 0)
    assert reader.last.filters == ("$queue/log/#", "in/#")
    publish(harness, 2)
    assert reader.last.latest == 2
    assert reader.read() == {0: b"0 ", 1: b"1 "}
    log_id = reader.last.log_id
    harness.close()
    harness = make(queues=[STREAM])
    again = Reader(harness)
    assert (again.last.log_id, again.last.latest) == (log_id, 2)


def test_the_report_comes_before_the_acknowledgement(make: Any) -> None:
    harness = make(queues=[STREAM])
    client = harness.connect("p")
    known: list[bool] = []

    def changed(found: StreamFiles | str) -> None:
        known.append(any(not isinstance(one, Publish) for one in client.unread))

    streams_of(harness).follow("log", changed)
    client.publish("$queue/log", b"1", 1)
    harness.settle()
    assert known[1:] == [False]


def test_what_retention_deletes(make: Any) -> None:
    harness = make(queues=[{**STREAM, "retention": {"messages": 100, "bytes": "1MiB"}}])
    reader = Reader(harness)
    before = reader.last.files
    publish(harness, 600, 1000)
    assert (reader.last.earliest, reader.last.latest) == (500, 600)
    assert len(reader.read()) == 100
    log = stream_of(harness).log.log
    assert log.changes > 0  # files were deleted
    assert reader.last.files == (log.segments[-1].base, log.changes) != before
    earliest = [one.earliest for one in reader.reports if isinstance(one, StreamFiles)]
    assert earliest == sorted(earliest)


def test_what_compaction_replaces(make: Any) -> None:
    settings = {**STREAM, "compact": "key", "memory": 0, "retention": {"bytes": "1MiB"}}
    harness = make(queues=[settings])
    reader = Reader(harness)
    publish(harness, 600, 1000, key=True)
    queue = stream_of(harness)
    assert queue.results["compacted"] > 300
    assert reader.last.files[1] == queue.log.log.changes > 0
    found = reader.read()
    assert len(found) == 600 - queue.results["compacted"]
    assert all(payload.startswith(b"%d " % offset) for offset, payload in found.items())


def test_a_queue_that_is_created_and_deleted(make: Any) -> None:
    harness = make(queues=[])
    reader = Reader(harness)
    assert reader.reports == ["there is no queue 'log'"]
    manager = harness.handle("queues").services(queues.SERVICE)["queues"]
    log_ids = []
    for _ in range(2):
        run(harness, manager.create_queue("log", {"type": "stream"}))
        publish(harness, 3)
        assert len(reader.read()) == 3
        log_ids.append(reader.last.log_id)
        run(harness, manager.delete_queue("log", True))
        assert reader.reports[-1] == "there is no queue 'log'"
    assert len(set(log_ids)) == 2
    run(harness, manager.create_queue("other", {"type": "stream"}))
    assert reader.reports[-1] == "there is no queue 'log'"


def test_queues_of_other_types(make: Any) -> None:
    harness = make(queues=[{"name": "log"}, {"name": "live", "type": "ephemeral"}])
    why = "the queue {} has the type {}, but only a stream can be read"
    assert Reader(harness).reports == [why.format("log", "classic")]
    reader = Reader(harness, "live")
    assert reader.reports == [why.format("live", "ephemeral")]
    publish(harness, 1)
    assert len(reader.reports) == 1
    reader.end()


def test_nothing_is_done_for_streams_that_nobody_follows(make: Any) -> None:
    harness = make(queues=[STREAM])
    queue = stream_of(harness)

    def committed() -> Any:
        return queue.log.on_committed

    plain = committed()
    first, second = Reader(harness), Reader(harness)
    publish(harness, 1)
    assert (first.last.latest, second.last.latest) == (1, 1)
    assert committed() != plain
    first.end()
    first.end()
    publish(harness, 1)
    assert (first.last.latest, second.last.latest) == (1, 2)
    second.end()
    assert committed() == plain
    publish(harness, 1)
    assert second.last.latest == 2


def test_retention_is_applied_when_a_group_is_moved(make: Any) -> None:
    retention = {"messages": 10, "wait_for_groups": "2GiB"}
    harness = make(queues=[{**STREAM, "retention": retention}])
    reader = Reader(harness)
    publish(harness, 50)
    assert reader.last.earliest == 0
    run(harness, stream_of(harness).seek("default", "30"))
    assert reader.last.earliest == 30
    run(harness, stream_of(harness).seek("default", "next"))
    assert reader.last.earliest == 40
