"""A reference model of a work queue: what consumers may see, in plain Python.

Tests tell the model what they did and what consumers received. The model raises AssertionError if this shows that a
guarantee was broken.
"""

from dataclasses import dataclass, field


@dataclass
class Limits:
    """The queue settings that the model knows about. 0 means no limit."""

    prefetch: int = 100
    max_messages: int = 100_000
    max_unacknowledged: int = 10_000
    visibility: float = 30.0
    ttl: float = 0.0
    delivery_limit: int = 0


@dataclass
class Held:
    """A delivery that a consumer has not settled. It was sent between `early` and `late`."""

    consumer: int
    early: float
    late: float


@dataclass
class GroupModel:
    """What one group knows about each message, by offset."""

    settled: dict[int, str] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    """The highest delivery count seen."""
    seen: dict[int, int] = field(default_factory=dict)
    """How often a consumer got the message."""
    held: dict[int, Held] = field(default_factory=dict)
    deferred: dict[int, float] = field(default_factory=dict)
    """The time before which a message must not be delivered."""


class QueueModel:
    """A queue with groups. `messages` holds each accepted message by offset: its payload, and the earliest and latest
    times at which it may expire.
    """

    def __init__(self, groups: tuple[str, ...], limits: Limits) -> None:
        self.limits = limits
        self.messages: list[tuple[bytes, float, float]] = []
        self.groups = {name: GroupModel() for name in groups}
        self.crashed = False

    def unsettled(self, group: str) -> list[int]:
        """Return the offsets that a group has not settled."""
        settled = self.groups[group].settled
        return [offset for offset in range(len(self.messages)) if offset not in settled]

    @property
    def depth(self) -> int:
        """The number of messages that the slowest group has not settled."""
        return max(len(self.unsettled(group)) for group in self.groups)

    def has_expired(self, offset: int, now: float) -> bool:
        """Return whether a message may have expired."""
        return self.messages[offset][1] <= now

    def publish(self, payload: bytes, early: float, late: float, expiry: float = 0.0) -> None:
        """Record that a message was accepted between `early` and `late`."""
        life = min((one for one in (expiry, self.limits.ttl) if one), default=float("inf"))
        self.messages.append((payload, early + life, late + life))

    def deliver(
        self,
        name: str,
        consumer: int,
        offset: int,
        count: int,
        payload: bytes,
        early: float,
        now: float,
        alone: bool,
    ) -> None:
        """Check a delivery to a consumer. A consumer that is `alone` in its group must get new messages in order."""
        group, what = self.groups[name], f"{name} {offset} (delivery {count}) to {consumer}"
        assert offset < len(self.messages), f"{what}: it was never accepted"
        assert payload == self.messages[offset][0], f"{what}: {payload!r}"
        assert offset not in group.settled, f"{what}: it is settled: {group.settled[offset]}"
        assert early < self.messages[offset][2], f"{what}: it has expired"
        assert group.deferred.pop(offset, 0.0) <= now, f"{what}: it is deferred"
        held, before = group.held.get(offset), group.seen.get(offset, 0)
        if held is not None:
            assert now >= held.early + self.limits.visibility, f"{what}: {held} has it"
        if before or not self.crashed:
            assert (count > 1) == (before > 0), f"{what}: seen {before} times"
        if not self.crashed:
            assert count == before + 1, f"{what}: seen {before} times"
            limit = self.limits.delivery_limit
            assert not limit or count <= limit, f"{what}: beyond the limit of {limit}"
        if alone and not before:
            for other in self.unsettled(name):
                if other < offset and other not in group.deferred:
                    gone = group.seen.get(other) or self.has_expired(other, now)
                    assert gone, f"{what}: before {other}"
        group.counts[offset], group.seen[offset] = count, before + 1
        group.held[offset] = Held(consumer, early, now)
        if not self.crashed:
            most = self.limits.max_unacknowledged
            open = [
                one
                for one in group.seen
                if one not in group.settled and not self.has_expired(one, now)
            ]
            assert len(open) <= most, f"{what}: {len(open)} of {most} unacknowledged"

    def settle(self, name: str, offset: int, how: str = "acknowledged") -> None:
        """Record that a message is settled. An acknowledgement counts even if the message has been redelivered."""
        group = self.groups[name]
        group.settled.setdefault(offset, how)
        group.held.pop(offset, None)

    def lose(self, consumer: int) -> None:
        """Record that a consumer has left. Its messages can be delivered again."""
        for group in self.groups.values():
            for offset in [one for one, held in group.held.items() if held.consumer == consumer]:
                del group.held[offset]

    def defer(self, name: str, offset: int, due: float) -> None:
        """Record that a message must wait until the time `due`."""
        self.groups[name].held.pop(offset, None)
        self.groups[name].deferred[offset] = due

    def bury(self, name: str, offset: int) -> None:
        """Record that a message from this group arrived in the dead-letter queue."""
        group, limit = self.groups[name], self.limits.delivery_limit
        assert offset not in group.settled, (
            f"{name} {offset}: dead after it was {group.settled[offset]}"
        )
        assert self.crashed or group.seen.get(offset, 0) >= limit, (
            f"{name} {offset}: dead too early"
        )
        assert offset not in group.held or self.limits.visibility, (
            f"{name} {offset}: dead, but held"
        )
        self.settle(name, offset, "dead")

    def crash(self) -> None:
        """Record that the broker was killed. From then on, no consumer has any messages."""
        self.crashed = True
        for group in self.groups.values():
            group.held.clear()

    def available(self, name: str, now: float) -> list[int]:
        """Return the messages that a consumer with room for more must have received by `now`."""
        group, limits, found = self.groups[name], self.limits, []
        open = sum(1 for one in group.seen if one not in group.settled)
        for offset in self.unsettled(name):
            held = group.held.get(offset)
            if held is not None and now < held.late + limits.visibility:
                continue
            if self.has_expired(offset, now) or group.deferred.get(offset, 0.0) >= now:
                continue
            if offset not in group.seen and (self.crashed or open >= limits.max_unacknowledged):
                continue
            if limits.delivery_limit and group.seen.get(offset, 0) >= limits.delivery_limit:
                continue
            found.append(offset)
        return found
