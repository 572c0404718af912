"""Read a queue's messages for clients, from the files that the queue's plugin writes.

Offsets are the queue's own offsets, and the only partition is 0. Messages are encoded as blocks when they are read. A
block is sparse if compaction or a filter has left out messages. Every function here may block on the disk.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hookmq.plugin import Message, StoreError
from hookmq_toolkit.message_frames import Entry, decode_frame
from hookmq_toolkit.queue_streams import StreamFiles
from hookmq_toolkit.segment_log import Frame, LogReader, SegmentReader, Trimmed, frames

from hookmq_spark_sink import block, building
from hookmq_spark_sink.queue_state import QUEUE, QueueState, read_queue_state
from hookmq_spark_sink.reading import ConsumerOffsets, NotServed, Removed, Unavailable, Wanted

_ROWS: Final = 1 << 14
_BYTES: Final = 1 << 20
"""Maximum numbers of rows and bytes in a block."""
_SILENCE: Final = 16 << 20
"""A block ends after this many bytes have been read, even if few messages match a filter."""
_TRIES: Final = 5


class QueueView:
    """The readable part of a queue at one moment. `earliest` and `latest` contain an offset for each partition."""

    def __init__(self, found: StreamFiles, segments: Sequence[SegmentReader]) -> None:
        self.log_id = found.log_id
        self.filters = found.filters
        # The files may have been deleted a moment ago.
        first = max(found.earliest, segments[0].base if segments else 0)
        self.earliest = (min(first, found.latest),)
        self.latest = (found.latest,)
        self._segments = segments

    def at(self, timestamp: int) -> list[int | None]:
        """Return the offset of the first message at or after `timestamp` (µs), or None.

        This is a binary search, as in the queue itself. If the broker's clock was ever set back, the result may be a
        later offset. Raises StoreError for a damaged message.
        """
        first, end = self.earliest[0], self.latest[0]
        segments = [one for one in self._segments if one.base < end]
        wanted = float(timestamp)
        at = bisect_left(segments, wanted, key=lambda one: self._time_from(max(first, one.base)))
        start = first
        if at:
            segment = segments[at - 1]
            until = segments[at].base if at < len(segments) else end
            places = segment.places(until)
            place = bisect_left(places, wanted, key=lambda one: self._time_from(max(first, one)))
            start = max(first, places[max(0, place - 1)])
        for frame in self._frames(start, end):
            for offset, message in _entries(frame):
                if start <= offset < end and _time(message) >= timestamp:
                    return [offset]
        return [None]

    def _time_from(self, offset: int) -> float:
        """Return the time of the first message from `offset` on in µs, or infinity if there is none."""
        for frame in self._frames(offset, self.latest[0]):
            for at, message in _entries(frame):
                if at >= offset:
                    return _time(message)
        return float("inf")

    def _frames(self, start: int, end: int) -> Iterator[Frame]:
        try:
            yield from frames(self._segments, start, end)
        except Trimmed as trimmed:
            raise Removed(trimmed.earliest) from None

    def blocks(self, wanted: Wanted, max_bytes: int) -> Iterator[bytes]:
        """Yield the blocks of a range, as specified in PROTOCOL.md, up to about `max_bytes`. Each block is cut to fit
        the range.

        Raises StoreError for a damaged message.
        """
        base = reached = wanted.start
        rows: list[Entry] = []
        size = sent = silent = 0
        for frame in self._frames(wanted.start, wanted.end):
            entries = _entries(frame)
            if entries[:1] and (entries[0][0] < base or entries[-1][0] >= wanted.end):
                entries = [one for one in entries if base <= one[0] < wanted.end]
            if wanted.match is not None:
                matches = wanted.match
                entries = [one for one in entries if matches(building.utf8(one[1].topic))]
            for entry in entries:
                rows.append(entry)
                size += building.weight(entry[1])
                if len(rows) >= _ROWS or size >= _BYTES:
                    reached = entry[0] + 1
                    made = _block(rows, base, reached, wanted)
                    sent += len(made)
                    yield made
                    base, rows, size, silent = reached, [], 0, 0
                    if sent >= max_bytes:
                        return
            reached = min(frame.end, wanted.end)
            silent += len(frame.payload)
            if silent >= _SILENCE and reached > base:
                yield _block(rows, base, reached, wanted)
                base, rows, size, silent = reached, [], 0, 0
        if reached > base:
            yield _block(rows, base, reached, wanted)


class QueueReader(ConsumerOffsets):
    """Reads the queue of the stream in `folder`, during the broker run identified by `boot`. Make one call at a time.
    Only the methods of a view may run in parallel.
    """

    def __init__(self, folder: Path, boot: bytes) -> None:
        super().__init__(folder, folder / QUEUE)
        self._boot = boot
        self._log: LogReader | None = None
        self._found: StreamFiles | None = None

    def refresh(self) -> QueueView:
        """Return the part that can be read now.

        Raises Unavailable if that part is unknown, NotServed if the queue cannot be read, and StoreError or OSError if
        its files cannot be read.
        """
        for left in reversed(range(_TRIES)):
            state = self._state()
            found = state.found
            if not isinstance(found, StreamFiles):
                self._log = self._found = None
                if found is None:
                    raise Unavailable
                raise NotServed(found)
            try:
                segments = self._segments(found)
            except (StoreError, OSError):
                self._found = None
                if not left or self._state() == state:
                    raise
                continue  # the queue was deleted meanwhile
            self._found = found
            return QueueView(found, segments)
        raise Unavailable

    def let_go(self) -> None:
        """Close files that were deleted or replaced since the last `refresh`, which frees their disk space.

        Raises the same errors as `refresh`.
        """
        if self._found is None:
            return
        found = self._state().found
        if not isinstance(found, StreamFiles) or _files(found) != _files(self._found):
            self.refresh()

    @property
    def log_id(self) -> str:
        """The id of the log that `refresh` found."""
        return "" if self._found is None else self._found.log_id

    def _state(self) -> QueueState:
        state = read_queue_state(self.folder)
        if state is None or state.boot != self._boot:
            raise Unavailable
        return state

    def _segments(self, found: StreamFiles) -> Sequence[SegmentReader]:
        log = self._log
        if log is None or self._found is None or _files(found) != _files(self._found):
            if log is None or log.folder != found.folder:
                log = self._log = LogReader(found.folder)
            log.refresh()
            for one in log.segments:
                if one.log != found.log_id:
                    raise StoreError(f"{one.path} belongs to another log than {found.log_id}")
            if found.latest and not log.segments:
                raise StoreError(f"{found.folder} contains no segments")
        return log.segments


def _files(found: StreamFiles) -> tuple[Path, str, tuple[int, int]]:
    return found.folder, found.log_id, found.files


def _time(message: Message) -> int:
    """Return the time when the broker received a message, in µs (the unit used in blocks)."""
    return int(message.received_at * 1e6)


def _entries(frame: Frame) -> list[Entry]:
    try:
        return decode_frame(frame)[0]
    except ValueError as error:
        raise StoreError(
            f"the messages from offset {frame.offset} on are damaged: {error}"
        ) from None


def _block(rows: Sequence[Entry], base: int, end: int, wanted: Wanted) -> bytes:
    """Return a block that contains these rows and covers the offsets from `base` to `end`."""
    if not rows:
        return block.assemble(block.empty(0, base, end))
    made = building.build(0, base, [message for _, message in rows])
    if len(rows) != end - base:
        made = block.thinned(made, [offset for offset, _ in rows], end)
    if wanted.columns is not None:
        made = block.project(made, wanted.columns)
    return block.assemble(made)
