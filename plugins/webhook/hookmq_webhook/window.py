"""The part of a queue that is in memory, by key: what may be sent next, and what is left behind in the queue.

When memory is full, what waits in held lanes behind their parcels goes out of it, and so does what comes for them later:
such a lane is *behind*, and all that is known is where in the queue it goes on. So a key that fails for ever stops no
other.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from hookmq.runtime import Runtime, Timer

from hookmq_webhook.parcels import Lane, Policy
from hookmq_webhook.queues import Numbered, Queue

SKIPPED: Final = 50
"""Events that may be left behind in a queue that does not bound itself, for each that memory has room for."""
SCAN: Final = 4 << 20
"""Bytes read at a time to find what was left behind."""
READ_AGAIN: Final = 5.0
"""Seconds after which a queue that cannot be read is read once more."""


class Window:
    """`changed` is called when there may be more to send."""

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
        """May be changed."""
        self.ready: deque[Lane] = deque()
        """Those that have something to send and send nothing."""
        self.lanes: dict[str, Lane] = {}
        self.loaded = 0
        """Events in memory."""
        self.skipped = 0
        """Events that were left behind in the queue, since others of their key fail, about: some may be gone."""
        self.unreadable_at: float | None = None
        """Since when the queue cannot be read."""
        self._runtime = runtime
        self._queue = queue
        self._key = key
        self._changed = changed
        self._log = log
        self._next = 0
        self._bytes = 0
        self._behind: dict[str, Lane] = {}
        self._wanting: dict[str, Lane] = {}
        """Of those behind, the ones that have nothing else to send."""
        self._reading = False
        self._more = False
        self._again: Timer | None = None
        self._stopped = False

    def begin(self) -> None:
        """Begin where the queue does."""
        self._next = self._queue.start

    def wake(self) -> None:
        """There may be new events."""
        self._more = True
        self.read()

    @property
    def idle(self) -> bool:
        """Nothing is in memory, and nothing is to be read."""
        return not (self.loaded or self._reading or self._more or self._wanting)

    def hurry(self) -> None:
        """Read now what could not be read."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self.read()

    def stop(self) -> None:
        """Read nothing more."""
        self._stopped = True
        if self._again is not None:
            self._again.cancel()

    # in -------------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Take from the queue what there is room for."""
        if self._reading or self._stopped or not (self._more or self._wanting):
            return
        if self._full():
            self._leave_behind()
        if self._full():
            return
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

    def _leave_behind(self) -> None:
        """Make room, as far as held lanes can, once nothing else is left in memory that could be sent."""
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
            self._more = True  # there may be more behind what fitted
        self._next = following
        for one in found:
            key = self._key(one)
            lane = self.lanes.get(key)
            if lane is None:
                lane = self.lanes[key] = Lane(key)
            if lane.resume is not None:
                self._skip(lane, one)  # nothing overtakes what is behind
                continue
            self._load(lane, one)
            self.offer(lane)
        self._changed()

    def _found(
        self, first: int, found: list[Numbered], following: int, error: Exception | None
    ) -> None:
        """A page for lanes that are behind: of what is in it, that is theirs. It begins with `first`: a lane that came to
        want something earlier while it was read is not in it, and waits for the next page."""
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
        """What is counted still is in the queue no more."""
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

    # out ------------------------------------------------------------------------------------------------------------

    def offer(self, lane: Lane) -> None:
        """It may have something to send."""
        if lane.events and not lane.busy and not lane.queued:
            lane.queued = True
            self.ready.append(lane)

    def finish(self, events: list[Numbered], lanes: list[Lane]) -> None:
        """These need no further attempt."""
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
