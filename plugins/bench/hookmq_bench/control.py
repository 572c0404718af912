"""The parent process. It starts the other processes and the load, watches the progress, and decides when to stop."""

import asyncio
import contextlib
import multiprocessing
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any, Final, NamedTuple

from hookmq.server_api import loop_factory

from hookmq_bench.address import Address, BenchError
from hookmq_bench.churn import Churn
from hookmq_bench.histogram import percentile_of_sparse
from hookmq_bench.messages import Messages
from hookmq_bench.outcome import Account, Sample
from hookmq_bench.plan import SECOND, Plan
from hookmq_bench.process import Ended, Process, words

POINT: Final = 0.5
"""Seconds between two points of the time series."""
LINGER: Final = 0.15
"""Seconds to listen for duplicates after everything has arrived."""
AHEAD: Final = 0.05
"""Seconds between the order to start and the actual start, so that all processes start together."""


class Point(NamedTuple):
    """A run's state at one moment.

    `at` is in seconds since the start, warm-up included. Counts are totals since the start. `p50` and `p99` are in
    nanoseconds and cover the time since the previous point; they are 0 if there were no latencies. `cpu` is the CPU
    time of all processes in nanoseconds.
    """

    at: float
    sent: int
    acked: int
    received: int
    connects: int
    connected: int
    outstanding: int
    missing: int
    p50: int
    p99: int
    cpu: int


@dataclass(slots=True)
class Watched:
    """The raw outcome of a run: each process's account, and the time series. `stood_still` is how many seconds a
    stalled run made no progress before it was ended. It is 0 if the run did not stall.
    """

    accounts: list[Account]
    points: list[Point] = field(default_factory=list)
    interrupted: bool = False
    stood_still: float = 0.0


