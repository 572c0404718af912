"""A stream: a journal that stores its messages in a segmented log.

All partitions of a stream share one log, so a commit costs one fsync however many partitions there are. Each frame of
the log contains a block of one partition.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from hookmq.mqtt_api import compile_filter
from hookmq.plugin import Message, Runtime, StoreError, Timer
from hookmq.storage_api import CommitId, MessageColumns, StoreFailed
from hookmq_toolkit.segment_log import FRAME_HEADER, Fill, SegmentLog
from hookmq_toolkit.state_folder import make_folder, refuse_foreign

from hookmq_spark_sink import block, building, files, placement, recovery
from hookmq_spark_sink.ages import Ages
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.consumers import ConsumerState, states
from hookmq_spark_sink.index import closed_indexes
from hookmq_spark_sink.space import Space
from hookmq_spark_sink.summary import Counts, Summary, summary
from hookmq_spark_sink.upkeep import StreamUpkeep

TAIL_BLOCKS: Final = 1 << 14
TAIL_BYTES: Final = 8 << 20
"""The number of blocks, and of bytes, from which the newest segment may be sealed before it is full. Its blocks are then
merged and compressed soon."""
TAIL: Final = 16
"""A segment that is sealed before it is full has at least the stream's size divided by this number. Otherwise, a large
stream would have too many files.
"""
REFUSING: Final = 60.0
"""Seconds for which the stream counts as full after a refusal."""
_NONE: Final = CommitId("", 0)
"""The commit of messages that need no commit of the store."""
_Done = Callable[[StoreFailed | None], None]
Parts = list[tuple[int, MessageColumns]]
"""Messages with their partitions."""


class Stream:
    """A stream. It implements `Journal`, `Readable`, `Sealing` and `Bounded` from `hookmq.storage_api`. Open it with
    `recover` and close it with `close`.
    """

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
        """The end of each partition's readable offsets."""
        self.ages = Ages(config.partitions)
        self.summaries: list[Summary] = []
        self.generation = 0
        self._runtime = runtime
        self._boot = boot
        self._plugin = plugin
        self._filters = [compile_filter(one) for one in config.topics]
        self._placement: placement.Placement = placement.make(
            config.placement, config.partitions, self.next
        )
        self._places = None if self._placement.mixed else self._placement.places
        self._groups: list[tuple[CommitId, Parts]] = []
        self._commit: CommitId | None = None
        """The commit of the newest message passed to `append`; None if no message is buffered."""
        self._columns: dict[int, MessageColumns] = {}
        """The buffered messages of each partition. With `partition_by: round_robin`, partition 0 has those of all."""
        self._unread: deque[tuple[int, dict[int, int]]] = deque()
        self.space = Space(config)
        self._room = self.space.pending
        self._refused_at = float("-inf")
        self._state: files.StateFile | None = None
        self._state_failed = False
        self._told: files.Operation | None = None
        self.last_flush = float("-inf")
        self._fill = Fill(self._say_fill)
        self._waiting: Timer | None = None
        self.closed = False
        self.upkeep = StreamUpkeep(self, runtime, min_free)

    # Journal ---------------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Return whether any of the stream's filters matches `topic`. A stream that is closing stores none."""
        return not self.closed and any(matches(topic) for matches in self._filters)

    @property
    def full(self) -> bool:
        """Return whether messages must be refused. They are refused if the disk is full, or if the stream has reached
        its hard limit and nothing may be deleted.
        """
        if self._room.used < self._room.limit:
            return False
        self.counts.refused += 1
        self._refused_at = self._runtime.now()
        self._fill.look(1.0)
        return True

    @property
    def fill(self) -> float:
        """Return how much of `max_bytes` is used, as a fraction. With `on_full: reject`, messages are refused from 1.0
        on.
        """
        return (self.space.used + self._room.used) / self.config.max_bytes

    def look_at_fill(self) -> None:
        """Log an event if the stream has become nearly full or full, or has room again."""
        if self.config.on_full == "reject":
            self._fill.look(max(self.fill, 1.0 if self.upkeep.low_disk else 0.0))

    def _say_fill(self, word: str, share: float) -> None:
        fields = {"share": round(share, 2), "bytes": self.size, "max_bytes": self.config.max_bytes}
        if word == "filling":
            self.tell("warning", "spark_sink.stream_filling", **fields)
        elif word == "full":
            self.tell("warning", "spark_sink.stream_full", **fields)
        else:
            self.tell("info", "spark_sink.stream_has_room", **fields)

    @property
    def refusing(self) -> bool:
        """Return whether messages are refused, or were refused within the last minute.

        A stream at its limit often has room for a few more messages a moment later. The current state alone would
        therefore hide refusals.
        """
        return (
            self._room.used >= self._room.limit or self._runtime.now() - self._refused_at < REFUSING
        )

    def columns(self, topic: str) -> MessageColumns:
        """Return the columns for the partition of `topic`. With `partition_by: round_robin`, all partitions share the
        columns.
        """
        if self._places is None:
            place = 0
        else:
            known = self._places.get(topic)
            place = self._placement.place(topic) if known is None else known
        found = self._columns.get(place)
        if found is None:
            found = self._columns[place] = MessageColumns(self._room)
        return found

    def append(self, commit: CommitId, message: Message) -> None:
        """Buffer a message, which `flush` will write as part of a block."""
        if commit is not self._commit:
            if self._commit is not None and commit != self._commit:
                self._end_commit(self._commit)
            self._commit = commit  # the caller usually passes the same object again
        self.columns(message.topic).add_message(message)

    def _end_commit(self, commit: CommitId) -> None:
        """Take the buffered messages, which belong to `commit`, out of the columns."""
        parts: Parts = []
        for place, columns in self._columns.items():
            if len(columns):
                parts += self._divided(place, columns.take())
        self._placement.flushed()
        if parts:
            self._groups.append((commit, parts))

    def _divided(self, place: int, columns: MessageColumns) -> Parts:
        """Return the buffered messages, divided by partition."""
        if self._places is not None:
            return [(place, columns)]
        parts: Parts = []
        at = 0
        for chosen, same in groupby(map(self._placement.place, columns.topics)):
            end = at + sum(1 for _ in same)
            parts.append((chosen, columns.part(at, end)))
            at = end
        return parts

    def flush(self, commit: CommitId, done: _Done) -> None:
        """Write all buffered messages as blocks with a single fsync."""
        self._store(commit, self.log.flush, done)

    def seal(self, done: _Done) -> bool:
        """Write all buffered messages, and make them visible to readers, without a commit of the broker's store."""
        if not self.log.sealable:
            return False

        def sealed(failed: StoreFailed | None) -> None:
            if failed is None:
                self._reveal()
            done(failed)

        self._store(_NONE, self.log.seal, sealed)
        return True

    def _store(self, commit: CommitId, store: Callable[[_Done], None], done: _Done) -> None:
        """Write all buffered messages with `store`. `commit` is that of messages that are only in the columns."""
        self._end_commit(commit if self._commit is None else self._commit)
        groups, self._groups = self._groups, []
        self._commit = None
        if not groups:
            store(done)
            return
        self.space.writing, self._room.used = self._room.used, 0  # an estimate until it is encoded
        self.space.settle()
        wait = self.last_flush + self.config.flush_window - self._runtime.now()
        if wait > 0:
            self._waiting = self._runtime.call_later(
                wait, partial(self._flush, groups, store, done)
            )
        else:
            self._flush(groups, store, done)

    def _flush(
        self,
        groups: list[tuple[CommitId, Parts]],
        store: Callable[[_Done], None],
        done: _Done,
    ) -> None:
        self._waiting = None
        began = self.last_flush = self._runtime.now()
        made: list[block.Head] = []
        size = 0
        small = self.space.writing <= building.MAX_BYTES  # so is each part of it
        for commit, parts in groups:
            for place, columns in parts:
                runs: Iterable[MessageColumns] = (columns,)
                if not small or len(columns) > building.MAX_ROWS:
                    runs = building.split_columns(columns)
                for run in runs:
                    data = building.encode_columns(place, self.next[place], run)
                    self.next[place] += len(run)
                    self.log.append(commit, data, len(run))
                    made.append(block.read_head(data))
                    size += len(data) + FRAME_HEADER
        self.space.writing = size
        self.space.settle()

        def written(failed: StoreFailed | None) -> None:
            if failed is None:
                self.space.writing = 0
                self.space.stored = self.log.size
                self.space.settle()
                self._written(made)
                counts = self.counts
                counts.flushes += 1
                counts.flush_seconds += self._runtime.now() - began
                counts.bytes += size
                self.look_at_fill()
            done(failed)

        write = partial(store, written)
        if self.space.lacking():
            self.upkeep.make_room(write)
        else:
            write()

    def _written(self, made: list[block.Head]) -> None:
        """Update the summaries on the event loop before the next write starts."""
        segment = self.log.segments[-1]
        sealed = self.begin_segment()
        active = self.summaries[-1]
        ends: dict[int, int] = {}
        for head in made:
            active.add(head)
            self.ages.note(head.partition, head.end, head.max_timestamp)
            ends[head.partition] = head.end
            self.counts.records += head.rows
        self.counts.blocks += len(made)
        active.size = segment.size
        large = active.blocks >= TAIL_BLOCKS or active.size >= TAIL_BYTES
        if large and active.size * TAIL >= self.space.stored:
            self.log.roll = True
        self._unread.append((self.log.flushed, ends))
        if sealed:
            self.upkeep.look()

    def begin_segment(self) -> bool:
        """Add a summary if the log has started a new segment. Return whether it has."""
        segment = self.log.segments[-1]
        if self.summaries[-1].base == segment.base:
            return False
        self.summaries.append(Summary(segment.base, segment.base, size=segment.size))
        self.upkeep.began = self._runtime.now()
        return True

    def committed(self, commit: CommitId) -> None:
        """Make the messages of `commit` visible to readers. Their publishers get their acknowledgements afterwards."""
        self.log.committed(commit)
        self._reveal()

    def _reveal(self) -> None:
        """Tell readers about everything that they may read now."""
        moved = False
        while self._unread and self._unread[0][0] <= self.log.readable:
            for place, end in self._unread.popleft()[1].items():
                self.latest[place] = end
            moved = True
        if moved:
            self.write_state()

    @property
    def opened(self) -> bool:
        """Return whether the stream is open."""
        return self._state is not None

    def write_state(self) -> None:
        """Write the position up to which readers may read."""
        if self._state is None:
            return
        try:
            self._state.write(self.generation, self.log.readable, self.earliest, self.latest)
            self._state_failed = False
        except OSError as error:
            # Readers see fewer messages than they could, but nothing is lost.
            if not self._state_failed:
                self.tell("error", "spark_sink.state_not_written", reason=str(error.strerror))
            self._state_failed = True

    def write_operation(self) -> None:
        """Write the counters that commands read, if they have changed."""
        told = files.Operation(
            self.counts.refused, self.counts.dropped, self.refusing, self.upkeep.held
        )
        if told != self._told and self._state is not None:
            self._told = told
            try:
                files.write_operation(self.folder, told)
            except OSError as error:
                self.tell("error", "spark_sink.state_not_written", reason=str(error.strerror))

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
        recovery.check_description(self.folder, self.config, described)
        self.log.open()
        recovery.check_log(self.folder, self.log, described)
        trimmed = files.read_trimmed(self.folder, self.log.id)
        dropped = self.log.recover(last)
        if described is None:
            config = self.config
            described = files.Description(
                config.name, config.partitions, self.log.id, config.placement
            )
            files.write_description(self.folder, described)
        segments = closed_indexes(self.folder)
        self.earliest, after = recovery.edges(
            self.folder, self.config.partitions, segments, trimmed
        )
        self.next[:], self.latest = after, list(after)
        self.summaries = [summary(segment) for segment in segments]
        for one in self.summaries:  # one sample for each segment
            for number, (_, end) in one.parts.items():
                self.ages.note(number, end, one.newest)
        self._placement = placement.make(described.placement, described.partitions, self.next)
        self._places = None if self._placement.mixed else self._placement.places
        files.read_consumers(self.folder, self.log.id)
        self._state = files.StateFile(self.folder, self._boot)
        self.space.stored = self.log.size
        self.space.settle()
        files.write_declared(self.folder, self.config.consumers)
        self.upkeep.open()
        self.write_state()
        if dropped:
            self.tell("info", "spark_sink.uncommitted_dropped", records=dropped)

    def consumers(self) -> list[ConsumerState]:
        """Return the declared consumers and those that have committed, declared ones first.

        Reads a small file. Raises StoreError if the file is damaged.
        """
        known = files.read_consumers(self.folder, self.log.id)
        return states(self.config.consumers, known, self.earliest, self.latest, self.ages.time)

    @property
    def size(self) -> int:
        """Return the stored size in bytes, including an estimate for buffered messages."""
        return self.space.stored + self.space.writing + self._room.used

    @property
    def oldest(self) -> float | None:
        """Return the approximate time of the oldest message in epoch seconds, or None if the stream is empty."""
        return next((one.oldest / 1e6 for one in self.summaries if one.blocks), None)

    def tell(self, level: str, event: str, **fields: object) -> None:
        """Log an event about this stream."""
        self._runtime.log(level, event, plugin=self._plugin, stream=self.config.name, **fields)

    def close(self) -> None:
        """Close the stream."""
        self.closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        if self._state is not None:
            self._state.close()
            self._state = None
        self.log.close()
