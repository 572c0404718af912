"""Test reading a queue's log: the queue's offsets, gaps, filters, times, and a log that changes in the meantime."""

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Message, Properties, StoreError
from hookmq.storage_api import CommitId
from hookmq_spark_sink import block
from hookmq_spark_sink.queue_reading import QueueReader, QueueView
from hookmq_spark_sink.queue_state import QueueStateFile, describe_queue, read_queue_state
from hookmq_spark_sink.reading import Matcher, NotServed, Removed, Unavailable, Wanted
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.message_frames import encode_sparse
from hookmq_toolkit.message_record import encode_block
from hookmq_toolkit.queue_streams import StreamFiles
from hookmq_toolkit.segment_log import SegmentLog
from hookmq_toolkit.segment_log.frame import Frame, encode
from hookmq_toolkit.segment_log.segment import beginning

BOOT = bytes(range(16))
START = 1_700_000_000.0


def message(number: int, size: int = 100) -> Message:
    """Return message `number`, which the broker receives after `number` seconds."""
    return Message(
        f"t/{number % 3}",
        b"%d " % number + bytes(size),
        1,
        properties=Properties(user_property=(("n", str(number)),)),
        sender="me" if number % 2 else None,
        received_at=START + number,
    )


class Queue:
    """A queue's log, as the queue's plugin writes it."""

    def __init__(self, path: Path) -> None:
        self.runtime = VirtualRuntime()
        self.folder = path / "queue"
        self.stream = path / "stream"
        self.stream.mkdir()
        describe_queue(self.stream, "q")
        self.state = QueueStateFile(self.stream, BOOT)
        self.earliest = 0
        self.commits = 0
        self.log: SegmentLog
        self.begin()

    def begin(self) -> None:
        self.log = SegmentLog(self.folder, self.runtime.run_blocking, segment_size=4096)
        self.log.open()
        self.log.recover(CommitId("s", self.commits))
        self.tell()

    def tell(self, found: StreamFiles | str | None = None) -> None:
        """Report the readable part to the reader."""
        log = self.log
        files = (log.segments[-1].base, log.changes)
        now = StreamFiles(
            self.folder, log.id, self.earliest, log.readable, files, 0, ("$queue/q/#", "t/#")
        )
        self.state.write(found or now)

    def publish(self, count: int, each: int = 3, size: int = 100) -> None:
        """Publish messages in commits of `each`."""
        for start in range(self.log.next, self.log.next + count, each):
            self.commits += 1
            commit = CommitId("s", self.commits)
            run = [message(number, size) for number in range(start, start + each)]
            self.log.append(commit, encode_block(run), each)
            self.log.flush(lambda failed: None)
            self.runtime.run_until_idle()
            self.log.committed(commit)
        self.tell()

    def compact(self, kept: Callable[[int], bool]) -> None:
        """Remove messages from the closed segments."""
        for one in self.log.segments[:-1]:
            numbers = [number for number in range(one.base, one.end) if kept(number)]
            data = encode_sparse(one.base, [(number, message(number)) for number in numbers])
            frame = Frame(one.base, one.end - one.base, one.commit, 0, data)
            path = one.path.with_name(one.path.name + ".new")
            path.write_bytes(beginning(one.log, one.store, one.base) + encode(frame, one.salt))
            assert self.log.replace(one.base, path)
        self.tell()

    def reader(self) -> QueueReader:
        return QueueReader(self.stream, BOOT)

    def close(self) -> None:
        self.log.close()
        self.state.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    made = Queue(tmp_path)
    yield made
    made.close()


def blocks(view: QueueView, start: int, end: int, most: int = 1 << 30, **wanted: Any) -> Any:
    """Return the blocks of a range. Together, the blocks must cover the range without gaps."""
    found = [block.parse(one) for one in view.blocks(Wanted(0, start, end, **wanted), most)]
    assert found[0].base == start
    for before, after in pairwise(found):
        assert before.end == after.base
    return found


def rows(view: QueueView, start: int, end: int, **wanted: Any) -> list[dict[str, Any]]:
    return [row for one in blocks(view, start, end, **wanted) for row in block.rows(one)]


def numbers(found: list[dict[str, Any]]) -> list[int]:
    """Return the offsets of rows. Each payload must match its offset."""
    assert all(row["payload"].startswith(b"%d " % row["offset"]) for row in found)
    return [row["offset"] for row in found]


