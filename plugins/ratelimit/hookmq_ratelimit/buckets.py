"""Token buckets with limited memory.

A bucket is stored as the time when it will be full again (GCRA). It needs one number per window and no timer. If the
rate changes, nothing is converted, because the used share of a window stays the same.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import inf
from typing import Final, Protocol
from weakref import WeakValueDictionary

from hookmq.config_api import Rate
from hookmq.plugin import Promise, Runtime, Timer

from hookmq_ratelimit.settings import Limit

SLACK: Final = 1e-3
"""Fraction of a token that may be lost to rounding."""
TINY: Final = 1e-9
"""Seconds that count as zero."""
AT_ONCE: Final = 256
"""Maximum number of waiting messages to serve in one slice."""
LAPSE: Final = 60.0
"""Undecided attempts are abandoned after this many seconds. Their connections have ended, and their tokens are not
returned."""


class Cell:
    """One window of a bucket. It will be full at time `full`. A token is refilled every `interval` seconds, and all
    tokens in `base` seconds.

    `room` equals `base`, and `spare` is `base` minus one token. While a message waits for the bucket, both are minus
    infinity, so that no other message overtakes it.
    """

    __slots__ = ("base", "full", "interval", "room", "spare")

    def __init__(self, rate: Rate, burst: float, nodes: int = 1) -> None:
        self.full = 0.0
        self.divide(rate, burst, nodes)
        self.open()

    def divide(self, rate: Rate, burst: float, nodes: int) -> None:
        """Set the part of `rate` that each of `nodes` nodes has. The used share of the window stays the same. Call `open`
        unless a message waits for the bucket."""
        self.interval = rate.per_seconds / rate.count * nodes
        tokens = max((burst or rate.count) / nodes, 1.0)
        self.base = tokens * self.interval + SLACK * self.interval

    def open(self) -> None:
        """Let messages pass."""
        self.room = self.base
        self.spare = self.base - self.interval


class Waiter(Protocol):
    """A message or delivery waiting in a `Line`."""

    def cost(self, bucket: "Bucket") -> float:
        """Return the number of tokens that the waiter needs from `bucket`."""

    def turn(self, bucket: "Bucket", now: float) -> None:
        """Resume, now that `bucket` has enough tokens."""


class Line:
    """The waiters of one bucket, served in order of arrival, with a single timer."""

    __slots__ = ("_serving", "bucket", "runtime", "timer", "waiters")

    def __init__(self, bucket: "Bucket", runtime: Runtime) -> None:
        self.bucket = bucket
        self.runtime = runtime
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()  # leave() in constant time
        self.timer: Timer | None = None
        self._serving = False

    def join(self, waiter: Waiter) -> None:
        """Add `waiter` to the end of the line."""
        self.waiters[waiter] = None
        for cell in self.bucket.cells:
            cell.room = cell.spare = -inf
        if self.timer is None:
            self._arm()

    def leave(self, waiter: Waiter) -> None:
        """Remove `waiter` from the line, if it is there."""
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
        """Set the timer for the first waiter in line, to fire at least `delay` seconds from now."""
        if self._serving or not self.waiters:
            return
        bucket = self.bucket
        needed = bucket.delay(self.runtime.now(), next(iter(self.waiters)).cost(bucket))
        self.timer = self.runtime.call_later(max(delay, needed), self.serve)

    def serve(self) -> None:
        """Serve each waiter for whom enough tokens are available."""
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
    """A bucket's undecided connection attempts, oldest first, and the attempts waiting for their outcome."""

    __slots__ = ("open", "waiting")

    def __init__(self) -> None:
        self.open: dict[object, float] = {}
        self.waiting: dict[Promise, None] = {}

    def undecided(self, now: float) -> bool:
        """Return whether any attempt is still undecided. Such an attempt may return its token."""
        while self.open:
            oldest = next(iter(self.open))
            if now - self.open[oldest] < LAPSE:
                return True
            del self.open[oldest]
        return False

    def wake(self, count: int) -> None:
        """Let the first `count` waiting attempts try again."""
        while count > 0 and self.waiting:
            promise = next(iter(self.waiting))
            del self.waiting[promise]
            if not promise.done():
                promise.set_result(None)
                count -= 1


