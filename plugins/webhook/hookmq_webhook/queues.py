"""Where events wait: in memory, bounded, or on disk, where they outlive the broker. Both count them from 0 and hand them
out by number; what arrived is told to `done`, in any order."""

import json
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from hookmq.errors import StoreError
from hookmq.plugin import Message
from hookmq.runtime import Runtime
from hookmq.segments import SegmentLog
from hookmq.store import CommitId, StoreFailed

from hookmq_webhook.events import Event, pack, unpack

Drop = Literal["oldest", "newest"]
CURSOR: Final = "cursor.json"
PER_EVENT: Final = 64
"""Bytes that an event costs beside what it holds."""


class Numbered(NamedTuple):
    """An event and its number."""

    number: int
    event: Event
    size: int


Page = Callable[[list[Numbered], int, Exception | None], None]
"""Told a page of events, the number that the next page begins with, and why there is none, if it could not be read."""


class Queue(Protocol):
    """What the dispatcher takes events from."""

    @property
    def waiting(self) -> int:
        """Events that did not arrive yet."""

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        """Tell `done` the next events from number `after` on: at most `count`, of about `size` bytes; at once or later.
        That the next page begins where this one did says that there is nothing more for now."""

    def done(self, number: int) -> None:
        """This one needs no further attempt."""


class MemoryQueue:
    """For `best_effort`: bounded in events and bytes; what is too much is dropped and counted."""

    def __init__(
        self, max_events: int, max_bytes: int, drop: Drop, dropped: Callable[[Event], None]
    ) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._drop = drop
        self._dropped = dropped
        self._events: deque[Numbered] = deque()
        self._bytes = 0
        self._next = 0
        self._handed = 0

    @property
    def waiting(self) -> int:
        return len(self._events) + self._handed

    def put(self, event: Event) -> None:
        """Take an event. It never waits."""
        size = PER_EVENT + len(event.payload or b"") + len(event.topic or "")
        numbered = Numbered(self._next, event, size)
        self._next += 1
        while self._events and (
            len(self._events) >= self._max_events or self._bytes + size > self._max_bytes
        ):
            if self._drop == "newest":
                self._dropped(event)
                return
            oldest = self._events.popleft()
            self._bytes -= oldest.size
            self._dropped(oldest.event)
        self._events.append(numbered)
        self._bytes += size

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        taken: list[Numbered] = []
        while self._events and len(taken) < count and (size > 0 or not taken):
            one = self._events.popleft()
            self._bytes -= one.size
            size -= one.size
            taken.append(one)
        self._handed += len(taken)
        done(taken, taken[-1].number + 1 if taken else after, None)

    def done(self, number: int) -> None:
        self._handed -= 1


