"""Test a stream as a journal: the contract, the data that readers may see, retention, merging and changed folders."""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Journal, Message, StoreError
from hookmq.storage_api import Bounded, CommitId, Readable, StoreFailed
from hookmq_spark_sink import block, files
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.consumers import ConsumerState
from hookmq_spark_sink.files import read_state
from hookmq_spark_sink.index import StreamIndex, parse
from hookmq_spark_sink.placement import by_name
from hookmq_spark_sink.retention import MergeProcess, Stopped
from hookmq_spark_sink.stream import Stream
from hookmq_testing.contracts import JournalContract
from hookmq_testing.runtime import VirtualRuntime

Keep = Callable[..., Any]


class TestStreamIsAJournal(JournalContract):
    """Runs the journal contract."""

    @pytest.fixture(autouse=True)
    def _runtime(self) -> None:
        self.runtime = VirtualRuntime()

    def open(self) -> Journal:
        config = StreamConfig("all", ("#",), partitions=2, segment_size=4096)
        return Stream(config, self.folder, self.runtime)

    def close(self, journal: Journal) -> None:
        assert isinstance(journal, Stream)
        journal.close()

    def settle(self) -> None:
        self.runtime.run_until_idle()

    def payloads(self, journal: Journal) -> list[bytes]:
        assert isinstance(journal, Stream)
        index = StreamIndex(journal.folder)
        index.refresh(None)
        place = by_name("journal/x", 2)
        return [
            row["payload"]
            for segment, where in index.blocks(place, 0, 1 << 60)
            for row in block.rows(parse(segment, where))
        ]


def test_it_is_what_the_core_looks_for(keep: Keep) -> None:
    stream = keep().stream
    assert isinstance(stream, Bounded)
    assert isinstance(stream, Readable)


def test_partitions_are_by_crc_and_order_is_kept(keep: Keep) -> None:
    kept = keep(partitions=4)
    for number in range(40):
        kept.publish(b"%d" % number, topic=f"s/{number % 5}")
    for topic in (f"s/{n}" for n in range(5)):
        rows = kept.rows(by_name(topic, 4))
        mine = [int(row["payload"]) for row in rows if row["topic"] == topic]
        assert mine == list(range(int(topic[2:]), 40, 5))
    assert sum(kept.stream.latest) == 40


def test_one_commit_is_one_fsync_however_many_partitions(keep: Keep) -> None:
    kept = keep(partitions=16)
    commit = CommitId("s", 1)
    for number in range(200):
        kept.stream.append(commit, Message(f"t/{number}", b"x"))
    kept.stream.flush(commit, lambda _: None)
    kept.runtime.run_until_idle()
    assert kept.stream.counts.blocks == 16
    assert kept.stream.log.syncs == 1


def test_readers_see_what_was_committed_and_nothing_else(keep: Keep) -> None:
    kept = keep()
    assert kept.publish(b"1") == [None]
    assert kept.publish(b"2", commit=False) == [None]
    state = read_state(kept.stream.folder)
    assert state is not None
    assert (state.latest, kept.stream.latest, kept.stream.next) == ((1,), [1], [2])
    kept.stream.committed(CommitId("s", 2))
    state = read_state(kept.stream.folder)
    assert state is not None
    assert (state.latest, state.earliest, state.readable) == ((2,), (0,), 2)


def test_uncommitted_messages_free_their_offsets(keep: Keep) -> None:
    kept = keep(partitions=2)
    kept.publish(b"1", topic="a")
    kept.publish(b"lost", topic="b", commit=False)
    stream = kept.open(last=1)
    assert sum(stream.latest) == 1
    kept.publish(b"2", topic="b")
    assert kept.payloads(by_name("b", 2))[-1] == b"2"
    assert b"lost" not in kept.payloads(0) + kept.payloads(1)
    assert ("info", "spark_sink.uncommitted_dropped") in [one[:2] for one in kept.runtime.logged]


def test_offsets_and_log_id_survive(keep: Keep) -> None:
    kept = keep(segment_size=4096)
    for number in range(30):
        kept.publish(b"%d" % number * 100)
    log_id, latest = kept.stream.log.id, kept.stream.latest
    stream = kept.open()
    assert (stream.log.id, stream.latest, stream.earliest) == (log_id, latest, [0])
    kept.publish(b"next")
    assert kept.rows()[-1]["offset"] == latest[0]


