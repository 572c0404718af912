"""Test the recorder and its model of a disk. Every change to a folder is recorded, and a power cut
keeps synced data.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from powercut.disk import MANNERS, Disk, File
from powercut.recording import Cut, Recorder, Recording, cut
from powercut.shim import Kind, Record, RecordingError, missing

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.slow]
EVERYTHING = """
import fcntl, os, shutil, sqlite3, subprocess, sys
root = os.environ["WHERE"]
os.chdir(root)
def put(name, data):
    with open(name, "wb") as file:
        file.write(data)
put("plain", b"x" * 5000)
put("plain", b"shorter")
with open("plain", "ab") as file:
    file.write(b" and longer")
    file.flush()
    os.pwrite(file.fileno(), b"!", 0)
os.mkdir("a"); os.makedirs(root + "/b/c")
file = os.open("a/numbers", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
os.pwrite(file, b"0123456789" * 1000, 100)
os.pwritev(file, [b"ab", b"cd"], 9)
os.lseek(file, 7000, 0); os.writev(file, [b"one", b"two"])
os.ftruncate(file, 8000); os.ftruncate(file, 9000)
os.posix_fallocate(file, 0, 12000)
os.fsync(file)
two = os.dup(file); os.close(file); os.write(two, b"dup"); os.fdatasync(two)
os.dup2(two, 77); os.write(77, b"dup2"); os.close(77); os.close(two)
at = os.open("a", os.O_RDONLY)
file = os.open("beside", os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o600, dir_fd=at)
os.write(file, b"safe at once"); os.close(file)
os.fsync(at)
os.rename("beside", "renamed", src_dir_fd=at, dst_dir_fd=at)
os.replace("a/renamed", "b/c/moved"); os.link("b/c/moved", "linked"); os.truncate("linked", 4)
shutil.copyfile("a/numbers", "copied"); shutil.copytree("b", "tree"); os.rename("tree", "forest")
put("gone", b"1"); os.unlink("gone"); put("gone", b"2"); os.remove("gone")
os.mkdir("empty"); os.rmdir("empty"); os.mkdir("full"); put("full/x", b""); shutil.rmtree("full")
for number in range(3):  # inodes come back
    put("again", b"%d" % number); os.unlink("again")
db = sqlite3.connect("db.sqlite", isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("CREATE TABLE t (x)")
db.executemany("INSERT INTO t VALUES (?)", [("x" * 900,) for _ in range(50)])
if len(sys.argv) < 2:
    db.close()
    subprocess.run([sys.executable, "-c", "open('child', 'w').write('by a child')"], check=True)
    os.sync()
    outside = os.open("../outside", os.O_WRONLY | os.O_CREAT); os.write(outside, b"not ours"); os.close(outside)
"""


def record(tmp_path: Path, code: str, *arguments: str) -> Recorder:
    recorder = Recorder(tmp_path / "disk", tmp_path)
    subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **recorder.environ, "WHERE": str(recorder.folder)},
        check=True,
    )
    return recorder


def test_everything_that_is_done_is_recorded(tmp_path: Path) -> None:
    recording = record(tmp_path, EVERYTHING).recording()
    kinds = Counter(one.kind for one in recording.records)
    assert set(kinds) == set(Kind) - {Kind.MARK, Kind.UNKNOWN, Kind.ZERO, Kind.FAILED}
    assert len({one.process for one in recording.records}) == 3
    assert [one.data for one in recording.records if one.durable] == [b"safe at once"]
    assert not any(b"not ours" in one.data for one in recording.records)


def test_the_recording_includes_files_that_existed_before(tmp_path: Path) -> None:
    folder = tmp_path / "disk" / "inner"
    folder.mkdir(parents=True)
    (folder / "old").write_bytes(b"old")
    recorder = record(
        tmp_path, "import os; open(os.environ['WHERE'] + '/inner/old', 'a').write('+')"
    )
    found: set[bytes] = set()
    cut(
        recorder.recording(),
        lambda folder, marks, one: found.add((folder / "inner/old").read_bytes()),
        cuts=40,
        seed=1,
        start=5,
    )
    assert found == {b"old", b"old+", b"old\0"}


def test_a_change_that_was_not_seen_is_told(tmp_path: Path) -> None:
    recorder = record(tmp_path, EVERYTHING)
    (recorder.folder / "plain").write_bytes(b"by somebody else")
    (recorder.folder / "child").unlink()
    with pytest.raises(RecordingError, match="child is not there; plain has other bytes"):
        recorder.recording()


def test_a_call_that_cannot_be_recorded_is_reported(tmp_path: Path) -> None:
    recorder = record(tmp_path, "import os; os.symlink('x', os.environ['WHERE'] + '/link')")
    with pytest.raises(RecordingError, match="does not know symlink"):
        recorder.recording()


def test_a_sync_may_fail(tmp_path: Path) -> None:
    code = """
import os
file = os.open(os.environ["WHERE"] + "/x", os.O_RDWR | os.O_CREAT)
os.write(file, b"1"); os.fsync(file); os.write(file, b"2")
try:
    os.fsync(file)
except OSError as error:
    os.write(file, b"%d" % error.errno)
os.fsync(file)
"""
    recorder = Recorder(tmp_path / "disk", tmp_path, failing=2)
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **recorder.environ, "WHERE": str(recorder.folder)},
        check=True,
    )
    kinds = [one.kind for one in recorder.recording().records[3:]]
    assert kinds == [Kind.WRITE, Kind.SYNC, Kind.WRITE, Kind.FAILED, Kind.WRITE, Kind.SYNC]
    assert (recorder.folder / "x").read_bytes() == b"125"


def test_marks_stand_where_they_were_made(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "disk", tmp_path)
    recorder.mark(b"before")
    code = "import os\nopen(os.environ['WHERE'] + '/x', 'w').write('1')"
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **recorder.environ, "WHERE": str(recorder.folder)},
        check=True,
    )
    recorder.mark(b"after")
    recording = recorder.recording()
    kinds = [one.kind for one in recording.records[2:]]
    assert kinds == [Kind.MARK, Kind.CREATE, Kind.WRITE, Kind.MARK]
    assert recording.marks(4) == [b"before"]


SAFE = """
import os
os.chdir(os.environ["WHERE"])
def sync(name):
    file = os.open(name, os.O_RDONLY); os.fsync(file); os.close(file)
for number in range(20):
    with open("new", "w") as file:
        file.write(str(number) * 3000)
        file.flush()
        SYNC
    os.replace("new", "value")
    FOLDER
    open("told", "a").write("x")
"""


@pytest.mark.parametrize(
    ("sync", "folder", "problems"),
    [
        ("os.fsync(file.fileno())", "sync('.')", 0),
        ("os.fdatasync(file.fileno())", "os.sync()", 0),
        ("pass", "sync('.')", 1),
        ("os.fsync(file.fileno())", "pass", 1),
    ],
)
def test_a_file_that_is_replaced_is_whole_and_new_only_with_both_syncs(
    tmp_path: Path, sync: str, folder: str, problems: int
) -> None:
    recorder = record(tmp_path, SAFE.replace("SYNC", sync).replace("FOLDER", folder))
    recording = recorder.recording()
    told = [
        position
        for position, one in enumerate(recording.records, 1)
        if one.kind is Kind.WRITE and one.data == b"x"
    ]

    def check(folder: Path, marks: list[bytes], one: Cut) -> None:
        promised = sum(position <= one.position for position in told)
        if not promised:
            return
        text = (folder / "value").read_text()
        number = len(text) // 3000 and int(text[: len(text) // 3000])
        assert text == str(number) * 3000, "torn"
        assert number >= promised - 1, "old"

    report = cut(recording, check, cuts=150, seed=3)
    assert bool(report.failures) == bool(problems), report.text()
    assert report.cuts == (150 if not problems else report.cuts)


def test_a_cut_is_made_again_from_its_seed_and_number(tmp_path: Path) -> None:
    recording = record(tmp_path, EVERYTHING).recording()
    recording.save(tmp_path / "saved")

    def state(recording: Recording, first: int, cuts: int) -> dict[int, dict[str, bytes]]:
        found: dict[int, dict[str, bytes]] = {}

        def check(folder: Path, marks: list[bytes], one: Cut) -> None:
            found[one.number] = {
                str(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob("*")
                if path.is_file()
            }

        assert not cut(recording, check, cuts, seed=5, first=first).failures
        return found

    all = state(recording, 0, 20)
    assert len({str(one) for one in all.values()}) > 10
    assert state(recording, 13, 1) == {13: all[13]}
    assert state(Recording.load(tmp_path / "saved"), 13, 1) == {13: all[13]}


def test_a_file_keeps_its_inode(tmp_path: Path) -> None:
    recording = record(tmp_path, EVERYTHING).recording()
    inode = (recording.folder / "a/numbers").stat().st_ino

    def check(folder: Path, marks: list[bytes], one: Cut) -> None:
        path = folder / "a/numbers"
        assert not path.exists() or path.stat().st_ino == inode

    report = cut(recording, check, 30, seed=2)
    assert not report.failures, report.text()


# the model alone -----------------------------------------------------------------------------------------------------


def write(at: int, offset: int, data: bytes, durable: bool = False) -> Record:
    return Record(at, Kind.WRITE, durable, 1, offset, 0, data, "", "", 1)


def disk(*records: Record) -> Disk:
    made = Disk("/d")
    made.take(Record(0, Kind.MKDIR, False, 9, 0, 0, b"", "/d", "", 1))
    made.take(Record(1, Kind.CREATE, False, 1, 0, 0, b"", "/d/f", "", 1))
    made.take(Record(2, Kind.SYNC, False, 9, 2, 0, b"", "", "", 1))
    for one in records:
        made.take(one)
    return made


def sync(at: int, before: int) -> Record:
    return Record(at, Kind.SYNC, False, 1, before, 0, b"", "", "", 1)


def contents(made: Disk, times: int = 300) -> set[bytes]:
    """Return every content that the file may have after a power cut at this point."""
    found = set()
    for seed in range(times):
        for manner, _ in MANNERS:
            left = made.left(Random(seed), manner)
            node = left.names(made.top)["f"]
            assert isinstance(node, File)
            content = left.content(node)
            assert content is not None
            found.add(content)
    return found


def test_synced_data_survives_the_cut() -> None:
    assert contents(disk(write(10, 0, b"a"), sync(20, 15))) == {b"a"}


def test_data_of_a_failed_sync_is_never_safe() -> None:
    failed = Record(20, Kind.FAILED, False, 1, 15, 0, b"", "", "", 1)
    assert contents(disk(write(10, 0, b"a"), failed)) == {b"", b"a", b"\0"}
    again = disk(write(10, 0, b"a"), failed, write(25, 1, b"b"), sync(30, 28))
    assert contents(again) == {b"\0b"}


def test_a_write_during_a_sync_is_not_covered() -> None:
    assert contents(disk(write(10, 0, b"a"), write(16, 1, b"b"), sync(20, 15))) >= {b"a", b"ab"}


def test_a_write_that_waits_for_the_disk_is_safe_and_what_was_before_it_is_not() -> None:
    found = contents(disk(write(10, 5000, b"a"), write(16, 0, b"b", True)))
    assert {one[:1] for one in found} == {b"b"}
    assert {one[5000:] for one in found} == {b"", b"a", b"\0"}


def test_blocks_of_a_write_come_singly_and_never_before_what_they_replace() -> None:
    old, new, newer = (letter * 1024 for letter in (b"o", b"n", b"z"))
    found = contents(disk(write(10, 0, old), sync(12, 11), write(20, 0, new), write(30, 0, newer)))
    halves = {one[:512] for one in found}
    assert halves == {old[:512], new[:512], newer[:512]}
    assert all(one[:512] == one[0:1] * 512 and one[512:] == one[512:513] * 512 for one in found)
    assert old[:512] + newer[:512] in found
    assert new[:512] + old[:512] in found


def test_a_file_may_be_longer_than_its_bytes() -> None:
    assert contents(disk(write(10, 0, b"a"))) == {b"", b"a", b"\0"}


def test_a_truncation_is_there_or_not() -> None:
    cut_off = Record(20, Kind.TRUNCATE, False, 1, 1, 0, b"", "", "", 1)
    found = contents(disk(write(10, 0, b"abc"), sync(12, 11), cut_off, write(30, 1, b"X")))
    assert found == {b"abc", b"a", b"aX", b"a\0"}


def test_names_are_lost_without_a_sync_of_their_folder() -> None:
    made = disk(
        Record(10, Kind.RENAME, False, 1, 0, 0, b"", "/d/f", "/d/g", 1),
        Record(11, Kind.MKDIR, False, 3, 0, 0, b"", "/d/h", "", 1),
        Record(12, Kind.CREATE, False, 4, 0, 0, b"", "/d/h/x", "", 1),
    )

    def names() -> set[str]:
        return {
            "".join(sorted(made.left(Random(seed), manner).names(made.top)))
            for seed in range(100)
            for manner, _ in MANNERS
        }

    assert names() == {"f", "g", "fh", "gh"}
    made.take(Record(20, Kind.SYNC, False, 9, 20, 0, b"", "", "", 1))
    assert names() == {"gh"}
    folder = made.nodes[3]
    assert not isinstance(folder, File)
    inner = {len(made.left(Random(seed), "anything").names(folder)) for seed in range(50)}
    assert inner == {0, 1}
