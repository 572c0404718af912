"""Store dead letters in a file: each event that the plugin gave up on, and why.

A dead letter keeps its id when it is resent.
"""

import asyncio
import json
import marshal
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from hookmq.storage_api import CommitId, StoreFailed
from hookmq_toolkit.durable_files import write_atomically
from hookmq_toolkit.segment_log import SegmentLog
from hookmq_toolkit.segment_log.log import RunBlocking

from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.events import Event, pack, unpack
from hookmq_webhook.folder import prepare
from hookmq_webhook.queues import Numbered

REPLAYED: Final = "replayed.json"
LOG: Final = "log"
_KNOWN: Final = frozenset({REPLAYED, REPLAYED + ".new", LOG})
_FORMAT: Final = 1
_MARSHAL: Final = 4
_STORE: Final = CommitId("dead letters", 0)
"""A placeholder commit id, since dead letters are not part of a commit."""
PAGE: Final = 4 << 20
"""Bytes to read at a time."""
AT_A_TIME: Final = 20
"""Dead letters to load at a time for a replay. An interrupted replay may send up to this many twice."""
SHARE: Final = 8
"""Number of segments in a full file. The oldest segment is removed as a whole."""


class Dead(NamedTuple):
    """An event that the plugin gave up on. `place` is its position in the file, and `number` is its number in the
    queue.
    """

    place: int
    id: str
    number: int
    event: Event
    reason: str
    attempts: int
    time: float

    @property
    def numbered(self) -> Numbered:
        """The event with its number and id, ready to be resent."""
        return Numbered(self.number, self.event, 0, self.id)


