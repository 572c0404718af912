"""Test following a log while another process writes and trims it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import StoreError
from hookmq.storage_api import CommitId
from hookmq_toolkit.segment_log import LogTail, SegmentLog, Trimmed


def run_blocking(work: Callable[[], Any], done: Callable[..., Any]) -> Callable[[], None]:
    done(work(), None)
    return lambda: None


class Writer:
    """A log whose segments hold about two frames."""

    def __init__(self, folder: Path) -> None:
        self.log = SegmentLog(folder, run_blocking, segment_size=300, sync=False)
        self.log.open()
        self.log.recover(CommitId("store", 0))
        self.commits = 0

    def write(self, *counts: int) -> None:
        """Write and commit a frame for each number of records."""
        for count in counts:
            self.commits += 1
            commit = CommitId("store", self.commits)
            self.log.append(commit, b"x" * 100, count)
            self.log.flush(lambda failed: None)
            self.log.committed(commit)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path)
    yield made
    made.log.close()


def offsets(tail: LogTail, offset: int, end: int, size: int = 1 << 20) -> list[int]:
    return [frame.offset for frame in tail.read(offset, end, size)]


def test_frames_are_read_across_segments_up_to_the_end(writer: Writer) -> None:
    writer.write(1, 2, 3, 4, 5)
    assert len(writer.log.segments) > 1
    tail = LogTail(writer.log.folder)
    assert offsets(tail, 0, 15) == [0, 1, 3, 6, 10]
    assert offsets(tail, 0, 10) == [0, 1, 3, 6]
    assert offsets(tail, 4, 12) == [3, 6]
    assert offsets(tail, 6, 15, 1) == [6]
    assert offsets(tail, 15, 15) == []


def test_a_tail_continues_in_segments_that_begin_later(writer: Writer) -> None:
    tail = LogTail(writer.log.folder)
    at = 0
    for count in range(1, 12):
        writer.write(count)
        assert offsets(tail, at, at + count) == [at]
        at += count


def test_a_tail_continues_after_its_segment_was_deleted(writer: Writer) -> None:
    tail = LogTail(writer.log.folder)
    writer.write(1, 1)
    assert offsets(tail, 0, 2) == [0, 1]
    writer.write(1, 1, 1, 1)
    second = writer.log.segments[1].base
    assert offsets(tail, 2, second) == list(range(2, second))
    writer.log.trim(second)
    assert offsets(tail, second, 6) == list(range(second, 6))


def test_records_that_were_deleted_are_trimmed(writer: Writer) -> None:
    writer.write(1, 1, 1, 1, 1, 1)
    tail = LogTail(writer.log.folder)
    assert offsets(tail, 0, 1) == [0]
    earliest = writer.log.segments[1].base
    writer.log.trim(earliest)
    with pytest.raises(Trimmed) as caught:
        tail.read(1 if earliest > 1 else 0, 6, 1 << 20)
    assert caught.value.earliest == earliest
    assert offsets(tail, earliest, 6) == list(range(earliest, 6))


def test_damage_is_an_error_after_the_good_frames(writer: Writer) -> None:
    writer.write(1, 1)
    (segment,) = writer.log.segments
    data = bytearray(segment.path.read_bytes())
    data[-1] ^= 1
    segment.path.write_bytes(data)
    tail = LogTail(writer.log.folder)
    assert offsets(tail, 0, 2) == [0]
    with pytest.raises(StoreError, match="record 1 is damaged or missing"):
        tail.read(1, 2, 1 << 20)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no segments"):
        LogTail(tmp_path).read(0, 1, 1)
