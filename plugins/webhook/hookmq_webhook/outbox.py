"""Store events for `at_least_once` in a journal, and record which events have arrived."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from hookmq.plugin import Message, Runtime, StoreError, Timer
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_toolkit.segment_log import Fill, SegmentLog, Trimmed
from hookmq_toolkit.segment_log.frame import Frame
from hookmq_toolkit.state_folder import LOCK

from hookmq_webhook.ages import Ages
from hookmq_webhook.events import Event, pack, unpack
from hookmq_webhook.folder import CURSOR, LOG, prepare, reserve, write_at_any_cost
from hookmq_webhook.queues import PER_EVENT, Numbered, Page
from hookmq_webhook.recent import Recent

Row = tuple[int, int, int, Numbered | str]
"""An event's number, how many numbers before it belong to no event, its size, and the event itself or the reason why it
cannot be decoded."""
OnFull = Literal["reject", "dead_letter", "drop", "drop_oldest"]
SHARE: Final = 8
"""Minimum number of segments in a full log. The last segment is kept even if all its events have arrived."""
EXTRA: Final = 1.1
"""The fill level up to which the outbox accepts events that cannot be refused, such as client.connected."""
ROOM: Final = 3
"""Size on disk, as a multiple of `Bounds.max_bytes`, at which new events are dropped if old ones cannot be deleted."""
SAVE_EVERY: Final = 1.0
"""Seconds between two saves of the cursor. After a crash, events that arrived since the last save are resent."""


class Bounds(NamedTuple):
    """The limits at which an outbox is full.

    It is full when `max_events` events (if not 0) or `max_bytes` bytes are waiting. It is also full when its files
    reach twice `max_bytes`. This can happen because an event that arrived remains on disk until all earlier events have
    arrived. Finally, it is full when `max_unwritten` bytes are in memory because the disk is slower than the
    publishers.
    """

    max_bytes: int
    max_events: int
    on_full: OnFull = "reject"
    max_unwritten: int = 64 << 20


class Outbox:
    """The `Journal` that stores the events of all acknowledged messages, and the `Queue` from which they are sent.

    `wants` returns whether messages on a topic are stored, and `make` returns the events for a message. `ready` is
    called when there may be events to send. Unless messages are refused, `spill` receives the events that do not fit,
    and the commit waits for its callback. `lost` is called if a damaged disk has lost events. It receives the number of
    the first lost event and the number after the last one. Reading continues after the lost events.

    `cursor.json` in the outbox folder records which events have arrived: all below `edge`, except those in `open`. It
    is saved every second. After a crash, some events are therefore resent, with the same ids.

    An event that does not fit leaves a gap in the numbers: the next event skips its number. With ``drop_oldest``, the
    oldest events make room instead. Events that the dispatcher already has in memory are still sent.
    """

    bounded = False

    def __init__(
        self,
        name: str,
        folder: Path,
        runtime: Runtime,
        wants: Callable[[str], bool],
        make: Callable[[Message], Iterable[Event]],
        ready: Callable[[], None],
        bounds: Bounds,
        spill: Callable[[Event, Callable[[StoreFailed | None], None]], None] | None = None,
        *,
        sync: bool = True,
        lost: Callable[[int, int], None] = lambda first, end: None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.unreadable = 0
        """Number of events that could not be decoded."""
        self.damaged = 0
        """Number of events lost by a damaged disk."""
        self.spilled = 0
        """Number of events that did not fit."""
        self._runtime = runtime
        self._wants = wants
        self._make = make
        self._ready = ready
        self.bounds = bounds
        """The current limits. They may be replaced at any time."""
        self._spill = spill
        self._spilling = 0
        self._spill_failure: StoreFailed | None = None
        self._after_spill: list[Callable[[], None]] = []
        self._sync = sync
        self._told_lost = lost
        self._edge = 0
        self._open: dict[int, int] = {}
        """Sizes of the events that were read but have not arrived, by number; 0 if unknown."""
        self._open_bytes = 0
        self._unread = 0
        """Total size in bytes of the events that have not been read yet."""
        self._taken: set[int] = set()
        """Numbers of the events that the dispatcher has in memory."""
        self.recent = Recent()
        """The newest events, which are not read back from the disk."""
        self._skip_next = 0
        """How many numbers the next event skips."""
        self._skipped = 0
        """How many of the unread numbers belong to no event. After a crash, possibly too few."""
        self._added = self._written_to = 0
        """Total bytes added so far, and how many of them are on disk."""
        self._size = 0
        self._ages = Ages()
        self._fill = Fill(self._say_fill)
        self._timer: Timer | None = None
        self._hurry = False
        self._storing = False
        self._after_store: Callable[[], None] | None = None
        self._dirty = False
        self._flushing = False
        self._early: list[Event] = []
        self._opened = False
        self._closed = False
        self._seeks = 0
        self.log = self._make_log()

    def _make_log(self) -> SegmentLog:
        size = max(4096, min(64 << 20, self.bounds.max_bytes // SHARE))
        return SegmentLog(
            self.folder / LOG,
            self._runtime.run_blocking,
            segment_size=size,
            sync=self._sync,
            salvage=True,
        )

    @property
    def opened(self) -> bool:
        """Whether `recover` has opened the folder."""
        return self._opened

    # Journal -------------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Return whether messages on `topic` become events."""
        return self._wants(topic)

    @property
    def full(self) -> bool:
        """Whether messages must be refused. Always False unless `bounds.on_full` is ``reject``."""
        if self.bounds.on_full != "reject" or self.fill < 1.0:
            return False
        self._fill.look(1.0)
        return True

    @property
    def fill(self) -> float:
        """The fill level. The outbox is full at 1.0 and above.

        Delivered events stay on disk until their segment is removed. They are not counted when no event is waiting.
        """
        waiting, bounds = self.waiting, self.bounds
        share = (self._added - self._written_to) / bounds.max_unwritten
        if waiting > 0:
            held = max(self._unread + self._open_bytes, self._size / 2)
            share = max(share, held / bounds.max_bytes)
        if bounds.max_events:
            share = max(share, waiting / bounds.max_events)
        return share

    def _say_fill(self, word: str, share: float) -> None:
        bounds = self.bounds
        fields: dict[str, object] = {
            "plugin": self.name, "share": round(share, 2), "waiting": self.waiting,
            "bytes": self.size, "max_bytes": bounds.max_bytes, "on_full": bounds.on_full,
        }  # fmt: skip
        if word == "filling":
            self._runtime.log("warning", "webhook.outbox_filling", **fields)
        elif word == "full":
            self._runtime.log("warning", "webhook.outbox_full", **fields)
        else:
            self._runtime.log("info", "webhook.outbox_has_room", **fields)

    def append(self, commit: CommitId, message: Message) -> None:
        """Add the events of an accepted message to the commit.

        After `close`, the events count as lost. At that point, only plugins still publish (in `on_shutdown`), and they
        get no acknowledgement.
        """
        for event in self._make(message):
            if self._closed:
                self._lost()
            elif self.bounds.on_full != "reject" and self.fill >= 1.0 and not self._make_room():
                self._elsewhere(event)
            else:
                self._add(commit, event)

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Write all events to disk, with fsync if `sync` is set, and call `done`."""
        if self._closed:
            done(None)
            return
        added = self._added

        def written(failed: StoreFailed | None) -> None:
            if failed is not None:
                done(failed)  # unwritten bytes continue to count
                return
            self._written_to = max(self._written_to, added)
            self._fill.look(self.fill)
            if self._spilling:
                self._after_spill.append(lambda: done(self._spill_failure))
            else:
                done(self._spill_failure)

        self.log.flush(written)

    def committed(self, commit: CommitId) -> None:
        """Allow this commit's events to be sent."""
        self.log.committed(commit)
        self._ready()

    def recover(self, last: CommitId) -> None:
        """Open the folder, and load the log and the cursor. Raises StoreError if the folder cannot be used."""
        if self._opened:
            self.log.close()
            self.log = self._make_log()
        self._opened = True
        self._closed = False
        prepare(self.folder)
        self.log.open()
        try:
            self.log.recover(last)
            self._load()
            self.log.skip(self._edge)
            self._ages.begin(self.log.next, self.start, self._first_time())
        except BaseException:
            self.log.close()
            raise
        reserve(self.folder)
        self._size = self.log.size
        self._unread = sum(one.size for one in self.log.segments if one.end > self._edge)
        early, self._early = self._early, []
        for event in early:
            self.put(event)
        self._ready()

    # events without a commit ----------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Add an event that no commit waits for. It is written to disk soon, or with the next commit."""
        if self._closed or self.log.failure is not None:
            self._lost()
        elif not self._opened:
            self._early.append(event)
        elif (
            self.fill >= (EXTRA if self.bounds.on_full == "reject" else 1.0)
            and not self._make_room()
        ):
            self._elsewhere(event)
        else:
            self._add(None, event)
            if not self._flushing:
                self._flushing = True
                self._runtime.call_soon(self._write)

    def _add(self, commit: CommitId | None, event: Event) -> None:
        data = pack(event)
        size = len(data) + PER_EVENT
        skipped, self._skip_next = self._skip_next, 0
        number = self.log.append(commit, data, 1 + skipped) + skipped
        if skipped:
            self._skipped += skipped
            self._dirty = True
            self._save_soon()
        self._ages.added(number, event.time)
        self.recent.add(Numbered(number, event, size, f"{self.log.id}-{number}"), skipped)
        self._size += size
        self._unread += size
        self._added += size

    def _make_room(self) -> bool:
        """With ``drop_oldest``, drop the oldest events until another one fits. Return whether it fits."""
        bounds = self.bounds
        if bounds.on_full != "drop_oldest":
            return False
        if self._added - self._written_to >= bounds.max_unwritten:
            return False  # the disk is too slow: deleting events would not help
        self._fill.look(1.0)
        while (
            self._unread + self._open_bytes >= bounds.max_bytes
            or 0 < bounds.max_events <= self.waiting
        ):
            if not self._drop_oldest():
                return False
        segments = self.log.segments
        if self._size >= 2 * bounds.max_bytes and len(segments) > 1:
            below = min(segments[1].base, self.log.readable)
            while self.start < below and self._drop_oldest():
                pass
        self._save_soon()
        return self._size < ROOM * bounds.max_bytes

    def _drop_oldest(self) -> bool:
        """Drop the oldest waiting event. Return False if none is waiting."""
        number = self.start
        if number in self._open:
            self._open_bytes -= self._open.pop(number)
        elif number < self.log.readable:
            self._unread -= self._unread // (self.log.next - number)
            self._edge = number + 1
        else:
            return False
        self._dirty = True
        if number not in self._taken:
            self._lost()
        return True

    def _elsewhere(self, event: Event) -> None:
        self._lost()
        self._skip_next += 1
        self._dirty = True
        self._save_soon()
        self._fill.look(1.0)
        if self.bounds.on_full != "dead_letter" or self._spill is None:
            return
        self._spilling += 1

        def spilled(failed: StoreFailed | None) -> None:
            self._spilling -= 1
            if failed is not None:
                self._spill_failure = failed
            if not self._spilling:
                waiting, self._after_spill = self._after_spill, []
                for call in waiting:
                    call()

        self._spill(event, spilled)

    def _lost(self) -> None:
        self.spilled += 1

    def _write(self) -> None:
        self._flushing = False
        if not self._closed:
            self.flush(CommitId("", 0), self._written)

    def _written(self, failed: StoreFailed | None) -> None:
        if failed is not None:
            self._runtime.log(
                "error", "webhook.outbox_failed", plugin=self.name, reason=failed.reason
            )
        elif not self._closed:
            self._ready()

    # hookmq_webhook.queues.Queue ------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """Number of the first event to send."""
        return next(iter(self._open), self._edge)  # `_open` is in order

    @property
    def waiting(self) -> int:
        return max(0, self.log.next - self._edge - self._skipped) + len(self._open)

    @property
    def size(self) -> int:
        """Approximate size of the waiting events in bytes."""
        return self._unread + self._open_bytes

    @property
    def disk(self) -> int:
        """Approximate size on disk in bytes, including events that arrived but have not been deleted yet."""
        return self._size

    @property
    def oldest(self) -> float | None:
        """Approximate time of the oldest waiting event, in seconds since 1970, or None if no event is waiting."""
        return self._ages.oldest(self.start) if self.waiting else None

    def _first_time(self) -> float:
        """Return the time of the first waiting event, or the current time if it cannot be read. This call blocks."""
        try:
            _, rows = self._read(self.start, 1, 1)
        except (OSError, StoreError):
            rows = []  # the error is reported when the dispatcher reads the event
        for _, _, _, one in rows:
            if isinstance(one, Numbered):
                return one.event.time
        return self._runtime.time()

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        if after >= self.log.readable:
            done([], after, None)
            return

        rows = self.recent.take(after, self.log.readable, count, size)
        if rows is not None:
            page: list[Row] = [(one.number, skipped, one.size, one) for one, skipped in rows]
            self._handed([], page, after, done)
            return
        seeks = self._seeks

        def told(found: Any, error: BaseException | None) -> None:
            if seeks != self._seeks:
                done([], after, None)  # these events are not wanted any more
                return
            if error is not None:
                known = error if isinstance(error, Exception) else RuntimeError(repr(error))
                done([], after, known)
                return
            gaps, rows = found
            self._handed(gaps, rows, after, done)

        self._runtime.run_blocking(partial(self._read, after, count, size), told)

    def _handed(
        self, gaps: list[tuple[int, int]], found: list[Row], after: int, done: Page
    ) -> None:
        events: list[Numbered] = []
        for first, end in gaps:
            self._gap(first, end)
        for number, skipped, size, one in found:
            if number >= self._edge:
                self._edge = number + 1
                self._skipped = max(0, self._skipped - skipped)
                self._unread = max(0, self._unread - size) if self._edge < self.log.next else 0
            elif number not in self._open:
                continue  # the event arrived before a restart
            self._open_bytes += size - self._open.get(number, 0)
            self._open[number] = size
            if isinstance(one, str):
                self.unreadable += 1
                self._runtime.log(
                    "error", "webhook.event_unreadable", plugin=self.name, number=number, reason=one
                )
                self.done(number)
            else:
                self._ages.read(number, one.event.time)
                events.append(one)
        following = found[-1][0] + 1 if found else gaps[-1][1] if gaps else after
        done(events, following, None)

    def _gap(self, first: int, end: int) -> None:
        """Record the events from `first` to `end - 1` as lost, except those that have already arrived."""
        gone = [number for number in self._open if first <= number < end]
        for number in gone:
            self.done(number)
        count = len(gone) + max(0, end - max(first, self._edge))
        if end > self._edge:
            self._edge = end
            if self._edge >= self.log.next:
                self._unread = 0
        if count:
            self._damaged(first, end, count)

    def _damaged(self, first: int, end: int, count: int) -> None:
        self.damaged += count
        self._dirty = True
        self._runtime.log(
            "error", "webhook.outbox_damaged", plugin=self.name, folder=str(self.folder),
            first=first, end=end, lost=count,
        )  # fmt: skip
        self._told_lost(first, end)

    def _read(self, after: int, count: int, size: int) -> tuple[list[tuple[int, int]], list[Row]]:
        """Return the ranges of lost numbers, and the rows from number `after` on. This call blocks, and runs in a
        thread.
        """
        found: list[Row] = []
        gaps: list[tuple[int, int]] = []
        log = self.log.id
        frames: list[Frame] = []
        while not frames and after < self.log.readable:
            try:
                frames = self.log.read(after, size)
            except Trimmed as error:
                following = error.earliest
                if not (self.log.folder / LOCK).exists():
                    # The folder was moved or is not mounted, so its events are not lost.
                    raise FileNotFoundError(f"{self.log.folder} is gone") from None
            except StoreError:
                following = self.log.next_good(after)
            else:
                break
            gaps.append((after, following))
            after = following
        for frame in frames:
            if len(found) >= count:
                break
            number, large = frame.end - 1, len(frame.payload) + PER_EVENT
            skipped = number - frame.offset
            try:
                event = unpack(frame.payload)
            except ValueError as error:
                found.append((number, skipped, large, str(error)))
                continue
            found.append(
                (number, skipped, large, Numbered(number, event, large, f"{log}-{number}"))
            )
        return gaps, found

    def taken(self, number: int) -> None:
        self._taken.add(number)

    def left(self, number: int) -> None:
        self._taken.discard(number)

    def done(self, number: int) -> None:
        self._taken.discard(number)
        self._open_bytes -= self._open.pop(number, 0)
        self._dirty = True
        self._save_soon()

    def seek(self, number: int) -> None:
        """Make event `number` the first waiting event, followed by all later ones.

        The caller must then start reading again.
        """
        self._seeks += 1
        self._edge = number
        self._open, self._open_bytes = {}, 0
        self._unread = self._skipped = 0
        self._taken.clear()
        if number < self.log.next:
            self._unread = sum(one.size for one in self.log.segments if one.end > number)
            self._unread += self.log.buffered
        self._dirty = True
        self._save_soon()

    def _save_soon(self) -> None:
        """Save the cursor within `SAVE_EVERY` seconds, or immediately if that frees space in a full log."""
        segments = self.log.segments
        hurry = (
            self._size >= self.bounds.max_bytes
            and len(segments) > 1
            and segments[1].base <= self.start
        )
        if self._storing or (self._timer is not None and self._hurry >= hurry):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._hurry = hurry
        self._timer = self._runtime.call_later(0.0 if hurry else SAVE_EVERY, self._save)

    # the cursor -----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Load the cursor. If there is no usable cursor, all events are resent."""
        earliest = self.log.earliest
        self._edge, self._open, self._open_bytes = earliest, {}, 0
        self._skip_next = self._skipped = 0
        self._taken.clear()
        self.recent.clear()
        try:
            known = json.loads((self.folder / CURSOR).read_bytes())
            if known["log"] != self.log.id:
                return
            edge, waited = int(known["edge"]), sorted(map(int, known["open"]))
            self._skipped = max(0, int(known.get("skipped", 0)))
            following, gap = known.get("gap", (0, 0))
            if following == self.log.next:
                self._skip_next = max(0, int(gap))
            self._open = {n: 0 for n in waited if earliest <= n < edge}
            # The edge may be beyond the end of the log, if events were sent and then lost. Their ids must not be reused.
            self._edge = max(edge, earliest)
            # Events that were trimmed had arrived. Any other missing event was lost.
            gone = sum(1 for n in waited if n < earliest) + max(0, earliest - edge)
            if gone:
                self._damaged(min([*waited[:1], edge]), earliest, gone)
        except FileNotFoundError:
            return
        except (
            OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError,
        ) as error:  # fmt: skip
            self._runtime.log(
                "warning", "webhook.cursor_unusable", plugin=self.name, reason=repr(error)
            )

    def _cursor(self) -> Callable[[], bytes]:
        """Return a function that encodes the current cursor and can run in a thread."""
        more = {"skipped": self._skipped, "gap": (self.log.next, self._skip_next)}
        return partial(_cursor_text, self.log.id, self._edge, list(self._open), more)

    def _save(self) -> None:
        self._timer = None
        if self._storing or self._closed or not self._dirty:
            return
        self._dirty = False
        self._storing = True

        def saved(_: object, error: BaseException | None) -> None:
            self._storing = False
            if error is not None:
                self._dirty = True
                self._runtime.log(
                    "warning", "webhook.cursor_not_saved", plugin=self.name, reason=str(error)
                )
            if self._after_store is not None:
                self._after_store()
            elif not self._closed:
                self._size = self.log.size + self.log.buffered
                self._fill.look(self.fill)
                if self._dirty:
                    self._save_soon()

        self._runtime.run_blocking(partial(self._store, self._cursor(), self.start), saved)

    def _store(self, cursor: Callable[[], bytes], below: int) -> None:
        """Write the cursor, and then delete the segments below event `below`. This call blocks, and runs in a thread."""
        write_at_any_cost(self.folder / CURSOR, cursor())
        self.log.trim(below)
        reserve(self.folder)

    def close(self, done: Callable[[], None]) -> None:
        """Write all events and the cursor to disk, release the folder, and call `done`."""

        def flushed(failed: StoreFailed | None) -> None:
            if failed is not None:
                self._written(failed)
            if self._storing:
                self._after_store = end
            else:
                end()

        def end() -> None:
            self._runtime.run_blocking(self._end, ended)

        def ended(_: object, error: BaseException | None) -> None:
            if error is not None:
                self._runtime.log(
                    "warning", "webhook.cursor_not_saved", plugin=self.name, reason=str(error)
                )
            self.log.close()
            done()

        closed, self._closed = self._closed, True
        if closed or not self._opened:
            done()
        else:
            self.log.flush(flushed)

    def _end(self) -> None:
        """Write the cursor if it has changed. This call blocks, and runs in a thread."""
        if self._dirty:
            write_at_any_cost(self.folder / CURSOR, self._cursor()())


def _cursor_text(log: str, edge: int, numbers: list[int], more: dict[str, object]) -> bytes:
    """Encode the cursor in small pieces. If there are many numbers, other threads can run between the pieces."""
    pieces = [",".join(map(str, numbers[at : at + 1000])) for at in range(0, len(numbers), 1000)]
    rest = json.dumps(more)[1:]
    return f'{{"log":{json.dumps(log)},"edge":{edge},"open":[{",".join(pieces)}],{rest}'.encode()


__all__ = ["Bounds", "OnFull", "Outbox", "StoreError"]
