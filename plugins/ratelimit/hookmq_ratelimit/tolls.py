"""The rate limiter for one client.

A message takes tokens from the buckets of all limits that apply, or from none. If any bucket has too few tokens, the
message waits or is refused.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Protocol

from hookmq.mqtt_api import SubscriptionTree
from hookmq.plugin import (
    Cancel,
    ClientInfo,
    DeliveryLimit,
    Deny,
    Drop,
    LimitExceeded,
    PublishLimit,
    RateLimiter,
    ReasonCode,
    Runtime,
)

from hookmq_ratelimit.buckets import Allowance, Bucket, Cell, Clock

_NEVER: Final = -inf
_REMEMBERED: Final = 64
"""Maximum number of tolls to cache for one client."""
Go = Callable[[LimitExceeded | None], None]


class LimitOwner(Protocol):
    """The plugin, as the rate limiter sees it. It counts and reports how often each limit was applied."""

    runtime: Runtime

    def limited(self, bucket: Bucket, client: ClientInfo, outcome: str) -> None:
        """Report that `client` was over a limit: ``throttled``, ``rejected``, ``dropped`` or ``disconnected``."""

    def waited(self, bucket: Bucket, seconds: float) -> None:
        """Report that a wait ended after `seconds`."""

    def gave_up(self) -> None:
        """Report that a wait was cancelled."""

    def bucket(self, allowance: Allowance, client: ClientInfo) -> Bucket:
        """Return a client's bucket for a limit."""


def _worst(late: Sequence[tuple[Bucket, float]]) -> Bucket:
    return max(late, key=lambda one: one[1])[0]


class Toll(PublishLimit):
    """The limits for PUBLISH packets to one topic."""

    __slots__ = ("buckets", "client", "clock", "counts", "owner", "sizes")

    def __init__(self, owner: LimitOwner, client: ClientInfo, buckets: Sequence[Bucket]) -> None:
        self.owner = owner
        self.client = client
        self.clock: Clock = owner.runtime.now
        self.buckets = tuple(buckets)
        self.counts: tuple[Cell, ...] = tuple(
            cell for bucket in buckets if not bucket.limit.bytes for cell in bucket.cells
        )
        self.sizes: tuple[Cell, ...] = tuple(
            cell for bucket in buckets if bucket.limit.bytes for cell in bucket.cells
        )

    def take(self, size: int) -> bool:
        """Implement `hookmq.plugin.PublishLimit.take`."""
        now = self.clock()
        counts = self.counts
        for cell in counts:
            if cell.full - now > cell.spare:
                return False
        sizes = self.sizes
        for cell in sizes:
            late = cell.full - now
            room = cell.room - size * cell.interval
            # A message larger than the window passes if the window is unused.
            if late > room and (late > 0.0 or room == _NEVER):
                return False
        for cell in counts:
            full = cell.full
            cell.full = (full if full > now else now) + cell.interval
        for cell in sizes:
            full = cell.full
            cell.full = (full if full > now else now) + size * cell.interval
        return True

    def late(self, now: float, size: int, passed: Sequence[Bucket]) -> list[tuple[Bucket, float]]:
        """Return the buckets that have too few tokens, each with the seconds until it has enough.

        Messages already waiting for a bucket are served first, unless this message has waited for the bucket too
        (`passed`).
        """
        found = []
        for bucket in self.buckets:
            delay = bucket.delay(now, size if bucket.limit.bytes else 1)
            if delay > 0.0 or (bucket.gated and bucket not in passed):
                found.append((bucket, delay))
        return found

    def use(self, now: float, size: int) -> None:
        """Take the tokens for a PUBLISH."""
        for bucket in self.buckets:
            bucket.use(now, size if bucket.limit.bytes else 1)

    def over(self, size: int, qos: int, go: Go) -> Cancel | LimitExceeded:
        """Implement `hookmq.plugin.PublishLimit.over`."""
        now = self.clock()
        # By now all buckets may have enough tokens. The PUBLISH then resumes in the next turn.
        late = self.late(now, size, ()) or [(self.buckets[0], 0.0)]
        refusal = self.refusal(late, qos)
        if refusal is not None:
            return refusal
        waiter = _Publish(self, size, qos, go, now)
        self.owner.limited(_worst(late), self.client, "throttled")
        waiter.join(_worst(late))
        return waiter.cancel

    def refusal(self, late: Sequence[tuple[Bucket, float]], qos: int) -> LimitExceeded | None:
        """Return the refusal from the first limit that refuses rather than waits, or None."""
        for bucket, _ in late:
            limit = bucket.limit
            if limit.mode == "reject":
                self.owner.limited(bucket, self.client, "rejected" if qos else "dropped")
                return LimitExceeded(
                    limit.rule, Deny(ReasonCode.QUOTA_EXCEEDED, f"over {limit.name}")
                )
            if limit.mode == "disconnect":
                self.owner.limited(bucket, self.client, "disconnected")
                deny = Deny(ReasonCode.MESSAGE_RATE_TOO_HIGH, f"over {limit.name}", disconnect=True)
                return LimitExceeded(limit.rule, deny)
            if limit.mode == "drop" and qos == 0:
                self.owner.limited(bucket, self.client, "dropped")
                return LimitExceeded(limit.rule, Drop())
        return None


