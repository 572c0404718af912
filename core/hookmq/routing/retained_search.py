"""Searches for retained messages that continue across calls.

A search keeps its position in the index even if the index changes; see `RetainedIndex.scan`. It only moves forward. The
number of open searches is limited, because a caller may never finish one.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

V = TypeVar("V")

MAX_SEARCHES: Final = 32
"""Maximum number of open searches. Beginning one more ends the least recently used search."""


class RetainedSearch(Generic[V]):
    """A search, identified by `number`. `page` is the number of pages read so far."""

    __slots__ = ("number", "page", "steps")

    def __init__(self, number: int, steps: Iterator[tuple[str, V] | None]) -> None:
        self.number = number
        self.page = 0
        self.steps = steps
        """The iterator that `RetainedIndex.scan` returned."""


class RetainedSearches(Generic[V]):
    """The open searches, least recently used first."""

    __slots__ = ("_last", "_open")

    def __init__(self) -> None:
        self._open: dict[int, RetainedSearch[V]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, steps: Iterator[tuple[str, V] | None]) -> RetainedSearch[V]:
        """Return a new search, which is not open yet."""
        self._last += 1
        return RetainedSearch(self._last, steps)

    def keep(self, search: RetainedSearch[V]) -> None:
        """Keep a search open for its next page. End the least recently used search if there are too many."""
        search.page += 1
        self._open[search.number] = search
        if len(self._open) > MAX_SEARCHES:
            del self._open[next(iter(self._open))]

    def take(self, number: int, page: int) -> RetainedSearch[V] | None:
        """Remove and return the open search if it has read exactly `page` pages, otherwise return None."""
        search = self._open.get(number)
        if search is None or search.page != page:
            return None
        del self._open[number]
        return search
