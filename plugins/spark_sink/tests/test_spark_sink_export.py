"""Test landing mode. Files are complete or absent, and no row is missing or duplicated, no matter which process dies.

The rows here are lines of JSON. The Spark tests check that Parquet files contain the same rows.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import fsspec  # type: ignore[import-untyped]
import pytest
from hookmq.plugin import StoreError
from hookmq_spark_sink import block, cli, files
from hookmq_spark_sink.export import manifest as manifests
from hookmq_spark_sink.export import run
from hookmq_spark_sink.export.exporter import Exporter, Rules
from hookmq_spark_sink.export.manifest import Manifest, read_last
from hookmq_spark_sink.export.parquet import Part
from hookmq_spark_sink.export.places import Folder, Place, PlaceError, Remote, UsageError
from hookmq_spark_sink.reading import StreamReader, Unavailable

pytestmark = pytest.mark.slow

Keep = Callable[..., Any]
ONCE = Rules(tail=True, once=True)


class Lines:
    """A file format that does not need pyarrow."""

    suffix = ".parquet"

    def write(self, file: BinaryIO, parts: Iterable[Part], facts: dict[str, str]) -> int:
        file.write(json.dumps(facts).encode() + b"\n")
        count = 0
        for part in parts:
            for row in block.rows(part.block):
                if part.first <= row["offset"] < part.end:
                    text = {"offset": row["offset"], "payload": row["payload"].decode()}
                    file.write(json.dumps(text).encode() + b"\n")
                    count += 1
        return count

    def inspect(self, data: bytes) -> tuple[int, dict[str, str]]:
        if not data:
            raise StoreError("is empty")
        first, *rows = data.splitlines()
        return len(rows), json.loads(first)


class Target:
    """The files in the target, as a reader sees them."""

    def __init__(self, place: Place, name: str = "all") -> None:
        self.place = place
        self.name = name

    def folders(self) -> list[str]:
        return [one for one in self.place.names(self.name) if not one.startswith(("_", "."))]

    def files(self, log: str) -> list[str]:
        names = self.place.names(f"{self.name}/{log}")
        return sorted(one for one in names if not one.startswith(("_", ".")))

    def rows(self, log: str = "") -> list[tuple[int, int, str]]:
        """Return the partition, offset and payload of every row in every file, in order."""
        found = []
        for one in [log] if log else self.folders():
            for name in self.files(one):
                data = self.place.read(f"{self.name}/{one}/{name}")
                for line in data.splitlines()[1:]:
                    row = json.loads(line)
                    found.append((int(name[:5]), row["offset"], row["payload"]))
        return sorted(found)


class Exports:
    """Exports a stream to a target, with a new exporter each time."""

    def __init__(self, kept: Any, place: Place) -> None:
        self.kept, self.place = kept, place
        self.target = Target(place)
        self.said: list[str] = []

    def make(self, rules: Rules = ONCE) -> Exporter:
        return Exporter(self.kept.stream.folder, self.place, Lines(), rules, self.said.append)

    def all(self, rules: Rules = ONCE) -> Exporter:
        """Export everything with a new exporter."""
        made = self.make(rules)
        while made.round(0.0):
            pass
        return made

    def manifest(self) -> Manifest:
        found = read_last(self.place, f"all/{self.kept.stream.log.id}")
        assert found is not None
        return found


def expected(kept: Any) -> list[tuple[int, int, str]]:
    return [
        (place, row["offset"], row["payload"].decode())
        for place in range(kept.config.get("partitions", 1))
        for row in kept.rows(place)
        if row["offset"] < kept.stream.latest[place]
    ]


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Folder(tmp_path / "lake" / "mqtt")
        return
    memory = fsspec.filesystem("memory")
    yield Remote(memory, "/lake/mqtt", "memory://lake/mqtt")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture
def exports(keep: Keep, place: Place) -> Exports:
    return Exports(keep(partitions=2, segment_size=4096), place)


def fill(kept: Any, *numbers: int) -> None:
    for number in numbers:
        kept.publish(b"%d" % number * 100, topic=f"t/{number % 5}")


def test_all_of_it_with_what_is_told_of_it(exports: Exports) -> None:
    fill(exports.kept, *range(40))
    done = exports.all()
    log = exports.kept.stream.log.id
    assert exports.target.folders() == [log]
    assert exports.target.rows() == expected(exports.kept)
    assert len(exports.kept.stream.log.segments) > 2
    manifest = exports.manifest()
    assert manifest == done.manifest
    assert (manifest.stream, manifest.log_id, manifest.gaps) == ("all", log, [])
    assert manifest.start == {0: 0, 1: 0}
    assert manifest.next == dict(enumerate(exports.kept.stream.latest))
    assert [one.name for one in manifest.files] == exports.target.files(log)
    assert manifest.totals.rows == sum(one.rows for one in manifest.files) == 40
    for one in manifest.files:
        data = exports.place.read(f"all/{log}/{one.name}")
        assert (len(data), len(data.splitlines()) - 1) == (one.bytes, one.rows)
        assert hashlib.sha256(data).hexdigest() == one.sha256
        assert one.name == f"{one.partition:05d}-{one.first:020d}-{one.last:020d}.parquet"
    assert done.waiting == done.gaps == 0
    assert exports.said == []


def test_only_what_is_sealed_without_the_tail(exports: Exports) -> None:
    fill(exports.kept, *range(40))
    sealed = exports.kept.stream.summaries[-1].parts
    done = exports.all(Rules(once=True))
    ends = {
        place: sealed[place][0] if place in sealed else exports.kept.stream.next[place]
        for place in (0, 1)
    }
    assert done.manifest is not None
    assert done.manifest.next == ends
    assert done.waiting == 40 - done.manifest.totals.rows > 0
    assert exports.target.rows() == [row for row in expected(exports.kept) if row[1] < ends[row[0]]]


def test_the_tail_after_a_time_or_a_size(keep: Keep, place: Place) -> None:
    exports = Exports(keep(segment_size=1 << 20), place)
    one = exports.make(Rules(tail=True, roll=60, size=4000))
    fill(exports.kept, 1)
    assert one.round(0.0) == 0
    assert one.waiting == 1
    fill(exports.kept, 2)
    assert one.round(59.9) == 0
    assert one.round(60.0) == 1
    assert [row[1] for row in exports.target.rows()] == [0, 1]
    fill(exports.kept, 3)
    assert one.round(61.0) == 0  # from then on it waits
    assert one.round(119.9) == 0
    fill(exports.kept, *range(20))
    made = one.round(119.9)
    assert made >= 1
    assert 0 < one.waiting < 20
    for file in exports.manifest().files:
        assert file.bytes < 10_000
    assert one.round(200.0) == 1
    assert exports.target.rows() == expected(exports.kept)


def test_uncommitted_is_not_exported(exports: Exports) -> None:
    fill(exports.kept, 1)
    exports.kept.publish(b"never", commit=False)
    exports.all()
    assert [row[2] for row in exports.target.rows()] == ["1" * 100]


def test_again_is_nothing_new(exports: Exports) -> None:
    fill(exports.kept, *range(20))
    exports.all()
    before = exports.target.files(exports.kept.stream.log.id)
    assert exports.make().round(0.0) == 0
    fill(exports.kept, 1)
    exports.all()
    after = exports.target.files(exports.kept.stream.log.id)
    assert len(after) == len(before) + 1
    assert set(before) < set(after)
    assert exports.target.rows() == expected(exports.kept)


def test_merged_segments_between_two_runs(exports: Exports) -> None:
    fill(exports.kept, *range(10))
    exports.all()
    fill(exports.kept, *range(60))
    exports.kept.look()
    assert exports.kept.stream.counts.merged
    exports.all()
    assert exports.target.rows() == expected(exports.kept)


def test_a_gap_is_told_to_the_message(exports: Exports) -> None:
    kept = exports.kept
    fill(kept, *range(12))
    first = exports.all()
    assert first.manifest is not None
    reached = dict(first.manifest.next)
    rows = exports.target.rows()
    fill(kept, *range(60))
    kept.open(retention_bytes=8192)
    kept.look()
    earliest = list(kept.stream.earliest)
    assert all(earliest[place] > reached[place] for place in (0, 1))
    rows += expected(kept)
    second = exports.all()
    assert second.gaps == sum(earliest[place] - reached[place] for place in (0, 1))
    told = [(one.partition, one.first, one.last) for one in exports.manifest().gaps]
    assert told == [(place, reached[place], earliest[place] - 1) for place in (0, 1)]
    assert exports.manifest().totals.missing == second.gaps
    assert exports.target.rows() == sorted(rows)
    assert any(
        f"from offset {reached[0]} to {earliest[0] - 1} were removed" in one for one in exports.said
    )
    assert exports.all().gaps == 0  # reported once


def test_retention_while_a_file_is_written(exports: Exports) -> None:
    kept = exports.kept
    fill(kept, *range(60))
    one = exports.make()
    real = Lines.write

    class Slow(Lines):
        late = True

        def write(self, file: BinaryIO, parts: Iterable[Part], facts: dict[str, str]) -> int:
            if Slow.late:
                Slow.late = False
                kept.open(retention_bytes=8192)
                kept.look()
                # Files that are already open remain readable. Others can no longer be opened.
                one._reader.index.segments[:] = one._reader.index.segments[-2:]
            return real(self, file, parts, facts)

    one._format = Slow()
    while one.round(0.0):
        pass
    assert one.gaps > 0
    assert exports.manifest().totals.missing == one.gaps
    earliest = kept.stream.earliest
    there = [row for row in exports.target.rows() if row[1] >= earliest[row[0]]]
    assert there == expected(kept)
    assert len({row[:2] for row in exports.target.rows()}) == len(exports.target.rows())


def test_another_log_is_another_folder(exports: Exports) -> None:
    kept = exports.kept
    fill(kept, 1, 2)
    one = exports.make(Rules(tail=True, roll=0))
    one.round(0.0)
    old = kept.stream.log.id
    kept.close()
    for path in sorted(kept.stream.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    kept.open()
    fill(kept, 7)
    while not one.round(0.0):
        pass
    new = kept.stream.log.id
    assert sorted(exports.target.folders()) == sorted([old, new])
    assert [row[2] for row in exports.target.rows(new)] == ["7" * 100]
    assert len(exports.target.rows(old)) == 2
    assert exports.said == [f"the log was replaced; its id is now {new}"]


def test_a_manifest_does_not_grow_for_ever(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "MOST", 3)
    for number in range(8):
        fill(exports.kept, number)
        exports.all()
    log = exports.kept.stream.log.id
    names = sorted(exports.place.names(f"all/{log}/_manifest"))
    assert len(names) >= 2
    told = [json.loads(exports.place.read(f"all/{log}/_manifest/{name}")) for name in names]
    listed = [file["name"] for one in told for file in one["files"]]
    assert sorted(listed) == exports.target.files(log)
    assert told[-1]["totals"]["rows"] == 8
    assert exports.target.rows() == expected(exports.kept)


def test_the_consumer_is_where_the_export_is(exports: Exports) -> None:
    kept = exports.kept
    fill(kept, *range(40))
    exports.all(Rules(once=True, consumer="landing"))
    known = files.read_consumers(kept.stream.folder, kept.stream.log.id)
    assert known["landing"].offsets == exports.manifest().next
    lags = {one.name: one.lag for one in kept.stream.consumers()}
    assert lags["landing"] == sum(kept.stream.latest) - exports.manifest().totals.rows


def test_a_declared_consumer_leaves_no_gap(keep: Keep, place: Place) -> None:
    exports = Exports(
        keep(segment_size=4096, retention_bytes=8192, consumers=("landing",)),
        place,
    )
    kept, rules = exports.kept, Rules(tail=True, once=True, consumer="landing")
    for _ in range(3):
        fill(kept, *range(40))
        kept.look()
        assert exports.all(rules).gaps == 0
    kept.look()
    assert kept.stream.earliest[0] > 0
    assert [row[1] for row in exports.target.rows()] == list(range(120))


def test_consumers_that_commit_at_once(exports: Exports) -> None:
    """The reader process and the export may commit offsets at the same time. Both write to the same file, and neither
    loses the other's changes.
    """
    fill(exports.kept, 1)
    folder = exports.kept.stream.folder

    def commit(name: str) -> None:
        reader = StreamReader(folder, None)
        reader.refresh()
        for number in range(50):
            reader.commit(name, {0: number})

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(commit, f"c{number}") for number in range(4)]:
            done.result()
    known = files.read_consumers(folder, exports.kept.stream.log.id)
    assert {name: one.offsets for name, one in known.items()} == {
        f"c{number}": {0: 49} for number in range(4)
    }


@pytest.mark.parametrize(
    ("last", "data", "message"),
    [
        (1, b"", r"is empty: move it away"),
        (
            1,
            b'{"hookmq.log_id": "other"}\n{}\n{}\n',
            "does not contain what its name says; move it away",
        ),
        (
            2,
            b'{"hookmq.log_id": "LOG"}\n{}\n{}\n',
            "does not contain what its name says; move it away",
        ),
    ],
)
def test_files_of_somebody_else(exports: Exports, last: int, data: bytes, message: str) -> None:
    log = exports.kept.stream.log.id
    fill(exports.kept, 1)
    exports.all()
    place, at = next((place, at) for place, at in exports.manifest().next.items() if at)
    name = f"{place:05d}-{at:020d}-{at + last:020d}.parquet"
    put(exports.place, f"all/{log}/{name}", data.replace(b"LOG", log.encode()))
    with pytest.raises(StoreError, match=f"{name} {message}"):
        exports.all()


def put(place: Place, name: str, data: bytes) -> None:
    def fill(file: BinaryIO) -> None:
        file.write(data)

    place.write(name, fill)


def test_a_file_beyond_what_was_exported(exports: Exports) -> None:
    fill(exports.kept, 1)
    exports.all()
    name = f"00000-{1000:020d}-{1001:020d}.parquet"
    put(exports.place, f"all/{exports.kept.stream.log.id}/{name}", b"x")
    with pytest.raises(
        StoreError, match=f"{name} does not continue the export, which is at offset"
    ):
        exports.all()


def test_a_manifest_that_is_gone_or_damaged(exports: Exports) -> None:
    log = exports.kept.stream.log.id
    fill(exports.kept, *range(20))
    exports.all(Rules(once=True))
    exports.all()
    before, files_before = exports.manifest(), exports.target.files(log)
    put(exports.place, f"all/{log}/_manifest/000002.json", b"{}")
    with pytest.raises(StoreError, match=r"000002\.json is damaged"):
        exports.all()
    for name in ("000001", "000002"):
        put(exports.place, f"all/{log}/_manifest/{name}.json", b"")
    with pytest.raises(StoreError, match=r"is damaged .*counted again"):
        exports.all()
    again = Exports(exports.kept, Without(exports.place, "_manifest"))
    done = again.all()
    assert done.manifest is not None
    assert done.manifest.next == before.next
    assert done.manifest.totals == before.totals
    assert again.target.files(log) == files_before


@pytest.mark.parametrize("change", ["next", "file", "gap", "start"])
def test_a_manifest_that_was_edited(exports: Exports, change: str) -> None:
    """An edited manifest is refused, because the export could otherwise skip messages or export them twice."""
    at = f"all/{exports.kept.stream.log.id}/_manifest/000001.json"
    fill(exports.kept, *range(20))
    exports.all()
    text = json.loads(exports.place.read(at))
    if change == "next":
        text["next"]["0"] -= 1
    elif change == "file":
        text["files"].pop()
    elif change == "gap":
        text["gaps"].append({"partition": 0, "first": 3, "last": 4, "found": ""})
    else:
        text["start"]["0"] += 1
    put(exports.place, at, json.dumps(text).encode())
    fill(exports.kept, *range(5))
    with pytest.raises(StoreError, match=r"000001\.json is damaged"):
        Exports(exports.kept, exports.place).all()


class Without:
    """A target that has lost the files of a folder."""

    def __init__(self, place: Place, folder: str) -> None:
        self.url, self._place, self._folder = place.url, place, folder
        self.write, self.read, self.locked = place.write, place.read, place.locked

    def names(self, folder: str) -> list[str]:
        return [] if folder.endswith(self._folder) else self._place.names(folder)


def test_the_log_ends_before_what_was_exported(exports: Exports) -> None:
    fill(exports.kept, *range(10))
    one = exports.make(Rules(tail=True, roll=0))
    one.round(0.0)
    stream = exports.kept.stream
    stream._state.write(99, 0, [0, 0], [0, 0])
    with pytest.raises(
        StoreError, match=r"ends at 0, but up to .* was exported: the log was restored"
    ):
        one.round(1.0)


def test_no_broker_said_how_far(exports: Exports) -> None:
    fill(exports.kept, 1)
    (exports.kept.stream.folder / "state").unlink()
    with pytest.raises(Unavailable):
        exports.all()
    assert exports.target.folders() == []


class Unreliable:
    """A store that fails either before or after storing the data."""

    def __init__(self, place: Place) -> None:
        self.url, self._place = place.url, place
        self.names, self.read, self.locked = place.names, place.read, place.locked
        self.calls = 0
        self.fail: dict[int, str] = {}

    def write(self, name: str, fill: Any) -> Any:
        self.calls += 1
        how = self.fail.get(self.calls)
        if how == "before":
            raise PlaceError("no answer")
        stored = self._place.write(name, fill)
        if how == "after":
            raise PlaceError("no answer")
        return stored


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.slow
def test_a_store_that_does_not_answer(keep: Keep, place: Place, how: str) -> None:
    store = Unreliable(place)
    exports = Exports(keep(partitions=2, segment_size=4096), store)
    one = exports.make(Rules(tail=True, roll=0, size=3000))
    fill(exports.kept, *range(30))
    for failing in range(1, 10):
        store.fail = {store.calls + failing: how, store.calls + failing + 1: how}
        fill(exports.kept, *range(10))
        failures = 0
        while True:
            try:
                made = one.round(0.0)
            except PlaceError:
                failures += 1
                fill(exports.kept, failing)  # so that a different range is due now
                continue
            if not made and failures == 2:
                break
            if not made:
                fill(exports.kept, failing)
        assert exports.target.rows() == expected(exports.kept)
    manifest = exports.manifest()
    assert manifest == one.manifest
    assert manifest.totals.rows == len(expected(exports.kept))
    assert manifest.gaps == []


def test_one_at_a_time(place: Place) -> None:
    with (
        place.locked(),
        pytest.raises(UsageError, match="another hookmq spark export is writing there"),
        place.locked(),
    ):
        pass
    with place.locked():
        pass


def test_files_left_by_a_killed_export_are_removed(tmp_path: Path) -> None:
    place = Folder(tmp_path / "lake")
    put(place, "all/log/a.parquet", b"1")
    left = tmp_path / "lake" / "all" / "log" / ".b.parquet.hookmq"
    kept = tmp_path / "lake" / "all" / "log" / ".not-ours"
    left.write_bytes(b"half")
    kept.write_bytes(b"")
    assert place.names("all/log") == ["a.parquet"]
    put(Folder(tmp_path / "lake"), "all/log/c.parquet", b"3")
    assert not left.exists()
    assert kept.exists()


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    place = Folder(tmp_path / "lake")

    def fill(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(PlaceError, match=r"a\.parquet: No space left on device"):
        place.write("all/a.parquet", fill)
    assert os.listdir(tmp_path / "lake" / "all") == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PlaceError, match="file/all: Not a directory"):
        put(Folder(tmp_path / "file"), "all/a.parquet", b"")


# the command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(run, "Parquet", lambda compression: Lines())
    monkeypatch.setattr(run, "EVERY", 0.0)
    monkeypatch.setattr(run, "lower_priority", lambda: None)
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)

    def call(*words: object) -> int:
        arguments = parser.parse_args(["export", *map(str, words)])
        code: int = arguments.run(arguments)
        return code

    return call


def test_a_gap_is_an_exit_code(
    command: Callable[..., int], keep: Keep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = keep(segment_size=4096, compression="none")
    lake, metrics = tmp_path / "lake", tmp_path / "m.prom"
    fill(kept, *range(10))
    assert command(kept.path, lake, "--tail", "--metrics", metrics) == 0
    assert "all: 1 files, 1 in all with 10 messages" in capsys.readouterr().err
    fill(kept, *range(60))
    kept.open(retention_bytes=8192)
    kept.look()
    missing = kept.stream.earliest[0] - 10
    assert command(kept.path, lake, "--tail", "--metrics", metrics) == 3
    assert (
        f"{missing} messages from offset 10 to {9 + missing} were removed"
        in capsys.readouterr().err
    )
    shown = metrics.read_text()
    assert f'hookmq_spark_export_missing_total{{stream="all"}} {missing}\n' in shown
    assert f'hookmq_spark_export_rows_total{{stream="all"}} {70 - missing}\n' in shown
    assert 'hookmq_spark_export_waiting_messages{stream="all"} 0\n' in shown
    assert "hookmq_spark_export_failures_total 0\n" in shown
    assert command(kept.path, lake, "--tail") == 0
    (kept.stream.folder / "state").unlink()
    with pytest.raises(StoreError, match="no broker has said how far to read; start the broker"):
        command(kept.path, lake)
    with pytest.raises(UsageError, match="contains no stream other"):
        command(kept.path, lake, "--stream", "other")
    (kept.path / "other").mkdir()
    (kept.path / "other" / "queue.json").write_text("{}")
    with pytest.raises(UsageError, match="the stream other serves a queue"):
        command(kept.path, lake, "--stream", "other", "--follow")  # it would wait in vain


def test_an_export_reports_messages_that_wait_in_the_newest_file(
    command: Callable[..., int], keep: Keep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, lake = keep(segment_size=1 << 20), tmp_path / "lake"
    fill(kept, *range(10))
    assert command(kept.path, lake) == 0
    assert (
        "all: no files yet; 10 messages wait in the log's newest file, which --tail"
        in capsys.readouterr().err
    )
    assert command(kept.path, lake, "--tail") == 0
    assert "no files yet" not in capsys.readouterr().err


def test_it_goes_on_when_a_place_failed(
    command: Callable[..., int],
    keep: Keep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = keep()
    fill(kept, *range(10))
    store = Unreliable(Folder(tmp_path / "lake"))
    store.fail = {1: "before", 2: "before", 4: "after"}
    monkeypatch.setattr(run, "open_place", lambda target: store)
    rounds = run.Job.round

    def watched(job: run.Job, stop: Callable[[], bool]) -> int:
        done = rounds(job, stop)
        if not done:  # everything has been exported
            os.kill(os.getpid(), signal.SIGTERM)
        return done

    monkeypatch.setattr(run.Job, "round", watched)
    metrics = tmp_path / "m.prom"
    words = ("--follow", "--tail", "--roll-time", "0", "--metrics", metrics)
    assert command(kept.path, "lake", *words) == 0
    said = capsys.readouterr().err
    assert said.count("no answer; trying again") == 1  # of the same failure
    assert "hookmq_spark_export_failures_total 3\n" in metrics.read_text()
    assert Target(store).rows() == expected(kept)


@pytest.mark.parametrize("there", [False, True], ids=["no folder", "no stream"])
def test_it_waits_for_a_stream_that_comes(
    there: bool,
    command: Callable[..., int],
    keep: Keep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept, lake, later = keep(), tmp_path / "lake", tmp_path / "later"
    fill(kept, *range(10))
    if there:
        later.mkdir()
    rounds, looks = run.Job.round, 0

    def watched(job: run.Job, stop: Callable[[], bool]) -> int:
        nonlocal looks
        done = rounds(job, stop)
        looks += 1
        if looks == 3:
            later.mkdir(exist_ok=True)
            kept.stream.folder.rename(later / "all")
        elif looks > 3 and not done:
            os.kill(os.getpid(), signal.SIGTERM)
        return done

    monkeypatch.setattr(run.Job, "round", watched)
    words = ("--follow", "--tail", "--roll-time", "0")
    with pytest.raises(UsageError, match="is not a folder" if not there else "contains no streams"):
        command(later, lake, "--tail")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is not a folder"):  # a retry would not help
        command(tmp_path / "file", lake, *words)
    wanted = expected(kept)
    assert command(later, lake, *words) == 0
    said = capsys.readouterr().err
    what = "contains no streams" if there else "is not a folder"
    assert said.count(f"later {what} yet; waiting for a broker to create it\n") == 1
    assert Target(Folder(lake)).rows() == wanted


# killed anywhere ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)  # hundreds of fsyncs, which other processes may delay
def test_killed_at_every_call_of_the_system(keep: Keep, tmp_path: Path) -> None:
    """In each round, an export is killed at the next system call that changes a file. After more messages are
    published, another process continues.

    The process has no threads, because it forks.
    """
    kept = keep(partitions=2, segment_size=4096)
    copies = []
    for number in range(2):
        fill(kept, *range(7 + number))
        copies.append(tmp_path / f"copy{number}" / "all")
        shutil.copytree(kept.stream.folder, copies[-1])
    result = subprocess.run(
        [sys.executable, __file__, *map(str, copies), str(tmp_path / "target")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HQ_EXPECTED": json.dumps(expected(kept))},
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["wrong"] == []
    assert told["kills"] > 40


class Killer:
    """Kills this process at the file-changing call with the number `last`. An interrupted write is left half done."""

    CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir")

    def __init__(self, last: int) -> None:
        self.last, self.calls = last, 0
        for name in self.CALLS:
            setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*words: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls == self.last:
                if name == "write":
                    call(words[0], words[1][: len(words[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*words, **more)

        return wrapped


def run_to_the_end(source: Path, target: Path) -> None:
    place = Folder(target)
    with place.locked():
        rules = Rules(tail=True, once=True, size=2000, consumer="landing")
        one = Exporter(source, place, Lines(), rules, print)
        while one.round(0.0):
            pass


def main(before: Path, after: Path, target: Path) -> None:
    wanted = [tuple(row) for row in json.loads(os.environ["HQ_EXPECTED"])]
    wrong: list[Any] = []
    for kills in itertools.count(1):  # pragma: no branch
        child = os.fork()
        if not child:
            Killer(kills)
            run_to_the_end(before, target)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        run_to_the_end(after, target)
        place = Folder(target)
        rows = Target(place).rows()
        log = Target(place).folders()[0]
        manifest = read_last(place, f"all/{log}")
        names = [one.name for one in manifest.files] if manifest is not None else []
        if rows != wanted or sorted(names) != Target(place).files(log):
            wrong.append([kills, len(rows), len(wanted)])
        known = files.read_consumers(after, log)
        if manifest is None or known["landing"].offsets != manifest.next:
            wrong.append([kills, "consumer"])
        shutil.rmtree(target)
        if os.waitstatus_to_exitcode(status) == 0:
            print(json.dumps({"kills": kills - 1, "wrong": wrong}))
            return


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))


# by day ---------------------------------------------------------------------------------------------------------------

DAY = 86_400
BY_DAY = Rules(tail=True, once=True, by_day=True)


class Days(Exports):
    """Exports messages by day, and reads the payloads in each day's folder."""

    today = 0

    def make(self, rules: Rules = BY_DAY) -> Exporter:
        return Exporter(
            self.kept.stream.folder,
            self.place,
            Lines(),
            rules,
            self.said.append,
            lambda: self.today,
        )

    def found(self) -> dict[str, list[str]]:
        log = f"all/{self.kept.stream.log.id}"
        folders = [name for name in self.place.names(log) if name.startswith("date=")]
        return {
            folder: [
                json.loads(line)["payload"]
                for name in sorted(self.place.names(f"{log}/{folder}"))
                for line in self.place.read(f"{log}/{folder}/{name}").splitlines()[1:]
            ]
            for folder in sorted(folders)
        }

    def publish(self, day: float, *payloads: str) -> None:
        """Publish the payloads in one commit. `day` is the time in days since the epoch."""
        self.kept.runtime.wall = day * DAY
        self.kept.publish(*(one.encode() for one in payloads))


