"""The log of one lane that this process owns: it is read when the lane is opened, written by commits, and trimmed."""

from collections.abc import Callable, Sequence
from typing import Final

from hookmq.plugin import Runtime
from hookmq.storage_api import Record, StoreFailed

from hookmq_cluster import compaction
from hookmq_cluster.engine import Engine, Entry, Stored, Unavailable
from hookmq_cluster.frames import (
    FrameError,
    Frames,
    Origin,
    OwnerFrame,
    encode_owner,
    is_owner_frame,
)
from hookmq_cluster.lane_state import LaneState
from hookmq_cluster.names import Names

RETRY: Final = 1.0
"""Seconds until a page is read again after the engine did not answer."""
ATTEMPTS: Final = 20
"""How often a page is read."""

Opened = Callable[[LaneState | StoreFailed], None]


class LaneFrame:
    """A frame of a lane's owner that is being committed, its entries, and the fence that they require.

    About `again` bytes of it were written before.
    """

    __slots__ = ("again", "entries", "fence", "frame", "size")

    def __init__(self, frame: OwnerFrame, entries: list[Entry], fence: int, again: int) -> None:
        self.frame = frame
        self.entries = entries
        self.fence = fence
        self.again = again
        self.size = sum(len(entry.data) for entry in entries)


class LaneLog:
    """A lane of this process. `fence` is the sequence of the entry that makes this process its owner."""

    def __init__(
        self, engine: Engine, names: Names, runtime: Runtime, lane: str, fence: int
    ) -> None:
        self.lane = lane
        self.fence = fence
        self.state = LaneState(lane)
        self.moved = False
        """Whether the next commit needs a frame of this lane, even without records of the core."""
        self._extra: list[Record] = []
        """Records of the next frame that do not come from the core."""
        self._engine = engine
        self._subject = names.lane(lane)
        self._own = names.own(lane)
        self._runtime = runtime
        self._cursor = 0
        """The sequence up to which frames of other nodes are delivered, or did not exist."""
        self._sealed: tuple[int, bool, list[Record]] | None = None
        """`_cursor`, `moved` and `_extra` of the next frame, if its records are complete. Later ones belong to the
        frame after it."""
        self._delivered: list[tuple[int, int]] = []
        self._last_size = 0
        """Bytes of the last frame that were new."""
        self._untrimmed = 0
        """Bytes that were written since the log was last trimmed."""
        self._trimmed = 0
        self._trimming = False
        self._closed = False

    # reading ---------------------------------------------------------------------------------------------------------

    def open(self, done: Opened) -> None:
        """Read the lane's log, and call `done` once with its state, or with the reason why it cannot be read."""
        _Reading(self, self._engine, self._runtime, self._subject, done).start()

    def close(self) -> None:
        """Stop reading and trimming."""
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def loaded(self, state: LaneState) -> None:
        """The log is read."""
        self.state = state
        self._cursor = state.inbox

    # writing ---------------------------------------------------------------------------------------------------------

    def received(self, sequence: int, size: int) -> None:
        """Frames of other nodes up to `sequence`, of `size` bytes, are delivered."""
        self._cursor = max(self._cursor, sequence)
        self.moved = True
        if size:
            self._delivered.append((sequence, size))

    def append(self, records: Sequence[Record]) -> None:
        """Add `records` to the end of the next frame."""
        self._extra += records
        self.moved = True

    def passed(self, sequence: int) -> None:
        """All frames of other nodes below `sequence` are delivered."""
        self._cursor = max(self._cursor, sequence)

    def seal(self) -> None:
        """The broker's records for the next frame are complete. Messages that are delivered from now on
        belong to the frame after it."""
        if self._sealed is None:
            self._sealed = (self._cursor, self.moved, self._extra)
            self.moved, self._extra = False, []

    def frame(
        self, origin: Origin, records: Sequence[Record], needed: bool = False
    ) -> LaneFrame | None:
        """Return the next frame, with `records`, preceded by old records that must be written again. Return None if it
        would be empty, unless it is `needed`."""
        self.seal()
        assert self._sealed is not None
        (cursor, moved, extra), self._sealed = self._sealed, None
        if not records and not moved and not needed:
            return None
        again = self.state.due(self._last_size)
        frame = OwnerFrame(origin, cursor, (*again, *records, *extra))
        size = sum(map(compaction.weight_of, again))
        return LaneFrame(frame, self._entries(frame), self.fence, size)

    def with_new_fence(self, made: LaneFrame) -> LaneFrame:
        """Return a frame that was refused with the present fence."""
        return LaneFrame(made.frame, self._entries(made.frame), self.fence, made.again)

    def _entries(self, frame: OwnerFrame) -> list[Entry]:
        first, *others = encode_owner(frame, self._engine.max_entry)
        entries = [Entry(self._subject, first, (self._own, self.fence))]
        entries += [Entry(self._subject, data) for data in others]
        return entries

    def applied(self, made: LaneFrame, sequence: int) -> None:
        """The frame is committed. `sequence` is that of its first entry."""
        state = self.state
        state.apply(sequence, made.frame, made.size)
        self._last_size = max(0, made.size - made.again)
        self._untrimmed += made.size
        for place, size in self._delivered:
            state.delivered(place, size)
            self._untrimmed += size
        self._delivered.clear()
        if self._untrimmed >= compaction.TRIM and not self._trimming:
            self._trim()

    def _trim(self) -> None:
        point = self.state.trim_point
        if point <= self._trimmed:
            return
        self._trimming = True
        self._untrimmed = 0

        def trimmed(result: Unavailable | None) -> None:
            self._trimming = False
            if result is None and not self._closed:
                self._trimmed = point
                self.state.trimmed(point)

        self._engine.trim(self._subject, point, trimmed)


