"""Test that the segmented log fulfills the journal contract, and that it distinguishes a crash from damage."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hookmq.plugin import Journal, Message, StoreError
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_testing.contracts import JournalContract
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.segment_log import SegmentLog, Trimmed
from hookmq_toolkit.segment_log.frame import Frame, encode
from hookmq_toolkit.segment_log.segment import SUFFIX, beginning
from hypothesis import given, settings
from hypothesis import strategies as st


def run(
    call: Callable[[], object], done: Callable[[object, BaseException | None], None]
) -> Callable[[], None]:
    """Run the call at once, in place of `Runtime.run_blocking`."""
    try:
        result = call()
    except Exception as error:
        done(None, error)
    else:
        done(result, None)
    return lambda: None


class LogJournal:
    """A minimal journal built on a log."""

    name = "log"

    def __init__(self, folder: Path, runtime: VirtualRuntime, **options: int) -> None:
        self.log = SegmentLog(folder, runtime.run_blocking, segment_size=options.get("size", 64))
        self.log.open()
        self.last = CommitId("", 0)

    def wants(self, topic: str) -> bool:
        return True

    def append(self, commit: CommitId, message: Message) -> None:
        self.log.append(commit, message.payload)

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        def flushed(result: StoreFailed | None) -> None:
            self.log.committed(commit)
            done(result)

        self.log.flush(flushed)

    def recover(self, last: CommitId) -> None:
        self.log.recover(last)


class TestJournalOnALog(JournalContract):
    """Check the journal contract on a log that begins a segment for nearly every message."""

    @pytest.fixture(autouse=True)
    def _runtime(self) -> None:
        self.runtime = VirtualRuntime()

    def open(self) -> Journal:
        return LogJournal(self.folder / "log", self.runtime)

    def close(self, journal: Journal) -> None:
        assert isinstance(journal, LogJournal)
        journal.log.close()

    def payloads(self, journal: Journal) -> list[bytes]:
        assert isinstance(journal, LogJournal)
        return payloads(journal.log)

    def settle(self) -> None:
        self.runtime.run_until_idle()


def payloads(log: SegmentLog, offset: int = 0) -> list[bytes]:
    return [frame.payload for frame in log.read(offset, 1 << 30)]


class Folder:
    """A log's folder, which tests can close and reopen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = SegmentLog(path, run)

    def open(self, last: int = 0, store: str = "s", **options: int | bool) -> SegmentLog:
        self.log.close()
        self.log = SegmentLog(self.path, run, **options)  # type: ignore[arg-type]
        self.log.open()
        self.log.recover(CommitId(store, last))
        return self.log

    def add(self, commit: int, *contents: bytes, store: str = "s") -> None:
        for content in contents:
            self.log.append(CommitId(store, commit), content)
        told: list[StoreFailed | None] = []
        self.log.flush(told.append)
        assert told == [None]
        self.log.committed(CommitId(store, commit))

    def files(self) -> list[Path]:
        return sorted(self.path.glob("*" + SUFFIX))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "log")
    yield made
    made.log.close()


def test_records_are_numbered_through(folder: Folder) -> None:
    log = folder.open()
    assert log.append(CommitId("s", 1), b"three", 3) == 0
    assert log.append(CommitId("s", 1), b"one") == 3
    assert (log.next, log.flushed, log.readable) == (4, 0, 0)
    folder.add(1)
    assert (log.next, log.flushed, log.readable) == (4, 4, 4)
    assert [(f.offset, f.records) for f in log.read(0, 1000)] == [(0, 3), (3, 1)]
    assert [f.offset for f in log.read(2, 1)] == [0]
    assert [f.offset for f in log.read(3, 1)] == [3]
    assert log.read(4, 1000) == []


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda file: file.unlink(), "No such file"),
        (lambda file: shutil.rmtree(file.parent), "No such file"),
        (lambda file: file.parent.rename(file.parent.with_name("away")), "No such file"),
        (lambda file: file.rename(file.with_name("old")), "No such file"),
        (lambda file: Path(shutil.copy(file, file.with_name("new"))).replace(file), "was replaced"),
    ],
)  # fmt: skip
def test_a_flush_to_a_file_changed_from_outside_fails(
    folder: Folder, sync: bool, harm: Callable[[Path], object], said: str
) -> None:
    log = folder.open(sync=sync)
    folder.add(1, b"before")
    harm(folder.files()[-1])
    log.append(CommitId("s", 2), b"after")
    told: list[StoreFailed | None] = []
    log.flush(told.append)
    log.flush(told.append)
    for failed in told:
        assert failed is not None
        assert said in failed.reason
        assert str(folder.path) in failed.reason
    assert len(told) == 2
    assert log.flushed == 1  # nothing more was reported as flushed