class Bucket:
    """The tokens for one key of a limit."""

    __slots__ = ("__weakref__", "_trials", "cells", "key", "limit", "line", "told")

    def __init__(self, limit: "Allowance", key: str) -> None:
        self.limit = limit
        self.key = key
        self.cells = tuple(Cell(rate, limit.burst, limit.nodes) for rate in limit.rates)
        self.line: Line | None = None
        self._trials: Trials | None = None
        self.told = -inf
        """The time when the bucket was last reported as exhausted."""

    @property
    def trials(self) -> Trials:
        """The undecided attempts that hold tokens of this bucket."""
        if self._trials is None:
            self._trials = Trials()
        return self._trials

    @property
    def gated(self) -> bool:
        """Whether a message or delivery is waiting for this bucket."""
        return self.line is not None and bool(self.line.waiters)

    def open(self) -> None:
        """Let messages pass again, because nothing is waiting any more."""
        for cell in self.cells:
            cell.open()

    def divide(self, nodes: int) -> None:
        """Use the part of the rate that each of `nodes` nodes has, from now on."""
        for cell, rate in zip(self.cells, self.limit.rates, strict=True):
            cell.divide(rate, self.limit.burst, nodes)
        if not self.gated:
            self.open()

    def delay(self, now: float, cost: float) -> float:
        """Return the seconds until the bucket has `cost` tokens. If it can never hold that many, return the seconds
        until it is full.
        """
        longest = 0.0
        for cell in self.cells:
            room = max(cell.base - cost * cell.interval, 0.0)
            longest = max(longest, cell.full - now - room)
        # A rounding error can make a timer fire too early.
        return longest if longest > TINY else 0.0

    def use(self, now: float, cost: float) -> None:
        """Take `cost` tokens, even if the bucket does not have that many."""
        for cell in self.cells:
            full = cell.full
            cell.full = (full if full > now else now) + cost * cell.interval

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take `cost` tokens if they are available, and return whether they were."""
        if self.gated or self.delay(now, cost) > 0.0:
            return False
        self.use(now, cost)
        return True

    def wait(self, waiter: Waiter, runtime: Runtime) -> None:
        """Queue `waiter` for this bucket."""
        if self.line is None:
            self.line = Line(self, runtime)
        self.line.join(waiter)

    def idle(self, now: float) -> bool:
        """Return whether the bucket is full and can therefore be deleted."""
        return all(cell.full <= now for cell in self.cells)

    def inherit(self, other: "Bucket", now: float) -> None:
        """Carry over the usage of `other`, the bucket for the same key under the previous configuration.

        The used share of each window stays the same. Windows are paired from shortest to longest.
        """
        last = len(other.cells) - 1
        for index, cell in enumerate(self.cells):
            full = other.cells[min(index, last)].full
            cell.full = min(full, now + cell.base)


class Allowance:
    """A limit and the buckets for its keys.

    At most `most` buckets are stored, not counting those in use. If there are more, the least recently used is removed.
    """

    __slots__ = (
        "_lru", "_used", "burst", "bytes", "evicted", "limit", "mode", "most", "name", "nodes", "per", "rates", "rule",
        "what",
    )  # fmt: skip

    def __init__(self, limit: Limit, rule: str, most: int) -> None:
        self.limit = limit
        self.rule = rule
        """The limit's name in `on_dropped` and `on_denied`."""
        self.name = limit.name
        self.what = limit.what
        self.per = limit.per
        self.mode = limit.mode
        self.rates = limit.rates
        self.burst = limit.burst
        self.bytes = limit.what == "bytes"
        self.nodes = 1
        """The number of nodes that share the rate."""
        self.most = most
        self.evicted = 0
        """Number of keys removed while their bucket was not full."""
        self._lru: OrderedDict[str, Bucket] = OrderedDict()
        self._used: WeakValueDictionary[str, Bucket] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return the number of stored keys, which is at most `most`."""
        return len(self._lru)

    def find(self, key: str) -> Bucket | None:
        """Return the bucket for a key, or None."""
        bucket = self._lru.get(key)
        if bucket is not None:
            self._lru.move_to_end(key)
            return bucket
        return self._used.get(key)

    def get(self, key: str, now: float, before: "Allowance | None" = None) -> Bucket:
        """Return the bucket for `key`. A new bucket carries over the usage recorded in `before`, the same limit before
        a reload.
        """
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
            # A connected client may still use it. Other clients with the same key must get the same bucket.
            self._used[name] = oldest
        return bucket

    def divide(self, nodes: int) -> None:
        """Let each of `nodes` nodes have its part of the rate."""
        self.nodes = nodes
        for bucket in (*self._lru.values(), *self._used.values()):
            bucket.divide(nodes)

    def inherit(self, before: "Allowance", now: float) -> None:
        """Carry over the usage from all buckets of `before` that are not full."""
        for key, old in list(before._lru.items()):
            if key not in self._lru and not old.idle(now):
                self.get(key, now, before)

    def buckets(self) -> Iterable[Bucket]:
        """Return the stored buckets."""
        return self._lru.values()


Clock = Callable[[], float]
