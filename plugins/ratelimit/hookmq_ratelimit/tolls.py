"""What one client's messages are charged to: the buckets of all limits that concern them, taken from together or not at
all, and waiting where one of them is empty."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Protocol

from hookmq.plugin import Charge, ClientInfo, Deny, Drop, Meter, Over, Pace, ReasonCode
from hookmq.router import Router
from hookmq.runtime import Cancel, Runtime

from hookmq_ratelimit.buckets import Allowance, Bucket, Cell, Clock

_NEVER: Final = -inf
_REMEMBERED: Final = 64
"""Charges that one client's meter remembers."""
Go = Callable[[Over | None], None]


class Office(Protocol):
    """Who is told what became of what was over a limit."""

    runtime: Runtime

    def limited(self, bucket: Bucket, client: ClientInfo, outcome: str) -> None:
        """Something of `client` was over a limit: ``throttled``, ``rejected``, ``dropped`` or ``disconnected``."""

    def waited(self, bucket: Bucket, seconds: float) -> None:
        """Something that was throttled goes on."""

    def gave_up(self) -> None:
        """Something that was throttled is waited for no more."""

    def bucket(self, allowance: Allowance, client: ClientInfo) -> Bucket:
        """A client's bucket under a limit."""


def _worst(late: Sequence[tuple[Bucket, float]]) -> Bucket:
    return max(late, key=lambda one: one[1])[0]


class Toll(Charge):
    """What each PUBLISH to a topic is charged to."""

    __slots__ = ("buckets", "client", "clock", "counts", "office", "sizes")

    def __init__(self, office: Office, client: ClientInfo, buckets: Sequence[Bucket]) -> None:
        self.office = office
        self.client = client
        self.clock: Clock = office.runtime.now
        self.buckets = tuple(buckets)
        self.counts: tuple[Cell, ...] = tuple(
            cell for bucket in buckets if not bucket.limit.bytes for cell in bucket.cells
        )
        self.sizes: tuple[Cell, ...] = tuple(
            cell for bucket in buckets if bucket.limit.bytes for cell in bucket.cells
        )

    def take(self, size: int) -> bool:
        """As `hookmq.plugin.Charge.take`."""
        now = self.clock()
        counts = self.counts
        for cell in counts:
            if cell.full - now > cell.spare:
                return False
        sizes = self.sizes
        for cell in sizes:
            late = cell.full - now
            room = cell.room - size * cell.interval
            # What is larger than the whole window passes where nothing of it is used.
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
        """The buckets that have not enough, each with the seconds until it has. Whose line was stood in already
        (`passed`) is not stood in again."""
        found = []
        for bucket in self.buckets:
            delay = bucket.delay(now, size if bucket.limit.bytes else 1)
            if delay > 0.0 or (bucket.gated and bucket not in passed):
                found.append((bucket, delay))
        return found

    def use(self, now: float, size: int) -> None:
        """Count a PUBLISH."""
        for bucket in self.buckets:
            bucket.use(now, size if bucket.limit.bytes else 1)

    def over(self, size: int, qos: int, go: Go) -> Cancel | Over:
        """As `hookmq.plugin.Charge.over`."""
        now = self.clock()
        # Nothing may be late any more, since the clock went on: then it waits for no time at all.
        late = self.late(now, size, ()) or [(self.buckets[0], 0.0)]
        refusal = self.refusal(late, qos)
        if refusal is not None:
            return refusal
        waiter = _Publish(self, size, qos, go, now)
        self.office.limited(_worst(late), self.client, "throttled")
        waiter.join(_worst(late))
        return waiter.cancel

    def refusal(self, late: Sequence[tuple[Bucket, float]], qos: int) -> Over | None:
        """The refusal, where one of the limits does not wait."""
        for bucket, _ in late:
            limit = bucket.limit
            if limit.mode == "reject":
                self.office.limited(bucket, self.client, "rejected" if qos else "dropped")
                return Over(limit.rule, Deny(ReasonCode.QUOTA_EXCEEDED, f"over {limit.name}"))
            if limit.mode == "disconnect":
                self.office.limited(bucket, self.client, "disconnected")
                deny = Deny(ReasonCode.MESSAGE_RATE_TOO_HIGH, f"over {limit.name}", disconnect=True)
                return Over(limit.rule, deny)
            if limit.mode == "drop" and qos == 0:
                self.office.limited(bucket, self.client, "dropped")
                return Over(limit.rule, Drop())
        return None


class _Publish:
    """A PUBLISH that waits."""

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
        bucket.wait(self, self.toll.office.runtime)

    def cancel(self) -> None:
        """Nobody waits any more."""
        self.toll.office.gave_up()
        if self.bucket.line is not None:
            self.bucket.line.leave(self)

    def cost(self, bucket: Bucket) -> float:
        """Tokens that it needs of `bucket`."""
        return self.size if bucket.limit.bytes else 1

    def turn(self, bucket: Bucket, now: float) -> None:
        """`bucket` has enough; have the others?"""
        toll = self.toll
        self.passed.append(bucket)
        late = toll.late(now, self.size, self.passed)
        if late:
            refusal = toll.refusal(late, self.qos)
            if refusal is None:
                self.join(_worst(late))
                return
            toll.office.gave_up()
            self.go(refusal)
            return
        toll.use(now, self.size)
        toll.office.waited(bucket, now - self.since)
        self.go(None)


