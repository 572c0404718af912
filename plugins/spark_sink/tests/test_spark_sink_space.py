"""Test `max_bytes` against the bytes on disk. The newest file, blocks being written and copies for merging all count."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import EMPTY, Message, Properties
from hookmq.storage_api import CommitId
from hookmq_spark_sink import files
from hookmq_spark_sink.reading import StreamReader
from hookmq_spark_sink.retention import merge_one

Keep = Callable[..., Any]
MAX = 1 << 16
SMALL = {
    "segment_size": 4096,
    "max_bytes": MAX,
    "retention_bytes": 0,
    "retention_time": 0,
    "compression": "none",  # the sizes below are those of the messages
}
PROPERTIES = Properties(
    content_type="t" * 200,
    response_topic="r" * 200,
    correlation_data=b"c" * 200,
    user_property=(("ключ" * 50, "значение" * 50), ("a", "b")),
)


def on_disk(folder: Path) -> int:
    """Return the total size of a log's files, in bytes."""
    return sum(path.stat().st_size for path in (folder / "log").iterdir())


def messages(kind: str) -> Callable[[int], Message]:
    """Return a function that creates messages whose size is easily underestimated."""
    made: dict[str, Callable[[int], Message]] = {
        "small": lambda n: Message(f"t/{n}", b"", 1),
        "topics": lambda n: Message(f"{n}" + "тема/" * 40, b"x", 1, sender="клиент" * 20),
        "properties": lambda n: Message(f"t/{n}", b"x", 1, properties=PROPERTIES, sender="me"),
        "large": lambda n: Message(f"t/{n}", bytes(9000), 1, sender="me"),
    }
    return made[kind]


@pytest.mark.parametrize("commit_size", [1, 40])
@pytest.mark.parametrize("kind", ["small", "topics", "properties", "large"])
def test_reject_exceeds_the_limit_by_one_message_at_most(
    keep: Keep, kind: str, commit_size: int
) -> None:
    kept = keep(partitions=4, **SMALL)
    make, stream, refused = messages(kind), kept.stream, 0
    largest = max(len(make(n).payload) for n in range(9)) + 10_000 * (kind == "properties") + 2048
    number = 0
    while refused < 3:
        kept.commit += 1
        commit = CommitId("s", kept.commit)
        for _ in range(commit_size):
            number += 1
            if stream.full:
                refused += 1
                break
            stream.append(commit, make(number))
        stream.flush(commit, lambda failed: None)
        kept.runtime.run_until_idle()
        stream.committed(commit)
        kept.runtime.run_until_idle()
        assert on_disk(stream.folder) <= MAX + largest
    assert sum(stream.latest) == number - 3
    assert on_disk(stream.folder) > MAX // 4


class Slow:
    """Delays merging while a file's copy is on disk."""

    def __init__(self, runtime: Any) -> None:
        self.held: list[tuple[Any, Any]] = []
        self.copies: list[Path] = []
        self._run = runtime.run_blocking
        runtime.run_blocking = self.run

    def run(self, call: Any, done: Any) -> Any:
        if getattr(call, "func", None) is not merge_one:
            return self._run(call, done)
        log, _, _, one = call.args
        source = next(s.path for s in log.segments if s.base == one.base)
        copy = source.with_suffix(".copy")
        copy.write_bytes(bytes(one.size))
        self.copies.append(copy)
        self.held.append((call, done))
        return lambda: None

    def release(self) -> None:
        held, self.held = self.held, []
        for copy in self.copies:
            copy.unlink()
        self.copies = []
        for call, done in held:
            self._run(call, done)


def test_drop_oldest_keeps_the_limit_while_files_are_merged(keep: Keep) -> None:
    kept = keep(partitions=2, on_full="drop_oldest", **SMALL | {"compression": "zstd"})
    slow = Slow(kept.runtime)
    merges = 0
    for number in range(160):
        made = kept.publish(*[b"%04d" % number] * (30 + number % 60), topic=f"t/{number % 5}")
        assert made in ([], [None])
        assert on_disk(kept.stream.folder) <= MAX
        assert kept.stream.full is False
        if number % 20 == 19:
            merges += len(slow.held)
            slow.release()
            kept.runtime.run_until_idle()
            assert on_disk(kept.stream.folder) <= MAX
    assert merges > 3
    assert kept.stream.counts.merged > 0
    assert kept.stream.earliest != [0, 0]
    assert on_disk(kept.stream.folder) > MAX // 2