def test_a_message_with_all_columns(queue: Queue) -> None:
    queue.publish(3)
    view = queue.reader().refresh()
    assert (view.log_id, view.earliest, view.latest) == (queue.log.id, (0,), (3,))
    assert view.filters == ("$queue/q/#", "t/#")
    (made,) = blocks(view, 0, 3)
    assert (made.base, made.end, made.count, made.sparse) == (0, 3, 3, False)
    row = list(block.rows(made))[1]
    assert row == {
        "partition": 0, "offset": 1, "timestamp": int((START + 1) * 1e6), "qos": 1, "retain": False, "topic": "t/1",
        "payload": b"1 " + bytes(100), "client_id": "me", "content_type": None, "response_topic": None,
        "correlation_data": None, "headers": [("n", b"1")],
    }  # fmt: skip


def test_ranges_across_segments(queue: Queue) -> None:
    queue.publish(300)
    view = queue.reader().refresh()
    assert len(queue.log.segments) > 5
    for start, end in ((0, 300), (1, 2), (100, 200), (299, 300)):
        assert numbers(rows(view, start, end)) == list(range(start, end))
    assert list(view.blocks(Wanted(0, 7, 7), 100)) == []


def test_a_response_ends_after_max_bytes(queue: Queue) -> None:
    queue.publish(30, size=300_000)
    view = queue.reader().refresh()
    found = blocks(view, 0, 30, 1_000_000)
    assert 3 <= found[-1].end < 10
    assert numbers(rows(view, found[-1].end, 30))[0] == found[-1].end


def test_gaps_of_compaction(queue: Queue) -> None:
    queue.publish(300)
    reader = queue.reader()
    before = reader.refresh()
    queue.compact(lambda number: number % 7 == 0 and not 70 < number < 140)
    last = queue.log.segments[-1].base
    view = reader.refresh()
    left = [n for n in range(300) if n >= last or (n % 7 == 0 and not 70 < n < 140)]
    assert numbers(rows(view, 0, 300)) == left
    assert numbers(rows(view, 8, 15)) == [14]
    (made,) = blocks(view, 71, 100)
    assert (made.base, made.end, made.count, made.sparse) == (71, 100, 0, True)
    (made,) = blocks(view, 8, 15, columns=frozenset({block.QOS}))
    assert {column for column, _ in made.buffers} == {block.QOS, block.OFFSET}
    assert numbers(rows(before, 0, 300)) == list(range(300))  # the older view


def test_filters(queue: Queue) -> None:
    queue.publish(300)
    view = queue.reader().refresh()
    found = rows(view, 10, 290, match=Matcher(["t/2", "other"]))
    assert numbers(found) == [n for n in range(10, 290) if n % 3 == 2]
    (made,) = blocks(view, 10, 290, match=Matcher(["other"]))
    assert (made.base, made.end, made.count) == (10, 290, 0)