class Outbox:
    """For `at_least_once`: a journal over a segmented log. What a publisher was acknowledged for is in it.

    `cursor.json` beside the log says what arrived: every number below `below`, and those in `beyond`. It is written once
    in a while, so that after a crash some events are sent again, with the same id.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        runtime: Runtime,
        wants: Callable[[str], bool],
        make: Callable[[Message], Event | None],
        ready: Callable[[], None],
        *,
        max_bytes: int,
        max_events: int,
        segment_size: int,
        sync: bool = True,
        save_every: float = 1.0,
    ) -> None:
        self.name = name
        self.folder = folder
        self.log = SegmentLog(
            folder / "log", runtime.run_blocking, segment_size=segment_size, sync=sync
        )
        self._runtime = runtime
        self._wants = wants
        self._make = make
        self._ready = ready
        self._max_bytes = max_bytes
        self._max_events = max_events
        self._save_every = save_every
        self._below = 0
        self._beyond: set[int] = set()
        self._saving = False
        self._dirty = False
        self._flushing = False
        self._size = 0
        self.failure: str | None = None

    # hookmq.store.Journal -------------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Whether a message of `topic` is an event for us."""
        return self._wants(topic)

    @property
    def full(self) -> bool:
        """No room for another event."""
        return self._size >= self._max_bytes or self.log.next - self._below >= self._max_events

    def append(self, commit: CommitId, message: Message) -> None:
        """A message was accepted: its event goes with the commit."""
        event = self._make(message)
        if event is not None:
            self._add(commit, event)

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Write and fsync."""
        self.log.flush(done)

    def committed(self, commit: CommitId) -> None:
        """Whoever published was told: now the event may leave."""
        self.log.committed(commit)
        self._ready()

    def recover(self, last: CommitId) -> None:
        """Open the folder. Raises StoreError when it cannot be used."""
        self.log.open()
        self.log.recover(last)
        self._size = self.log.size
        self._load()

    # events that no commit is about ---------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Append an event that nobody waits for; it is written with the next commit, or soon."""
        if self.log.failure is not None:
            return
        self._add(None, event)
        if not self._flushing:
            self._flushing = True
            self._runtime.call_soon(self._write)

    def _add(self, commit: CommitId | None, event: Event) -> None:
        data = pack(event)
        self.log.append(commit, data)
        self._size += len(data) + PER_EVENT

    def _write(self) -> None:
        self._flushing = False
        self.log.flush(self._written)

    def _written(self, failed: StoreFailed | None) -> None:
        if failed is not None:
            self.failure = failed.reason
            self._runtime.log(
                "error", "webhook.outbox_failed", plugin=self.name, reason=failed.reason
            )
        else:
            self._ready()

    # hookmq_webhook.queues.Queue ------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """The number that sending begins with."""
        return self._below

    @property
    def waiting(self) -> int:
        return self.log.next - self._below - len(self._beyond)

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        if after >= self.log.readable:
            done([], after, None)
            return

        def told(found: Any, error: BaseException | None) -> None:
            if error is not None:
                done(
                    [], after, error if isinstance(error, Exception) else RuntimeError(repr(error))
                )
                return
            following = found[-1].number + 1 if found else after
            done([one for one in found if self._still_to_send(one.number)], following, None)

        self._runtime.run_blocking(partial(self._read, after, count, size), told)

    def _still_to_send(self, number: int) -> bool:
        return number >= self._below and number not in self._beyond

    def _read(self, after: int, count: int, size: int) -> list[Numbered]:
        """In a thread."""
        found: list[Numbered] = []
        for frame in self.log.read(after, size):
            if len(found) >= count:
                break
            found.append(Numbered(frame.offset, unpack(frame.payload), len(frame.payload)))
        return found

    def done(self, number: int) -> None:
        beyond = self._beyond
        beyond.add(number)
        while self._below in beyond:
            beyond.discard(self._below)
            self._below += 1
        self._dirty = True
        if not self._saving:
            self._saving = True
            self._runtime.call_later(self._save_every, self._save)

    # what arrived ---------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """The cursor; without a usable one all is sent again."""
        self._below, self._beyond = self.log.earliest, set()
        try:
            known = json.loads((self.folder / CURSOR).read_bytes())
            if known["log"] == self.log.id:
                self._below = min(max(int(known["below"]), self.log.earliest), self.log.next)
                self._beyond = {
                    n for first, last in known["beyond"] for n in range(first, last + 1)
                    if self._below <= n < self.log.next
                }  # fmt: skip
        except FileNotFoundError:
            return
        except (OSError, KeyError, TypeError, ValueError) as error:
            self._runtime.log(
                "warning", "webhook.cursor_unusable", plugin=self.name, reason=repr(error)
            )

    def _save(self) -> None:
        if not self._dirty:
            self._saving = False
            return
        self._dirty = False
        below = self._below
        text = json.dumps({"log": self.log.id, "below": below, "beyond": ranges(self._beyond)})

        def saved(_: object, error: BaseException | None) -> None:
            if error is not None:
                self._runtime.log(
                    "warning", "webhook.cursor_not_saved", plugin=self.name, reason=str(error)
                )
            self._size = self.log.size + self.log.buffered
            self._runtime.call_later(self._save_every, self._save)

        self._runtime.run_blocking(partial(self._store, text, below), saved)

    def _store(self, text: str, below: int) -> None:
        """In a thread: first what arrived is safe, then what held it goes."""
        write_atomically(self.folder / CURSOR, text.encode())
        self.log.trim(below)

    def close(self) -> None:
        """Save what arrived and let go of the folder. Blocks for a moment."""
        try:
            if self._dirty:
                text = {"log": self.log.id, "below": self._below, "beyond": ranges(self._beyond)}
                write_atomically(self.folder / CURSOR, json.dumps(text).encode())
        except OSError as error:
            self._runtime.log(
                "warning", "webhook.cursor_not_saved", plugin=self.name, reason=str(error)
            )
        finally:
            self.log.close()


def ranges(numbers: set[int]) -> list[tuple[int, int]]:
    """Runs of numbers, as (first, last)."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file: after a crash it is the old one or the new one, whole. Raises OSError."""
    new = path.with_name(path.name + ".new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
    finally:
        os.close(file)
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


__all__ = ["MemoryQueue", "Numbered", "Outbox", "Queue", "StoreError", "ranges", "write_atomically"]
