"""Test a lane with a scripted driver: order, batches, retries, dead letters, and the target's position."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hookmq_sinks.config import BatchConfig, RetryConfig, SinkConfig
from hookmq_sinks.driver import (
    Batch,
    Driver,
    DriverContext,
    Position,
    Record,
    Rejected,
    TargetUnavailable,
)
from hookmq_sinks.lane import Counts, Lane, TargetBehind
from hookmq_sinks.lane_queue import Entry
from hookmq_sinks.testing import LOG_ID, make_record
from hookmq_toolkit.breaker import Breaker

Script = Callable[[Batch], None]


class Scripted(Driver):
    """Stores records in a list. `script` is called before each write and may raise."""

    stored: list[int]
    script: Script
    held: Position | None
    positions: list[int]
    opened: int
    closed: int
    refusing: str

    async def open(self) -> Position | None:
        kind = type(self)
        kind.opened += 1
        if kind.refusing:
            raise TargetUnavailable(kind.refusing, kind.refusing == "wrong password")
        return kind.held

    async def write(self, batch: Batch) -> None:
        kind = type(self)
        await asyncio.sleep(0)
        kind.script(batch)
        kind.stored += [one.offset for one in batch]
        kind.positions.append(batch.position.offset)

    async def close(self) -> None:
        type(self).closed += 1


class Bench:
    """A lane with a scripted driver."""

    def __init__(self, tmp_path: Path, holds: bool = False, **more: Any) -> None:
        self.dead: list[tuple[int, str]] = []
        self.logged: list[str] = []
        self.changed = asyncio.Event()

        class Kind(Scripted):
            stored: list[int] = []
            positions: list[int] = []
            held: Position | None = None
            script = staticmethod(lambda batch: None)
            opened = closed = 0
            refusing = ""
            holds_position = holds

        self.kind = Kind
        start, ignore = more.pop("start", 0), more.pop("ignore", False)
        settings: dict[str, Any] = {
            "batch": BatchConfig(messages=3, age=0.0),
            "retry": RetryConfig(first=0.01, longest=0.02, failures=2),
            "timeout": 5.0,
            **more,
        }
        config = SinkConfig("s", ("#",), "file", {"path": str(tmp_path)}, **settings)
        config.__dict__["kind"] = Kind
        self.counts = Counts()
        loop = asyncio.get_running_loop()
        self.lane = Lane(
            config,
            DriverContext("s", "s", LOG_ID, self._log),
            self._bury,
            self.changed.set,
            self.counts,
            Breaker(2, 0.01, loop.time),
            start,
            ignore,
        )

    def _log(self, level: str, event: str, **fields: object) -> None:
        self.logged.append(event)

    async def _bury(self, letters: list[tuple[Record, str]]) -> None:
        self.dead += [
            (one.offset, why) for one, why in letters if (one.offset, why) not in self.dead
        ]

    def add(self, *offsets: int, reason: str = "") -> None:
        now = asyncio.get_running_loop().time()
        for one in offsets:
            self.lane.add(Entry(make_record(one), reason, 100, now))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                self.changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await self.changed.wait()

    async def done(self) -> None:
        await self.until(lambda: self.lane.low is None)


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def run(**more: Any) -> AsyncIterator[Bench]:
        made = Bench(tmp_path, **more)
        task = asyncio.create_task(made.lane.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
            assert made.kind.closed == made.kind.opened

    return run


Make = Callable[..., Any]


async def test_records_are_written_in_order_and_in_batches(bench: Make) -> None:
    async with bench() as one:
        batches: list[int] = []
        one.kind.script = staticmethod(lambda batch: batches.append(len(batch)))
        one.add(*range(7))
        await one.done()
        assert one.kind.stored == list(range(7))
        assert batches == [3, 3, 1]
        assert one.kind.positions == [3, 6, 7]
        assert one.lane.reached == 7
        assert one.counts.written == 7
        assert one.lane.state.word == "active"


async def test_a_batch_is_limited_by_bytes_and_waits_for_its_age(bench: Make) -> None:
    batches: list[int] = []
    async with bench(batch=BatchConfig(messages=100, bytes=250, age=3600)) as one:
        one.kind.script = staticmethod(lambda batch: batches.append(len(batch)))
        one.add(0, 1, 2, 3)
        await one.until(lambda: len(batches) == 1)
        assert batches == [2]
        assert one.lane.low == 2
        one.add(4)
        await one.until(lambda: len(batches) == 2)
        assert one.kind.stored == [0, 1, 2, 3]
        assert one.lane.low == 4


async def test_a_batch_is_repeated_until_the_target_takes_it(bench: Make) -> None:
    tries: list[list[int]] = []

    def script(batch: Batch) -> None:
        tries.append([one.offset for one in batch])
        if len(tries) < 5:
            raise TargetUnavailable("connection refused")

    async with bench() as one:
        one.kind.script = staticmethod(script)
        one.add(0, 1)
        await one.until(lambda: one.lane.state.word == "retrying")
        assert one.lane.state.reason == "connection refused"
        await one.done()
        assert tries == [[0, 1]] * 5
        assert one.kind.stored == [0, 1]
        assert one.kind.opened == 5
        assert one.lane.state.word == "active"
        assert one.counts.failures == 4
    assert one.logged == ["sinks.target_unavailable", "sinks.target_available"]


async def test_a_permanent_failure_is_a_failed_state_that_ends(bench: Make) -> None:
    async with bench() as one:
        one.kind.refusing = "wrong password"
        one.add(0)
        await one.until(lambda: one.lane.state.word == "failed")
        assert one.lane.state.reason == "wrong password"
        one.kind.refusing = ""
        await one.done()
        assert one.lane.state.word == "active"


async def test_a_write_that_takes_too_long_is_cancelled_and_repeated(bench: Make) -> None:
    async with bench(timeout=0.05) as one:
        slow = [True]
        real = one.kind.write

        async def write(self: Any, batch: Batch) -> None:
            if slow.pop() if slow else False:
                await asyncio.Event().wait()
            await real(self, batch)

        one.kind.write = write
        one.add(0)
        await one.until(lambda: one.lane.state.word == "retrying")
        assert one.lane.state.reason == "no answer within 0.05 s"
        await one.done()
        assert one.kind.stored == [0]


async def test_rejected_records_are_dead_letters_before_the_rest_is_written(bench: Make) -> None:
    def script(batch: Batch) -> None:
        if any(one.offset == 1 for one in batch):
            assert dead() == [(0, "no JSON")]
            raise Rejected({[one.offset for one in batch].index(1): "too large"})
        assert dead() == [(0, "no JSON"), (1, "too large")]

    async with bench() as one:

        def dead() -> list[tuple[int, str]]:
            return list(one.dead)

        one.kind.script = staticmethod(script)
        one.add(0, reason="no JSON")
        one.add(1, 2)
        await one.done()
        assert one.kind.stored == [2]
        assert one.dead == [(0, "no JSON"), (1, "too large")]


async def test_records_that_were_stored_with_a_rejection_are_not_repeated(bench: Make) -> None:
    writes: list[int] = []

    def script(batch: Batch) -> None:
        writes.append(len(batch))
        raise Rejected({1: "too large"}, stored=True)

    async with bench() as one:
        one.kind.script = staticmethod(script)
        one.add(0, 1, 2)
        await one.done()
        assert writes == [3]
        assert one.dead == [(1, "too large")]


@pytest.mark.parametrize("holds", [False, True])
async def test_the_position_moves_past_rejected_records(bench: Make, holds: bool) -> None:
    async with bench(holds=holds) as one:
        one.add(0, 1, reason="no JSON")
        await one.done()
        assert one.kind.positions == ([2] if holds else [])
        assert one.lane.reached == 2


async def test_a_driver_that_fails_does_not_stop_at_a_poisonous_record(bench: Make) -> None:
    def script(batch: Batch) -> None:
        if any(one.offset == 2 for one in batch):
            raise ZeroDivisionError("oops")

    async with bench() as one:
        one.kind.script = staticmethod(script)
        one.add(0, 1, 2, 3, 4)
        await one.done()
        assert one.kind.stored == [0, 1, 3, 4]
        assert one.dead == [(2, "the driver failed: ZeroDivisionError: oops")]
    assert "sinks.driver_failed" in one.logged


async def test_a_driver_that_always_fails_gives_up_one_record_at_most(bench: Make) -> None:
    def script(batch: Batch) -> None:
        raise ZeroDivisionError("oops")

    async with bench() as one:
        one.kind.script = staticmethod(script)
        one.add(0, 1, 2)
        await one.until(lambda: one.counts.failures > 12)
        assert [offset for offset, _ in one.dead] == [0]
        assert one.lane.state.word == "failed"
        assert one.lane.low == 1


async def test_a_lane_continues_at_the_position_of_the_target(bench: Make) -> None:
    async with bench(holds=True) as one:
        one.kind.held = Position(LOG_ID, 2)
        one.add(0, 1, 2, 3)
        await one.done()
        assert one.kind.stored == [2, 3]
        assert one.lane.reached == 4


@pytest.mark.parametrize(
    ("held", "more"), [(Position("other", 2), {}), (Position(LOG_ID, 2), {"ignore": True})]
)
async def test_a_position_does_not_count_for_another_log_or_after_a_seek(
    bench: Make, held: Position, more: dict[str, Any]
) -> None:
    async with bench(holds=True, **more) as one:
        one.kind.held = held
        one.add(0, 1, 2, 3)
        await one.done()
        assert one.kind.stored == [0, 1, 2, 3]


async def test_a_batch_that_was_confirmed_without_an_answer_is_not_repeated(bench: Make) -> None:
    async with bench(holds=True) as one:

        def script(batch: Batch) -> None:
            if len(one.kind.stored) == 0:
                one.kind.stored += [record.offset for record in batch]
                one.kind.held = batch.position
                raise TargetUnavailable("connection lost")

        one.kind.script = staticmethod(script)
        one.add(0, 1, 2, 3)
        await one.done()
        assert one.kind.stored == [0, 1, 2, 3]


async def test_a_target_that_lost_records_is_noticed(tmp_path: Path) -> None:
    one = Bench(tmp_path, holds=True, start=5)
    one.kind.held = Position(LOG_ID, 3)
    with pytest.raises(TargetBehind) as caught:
        await one.lane.run()
    assert caught.value.offset == 3


async def test_a_paused_lane_writes_nothing(bench: Make) -> None:
    async with bench() as one:
        one.lane.paused = True
        one.add(0)
        await one.until(lambda: one.lane.state.word == "active")
        assert one.lane.low == 0
        one.lane.paused = False
        one.lane.wake()
        await one.done()
        assert one.kind.stored == [0]


async def test_the_feed_waits_while_a_lane_is_full(bench: Make) -> None:
    async with bench() as one:
        one.lane.paused = True
        one.add(*range(6))
        waiting = asyncio.create_task(one.lane.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        one.lane.paused = False
        one.lane.wake()
        await asyncio.wait_for(waiting, 5)


async def test_replayed_records_do_not_move_the_position(bench: Make) -> None:
    def script(batch: Batch) -> None:
        offsets: Sequence[int] = [one.offset for one in batch]
        if 1 in offsets and len(offsets) > 1:
            raise Rejected({offsets.index(1): "still too large"})

    async with bench(holds=True, start=10) as one:
        one.kind.script = staticmethod(script)
        rejected = await one.lane.replay([make_record(1), make_record(2)])
        assert [(record.offset, why) for record, why in rejected] == [(1, "still too large")]
        assert one.kind.stored == [2]
        assert one.kind.positions == [10]
        one.add(10)
        await one.done()
        assert one.kind.positions == [10, 11]