def test_a_flush_window_puts_flushes_apart(keep: Keep) -> None:
    kept = keep(flush_window=0.5)
    assert kept.publish(b"1") == [None]
    assert kept.publish(b"2") == []
    kept.runtime.advance(0.5)
    assert kept.payloads() == [b"1", b"2"]


# retention ------------------------------------------------------------------------------------------------------------

SMALL = {
    "segment_size": 4096,
    "max_bytes": 1 << 16,
    "retention_bytes": 0,
    "retention_time": 0,
    "compression": "none",  # the sizes below are those of the messages
}


def fill(kept: Any, count: int = 40) -> None:
    for number in range(count):
        kept.publish(b"%04d" % number * 100)


def test_retention_by_bytes(keep: Keep) -> None:
    kept = keep(**SMALL | {"retention_bytes": 12000})
    fill(kept)
    kept.look()
    stream = kept.stream
    assert stream.earliest[0] > 0
    assert stream.log.size <= 12000 + 4096
    assert kept.rows()[0]["offset"] == stream.earliest[0]
    earliest = stream.earliest
    assert kept.open().earliest == earliest
    assert stream.counts.removed == earliest[0]


def test_retention_by_time(keep: Keep) -> None:
    kept = keep(**SMALL | {"retention_time": 3600})
    fill(kept)
    kept.runtime.advance(3000)
    kept.look()
    assert kept.stream.earliest == [0]
    kept.runtime.advance(700)
    kept.look()
    assert kept.stream.earliest[0] > 30
    # The last segment is never deleted, but a new one begins, so that it does not stay the last one.
    kept.publish(b"new")
    kept.runtime.advance(3700)
    kept.look()
    kept.publish(b"newer")
    kept.look()
    assert kept.stream.earliest == [41]


def test_a_partition_that_was_removed_whole_goes_on_where_it_was(keep: Keep) -> None:
    kept = keep(partitions=2, **SMALL | {"retention_bytes": 8000})
    mine = by_name("a", 2)
    busy = next(topic for topic in "bcdefg" if by_name(topic, 2) != mine)
    kept.publish(b"once", topic="a")
    for number in range(40):
        kept.publish(b"%04d" % number * 100, topic=busy)
    kept.look()
    for _ in range(2):
        assert (kept.stream.earliest[mine], kept.stream.latest[mine]) == (1, 1)
        kept.open()
    kept.publish(b"again", topic="a")
    assert [row["offset"] for row in kept.rows(mine)] == [1]


def commit_consumer(kept: Any, name: str, offset: int) -> None:
    stream = kept.stream
    known = files.read_consumers(stream.folder, stream.log.id)
    known[name] = files.Consumer({0: offset}, 1.0)
    files.write_consumers(stream.folder, stream.log.id, known)


def test_retention_waits_for_declared_consumers(keep: Keep) -> None:
    kept = keep(consumers=("a", "b"), **SMALL | {"retention_bytes": 8000})
    fill(kept)
    commit_consumer(kept, "a", 40)
    commit_consumer(kept, "other", 0)
    kept.look()
    assert kept.stream.earliest == [0]  # b committed nothing
    commit_consumer(kept, "b", 15)
    kept.look()
    assert 0 < kept.stream.earliest[0] <= 15
    assert [one._replace(behind_at=None) for one in kept.stream.consumers()] == [
        ConsumerState("a", True, 0, 1.0),
        ConsumerState("b", True, 25, 1.0),
        ConsumerState("other", False, 40 - kept.stream.earliest[0], 1.0),
    ]
    assert kept.stream.counts.dropped == 0


def test_at_the_hard_limit_reject_refuses(keep: Keep) -> None:
    kept = keep(consumers=("a",), **SMALL | {"retention_bytes": 8000, "max_bytes": 20000})
    fill(kept, 20)
    assert kept.stream.full is False
    fill(kept, 40)
    assert kept.stream.full is True
    assert kept.stream.counts.refused == 1
    commit_consumer(kept, "a", 60)
    kept.look()
    assert kept.stream.full is False
    assert kept.stream.earliest[0] > 0


def test_appended_messages_count_against_the_limit_before_the_write(keep: Keep) -> None:
    kept = keep(**SMALL | {"max_bytes": 20000})
    for _ in range(30):
        kept.stream.append(CommitId("s", 1), Message("t", b"x" * 1000))
    assert kept.stream.full is True


