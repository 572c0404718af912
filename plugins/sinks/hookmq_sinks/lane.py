"""A lane, which writes the records of some keys to the target, batch by batch."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from hookmq_toolkit.breaker import Breaker

from hookmq_sinks.batch import Batch
from hookmq_sinks.config import SinkConfig
from hookmq_sinks.driver import Driver, DriverContext, Rejected, TargetUnavailable
from hookmq_sinks.extras import extra_hint
from hookmq_sinks.lane_queue import Entry, LaneQueue
from hookmq_sinks.record import Position, Record
from hookmq_sinks.record_run import RecordRun

CRASHES: Final = 3
"""The number of unexpected errors after which a batch is split into single records, and after which a single record
becomes a dead letter."""
MAX_OFFSET: Final = (1 << 63) - 1
CLOSING: Final = 5.0
"""Seconds that a driver may take to close."""


@dataclass
class Counts:
    """Counters that start from 0 when a sink's process starts."""

    written: int = 0
    batches: int = 0
    failures: int = 0
    dead_letters: int = 0
    write_seconds: float = 0.0


class LaneState(NamedTuple):
    """The state of a lane: `starting`, `active`, `retrying` or `failed`, and the reason."""

    word: str
    reason: str = ""


class Replay(NamedTuple):
    """Records to write again, and a future that receives the rejected ones with their reasons."""

    records: list[Record]
    rejected: "asyncio.Future[list[tuple[Record, str]]]"


class TargetBehind(Exception):
    """The target has lost records that it had confirmed. `offset` is the first of them."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the target has lost the records from {offset} on")
        self.offset = offset


class TargetAhead(Exception):
    """The target has records that the log has lost. `offset` is the one after the last of them."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the log has lost records below {offset}")
        self.offset = offset


