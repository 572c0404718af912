"""Maintain a stream's files: apply retention, merge small blocks, and seal idle segments.

All of this runs in threads, with at most one call of each kind at a time.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from hookmq.plugin import Runtime
from hookmq.storage_api import StoreFailed
from hookmq_toolkit.segment_log import SegmentLog

from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.consumers import ConsumerWatch
from hookmq_spark_sink.merge import worthwhile
from hookmq_spark_sink.retention import Merged, MergeProcess, Plan, Upkeep, keep_up, merge_one
from hookmq_spark_sink.space import Space
from hookmq_spark_sink.summary import Counts, Summary

IDLE: Final = 60.0
"""Seconds without a message after which the newest segment is sealed, if it has many blocks or bytes."""
IDLE_BLOCKS: Final = 256
IDLE_BYTES: Final = 1 << 20


class KeptStream(Protocol):
    """The part of a stream that its maintenance uses."""

    config: StreamConfig
    folder: Path
    log: SegmentLog
    space: Space
    counts: Counts
    summaries: list[Summary]
    earliest: list[int]
    latest: list[int]
    generation: int
    last_flush: float
    closed: bool

    @property
    def opened(self) -> bool:
        """Return whether the stream is open."""

    def begin_segment(self) -> bool:
        """Add a summary if the log has started a new segment. Return whether it has."""

    def look_at_fill(self) -> None:
        """Log an event if the stream has become nearly full or full, or has room again."""

    def write_state(self) -> None:
        """Write the position up to which readers may read."""

    def write_operation(self) -> None:
        """Write the counters that commands read, if they have changed."""

    def tell(self, level: str, event: str, **fields: object) -> None:
        """Log an event about this stream."""


class StreamUpkeep:
    """Maintains the files of one stream. Call its methods on the event loop."""

    def __init__(self, stream: KeptStream, runtime: Runtime, min_free: int) -> None:
        self.min_free = min_free
        self.held = False
        """Whether retention keeps segments that are due, because a consumer has not committed them."""
        self.low_disk = False
        self._merger = MergeProcess()
        self.merge: Callable[[Path, Path, str], None] = self._merger
        """Merges and compresses a segment's blocks."""
        self.began = 0.0
        """The time at which the newest segment was begun."""
        self._stream = stream
        self._runtime = runtime
        self._opened = 0.0
        self._keeping = False
        self._again = False
        self._merging = False
        self._too_small: set[int] = set()
        """The segments that merging does not make smaller, by their first record."""
        self._after: list[Callable[[], None]] = []
        """Called when retention has ended."""
        self._quiet: list[Callable[[], None]] = []
        self._watch = ConsumerWatch(stream.config.consumers, stream.tell)

    def open(self) -> None:
        """Record that the stream is now open."""
        self.began = self._opened = self._runtime.now()

    def look(self) -> bool:
        """Apply retention, then merge the small blocks of sealed segments. Return whether retention was started.

        Both run in threads, with at most one call of each at a time.
        """
        stream = self._stream
        if self._keeping:
            self._again = True
            return False
        if stream.closed or not stream.opened or stream.log.failure is not None:
            return False
        self._keeping = True
        self._again = False
        now = self._runtime.now()
        if 0 < stream.config.segment_time <= now - self.began:
            stream.log.roll = True
            self.began = now
        self._seal_idle()
        merging = self._mergeable() if not self._merging else None
        plan = Plan(
            stream.config,
            stream.folder,
            stream.log,
            self._sealed,
            list(stream.earliest),
            self._runtime.time(),
            self.min_free,
            stream.space.writing + stream.space.copying + (merging.size if merging else 0),
        )

        def kept(result: Any, error: BaseException | None) -> None:
            self._keeping = False
            if isinstance(result, Upkeep):
                self._kept(result)
            if error is not None and not stream.closed:
                stream.tell("error", "spark_sink.upkeep_failed", reason=str(error))
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
        stream = self._stream
        readable = stream.log.readable
        return [one for one in stream.summaries[:-1] if one.end <= readable]

    def _mergeable(self) -> Summary | None:
        """Return the oldest segment whose blocks are worth merging, or None."""
        stream = self._stream
        return next(
            (
                one
                for one in self._sealed
                if one.base not in self._too_small
                and worthwhile(
                    one.blocks, one.packed, len(one.parts), one.size, stream.config.compression
                )
            ),
            None,
        )

    def _merge_next(self) -> None:
        """Merge the blocks of one segment if there is room for its copy, then continue with the next segment."""
        stream = self._stream
        if self._merging or stream.closed or stream.log.failure is not None:
            return
        one = self._mergeable()
        if one is None or not stream.space.fits(one.size):
            return
        self._merging = True
        stream.space.copying = one.size
        stream.space.settle()

        def merged(result: Any, error: BaseException | None) -> None:
            self._merging = False
            stream.space.copying = 0
            if isinstance(result, Merged):
                if result.size:
                    one.blocks, one.packed, one.size = result
                    stream.counts.merged += 1
                    stream.generation += 1
                    stream.write_state()
                else:
                    self._too_small.add(one.base)
            stream.space.stored = stream.log.size
            stream.space.settle()
            if error is not None and not stream.closed:
                stream.tell("error", "spark_sink.upkeep_failed", reason=str(error))
            elif error is None:
                self._merge_next()
            self._say_quiet()

        self._runtime.run_blocking(
            partial(merge_one, stream.log, self.merge, stream.config.compression, one), merged
        )

    def _say_quiet(self) -> None:
        if not self._keeping and not self._merging:
            quiet, self._quiet = self._quiet, []
            for call in quiet:
                call()

    def _kept(self, result: Upkeep) -> None:
        stream = self._stream
        for one in result.problems:
            stream.tell("error", "spark_sink.upkeep_failed", reason=one)
        seconds = self._runtime.now() - self._opened
        self._watch.look(result.consumers, stream.latest != stream.earliest, seconds)
        if result.held != self.held:
            self.held = result.held
            if result.held:
                stream.tell(
                    "warning", "spark_sink.retention_held", consumers=sorted(result.holders)
                )
        stream.write_operation()
        if result.low_disk != self.low_disk:
            self.low_disk = stream.space.low_disk = result.low_disk
            if result.low_disk:
                stream.tell("warning", "spark_sink.disk_low", free=result.free, refused=True)
            else:
                stream.tell("info", "spark_sink.disk_has_room", free=result.free)
        if result.removed:
            gone = {id(one) for one in result.removed}
            stream.summaries = [one for one in stream.summaries if id(one) not in gone]
            for place, end in result.earliest.items():
                stream.earliest[place] = max(stream.earliest[place], end)
            stream.counts.removed += sum(one.end - one.base for one in result.removed)
            stream.counts.dropped += result.dropped
            if result.dropped:
                stream.tell("warning", "spark_sink.unread_dropped", records=result.dropped)
            stream.generation += 1
            stream.write_state()
        self._too_small &= {one.base for one in stream.summaries}
        stream.space.stored = stream.log.size
        stream.space.settle()
        stream.look_at_fill()

    def quiet(self, done: Callable[[], None]) -> None:
        """Prepare to close the stream: store no more messages, and stop retention and merging. Call `done` after the
        last thread has finished.
        """
        stream = self._stream
        stream.closed = True
        self._merger.stop()
        self._quiet.append(done)
        self._say_quiet()

    def _seal_idle(self) -> None:
        """Start a new segment if no message has arrived for a while. The old segment's small blocks can then be
        merged.
        """
        stream = self._stream
        log, active = stream.log, stream.summaries[-1]
        if (
            (active.blocks <= IDLE_BLOCKS and active.size <= IDLE_BYTES)
            or self._runtime.now() - stream.last_flush < IDLE
            or log.readable < log.next
        ):
            return

        def sealed(failed: StoreFailed | None) -> None:
            if failed is None and not stream.closed and stream.begin_segment():
                self.look()

        log.roll = True
        log.flush(sealed)

    def make_room(self, then: Callable[[], None]) -> None:
        """Delete the oldest segments, then call `then`.

        All segments except the newest can be deleted. The store has already committed their messages, because it
        finishes each commit before the next one is written.
        """
        if self._keeping:
            self._after.append(partial(self.make_room, then))
        elif self.look():
            self._after.append(then)
        else:
            then()