class DeadLetters:
    """The dead-letter file in `folder`. Call `open` first; it locks the file until `close`."""

    def __init__(
        self, folder: Path, run_blocking: RunBlocking, max_bytes: int, sync: bool = True
    ) -> None:
        self.folder = folder
        self.added = 0
        self.overwritten = 0
        """Dead letters that were removed because the file was full."""
        self._max_bytes = max_bytes
        self._run_blocking = run_blocking
        self._sync = sync
        self._log = self._make_log()
        self._replayed: set[int] = set()
        self._trimming = False
        self._reopening = False
        self._opened = False

    def _make_log(self) -> SegmentLog:
        size = max(4096, self._max_bytes // SHARE)
        return SegmentLog(self.folder / LOG, self._run_blocking, segment_size=size, sync=self._sync)

    def open(self) -> None:
        """Open and lock the folder. This call blocks. Raises StoreError."""
        prepare(self.folder, _KNOWN, (LOG,))
        self._log.open()
        self._log.recover(_STORE)
        self._opened = True
        self._replayed = self._load()

    def close(self) -> None:
        """Close the file and release the folder."""
        if self._opened:
            self._opened = False
            self._log.close()

    @property
    def waiting(self) -> int:
        """Number of dead letters that have not been resent."""
        return self._log.next - self._log.earliest - len(self._replayed)

    def add(
        self,
        one: Numbered,
        reason: str,
        attempts: int,
        time: float,
        done: Callable[[StoreFailed | None], None],
    ) -> None:
        """Add an event. Calls `done` with None once the event is stored safely, or with the failure."""
        if not self._opened:
            done(StoreFailed(f"{self.folder} is not open"))
            return
        if self._log.failure is not None:  # a log that failed once accepts no more writes
            done(StoreFailed(self._log.failure))
            self._reopen()
            return
        record = (_FORMAT, one.id, one.number, pack(one.event), reason, attempts, time)
        self._log.append(None, marshal.dumps(record, _MARSHAL))
        self.added += 1
        self._log.flush(done)
        if self._log.size > self._max_bytes and not self._trimming:
            self._trim()

    def _reopen(self) -> None:
        """Reopen the file after a failure such as a full disk, so that a later `add` may succeed."""
        if self._reopening or self._trimming:
            return
        self._reopening = True
        before, fresh = self._log, self._make_log()
        before.close()  # release the lock for the new log

        def take() -> None:
            prepare(self.folder, _KNOWN, (LOG,))
            fresh.open()
            fresh.recover(_STORE)

        def taken(_: object, error: BaseException | None) -> None:
            self._reopening = False
            if error is not None or not self._opened:
                fresh.close()
                return
            self._log = fresh
            if fresh.id != before.id:
                self._replayed = set()

        self._run_blocking(take, taken)

    def _trim(self) -> None:
        segments = self._log.segments
        if len(segments) < 2:
            return
        self._trimming = True
        before = self._log.earliest

        def trimmed(_: object, error: BaseException | None) -> None:
            self._trimming = False
            earliest = self._log.earliest
            self.overwritten += sum(1 for n in range(before, earliest) if n not in self._replayed)
            self._replayed = {n for n in self._replayed if n >= earliest}

        self._run_blocking(partial(self._log.trim, segments[1].base), trimmed)

    def read(self) -> Iterator[Dead]:
        """Yield the dead letters that have not been resent, oldest first. This call blocks. Raises StoreError."""
        place = self._log.earliest
        while frames := self._log.read(place, PAGE):
            for frame in frames:
                place = frame.end
                if frame.offset not in self._replayed:
                    found = _parse(frame.offset, frame.payload)
                    if found is not None:
                        yield found

    def replayed(self, places: Iterable[int]) -> Callable[[], None]:
        """Mark dead letters as resent, and return a function that saves the marks.

        The returned function blocks, and raises OSError.
        """
        self._replayed.update(places)
        known = {"log": self._log.id, "replayed": sorted(self._replayed)}
        return partial(write_atomically, self.folder / REPLAYED, json.dumps(known).encode())

    def purge(self) -> Callable[[], None]:
        """Mark all dead letters as resent, and return a function that saves the marks; see `replayed`."""
        return self.replayed(range(self._log.earliest, self._log.next))

    def _load(self) -> set[int]:
        """Return the positions of resent dead letters. The set is empty if the file is missing or unusable."""
        try:
            known = json.loads((self.folder / REPLAYED).read_bytes())
            if known["log"] == self._log.id:
                earliest = self._log.earliest
                return {int(n) for n in known["replayed"] if earliest <= int(n) < self._log.next}
        except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
            pass
        return set()


class Replay(NamedTuple):
    """The result of a replay: how many dead letters arrived, and how many failed."""

    arrived: int
    failed: int
    reason: str
    """The reason for the last failure."""


async def replay(
    dead: DeadLetters,
    send: Callable[[list[Numbered]], Awaitable[Answer]],
    wanted: Callable[[Dead], bool] = lambda _: True,
    told: Callable[[Dead, Answer], None] = lambda dead, answer: None,
) -> Replay:
    """Resend the `wanted` dead letters one by one, oldest first.

    Calls `told` after each attempt. A dead letter that the service refuses remains in the file, and the replay
    continues. If the service cannot accept events now, the replay stops. Raises StoreError and OSError.
    """
    arrived = failed = 0
    reason = ""
    left = dead.read()
    while found := await asyncio.to_thread(lambda: list(islice(left, AT_A_TIME))):
        places: list[int] = []
        try:
            for one in found:
                if not wanted(one):
                    continue
                answer = await send([one.numbered])
                told(one, answer)
                if answer.verdict is Verdict.ARRIVED:
                    arrived += 1
                    places.append(one.place)
                    continue
                failed += 1
                reason = answer.reason
                if answer.verdict in (Verdict.AGAIN, Verdict.GONE):
                    return Replay(arrived, failed, reason)
        finally:
            if places:
                await asyncio.to_thread(dead.replayed(places))
    return Replay(arrived, failed, reason)


def at_once(call: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> Any:
    """Run `call` like `Runtime.run_blocking`, but in the calling thread. Commands use this function."""
    try:
        result = call()
    except Exception as error:
        done(None, error)
    else:
        done(result, None)
    return lambda: None


def _parse(place: int, data: bytes) -> Dead | None:
    try:
        form, id, number, packed, reason, attempts, time = marshal.loads(data)
        if form != _FORMAT:
            return None
        return Dead(place, id, number, unpack(packed), reason, attempts, time)
    except (EOFError, TypeError, ValueError):
        return None


__all__ = ["Dead", "DeadLetters", "Replay", "at_once", "replay"]
