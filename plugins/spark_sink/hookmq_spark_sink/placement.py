"""Choose a message's partition.

A log keeps the placement that it was created with, which is named in the log's description. PROTOCOL.md specifies each
placement. A placement must never change, because otherwise a topic's messages would be in two partitions.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, Literal, Protocol
from zlib import crc32

from hookmq_spark_sink import building

PartitionBy = Literal["topic", "round_robin"]
"""The values of the setting `partition_by`."""
CRC32: Final = "crc32"
NAMES: Final = "names"
ROUND_ROBIN: Final = "round_robin"
KNOWN: Final = frozenset({CRC32, NAMES, ROUND_ROBIN})
"""The placements that a stream's description may name."""
BATCH: Final = 1000
"""Number of messages of one commit that `RoundRobin` puts into a partition before it continues with the next."""
_REMEMBERED: Final = 1 << 16
"""Maximum number of topics whose partition is cached."""
_LAST_DIGIT: Final = re.compile(".*[0-9]", re.DOTALL)
_DIGITS: Final = frozenset("0123456789")


def by_crc32(topic: str, partitions: int) -> int:
    """Return a topic's partition in a log created by an early version.

    A CRC is linear, so topics that differ in only a few bits often get the same remainder. Such topics end up in only a
    few partitions.
    """
    return crc32(building.utf8(topic)) % partitions


def by_name(topic: str, partitions: int) -> int:
    """Return a topic's partition, computed from a hash of its name plus its last number.

    Topics with consecutive numbers are therefore in consecutive partitions. With a hash alone, a few topics would leave
    some partitions empty. Only the last two digits are added, and the hash covers all other characters. The tens digit
    is multiplied by 11 instead of 10. Numbers in steps of two, five or ten therefore also use all partitions, unless
    `partitions` is a multiple of 11.
    """
    found = _LAST_DIGIT.match(topic)
    added = 0
    if found is not None:
        end = found.end()
        start = end - 1
        added = int(topic[start])
        if start and topic[start - 1] in _DIGITS:
            start -= 1
            added += 11 * int(topic[start])
        topic = f"{topic[:start]}#{topic[end:]}"
    hashed = blake2b(building.utf8(topic), digest_size=8).digest()
    return (int.from_bytes(hashed, "big") + added) % partitions


class Placement(Protocol):
    """Chooses partitions. `places` caches the partitions of topics, for which `place` need not be called. If `mixed`
    is True, a topic's messages are spread over several partitions.
    """

    places: dict[str, int]
    mixed: bool

    def place(self, topic: str) -> int:
        """Return the partition of a message."""

    def flushed(self) -> None:
        """Note that a commit has ended."""


class ByTopic:
    """Keeps a topic's messages in one partition, and therefore in order."""

    mixed = False

    def __init__(self, call: Callable[[str, int], int], partitions: int) -> None:
        self.places: dict[str, int] = {}
        self._call = call
        self._partitions = partitions

    def place(self, topic: str) -> int:
        """Return the topic's partition."""
        if len(self.places) >= _REMEMBERED:
            self.places.clear()
        found = self.places[topic] = self._call(topic, self._partitions)
        return found

    def flushed(self) -> None:
        """Do nothing."""


class RoundRobin:
    """Fills one partition after another, each with up to `BATCH` messages of one commit, so that blocks are large.

    A topic's messages are spread over several partitions, and therefore not in order. The partition with the fewest
    messages comes first. `ends` contains the offset after each partition's last message.
    """

    mixed = True

    def __init__(self, partitions: int, ends: Sequence[int]) -> None:
        self.places: dict[str, int] = {}
        self._partitions = partitions
        self._at = min(range(partitions), key=ends.__getitem__)
        self._left = BATCH

    def place(self, topic: str) -> int:
        """Return the partition whose turn it is."""
        if not self._left:
            self._next()
        self._left -= 1
        return self._at

    def _next(self) -> None:
        self._at = (self._at + 1) % self._partitions
        self._left = BATCH

    def flushed(self) -> None:
        """Continue with the next partition."""
        self._next()


def make(name: str, partitions: int, ends: Sequence[int]) -> Placement:
    """Return the placement with this name. `ends` has the same meaning as in `RoundRobin`."""
    if name == ROUND_ROBIN:
        return RoundRobin(partitions, ends)
    return ByTopic(by_crc32 if name == CRC32 else by_name, partitions)


def new(partition_by: PartitionBy) -> str:
    """Return the name of the placement for a new log."""
    return ROUND_ROBIN if partition_by == "round_robin" else NAMES


def setting(name: str) -> PartitionBy:
    """Return the value of `partition_by` that selects the placement `name`."""
    return "round_robin" if name == ROUND_ROBIN else "topic"


def notes(stream: str, name: str, partitions: int, topics: Sequence[str]) -> list[str]:
    """Return warnings for operators about how a stream's messages will be spread over its partitions."""
    if partitions == 1:
        return []
    if name == ROUND_ROBIN:
        return [
            f"stream {stream}: partition_by is round_robin, so the messages of a topic are in no order"
        ]
    found = []
    if name == CRC32:
        found.append(
            f"stream {stream}: created with the placement crc32, which spreads similar topics unevenly; a stream with "
            "another name gets a better one"
        )
    if not any(wildcard in topic for topic in topics for wildcard in "+#"):
        made = make(name, partitions, [0] * partitions)
        used = Counter(made.place(topic) for topic in topics)
        if len(used) < partitions:
            found.append(
                f"stream {stream}: its topics are in {len(used)} of {partitions} partitions; the others remain empty"
            )
    return found