class _Reading:
    """Reads the log of a lane from its beginning."""

    def __init__(
        self, lane: LaneLog, engine: Engine, runtime: Runtime, subject: str, done: Opened
    ) -> None:
        self._lane = lane
        self._engine = engine
        self._runtime = runtime
        self._subject = subject
        self._done = done
        self._attempts = 0
        self._begin()

    def _begin(self) -> None:
        self._state = LaneState(self._lane.lane)
        self._frames = Frames()
        self._beginning = 0
        """The first sequence in the log."""
        self._last = 0
        self._first = 0
        """The sequence of the first part of the frame that is being read."""
        self._size = 0
        self._problem = ""

    def start(self) -> None:
        self._ask(self._last, self._page)

    def _ask(self, after: int, use: Callable[[list[Stored]], None]) -> None:
        """Read a page and pass it to `use`. Read it again if the engine does not answer."""

        def answered(page: list[Stored] | Unavailable) -> None:
            if self._lane.closed:
                self._done(StoreFailed(f"lane {self._lane.lane!r} was closed"))
            elif not isinstance(page, Unavailable):
                self._attempts = 0
                use(page)
            elif self._attempts >= ATTEMPTS:
                self._done(StoreFailed(f"lane {self._lane.lane!r} cannot be read: {page.reason}"))
            else:
                self._attempts += 1
                self._runtime.call_later(RETRY, lambda: self._ask(after, use))

        self._engine.read([self._subject], after, answered)

    def _page(self, page: list[Stored]) -> None:
        if page and not self._beginning:
            self._beginning = page[0].sequence
        for stored in page:
            self._last = stored.sequence
            try:
                self._read(stored)
            except FrameError as error:
                self._problem = f"sequence {stored.sequence}: {error}"
                break
        if page and not self._problem:
            self._ask(self._last, self._page)
        elif not self._beginning:
            self._finish()
        else:
            # The former owner may have trimmed the log while it was read. Some frames are then missing.
            self._ask(0, self._checked)

    def _read(self, stored: Stored) -> None:
        if not is_owner_frame(stored.data):
            return  # the inbox reads it again
        if not self._frames.incomplete:
            self._first, self._size = stored.sequence, 0
        self._size += len(stored.data)
        frame = self._frames.read(stored.data)
        if isinstance(frame, OwnerFrame):
            self._state.apply(self._first, frame, self._size)

    def _checked(self, page: list[Stored]) -> None:
        if not page or page[0].sequence != self._beginning:
            self._begin()
            self.start()
        else:
            self._finish()

    def _finish(self) -> None:
        problem = self._problem
        if not problem and self._frames.incomplete:
            problem = f"sequence {self._first}: the last frame is incomplete"
        problem = problem or self._state.complete()
        if problem:
            self._done(StoreFailed(f"the log of lane {self._lane.lane!r} is damaged: {problem}"))
            return
        self._lane.loaded(self._state)
        self._done(self._state)
