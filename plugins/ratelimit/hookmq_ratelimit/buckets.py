"""Token buckets, many of them, in bounded memory.

A bucket is kept as the time at which it will be full again (GCRA): one number for each window, no timer, and a rate that
changes needs no conversion, since what was used of a window stays the same part of it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import inf
from typing import Final, Protocol
from weakref import WeakValueDictionary

from hookmq.config.units import Rate
from hookmq.runtime import Promise, Runtime, Timer

from hookmq_ratelimit.settings import Limit

SLACK: Final = 1e-3
"""Part of a token that rounding may be short of."""
TINY: Final = 1e-9
"""Seconds that are none."""
AT_ONCE: Final = 256
"""Who waits is served in slices of so many."""
LAPSE: Final = 60.0
"""Seconds after which nobody waits for an attempt any more. Its connection ended undecided: its tokens stay taken."""


class Cell:
    """One window of a bucket. It is full at `full`, a token takes `interval` seconds, what is used may be worth `base`
    seconds. `room` is that, and `spare` that less one token; while somebody waits for the bucket both are less than
    any time, so that nobody overtakes."""

    __slots__ = ("base", "full", "interval", "room", "spare")

    def __init__(self, rate: Rate, burst: float) -> None:
        self.interval = rate.per_seconds / rate.count
        self.base = max(burst or rate.count, 1.0) * self.interval + SLACK * self.interval
        self.room = self.base
        self.spare = self.base - self.interval
        self.full = 0.0


class Waiter(Protocol):
    """Who waits in a line."""

    def cost(self, bucket: "Bucket") -> float:
        """How many tokens of `bucket` it needs."""

    def turn(self, bucket: "Bucket", now: float) -> None:
        """`bucket` has them."""


class Line:
    """Who waits for a bucket, first come first served, behind one timer."""

    __slots__ = ("_serving", "bucket", "runtime", "timer", "waiters")

    def __init__(self, bucket: "Bucket", runtime: Runtime) -> None:
        self.bucket = bucket
        self.runtime = runtime
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()  # leaving must not cost a search
        self.timer: Timer | None = None
        self._serving = False

    def join(self, waiter: Waiter) -> None:
        """Wait at the end."""
        self.waiters[waiter] = None
        for cell in self.bucket.cells:
            cell.room = cell.spare = -inf
        if self.timer is None:
            self._arm()

    def leave(self, waiter: Waiter) -> None:
        """Wait no more."""
        if waiter not in self.waiters:
            return
        first = next(iter(self.waiters)) is waiter
        del self.waiters[waiter]
        if not self.waiters:
            self.bucket.open()
        if first and self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self._arm()

    def _arm(self, delay: float = 0.0) -> None:
        """Be called when the first can have what it needs, but not before `delay` seconds."""
        if self._serving or not self.waiters:
            return
        bucket = self.bucket
        needed = bucket.delay(self.runtime.now(), next(iter(self.waiters)).cost(bucket))
        self.timer = self.runtime.call_later(max(delay, needed), self.serve)

    def serve(self) -> None:
        """Serve those whose tokens are there."""
        self.timer = None
        self._serving = True
        bucket, waiters = self.bucket, self.waiters
        try:
            for _ in range(AT_ONCE):
                if not waiters:
                    break
                now = self.runtime.now()
                first = next(iter(waiters))
                if bucket.delay(now, first.cost(bucket)) > 0.0:
                    break
                del waiters[first]
                if not waiters:
                    bucket.open()
                first.turn(bucket, now)
        finally:
            self._serving = False
            self._arm()


class Trials:
    """Attempts under way against one bucket, oldest first, and those that wait for their outcome."""

    __slots__ = ("open", "waiting")

    def __init__(self) -> None:
        self.open: dict[object, float] = {}
        self.waiting: dict[Promise, None] = {}

    def undecided(self, now: float) -> bool:
        """Whether an attempt is under way that may give its token back."""
        while self.open:
            oldest = next(iter(self.open))
            if now - self.open[oldest] < LAPSE:
                return True
            del self.open[oldest]
        return False

    def wake(self, count: int) -> None:
        """Let the first `count` of those that wait look again."""
        while count > 0 and self.waiting:
            promise = next(iter(self.waiting))
            del self.waiting[promise]
            if not promise.done():
                promise.set_result(None)
                count -= 1


class Bucket:
    """The allowance of one key under one limit."""

    __slots__ = ("__weakref__", "_trials", "cells", "key", "limit", "line", "told")

    def __init__(self, limit: "Allowance", key: str) -> None:
        self.limit = limit
        self.key = key
        self.cells = tuple(Cell(rate, limit.burst) for rate in limit.rates)
        self.line: Line | None = None
        self._trials: Trials | None = None
        self.told = -inf
        """When somebody was last told that it is used up."""

    @property
    def trials(self) -> Trials:
        """Attempts whose outcome decides whether they count."""
        if self._trials is None:
            self._trials = Trials()
        return self._trials

    @property
    def gated(self) -> bool:
        """Whether somebody waits for it."""
        return self.line is not None and bool(self.line.waiters)

    def open(self) -> None:
        """Nobody waits any more."""
        for cell in self.cells:
            cell.room = cell.base
            cell.spare = cell.base - cell.interval

    def delay(self, now: float, cost: float) -> float:
        """Seconds until it has `cost` tokens, or is full where it never holds so many."""
        longest = 0.0
        for cell in self.cells:
            room = max(cell.base - cost * cell.interval, 0.0)
            longest = max(longest, cell.full - now - room)
        # A timer may come a rounding too early.
        return longest if longest > TINY else 0.0

    def use(self, now: float, cost: float) -> None:
        """Take `cost` tokens, there or not."""
        for cell in self.cells:
            full = cell.full
            cell.full = (full if full > now else now) + cost * cell.interval

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take `cost` tokens if they are there."""
        if self.gated or self.delay(now, cost) > 0.0:
            return False
        self.use(now, cost)
        return True

    def wait(self, waiter: Waiter, runtime: Runtime) -> None:
        """Join the line for it."""
        if self.line is None:
            self.line = Line(self, runtime)
        self.line.join(waiter)

    def idle(self, now: float) -> bool:
        """Whether it is full, so that forgetting it changes nothing."""
        return all(cell.full <= now for cell in self.cells)

    def inherit(self, other: "Bucket", now: float) -> None:
        """Go on where `other`, of the same key under an earlier configuration, stands: as much of each window is
        used, the windows being compared from the shortest on."""
        last = len(other.cells) - 1
        for index, cell in enumerate(self.cells):
            full = other.cells[min(index, last)].full
            cell.full = min(full, now + cell.base)


