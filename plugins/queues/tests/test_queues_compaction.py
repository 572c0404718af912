"""Test compaction and searching by time in a stream's log. Crash after each change to a file."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Message, Properties
from hookmq.storage_api import CommitId
from hookmq_queues.compaction import (
    Compactor,
    key_property,
    replace_in,
)
from hookmq_queues.config import QueueConfig, RetentionConfig
from hookmq_queues.stream_log import StreamLog
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.message_frames import Entry, decode_frame
from hookmq_toolkit.segment_log import Frame

KEYS = 7


def message(number: int, key: str | None = None) -> Message:
    """Return a message of 1 KB that contains its number and has a key."""
    properties = Properties(user_property=() if key is None else (("key", key),))
    payload = b"%d " % number + bytes(1000)
    return Message("t", payload, 1, properties=properties, received_at=1000.0 + number)


def number_of(one: Message) -> int:
    return int(one.payload.split()[0])


# --- logs ------------------------------------------------------------------------------------------------------------


class Stream:
    """A stream's log in a folder. `publish` adds messages, using the keys 0 to `KEYS` - 1 in turn."""

    def __init__(self, path: Path, retention: int = 512 << 10) -> None:
        self.runtime = VirtualRuntime()
        config = QueueConfig("log", type="stream", retention=RetentionConfig(bytes=retention))
        self.log = StreamLog(config, path, self.runtime)
        self.commits = 0

    def open(self, commits: int = 0) -> "Stream":
        self.commits = commits
        self.log.recover(CommitId("s", commits))
        return self

    def publish(self, count: int, each: int = 10) -> None:
        for start in range(self.log.end, self.log.end + count, each):
            self.commits += 1
            commit = CommitId("s", self.commits)
            for number in range(start, start + each):
                self.log.append(commit, message(number, f"k{number % KEYS}"))
            self.log.flush(commit, lambda failed: None)
            self.runtime.run_until_idle()
            self.log.committed(commit)

    def compactor(self, keys: int = 1000) -> Compactor:
        return Compactor(self.log.log, key_property, keys)

    def compact(self, keys: int = 1000) -> int:
        return self.compactor(keys).run(
            lambda segment, path: replace_in(self.log.log, segment, path)
        )

    def entries(self) -> list[Entry]:
        """Return all remaining messages."""
        found: list[Entry] = []
        at = self.log.log.earliest
        while at < self.log.visible:
            for frame in self.log.log.read(at, 1 << 20):
                found += decode_frame(frame)[0]
                at = frame.end
        return found

    def numbers(self) -> list[int]:
        """Return the remaining messages' offsets, which are also their numbers."""
        found = [offset for offset, _ in self.entries()]
        assert found == [number_of(one) for _, one in self.entries()]
        return found

    def newest(self) -> int:
        """Return the first offset of the segment that is not compacted."""
        return self.log.log.segments[-1].base


def expected(end: int, newest: int) -> list[int]:
    """Return which of `end` messages compaction keeps: each key's latest message, and all messages in the newest
    segment.
    """
    return [one for one in range(end) if one >= newest - KEYS]


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    made = Stream(tmp_path).open()
    yield made
    made.log.close()


def test_only_the_newest_of_each_key_is_left(stream: Stream, tmp_path: Path) -> None:
    stream.publish(500)
    newest = stream.newest()
    assert newest > 300
    assert stream.compact() == newest - KEYS
    assert stream.numbers() == expected(500, newest)
    assert stream.compact() == 0
    stream.publish(200)
    stream.compact()
    assert stream.numbers() == expected(700, stream.newest())
    commits = stream.commits
    stream.log.close()
    again = Stream(tmp_path).open(commits)
    assert (again.log.end, again.log.earliest) == (700, 0)
    assert again.numbers() == expected(700, again.newest())
    again.log.close()


@pytest.mark.parametrize("keys", [1, 3, KEYS])
def test_memory_for_few_keys_takes_more_passes(stream: Stream, keys: int) -> None:
    stream.publish(150)
    assert stream.newest() > 50
    stream.compact(keys)
    assert stream.numbers() == expected(150, stream.newest())


def test_messages_without_a_key_stay(tmp_path: Path, stream: Stream) -> None:
    for number in range(300):
        commit = CommitId("s", number + 1)
        stream.log.append(commit, message(number, None if number % 2 else "k"))
        stream.log.flush(commit, lambda failed: None)
        stream.runtime.run_until_idle()
        stream.log.committed(commit)
    newest = stream.newest()
    stream.compact()
    last = max(one for one in range(newest) if one % 2 == 0)
    assert stream.numbers() == [one for one in range(300) if one % 2 or one >= last]


def test_compaction_waits_until_half_of_the_log_is_new(stream: Stream) -> None:
    compactor = stream.compactor()
    stream.publish(10)
    assert not compactor.due()  # the newest segment is not compacted
    stream.publish(300)
    assert compactor.due()
    compactor.run(lambda segment, path: replace_in(stream.log.log, segment, path))
    assert not compactor.due()
    for _ in range(20):
        closed = stream.log.log.segments[:-1]
        dirty = sum(one.size for one in closed if one.end > compactor.clean)
        assert compactor.due() == (2 * dirty >= sum(one.size for one in closed) and dirty > 0)
        stream.publish(20)


