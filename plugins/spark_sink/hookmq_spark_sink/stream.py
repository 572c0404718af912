"""A stream: the journal that keeps its messages in a segmented log. One log per stream, so that a commit costs one fsync
however many partitions it touches; a frame of it is a block of one partition."""

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from hookmq import topics
from hookmq.errors import StoreError
from hookmq.plugin import Message
from hookmq.runtime import Runtime, Timer
from hookmq.segments import Fill, SegmentLog
from hookmq.store import CommitId, StoreFailed

from hookmq_spark_sink import block, files
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.index import SegmentIndex, closed_indexes
from hookmq_spark_sink.retention import Plan, Upkeep, keep_up, merge_beside

PER_RECORD: Final = 64
"""Bytes that a message costs beside topic and payload, about."""
_REMEMBERED: Final = 1 << 16
"""Topics whose partition is remembered."""
Rows = dict[int, list[Message]]


@dataclass(slots=True)
class Summary:
    """What is in one segment, by partition its first offset and the one after its last; `newest` is a timestamp, µs."""

    base: int
    end: int
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    newest: int = 0
    blocks: int = 0
    size: int = 0

    def add(self, head: block.Head) -> None:
        """Another block."""
        first = self.parts.get(head.partition, (head.base, 0))[0]
        self.parts[head.partition] = (first, head.end)
        self.newest = max(self.newest, head.max_timestamp)
        self.blocks += 1
        self.end += head.rows


def summary(index: SegmentIndex) -> Summary:
    """Of an indexed segment."""
    parts = {number: (part.bases[0], part.end) for number, part in index.parts.items()}
    newest = max((part.highs[-1] for part in index.parts.values()), default=0)
    return Summary(index.base, index.end, parts, newest, index.blocks, index.position)


@dataclass
class Counts:
    """What the exporter shows."""

    records: int = 0
    bytes: int = 0
    blocks: int = 0
    flushes: int = 0
    flush_seconds: float = 0.0
    removed: int = 0
    dropped: int = 0
    merged: int = 0
    refused: int = 0