@pytest.fixture
def days(keep: Keep, place: Place) -> Days:
    made = Days(keep(segment_size=1 << 20), place)
    runtime = made.kept.runtime
    runtime.wall = 0.0
    runtime.time = lambda: runtime.wall
    return made


def test_each_day_has_its_folder(days: Days) -> None:
    days.publish(20_000.1, "a", "b")
    days.publish(20_000.99, "c")
    days.publish(20_001.0, "d")
    days.publish(20_005.5, "e", "f")
    days.all(BY_DAY)
    assert days.found() == {
        "date=2024-10-04": ["a", "b", "c"],
        "date=2024-10-05": ["d"],
        "date=2024-10-09": ["e", "f"],
    }
    assert [file.name[:16] for file in days.manifest().files] == [
        "date=2024-10-04/", "date=2024-10-05/", "date=2024-10-09/",
    ]  # fmt: skip
    days.publish(20_005.9, "g")
    days.all(BY_DAY)
    assert days.found()["date=2024-10-09"] == ["e", "f", "g"]


def test_a_day_is_cut_within_a_merged_block(days: Days) -> None:
    for number in range(40):
        days.publish(20_000 + number / 20, f"{number:02}")
    days.kept.stream.log.roll = True
    days.publish(20_002.5, "last")
    days.kept.look()
    days.all(BY_DAY)
    assert days.found() == {
        "date=2024-10-04": [f"{number:02}" for number in range(20)],
        "date=2024-10-05": [f"{number:02}" for number in range(20, 40)],
        "date=2024-10-06": ["last"],
    }