class Lane:
    """Writes entries in order. The feed calls `add` and `low`. `run` ends when `stopping` is set or when it is cancelled.

    `end` returns the highest position that the target can have if the log has lost no records. Its argument says
    whether the lane has opened the target before. `bury` stores dead letters on disk. `changed` is called when the
    state or `low` changes.
    """

    def __init__(
        self,
        config: SinkConfig,
        context: DriverContext,
        bury: Callable[[list[tuple[Record, str]]], Awaitable[None]],
        changed: Callable[[], None],
        counts: Counts,
        breaker: Breaker,
        start: int,
        ignore_target: bool,
        end: Callable[[bool], int] = lambda opened: MAX_OFFSET,
    ) -> None:
        self.state = LaneState("starting")
        self.paused = False
        self.stopping = False
        self._config = config
        self._context = context
        self._bury = bury
        self._changed = changed
        self._counts = counts
        self._breaker = breaker
        self._queue = LaneQueue()
        self._replays: deque[Replay] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._driver: Driver | None = None
        self._ignore_target = ignore_target
        self.reached = start
        """Every record of this lane below this offset is done."""
        self._alone = config.lanes == 1
        self._known = self._alone
        """Whether the target has certainly confirmed `reached`."""
        self._skip_below = 0
        self._crashes = 0
        self._blamed = False
        """Whether the last record was given up after unexpected errors, and no record was written since."""
        self._failures = 0
        self._end = end
        self._opened = False

    # for the feed ----------------------------------------------------------------------------------------------------

    def add(self, entry: Entry | RecordRun) -> None:
        """Add an entry or a run. Its offsets must be higher than those of earlier ones."""
        self._queue.add(entry)
        if self._skip_below:
            self._queue.drop_below(self._skip_below)
        batch = self._config.batch
        if len(self._queue) >= 2 * batch.messages or self._queue.bytes >= 2 * batch.bytes:
            self._room.clear()
        self._wake.set()

    async def room(self) -> None:
        """Wait until the lane has room for more entries."""
        await self._room.wait()

    @property
    def low(self) -> int | None:
        """The offset of the first record that is not done, or None if the lane has none."""
        return self._queue.first

    @property
    def oldest(self) -> float | None:
        """The time when the broker received the first message that is not done, or None if the lane has none."""
        return self._queue.received_at

    @property
    def waiting(self) -> int:
        """The number of records that are not done."""
        return len(self._queue)

    def wake(self) -> None:
        """Make the lane check again whether it is paused or stopping."""
        self._wake.set()

    def replay(self, records: list[Record]) -> "asyncio.Future[list[tuple[Record, str]]]":
        """Write records again, before the next batch. Return a future that receives the rejected records."""
        future: asyncio.Future[list[tuple[Record, str]]] = (
            asyncio.get_running_loop().create_future()
        )
        self._replays.append(Replay(records, future))
        self._wake.set()
        return future

    # writing ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write entries until the lane is stopped. Raises TargetBehind or TargetAhead."""
        try:
            await self._open_until_ready()
            while not self.stopping:
                count = await self._collect()
                while self._replays and not self.stopping and not self.paused:
                    if await self._attempt(self._write_replay):
                        self._replays.popleft()
                if count:
                    await self._write_until_done(count)
        finally:
            for one in self._replays:
                one.rejected.cancel()
            await self._close()

    async def _collect(self) -> int:
        """Wait for a batch. Return the number of entries in it, or 0 if there is no batch yet."""
        if self._replays and not self.paused:
            return 0
        if self.paused or not self._queue:
            self._wake.clear()
            await self._wake.wait()
            return 0
        batch, loop = self._config.batch, asyncio.get_running_loop()
        until = self._queue.read_at + batch.age
        while len(self._queue) < batch.messages and self._queue.bytes < batch.bytes:
            left = until - loop.time()
            if left <= 0 or self.stopping:
                break
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()
        if self.paused:
            return 0
        return self._fitting()

    def _fitting(self) -> int:
        """Return the number of entries that fit into one batch, which is at least one."""
        if self._crashes >= CRASHES:
            return 1
        return self._queue.fitting(self._config.batch.messages, self._config.batch.bytes)

    async def _open_until_ready(self) -> None:
        """Open the target, so that mistakes are found even before the first message arrives."""
        while self._driver is None and not self.stopping:
            await self._attempt(self._open)

    async def _write_until_done(self, count: int) -> None:
        """Write the first `count` entries, and retry until the target has confirmed them."""
        while not self.stopping:
            done = await self._attempt(partial(self._write_first, count))
            if done or not self._queue:
                return
            count = min(count, self._fitting())

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run `work` with an open driver. Return whether it succeeded. After a failure, wait before returning."""
        ask = self._breaker.ask()
        if ask is None:
            await self._pause(max(0.01, self._breaker.opens_in()))
            return False
        good: bool | None = None
        try:
            if self._driver is None:
                await self._open()
            await work()
            good = True
        except TargetUnavailable as error:
            good = False
            self._failed(error.reason, error.permanent)
        except TimeoutError:
            good = False
            self._failed(f"no answer within {self._config.timeout:g} s")
        except (TargetBehind, TargetAhead, asyncio.CancelledError):
            raise
        except Exception as error:
            good = False
            self._crashed(error)
        finally:
            ask.end(good)
        if good:
            self._failures = self._crashes = 0
            self._tell(LaneState("active"))
            return True
        await self._close()
        await self._pause(self._delay())
        return False

    def _crashed(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._crashes += 1
        self._context.log("error", "sinks.driver_failed", reason=reason)
        if self._crashes >= 2 * CRASHES and self._queue and not self._blamed:
            # Smaller batches did not help. This record alone makes the driver fail.
            self._blamed, self._crashes = True, CRASHES
            self._queue.refuse_first(f"the driver failed: {reason}")
        self._failed(reason, self._blamed)

    def _failed(self, reason: str, permanent: bool = False) -> None:
        self._failures += 1
        self._counts.failures += 1
        before = self.state.word
        self._tell(LaneState("failed" if permanent else "retrying", reason))
        if permanent:
            self._failures = max(self._failures, 32)
        if before == self.state.word:
            return
        if permanent:
            self._context.log("error", "sinks.target_failed", reason=reason)
        else:
            self._context.log("warning", "sinks.target_unavailable", reason=reason)

    def _tell(self, state: LaneState) -> None:
        if state != self.state:
            if state.word == "active" and self.state.word in ("retrying", "failed"):
                self._context.log("info", "sinks.target_available")
            self.state = state
            self._changed()

    def _delay(self) -> float:
        """Return the delay before the next attempt: exponential, with jitter."""
        retry = self._config.retry
        longest: float = min(retry.longest, retry.first * 2.0 ** min(self._failures - 1, 40))
        return longest * random.uniform(0.5, 1.0)

    async def _pause(self, seconds: float) -> None:
        """Wait. Return early if the lane is stopped."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.stopping and (left := until - loop.time()) > 0:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()

    async def _open(self) -> None:
        """Open the target, and continue from the position that it holds."""
        if self._driver is not None:
            return
        kind = self._config.kind
        self._driver = driver = kind(self._config.target, self._context)
        try:
            async with asyncio.timeout(self._config.timeout):
                held = await driver.open()
        except ImportError as error:
            reason = "; ".join(filter(None, (str(error), extra_hint(kind.extra))))
            raise TargetUnavailable(reason, True) from error
        opened, self._opened = self._opened, True
        if held is None or held.log_id != self._context.log_id or self._ignore_target:
            return
        if held.offset > self._end(opened):
            raise TargetAhead(held.offset)
        if held.offset < self.reached and self._known:
            raise TargetBehind(held.offset)
        self._skip_below = max(self._skip_below, held.offset)
        self._drop_below(held.offset)
        self.reached = max(self.reached, held.offset)
        self._known = True
        self._changed()

    async def _close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            try:
                async with asyncio.timeout(CLOSING):
                    await driver.close()
            except Exception as error:
                self._context.log(
                    "warning", "sinks.driver_not_closed", reason=str(error) or type(error).__name__
                )

    async def _write_first(self, count: int) -> None:
        """Write the first `count` entries of the queue. If the target already has some of them, write only the rest."""
        assert self._driver is not None
        if not len(self._queue):
            return
        good, dead, end = self._queue.peek(count)
        position = Position(self._context.log_id, end)
        loop = asyncio.get_running_loop()
        while True:
            if dead:
                await self._bury(dead)
                dead = []
            if not good and not self._driver.holds_position:
                break
            began = loop.time()
            try:
                async with asyncio.timeout(self._config.timeout):
                    await self._driver.write(Batch(good, position))
            except Rejected as error:
                dead, good, stored = _rejected(good, error)
                if stored:
                    await self._bury(dead)
                    break
                continue
            self._count(len(good), loop.time() - began)
            break
        self._drop_below(end)
        self.reached = position.offset
        self._known = True
        self._ignore_target = False
        if good:
            self._blamed = False
        self._changed()

    async def _write_replay(self) -> None:
        """Write the records of the first replay. The position does not change."""
        assert self._driver is not None
        records, future = self._replays[0]
        good, rejected = list(records), []
        while good:
            batch = Batch(tuple(good), Position(self._context.log_id, self.reached))
            try:
                async with asyncio.timeout(self._config.timeout):
                    await self._driver.write(batch)
                break
            except Rejected as error:
                dead, good, stored = _rejected(good, error)
                rejected += dead
                if stored:
                    break
        if not future.done():
            future.set_result(rejected)

    def _count(self, records: int, seconds: float) -> None:
        counts = self._counts
        counts.batches += 1
        counts.written += records
        counts.write_seconds += seconds

    def _drop_below(self, offset: int) -> None:
        queue, batch = self._queue, self._config.batch
        queue.drop_below(offset)
        if len(queue) < 2 * batch.messages and queue.bytes < 2 * batch.bytes:
            self._room.set()

    @property
    def metrics(self) -> dict[str, Any]:
        """The driver's own counters."""
        return dict(self._driver.metrics()) if self._driver is not None else {}


def _rejected(
    good: Sequence[Record], error: Rejected
) -> tuple[list[tuple[Record, str]], list[Record], bool]:
    """Split a batch. Return the dead letters, the other records, and whether the others are stored. Raises
    RuntimeError if the driver's error names no record of the batch.
    """
    dead = [(good[at], why) for at, why in sorted(error.reasons.items()) if 0 <= at < len(good)]
    if not dead:
        raise RuntimeError("the driver rejected no record of the batch")
    left = [record for at, record in enumerate(good) if at not in error.reasons]
    return dead, left, error.stored
