"""Keep part of a queue in memory, in one lane per key.

When memory is full, the waiting events of held lanes are removed from it. New events of these lanes stay in the queue.
Such a lane is *behind*: only the number of its next event is in memory. A key that keeps failing therefore does not
block other keys.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from hookmq.plugin import Runtime, Timer

from hookmq_webhook.parcels import Lane, Policy
from hookmq_webhook.queues import Numbered, Queue

SKIPPED: Final = 50
"""Maximum number of events left behind in an unbounded queue, as a multiple of the events that fit into memory."""
SCAN: Final = 4 << 20
"""Bytes to read at a time when searching for events of lanes that are behind."""
READ_AGAIN: Final = 5.0
"""Seconds to wait before retrying to read an unreadable queue."""


class Window:
    """The events in memory. Calls `changed` when there may be more events to send."""

    def __init__(
        self,
        runtime: Runtime,
        queue: Queue,
        key: Callable[[Numbered], str],
        policy: Policy,
        changed: Callable[[], None],
        log: Callable[..., None],
    ) -> None:
        self.policy = policy
        """The current policy. It may be replaced at any time."""
        self.ready: deque[Lane] = deque()
        """Lanes that have events in memory and are not busy."""
        self.lanes: dict[str, Lane] = {}
        self.loaded = 0
        """Number of events in memory."""
        self.skipped = 0
        """Approximate number of events left in the queue because their lane is behind.

        Some of them may have been dropped.
        """
        self.unreadable_at: float | None = None
        """When the queue became unreadable, in seconds since 1970, or None."""
        self._runtime = runtime
        self._queue = queue
        self._key = key
        self._changed = changed
        self._log = log
        self._next = 0
        self._bytes = 0
        self._behind: dict[str, Lane] = {}
        self._wanting: dict[str, Lane] = {}
        """Lanes that are behind, are not busy, and have no events in memory."""
        self._reading = False
        self._more = False
        self._again: Timer | None = None
        self._stopped = False

    def begin(self) -> None:
        """Start with the first event in the queue."""
        self._next = self._queue.start

    def wake(self) -> None:
        """Check the queue for new events."""
        self._more = True
        self.read()

    @property
    def idle(self) -> bool:
        """True if no event is in memory or waiting to be read."""
        return not (self.loaded or self._reading or self._more or self._wanting)

    def hurry(self) -> None:
        """Retry immediately if the queue is unreadable."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self.read()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True
        if self._again is not None:
            self._again.cancel()

    # from the queue -------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read as many events as fit into memory."""
        if self._reading or self._stopped or not (self._more or self._wanting):
            return
        if self._full():
            self._leave_behind()
        if self._full() or (self.ready and self._half_full()):
            return  # one page for many events costs less than many small pages
        policy = self.policy
        if self._wanting:
            self._reading = True
            first = min(lane.resume or 0 for lane in self._wanting.values())
            size = min(SCAN, policy.window_bytes)
            self._queue.page(first, policy.window_count, size, partial(self._found, first))
        elif self._may_skip():
            self._reading = True
            self._more = False
            room = policy.window_count - self.loaded
            size = policy.window_bytes - self._bytes
            self._queue.page(self._next, room, size, self._page)

    def _full(self) -> bool:
        policy = self.policy
        return self.loaded >= policy.window_count or self._bytes >= policy.window_bytes

    def _may_skip(self) -> bool:
        return self._queue.bounded or self.skipped < SKIPPED * self.policy.window_count

    def _half_full(self) -> bool:
        policy = self.policy
        return 2 * self.loaded >= policy.window_count or 2 * self._bytes >= policy.window_bytes

    def _leave_behind(self) -> None:
        """Remove the events of held lanes from memory, if no lane is ready."""
        if self.ready or not self._may_skip():
            return
        for lane in self.lanes.values():
            while lane.held and lane.events:
                one = lane.events.pop()
                self.loaded -= 1
                self._bytes -= one.size
                lane.resume = one.number
                self._behind[lane.key] = lane
                self._skip(lane, one)
            lane.alone = min(lane.alone, len(lane.events))

    def _skip(self, lane: Lane, one: Numbered) -> None:
        lane.skipped += 1
        self.skipped += 1
        self._queue.left(one.number)

    def _load(self, lane: Lane, one: Numbered) -> None:
        self.loaded += 1
        self._bytes += one.size
        lane.events.append(one)
        self._queue.taken(one.number)

    def _page(self, found: list[Numbered], following: int, error: Exception | None) -> None:
        self._reading = False
        if self._stopped or self._failed(error):
            return
        if following > self._next:
            self._more = True  # the queue may contain more events
        self._next = following
        for one in found:
            key = self._key(one)
            lane = self.lanes.get(key)
            if lane is None:
                lane = self.lanes[key] = Lane(key)
            if lane.resume is not None:
                self._skip(
                    lane, one
                )  # the event must not overtake earlier events left in the queue
                continue
            self._load(lane, one)
            self.offer(lane)
        self._changed()

    def _found(
        self, first: int, found: list[Numbered], following: int, error: Exception | None
    ) -> None:
        """Load the events of lanes that are behind from a page that begins with `first`.

        A lane that now needs an earlier event waits for the next page.
        """
        self._reading = False
        if self._stopped or self._failed(error):
            return
        asked = {key: lane for key, lane in self._wanting.items() if (lane.resume or 0) >= first}
        at = min(following, self._next) if following > first else self._next
        for one in found:
            if one.number >= self._next or self._full():
                at = min(at, one.number)
                break
            lane = asked.get(self._key(one))
            if lane is not None and lane.resume is not None and one.number >= lane.resume:
                lane.skipped -= 1
                self.skipped -= 1
                self._load(lane, one)
        for lane in asked.values():
            lane.resume = max(lane.resume or 0, at)
            if lane.resume >= self._next:
                self._caught_up(lane)
            if lane.events or lane.resume is None:
                del self._wanting[lane.key]
            if lane.events:
                self.offer(lane)
            elif lane.resume is None:
                del self.lanes[lane.key]
        self._changed()

    def _caught_up(self, lane: Lane) -> None:
        """Mark a lane as no longer behind. Events that still count as left behind have been dropped."""
        self.skipped -= lane.skipped
        lane.skipped = 0
        lane.resume = None
        del self._behind[lane.key]

    def _failed(self, error: Exception | None) -> bool:
        if error is None:
            self.unreadable_at = None
            return False
        if self.unreadable_at is None:
            self.unreadable_at = self._runtime.time()
        self._log("error", "webhook.queue_unreadable", reason=str(error))
        self._more = True
        self._again = self._runtime.call_later(READ_AGAIN, self._read_again)
        return True

    def _read_again(self) -> None:
        self._again = None
        self.read()

    # to the dispatcher ----------------------------------------------------------------------------------------------

    def offer(self, lane: Lane) -> None:
        """Mark a lane as ready if it has events and is not busy."""
        if lane.events and not lane.busy and not lane.queued:
            lane.queued = True
            self.ready.append(lane)

    def finish(self, events: list[Numbered], lanes: list[Lane]) -> None:
        """Remove events that need no further attempt, and mark their lanes as no longer busy."""
        for one in events:
            self._queue.done(one.number)
            self.loaded -= 1
            self._bytes -= one.size
        for lane in lanes:
            lane.busy = lane.held = False
            if lane.events:
                self.offer(lane)
            elif lane.resume is not None:
                self._wanting[lane.key] = lane
            else:
                del self.lanes[lane.key]
