"""A record of the messages that publishers sent and the broker acknowledged. A target must contain all acknowledged
messages.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Stored(NamedTuple):
    """A record in a target: its id, its key, and the number that its publisher assigned."""

    id: str
    key: str
    number: int


@dataclass
class SinkLedger:
    """The messages by key, in the order in which they were published. Numbers increase within each key."""

    published: dict[str, list[int]] = field(default_factory=dict)
    acknowledged: dict[str, set[int]] = field(default_factory=dict)

    def publish(self, key: str) -> int:
        """Return the number of a new message."""
        numbers = self.published.setdefault(key, [])
        numbers.append(len(numbers) + 1)
        self.acknowledged.setdefault(key, set())
        return numbers[-1]

    def acknowledge(self, key: str, number: int) -> None:
        """Record that a message was acknowledged."""
        self.acknowledged[key].add(number)

    @property
    def total(self) -> int:
        """The number of acknowledged messages."""
        return sum(map(len, self.acknowledged.values()))

    def missing(self, stored: Iterable[Stored]) -> dict[str, list[int]]:
        """Return the acknowledged messages that the target lacks, by key."""
        found: dict[str, set[int]] = {}
        for one in stored:
            found.setdefault(one.key, set()).add(one.number)
        lacking = {
            key: sorted(wanted - found.get(key, set())) for key, wanted in self.acknowledged.items()
        }
        return {key: numbers for key, numbers in lacking.items() if numbers}

    def mistakes(self, stored: list[Stored], once: bool) -> list[str]:
        """Describe each error in a target that has all acknowledged messages. If `once` is True, the target must not
        contain any message twice.
        """
        found: list[str] = []
        payloads: dict[str, tuple[str, int]] = {}
        ids: dict[tuple[str, int], str] = {}
        latest: dict[str, int] = {}
        for one in stored:
            what = (one.key, one.number)
            if payloads.setdefault(one.id, what) != what:
                found.append(f"{one.id} is both {payloads[one.id]} and {what}")
            if ids.setdefault(what, one.id) != one.id:
                found.append(f"{what} has the ids {ids[what]} and {one.id}")
            if one.number not in self.published.get(one.key, ()):
                found.append(f"{what} was never published")
            if one.number > latest.get(one.key, 0):
                latest[one.key] = one.number
            elif once:
                found.append(f"{what} comes after {latest[one.key]}")
        first = list(dict.fromkeys(one[1:] for one in stored))
        for key in self.published:
            numbers = [number for own, number in first if own == key]
            if numbers != sorted(numbers):
                found.append(f"the first records of {key} are not in order: {numbers[:50]}")
        if once:
            repeated = [
                one for one, count in Counter(one.id for one in stored).items() if count > 1
            ]
            if repeated:
                found.append(f"stored more than once: {repeated[:10]}")
        return found