def test_a_segment_that_retention_deletes_meanwhile(stream: Stream) -> None:
    stream.publish(400)

    def replace(segment: Any, path: Path) -> bool:
        stream.log.log.trim(stream.newest())
        return replace_in(stream.log.log, segment, path)

    assert stream.compactor().run(replace) == 0
    assert stream.numbers() == list(range(stream.newest(), 400))
    assert not list(stream.log.log.folder.glob("*.new"))


# --- crashes ---------------------------------------------------------------------------------------------------------


class Snapshots:
    """Copies a folder before and after each call that changes files. Each copy is what would be left if the process
    were killed at that moment.
    """

    def __init__(self, folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.target = target
        self.count = 0
        self.calls: list[str] = []
        for name in ("open", "write", "fsync", "fdatasync", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._around(name, getattr(os, name)))

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            if not self._taking:
                self._take()
                self.calls.append(name)
                result = call(*arguments, **options)
                self._take()
                return result
            return call(*arguments, **options)

        return made

    _taking = False

    def _take(self) -> None:
        self._taking = True
        shutil.copytree(self.folder, self.target / str(self.count))
        self.count += 1
        self._taking = False


def test_a_crash_at_any_moment_of_compaction(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.publish(150)
    newest = stream.newest()
    target = tmp_path / "snapshots"
    with monkeypatch.context() as patched:
        snapshots = Snapshots(tmp_path / "log", target, patched)
        removed = stream.compact()
    assert removed > 80
    assert snapshots.calls.count("replace") >= 2  # one for each closed segment
    for at, name in enumerate(snapshots.calls):
        if name == "replace":  # no power cut leaves a file without its content
            assert "fsync" in snapshots.calls[max(0, at - 3) : at]
    left = set(expected(150, newest))
    counts: list[int] = []
    for number in range(snapshots.count):
        folder = tmp_path / f"restored-{number}"
        folder.mkdir()
        (target / str(number)).rename(folder / "log")
        again = Stream(folder).open(stream.commits)
        assert again.log.end == 150
        found = again.numbers()
        assert left <= set(found)
        counts.append(len(found))
        again.publish(10)  # it can go on, and compacts the rest
        again.compact()
        assert set(again.numbers()) == set(expected(160, again.newest()))
        assert not list((folder / "log").glob("*.new"))
        again.log.close()
        shutil.rmtree(folder)
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) >= 3  # before, between and after the segments


def test_a_crash_at_any_moment_of_trimming(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.publish(300)
    target = tmp_path / "snapshots"
    before = stream.log.log.earliest
    with monkeypatch.context() as patched:
        snapshots = Snapshots(tmp_path / "log", target, patched)
        stream.log.keep_from(220)
        stream.runtime.run_until_idle()
    after = stream.log.log.earliest
    assert before == 0 < after <= 220
    earliest: list[int] = []
    for number in range(snapshots.count):
        folder = tmp_path / f"restored-{number}"
        folder.mkdir()
        (target / str(number)).rename(folder / "log")
        again = Stream(folder).open(stream.commits)
        assert again.numbers() == list(range(again.log.earliest, 300))
        earliest.append(again.log.earliest)
        again.log.close()
        shutil.rmtree(folder)
    assert earliest == sorted(earliest)
    assert len(set(earliest)) >= 3
    assert (earliest[0], earliest[-1]) == (0, after)


# --- times -----------------------------------------------------------------------------------------------------------


def test_a_time_is_found_with_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(tmp_path, retention=2 << 20).open()
    stream.publish(2000, each=20)  # in 2 MB and several segments
    reads = [0]
    read = stream.log.log.read

    def counted(offset: int, size: int) -> list[Frame]:
        reads[0] += 1
        return read(offset, size)

    monkeypatch.setattr(stream.log.log, "read", counted)
    for wanted in (0, 1, 999, 1000, 1001, 1345, 1998, 1999, 2000, 9999):
        reads[0] = 0
        assert stream.log.find_time(1000.0 + wanted) == min(wanted, 2000)
        assert stream.log.find_time(999.5 + wanted) == min(wanted, 2000)
        assert reads[0] <= 2 * 20  # of 100 blocks
    stream.log.close()


def test_a_time_in_a_compacted_stream(stream: Stream) -> None:
    stream.publish(500)
    stream.compact()
    left = stream.numbers()
    for wanted in (0, 1, 250, left[0], left[3], left[-1]):
        found = stream.log.find_time(1000.0 + wanted)
        assert next(one for one in left if one >= found) == next(
            one for one in left if one >= wanted
        )
    assert stream.log.find_time(5000.0) == 500


def test_a_time_before_the_first_message_and_in_an_empty_stream(stream: Stream) -> None:
    assert stream.log.find_time(0.0) == stream.log.find_time(1e12) == 0
    stream.publish(20)
    stream.log.keep_from(15)
    assert stream.log.find_time(0.0) == stream.log.find_time(1003.0) == 15
    assert stream.log.find_time(1017.0) == 17
