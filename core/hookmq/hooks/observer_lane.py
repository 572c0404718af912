"""The events waiting for one observer, grouped into runs of consecutive events.

The broker adds the events of a whole turn as one list. They are queued and passed to a thread in
runs, not one at a time.
"""

from collections import deque
from typing import Any, Final

from hookmq.hooks.chain import HookImplementation, Narrowing

LONGEST: Final = 64
"""Maximum number of events in a run to which single events are added. A full lane frees its dropped events only once it
has dropped the whole run.
"""

TEXTS: Final = 1024
LONGEST_TEXT: Final = 256
"""Maximum number of topics that a `TopicMemo` remembers, and the maximum length of each in characters."""


class EventRun:
    """Consecutive events in a queue that belong to one lane. `at` is the index of the next one.

    `number` orders the runs of a queue. `depth` is the depth of recursion at which the events are handled. Several
    lanes may share the list `events`. Only the queue's `put` adds to it.
    """

    __slots__ = ("at", "depth", "events", "lane", "number")

    def __init__(
        self, lane: "Lane", number: int, events: list[tuple[Any, ...]], depth: int
    ) -> None:
        self.lane = lane
        self.number = number
        self.events = events
        self.depth = depth
        self.at = 0

    def __len__(self) -> int:
        return len(self.events) - self.at

    def left(self) -> list[tuple[Any, ...]]:
        """Return the events from index `at` on."""
        return self.events[self.at :] if self.at else self.events


class Lane:
    """The events waiting for one plugin's implementation of one hook. If there are more than `limit`, the oldest are
    dropped.
    """

    __slots__ = ("call", "dropped", "limit", "runs", "waiting")

    def __init__(self, call: HookImplementation, limit: int) -> None:
        self.call = call
        self.limit = limit
        self.runs: deque[EventRun] = deque()
        self.waiting = 0
        """The number of events in `runs`."""
        self.dropped = 0

    def add(self, run: EventRun) -> None:
        """Add a run. If the lane is over its limit, drop the oldest events."""
        self.runs.append(run)
        self.grown(len(run.events))

    def grown(self, count: int) -> None:
        """Record that the last run has `count` new events. If the lane is over its limit, drop the oldest events."""
        self.waiting += count
        excess = self.waiting - self.limit
        if excess <= 0:
            return
        self.waiting = self.limit
        self.dropped += excess
        runs = self.runs
        while excess:
            first = runs[0]
            size = len(first)
            if size > excess:
                first.at += excess
                return
            excess -= size
            runs.popleft()

    def take(self, most: int) -> EventRun:
        """Remove and return up to `most` of the oldest events. There must be at least one."""
        first = self.runs[0]
        size = len(first)
        if size <= most:
            self.runs.popleft()
            self.waiting -= size
            return first
        events = first.events[first.at : first.at + most]
        first.at += most
        self.waiting -= most
        return EventRun(self, first.number, events, first.depth)

    def clear(self) -> None:
        """Drop all events."""
        self.dropped += self.waiting
        self.waiting = 0
        self.runs.clear()


class TopicMemo(dict[str, bool]):
    """Remembers, for each topic or filter, whether a narrowed observer wants events about it."""

    __slots__ = ("_wanted",)

    def __init__(self, wanted: Narrowing) -> None:
        self._wanted = wanted

    def __missing__(self, text: str) -> bool:
        found = self._wanted(text)
        if len(text) <= LONGEST_TEXT:
            if len(self) >= TEXTS:
                self.clear()
            self[text] = found
        return found