def test_a_search_without_a_match_reports_its_progress(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookmq_spark_sink.queue_reading._SILENCE", 10_000)
    queue.publish(300)
    view = queue.reader().refresh()
    found = blocks(view, 0, 300, match=Matcher(["other"]))
    assert len(found) > 2
    assert [one.count for one in found] == [0] * len(found)
    assert found[-1].end == 300
    first = iter([True])
    found = blocks(view, 0, 300, match=lambda topic: next(first, False))
    assert [one.count for one in found] == [1] + [0] * (len(found) - 1)
    assert found[0].end < 150


def test_times(queue: Queue) -> None:
    queue.publish(300)
    queue.compact(lambda number: number % 10 == 0)
    queue.earliest = 25
    queue.tell()
    view = queue.reader().refresh()
    assert view.earliest == (25,)
    last = queue.log.segments[-1].base

    def at(number: float) -> int | None:
        (found,) = view.at(int((START + number) * 1e6))
        return found

    left = [n for n in range(25, 300) if n >= last or n % 10 == 0]
    for number in [-1000, 0, 25, 29.5, 30, 31, 99, 100, last - 1, last, 298.5, 299]:
        assert at(number) == next(n for n in left if n >= number)
    assert at(299.5) is None


def test_the_time_of_an_empty_queue(queue: Queue) -> None:
    assert queue.reader().refresh().at(0) == [None]


def test_retention_during_a_read(queue: Queue) -> None:
    queue.publish(300, size=20_000)
    reader = queue.reader()
    view = reader.refresh()
    found = view.blocks(Wanted(0, 0, 300), 1 << 30)
    first = block.parse(next(found))
    queue.earliest = 250
    queue.log.trim(250)
    queue.tell()
    assert first.end < 250
    rest = [block.parse(one) for one in found]
    assert rest[0].base == first.end
    assert rest[-1].end == 300
    later = reader.refresh()
    assert later.earliest == (250,)
    assert numbers(rows(later, 250, 300)) == list(range(250, 300))
    with pytest.raises(Removed) as raised:
        list(later.blocks(Wanted(0, 0, 300), 1000))
    assert 240 < raised.value.earliest <= 250


def test_files_that_are_deleted_before_it_is_reported(queue: Queue) -> None:
    queue.publish(300)
    queue.log.trim(100)
    view = queue.reader().refresh()
    assert view.earliest == (queue.log.earliest,)
    assert view.earliest > (90,)


def test_the_reader_lets_go_of_deleted_files(queue: Queue) -> None:
    reader = queue.reader()
    reader.let_go()  # nothing is open yet
    queue.publish(300)
    reader.refresh()
    queue.log.trim(200)
    queue.tell()

    def deleted() -> list[str]:
        links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        folder = str(queue.folder)
        return [one for one in links if one.startswith(folder) and one.endswith(" (deleted)")]

    assert deleted()
    reader.let_go()
    assert deleted() == []
    queue.tell("there is no queue 'q'")
    with pytest.raises(NotServed):
        reader.let_go()
    assert not [one for one in reader.__dict__.values() if hasattr(one, "segments")]


def test_new_messages_and_segments(queue: Queue) -> None:
    reader = queue.reader()
    assert reader.refresh().latest == (0,)
    for count in (3, 3, 90, 3):
        before = queue.log.next
        queue.publish(count)
        view = reader.refresh()
        assert numbers(rows(view, before, before + count)) == list(range(before, before + count))


def test_another_log(queue: Queue) -> None:
    queue.publish(9)
    reader = queue.reader()
    old = reader.refresh()
    assert reader.commit("etl", {0: 5}).offsets == {0: 5}
    assert set(reader.consumers()) == {"etl"}
    queue.log.close()
    queue.tell("there is no queue 'q'")
    shutil.rmtree(queue.folder)
    with pytest.raises(NotServed, match="there is no queue 'q'"):
        reader.refresh()
    assert numbers(rows(old, 0, 9)) == list(range(9))
    queue.begin()
    queue.publish(3)
    new = reader.refresh()
    assert new.log_id not in ("", old.log_id)
    assert new.latest == (3,)
    assert reader.consumers() == {}
    assert not reader.forget("etl")


def test_files_of_another_log(queue: Queue) -> None:
    """A new log cannot be read until the broker has reported it."""
    queue.publish(9)
    before = read_queue_state(queue.stream)
    assert before is not None
    queue.log.close()
    shutil.rmtree(queue.folder)
    queue.begin()
    queue.tell(before.found)
    with pytest.raises(StoreError, match="belongs to another log"):
        queue.reader().refresh()
    queue.tell()
    assert queue.reader().refresh().latest == (0,)


def test_files_that_are_gone(queue: Queue) -> None:
    queue.publish(9)
    shutil.rmtree(queue.folder)
    with pytest.raises(StoreError, match="contains no segments"):
        queue.reader().refresh()


def test_another_run_of_the_broker(queue: Queue) -> None:
    with pytest.raises(Unavailable):
        QueueReader(queue.stream, bytes(16)).refresh()


def test_a_broker_that_is_starting(queue: Queue) -> None:
    state = QueueStateFile(queue.stream, BOOT)
    with pytest.raises(Unavailable):
        queue.reader().refresh()
    state.write(None)
    with pytest.raises(Unavailable):
        queue.reader().refresh()
    state.close()


def test_damage(queue: Queue) -> None:
    queue.publish(9)
    path = queue.log.segments[0].path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    view = queue.reader().refresh()
    assert numbers(rows(view, 0, 6)) == list(range(6))
    with pytest.raises(StoreError, match="is damaged at byte"):
        rows(view, 0, 9)


def test_a_frame_that_does_not_hold_its_messages(queue: Queue) -> None:
    commit = CommitId("s", 1)
    queue.log.append(commit, encode_block([message(0)]), 2)
    queue.log.flush(lambda failed: None)
    queue.runtime.run_until_idle()
    queue.log.committed(commit)
    queue.tell()
    with pytest.raises(StoreError, match="from offset 0 on are damaged"):
        rows(queue.reader().refresh(), 0, 2)


@pytest.mark.parametrize("data", [b"", b"HqQs", b"x" * 100, b"HqQs" + bytes(8) + b"[]"])
def test_a_damaged_state(queue: Queue, data: bytes) -> None:
    (queue.stream / "queue_state").write_bytes(data)
    assert read_queue_state(queue.stream) is None
