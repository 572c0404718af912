"""The deliveries and acknowledgements that queue consumers wrote down, and the broken guarantees that these reveal."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from killing.ledger import Stream

Place = tuple[str, str, int]
"""A queue, a group and an offset."""


@dataclass
class QueueCounts:
    """The results of a run. Each count from `lost` on says how often a guarantee was broken. For a correct broker, all
    of these are 0.
    """

    deliveries: int = 0
    redelivered: int = 0
    """Deliveries with a delivery count above 1."""
    acknowledged: int = 0
    confirmed: int = 0
    """Acknowledgements that the broker processed before it was killed."""
    dead_letters: int = 0
    due: int = 0
    """Acknowledged messages, counted once for each group."""
    lost: int = 0
    """Due messages that no consumer in the group acknowledged and that did not become dead letters."""
    unmarked: int = 0
    """Repeated deliveries to the same group with a delivery count of 1."""
    again_after_ack: int = 0
    """Deliveries by a broker process that had already processed the message's acknowledgement."""
    doubled: int = 0
    """QoS 2 messages that a queue stored twice."""
    changed: int = 0
    """Offsets at which two different messages were delivered."""
    corrupt: int = 0
    """Messages with a wrong payload."""
    reordered: int = 0
    """Messages that a queue stored after a later message of the same publisher and topic."""
    out_of_turn: int = 0
    """First deliveries, in a group with one consumer, that came after a later message on the same connection."""
    dead_twice: int = 0
    """Messages that were stored more than once in the dead-letter queue."""
    out_of_order: int = 0
    """In queues with ``order: by_key``: messages delivered before the previous one on their topic was acknowledged."""
    too_many: int = 0
    """Deliveries beyond a queue's delivery limit. One more delivery than the limit is allowed, because a crash may have
    cut one short."""

    def broken(self) -> dict[str, int]:
        """Return the broken guarantees, and how often each was broken."""
        return {name: count for name, count in asdict(self).items() if name in BROKEN and count}


_NAMES = [field.name for field in fields(QueueCounts)]
BROKEN = frozenset(_NAMES[_NAMES.index("lost") :])