def test_drop_oldest_keeps_the_limit_with_the_largest_commits(keep: Keep) -> None:
    kept = keep(on_full="drop_oldest", **SMALL)
    message = Message("t", bytes(500), 1)
    for _ in range(12):
        kept.commit += 1
        commit = CommitId("s", kept.commit)
        appended = 0
        while not kept.stream.full:
            kept.stream.append(commit, message)
            appended += 1
        assert 30 < appended < 60
        kept.stream.flush(commit, lambda failed: None)
        kept.runtime.run_until_idle()
        kept.stream.committed(commit)
        kept.runtime.run_until_idle()
        assert on_disk(kept.stream.folder) <= MAX
    assert kept.stream.counts.refused == 12


def test_files_that_cannot_be_deleted_end_in_refusals(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(on_full="drop_oldest", **SMALL)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("hookmq_spark_sink.files.write_trimmed", fail)
    published = 0
    while not kept.stream.full:
        kept.publish(b"x" * 3000)
        published += 1
        assert published < 40
    assert on_disk(kept.stream.folder) <= MAX + 3000 + 512
    assert ("error", "spark_sink.upkeep_failed") in [one[:2] for one in kept.runtime.logged]
    monkeypatch.undo()
    kept.look()
    assert kept.stream.full is False
    assert on_disk(kept.stream.folder) <= MAX


def test_the_metric_tells_of_refusals_for_a_minute(keep: Keep) -> None:
    kept = keep(**SMALL)
    commit = CommitId("s", 1)
    while not kept.stream.full:
        kept.stream.append(commit, Message("t" * 60, b"x", 1, properties=EMPTY))
    for _ in range(399):
        assert kept.stream.full
    kept.stream.flush(commit, lambda failed: None)
    kept.runtime.run_until_idle()
    kept.stream.committed(commit)
    assert kept.stream.counts.refused == 400
    assert kept.stream.fill < 1  # the blocks are smaller than the estimate
    assert kept.stream.refusing
    kept.runtime.advance(61)
    assert not kept.stream.refusing


def test_a_copy_that_is_not_smaller_is_not_used(keep: Keep) -> None:
    kept = keep(**SMALL)
    tried: list[int] = []

    def larger(source: Path, target: Path, compression: str) -> None:
        tried.append(1)
        target.write_bytes(source.read_bytes() + b"x")

    kept.stream.upkeep.merge = larger
    while len(kept.stream.summaries) < 2:
        kept.publish(b"x")
    kept.look()
    assert tried == [1]
    assert kept.stream.counts.merged == 0
    assert kept.payloads() == [b"x"] * kept.stream.latest[0]
    assert on_disk(kept.stream.folder) == kept.stream.log.size


def test_a_segment_that_retention_deletes_during_the_merge(keep: Keep) -> None:
    kept = keep(**SMALL | {"retention_bytes": 8000})
    slow = Slow(kept.runtime)
    for number in range(40):
        kept.publish(b"%04d" % number)
    assert slow.held
    kept.look()
    slow.release()
    kept.runtime.run_until_idle()
    assert not [one for one in kept.runtime.logged if one[1] == "spark_sink.upkeep_failed"]
    assert kept.stream.earliest[0] > 0
    assert kept.rows()[0]["offset"] == kept.stream.earliest[0]


def test_a_reader_lets_go_of_deleted_files(keep: Keep) -> None:
    kept = keep(consumers=("a",), **SMALL | {"retention_bytes": 8000})
    reader = StreamReader(kept.stream.folder, None)
    reader.let_go()  # nothing is open yet
    for number in range(40):
        kept.publish(b"%04d" % number * 100)
    reader.refresh()
    known = {"a": files.Consumer({0: 40}, 1.0)}
    files.write_consumers(kept.stream.folder, kept.stream.log.id, known)
    kept.look()
    kept.publish(b"x")

    def deleted() -> list[str]:
        folder = str(kept.stream.folder)
        links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        return [one for one in links if one.startswith(folder) and one.endswith(" (deleted)")]

    assert deleted()
    reader.let_go()
    assert deleted() == []
    before = reader.state
    reader.let_go()
    assert reader.state is before
    reader.index.close()
