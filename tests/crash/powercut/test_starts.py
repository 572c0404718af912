"""Test power cuts while a store is created, or restarted after a kill. The broker must accept the
remaining data at its next startup.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hookmq.storage.records import PutRetained
from hookmq_storage.store import SQLiteStore
from hookmq_testing.runtime import VirtualRuntime
from powercut.recording import Cut, Recorder, cut
from powercut.shim import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
STORE = """
import os, sys
from pathlib import Path
from hookmq.storage.records import PutRetained
from hookmq_testing.runtime import VirtualRuntime
from hookmq.model.message import Message
from hookmq_storage.store import SQLiteStore
folder, durability, topics = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
store = SQLiteStore(folder, VirtualRuntime(), durability)
found = [record.message.topic for record in store.load()]
for topic in topics:
    store.commit([PutRetained(Message(topic, b"x" * 5000, 1))], lambda done: None)
print(*found, *topics)
sys.stdout.flush()
os._exit(0)
"""
"""A program that commits and exits without closing the store, as if it had been killed."""


def play(recorder: Recorder, durability: str, *topics: str) -> None:
    """Run a process that opens the store and commits the topics. Mark the topics that the process reports as stored."""
    done = subprocess.run(
        [sys.executable, "-c", STORE, str(recorder.folder / "a" / "data"), durability, *topics],
        env={**os.environ, **recorder.environ},
        check=True,
        capture_output=True,
    )
    recorder.mark(done.stdout.strip())


def loaded(folder: Path) -> set[str]:
    """Return the topics found in the store at startup. The durability is `os`, because the check
    itself need not survive a power cut.
    """
    store = SQLiteStore(folder / "a" / "data", VirtualRuntime(), "os")
    try:
        return {one.message.topic for one in store.load() if isinstance(one, PutRetained)}
    finally:
        store.close(lambda: None)


@pytest.mark.slow
def test_a_cut_while_the_store_is_made(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "disk", tmp_path)
    play(recorder, "group")
    found: set[frozenset[str]] = set()
    report = cut(
        recorder.recording(),
        lambda folder, marks, one: found.add(frozenset(loaded(folder))),
        cuts=100,
        seed=1,
    )
    assert not report.failures, report.text()
    assert found == {frozenset()}


@pytest.mark.parametrize("before", ["os", "group"])
@pytest.mark.slow
def test_data_found_after_a_kill_survives_a_power_cut(tmp_path: Path, before: str) -> None:
    """Data recovered on restart after a kill survives a power cut. Startup syncs it, because a
    killed writer, or one with durability ``os``, may not have done so.
    """
    recorder = Recorder(tmp_path / "disk", tmp_path)
    play(recorder, before, "one", "two")
    start = len(recorder.recording().records)
    play(recorder, "group")

    def check(folder: Path, marks: list[bytes], one: Cut) -> None:
        there = loaded(folder)
        if before == "group" or len(marks) == 2:
            missing = set(marks[-1].decode().split()) - there
            assert not missing, f"{missing} is missing"

    report = cut(recorder.recording(), check, cuts=60, seed=2, start=start)
    assert not report.failures, report.text()


@pytest.mark.slow
def test_a_cut_with_durability_os_loses_the_newest_and_refuses_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "disk", tmp_path)
    play(recorder, "os", *map(str, range(20)))
    found: set[int] = set()

    def whole(folder: Path, marks: list[bytes], one: Cut) -> None:
        there = loaded(folder)
        assert there == set(map(str, range(len(there)))), "not the oldest"
        found.add(len(there))

    report = cut(recorder.recording(), whole, cuts=40, seed=3)
    assert not report.failures, report.text()
    assert min(found) == 0
    assert max(found) > 10


@pytest.mark.parametrize("first", range(4))
@pytest.mark.slow
def test_a_cut_after_a_cut(tmp_path: Path, first: int) -> None:
    """Data recovered on restart after one power cut survives the next one."""
    before = tmp_path / "before"
    before.mkdir()
    recorder = Recorder(before / "disk", before)
    play(recorder, "group", "one", "two", "three")
    recording = recorder.recording()
    planned = recording.plan(1, seed=4, start=len(recording.records) * 2 // 3, first=first)
    for _ in recording.replay(planned):
        shutil.copytree(recording.folder, tmp_path / "disk")
    recorder = Recorder(tmp_path / "disk", tmp_path)
    start = len(recorder.recording().records)
    play(recorder, "group")

    def check(folder: Path, marks: list[bytes], one: Cut) -> None:
        there = loaded(folder)
        assert set(marks[-1].decode().split() if marks else ()) <= there

    report = cut(recorder.recording(), check, cuts=20, seed=first, start=start)
    assert not report.failures, report.text()