def test_at_the_hard_limit_drop_oldest_drops_and_counts(keep: Keep) -> None:
    kept = keep(consumers=("a",), on_full="drop_oldest", **SMALL | {"max_bytes": 20000})
    fill(kept, 80)
    kept.look()
    stream = kept.stream
    assert stream.full is False
    assert stream.log.size <= 20000
    assert stream.counts.dropped == stream.earliest[0] > 0
    assert ("warning", "spark_sink.unread_dropped") in [one[:2] for one in kept.runtime.logged]


def test_a_disk_with_little_room_refuses_until_there_is_more(keep: Keep) -> None:
    kept = keep()
    kept.min_free = 1 << 60
    kept.open()
    kept.look()
    assert kept.stream.full is True
    assert ("warning", "spark_sink.disk_low") in [one[:2] for one in kept.runtime.logged]
    kept.stream.upkeep.min_free = 0
    kept.look()
    assert kept.stream.full is False


def test_a_full_disk_acknowledges_nothing_and_loses_nothing(keep: Keep) -> None:
    kept = keep()
    kept.publish(b"1")
    os.close(kept.stream.log._file)
    kept.stream.log._file = os.open("/dev/full", os.O_WRONLY)
    (failed,) = kept.publish(b"2")
    assert isinstance(failed, StoreFailed)
    assert "No space left on device" in failed.reason
    assert kept.stream.latest == [1]
    kept.open(last=1)
    assert kept.payloads() == [b"1"]


def test_retention_that_was_interrupted_is_finished(keep: Keep) -> None:
    kept = keep(**SMALL | {"retention_bytes": 8000})
    fill(kept)
    log, folder = kept.stream.log, kept.stream.folder
    files.write_trimmed(folder, log.id, {0: kept.stream.summaries[1].parts[0][1]})
    stream = kept.open()
    assert stream.earliest[0] == stream.summaries[1].parts[0][1]
    kept.look()
    assert kept.open().earliest[0] > stream.summaries[0].parts[0][0]


def test_a_reader_that_was_away_while_a_segment_began_and_another_went(keep: Keep) -> None:
    kept = keep(**SMALL)
    kept.stream.upkeep.merge = not_now
    fill(kept, 20)
    index = StreamIndex(kept.stream.folder)
    state = read_state(kept.stream.folder)
    index.refresh(state)
    segments = len(index.segments)
    while len(kept.stream.summaries) == segments:
        fill(kept, 1)
    # What retention does before it reports anything.
    kept.stream.log.trim(kept.stream.summaries[1].base)
    index.refresh(read_state(kept.stream.folder))
    assert len(index.segments) == segments
    assert index.segments[-1].end == kept.stream.latest[0]


# merging --------------------------------------------------------------------------------------------------------------


def not_now(source: Path, target: Path, compression: str) -> None:
    raise StoreError("not now")


def test_merging_is_a_process_of_its_own(keep: Keep) -> None:
    kept = keep(**SMALL)
    kept.stream.upkeep.merge = merging = MergeProcess()
    while len(kept.stream.summaries) < 2:
        kept.publish(b"x")
    merging.stop()
    assert kept.stream.counts.merged == 1
    assert kept.payloads() == [b"x"] * kept.stream.latest[0]


