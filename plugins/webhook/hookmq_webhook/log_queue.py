"""Read the events of an outbox that the broker writes, and record which of them are done."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import Runtime, StoreError, Timer
from hookmq_toolkit.segment_log import Frame, LogTail, Trimmed
from hookmq_toolkit.segment_log.log import RunBlocking
from hookmq_toolkit.state_folder import LOCK

from hookmq_webhook.cursor import CursorFile, CursorUnusable, Position, read_position
from hookmq_webhook.events import unpack
from hookmq_webhook.folder import LOG
from hookmq_webhook.queues import PER_EVENT, Numbered, Page

Row = tuple[int, int, int, Numbered | str]
"""An event's number, how many numbers before it belong to no event, its size, and the event itself or the reason why it
cannot be decoded."""
SAVE_EVERY: Final = 1.0
"""Seconds between two durable saves of the position."""
HURRY: Final = 0.05
"""Seconds between two saves if the outbox is nearly full, because a save lets the broker delete events."""


class LogQueue:
    """The `Queue` of an outbox in `folder`.

    The broker reports with `advance` which events are committed. `read` runs blocking reads: in a thread, or at once in a
    process that may block. `lost` receives ranges of events that a damaged disk has lost. `changed` is called when the
    position changes.
    """

    bounded = False

    def __init__(
        self,
        folder: Path,
        log_id: str,
        runtime: Runtime,
        read: RunBlocking,
        log: Callable[..., None],
        lost: Callable[[int, int], None],
        changed: Callable[[], None],
    ) -> None:
        self.unreadable = 0
        """Number of events that could not be decoded."""
        self.damaged = 0
        """Number of events lost by a damaged disk."""
        self.dropped = 0
        """Number of events that the broker dropped, because they were the oldest in a full outbox."""
        self.stored = 0
        """The first event that is not done, according to the file."""
        self._folder = folder
        self._log_id = log_id
        self._runtime = runtime
        self._read = read
        self._log = log
        self._told_lost = lost
        self._changed = changed
        self._end = 0
        self._gaps = 0
        """How many numbers below `_end` belong to no event."""
        self._floor = 0
        self._hurry = False
        self._edge = 0
        self._skipped = 0
        self._open: dict[int, tuple[int, float]] = {}
        """The sizes and times of the events that were read but are not done, in order; (0, 0.0) if unknown."""
        self._open_bytes = 0
        self._taken: set[int] = set()
        self._done: list[int] = []
        """Events that are done, but not recorded yet."""
        self._seeks = 0
        self._tail = LogTail(folder / LOG)
        self._again = LogTail(folder / LOG)
        """Reads events that were left behind, so that the other one can continue where it is."""
        self._file = CursorFile(folder, log_id, 0)
        self._timer: Timer | None = None
        self._storing = False
        self._dirty = False
        self._closed = False
        self._after_store: list[Callable[[], None]] = []

    def load(self) -> None:
        """Load the stored position. This call blocks. Raises OSError."""
        earliest = min(self._tail.bases(), default=0)
        try:
            position, generation = read_position(self._folder, self._log_id, earliest)
        except CursorUnusable as error:
            self._log("warning", "webhook.cursor_unusable", reason=str(error))
            position, generation = Position(earliest), 0
        self._file = CursorFile(self._folder, self._log_id, generation)
        self._edge, self._skipped = position.edge, position.skipped
        self._open = dict.fromkeys(position.open, (0, 0.0))
        self.stored = position.start
        first, end, count = position.gone
        if count:
            self._report_damage(first, end, count)

    # from the broker -------------------------------------------------------------------------------------------------

    def advance(self, end: int, gaps: int, floor: int, hurry: bool) -> None:
        """Record that events below `end` are committed, and that events below `floor` are dropped unless they are in
        memory. With `hurry`, the outbox needs space.
        """
        self._end = max(self._end, end)
        self._gaps = gaps
        if hurry and not self._hurry:
            self._hurry = True
            self._save_soon()
        self._hurry = hurry
        if floor > self._floor:
            self._drop_below(floor)

    def _drop_below(self, floor: int) -> None:
        self._floor = floor
        gone = [number for number in self._open if number < floor]
        for number in gone:
            self._forget(number)
            self.dropped += number not in self._taken
        if self._edge < floor:
            self.dropped += floor - self._edge
            self._edge = floor
        self._note()

    # Queue -----------------------------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        return next(iter(self._open), self._edge)

    @property
    def waiting(self) -> int:
        unread = self._end - self._edge - max(0, self._gaps - self._skipped)
        return max(0, unread) + len(self._open)

    @property
    def oldest(self) -> float | None:
        return next((time for _, time in self._open.values() if time), None)

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        first = max(after, self._floor)
        if first >= self._end:
            done([], after, None)
            return
        seeks = self._seeks

        def told(found: Any, error: BaseException | None) -> None:
            if seeks != self._seeks:
                done([], after, None)  # these events are not wanted any more
            elif error is not None:
                known = error if isinstance(error, Exception) else RuntimeError(repr(error))
                done([], after, known)
            else:
                gaps, rows = found
                self._handed(gaps, rows, first, done)

        self._read(partial(self._load, first, count, size, self._end), told)

    def _handed(
        self, gaps: list[tuple[int, int]], found: list[Row], after: int, done: Page
    ) -> None:
        events: list[Numbered] = []
        for first, end in gaps:
            self._gap(first, end)
        waiting = self._open
        for number, skipped, size, one in found:
            if number >= self._edge:
                self._edge = number + 1
                self._skipped += skipped
            elif number not in waiting:
                continue  # the event was done before a restart
            self._open_bytes += size - waiting.get(number, (0, 0.0))[0]
            if isinstance(one, str):
                waiting[number] = (size, 0.0)
                self.unreadable += 1
                self._log("error", "webhook.event_unreadable", number=number, reason=one)
                self.done(number)
            else:
                waiting[number] = (size, one.event.time)
                events.append(one)
        self._changed()
        following = found[-1][0] + 1 if found else gaps[-1][1] if gaps else after
        done(events, following, None)

    def taken(self, number: int) -> None:
        self._taken.add(number)

    def left(self, number: int) -> None:
        self._taken.discard(number)

    def done(self, number: int) -> None:
        self._taken.discard(number)
        self._forget(number)
        self._note()

    def _forget(self, number: int) -> None:
        self._open_bytes -= self._open.pop(number, (0, 0.0))[0]
        self._done.append(number)
        if len(self._done) == 1:
            self._runtime.call_soon(self._record)

    def _note(self) -> None:
        self._dirty = True
        self._save_soon()
        self._changed()

    # reading ---------------------------------------------------------------------------------------------------------

    def _load(
        self, after: int, count: int, size: int, end: int
    ) -> tuple[list[tuple[int, int]], list[Row]]:
        """Return the ranges of lost numbers, and the rows from number `after` on. This call blocks."""
        found: list[Row] = []
        gaps: list[tuple[int, int]] = []
        frames: list[Frame] = []
        tail = self._tail if after >= self._edge else self._again
        tried = -1
        while not frames and after < end:
            try:
                frames = tail.read(after, end, size, count)
            except (Trimmed, StoreError) as error:
                if not (self._folder / LOG / LOCK).exists():
                    # The folder was moved or is not mounted, so its events are not lost.
                    raise FileNotFoundError(f"{self._folder / LOG} is gone") from None
                if isinstance(error, Trimmed):
                    following = error.earliest
                else:
                    following = tail.next_good(after, end, self._log_id)
                    if following == after and tried == after:
                        following += 1  # it is still unreadable
                tried = after
                if following > after:
                    gaps.append((after, following))
                after = following
        for frame in frames:
            number, large = frame.end - 1, len(frame.payload) + PER_EVENT
            skipped = number - frame.offset
            try:
                event = unpack(frame.payload)
            except ValueError as error:
                found.append((number, skipped, large, str(error)))
                continue
            found.append(
                (number, skipped, large, Numbered(number, event, large, f"{self._log_id}-{number}"))
            )
        return gaps, found

    def _gap(self, first: int, end: int) -> None:
        """Record the events from `first` to `end - 1` as lost, except those that are done."""
        first = max(first, self._floor)
        gone = [number for number in self._open if first <= number < end]
        for number in gone:
            self.done(number)
        count = len(gone) + max(0, end - max(first, self._edge))
        self._edge = max(self._edge, end)
        if count:
            self._report_damage(first, end, count)

    def _report_damage(self, first: int, end: int, count: int) -> None:
        self.damaged += count
        self._note()
        self._log(
            "error", "webhook.outbox_damaged", folder=str(self._folder), first=first, end=end, lost=count
        )  # fmt: skip
        self._told_lost(first, end)

    # the position ----------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        """Return the position for the broker."""
        return {
            "edge": self._edge,
            "open": len(self._open),
            "start": self.start,
            "stored": self.stored,
            "skipped": self._skipped,
            "open_bytes": self._open_bytes,
            "floor": self._floor,
            "oldest": self.oldest,
        }

    def seek(self, number: int) -> Callable[[], None]:
        """Make event `number` the first waiting event, followed by all later ones. Return a function that stores this. It
        blocks, and raises OSError. The caller must then start reading again.
        """
        self._seeks += 1
        self._edge = number
        self._open, self._open_bytes = {}, 0
        self._skipped = self._gaps
        self._taken.clear()
        self._done.clear()
        self._changed()
        return self._file.save(self._present())

    def _present(self) -> Position:
        return Position(self._edge, list(self._open), min(self._skipped, self._gaps))

    def _record(self) -> None:
        """Record the events that are done, all at once."""
        numbers, self._done = self._done, []
        if numbers and not self._closed:
            with suppress(OSError):  # the next save reports a failing disk
                self._file.add(numbers)

    def _save_soon(self) -> None:
        if self._timer is None and not self._storing and not self._closed:
            self._timer = self._runtime.call_later(HURRY if self._hurry else SAVE_EVERY, self._save)
        elif self._timer is not None and self._hurry:
            self._timer.cancel()
            self._timer = self._runtime.call_later(HURRY, self._save)

    def _save(self) -> None:
        self._timer = None
        if self._storing or self._closed or not self._dirty:
            return
        self._record()
        self._dirty = False
        self._storing = True
        position = self._present()

        def saved(_: object, error: BaseException | None) -> None:
            self._storing = False
            if error is not None:
                self._dirty = True
                self._log("warning", "webhook.cursor_not_saved", reason=str(error))
            else:
                self.stored = position.start
            self._changed()
            waiting, self._after_store = self._after_store, []
            for call in waiting:
                call()
            if self._dirty:
                self._save_soon()

        self._runtime.run_blocking(self._file.save(position), saved)

    def close(self, done: Callable[[], None]) -> None:
        """Store the position, and call `done`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._storing:
            self._after_store.append(lambda: self.close(done))
        elif self._dirty and not self._closed:
            self._after_store.append(lambda: self._close(done))
            self._save()
        else:
            self._close(done)

    def _close(self, done: Callable[[], None]) -> None:
        self._closed = True
        self._file.close()
        done()


__all__ = ["LogQueue"]