class Evidence:
    """The lines of all workers. `lives` holds the times at which the broker was restarted, in order. `single` lists the
    groups with one consumer, as (queue, group). `limits` holds each queue's delivery limit. In the queues in `keyed`,
    the topic is the key and all messages have QoS 2.
    """

    def __init__(
        self,
        single: Iterable[tuple[str, str]] = (),
        limits: dict[str, int] | None = None,
        keyed: Iterable[str] = (),
    ) -> None:
        self.counts = QueueCounts()
        self.notes: list[str] = []
        """Descriptions of the first broken guarantees."""
        self.lives: list[float] = []
        self.acked: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
        """The topic and number of each message that a consumer acknowledged, by queue and group."""
        self.dead: dict[str, set[tuple[str, int]]] = defaultdict(set)
        """The messages that became dead letters, by queue."""
        self._single = frozenset(single)
        self._limits = limits or {}
        self._keyed = frozenset(keyed)
        self._begun: dict[tuple[str, str, int], float] = {}
        """When each message of a queue in `keyed` was first delivered, by queue, topic and number."""
        self._done: dict[tuple[str, str, int], float] = {}
        """When each of these messages was first acknowledged."""
        self._stored: dict[tuple[str, int], tuple[str, int]] = {}
        """The topic and number of each stored message, by queue and offset."""
        self._first: set[Place] = set()
        """The places where a delivery with a delivery count of 1 arrived."""
        self._last: dict[Place, tuple[int, float]] = {}
        """For each place, which process of the broker made the last delivery, and when."""
        self._confirmed: dict[Place, tuple[int, float]] = {}
        """For each place, which process of the broker handled the acknowledgement, and when."""
        self._connected: dict[tuple[str, int], int] = {}
        self._newest: dict[tuple[str, int], int] = {}
        self._dead_at: dict[str, int] = {}

    def take(self, line: list[Any]) -> None:
        """Add a line from a worker."""
        kind, at, name, connection, *more = line
        if kind == "N":
            self._connected[name, connection] = bisect_right(self.lives, at)
            return
        queue, group, offset, topic, number, *rest = more
        if kind == "D":
            self._delivered((name, connection), at, (queue, group, offset), (topic, number), *rest)
        elif kind == "A":
            self.counts.acknowledged += 1
            self.acked[queue, group].add((topic, number))
            if queue in self._keyed:
                self._done.setdefault((queue, topic, number), at)
        else:
            self.counts.confirmed += 1
            if offset >= 0:
                place = (queue, group, offset)
                self._confirmed[place] = self._connected[name, connection], at
                self._check_confirmed(place)

    def _delivered(
        self,
        where: tuple[str, int],
        at: float,
        place: Place,
        message: tuple[str, int],
        count: int,
        dead: str,
    ) -> None:
        queue, group, offset = place
        topic, number = message
        if queue in self._keyed:
            before = self._begun.get((queue, topic, number), at)
            self._begun[queue, topic, number] = min(before, at)
        counts = self.counts
        counts.deliveries += 1
        what = f"{queue}:{offset} of {group} to {where[0]} ({topic} {number}, delivery {count})"
        if not number:
            counts.corrupt += 1
            self._note(f"corrupt: {what}")
        if offset < 0:
            return  # MQTT 3.1.1
        if self._stored.setdefault((queue, offset), message) != message:
            counts.changed += 1
            self._note(f"changed: {what} was {self._stored[queue, offset]}")
        limit = self._limits.get(queue, 0)
        if (
            limit and count > limit + 1
        ):  # after a crash, one delivery is counted that may not have happened
            counts.too_many += 1
            self._note(f"too many: {what}")
        if count > 1:
            counts.redelivered += 1
        else:
            if place in self._first:
                counts.unmarked += 1
                self._note(f"unmarked: {what}")
            self._first.add(place)
            if (queue, group) in self._single:
                if offset < self._newest.get(where, -1):
                    counts.out_of_turn += 1
                    self._note(f"out of turn: {what}")
                self._newest[where] = offset
        life = self._connected[where]
        self._last[place] = max(self._last.get(place, (0, 0.0)), (life, at))
        self._check_confirmed(place)
        if dead:
            self._died(dead, offset, message, what)

    def _check_confirmed(self, place: Place) -> None:
        """Record a violation if a message was delivered again after its acknowledgement was processed.

        Lines from different processes may arrive in any order.
        """
        life, at = self._confirmed.get(place, (-1, 0.0))
        where, when = self._last[place]
        if where == life and when > at:
            self.counts.again_after_ack += 1
            self._note(f"again after its acknowledgement: {place}")

    def _died(self, dead: str, offset: int, message: tuple[str, int], what: str) -> None:
        counts = self.counts
        self.dead[dead.partition(":")[0]].add(message)
        before = self._dead_at.setdefault(dead, offset)
        if before != offset:
            counts.dead_twice += 1
            self._note(f"dead twice: {what}, before at {before}")

    def missing(self, queue: str, group: str, streams: Iterable[Stream]) -> list[tuple[str, int]]:
        """Return those acknowledged messages in `streams` that a group has not settled."""
        settled = self.acked[queue, group] | self.dead[queue]
        return [
            (stream.target, number)
            for stream in streams
            for number in range(1, stream.sent + 1)
            if stream.acked[number] and (stream.target, number) not in settled
        ]

    def judge(self, owed: Iterable[tuple[str, str, Iterable[Stream]]]) -> QueueCounts:
        """Check the state at the end of a run. For each (queue, group, streams) in `owed`, everything must be settled."""
        counts = self.counts
        counts.due = counts.lost = counts.doubled = counts.reordered = 0
        counts.dead_letters = len(self._dead_at)
        for queue, group, streams in owed:
            streams = list(streams)
            counts.due += sum(sum(stream.acked) for stream in streams)
            missing = self.missing(queue, group, streams)
            counts.lost += len(missing)
            for one in missing[:3]:
                self._note(f"lost: {one} in {queue}, {group}")
        counts.out_of_order = 0
        for (queue, topic, number), at in self._begun.items():
            if number > 1 and self._done.get((queue, topic, number - 1), at + 1) > at:
                counts.out_of_order += 1
                self._note(f"out of order: {topic} {number} before {number - 1} was acknowledged")
        qos = {stream.target: stream.qos for _, _, streams in owed for stream in streams}
        seen: set[tuple[str, str, int]] = set()
        newest: dict[tuple[str, str], int] = {}
        for (queue, offset), (topic, number) in sorted(self._stored.items()):
            if (
                queue != "dead"
                and number < newest.get((queue, topic), 0)
                and ((queue, topic, number) not in seen)
            ):
                counts.reordered += 1
                self._note(f"reordered: {queue}:{offset} is {topic} {number}")
            newest[queue, topic] = max(number, newest.get((queue, topic), 0))
            if (queue, topic, number) in seen and qos.get(topic) == 2 and queue != "dead":
                counts.doubled += 1
                self._note(f"doubled: {queue}:{offset} is {topic} {number} again")
            seen.add((queue, topic, number))
        return counts

    def _note(self, text: str) -> None:
        if len(self.notes) < 20:
            self.notes.append(text)
