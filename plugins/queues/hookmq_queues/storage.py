"""Store one queue's messages. The log is a journal, and messages are read by offset.

The broker appends each message that the queue wants to the turn's batch. The publisher is acknowledged once the log and
the store have committed that batch. Offsets follow the order in which messages are appended. Consumers see a message
only after its commit.

Waiting messages are kept in memory, up to `QueueConfig.memory`. Others are read from disk when they are next in line.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from hookmq.mqtt_api import EMPTY, compile_filter
from hookmq.plugin import Message, Runtime, StoreError
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_toolkit.message_frames import decode_frame
from hookmq_toolkit.message_record import Names, encode_block, size_of
from hookmq_toolkit.segment_log import Frame, SegmentLog

from hookmq_queues.config import QueueConfig
from hookmq_queues.safe_floor import SafeFloor
from hookmq_queues.topics import PREFIX

CLOSED: Final = "the queue is closed"
"""The error for reads from a queue that is closing."""
PAGE: Final = 256 << 10
"""Size of the messages that one disk read returns, in bytes."""
_BLOCK: Final = 1024
"""Maximum number of messages in a block."""
_NEAR: Final = 256
"""When a read begins at most this number of messages before the end, new messages are kept in memory again."""
_STEP: Final = 256
"""Maximum number of messages whose sizes are kept as one sum."""
_GAPS: Final = 4096
"""Maximum number of ranges without messages. Beyond that, all ranges are forgotten."""


class Page(NamedTuple):
    """The result of a disk read: messages with their offsets, and ranges of offsets that have no messages."""

    messages: list[tuple[int, Message]]
    gaps: list[tuple[int, int]]


class MessageLog:
    """A queue's messages in memory. Implements `Journal`, `Bounded`, `Readable` and `Diverting` of
    `hookmq.storage_api`. Each type of queue has a subclass, which decides where messages are kept.

    `on_appended` is called for each stored message, and `on_committed` when messages become visible. `is_full` returns
    whether a message must be refused, and `is_dropped` whether it should be dropped instead of stored. `kept_from`
    returns the first offset to keep on disk, even if all groups have settled it.
    """

    def __init__(self, config: QueueConfig, runtime: Runtime, plugin: str = "queues") -> None:
        self.config = config
        self.name = f"{plugin}: queue {config.name}"
        self.is_full: Callable[[], bool] = lambda: False
        self.is_dropped: Callable[[Message], bool] = lambda message: False
        self.kept_from: Callable[[], int | None] = lambda: None
        self.on_appended: Callable[[], None] = lambda: None
        self.on_committed: Callable[[], None] = lambda: None
        self.end = 0
        """The offset of the next message."""
        self.visible = 0
        """The offset after the last committed message."""
        self.sure_until = 0
        self.sure_bytes = 0
        """While `end` and `bytes` are below these limits, the queue is certainly not full."""
        self.bytes = 0
        """The approximate size of the messages that are not settled."""
        self._runtime = runtime
        self._filters = [compile_filter(one) for one in config.bindings]
        self.limit = config.retention.bytes if config.type == "stream" else config.max_bytes
        """The maximum size that the configuration allows."""
        self._own = PREFIX + config.name
        self._cache: dict[int, tuple[Message, int]] = {}
        """The messages in memory by offset, with their sizes."""
        self._cached = 0
        self._sizes: deque[tuple[int, int]] = deque()
        """(end, bytes): total sizes of consecutive messages. Each covers the messages up to the offset `end`."""
        self._sized_from = 0
        """The offset at which the first of these sums begins."""
        self._step = 0
        """The number of messages in the last sum."""
        self._step_size = max(1 << 12, min(1 << 16, self.limit // 16))
        self._closed = False

    # Journal ---------------------------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Return whether the queue stores messages on `topic`. A queue that is closing stores none."""
        if self._closed:
            return False
        if topic.startswith(PREFIX):
            return topic == self._own or topic.startswith(self._own + "/")
        return any(matches(topic) for matches in self._filters)

    def diverts(self, topic: str) -> bool:
        """Return whether `topic` belongs to this queue, so that only its consumers get the message."""
        return topic.startswith(PREFIX)

    @property
    def full(self) -> bool:
        """Whether messages must be refused. A closing queue refuses none."""
        if self.end < self.sure_until and self.bytes < self.sure_bytes:
            return False
        return not self._closed and self.is_full()

    def append(self, commit: CommitId, message: Message) -> None:
        """Add a message to the batch of `commit`, unless the message is dropped."""
        raise NotImplementedError

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Make the batch's messages as durable as this log can."""
        raise NotImplementedError

    def committed(self, commit: CommitId) -> None:
        """Make the messages of `commit` visible to consumers."""
        raise NotImplementedError

    def recover(self, last: CommitId) -> None:
        """Prepare for the first message. This call may block. Raises StoreError."""
        raise NotImplementedError

    def _add_size(self, size: int) -> None:
        """Count the size of the message just before `end`."""
        self.bytes += size
        sizes = self._sizes
        if 0 < self._step < _STEP and sizes and sizes[-1][1] < self._step_size:
            size += sizes.pop()[1]
        else:
            self._step = 0
        sizes.append((self.end, size))
        self._step += 1

    # reading ---------------------------------------------------------------------------------------------------------

    @property
    def earliest(self) -> int:
        """The offset of the first remaining message."""
        raise NotImplementedError

    def get(self, offset: int) -> Message | None:
        """Return a message if it is in memory."""
        found = self._cache.get(offset)
        return None if found is None else found[0]

    def gap_end(self, offset: int) -> int:
        """Return the next offset that may have a message. This is `offset` itself, unless it is known to have none."""
        return offset

    def load(self, offset: int, done: Callable[[str], None]) -> None:
        """Read messages into memory, starting at `offset`. Then call `done` with an error or ''."""
        raise NotImplementedError

    def in_memory(self) -> list[int]:
        """Return the offsets of the messages that are in memory."""
        return list(self._cache)

    def read(self, offset: int) -> list[tuple[int, Message]]:
        """Read some messages, starting at `offset`, and return them with their offsets. One call makes one read. The
        messages in memory do not change. If the messages are on disk, call this in a thread. Raises StoreError,
        ValueError or LookupError.
        """
        return [(at, one[0]) for at, one in self._cache.items() if at >= offset]

    def forget(self, offset: int) -> None:
        """Remove a message from memory, because it will not be needed soon."""
        found = self._cache.pop(offset, None)
        if found is not None:
            self._cached -= found[1]

    def forget_all(self, offsets: list[int]) -> None:
        """Remove many messages from memory; see `forget`."""
        pop = self._cache.pop
        freed = 0
        for offset in offsets:
            found = pop(offset, None)
            if found is not None:
                freed += found[1]
        self._cached -= freed

    def settle(self, floor: int) -> None:
        """Record that all messages below `floor` are settled."""
        sizes = self._sizes
        while sizes and sizes[0][0] <= floor:
            self._sized_from, size = sizes.popleft()
            self.bytes -= size
        first = self._sized_from
        if sizes and first < floor and sizes[0][1] > self._step_size:
            # After a restart, a sum covers many messages. A share of it is settled.
            end, size = sizes[0]
            share = size * (floor - first) // (end - first)
            self.bytes -= share
            sizes[0] = (end, size - share)
            self._sized_from = floor

    def hold(self) -> None:
        """Keep messages that are settled in this turn until the turn's commit is stored, because they are moving to
        another log.
        """

    def quiet(self, closed: bool = True) -> None:
        """Stop storing messages, because the queue is closing. If `closed` is False, resume storing them."""
        self._closed = closed

    def configure(self, config: QueueConfig) -> None:
        """Apply new settings. Call ``broker.invalidate_routes`` afterwards."""
        self.config = config
        self._filters = [compile_filter(one) for one in config.bindings]

    def close(self) -> None:
        """Release all resources."""
        self._closed = True


