"""Test that alarms expire, and that they never expire early."""

import asyncio
import sys
import time

import pytest
from hookmq_bench.ticks import Alarm


@pytest.mark.parametrize("precise", [True, False])
async def test_an_alarm_rings_once_and_not_early(precise: bool) -> None:
    rung: asyncio.Queue[int] = asyncio.Queue()
    alarm = Alarm(
        asyncio.get_running_loop(), lambda: rung.put_nowait(time.monotonic_ns()), precise=precise
    )
    assert alarm.precise == (precise and sys.platform.startswith("linux"))
    try:
        alarm.set(time.monotonic_ns() + 1_000_000_000_000)
        at = time.monotonic_ns() + 2_000_000
        alarm.set(at)
        # Event loops run timers early by up to the resolution of their clock.
        assert await rung.get() >= at - (0 if precise else 1_000_000)
        alarm.set(1)  # long ago
        await rung.get()
        alarm.set(0)
        await rung.get()
        assert rung.empty()
    finally:
        alarm.close()
    alarm.close()
