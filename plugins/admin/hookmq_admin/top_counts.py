"""Find the keys that occur most often, in bounded memory, with the Space-Saving algorithm of Metwally et al. (2005)."""

from dataclasses import dataclass
from heapq import heappush, heapreplace, nlargest
from typing import Final

MAX_KEY: Final = 256
"""Maximum length of a key. Only the first characters of longer keys count."""


@dataclass(slots=True)
class Counted:
    """A key with its count. The count may be too high by up to `error`. If `error` is above 0, `size` is too low."""

    key: str
    count: int
    size: int
    error: int


class TopCounts:
    """The counts of at most `capacity` keys. A key that makes up more than 1 / `capacity` of the total is always
    included.
    """

    __slots__ = ("_capacity", "_found", "_heap", "total")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._found: dict[str, Counted] = {}
        self._heap: list[tuple[int, str]] = []
        """(count, key) with counts that may be too low: they are corrected when they reach the top of the heap."""
        self.total = 0

    def add(self, key: str, count: int = 1, size: int = 0) -> None:
        """Count `key`. If there are too many keys, a new one replaces the key with the lowest count."""
        key = key[:MAX_KEY]
        self.total += count
        found = self._found.get(key)
        if found is not None:
            found.count += count
            found.size += size
            return
        if len(self._found) < self._capacity:
            self._found[key] = Counted(key, count, size, 0)
            heappush(self._heap, (count, key))
            return
        lowest, other = self._heap[0]
        while self._found[other].count != lowest:
            heapreplace(self._heap, (self._found[other].count, other))
            lowest, other = self._heap[0]
        del self._found[other]
        self._found[key] = Counted(key, lowest + count, size, lowest)
        heapreplace(self._heap, (lowest + count, key))

    def top(self, most: int) -> list[Counted]:
        """Return up to `most` keys with the highest counts."""
        return nlargest(most, self._found.values(), key=lambda one: one.count)
