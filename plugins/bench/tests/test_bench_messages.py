"""Test how a run sends and receives messages, without processes or connections."""

import asyncio
import time
from types import SimpleNamespace

from hookmq_bench.messages import Messages
from hookmq_bench.outcome import Mark
from hookmq_bench.tally import Tally


async def test_subscribers_alone_go_on_until_they_are_told_however_early_the_clock_rings() -> None:
    """Subscribers without publishers continue until the parent ends the run, even if a timer
    expires slightly early.
    """
    start = time.monotonic_ns()

    async def until(at: int) -> None:
        pass

    told: asyncio.Queue[tuple[str, None]] = asyncio.Queue()
    marks = iter([Mark(start - 1, 0), Mark(start + 5, 0, received=9)])
    part = Messages.__new__(Messages)
    part.plan = SimpleNamespace(warm_up=0.0, duration=0.0, rate=0.0, count=100)  # type: ignore[assignment]
    part.process = SimpleNamespace(  # type: ignore[assignment]
        tally=Tally(), offset=0, until=until, told=told, mark=lambda: next(marks)
    )
    part.publishers, part._order = {}, []
    running = asyncio.create_task(part._load(start))
    done, _ = await asyncio.wait([running], timeout=0.05)
    assert not done
    told.put_nowait(("stop", None))
    begin, end = await running
    assert (begin.at, end.at, end.received) == (start - 1, start + 5, 9)
    assert told.get_nowait() == ("stop", None)  # for the task that waits for the end