def test_readers_see_what_the_store_committed(folder: Folder) -> None:
    log = folder.open()
    log.append(CommitId("s", 1), b"1")
    log.append(CommitId("s", 2), b"2")
    log.flush(lambda _: None)
    assert payloads(log) == []
    log.committed(CommitId("s", 1))
    assert payloads(log) == [b"1"]
    log.committed(CommitId("s", 2))
    assert payloads(log) == [b"1", b"2"]


def test_records_of_no_commit_share_the_fate_of_those_before(folder: Folder) -> None:
    log = folder.open()
    log.append(None, b"alone")
    log.flush(lambda _: None)
    assert payloads(log) == [b"alone"]
    log.append(CommitId("s", 1), b"1")
    log.append(None, b"after 1")
    log.flush(lambda _: None)
    assert payloads(log) == [b"alone"]
    assert payloads(folder.open(last=0)) == [b"alone"]


def test_one_flush_at_a_time_and_one_sync_for_all_who_waited(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    log = SegmentLog(tmp_path, runtime.run_blocking)
    log.open()
    log.recover(CommitId("s", 0))
    told: list[int] = []
    log.append(CommitId("s", 1), b"1")
    log.flush(lambda _: told.append(1))
    for number in (2, 3):
        log.append(CommitId("s", number), b"%d" % number)
        log.flush(lambda _, number=number: told.append(number))  # type: ignore[misc]
    assert told == []
    runtime.run_until_idle()
    assert told == [1, 2, 3]
    assert (log.syncs, log.next) == (2, 3)
    log.close()


@pytest.mark.parametrize("verify", [True, False])
def test_segments_are_begun_and_read_across(folder: Folder, verify: bool) -> None:
    folder.open(segment_size=200)
    for number in range(1, 21):
        folder.add(number, b"%d" % number * 20)
    assert len(folder.files()) > 5
    log = folder.open(last=20, segment_size=200, verify=verify)
    assert [f.offset for f in log.read(0, 1 << 20)] == list(range(20))
    for offset in range(20):
        (frame,) = log.read(offset, 1)
        assert (frame.offset, frame.payload) == (offset, b"%d" % (offset + 1) * 20)


def test_the_index_finds_frames_far_inside(folder: Folder) -> None:
    log = folder.open()
    for number in range(1, 9):
        folder.add(number, *(b"%05d" % i * 2000 for i in range(20)))
    assert len(log.segments[0].positions) > 10
    for offset in (0, 1, 57, 100, 159):
        (frame,) = log.read(offset, 1)
        assert (frame.offset, frame.payload[:5]) == (offset, b"%05d" % (offset % 20))


def test_trimming_deletes_whole_segments_and_says_so(folder: Folder) -> None:
    log = folder.open(segment_size=200)
    for number in range(1, 11):
        folder.add(number, b"x" * 100)
    second = log.segments[1].base
    assert log.trim(second - 1) == 0
    assert log.trim(second) == 1
    assert (log.earliest, len(folder.files())) == (second, len(log.segments))
    with pytest.raises(Trimmed) as raised:
        log.read(0, 100)
    assert raised.value.earliest == second
    left = len(log.segments)
    assert log.trim(1000) == left - 1
    assert len(folder.files()) == 1
    identity, end = log.id, log.next
    log = folder.open(last=10)
    assert (log.id, log.next) == (identity, end)


def test_a_segment_is_begun_when_it_is_asked_for(folder: Folder) -> None:
    log = folder.open()
    log.roll = True
    folder.add(1, b"1")  # the first segment was still empty
    folder.add(2, b"2")
    folder.add(3, b"3")
    assert [(one.base, one.end) for one in log.segments] == [(0, 1), (1, 3)]
    assert payloads(folder.open(last=3)) == [b"1", b"2", b"3"]


def test_a_flush_without_records_begins_a_segment_that_is_asked_for(folder: Folder) -> None:
    log = folder.open()
    folder.add(1, b"1")
    folder.add(2, b"2")
    log.roll = True
    for _ in range(2):
        told: list[StoreFailed | None] = []
        log.flush(told.append)
        assert told == [None]
    assert [(one.base, one.end) for one in log.segments] == [(0, 2), (2, 2)]
    assert payloads(folder.open(last=2)) == [b"1", b"2"]
    # The empty segment does not hide records that the store has not committed.
    log = folder.open(last=1)
    assert [(one.base, one.end) for one in log.segments] == [(0, 1)]
    folder.add(2, b"again")
    assert payloads(folder.open(last=2)) == [b"1", b"again"]


def reframed(log: SegmentLog, number: int, end: int | None = None) -> Path:
    """Rewrite the records of a segment as one frame and return its file."""
    old = log.segments[number]
    frames = [frame for _, frame in old.frames(old.head)]
    records = (old.end if end is None else end) - old.base
    payload = b"|".join(frame.payload for frame in frames)
    one = Frame(old.base, records, frames[-1].commit, frames[-1].synced, payload)
    path = old.path.with_name(old.path.name + ".new")
    path.write_bytes(beginning(old.log, old.store, old.base) + encode(one, old.salt))
    return path


def test_a_segment_is_replaced_by_one_that_holds_the_same(folder: Folder) -> None:
    log = folder.open(segment_size=200)
    for number in range(1, 11):
        folder.add(number, b"%d" % number * 50)
    old = log.segments[1]
    reader = old.frames(old.head)
    first = next(reader)[1]
    assert log.replace(old.base, reframed(log, 1)) is True
    assert first.end < next(reader)[1].end <= old.end  # a reader of the old one continues
    (frame,) = log.read(old.base + 1, 1)
    assert (frame.offset, frame.end, frame.payload[:50]) == (old.base, old.end, first.payload[:50])
    before = [f.offset for f in log.read(0, 1 << 20)]
    log = folder.open(last=10, segment_size=200)
    assert [f.offset for f in log.read(0, 1 << 20)] == before
    assert log.next == 10


def test_only_the_same_records_replace_a_segment(folder: Folder) -> None:
    log = folder.open(segment_size=200)
    for number in range(1, 11):
        folder.add(number, b"%d" % number * 50)
    with pytest.raises(StoreError, match="does not have the same records"):
        log.replace(log.segments[0].base, reframed(log, 0, log.segments[0].end + 1))
    path = reframed(log, 0)
    flip(path, -1)
    with pytest.raises(StoreError, match="is damaged"):
        log.replace(log.segments[0].base, path)
    last = reframed(log, -1)
    assert log.replace(log.segments[-1].base, last) is False
    assert not last.exists()
    gone = reframed(log, 0)
    log.trim(log.segments[1].base)
    assert log.replace(0, gone) is False
    assert not gone.exists()


def test_a_segment_deleted_under_a_reader_is_trimmed(folder: Folder) -> None:
    log = folder.open(segment_size=100)
    for number in range(1, 5):
        folder.add(number, b"x" * 100)
    folder.files()[0].unlink()
    with pytest.raises(Trimmed) as raised:
        log.read(0, 100)
    assert raised.value.earliest == log.segments[1].base


def test_sealed_records_need_no_commit(folder: Folder) -> None:
    log = folder.open(3)
    log.append(CommitId("s", 4), b"a")
    told: list[StoreFailed | None] = []
    log.seal(told.append)
    assert (told, log.readable) == ([None], 1)
    log.append(CommitId("s", 4), b"b")
    log.flush(told.append)
    assert (log.readable, log.sealable) == (1, False)
    log.close()
    # The store has not made commit 4.
    log = folder.open(3)
    assert [frame.payload for frame in log.read(0, 100)] == [b"a"]
    log.append(CommitId("s", 4), b"c")
    log.flush(told.append)
    log.committed(CommitId("s", 4))
    assert log.sealable
    log.append(CommitId("s", 5), b"d")
    log.seal(told.append)
    log.append(None, b"e")
    log.flush(told.append)
    assert log.readable == 4
    log.close()
    log = folder.open(4)
    assert [frame.payload for frame in log.read(0, 100)] == [b"a", b"c", b"d", b"e"]
    log.close()


def test_uncommitted_frames_are_removed_across_segments(folder: Folder) -> None:
    folder.open(segment_size=150)
    for number in range(1, 9):
        folder.add(number, b"%d" % number * 50, b"again")
    log = folder.open(last=3)
    assert [f.commit for f in log.read(0, 1 << 20)] == [1, 1, 2, 2, 3, 3]
    assert log.next == 6
    folder.add(4, b"new")
    assert payloads(folder.open(last=4))[-1] == b"new"


@pytest.mark.parametrize("cut", range(1, 450, 23))
def test_a_torn_tail_is_cut_off(folder: Folder, cut: int) -> None:
    folder.open()
    folder.add(1, b"kept")
    size = folder.files()[0].stat().st_size
    folder.add(2, b"x" * 400)
    os.truncate(folder.files()[0], size + cut)
    log = folder.open(last=2)
    assert payloads(log) == [b"kept"]
    assert folder.files()[0].stat().st_size == size
    folder.add(3, b"new")
    assert payloads(folder.open(last=3)) == [b"kept", b"new"]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
@settings(max_examples=60)
def test_whatever_was_not_synced_may_be_missing(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    """Data that was not synced may be missing after a power cut: any subset of the last flush's blocks may remain."""
    folder = Folder(tmp_path_factory.mktemp("cut") / "log")
    folder.open()
    for number, size in enumerate(sizes, 1):
        before = folder.files()[0].stat().st_size
        folder.add(number, *(b"y" * 90 for _ in range(size)))
    content = bytearray(folder.files()[0].read_bytes())
    for at in range(before, len(content), 64):
        if data.draw(st.booleans()):
            content[at : at + 64] = bytes(len(content[at : at + 64]))
    folder.files()[0].write_bytes(content)
    kept = payloads(folder.open(last=len(sizes)))
    folder.log.close()
    assert len(kept) >= sum(sizes[:-1])
    shutil.rmtree(folder.path)


def test_damage_before_what_was_synced_is_refused(folder: Folder) -> None:
    folder.open()
    for number in (1, 2, 3):
        folder.add(number, b"x" * 50)
    content = bytearray(folder.files()[0].read_bytes())
    content[content.index(b"xxx")] ^= 1
    folder.files()[0].write_bytes(content)
    with pytest.raises(StoreError, match="record 0 was safe before"):
        folder.open(last=3)
    assert bytes(content) == folder.files()[0].read_bytes()


def test_without_sync_a_power_cut_may_take_anything_of_the_last_segment(folder: Folder) -> None:
    folder.open(sync=False)
    for number in (1, 2, 3):
        folder.add(number, b"x" * 50)
    assert folder.log.syncs == 0
    content = bytearray(folder.files()[0].read_bytes())
    content[content.index(b"xxx")] ^= 1
    folder.files()[0].write_bytes(content)
    assert payloads(folder.open(last=3)) == []


def segments_of(folder: Folder) -> list[Path]:
    folder.open(segment_size=100)
    for number in range(1, 4):
        folder.add(number, b"x" * 100)
    folder.log.close()
    return folder.files()


def flip(path: Path, at: int) -> int:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    return path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda files: flip(files[0], 3), "does not begin like a segment"),
        (lambda files: flip(files[-1], 20), "does not begin like a segment"),
        (lambda files: flip(files[0], -10), "damaged at byte"),
        (lambda files: os.truncate(files[0], 150), "damaged at byte"),
        (lambda files: files[1].unlink(), "records 1 to 2 are missing"),
        (
            lambda files: files[-1].rename(files[-1].with_name("0" * 19 + "7" + SUFFIX)),
            "was renamed",
        ),
        (lambda files: (files[0].parent / "mosquitto.db").touch(), "unknown files: mosquitto.db"),
        (lambda files: os.truncate(files[-1], 5), "does not begin like a segment"),
    ],
)
def test_damage_is_refused_and_nothing_is_lost(
    folder: Folder, damage: Callable[[list[Path]], object], message: str
) -> None:
    damage(segments_of(folder))
    before = {path.name: path.read_bytes() for path in folder.files()}
    with pytest.raises(StoreError, match=message):
        folder.open(last=3)
    assert {path.name: path.read_bytes() for path in folder.files()} == before


