"""The outbox of `at_least_once`: a journal over a segmented log, and what of it arrived."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from hookmq.errors import StoreError
from hookmq.plugin import Message
from hookmq.runtime import Runtime, Timer
from hookmq.segments import Fill, SegmentLog, Trimmed
from hookmq.segments.frame import Frame
from hookmq.segments.log import LOCK
from hookmq.store import CommitId, StoreFailed

from hookmq_webhook.ages import Ages
from hookmq_webhook.events import Event, pack, unpack
from hookmq_webhook.folder import CURSOR, LOG, prepare, reserve, write_at_any_cost
from hookmq_webhook.queues import PER_EVENT, Numbered, Page

Row = tuple[int, int, Numbered | str]
"""Number, size, and the event, or why it cannot be understood."""
OnFull = Literal["reject", "dead_letter", "drop"]
SHARE: Final = 8
"""Segments that a full log has at least: the last one stays although all of it arrived."""
EXTRA: Final = 1.1
"""What nobody can be refused for, such as a client that connected, may go so far beyond the bounds."""
SAVE_EVERY: Final = 1.0
"""Seconds between two saves of what arrived: so much is sent twice after a crash."""


class Bounds(NamedTuple):
    """When an outbox is full: `max_events` wait, if that is not 0; or `max_bytes`; or twice that are on the disk, where
    what arrived stays until all before it did; or `max_unwritten` are in memory, since the disk is slower than those who
    publish."""

    max_bytes: int
    max_events: int
    on_full: OnFull = "reject"
    max_unwritten: int = 64 << 20


class Outbox:
    """A `hookmq.store.Journal`: what a publisher was acknowledged for is in it. And a `hookmq_webhook.queues.Queue`.

    `wants` says which topics it keeps messages of, `make` which events a message is; `ready` is called when there may be
    something to send. `spill` gets what does not fit, unless messages are refused then; the commit waits until it called
    back. `lost` is told the numbers, from the first to the one after the last, of events that a damaged disk has taken;
    what can be read goes on behind them.

    `cursor.json` beside the log says what arrived: all below `edge` but those in `open`. It is written once in a while,
    so that after a crash some events are sent again, with the ids that they had.
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
        """Events that were there but could not be understood."""
        self.damaged = 0
        """Events that the disk has lost."""
        self.spilled = 0
        """Events that did not fit."""
        self._runtime = runtime
        self._wants = wants
        self._make = make
        self._ready = ready
        self.bounds = bounds
        """May be changed."""
        self._spill = spill
        self._spilling = 0
        self._spill_failure: StoreFailed | None = None
        self._after_spill: list[Callable[[], None]] = []
        self._sync = sync
        self._told_lost = lost
        self._edge = 0
        self._open: dict[int, int] = {}
        """Sizes of what was handed out and did not arrive yet, by number; 0 where it is not known."""
        self._open_bytes = 0
        self._unread = 0
        """Bytes that were not handed out yet."""
        self._added = self._written_to = 0
        """Bytes that were ever added, and up to where they are on the disk."""
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

    # hookmq.store.Journal -------------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Whether a message of `topic` is an event for us."""
        return self._wants(topic)

    @property
    def full(self) -> bool:
        """Whether a message must be refused: never where it would go elsewhere, or nowhere."""
        if self.bounds.on_full != "reject" or self.fill < 1.0:
            return False
        self._fill.look(1.0)
        return True

    @property
    def fill(self) -> float:
        """How full it is; from 1.0 on it is beyond its bounds. What arrived is left on the disk up to the end of its
        segment, and does not count when nothing else is there."""
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
        """A message was accepted: its event goes with the commit. After `close` only plugins publish, in their own
        `on_shutdown`: nobody is acknowledged for that, and it is counted as lost."""
        for event in self._make(message):
            if self._closed:
                self._lost()
            elif self.bounds.on_full != "reject" and self.fill >= 1.0:
                self._elsewhere(event)
            else:
                self._add(commit, event)

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Write and fsync."""
        if self._closed:
            done(None)
            return
        added = self._added

        def written(failed: StoreFailed | None) -> None:
            if failed is not None:
                done(failed)  # what was not written still counts
                return
            self._written_to = max(self._written_to, added)
            self._fill.look(self.fill)
            if self._spilling:
                self._after_spill.append(lambda: done(self._spill_failure))
            else:
                done(self._spill_failure)

        self.log.flush(written)

    def committed(self, commit: CommitId) -> None:
        """Whoever published was told: now the event may leave."""
        self.log.committed(commit)
        self._ready()

    def recover(self, last: CommitId) -> None:
        """Open the folder, and begin. Raises StoreError when it cannot be used."""
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

    # events that no commit is about ---------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Append an event that nobody waits for; it is written with the next commit, or soon."""
        if self._closed or self.log.failure is not None:
            self._lost()
        elif not self._opened:
            self._early.append(event)
        elif self.fill >= (EXTRA if self.bounds.on_full == "reject" else 1.0):
            self._elsewhere(event)
        else:
            self._add(None, event)
            if not self._flushing:
                self._flushing = True
                self._runtime.call_soon(self._write)

    def _add(self, commit: CommitId | None, event: Event) -> None:
        data = pack(event)
        self._ages.added(self.log.append(commit, data), event.time)
        size = len(data) + PER_EVENT
        self._size += size
        self._unread += size
        self._added += size

    def _elsewhere(self, event: Event) -> None:
        self._lost()
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
        """The number that sending begins with."""
        return next(iter(self._open), self._edge)  # they are in order

    @property
    def waiting(self) -> int:
        return self.log.next - self._edge + len(self._open)

    @property
    def size(self) -> int:
        """Bytes that wait in it, about."""
        return self._unread + self._open_bytes

    @property
    def disk(self) -> int:
        """Bytes that it has on the disk, about, also of what arrived and is not yet deleted."""
        return self._size

    @property
    def oldest(self) -> float | None:
        """Epoch seconds of the oldest event that waits, about; None if nothing does."""
        return self._ages.oldest(self.start) if self.waiting else None

    def _first_time(self) -> float:
        """When the first event that waits happened. Blocks."""
        try:
            _, rows = self._read(self.start, 1, 1)
        except (OSError, StoreError):
            rows = []  # whoever reads it will say so
        for _, _, one in rows:
            if isinstance(one, Numbered):
                return one.event.time
        return self._runtime.time()

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        if after >= self.log.readable:
            done([], after, None)
            return

        def told(found: Any, error: BaseException | None) -> None:
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
        for number, size, one in found:
            if number >= self._edge:
                self._edge = number + 1
                self._unread = max(0, self._unread - size) if self._edge < self.log.next else 0
            elif number not in self._open:
                continue  # it arrived before a restart
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
        """What is between these was lost, but for what had arrived before."""
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
        """In a thread."""
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
                    # Moved away, or not mounted: what is not there to be read is not lost yet.
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
            number, large = frame.offset, len(frame.payload) + PER_EVENT
            try:
                event = unpack(frame.payload)
            except ValueError as error:
                found.append((number, large, str(error)))
                continue
            found.append((number, large, Numbered(number, event, large, f"{log}-{number}")))
        return gaps, found

    def taken(self, number: int) -> None:
        """It is on the disk wherever else it is."""

    def left(self, number: int) -> None:
        """As `taken`."""

    def done(self, number: int) -> None:
        self._open_bytes -= self._open.pop(number, 0)
        self._dirty = True
        self._save_soon()

    def _save_soon(self) -> None:
        """Within a second; at once when the disk has so much that what arrived is in the way, and can go."""
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

    # what arrived ---------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """The cursor; without a usable one all is sent again."""
        earliest = self.log.earliest
        self._edge, self._open, self._open_bytes = earliest, {}, 0
        try:
            known = json.loads((self.folder / CURSOR).read_bytes())
            if known["log"] != self.log.id:
                return
            told, waited = int(known["edge"]), sorted(map(int, known["open"]))
            self._open = {n: 0 for n in waited if earliest <= n < told}
            # It may be beyond the log's end: what was there, and sent, is gone, and its ids must not come again.
            self._edge = max(told, earliest)
            # What was trimmed had arrived: what is missing otherwise was lost.
            gone = sum(1 for n in waited if n < earliest) + max(0, earliest - told)
            if gone:
                self._damaged(min([*waited[:1], told]), earliest, gone)
        except FileNotFoundError:
            return
        except (
            OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError,
        ) as error:  # fmt: skip
            self._runtime.log(
                "warning", "webhook.cursor_unusable", plugin=self.name, reason=repr(error)
            )

    def _cursor(self) -> Callable[[], bytes]:
        """What makes the cursor of this moment, in a thread."""
        return partial(_cursor_text, self.log.id, self._edge, list(self._open))

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
        """In a thread: first what arrived is safe, then what held it goes."""
        write_at_any_cost(self.folder / CURSOR, cursor())
        self.log.trim(below)
        reserve(self.folder)

    def close(self, done: Callable[[], None]) -> None:
        """Write what waits for it, save what arrived, let go of the folder, and tell `done`."""

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
        """In a thread."""
        if self._dirty:
            write_at_any_cost(self.folder / CURSOR, self._cursor()())


def _cursor_text(log: str, edge: int, numbers: list[int]) -> bytes:
    """Piece by piece: there may be many numbers, and the loop has a use for the interpreter in between."""
    pieces = [",".join(map(str, numbers[at : at + 1000])) for at in range(0, len(numbers), 1000)]
    return f'{{"log":{json.dumps(log)},"edge":{edge},"open":[{",".join(pieces)}]}}'.encode()


__all__ = ["Bounds", "OnFull", "Outbox", "StoreError"]