class Allowance:
    """A limit at work: its windows and the buckets of its keys, `most` of them and those in use. Which key was used
    longest ago is forgotten first."""

    __slots__ = (
        "_lru", "_used", "burst", "bytes", "evicted", "limit", "mode", "most", "name", "per", "rates", "rule", "what",
    )  # fmt: skip

    def __init__(self, limit: Limit, rule: str, most: int) -> None:
        self.limit = limit
        self.rule = rule
        """As `on_dropped` and `on_denied` name it."""
        self.name = limit.name
        self.what = limit.what
        self.per = limit.per
        self.mode = limit.mode
        self.rates = limit.rates
        self.burst = limit.burst
        self.bytes = limit.what == "bytes"
        self.most = most
        self.evicted = 0
        """Keys forgotten while something of their allowance was used."""
        self._lru: OrderedDict[str, Bucket] = OrderedDict()
        self._used: WeakValueDictionary[str, Bucket] = WeakValueDictionary()

    def __len__(self) -> int:
        """How many keys are remembered, at most `most`."""
        return len(self._lru)

    def find(self, key: str) -> Bucket | None:
        """The bucket of a key that is known."""
        bucket = self._lru.get(key)
        if bucket is not None:
            self._lru.move_to_end(key)
            return bucket
        return self._used.get(key)

    def get(self, key: str, now: float, before: "Allowance | None" = None) -> Bucket:
        """The bucket of `key`; `before` is where to look for what an earlier configuration left."""
        bucket = self._lru.get(key)
        if bucket is not None:
            self._lru.move_to_end(key)
            return bucket
        bucket = self._used.pop(key, None)
        if bucket is None:
            bucket = Bucket(self, key)
            old = before.find(key) if before is not None else None
            if old is not None:
                bucket.inherit(old, now)
        self._lru[key] = bucket
        if len(self._lru) > self.most:
            name, oldest = self._lru.popitem(last=False)
            if not oldest.idle(now):
                self.evicted += 1
            # A client that is connected may hold it: then whoever shares it finds it again.
            self._used[name] = oldest
        return bucket

    def inherit(self, before: "Allowance", now: float) -> None:
        """Take over what is in use of an earlier configuration's buckets."""
        for key, old in list(before._lru.items()):
            if key not in self._lru and not old.idle(now):
                self.get(key, now, before)

    def buckets(self) -> Iterable[Bucket]:
        """All that are remembered."""
        return self._lru.values()


Clock = Callable[[], float]
