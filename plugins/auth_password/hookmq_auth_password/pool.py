"""Hashing in the runtime's threads: a few at a time, a bounded number waiting, everybody's turn in turn."""

from collections import deque
from collections.abc import Callable
from functools import partial
from ipaddress import IPv6Address
from time import perf_counter
from typing import Any

from hookmq.runtime import Cancel, Done, Runtime


class Busy(Exception):
    """Too many wait already."""


class _Job:
    __slots__ = ("call", "done", "host")

    def __init__(self, call: Callable[[], Any], done: Done, host: str) -> None:
        self.call = call
        self.done: Done | None = done
        self.host = host


class Pool:
    """At most `threads` calls run at once and `queue` wait. All methods are for the loop's thread.

    Calls wait in a line for each host, and the lines are served in turn. When all places are taken, a newcomer takes that
    of the last in the longest line, if that line is longer than its own: one host cannot keep others out, however many
    connections it opens.
    """

    def __init__(self, runtime: Runtime, threads: int, queue: int) -> None:
        self._runtime = runtime
        self._threads = threads
        self._queue = queue
        self._lines: dict[str, deque[_Job]] = {}
        self.running = 0
        self.waiting = 0
        self.finished = 0
        self.seconds = 0.0
        """Spent in calls that have finished."""

    @property
    def idle(self) -> bool:
        """Whether a call would run at once."""
        return self.running < self._threads

    def submit(self, host: str, call: Callable[[], Any], done: Done) -> Cancel:
        """Run `call` in a thread and tell `done`; to those that lose their place `Busy`. After the cancel `done` is never
        called; what waits then never runs, and what runs goes on for nothing. Raises Busy."""
        job = _Job(call, done, host)
        if self.idle:
            self._start(job)
        else:
            if self.waiting >= self._queue:
                self._make_room(host)
            self._lines.setdefault(host, deque()).append(job)
            self.waiting += 1
        return partial(self._cancel, job)

    def _make_room(self, host: str) -> None:
        mine = len(self._lines.get(host, ()))
        longest = max(self._lines, key=lambda name: len(self._lines[name]), default=host)
        if len(self._lines.get(longest, ())) <= mine + 1:
            raise Busy
        job = self._lines[longest].pop()
        self.waiting -= 1
        done, job.done = job.done, None
        if done is not None:
            self._runtime.call_soon(partial(done, None, Busy()))

    def _cancel(self, job: _Job) -> None:
        job.done = None
        line = self._lines.get(job.host)
        if line is not None and job in line:
            line.remove(job)
            self.waiting -= 1
            if not line:
                del self._lines[job.host]

    def _start(self, job: _Job) -> None:
        self.running += 1
        # Never cancelled: the thread is taken until the call returns, whoever still wants to know.
        self._runtime.run_blocking(partial(_timed, job.call), partial(self._ended, job))

    def _ended(self, job: _Job, timed: Any, error: BaseException | None) -> None:
        self.running -= 1
        self.finished += 1
        result, seconds = timed or (None, 0.0)
        self.seconds += seconds
        while self._lines and self.idle:
            host = next(iter(self._lines))
            line = self._lines.pop(host)
            self._start(line.popleft())
            self.waiting -= 1
            if line:
                self._lines[host] = line  # behind all others
        done, job.done = job.done, None
        if done is not None:
            done(result, error)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = perf_counter()
    result = call()
    return result, perf_counter() - began


def neighbours(host: str) -> str:
    """Who shares a line with `host`: of IPv6 the whole /64, since one customer has that many addresses."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))
