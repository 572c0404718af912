"""Store events for `at_least_once` in a journal. The sending process reads them and records which of them are done."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from hookmq.plugin import Message, Runtime, Timer
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_toolkit.durable_files import write_atomically
from hookmq_toolkit.segment_log import Fill, SegmentLog

from hookmq_webhook.cursor import CursorUnusable, Position, read_position
from hookmq_webhook.events import Event, pack
from hookmq_webhook.folder import GAPS, LOG, prepare, reserve
from hookmq_webhook.marks import Marks
from hookmq_webhook.queues import PER_EVENT

OnFull = Literal["reject", "dead_letter", "drop", "drop_oldest"]
_Done = Callable[[StoreFailed | None], None]
SHARE: Final = 8
"""Minimum number of segments in a full log. The last segment is kept even if all its events are done."""
EXTRA: Final = 1.1
"""The fill level up to which the outbox accepts events that cannot be refused, such as client.connected."""
ROOM: Final = 3
"""Size on disk, as a multiple of `Bounds.max_bytes`, at which new events are dropped if old ones cannot be deleted."""
SAVE_EVERY: Final = 1.0
"""Seconds after which new gaps in the numbers are stored."""


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
    """The journal that stores the events of all acknowledged messages. It implements `Journal`, `Bounded`, `Readable` and
    `Sealing` from `hookmq.storage_api`.

    `wants` returns whether messages on a topic are stored, and `make` returns the events for a message. `ready` is
    called when the place of the log changes. Unless messages are refused, `spill` receives the events that do not fit,
    and the commit waits for its callback.

    An event that does not fit leaves a gap in the numbers: the next event skips its number. With ``drop_oldest``, the
    oldest events make room instead. Events that the sender already has in memory are still sent.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        runtime: Runtime,
        wants: Callable[[str], bool],
        make: Callable[[Message], Iterable[Event]],
        ready: Callable[[], None],
        bounds: Bounds,
        spill: Callable[[Event, _Done], None] | None = None,
        *,
        sync: bool = True,
    ) -> None:
        self.name = name
        self.folder = folder
        self.spilled = 0
        """Number of events that did not fit."""
        self.bounds = bounds
        """The current limits. They may be replaced at any time."""
        self._runtime = runtime
        self._wants = wants
        self._make = make
        self._ready = ready
        self._spill = spill
        self._spilling = 0
        self._spill_failure: StoreFailed | None = None
        self._after_spill: list[Callable[[], None]] = []
        self._sync = sync
        # reported by the sender
        self._edge = 0
        self._open = 0
        self._open_bytes = 0
        self._skipped = 0
        self._start = 0
        self._stored = 0
        # gaps and dropped events
        self._gaps = 0
        """How many numbers of the log belong to no event. After a crash, possibly too few."""
        self._skip_next = 0
        """How many numbers the next event skips."""
        self._floor = 0
        """Events below this number are dropped, unless the sender has them in memory."""
        self._dropping = 0
        """How many dropped events the sender has not reported yet."""
        # sizes
        self._added = self._written_to = 0
        """Total bytes added so far, and how many of them are on disk."""
        self._before_edge = 0
        self._marks = Marks()
        self._size = 0
        self._fill = Fill(self._say_fill)
        self._hurry = False
        self._timer: Timer | None = None
        self._trimming = False
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
            share = max(share, max(self.size, self._size / 2) / bounds.max_bytes)
        if bounds.max_events:
            share = max(share, waiting / bounds.max_events)
        return share

    def _say_fill(self, word: str, share: float) -> None:
        bounds = self.bounds
        fields: dict[str, object] = {
            "plugin": self.name, "share": round(share, 2), "waiting": self.waiting,
            "bytes": self.size, "max_bytes": bounds.max_bytes, "on_full": bounds.on_full,
        }  # fmt: skip
        self._hurry = word != "has_room"
        if word == "filling":
            self._runtime.log("warning", "webhook.outbox_filling", **fields)
        elif word == "full":
            self._runtime.log("warning", "webhook.outbox_full", **fields)
        else:
            self._runtime.log("info", "webhook.outbox_has_room", **fields)
        self._ready()

    def append(self, commit: CommitId, message: Message) -> None:
        """Add the events of an accepted message to the commit.

        After `close`, the events count as lost. At that point, only plugins still publish (in `on_shutdown`), and they
        get no acknowledgement.
        """
        for event in self._make(message):
            if self._closed:
                self.spilled += 1
            elif self.bounds.on_full != "reject" and self.fill >= 1.0 and not self._make_room():
                self._elsewhere(event)
            else:
                self._add(commit, event)

    def flush(self, commit: CommitId, done: _Done) -> None:
        """Write all events to disk, with fsync if `sync` is set, and call `done`."""
        if self._closed:
            done(None)
        else:
            self._store(self.log.flush, done)

    def seal(self, done: _Done) -> bool:
        """Write all events to disk like `flush`, and allow them to be sent, without a commit of the broker's store."""
        if self._closed or not self.log.sealable:
            return False

        def sealed(failed: StoreFailed | None) -> None:
            if failed is None:
                self._ready()
            done(failed)

        self._store(self.log.seal, sealed)
        return True

    def _store(self, store: Callable[[_Done], None], done: _Done) -> None:
        """Write all events with `store`, and wait for spilled ones."""
        added = self._added
        self._marks.add(self.log.next, added)

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

        store(written)

    def committed(self, commit: CommitId) -> None:
        """Allow this commit's events to be sent."""
        before = self.log.readable
        self.log.committed(commit)
        if self.log.readable != before:
            self._ready()

    def recover(self, last: CommitId) -> None:
        """Open the folder, and load the log and the cursor. Raises StoreError if the folder cannot be used."""
        if self._opened:
            self.log.close()
            self.log = self._make_log()
        self._opened = True
        self._closed = False
        prepare(self.folder)
        log = self.log
        log.open()
        try:
            log.recover(last)
            try:
                position, _ = read_position(self.folder, log.id, log.earliest)
            except CursorUnusable:
                position = Position(log.earliest)  # the sender logs this
            # The edge may be beyond the end of the log, if events were sent and then lost. Their ids must not be reused.
            log.skip(position.edge)
        except BaseException:
            log.close()
            raise
        reserve(self.folder)
        self._edge, self._start, self._stored = position.edge, position.start, position.start
        self._open, self._open_bytes, self._skipped = len(position.open), 0, position.skipped
        self._floor = self._dropping = 0
        self._gaps, self._skip_next = self._read_gaps()
        self._size = log.size
        self._added = self._written_to = self._marks.begin(
            [(one.base, one.size) for one in log.segments], log.next
        )
        self._before_edge = self._marks.before(self._edge)
        early, self._early = self._early, []
        for event in early:
            self.put(event)
        self._ready()

    # events without a commit ----------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Add an event that no commit waits for. It is written to disk soon, or with the next commit."""
        if self._closed or self.log.failure is not None:
            self.spilled += 1
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
        skipped = self._skip_next
        self.log.append(commit, data, 1 + skipped)
        if skipped:
            self._skip_next = 0
            self._gaps += skipped
            self._save_soon()
        size = len(data) + PER_EVENT
        self._size += size
        self._added += size

    def _make_room(self) -> bool:
        """With ``drop_oldest``, drop the oldest events until another one fits. Return whether it fits."""
        bounds = self.bounds
        if bounds.on_full != "drop_oldest":
            return False
        if self._added - self._written_to >= bounds.max_unwritten:
            return False  # the disk is too slow: deleting events would not help
        self._fill.look(1.0)
        floor = max(self._floor, self._start)
        log = self.log
        while self.size >= bounds.max_bytes or 0 < bounds.max_events <= self.waiting:
            if floor >= log.readable:
                return False
            self._drop_below(floor := floor + 1)
        if self._size >= 2 * bounds.max_bytes and len(log.segments) > 1:
            self._drop_below(min(log.segments[1].base, log.readable))
        return self._size < ROOM * bounds.max_bytes

    def _drop_below(self, floor: int) -> None:
        before = max(self._floor, self._start)
        if floor > before:
            self._dropping += floor - before
            read = min(floor, self._edge) - before
            if read > 0 and self._open:
                self._open_bytes -= self._open_bytes * min(read, self._open) // self._open
            self._floor = floor
            if self._edge < floor:
                self._before_edge = self._marks.before(floor)
            self._ready()
            self._trim()

    def _elsewhere(self, event: Event) -> None:
        self.spilled += 1
        self._skip_next += 1
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

    # the sender -----------------------------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[int, int, int, bool]:
        """How far events are committed: the arguments of `hookmq_webhook.log_queue.LogQueue.advance`."""
        return self.log.readable, self._gaps, self._floor, self._hurry

    def take_position(self, position: Mapping[str, Any]) -> None:
        """Take the position that the sender has reported, and delete events that are done."""
        self._edge, self._open = position["edge"], position["open"]
        self._open_bytes, self._skipped = position["open_bytes"], position["skipped"]
        self._start, self._stored = position["start"], position["stored"]
        if position["floor"] >= self._floor:
            self._dropping = 0
        self._before_edge = self._marks.before(self._edge)
        self._fill.look(self.fill)
        self._trim()

    @property
    def start(self) -> int:
        """Number of the first event that is not done."""
        return max(self._start, min(self._floor, self._edge))

    @property
    def waiting(self) -> int:
        """Number of events that are not done."""
        unread = self.log.next - self._edge - max(0, self._gaps - self._skipped)
        return max(0, unread + self._open - self._dropping)

    @property
    def size(self) -> int:
        """Approximate size of the waiting events in bytes."""
        return max(0, self._added - self._before_edge) + self._open_bytes if self.waiting else 0

    @property
    def disk(self) -> int:
        """Approximate size on disk in bytes, including events that are done but have not been deleted yet."""
        return self._size

    def _trim(self) -> None:
        """Delete the segments whose events are all done."""
        below = max(self._stored, self._floor)
        segments = self.log.segments
        if self._trimming or self._closed or len(segments) < 2 or segments[1].base > below:
            return
        self._trimming = True

        def trimmed(_: object, error: BaseException | None) -> None:
            self._trimming = False
            if self._closed:
                return
            self._size = self.log.size + self.log.buffered
            if error is None:
                self._fill.look(self.fill)
                self._trim()

        self._runtime.run_blocking(partial(self._delete, below), trimmed)

    def _delete(self, below: int) -> None:
        """Delete segments, and renew the reserve. This call blocks, and runs in a thread."""
        self.log.trim(below)
        reserve(self.folder)

    # gaps -----------------------------------------------------------------------------------------------------------

    def _read_gaps(self) -> tuple[int, int]:
        """Return the stored number of gaps, and how many numbers the next event skips."""
        try:
            known = json.loads((self.folder / GAPS).read_bytes())
            if known["log"] == self.log.id:
                fits = known["next"] == self.log.next
                return max(0, int(known["gaps"])), max(0, int(known["skip"])) if fits else 0
        except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
            pass  # receivers see the same numbers; only the count of waiting events is too high
        return self._skipped, 0

    def _save_soon(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._runtime.call_later(SAVE_EVERY, self._save)

    def _save(self) -> None:
        self._timer = None
        self._runtime.run_blocking(self._gap_writer(), lambda _, error: None)

    def _gap_writer(self) -> Callable[[], None]:
        """Return a function that stores the gaps. It blocks, and raises OSError."""
        known = {
            "log": self.log.id, "gaps": self._gaps, "next": self.log.next, "skip": self._skip_next,
        }  # fmt: skip
        return partial(write_atomically, self.folder / GAPS, json.dumps(known).encode())

    def close(self, done: Callable[[], None]) -> None:
        """Write all events to disk, release the folder, and call `done`."""

        def flushed(failed: StoreFailed | None) -> None:
            if failed is not None:
                self._written(failed)
            if self._timer is None:
                ended(None, None)
            else:
                self._timer.cancel()
                self._runtime.run_blocking(self._gap_writer(), ended)

        def ended(_: object, error: BaseException | None) -> None:
            self.log.close()
            done()

        closed, self._closed = self._closed, True
        if closed or not self._opened:
            done()
        else:
            self.log.flush(flushed)


__all__ = ["Bounds", "OnFull", "Outbox"]