class _Publish:
    """A PUBLISH waiting for a bucket."""

    __slots__ = ("bucket", "go", "passed", "qos", "since", "size", "toll")

    def __init__(self, toll: Toll, size: int, qos: int, go: Go, now: float) -> None:
        self.toll = toll
        self.size = size
        self.qos = qos
        self.go = go
        self.since = now
        self.passed: list[Bucket] = []
        self.bucket = toll.buckets[0]

    def join(self, bucket: Bucket) -> None:
        self.bucket = bucket
        bucket.wait(self, self.toll.owner.runtime)

    def cancel(self) -> None:
        """Stop waiting."""
        self.toll.owner.gave_up()
        if self.bucket.line is not None:
            self.bucket.line.leave(self)

    def cost(self, bucket: Bucket) -> float:
        """Return the number of tokens that the PUBLISH needs from `bucket`."""
        return self.size if bucket.limit.bytes else 1

    def turn(self, bucket: Bucket, now: float) -> None:
        """Resume if all other buckets have enough tokens. Otherwise, wait for the next bucket that does not."""
        toll = self.toll
        self.passed.append(bucket)
        late = toll.late(now, self.size, self.passed)
        if late:
            refusal = toll.refusal(late, self.qos)
            if refusal is None:
                self.join(_worst(late))
                return
            toll.owner.gave_up()
            self.go(refusal)
            return
        toll.use(now, self.size)
        toll.owner.waited(bucket, now - self.since)
        self.go(None)


class Outgoing(DeliveryLimit):
    """The limits for messages sent to a client."""

    __slots__ = ("_buckets", "_cells", "_client", "_clock", "_granted", "_mixed", "_owner")

    def __init__(self, owner: LimitOwner, client: ClientInfo, buckets: Sequence[Bucket]) -> None:
        self._owner = owner
        self._client = client
        self._clock: Clock = owner.runtime.now
        self._buckets = tuple(buckets)
        self._cells = tuple(cell for bucket in buckets for cell in bucket.cells)
        self._granted = 0
        """Number of messages that waited and were counted, but have not been sent yet."""
        self._mixed = {bucket.limit.mode for bucket in buckets}

    @property
    def drops(self) -> bool:  # type: ignore[override]
        """Whether an exhausted limit drops QoS 0 messages."""
        if len(self._mixed) == 1:
            return "drop" in self._mixed
        return any(bucket.limit.mode == "drop" for bucket in self._late())

    def _late(self) -> list[Bucket]:
        now = self._clock()
        return [bucket for bucket in self._buckets if bucket.gated or bucket.delay(now, 1) > 0.0]

    def ready(self) -> bool:
        """Implement `hookmq.plugin.DeliveryLimit.ready`."""
        if self._granted:
            return True
        now = self._clock()
        return all(cell.full - now <= cell.spare for cell in self._cells)

    def sent(self) -> None:
        """Implement `hookmq.plugin.DeliveryLimit.sent`."""
        if self._granted:
            self._granted -= 1
            return
        now = self._clock()
        for cell in self._cells:
            full = cell.full
            cell.full = (full if full > now else now) + cell.interval

    def wait(self, go: Callable[[], None]) -> Cancel:
        """Implement `hookmq.plugin.DeliveryLimit.wait`."""
        late = self._late()
        waiter = _Leaving(self, go)
        bucket = late[0] if late else self._buckets[0]
        self._owner.limited(bucket, self._client, "throttled")
        waiter.join(bucket)
        return waiter.cancel

    def dropped(self) -> str:
        """Implement `hookmq.plugin.DeliveryLimit.dropped`."""
        late = self._late() or list(self._buckets)
        bucket = next((one for one in late if one.limit.mode == "drop"), late[0])
        self._owner.limited(bucket, self._client, "dropped")
        return bucket.limit.rule