class Outgoing(Pace):
    """What each message that leaves for a client is charged to."""

    __slots__ = ("_buckets", "_cells", "_client", "_clock", "_granted", "_mixed", "_office")

    def __init__(self, office: Office, client: ClientInfo, buckets: Sequence[Bucket]) -> None:
        self._office = office
        self._client = client
        self._clock: Clock = office.runtime.now
        self._buckets = tuple(buckets)
        self._cells = tuple(cell for bucket in buckets for cell in bucket.cells)
        self._granted = 0
        """Messages that waited and were counted, and have not left yet."""
        self._mixed = {bucket.limit.mode for bucket in buckets}

    @property
    def drops(self) -> bool:  # type: ignore[override]
        """Whether a limit that is used up drops messages of QoS 0."""
        if len(self._mixed) == 1:
            return "drop" in self._mixed
        return any(bucket.limit.mode == "drop" for bucket in self._late())

    def _late(self) -> list[Bucket]:
        now = self._clock()
        return [bucket for bucket in self._buckets if bucket.gated or bucket.delay(now, 1) > 0.0]

    def ready(self) -> bool:
        """As `hookmq.plugin.Pace.ready`."""
        if self._granted:
            return True
        now = self._clock()
        return all(cell.full - now <= cell.spare for cell in self._cells)

    def sent(self) -> None:
        """As `hookmq.plugin.Pace.sent`."""
        if self._granted:
            self._granted -= 1
            return
        now = self._clock()
        for cell in self._cells:
            full = cell.full
            cell.full = (full if full > now else now) + cell.interval

    def wait(self, go: Callable[[], None]) -> Cancel:
        """As `hookmq.plugin.Pace.wait`."""
        late = self._late()
        waiter = _Leaving(self, go)
        bucket = late[0] if late else self._buckets[0]
        self._office.limited(bucket, self._client, "throttled")
        waiter.join(bucket)
        return waiter.cancel

    def dropped(self) -> str:
        """As `hookmq.plugin.Pace.dropped`."""
        late = self._late() or list(self._buckets)
        bucket = next((one for one in late if one.limit.mode == "drop"), late[0])
        self._office.limited(bucket, self._client, "dropped")
        return bucket.limit.rule


class _Leaving:
    """A client whose messages wait to leave."""

    __slots__ = ("bucket", "go", "pace", "passed", "since")

    def __init__(self, pace: Outgoing, go: Callable[[], None]) -> None:
        self.pace = pace
        self.go = go
        self.passed: list[Bucket] = []
        self.bucket = pace._buckets[0]
        self.since = pace._clock()

    def join(self, bucket: Bucket) -> None:
        self.bucket = bucket
        bucket.wait(self, self.pace._office.runtime)

    def cancel(self) -> None:
        """Nobody waits any more."""
        self.pace._office.gave_up()
        if self.bucket.line is not None:
            self.bucket.line.leave(self)

    def cost(self, bucket: Bucket) -> float:
        """One message."""
        return 1

    def turn(self, bucket: Bucket, now: float) -> None:
        """`bucket` has one; have the others?"""
        self.passed.append(bucket)
        for other in self.pace._buckets:
            if other.delay(now, 1) > 0.0 or (other.gated and other not in self.passed):
                self.join(other)
                return
        for other in self.pace._buckets:
            other.use(now, 1)
        self.pace._granted += 1
        self.pace._office.waited(bucket, now - self.since)
        self.go()


class Matched:
    """The limits whose topic filters match a topic; what the router keeps."""

    __slots__ = ("allowances", "valid")

    def __init__(self, allowances: tuple[Allowance, ...]) -> None:
        self.valid = True
        self.allowances = allowances


ByTopic = Router[Allowance, int, Matched]


class ClientMeter(Meter):
    """What one client is measured by."""

    __slots__ = (
        "_by_match", "_by_topic", "_client", "_fixed", "_office", "_plain", "_subscriptions", "pace",
    )  # fmt: skip

    def __init__(
        self,
        office: Office,
        client: ClientInfo,
        publishes: Sequence[Bucket],
        by_topic: ByTopic | None,
        subscriptions: Sequence[Bucket],
        deliveries: Sequence[Bucket],
    ) -> None:
        self._office = office
        self._client = client
        self._fixed = tuple(publishes)
        self._plain = Toll(office, client, publishes) if publishes else None
        self._by_topic = by_topic
        self._by_match: dict[tuple[Allowance, ...], Toll] = {}
        self._subscriptions = tuple(subscriptions)
        self.pace = Outgoing(office, client, deliveries) if deliveries else None

    def charge(self, topic: str) -> Charge | None:
        """As `hookmq.plugin.Meter.charge`."""
        if self._by_topic is None:
            return self._plain
        matched = self._by_topic.lookup(topic).allowances
        if not matched:
            return self._plain
        toll = self._by_match.get(matched)
        if toll is None:
            if len(self._by_match) >= _REMEMBERED:
                self._by_match.clear()
            buckets = [self._office.bucket(allowance, self._client) for allowance in matched]
            toll = self._by_match[matched] = Toll(
                self._office, self._client, (*self._fixed, *buckets)
            )
        return toll

    def subscribe(self, filter: str) -> Over | None:
        """As `hookmq.plugin.Meter.subscribe`."""
        if not self._subscriptions:
            return None
        now = self._office.runtime.now()
        for bucket in self._subscriptions:
            if bucket.delay(now, 1) > 0.0:
                self._office.limited(bucket, self._client, "rejected")
                limit = bucket.limit
                return Over(limit.rule, Deny(ReasonCode.QUOTA_EXCEEDED, f"over {limit.name}"))
        for bucket in self._subscriptions:
            bucket.use(now, 1)
        return None
