"""Measure how the cost of a message depends on the number waiting in HookMQ's queue, and how long recovery takes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time

from . import launch
from .durable_load import Void
from .queue_load import Bench, CpuClock, Load, bench, resident
from .queue_servers import DISK, folder, hookmq, running
from .session import say


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """The figures with `depth` waiting messages. CPU time is per message, in microseconds."""

    depth: int
    rate: float
    cpu: float
    fill_cpu: float
    """CPU time to publish and store a message while nothing is consumed."""
    resident: int
    """Resident memory when the queue is full, in bytes."""
    start: float
    """Seconds from starting the process, after it was killed, until it accepts clients."""
    start_cpu: float
    """CPU seconds that the processes use until then."""
    recovered: int
    """Messages that were consumed after the restart."""


def curve(depths: list[int], load: Load, build: str, core: int | None) -> list[Point]:
    """Measure each depth with its own broker. Raises Void or PeerError."""
    points = []
    for depth in depths:
        point = _point(depth, load, build, core)
        points.append(point)
        say(f"{depth:10,} deep: {point.cpu:6.1f} us, start {point.start:.2f} s")
    return points


def _point(depth: int, load: Load, build: str, core: int | None) -> Point:
    server = hookmq(build, DISK)
    with folder() as where:
        with running(server, where, core) as broker:
            with bench(server, broker, load) as made:
                fill = CpuClock(broker)
                made.fill(depth)
                used = fill.read()[0]
                held = resident(fill.pids)
                made.consume()
                # At least the window, so that producers do not wait for consumers.
                waiting = max(depth, load.backlog)
                made.until(time.perf_counter() + load.seconds / 4, waiting)
                cpu, rate = _steady(made, broker, load, waiting)
                kill(broker.pids())
            left = made.confirmed - (made.consumed - made.again)
        began = time.perf_counter()
        with running(server, where, core) as broker:
            start = time.perf_counter() - began
            start_cpu = sum(launch.cpu_seconds(pid) for pid in broker.pids())
            again = Bench(server, broker.port, dataclasses.replace(load, producers=0))
            with contextlib.closing(again):
                recovered = _count(again, min(left, 10_000))
    return Point(depth, rate, cpu, used * 1e6 / max(1, depth), held, start, start_cpu, recovered)


def _steady(made: Bench, broker: launch.Broker, load: Load, waiting: int) -> tuple[float, float]:
    """Return CPU time per message and messages per second, while messages arrive as fast as they are consumed."""
    before = made.consumed, made.confirmed
    clock = CpuClock(broker)
    made.until(time.perf_counter() + load.seconds, waiting)
    used, _, took = clock.read()
    count = (made.consumed - before[0] + made.confirmed - before[1]) / 2
    if not count:
        raise Void("nothing was consumed")
    return used * 1e6 / count, count / took


def _count(made: Bench, wanted: int) -> int:
    """Consume `wanted` messages, and return how many arrived."""
    made.consume()
    return made.collect(wanted)


def kill(pids: list[int]) -> None:
    """Kill the processes of a broker that this benchmark started."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def table(points: list[Point]) -> str:
    """Format the curve."""
    heading = [
        "| waiting | CPU us/message | messages/s | CPU us to store one | MiB | s to start after a kill | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    lines = [
        f"| {one.depth:,} | {one.cpu:.1f} | {one.rate:,.0f} | {one.fill_cpu:.1f} | {one.resident / 2**20:.0f} | "
        f"{one.start:.2f} | {one.start_cpu:.2f} |"
        for one in points
    ]
    return "\n".join(heading + lines)
