"""The ledger of queues: which messages were accepted, delivered and settled, and which guarantees are broken."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from hookmq.mqtt.packets import Publish

DURABLE: Final = 8.0
"""How soon a processed acknowledgement must be committed, in seconds, if the broker does not crash first."""


class Delivered(NamedTuple):
    """A delivery to a consumer. `dead` is a dead letter's group and id, or empty."""

    queue: str
    group: str
    offset: int
    times: int
    number: int
    dead: str

    @classmethod
    def of(cls, packet: Publish) -> "Delivered":
        """Return the delivery that a packet contains."""
        found = dict(packet.properties.user_property or ())
        dead = ""
        if "dead-letter-id" in found:
            dead = f"{found['dead-letter-group']} {found['dead-letter-id']}"
        return cls(
            found["message-id"].partition(":")[0], found["group"], int(found["offset"]),
            int(found["delivery-count"]), int(packet.payload[1:]), dead,
        )  # fmt: skip

    @property
    def place(self) -> tuple[str, str, int]:
        """The queue, the group and the offset of the delivery."""
        return self.queue, self.group, self.offset


class QueueLedger:
    """The ledger of one world. `crashed_between` returns whether the broker crashed between two times."""

    def __init__(
        self,
        complain: Callable[[str, str], None],
        crashed_between: Callable[[float, float], bool],
    ) -> None:
        self._complain = complain
        self._crashed_between = crashed_between
        self._topics: list[str] = []
        self._accepted: set[int] = set()
        self._stored: dict[tuple[str, int], int] = {}
        """The number of each stored message, by queue and offset."""
        self._firsts: set[tuple[str, str, int]] = set()
        self._acked: set[tuple[str, str, int]] = set()
        """Queue, group and number of each message that a consumer acknowledged."""
        self._confirmed: dict[tuple[str, str, int], float] = {}
        self._dead: dict[str, int] = {}
        """The offset of each dead letter, by `Delivered.dead`."""
        self.deliveries = 0

    def write(self, topic: str) -> int:
        """Return the number of a new message."""
        self._topics.append(topic)
        return len(self._topics) - 1

    def accepted(self, number: int) -> None:
        """Record that PUBACK arrived."""
        self._accepted.add(number)

    def delivered(self, one: Delivered, who: str, written_at: float) -> None:
        """Check a delivery that the broker wrote at the time `written_at`."""
        self.deliveries += 1
        what = f"{one} to {who}"
        if one.number >= len(self._topics):
            self._complain("queue corrupt", f"{what} was never published")
        if self._stored.setdefault((one.queue, one.offset), one.number) != one.number:
            before = self._stored[one.queue, one.offset]
            self._complain("queue kept", f"{what}: this offset was message {before}")
        if one.times == 1:
            if one.place in self._firsts:
                self._complain("queue marked", f"{what} again, with the count 1")
            self._firsts.add(one.place)
        at = self._confirmed.get(one.place)
        if at is not None and written_at > at:
            if not self._crashed_between(at, written_at):
                self._complain("queue settled", f"{what} after its acknowledgement at {at:.3f}")
            elif not self._crashed_between(at, at + DURABLE):
                self._complain("queue settled", f"{what}: the acknowledgement at {at:.3f} was lost")
        if one.dead and self._dead.setdefault(one.dead, one.offset) != one.offset:
            self._complain("queue dead", f"{what} was dead at {self._dead[one.dead]} before")

    def acknowledged(self, one: Delivered) -> None:
        """Record that a consumer acknowledges a message."""
        self._acked.add((one.queue, one.group, one.number))

    def confirmed(self, one: Delivered, at: float) -> None:
        """Record that the broker had processed an acknowledgement by the time `at`."""
        self._confirmed[one.place] = at

    def check_settled(self, groups: Iterable[str]) -> None:
        """Check that each group has acknowledged every accepted message, or that the message became a dead letter."""
        settled = set(self._acked)
        for one in self._dead:
            settled.add(("jobs", one.partition(" ")[0], self._stored["dead", self._dead[one]]))
        groups = tuple(groups)
        for number in sorted(self._accepted):
            missing = [one for one in groups if ("jobs", one, number) not in settled]
            if missing:
                self._complain("queue lost", f"message {number} was not delivered to {missing}")