def salvaged(log: SegmentLog) -> list[int]:
    """Return the numbers of all readable records."""
    found: list[int] = []
    at = 0
    while at < log.readable:
        try:
            frames = log.read(at, 1 << 20)
        except (StoreError, Trimmed):
            after = log.next_good(at)
            assert after > at
            at = after
            continue
        found += [frame.offset for frame in frames]
        at = frames[-1].end if frames else log.readable
    return found


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda files: flip(files[0], -10), [0, 1, 3, 4, 5, 6, 7, 8]),
        (lambda files: flip(files[0], -150), [0, 2, 3, 4, 5, 6, 7, 8]),
        (lambda files: flip(files[0], 3), [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (lambda files: flip(files[-1], 3), [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (lambda files: (flip(files[1], 3), flip(files[1], 250)), [0, 1, 2, 3, 5, 6, 7, 8]),
        (lambda files: os.truncate(files[1], 150), [0, 1, 2, 6, 7, 8]),
        (lambda files: files[1].write_bytes(b"x" * 150), [0, 1, 2, 6, 7, 8]),
        (lambda files: files[1].unlink(), [0, 1, 2, 6, 7, 8]),
        (lambda files: files[0].unlink(), [3, 4, 5, 6, 7, 8]),
        (lambda files: flip(files[2], 150), [0, 1, 2, 3, 4, 5, 7, 8]),
        (lambda files: files[2].write_bytes(b"x" * 400), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_undamaged_frames_are_salvaged(
    folder: Folder, damage: Callable[[list[Path]], object], left: list[int]
) -> None:
    folder.open(segment_size=400)
    for number in range(9):
        folder.add(number + 1, b"%d" % number * 100)
    folder.log.close()
    assert len(folder.files()) == 3
    damage(folder.files())
    log = folder.open(last=9, salvage=True)
    assert salvaged(log) == left
    assert log.next >= 9  # offsets are never reused
    first = log.next
    folder.add(10, b"more")
    assert salvaged(log) == [*left, first]
    log = folder.open(last=10, salvage=True, verify=False)
    assert salvaged(log) == [*left, first]
    assert salvaged(log) == [*left, first]
    log.trim(log.segments[-1].base)
    assert salvaged(log)[-1] == first


def test_a_reader_skips_damage(folder: Folder) -> None:
    log = folder.open(segment_size=1 << 20)
    for number in range(9):
        folder.add(number + 1, b"%d" % number * 100)
    flip(folder.files()[0], -150)  # damages record 7
    assert [frame.offset for frame in log.read(2, 1 << 20)] == [2, 3, 4, 5, 6]
    with pytest.raises(StoreError, match="damaged at byte"):
        log.read(7, 1 << 20)
    assert log.next_good(7) == 8
    assert [frame.offset for frame in log.read(8, 1 << 20)] == [8]
    flip(folder.files()[0], -10)
    assert log.next_good(8) == 9 == log.readable
    assert log.read(9, 1 << 20) == []


def test_files_of_other_programs_are_not_salvaged(folder: Folder) -> None:
    files = segments_of(folder)
    for path in files:
        flip(path, 3)
    with pytest.raises(StoreError, match="does not begin like a segment"):
        folder.open(salvage=True)
    flip(files[0], 3)
    (files[0].parent / f"photos{SUFFIX}").write_text("x")
    with pytest.raises(StoreError, match="another program's"):
        folder.open(salvage=True)


def test_a_segment_of_another_log_is_refused(folder: Folder, tmp_path: Path) -> None:
    other = Folder(tmp_path / "other")
    files, theirs = segments_of(folder), segments_of(other)
    shutil.copy(theirs[1], files[1])
    with pytest.raises(StoreError, match="belongs to another log"):
        folder.open(last=3)


def test_unverified_segments_are_checked_when_they_are_read(folder: Folder) -> None:
    flip(segments_of(folder)[0], -10)
    log = folder.open(last=3, verify=False)
    assert [f.offset for f in log.read(1, 1 << 20)] == [1, 2]
    with pytest.raises(StoreError, match="damaged"):
        log.read(0, 1 << 20)


def test_a_segment_that_was_being_made_is_not_missed(folder: Folder) -> None:
    files = segments_of(folder)
    unnamed = files[0].with_name(f"{3:020d}{SUFFIX}.new")
    unnamed.write_bytes(b"half")
    assert len(payloads(folder.open(last=3))) == 3
    assert not unnamed.exists()


def test_two_processes_cannot_share_it(folder: Folder) -> None:
    folder.open()
    with pytest.raises(StoreError, match="in use"):
        SegmentLog(folder.path, run).open()
    folder.add(1, b"still ours")


def test_a_failed_write_is_final(folder: Folder) -> None:
    log = folder.open()
    folder.add(1, b"1")
    os.close(log._file)
    log._file = os.open("/dev/full", os.O_WRONLY)
    told: list[StoreFailed | None] = []
    for number in (2, 3):
        log.append(CommitId("s", number), b"x")
        log.flush(told.append)
    assert told == [StoreFailed(f"{folder.path}: No space left on device")] * 2
    assert (log.flushed, payloads(log)) == (1, [b"1"])
    assert payloads(folder.open(last=1)) == [b"1"]


def test_a_folder_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file/log: Not a directory"):
        SegmentLog(tmp_path / "file" / "log", run).open()


def test_an_empty_log_keeps_its_identity_through_epochs(folder: Folder) -> None:
    identity = folder.open(store="a").id
    assert folder.open(store="b").id == identity
    assert len(folder.files()) == 1
    folder.add(1, b"b1", store="b")
    folder.open(store="a")
    folder.open(store="c")
    assert payloads(folder.log) == [b"b1"]
    assert [segment.store for segment in folder.log.segments] == ["b", "c"]