def test_one_process_merges_several_segments(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process is started only if the last one has ended: after it was idle, or because it was killed."""
    kept = keep(**SMALL)
    kept.stream.upkeep.merge = not_now
    while len(kept.stream.summaries) < 3:
        kept.publish(b"x")
    started: list[Any] = []
    popen = subprocess.Popen

    def start(*given: Any, **more: Any) -> Any:
        started.append(popen(*given, **more))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    merging = MergeProcess()
    source, target = kept.stream.log.segments[0].path, kept.stream.folder / "copy"
    for _ in range(3):
        merging(source, target, "zstd")
        target.unlink()
    assert len(started) == 1
    with pytest.raises(StoreError, match=f"merging {target}: .*No such file"):
        merging(target, target, "zstd")
    merging(source, target, "zstd")
    assert len(started) == 1
    started[0].stdin.close()  # it ends, as when it was idle
    assert started[0].wait(60) == 0
    merging(source, target, "zstd")
    assert len(started) == 2
    started[1].kill()
    started[1].wait(60)
    merging(source, target, "zstd")
    assert len(started) == 3
    merging.stop()
    assert started[2].wait(60) == -9
    monkeypatch.setattr("sys.executable", "/bin/false")
    merging = MergeProcess()
    with pytest.raises(StoreError, match=f"merging {source}: exit code 1"):
        merging(source, target, "zstd")
    merging.stop()


def test_a_kill_during_the_merge_loses_and_doubles_nothing(keep: Keep) -> None:
    kept = keep(partitions=2, **SMALL | {"compression": "zstd"})
    merging, kept.stream.upkeep.merge = kept.stream.upkeep.merge, not_now
    for number in range(60):
        kept.publish(b"%03d" % number * 20, topic=f"t/{number % 7}")
    before = [kept.rows(place) for place in range(2)]
    segment = kept.stream.log.segments[0].path
    target = segment.with_name(f"{segment.stem}.1.segment.new")
    merging(segment, target, "zstd")
    whole = target.read_bytes()
    for size in [*range(0, len(whole), len(whole) // 7), len(whole)]:
        kept.close()
        target.write_bytes(whole[:size])  # the copy, not renamed yet
        stream = kept.open()
        stream.upkeep.merge = not_now
        assert not target.exists()
        assert [kept.rows(place) for place in range(2)] == before
    kept.close()
    target.write_bytes(whole)
    target.rename(segment)  # renamed, but the broker does not know that
    kept.open()
    assert [kept.rows(place) for place in range(2)] == before
    kept.publish(b"next")
    kept.look()
    found = [row["payload"] for place in range(2) for row in kept.rows(place)]
    assert sorted(found) == sorted([*(b"%03d" % n * 20 for n in range(60)), b"next"])


def test_a_tail_of_many_small_blocks_is_sealed(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookmq_spark_sink.stream.TAIL_BLOCKS", 50)
    kept = keep()
    for number in range(120):
        kept.publish(b"%d" % number)
    assert kept.stream.counts.merged == 2
    assert kept.stream.log.size < 120 * 200
    assert kept.payloads() == [b"%d" % number for number in range(120)]
    # A file is not sealed while it is a small part of a large stream.
    kept.publish(*[random.randbytes(100_000) for _ in range(9)])
    kept.stream.log.roll = True
    kept.publish(b"x")
    segments = len(kept.stream.summaries)
    for _ in range(80):
        kept.publish(b"x")
    assert len(kept.stream.summaries) == segments


def test_an_idle_tail_is_sealed(keep: Keep) -> None:
    kept = keep()
    for number in range(300):
        kept.publish(b"%d" % number)
    before = kept.rows()
    kept.look()
    assert (len(kept.stream.summaries), kept.stream.counts.merged) == (1, 0)
    kept.runtime.advance(61)
    for _ in range(2):
        kept.look()
        assert (len(kept.stream.summaries), kept.stream.counts.merged) == (2, 1)
    assert kept.rows() == before
    index = StreamIndex(kept.stream.folder)
    index.refresh(read_state(kept.stream.folder))
    assert index.ends() == {0: (0, 300)}
    assert kept.open().latest == [300]
    kept.publish(b"next")
    index.refresh(read_state(kept.stream.folder))
    assert index.ends() == {0: (0, 301)}
    assert kept.rows()[:-1] == before


def test_closing_stops_merging(keep: Keep) -> None:
    kept = keep(**SMALL | {"compression": "zstd"})
    kept.stream.upkeep.merge, merging = not_now, MergeProcess()
    while len(kept.stream.summaries) < 2:
        kept.publish(b"x")
    kept.runtime.logged.clear()
    kept.stream.upkeep.merge = merging
    merging.stop()
    kept.stream.upkeep.look()
    kept.stream.upkeep.quiet(lambda: None)
    kept.runtime.run_until_idle()
    assert not kept.runtime.logged
    assert kept.stream.counts.merged == 0
    assert not list(kept.stream.folder.rglob("*.new"))
    path = kept.stream.log.segments[0].path
    with pytest.raises(Stopped):
        merging(path, path.with_name("never.segment.new"), "zstd")


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_small_blocks_of_sealed_segments_are_merged(keep: Keep, compression: str) -> None:
    kept = keep(partitions=3, **SMALL | {"compression": compression})
    merging, kept.stream.upkeep.merge = kept.stream.upkeep.merge, not_now
    for number in range(120):
        kept.publish(b"%d" % number, topic=f"t/{number % 7}")
    before = [kept.rows(place) for place in range(3)]
    index = StreamIndex(kept.stream.folder)
    index.refresh(read_state(kept.stream.folder))
    places = list(index.blocks(0, 0, 1 << 60))
    kept.stream.upkeep.merge = merging
    kept.look()
    assert kept.stream.counts.merged > 0
    assert [kept.rows(place) for place in range(3)] == before
    index.refresh(read_state(kept.stream.folder))
    assert len(list(index.blocks(0, 0, 1 << 60))) < len(places)
    for segment, place in places:  # readers continue with the old files
        assert parse(segment, place).base == place.base
    latest = kept.stream.latest
    stream = kept.open()
    assert stream.latest == latest
    assert [kept.rows(place) for place in range(3)] == before
    assert all(one.blocks <= 3 for one in stream.summaries[:-1])


def test_a_segment_that_cannot_be_merged_stays_as_it_is(keep: Keep) -> None:
    kept = keep(**SMALL)
    kept.publish(b"0")
    path = kept.stream.log.segments[0].path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    while len(kept.stream.summaries) < 2:
        kept.publish(b"x")
    content = bytearray(path.read_bytes())
    assert ("error", "spark_sink.upkeep_failed") in [one[:2] for one in kept.runtime.logged]
    assert path.read_bytes() == content
    assert not list(kept.stream.folder.rglob("*.new"))


# folders that are not what they were ----------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("lock", "state")
    }


def rename(folder: Path) -> None:
    described = json.loads((folder / "stream.json").read_text())
    (folder / "stream.json").write_text(json.dumps({**described, "name": "old"}))


def other_log(folder: Path) -> None:
    made = Stream(StreamConfig("other", ("#",)), folder.parent, VirtualRuntime())
    made.recover(CommitId("s", 0))
    made.close()
    shutil.rmtree(folder / "log")
    (folder.parent / "other" / "log").rename(folder / "log")


def flip(folder: Path) -> None:
    path = min((folder / "log").glob("*.segment"))
    content = bytearray(path.read_bytes())
    content[content.index(b"HqFr") + 12] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename, "contains the stream 'old', not 'all': it was renamed, or folders were swapped"),
        (lambda f: (f / "stream.json").unlink(), "stream.json is missing, but there are records"),
        (lambda f: (f / "stream.json").write_text("{"), "stream.json cannot be read"),
        (lambda f: (f / "stream.json").write_text('{"format": 1}'), "does not describe a stream"),
        (lambda f: (f / "stream.json").write_text('{"format": 2}'), "does not have format 1"),
        (lambda f: shutil.rmtree(f / "log"), "log is empty, but stream.json describes"),
        (other_log, "is not the log that stream.json describes"),
        (lambda f: (f / "trimmed.json").unlink(), "trimmed.json is missing"),
        (lambda f: (f / "trimmed.json").write_text("[]"), "trimmed.json does not have format 1"),
        (
            lambda f: (f / "trimmed.json").write_text('{"format": 1, "log_id": "x"}'),
            "another log",
        ),
        (lambda f: (f / "consumers.json").write_text("?"), "consumers.json cannot be read"),
        (lambda f: min((f / "log").glob("*.segment")).unlink(), "partition 0 goes from offset"),
        (flip, "is damaged at byte"),
        (lambda f: (f / "mosquitto.db").touch(), "unknown files: mosquitto.db"),
    ],
)
def test_a_damaged_stream_is_refused_and_not_changed(
    keep: Keep, damage: Callable[[Path], object], message: str
) -> None:
    kept = keep(**SMALL | {"retention_bytes": 9000})
    fill(kept)
    kept.look()
    kept.close()
    damage(kept.stream.folder)
    before = snapshot(kept.stream.folder)
    with pytest.raises(StoreError, match=message):
        kept.open()
    assert snapshot(kept.stream.folder) == before


def test_other_partitions_are_refused(keep: Keep) -> None:
    kept = keep(partitions=2)
    kept.publish(b"1")
    with pytest.raises(StoreError, match="has 2 partitions, but the configuration says 3"):
        kept.open(partitions=3)
    kept.open(partitions=2)
    assert sum(kept.stream.latest) == 1


def test_two_cannot_have_it(keep: Keep) -> None:
    kept = keep()
    with pytest.raises(StoreError, match="in use by another process"):
        kept.make().recover(CommitId("s", 0))
    assert kept.publish(b"still ours") == [None]


def test_a_crash_before_the_description_was_written_is_a_new_stream(keep: Keep) -> None:
    kept = keep()
    log_id = kept.stream.log.id
    (kept.stream.folder / "stream.json").unlink()
    kept.open()
    assert kept.stream.log.id == log_id
    assert (kept.stream.folder / "stream.json").exists()