def run(plan: Plan, address: Address, show: Callable[[str, Point], None]) -> Watched:
    """Run `plan` and return the accounts of its processes. This call blocks.

    `show` is called several times a second with the phase (connecting, warming up, running, draining) and the current
    state. The first Ctrl-C ends the run early. Raises BenchError. Raises KeyboardInterrupt for a second Ctrl-C, or for
    one while connecting.
    """
    _allow_files(plan)
    context = multiprocessing.get_context("fork")
    sockets = _sockets(plan)
    offset = time.time_ns() - time.monotonic_ns()
    pipes: list[Pipe] = []
    processes = []
    try:
        for index in range(plan.processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work,
                args=(plan, index, address, theirs, offset, sockets, [*pipes, ours]),
                daemon=True,
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        watched = _Watch(plan, pipes, show).run()
        for process in processes:
            process.join(5)
        return watched
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in pipes:
            pipe.close()
        for row in sockets:
            for one in row.values():
                one.close()


def _work(
    plan: Plan,
    index: int,
    address: Address,
    pipe: Pipe,
    offset: int,
    sockets: list[dict[int, socket.socket]],
    parents: list[Pipe],
) -> None:
    """Run one child process. It closes `parents`, its copies of the parent's pipe ends. While any copy is open, no
    process notices that the parent has exited.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    for pipe_end in parents:
        pipe_end.close()
    for row in sockets[:index] + sockets[index + 1 :]:
        for one in row.values():
            one.close()
    others = sockets[index]
    with contextlib.suppress(OSError):
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                account = runner.run(_live(plan, index, address, pipe, offset, others))
            pipe.send(("done", account))
        except Ended:
            pass
        except BaseException as error:
            pipe.send(("failed", words(error)))


async def _live(
    plan: Plan,
    index: int,
    address: Address,
    pipe: Pipe,
    offset: int,
    others: dict[int, socket.socket],
) -> Account:
    process = Process(plan, index, address, pipe, offset)
    try:
        if plan.kind.connects:
            return await Churn(process).run()
        return await Messages(process, others).run()
    except BaseExceptionGroup as group:
        ended = group.subgroup(Ended)
        raise (Ended() if ended is not None else BenchError(words(group))) from None
    finally:
        process.loop.remove_reader(pipe.fileno())


def _sockets(plan: Plan) -> list[dict[int, socket.socket]]:
    """Return a connected pair of sockets for each pair of processes."""
    count = plan.processes
    rows: list[dict[int, socket.socket]] = [{} for _ in range(count)]
    for one in range(count):
        for other in range(one):
            rows[one][other], rows[other][one] = socket.socketpair()
    return rows


def _allow_files(plan: Plan) -> None:
    """Raise the limit on open files to what one process needs. Raises BenchError if the system does not allow that
    many.
    """
    clients = plan.publishers + plan.subscribers + plan.clients
    needed = -(-clients // plan.processes) + plan.processes**2 + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (-1, resource.RLIM_INFINITY) and needed > hard:
        raise BenchError(
            f"each process needs {needed} open files, the limit is {hard}: raise it (ulimit -n) or use more --processes"
        )
    if soft not in (-1, resource.RLIM_INFINITY) and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class _Watch:
    """The parent's view of a run."""

    def __init__(self, plan: Plan, pipes: list[Pipe], show: Callable[[str, Point], None]) -> None:
        self._plan = plan
        self._pipes = pipes
        self._show = show
        self._samples = [Sample()] * len(pipes)
        self._ready: set[int] = set()
        self._accounts: dict[int, Account] = {}
        self._latencies: Counter[int] = Counter()
        self._points: list[Point] = []
        self._idle: list[Point] = []
        self._start = 0
        self._stood_still = 0.0
        self._next_point = 0.0
        self._next_show = 0.0

    def run(self) -> Watched:
        """Take the run through all its phases and return the outcome."""
        plan = self._plan
        try:
            while len(self._ready) < len(self._pipes):
                self._read()
                self._tell("connecting")
        except KeyboardInterrupt:
            self._order("finish")
            raise
        self._start = time.monotonic_ns() + int(AHEAD * SECOND)
        self._next_point = POINT
        self._latencies.clear()
        self._order("go", self._start)
        interrupted = False
        try:
            self._until_sent()
        except KeyboardInterrupt:
            interrupted = True
            self._order("stop")
            self._until_sent()
        if plan.publishers or plan.kind.connects:
            self._drain()
        self._order("finish")
        while len(self._accounts) < len(self._pipes):
            self._read()
        return Watched(
            [self._accounts[index] for index in range(len(self._pipes))],
            self._points,
            interrupted,
            self._stood_still,
        )

    def _until_sent(self) -> None:
        """Wait until every process has stopped sending."""
        plan = self._plan
        enough = not plan.publishers and plan.count and not plan.kind.connects
        moved, since = (-1, -1, -1), time.monotonic()
        while any(sample.sending for sample in self._samples):
            self._read()
            warm = time.monotonic_ns() < self._start + plan.warm_up * SECOND
            self._tell("warming up" if warm else "running")
            if plan.kind.connects:
                continue
            if plan.publishers:
                now = self._point()
                if (now.sent, now.acked, now.received) != moved:
                    moved, since = (now.sent, now.acked, now.received), time.monotonic()
                elif now.outstanding and time.monotonic() - since > plan.timeout:
                    # Without this, a run with --count would never end if the broker hangs.
                    self._stood_still = plan.timeout
                    self._order("stop")
                    return
                continue
            # This run only subscribes. Others send, so the duration or the count ends it.
            over = time.monotonic_ns() - self._start > (plan.warm_up + plan.duration) * SECOND
            if enough and sum(one.received for one in self._samples) >= plan.count:
                self._order("stop")
                return
            if plan.duration and over:
                return

    def _drain(self) -> None:
        """Wait until every message has arrived, or until nothing more arrives for a while."""
        plan = self._plan
        seen = (-1, -1)
        since = time.monotonic()
        while True:
            self._read()
            self._tell("draining")
            progress = sum(one.progress for one in self._samples)
            unacked = sum(one.unacked for one in self._samples)
            if (progress, unacked) != seen:
                seen, since = (progress, unacked), time.monotonic()
            still = time.monotonic() - since
            if still > plan.drain:
                return
            expected = sum(one.sent for one in self._samples)
            if not plan.kind.connects:
                expected *= plan.copies if plan.publishers else 0
            if not unacked and progress >= expected and still > LINGER:
                return

    def _read(self) -> None:
        """Receive reports from the processes, waiting briefly for them. Raises BenchError."""
        for pipe in wait(self._pipes, 0.05):
            index = self._pipes.index(pipe)  # type: ignore[arg-type]
            try:
                what, more = self._pipes[index].recv()
            except (EOFError, OSError):
                if index in self._accounts:
                    time.sleep(0.01)
                    continue
                raise BenchError(f"process {index + 1} ended unexpectedly") from None
            if what == "sample":
                self._samples[index] = more
                self._latencies.update(more.latencies)
            elif what == "ready":
                self._ready.add(index)
            elif what == "failed":
                raise BenchError(more)
            elif what == "done":
                self._accounts[index] = more
        seconds = self._seconds()
        if self._start and seconds >= self._next_point:
            self._next_point += POINT
            point = self._point()
            if not self._points or point[1:5] != self._points[-1][1:5]:
                self._points += self._idle
                self._points.append(point)
                self._idle.clear()
            else:
                self._idle.append(point)  # kept only if another change follows
            self._latencies.clear()

    def _seconds(self) -> float:
        return (time.monotonic_ns() - self._start) / SECOND if self._start else 0.0

    def _point(self) -> Point:
        # The reports may be a quarter of a second old, so use their time, not the current one.
        times = [sample.at for sample in self._samples if sample.at]
        mean = sum(times) / len(times) if times else 0.0
        seconds = max(0.0, (mean - self._start) / SECOND) if self._start else 0.0

        def total(name: str) -> int:
            return sum(getattr(sample, name) for sample in self._samples)

        latencies = self._latencies
        return Point(
            seconds,
            total("sent"),
            total("acked"),
            total("received"),
            total("connects"),
            total("connected"),
            total("outstanding"),
            total("missing"),
            percentile_of_sparse(latencies, 50),
            percentile_of_sparse(latencies, 99),
            total("cpu"),
        )

    def _tell(self, phase: str) -> None:
        now = time.monotonic()
        if now >= self._next_show:
            self._next_show = now + 0.25
            self._show(phase, self._point())

    def _order(self, what: str, more: Any = None) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send((what, more))