class _Leaving:
    """A client's deliveries that are waiting for a bucket."""

    __slots__ = ("bucket", "delivery_limit", "go", "passed", "since")

    def __init__(self, delivery_limit: Outgoing, go: Callable[[], None]) -> None:
        self.delivery_limit = delivery_limit
        self.go = go
        self.passed: list[Bucket] = []
        self.bucket = delivery_limit._buckets[0]
        self.since = delivery_limit._clock()

    def join(self, bucket: Bucket) -> None:
        self.bucket = bucket
        bucket.wait(self, self.delivery_limit._owner.runtime)

    def cancel(self) -> None:
        """Stop waiting."""
        self.delivery_limit._owner.gave_up()
        if self.bucket.line is not None:
            self.bucket.line.leave(self)

    def cost(self, bucket: Bucket) -> float:
        """Return the number of tokens that one message needs."""
        return 1

    def turn(self, bucket: Bucket, now: float) -> None:
        """Resume if all other buckets have a token. Otherwise, wait for the next bucket that has none."""
        self.passed.append(bucket)
        for other in self.delivery_limit._buckets:
            if other.delay(now, 1) > 0.0 or (other.gated and other not in self.passed):
                self.join(other)
                return
        for other in self.delivery_limit._buckets:
            other.use(now, 1)
        self.delivery_limit._granted += 1
        self.delivery_limit._owner.waited(bucket, now - self.since)
        self.go()


class Matched:
    """The limits whose topic filters match a topic, as cached by the router."""

    __slots__ = ("allowances", "valid")

    def __init__(self, allowances: tuple[Allowance, ...]) -> None:
        self.valid = True
        self.allowances = allowances


ByTopic = SubscriptionTree[Allowance, int, Matched]


class ClientRateLimiter(RateLimiter):
    """The limits of one client."""

    __slots__ = (
        "_by_match", "_by_topic", "_client", "_fixed", "_owner", "_plain", "_subscriptions", "delivery_limit",
    )  # fmt: skip

    def __init__(
        self,
        owner: LimitOwner,
        client: ClientInfo,
        publishes: Sequence[Bucket],
        by_topic: ByTopic | None,
        subscriptions: Sequence[Bucket],
        deliveries: Sequence[Bucket],
    ) -> None:
        self._owner = owner
        self._client = client
        self._fixed = tuple(publishes)
        self._plain = Toll(owner, client, publishes) if publishes else None
        self._by_topic = by_topic
        self._by_match: dict[tuple[Allowance, ...], Toll] = {}
        self._subscriptions = tuple(subscriptions)
        self.delivery_limit = Outgoing(owner, client, deliveries) if deliveries else None

    def publish_limit(self, topic: str) -> PublishLimit | None:
        """Implement `hookmq.plugin.RateLimiter.publish_limit`."""
        if self._by_topic is None:
            return self._plain
        matched = self._by_topic.lookup(topic).allowances
        if not matched:
            return self._plain
        toll = self._by_match.get(matched)
        if toll is None:
            if len(self._by_match) >= _REMEMBERED:
                self._by_match.clear()
            buckets = [self._owner.bucket(allowance, self._client) for allowance in matched]
            toll = self._by_match[matched] = Toll(
                self._owner, self._client, (*self._fixed, *buckets)
            )
        return toll

    def subscribe(self, filter: str) -> LimitExceeded | None:
        """Implement `hookmq.plugin.RateLimiter.subscribe`."""
        if not self._subscriptions:
            return None
        now = self._owner.runtime.now()
        for bucket in self._subscriptions:
            if bucket.delay(now, 1) > 0.0:
                self._owner.limited(bucket, self._client, "rejected")
                limit = bucket.limit
                return LimitExceeded(
                    limit.rule, Deny(ReasonCode.QUOTA_EXCEEDED, f"over {limit.name}")
                )
        for bucket in self._subscriptions:
            bucket.use(now, 1)
        return None
