"""A stream: a journal that stores its messages in a segmented log.

All partitions of a stream share one log, so a commit costs one fsync, regardless of the number of partitions. Each
frame of the log contains a block of one partition.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from hookmq.mqtt_api import compile_filter
from hookmq.plugin import EMPTY, Message, Runtime, StoreError, Timer
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_toolkit.segment_log import FRAME_HEADER, Fill, SegmentLog
from hookmq_toolkit.state_folder import make_folder, refuse_foreign

from hookmq_spark_sink import block, files, placement
from hookmq_spark_sink.ages import Ages
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.consumers import ConsumerState, ConsumerWatch, states
from hookmq_spark_sink.index import SegmentIndex, closed_indexes
from hookmq_spark_sink.merge import worthwhile
from hookmq_spark_sink.retention import Merged, MergeProcess, Plan, Upkeep, keep_up, merge_one
from hookmq_spark_sink.space import PER_BLOCK, PER_RECORD, Space, properties_size

TAIL_BLOCKS: Final = 1 << 14
TAIL_BYTES: Final = 8 << 20
"""Numbers of blocks and bytes after which the newest segment may be sealed before it is full, so that its blocks are
merged and compressed soon."""
TAIL: Final = 16
"""A segment that is sealed before it is full has at least this part of the stream's size. Otherwise a large stream would
have too many files."""
IDLE: Final = 60.0
"""Seconds without a message after which the newest segment is sealed, if it has many blocks or bytes."""
IDLE_BLOCKS: Final = 256
IDLE_BYTES: Final = 1 << 20
REFUSING: Final = 60.0
"""Seconds after a refusal for which the stream counts as full."""
Rows = dict[int, list[Message]]


@dataclass(slots=True)
class Summary:
    """A summary of one segment: each partition's first offset and end. `newest` is a timestamp in µs, and `oldest` that
    of the newest message in the first block.
    """

    base: int
    end: int
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    newest: int = 0
    oldest: int = 0
    blocks: int = 0
    packed: int = 0
    size: int = 0

    def add(self, head: block.Head) -> None:
        """Add a block to the summary."""
        first = self.parts.get(head.partition, (head.base, 0))[0]
        self.parts[head.partition] = (first, head.end)
        self.newest = max(self.newest, head.max_timestamp)
        if not self.blocks:
            self.oldest = head.max_timestamp
        self.blocks += 1
        self.end += head.rows


def summary(index: SegmentIndex) -> Summary:
    """Return a summary of an indexed segment."""
    parts = {number: (part.bases[0], part.end) for number, part in index.parts.items()}
    newest = max((part.highs[-1] for part in index.parts.values()), default=0)
    oldest = min((part.highs[0] for part in index.parts.values()), default=0)
    return Summary(
        index.base, index.end, parts, newest, oldest, index.blocks, index.packed, index.position
    )


@dataclass
class Counts:
    """Counters for the metrics."""

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
    """A stream, which implements `Journal`, `Readable` and `Bounded` of `hookmq.storage_api`. Open it with
    `recover` and close it with `close`."""

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
        """The next offset of each partition."""
        self.latest = [0] * config.partitions
        """The end of the readable offsets of each partition."""
        self.ages = Ages(config.partitions)
        self.held = False
        """Whether retention keeps segments that are due, because a consumer has not committed them."""
        self.summaries: list[Summary] = []
        self.low_disk = False
        self._merger = MergeProcess()
        self.merge: Callable[[Path, Path, str], None] = self._merger
        """Merges and compresses a segment's blocks."""
        self.generation = 0
        self._runtime = runtime
        self._min_free = min_free
        self._boot = boot
        self._plugin = plugin
        self._filters = [compile_filter(one) for one in config.topics]
        self._placement: placement.Placement = placement.make(
            config.placement, config.partitions, self.next
        )
        self._places = self._placement.places
        self._groups: list[tuple[CommitId, Rows]] = []
        self._commit: CommitId | None = None
        """The commit of the newest message, whose rows are `_rows`; None if no message is buffered."""
        self._rows: Rows = {}
        self._unread: deque[tuple[int, dict[int, int]]] = deque()
        self._space = Space(config)
        self._pending = 0
        """Estimated size in bytes of the messages that are buffered but not yet written; never too low."""
        self._refused_at = float("-inf")
        self._state: files.StateFile | None = None
        self._state_failed = False
        self._told: files.Operation | None = None
        self._last_flush = float("-inf")
        self._fill = Fill(self._say_fill)
        self._waiting: Timer | None = None
        self._keeping = False
        self._again = False
        self._merging = False
        self._too_small: set[int] = set()
        """The segments that merging does not make smaller, by their first record."""
        self._after: list[Callable[[], None]] = []
        """Called when retention has ended."""
        self._closed = False
        self._quiet: list[Callable[[], None]] = []
        self._began = 0.0
        self._opened = 0.0
        self._watch = ConsumerWatch(config.consumers, self._log)

    # Journal ---------------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Return whether any of the stream's filters matches `topic`. A stream that is closing wants nothing."""
        return not self._closed and any(matches(topic) for matches in self._filters)

    @property
    def full(self) -> bool:
        """Return whether to refuse messages. They are refused if the disk is full, or if the stream has reached its
        hard limit and nothing may be deleted."""
        if self._pending < self._space.room and not self.low_disk:
            return False
        self.counts.refused += 1
        self._refused_at = self._runtime.now()
        self._fill.look(1.0)
        return True

    @property
    def fill(self) -> float:
        """Return the used fraction of `max_bytes`. With `on_full: reject`, messages are refused from 1.0 upwards."""
        return (self._space.used + self._pending) / self.config.max_bytes

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
    def refusing(self) -> bool:
        """Return whether messages are refused, or were refused within the last minute.

        A stream at its limit often has room for a few messages again a moment later, so the current state alone would
        hide refusals.
        """
        return (
            self.low_disk
            or self._pending >= self._space.room
            or self._runtime.now() - self._refused_at < REFUSING
        )

    def append(self, commit: CommitId, message: Message) -> None:
        """Buffer a message. `flush` writes it as part of a block."""
        topic = message.topic
        place = self._places.get(topic)
        if place is None:
            place = self._placement.place(topic)
        if commit is not self._commit:
            self._begin_commit(commit)
        size = PER_RECORD + 4 * (len(topic) + len(message.sender or "")) + len(message.payload)
        found = self._rows.get(place)
        if found is None:
            self._rows[place] = [message]
            size += PER_BLOCK
        else:
            found.append(message)
        self._pending += size
        if message.properties is not EMPTY:
            self._pending += properties_size(message)

    def _begin_commit(self, commit: CommitId) -> None:
        """Have `append` collect the messages of `commit` in `_rows`."""
        if self._commit != commit:
            self._rows = {}
            self._groups.append((commit, self._rows))
        self._commit = commit  # the caller usually passes the same object again

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Write all buffered messages as blocks with a single fsync."""
        groups, self._groups = self._groups, []
        self._commit = None
        self._placement.flushed()
        if not groups:
            self.log.flush(done)
            return
        self._space.writing, self._pending = self._pending, 0  # an estimate until it is encoded
        self._space.settle()
        wait = self._last_flush + self.config.flush_window - self._runtime.now()
        if wait > 0:
            self._waiting = self._runtime.call_later(wait, partial(self._flush, groups, done))
        else:
            self._flush(groups, done)

    def _flush(
        self,
        groups: list[tuple[CommitId, Rows]],
        done: Callable[[StoreFailed | None], None],
    ) -> None:
        self._waiting = None
        began = self._last_flush = self._runtime.now()
        made: list[tuple[int, block.Head]] = []
        size = 0
        small = self._space.writing <= block.MAX_BYTES  # so is each part of it
        for commit, rows in groups:
            for place, messages in rows.items():
                if small and len(messages) <= block.MAX_ROWS:
                    runs: Iterable[Sequence[Message]] = (messages,)
                else:
                    runs = block.split(messages, list(map(block.weight, messages)))
                for run in runs:
                    data = block.encode(place, self.next[place], run)
                    self.next[place] += len(run)
                    self.log.append(commit, data, len(run))
                    made.append((commit.number, block.read_head(data)))
                    size += len(data) + FRAME_HEADER
        self._space.writing = size
        self._space.settle()

        def written(failed: StoreFailed | None) -> None:
            if failed is None:
                self._space.writing = 0
                self._space.stored = self.log.size
                self._space.settle()
                self._written(made)
                counts = self.counts
                counts.flushes += 1
                counts.flush_seconds += self._runtime.now() - began
                counts.bytes += size
                self._look_at_fill()
            done(failed)

        write = partial(self.log.flush, written)
        if self._space.lacking():
            self._make_room(write)
        else:
            write()

    def _make_room(self, then: Callable[[], None]) -> None:
        """Delete the oldest segments, then call `then`. All but the newest can be deleted: the store has committed them,
        since it finishes each commit before the next is written."""
        if self._keeping:
            self._after.append(partial(self._make_room, then))
        elif self.look():
            self._after.append(then)
        else:
            then()

    def _written(self, made: list[tuple[int, block.Head]]) -> None:
        """Update the summaries on the event loop, before the next write starts."""
        segment = self.log.segments[-1]
        sealed = self._sealed_one()
        active = self.summaries[-1]
        ends: dict[int, int] = {}
        for _, head in made:
            active.add(head)
            self.ages.note(head.partition, head.end, head.max_timestamp)
            ends[head.partition] = head.end
            self.counts.records += head.rows
        self.counts.blocks += len(made)
        active.size = segment.size
        large = active.blocks >= TAIL_BLOCKS or active.size >= TAIL_BYTES
        if large and active.size * TAIL >= self._space.stored:
            self.log.roll = True
        self._unread.append((made[-1][0], ends))
        if sealed:
            self.look()

    def _sealed_one(self) -> bool:
        """Return whether a new segment has begun, and if so, add its summary."""
        segment = self.log.segments[-1]
        if self.summaries[-1].base == segment.base:
            return False
        self.summaries.append(Summary(segment.base, segment.base, size=segment.size))
        self._began = self._runtime.now()
        return True

    def _seal_idle(self) -> None:
        """Begin a new segment if no message has arrived for a while, so that the small blocks of the old one are
        merged."""
        log, active = self.log, self.summaries[-1]
        if (
            (active.blocks <= IDLE_BLOCKS and active.size <= IDLE_BYTES)
            or self._runtime.now() - self._last_flush < IDLE
            or log.readable < log.next
        ):
            return

        def sealed(failed: StoreFailed | None) -> None:
            if failed is None and not self._closed and self._sealed_one():
                self.look()

        log.roll = True
        log.flush(sealed)

    def committed(self, commit: CommitId) -> None:
        """Make the messages of `commit` visible to readers. The publishers of these messages are acknowledged next."""
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
            # Readers see fewer messages than they could, but nothing is lost.
            if not self._state_failed:
                self._log("error", "spark_sink.state_not_written", reason=str(error.strerror))
            self._state_failed = True

    def _tell_operation(self) -> None:
        """Write the counters for commands, if they have changed."""
        told = files.Operation(self.counts.refused, self.counts.dropped, self.refusing, self.held)
        if told != self._told and self._state is not None:
            self._told = told
            try:
                files.write_operation(self.folder, told)
            except OSError as error:
                self._log("error", "spark_sink.state_not_written", reason=str(error.strerror))

    def recover(self, last: CommitId) -> None:
        """Open the folder, creating it if necessary, and drop records that the store did not commit. This call blocks.

        Raises StoreError if the folder is damaged, belongs to another stream, has a different number of partitions,
        or is in use by another process.
        """
        try:
            self._open(last)
        except OSError as error:
            self.close()
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error
        except StoreError:
            self.close()
            raise

    def _open(self, last: CommitId) -> None:
        make_folder(self.folder)
        make_folder(self.folder / files.LOG)
        for left in (*self.folder.glob("*.new"),):
            left.unlink()
        refuse_foreign(self.folder, os.listdir(self.folder), files.KNOWN.__contains__)
        described = files.read_description(self.folder)
        self._check_name(described)
        self.log.open()
        self._check_log(described)
        trimmed = files.read_trimmed(self.folder, self.log.id)
        dropped = self.log.recover(last)
        if described is None:
            config = self.config
            described = files.Description(
                config.name, config.partitions, self.log.id, config.placement
            )
            files.write_description(self.folder, described)
        self._take_up(closed_indexes(self.folder), trimmed)
        for one in self.summaries:  # one sample for each segment
            for number, (_, end) in one.parts.items():
                self.ages.note(number, end, one.newest)
        self._placement = placement.make(described.placement, described.partitions, self.next)
        self._places = self._placement.places
        files.read_consumers(self.folder, self.log.id)
        self._state = files.StateFile(self.folder, self._boot)
        self._space.stored = self.log.size
        self._space.settle()
        files.write_declared(self.folder, self.config.consumers)
        self._began = self._opened = self._runtime.now()
        self._tell()
        if dropped:
            self._log("info", "spark_sink.uncommitted_dropped", records=dropped)

    def _check_name(self, described: files.Description | None) -> None:
        config = self.config
        if described is None:
            return
        if described.name != config.name:
            raise StoreError(
                f"{self.folder} contains the stream {described.name!r}, not {config.name!r}: it was renamed, or folders "
                "were swapped; restore its name, or move the folder away for a new stream"
            )
        if described.partitions != config.partitions:
            raise StoreError(
                f"{self.folder} has {described.partitions} partitions, but the configuration says {config.partitions}:"
                " that would break the order per topic; restore the number, or create a stream with another name"
            )
        if (described.placement == placement.ROUND_ROBIN) != (
            config.placement == placement.ROUND_ROBIN
        ):
            raise StoreError(
                f"{self.folder} was created with partition_by: {placement.setting(described.placement)}, but the "
                f"configuration says {config.partition_by}: restore it, or create a stream with another name"
            )

    def _check_log(self, described: files.Description | None) -> None:
        log = self.log
        if described is None:
            if log.next or any(segment.base for segment in log.segments):
                raise StoreError(
                    f"{self.folder / files.STREAM} is missing, but there are records; restore it"
                )
            return
        if not log.segments:
            raise StoreError(
                f"{self.folder / files.LOG} is empty, but {files.STREAM} describes a log; restore it, or move "
                "the whole folder away for a new stream"
            )
        if log.id != described.log_id:
            raise StoreError(
                f"{self.folder / files.LOG} is not the log that {files.STREAM} describes: folders were swapped"
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
                    raise StoreError(
                        f"{one.path} has a partition {number}, but the stream has fewer"
                    )
                expected = ends.get(number, trimmed.get(number, 0))
                begins = part.bases[0]
                # Retention may have been interrupted before it deleted every segment that was due.
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

    # retention and merging -------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Run retention, then merge the small blocks of sealed segments. Both run in threads, each one call at a time.
        Return whether retention was started."""
        if self._keeping:
            self._again = True
            return False
        if self._closed or self._state is None or self.log.failure is not None:
            return False
        self._keeping = True
        self._again = False
        now = self._runtime.now()
        if 0 < self.config.segment_time <= now - self._began:
            self.log.roll = True
            self._began = now
        self._seal_idle()
        merging = self._mergeable() if not self._merging else None
        plan = Plan(
            self.config,
            self.folder,
            self.log,
            self._sealed,
            list(self.earliest),
            self._runtime.time(),
            self._min_free,
            self._space.writing + self._space.copying + (merging.size if merging else 0),
        )

        def kept(result: Any, error: BaseException | None) -> None:
            self._keeping = False
            if isinstance(result, Upkeep):
                self._kept(result)
            if error is not None and not self._closed:
                self._log("error", "spark_sink.upkeep_failed", reason=str(error))
            after, self._after = self._after, []
            for call in after:
                call()
            self._merge_next()
            self._say_quiet()
            if self._again:
                self.look()

        self._runtime.run_blocking(partial(keep_up, plan), kept)
        return True

    @property
    def _sealed(self) -> list[Summary]:
        readable = self.log.readable
        return [one for one in self.summaries[:-1] if one.end <= readable]

    def _mergeable(self) -> Summary | None:
        """Return the oldest segment whose blocks are worth merging, or None."""
        return next(
            (
                one
                for one in self._sealed
                if one.base not in self._too_small
                and worthwhile(
                    one.blocks, one.packed, len(one.parts), one.size, self.config.compression
                )
            ),
            None,
        )

    def _merge_next(self) -> None:
        """Merge the blocks of one segment if there is room for its copy, then those of the next one."""
        if self._merging or self._closed or self.log.failure is not None:
            return
        one = self._mergeable()
        if one is None or not self._space.fits(one.size):
            return
        self._merging = True
        self._space.copying = one.size
        self._space.settle()

        def merged(result: Any, error: BaseException | None) -> None:
            self._merging = False
            self._space.copying = 0
            if isinstance(result, Merged):
                if result.size:
                    one.blocks, one.packed, one.size = result
                    self.counts.merged += 1
                    self.generation += 1
                    self._tell()
                else:
                    self._too_small.add(one.base)
            self._space.stored = self.log.size
            self._space.settle()
            if error is not None and not self._closed:
                self._log("error", "spark_sink.upkeep_failed", reason=str(error))
            elif error is None:
                self._merge_next()
            self._say_quiet()

        self._runtime.run_blocking(
            partial(merge_one, self.log, self.merge, self.config.compression, one), merged
        )

    def _say_quiet(self) -> None:
        if not self._keeping and not self._merging:
            quiet, self._quiet = self._quiet, []
            for call in quiet:
                call()

    def _kept(self, result: Upkeep) -> None:
        for one in result.problems:
            self._log("error", "spark_sink.upkeep_failed", reason=one)
        seconds = self._runtime.now() - self._opened
        self._watch.look(result.consumers, self.latest != self.earliest, seconds)
        if result.held != self.held:
            self.held = result.held
            if result.held:
                self._log("warning", "spark_sink.retention_held", consumers=sorted(result.holders))
        self._tell_operation()
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
            self.generation += 1
            self._tell()
        self._too_small &= {one.base for one in self.summaries}
        self._space.stored = self.log.size
        self._space.settle()
        self._look_at_fill()

    def quiet(self, done: Callable[[], None]) -> None:
        """Begin to close: want no more messages, and stop retention and merging. Call `done` after the last thread has
        finished."""
        self._closed = True
        self._merger.stop()
        self._quiet.append(done)
        self._say_quiet()

    def consumers(self) -> list[ConsumerState]:
        """Return the declared consumers and those that have committed, declared ones first.

        Reads a small file. Raises StoreError if the file is damaged.
        """
        known = files.read_consumers(self.folder, self.log.id)
        return states(self.config.consumers, known, self.earliest, self.latest, self.ages.time)

    @property
    def size(self) -> int:
        """Return the stored size in bytes, including an estimate for buffered messages."""
        return self._space.stored + self._space.writing + self._pending

    @property
    def oldest(self) -> float | None:
        """Return the approximate time of the oldest message in epoch seconds, or None if the stream is empty."""
        return next((one.oldest / 1e6 for one in self.summaries if one.blocks), None)

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._runtime.log(level, event, plugin=self._plugin, stream=self.config.name, **fields)

    def close(self) -> None:
        """Close the stream."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        if self._state is not None:
            self._state.close()
            self._state = None
        self.log.close()
