"""Test reading a log that another process writes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hookmq.plugin import StoreError
from hookmq.storage_api import CommitId
from hookmq_toolkit.segment_log import LogReader, SegmentLog, Trimmed, frames
from hookmq_toolkit.segment_log.frame import encode
from hookmq_toolkit.segment_log.segment import SUFFIX, beginning
from hypothesis import given, settings
from hypothesis import strategies as st


def at_once(
    call: Callable[[], object], done: Callable[[object, BaseException | None], None]
) -> Callable[[], None]:
    """Run the call at once, in place of `Runtime.run_blocking`."""
    done(call(), None)
    return lambda: None


class Written:
    """A log that is being written, and its reader. Each record contains its own number, repeated."""

    def __init__(self, folder: Path, size: int = 4096) -> None:
        self.log = SegmentLog(folder, at_once, segment_size=size)
        self.log.open()
        self.log.recover(CommitId("s", 0))
        self.commits = 0
        self.reader = LogReader(folder)

    def write(self, *counts: int, size: int = 100) -> None:
        for count in counts:
            self.commits += 1
            commit = CommitId("s", self.commits)
            self.log.append(commit, b"%d " % self.log.next * (size // 4), count)
            self.log.flush(lambda failed: None)
            self.log.committed(commit)

    def read(self, offset: int, end: int | None = None) -> list[tuple[int, int]]:
        found = frames(self.reader.segments, offset, self.log.readable if end is None else end)
        return [
            (one.offset, one.end) for one in found if one.payload.startswith(b"%d " % one.offset)
        ]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "log")


def test_frames_across_segments(written: Written) -> None:
    written.write(*[3] * 100)
    written.reader.refresh()
    assert len(written.reader.segments) > 2
    assert written.read(0) == [(at, at + 3) for at in range(0, 300, 3)]
    assert written.read(100, 106) == [(99, 102), (102, 105), (105, 108)]
    assert written.read(300) == []


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([8, 500, 9000, 400_000])), max_size=12),
    st.integers(0, 80),
    st.integers(0, 80),
)
def test_any_range(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]], a: int, b: int
) -> None:
    made = Written(tmp_path_factory.mktemp("log") / "log", 500_000)
    for count, size in writes:
        made.write(count, size=size)
    made.reader.refresh()
    every = made.read(0)
    assert [one for pair in every for one in pair[:1]] + [made.log.readable] == [0] + [
        end for _, end in every
    ]
    end = min(b, made.log.readable)
    assert made.read(a, end) == [(x, y) for x, y in every if y > a and x < end and a < end]
    made.log.close()


def test_new_records_need_no_refresh_until_a_segment_ends(written: Written) -> None:
    written.write(1)
    written.reader.refresh()
    written.write(1)
    assert written.read(0) == [(0, 1), (1, 2)]
    written.write(*[1] * 100)
    with pytest.raises(StoreError, match="are missing"):
        written.read(0)
    written.reader.refresh()
    assert len(written.read(0)) == 102


def test_deleted_files_can_still_be_read(written: Written) -> None:
    written.write(*[1] * 100)
    written.reader.refresh()
    old = written.reader.segments
    assert written.log.changes == 0
    assert written.log.trim(written.log.readable) == written.log.changes
    assert len(list(frames(old, 0, 100))) == 100
    written.reader.refresh()
    assert written.reader.segments == old[-1:]
    with pytest.raises(Trimmed) as raised:
        written.read(0)
    assert raised.value.earliest == written.log.earliest


def test_a_replaced_file_is_opened_again(written: Written) -> None:
    written.write(*[1] * 100)
    written.reader.refresh()
    first = written.log.segments[0]
    before = written.reader.segments
    path = first.path.with_name(first.path.name + ".new")
    merged = next(iter(before[0].frames(0, 1)))._replace(records=first.end)
    path.write_bytes(beginning(first.log, first.store, 0) + encode(merged, first.salt))
    assert written.log.replace(0, path)
    assert written.log.changes == 1
    written.reader.refresh()
    assert written.read(0, 2) == [(0, first.end)]
    assert written.reader.segments[1:] == before[1:]
    assert [one.offset for one in frames(before, 0, 2)] == [0, 1]


def test_places_are_about_64_kib_apart(tmp_path: Path) -> None:
    made = Written(tmp_path / "log", 1 << 20)
    made.write(*[1] * 50, size=10_000)
    made.reader.refresh()
    (segment,) = made.reader.segments
    places = segment.places(50)
    assert places[0] == 0
    assert 5 <= len(places) <= 8
    assert list(segment.places(places[2])) == list(places[:2])
    assert [one.offset for one in segment.frames(places[2], places[2] + 1)] == [places[2]]


@pytest.mark.parametrize("place", [10, 60])
def test_damage_is_found(written: Written, place: int) -> None:
    """Damage is found in a frame's header (byte 10) and in its payload (byte 60)."""
    written.write(*[1] * 20)
    segment = written.log.segments[0]
    with segment.path.open("r+b") as file:
        file.seek(segment.size - 123 + place)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    written.reader.refresh()
    assert len(written.read(0, 19)) == 19
    with pytest.raises(StoreError, match=r"is damaged at byte \d+"):
        written.read(0)


def test_a_file_that_is_not_a_segment(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}{SUFFIX}").write_bytes(b"hello")
    with pytest.raises(StoreError, match="does not begin like a segment"):
        LogReader(tmp_path).refresh()


def test_a_file_without_its_end(written: Written) -> None:
    written.write(*[1] * 100)
    first = written.log.segments[0]
    os.truncate(first.path, first.head)
    written.reader.refresh()
    with pytest.raises(StoreError, match=f"records 0 to {first.end} are missing"):
        written.read(0)