def test_a_clock_that_is_set_back_keeps_the_order(days: Days) -> None:
    days.publish(20_001.0, "a")
    days.publish(20_000.9, "b")
    days.publish(20_001.1, "c")
    days.all(BY_DAY)
    assert days.found() == {"date=2024-10-05": ["a", "b", "c"]}


def test_a_day_waits_until_it_is_over(days: Days) -> None:
    rules = Rules(by_day=True, consumer="tier")
    days.publish(20_000.1, "a")
    days.publish(20_001.2, "b")
    days.kept.stream.log.roll = True
    days.publish(20_001.3, "c")
    days.today = 20_001
    exporter = days.make(rules)
    assert exporter.round(0.0) == 1
    assert days.found() == {"date=2024-10-04": ["a"]}
    assert exporter.round(1e6) == 0  # however long it takes
    assert [one.offsets for one in stored(days.kept).values()] == [{0: 1}]
    days.today = 20_002
    assert exporter.round(1e6) == 1
    assert days.found() == {"date=2024-10-04": ["a"], "date=2024-10-05": ["b"]}
    assert [one.offsets for one in stored(days.kept).values()] == [{0: 2}]


def test_a_full_file_does_not_wait_for_the_end_of_its_day(days: Days) -> None:
    texts = [random.Random(number).randbytes(500).hex() for number in range(8)]
    for text in texts:
        days.publish(20_000.1, text)
    days.kept.stream.log.roll = True
    days.publish(20_000.2, "last")
    days.today = 20_000
    assert days.make(Rules(by_day=True, size=20_000)).round(0.0) == 0
    assert days.make(Rules(by_day=True, size=3000)).round(0.0) == 1
    assert days.found() == {"date=2024-10-04": texts}


def test_files_with_and_without_days_do_not_mix(days: Days) -> None:
    days.publish(20_000.1, "a")
    days.all(ONCE)
    with pytest.raises(StoreError, match=r"was exported without --by-day: use another target"):
        days.all(BY_DAY)


def test_files_of_days_are_not_exported_without_days(days: Days) -> None:
    days.publish(20_000.1, "a")
    days.all(BY_DAY)
    with pytest.raises(StoreError, match=r"was exported with --by-day: use another target"):
        days.all(ONCE)


def test_a_file_of_a_day_is_adopted_after_a_kill(days: Days) -> None:
    days.publish(20_000.1, "a")
    exporter = days.make(BY_DAY)
    write = days.place.write

    def dies(name: str, fill: Any) -> Any:
        if "_manifest" in name and days.found():
            raise KeyboardInterrupt
        return write(name, fill)

    days.place.write = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        exporter.round(0.0)
    days.place.write = write  # type: ignore[method-assign]
    assert days.make(BY_DAY).round(0.0) == 0
    assert [file.rows for file in days.manifest().files] == [1]


def stored(kept: Any) -> dict[str, files.Consumer]:
    return files.read_consumers(kept.stream.folder, kept.stream.log.id)