class QueueLog(MessageLog):
    """A queue's messages on disk. Once every group has settled a segment's messages, the segment is deleted."""

    def __init__(
        self, config: QueueConfig, path: Path, runtime: Runtime, sync: bool = True, plugin: str = "queues"
    ) -> None:  # fmt: skip
        super().__init__(config, runtime, plugin)
        self.log = SegmentLog(
            path / config.name,
            runtime.run_blocking,
            segment_size=max(1 << 16, min(64 << 20, self.limit // 8)),
            sync=sync,
            verify=False,
        )
        self._batches: list[tuple[CommitId, list[Message]]] = []
        self._committed: deque[tuple[int, int]] = deque()
        self._gaps: list[tuple[int, int]] = []
        """Ranges of offsets without a message that were found by reading, in order."""
        self._waiting: list[Callable[[str], None]] = []
        self._leaving: Iterator[int] = iter(())
        """The offsets of the messages that leave memory next."""
        self._reading = False
        self._is_behind = False
        """Whether messages that are only on disk may wait before the next new one."""
        self._trimming = False
        self._safe = SafeFloor()
        self.on_trimmed: Callable[[], None] | None = None
        """If not None, called after files were deleted."""

    # Journal ---------------------------------------------------------------------------------------------------------

    def append(self, commit: CommitId, message: Message) -> None:
        """Add a message to the batch of `commit`, unless the message is dropped."""
        if (
            self.end >= self.sure_until
            or self.bytes >= self.sure_bytes
            or message.properties is not EMPTY
        ) and self.is_dropped(message):
            return
        batches = self._batches
        if not batches or (batches[-1][0] is not commit and batches[-1][0] != commit):
            batches.append((commit, []))
        batches[-1][1].append(message)
        offset = self.end
        self.end = offset + 1
        size = size_of(message)
        self._remember(offset, message, size)
        self._add_size(size)
        self.on_appended()

    def _remember(self, offset: int, message: Message, size: int) -> None:
        """Keep a new message in memory if there is room. If earlier messages are only on disk, do not keep it, because
        it would leave memory before it is next in line.
        """
        if not self._is_behind and self._cached < self.config.memory:
            self._cache[offset] = (message, size)
            self._cached += size
        else:
            self._is_behind = True

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Write the buffered messages with a single fsync."""
        self._safe.flush(commit.number)
        batches, self._batches = self._batches, []
        for one, messages in batches:
            for start in range(0, len(messages), _BLOCK):
                run = messages[start : start + _BLOCK]
                offset = self.log.append(one, encode_block(run), len(run))
                self._committed.append((one.number, offset + len(run)))
        self.log.flush(done)

    def committed(self, commit: CommitId) -> None:
        """Make the messages of `commit` visible to consumers."""
        self.log.committed(commit)
        if self._safe.committed(commit.number):
            self._trim()
        moved = False
        while self._committed and self._committed[0][0] <= commit.number:
            self.visible = self._committed.popleft()[1]
            moved = True
        if moved:
            self.on_committed()

    def recover(self, last: CommitId) -> None:
        """Open the folder, creating it if necessary. Drop messages that the store did not commit. This call blocks.

        Raises StoreError if the folder is damaged or in use by another process.
        """
        self.log.open()
        try:
            self.log.recover(last)
        except StoreError:
            self.close()
            raise
        self.end = self.visible = self.log.next
        self._is_behind = self.end > self.log.earliest
        self._batches = []
        self._cache.clear()
        self._cached = 0
        self._step = 0
        self._gaps.clear()
        self._committed.clear()
        self._measure(self.end)

    def _measure(self, end: int) -> None:
        """Compute the sizes of the messages before `end` from the segments. `end` is where a segment ends."""
        later = [one for one in self._sizes if one[0] > end]
        self._sizes.clear()
        for segment in (one for one in list(self.log.segments) if one.end <= end):
            places = zip(segment.offsets[1:], segment.positions[1:], strict=False)
            before = segment.head
            for offset, position in (*places, (segment.end, segment.size)):
                self._sizes.append((offset, position - before))
                before = position
        self._sizes.extend(later)
        self._sized_from = self.log.earliest
        self.bytes = sum(size for _, size in self._sizes)

    # reading ---------------------------------------------------------------------------------------------------------

    @property
    def earliest(self) -> int:
        """The offset of the first remaining message."""
        return self.log.earliest

    def load(self, offset: int, done: Callable[[str], None]) -> None:
        """Read messages into memory, starting at `offset`. Then call `done` with an error or ''. Only one read runs at
        a time. If one is already running, `done` is called with '' when it ends, whatever its result.
        """
        if self._closed:
            done(CLOSED)
            return
        if self._reading:
            self._waiting.append(done)
            return
        self._reading = True
        if self.end - offset <= _NEAR:
            self._is_behind = False

        def loaded(result: Any, error: BaseException | None) -> None:
            self._reading = False
            waiting, self._waiting = self._waiting, []
            if self._closed:
                for one in (done, *waiting):
                    one(CLOSED)
                return
            page = result if error is None else Page([], [])
            self._add_gaps(page.gaps)
            cache, memory = self._cache, self.config.memory
            for at, message in page.messages:
                if at >= offset and at not in cache:
                    if self._cached > memory:
                        self._make_room(offset)
                    size = size_of(message)
                    cache[at] = (message, size)
                    self._cached += size
            if error is not None:
                done(str(error))
            else:
                found = offset in self._cache or self.gap_end(offset) > offset
                done("" if found else f"the message {offset} is missing")
            for one in waiting:
                one("")

        self._runtime.run_blocking(partial(self._read, offset), loaded)

    def read(self, offset: int) -> list[tuple[int, Message]]:
        """Return some committed messages, starting at `offset`, with their offsets. This call blocks, and may run in
        any thread.
        """
        while True:
            page = self._read(offset)
            if page.messages or not page.gaps:
                return page.messages
            offset = page.gaps[-1][1]

    def _read(self, offset: int) -> Page:
        """Return the messages from `offset` on. This runs in a thread."""
        found: list[tuple[int, Message]] = []
        gaps: list[tuple[int, int]] = []
        names: Names = {}
        for frame in self._frames(offset):
            messages, empty = decode_frame(frame, names)
            found += messages
            gaps += empty
        return Page(found, gaps)

    def _frames(self, offset: int, size: int = PAGE) -> list[Frame]:
        """Return blocks starting at `offset`, about `size` bytes in total. This runs in a thread."""
        return self.log.read(offset, size)

    def gap_end(self, offset: int) -> int:
        """Return the next offset that may have a message, judging by the reads so far."""
        at = bisect_right(self._gaps, offset, key=lambda one: one[0]) - 1
        return max(offset, self._gaps[at][1]) if at >= 0 else offset

    def _add_gaps(self, gaps: list[tuple[int, int]]) -> None:
        if len(self._gaps) > _GAPS:
            self._gaps.clear()
        for one in gaps:
            if self.gap_end(one[0]) < one[1]:
                insort(self._gaps, one)

    def _make_room(self, wanted: int) -> None:
        """If too many messages are in memory, forget some of them, but never the one at `wanted`."""
        while self._cached > self.config.memory and len(self._cache) > 1:
            self._forget_first(wanted)

    def _forget_first(self, wanted: int = -1) -> None:
        """Forget the message that has been in memory longest, except the one at `wanted`. There must be such a message.

        Finding a dict's first key takes longer with each key removed before it, so `_leaving` remembers the keys.
        """
        cache = self._cache
        while True:
            for offset in self._leaving:
                if offset != wanted and offset in cache:
                    self.forget(offset)
                    return
            self._leaving = iter(list(cache))

    def settle(self, floor: int) -> None:
        """Record that all messages below `floor` are settled. Delete segments that contain only such messages."""
        super().settle(floor)
        self._safe.rise(floor)
        self._trim()

    def hold(self) -> None:
        """Keep messages that are settled in this turn until the turn's commit is stored, because they are moving to
        another log.
        """
        self._safe.hold()

    def _trim(self) -> None:
        floor, kept = self._safe.value, self.kept_from()
        if kept is not None:
            floor = min(floor, kept)
        segments = self.log.segments
        if self._trimming or self._closed or len(segments) < 2 or segments[1].base > floor:
            return
        self._trimming = True

        def trimmed(result: Any, error: BaseException | None) -> None:
            self._trimming = False
            if error is not None and not self._closed:
                self._runtime.log(
                    "error", "queue.trim_failed", queue=self.config.name, error=str(error)
                )
            if self.on_trimmed is not None and not self._closed:
                self.on_trimmed()

        self._runtime.run_blocking(partial(self.log.trim, floor), trimmed)

    def close(self) -> None:
        """Release the folder."""
        self._closed = True
        self.log.close()
