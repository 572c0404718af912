"""Run a few calls at a time in the runtime's threads, with a bounded queue that is fair to all hosts."""

from collections import deque
from collections.abc import Callable
from functools import partial
from ipaddress import IPv6Address
from time import perf_counter
from typing import Any

from hookmq.plugin import Cancel, Done, Runtime


class Busy(Exception):
    """The queue is full."""


class _Job:
    __slots__ = ("call", "done", "host")

    def __init__(self, call: Callable[[], Any], done: Done, host: str) -> None:
        self.call = call
        self.done: Done | None = done
        self.host = host


class Pool:
    """Runs at most `threads` calls at the same time, while at most `queue` wait. Call the methods on the event loop's
    thread.

    Each host has its own queue, and the queues take turns. If the queue is full, a new call
    replaces the last call in the longest queue, provided that queue is longer than its own. One
    host therefore cannot lock others out, however many connections it opens.
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
        """Seconds spent in finished calls."""

    @property
    def idle(self) -> bool:
        """Whether a call would start without waiting."""
        return self.running < self._threads

    def submit(self, host: str, call: Callable[[], Any], done: Done) -> Cancel:
        """Run `call` in a thread and pass its result to `done`. Return a function that cancels it. Raise Busy if the
        queue is full.

        `done` receives `Busy` if the call is replaced in the queue. Once the call is cancelled, `done` is not called. A
        waiting call then never runs; a running call continues, but its result is ignored.
        """
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
        # Never cancelled: the thread is busy until the call returns.
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
                self._lines[host] = line  # after all others
        done, job.done = job.done, None
        if done is not None:
            done(result, error)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = perf_counter()
    result = call()
    return result, perf_counter() - began


def neighbours(host: str) -> str:
    """Return the key of the queue for `host`: the /64 of an IPv6 address, which usually belongs to one customer."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))