class Stream:
    """One stream. `hookmq.store.Journal`, `Readable` and `Bounded`; `recover` opens it, `close` lets go."""

    def __init__(
        self,
        config: StreamConfig,
        path: Path,
        runtime: Runtime,
        *,
        sync: bool = True,
        min_free: int = 0,
        boot: bytes = b"\0" * 16,
        plugin: str = "spark_sink",
    ) -> None:
        self.config = config
        self.name = f"{plugin}: stream {config.name}"
        self.folder = path / config.name
        self.counts = Counts()
        self.log = SegmentLog(
            self.folder / files.LOG,
            runtime.run_blocking,
            segment_size=config.segment_size,
            sync=sync,
            verify=False,
        )
        self.earliest = [0] * config.partitions
        self.next = [0] * config.partitions
        """The offset that the next record of each partition gets."""
        self.latest = [0] * config.partitions
        """How far readers may go."""
        self.summaries: list[Summary] = []
        self.low_disk = False
        self.merge: Callable[[Path, Path], None] = merge_beside
        """How a segment's small blocks are merged."""
        self.generation = 0
        self._runtime = runtime
        self._min_free = min_free
        self._boot = boot
        self._plugin = plugin
        self._filters = [topics.compile_filter(one) for one in config.topics]
        self._places: dict[str, int] = {}
        self._groups: list[tuple[CommitId, Rows]] = []
        self._unread: deque[tuple[int, dict[int, int]]] = deque()
        self._stored = 0
        self._pending = 0
        """Bytes, about, that were appended and not yet written."""
        self._state: files.StateFile | None = None
        self._state_failed = False
        self._last_flush = float("-inf")
        self._fill = Fill(self._say_fill)
        self._waiting: Timer | None = None
        self._keeping = False
        self._again = False
        self._closed = False
        self._quiet: list[Callable[[], None]] = []
        self._began = 0.0

    # hookmq.store.Journal ---------------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Whether any of the stream's filters matches."""
        return any(matches(topic) for matches in self._filters)

    @property
    def full(self) -> bool:
        """Whether to refuse messages: the hard limit is reached and nothing may be deleted for new ones, or the disk has
        no room left."""
        if self.no_room:
            self.counts.refused += 1
            self._fill.look(1.0)
            return True
        return False

    @property
    def fill(self) -> float:
        """How much of `max_bytes` is used; with `on_full: reject` nothing is taken from 1.0 on."""
        return (self._stored + self._pending) / self.config.max_bytes

    def _look_at_fill(self) -> None:
        if self.config.on_full == "reject":
            self._fill.look(max(self.fill, 1.0 if self.low_disk else 0.0))

    def _say_fill(self, word: str, share: float) -> None:
        fields = {"share": round(share, 2), "bytes": self.size, "max_bytes": self.config.max_bytes}
        if word == "filling":
            self._log("warning", "spark_sink.stream_filling", **fields)
        elif word == "full":
            self._log("warning", "spark_sink.stream_full", **fields)
        else:
            self._log("info", "spark_sink.stream_has_room", **fields)

    @property
    def no_room(self) -> bool:
        """As `full`, which also counts."""
        return self.low_disk or (
            self._stored + self._pending >= self.config.max_bytes
            and self.config.on_full == "reject"
        )

    def append(self, commit: CommitId, message: Message) -> None:
        """Buffer a message. Becomes part of a block at the flush."""
        topic = message.topic
        place = self._places.get(topic)
        if place is None:
            place = self._place(topic)
        groups = self._groups
        if not groups or groups[-1][0] != commit:
            groups.append((commit, {}))
        rows = groups[-1][1]
        found = rows.get(place)
        if found is None:
            rows[place] = [message]
        else:
            found.append(message)
        self._pending += PER_RECORD + len(topic) + len(message.payload)

    def _place(self, topic: str) -> int:
        if len(self._places) >= _REMEMBERED:
            self._places.clear()
        place = self._places[topic] = crc32(block.utf8(topic)) % self.config.partitions
        return place

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Make blocks of what was appended, write and fsync them: all of them at once."""
        groups, self._groups = self._groups, []
        if not groups:
            self.log.flush(done)
            return
        pending, self._pending = self._pending, 0
        self._stored += pending  # until it is known exactly
        wait = self._last_flush + self.config.flush_window - self._runtime.now()
        if wait > 0:
            self._waiting = self._runtime.call_later(
                wait, partial(self._flush, groups, pending, done)
            )
        else:
            self._flush(groups, pending, done)

    def _flush(
        self,
        groups: list[tuple[CommitId, Rows]],
        pending: int,
        done: Callable[[StoreFailed | None], None],
    ) -> None:
        self._waiting = None
        began = self._last_flush = self._runtime.now()
        made: list[tuple[int, block.Head]] = []
        size = 0
        for commit, rows in groups:
            for place, messages in rows.items():
                weights = list(map(block.weight, messages))
                for run in block.split(messages, weights):
                    data = block.encode(place, self.next[place], run)
                    self.next[place] += len(run)
                    self.log.append(commit, data, len(run))
                    made.append((commit.number, block.read_head(data)))
                    size += len(data)

        def written(failed: StoreFailed | None) -> None:
            if failed is None:
                self._stored += size - pending
                self._written(made)
                counts = self.counts
                counts.flushes += 1
                counts.flush_seconds += self._runtime.now() - began
                counts.bytes += size
                self._look_at_fill()
            done(failed)

        self.log.flush(written)

    def _written(self, made: list[tuple[int, block.Head]]) -> None:
        """On the loop; nothing else is being written yet."""
        segment = self.log.segments[-1]
        sealed = False
        if self.summaries[-1].base != segment.base:
            sealed = True
            self.summaries.append(Summary(segment.base, segment.base))
            self._began = self._runtime.now()
        active = self.summaries[-1]
        ends: dict[int, int] = {}
        for _, head in made:
            active.add(head)
            ends[head.partition] = head.end
            self.counts.records += head.rows
        self.counts.blocks += len(made)
        active.size = segment.size
        self._unread.append((made[-1][0], ends))
        if sealed:
            self.look()

    def committed(self, commit: CommitId) -> None:
        """Whoever published is going to be told: now readers may see it."""
        self.log.committed(commit)
        moved = False
        while self._unread and self._unread[0][0] <= commit.number:
            for place, end in self._unread.popleft()[1].items():
                self.latest[place] = end
            moved = True
        if moved:
            self._tell()

    def _tell(self) -> None:
        if self._state is None:
            return
        try:
            self._state.write(self.generation, self.log.readable, self.earliest, self.latest)
            self._state_failed = False
        except OSError as error:
            # Readers see less than they could; nothing is lost.
            if not self._state_failed:
                self._log("error", "spark_sink.state_not_written", reason=str(error.strerror))
            self._state_failed = True

    def recover(self, last: CommitId) -> None:
        """Open the folder, which is made if it is not there, and drop what the store did not commit. Blocks. Raises
        StoreError: damage, another stream's folder, another number of partitions, another process that has it."""
        try:
            self._open(last)
        except OSError as error:
            self.close()
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error
        except StoreError:
            self.close()
            raise

    def _open(self, last: CommitId) -> None:
        make_folders(self.folder)
        for left in (*self.folder.glob("*.new"),):
            left.unlink()
        strange = sorted(set(os.listdir(self.folder)) - files.KNOWN)
        if strange:
            raise StoreError(
                f"{self.folder} holds files of something else: {', '.join(strange[:3])}"
            )
        described = files.read_description(self.folder)
        self._check_name(described)
        self.log.open()
        self._check_log(described)
        trimmed = files.read_trimmed(self.folder, self.log.id)
        dropped = self.log.recover(last)
        if described is None:
            made = files.Description(self.config.name, self.config.partitions, self.log.id)
            files.write_description(self.folder, made)
        self._take_up(closed_indexes(self.folder), trimmed)
        files.read_consumers(self.folder, self.log.id)
        self._state = files.StateFile(self.folder, self._boot)
        self._stored = self.log.size
        self._began = self._runtime.now()
        self._tell()
        if dropped:
            self._log("info", "spark_sink.uncommitted_dropped", records=dropped)

    def _check_name(self, described: files.Description | None) -> None:
        config = self.config
        if described is None:
            return
        if described.name != config.name:
            raise StoreError(
                f"{self.folder} holds the stream {described.name!r}, not {config.name!r}: it was renamed, or folders "
                "were swapped; give it its name back, or move the folder away for a new stream"
            )
        if described.partitions != config.partitions:
            raise StoreError(
                f"{self.folder} has {described.partitions} partitions, the configuration says {config.partitions}: that "
                "would break the order per topic; put the number back, or make a stream with another name"
            )

    def _check_log(self, described: files.Description | None) -> None:
        log = self.log
        if described is None:
            if log.next or any(segment.base for segment in log.segments):
                raise StoreError(
                    f"{self.folder / files.STREAM} is missing, but there are records: put it back"
                )
            return
        if not log.segments:
            raise StoreError(
                f"{self.folder / files.LOG} is empty, but {files.STREAM} says that there is a log: put it back, or move "
                "the whole folder away for a new stream"
            )
        if log.id != described.log_id:
            raise StoreError(
                f"{self.folder / files.LOG} is another log than the one {files.STREAM} is about: folders were swapped"
            )

    def _take_up(self, segments: list[SegmentIndex], trimmed: dict[int, int]) -> None:
        self.summaries = [summary(segment) for segment in segments]
        first = segments[0].base if segments else 0
        if first and not trimmed:
            raise StoreError(
                f"{self.folder / files.TRIMMED} is missing: records were deleted before"
            )
        ends: dict[int, int] = {}
        for one in segments:
            for number, part in one.parts.items():
                if number >= self.config.partitions:
                    raise StoreError(f"{one.path} has a partition {number}: there are fewer")
                expected = ends.get(number, trimmed.get(number, 0))
                begins = part.bases[0]
                # Retention may have been interrupted before it deleted all that it was going to.
                if begins > expected or (begins != expected and number in ends):
                    raise StoreError(
                        f"{one.path}: partition {number} goes from offset {expected} to {begins}"
                    )
                ends[number] = part.end
        first_of = {
            number: part.bases[0]
            for one in reversed(segments)
            for number, part in one.parts.items()
        }
        for number in range(self.config.partitions):
            at = trimmed.get(number, 0)
            self.earliest[number] = max(at, first_of.get(number, 0))
            self.next[number] = self.latest[number] = max(ends.get(number, 0), at)

    # keeping up -------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Have retention look, and merge small blocks of sealed segments; in a thread, one at a time."""
        if self._keeping:
            self._again = True
            return
        if self._closed or self._state is None or self.log.failure is not None:
            return
        self._keeping = True
        self._again = False
        now = self._runtime.now()
        if 0 < self.config.segment_time <= now - self._began:
            self.log.roll = True
            self._began = now
        readable = self.log.readable
        sealed = [one for one in self.summaries[:-1] if one.end <= readable]
        plan = Plan(
            self.config,
            self.folder,
            self.log,
            sealed,
            list(self.earliest),
            self._runtime.time(),
            self._min_free,
            self.merge,
        )

        def kept(result: Any, error: BaseException | None) -> None:
            self._keeping = False
            quiet, self._quiet = self._quiet, []
            for call in quiet:
                call()
            if isinstance(result, Upkeep):
                self._kept(result)
            if error is not None and not self._closed:
                self._log("error", "spark_sink.upkeep_failed", reason=str(error))
            if self._again:
                self.look()

        self._runtime.run_blocking(partial(keep_up, plan), kept)

    def _kept(self, result: Upkeep) -> None:
        for one in result.problems:
            self._log("error", "spark_sink.upkeep_failed", reason=one)
        if result.low_disk != self.low_disk:
            self.low_disk = result.low_disk
            if result.low_disk:
                self._log("warning", "spark_sink.disk_low", free=result.free, refused=True)
            else:
                self._log("info", "spark_sink.disk_has_room", free=result.free)
        if result.removed:
            gone = {id(one) for one in result.removed}
            self.summaries = [one for one in self.summaries if id(one) not in gone]
            for place, end in result.earliest.items():
                self.earliest[place] = max(self.earliest[place], end)
            self.counts.removed += sum(one.end - one.base for one in result.removed)
            self.counts.dropped += result.dropped
            if result.dropped:
                self._log("warning", "spark_sink.unread_dropped", records=result.dropped)
        for merged, blocks, size in result.merged:
            merged.blocks, merged.size = blocks, size
            self.counts.merged += 1
        if result.removed or result.merged:
            self.generation += 1
            self._tell()
        self._stored = self.log.size
        self._look_at_fill()

    def quiet(self, done: Callable[[], None]) -> None:
        """Have `done` called when nothing is at work in a thread; no retention and no merging from now on."""
        self._closed = True
        if self._keeping:
            self._quiet.append(done)
        else:
            done()

    def lag(self) -> dict[str, int]:
        """Records that each consumer did not commit, declared ones first. Reads a small file. Raises StoreError."""
        known = files.read_consumers(self.folder, self.log.id)
        found: dict[str, int] = {}
        for name in (*self.config.consumers, *known):
            one = known.get(name)
            found[name] = sum(
                latest - max(earliest, one.offsets.get(place, 0) if one else 0)
                for place, (earliest, latest) in enumerate(
                    zip(self.earliest, self.latest, strict=True)
                )
            )
        return found

    @property
    def size(self) -> int:
        """Bytes, of what is buffered about."""
        return self._stored + self._pending

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._runtime.log(level, event, plugin=self._plugin, stream=self.config.name, **fields)

    def close(self) -> None:
        """Let go of the folder."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        if self._state is not None:
            self._state.close()
            self._state = None
        self.log.close()


def make_folders(folder: Path) -> None:
    """Make a folder and those above it, each of them safe. Raises OSError."""
    missing: list[Path] = []
    at = folder.absolute()
    while not at.exists():
        missing.append(at)
        at = at.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700)
        files.sync_folder(one.parent)
    (folder / files.LOG).mkdir(mode=0o700, exist_ok=True)
    files.sync_folder(folder)
