"""From a queue to the service: in order per key, several keys at a time, in batches, again and again until it arrived.

A *lane* is the events of one key, in their order. A *parcel* is what is sent at a time: the heads of one or more lanes,
as many as a batch holds. While a parcel is under way or waits for its next attempt its lanes are busy, so that nothing
overtakes it; other lanes go on. Attempts of one parcel have the same content and the same ids. A parcel that is refused
or has been tried long enough is taken apart, so that only what is wrong is given up.

A lane whose parcel failed is *held*. When memory is full, what waits in held lanes behind their parcels goes out of it,
and so does what comes for them later: such a lane is *behind*, and all that is known is where in the queue it goes on.
So a key that fails for ever stops no other.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from hookmq.breaker import Ask, Breaker
from hookmq.runtime import Cancel, Runtime, Timer

from hookmq_webhook.queues import Numbered, Queue


class Verdict(Enum):
    """What became of an attempt."""

    ARRIVED = "arrived"
    AGAIN = "again"
    """The service is not well: try again."""
    REFUSED = "refused"
    """The service will not have this one, however often it is sent."""


class Answer(NamedTuple):
    """A verdict, its reason in words, and when the service asked to be tried again, in seconds."""

    verdict: Verdict
    reason: str = ""
    after: float | None = None


Send = Callable[[Sequence[Numbered]], Awaitable[Answer]]
Buried = Callable[[str], None]
"""Told that what was given up is safe: an empty text, or why it is not."""
Bury = Callable[[Numbered, str, int, Buried], None]
"""Told an event that is given up, why, and after how many attempts; keeps it safe, if it is to be kept."""


@dataclass(frozen=True)
class Policy:
    """How to send. Times are seconds; `max_age` 0 is for ever."""

    batch_count: int = 1
    batch_bytes: int = 1 << 20
    linger: float = 0.0
    concurrency: int = 4
    window_count: int = 2000
    window_bytes: int = 32 << 20
    first_delay: float = 0.5
    longest_delay: float = 300.0
    max_age: float = 0.0
    max_attempts: int = 0
    """0: as many as it takes."""


class Lane:
    """The events of one key that wait, in order."""

    __slots__ = ("alone", "attempts", "busy", "events", "held", "key", "queued", "resume")

    def __init__(self, key: str) -> None:
        self.key = key
        self.events: deque[Numbered] = deque()
        self.busy = False
        self.queued = False
        self.alone = 0
        """How many of the next go one by one."""
        self.attempts = 0
        """How often those were tried together, as far as that counts."""
        self.held = False
        """What it sent last failed."""
        self.resume: int | None = None
        """It is behind: from this number on its events are in the queue alone."""


class Parcel:
    """Events on their way, and the lanes that they are of."""

    __slots__ = ("attempts", "delivered", "events", "lanes")

    def __init__(self, events: list[Numbered], lanes: list[Lane], attempts: int = 0) -> None:
        self.events = events
        self.lanes = lanes
        self.attempts = attempts
        self.delivered = -1
        """Events that had arrived when it failed first."""


TOGETHER: Final = 5
"""Attempts after which the events of a batch are sent one by one; two, where others arrived since the first."""
SKIPPED: Final = 50
"""Events that may be left behind in the queue, for each that memory has room for."""
SCAN: Final = 4 << 20
"""Bytes read at a time to find what was left behind."""
BURY_AGAIN: Final = 5.0
"""Seconds after which what could not be kept safe is given up once more."""


class Counts:
    """What the exporter shows."""

    def __init__(self) -> None:
        self.delivered = 0
        self.attempts = 0
        self.failed = 0
        self.given_up = 0
        self.seconds = 0.0


MAX_BACKOFF: Final = 40
"""Doublings after which a delay is the longest for certain."""


class Dispatcher:
    """Takes events from `queue` when `wake` says that there may be some, until `stop`."""

    def __init__(
        self,
        runtime: Runtime,
        queue: Queue,
        send: Send,
        bury: Bury,
        key: Callable[[Numbered], str],
        policy: Policy,
        breaker: Breaker,
        log: Callable[..., None] | None = None,
    ) -> None:
        self.counts = Counts()
        self._runtime = runtime
        self._log = log or runtime.log
        self._queue = queue
        self._send = send
        self._bury = bury
        self._key = key
        self._policy = policy
        self._breaker = breaker
        self._lanes: dict[str, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._next = 0
        self._loaded = 0
        self._loaded_bytes = 0
        self._behind: dict[str, Lane] = {}
        self._wanting: dict[str, Lane] = {}
        """Of those behind, the ones that have nothing else to send."""
        self._skipped = 0
        self._blocked_first = True
        self._reading = False
        self._more = False
        self._running = 0
        self._retrying = 0
        self._parcels: dict[Parcel, None] = {}
        """Under way, or waiting for their next attempt."""
        self._blocked: deque[Parcel] = deque()
        self._linger: Timer | None = None
        self._lingered = False
        self._reopen: Timer | None = None
        self._cancels: dict[int, Cancel] = {}
        self._timers: dict[int, tuple[Timer, Callable[[], None]]] = {}
        self._serial = 0
        self._held_until = float("-inf")
        self._unreadable_at: float | None = None
        self._failing = False
        """The circuit opened, and the service did not answer since."""
        self.begun = False
        self._stopped = False
        self._idle: Callable[[], None] | None = None

    def use(self, policy: Policy, breaker: Breaker) -> None:
        """Go on with these: what is under way ends as it began, what waits for its next attempt need not wait for it any
        longer."""
        self._policy = policy
        self._breaker = breaker
        for timer in (self._linger, self._reopen):
            if timer is not None:
                timer.cancel()
        self._linger = self._reopen = None
        self._held_until = float("-inf")
        if self.begun and not self._stopped:
            waiting, self._timers = self._timers, {}
            for timer, call in waiting.values():
                timer.cancel()
                call()
            self._pump()
            self._read()

    # in -------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin where the queue does."""
        self._next = self._queue.start
        self.begun = True
        self.wake()

    def wake(self) -> None:
        """There may be new events."""
        if self.begun:
            self._more = True
            self._read()

    @property
    def idle(self) -> bool:
        """Nothing waits, nothing is under way."""
        return not (self._loaded or self._reading or self._running or self._more or self._wanting)

    @property
    def oldest_age(self) -> float:
        """Seconds since the oldest event in memory happened, or since the queue cannot be read; 0 where there is none."""
        times = [one.event.time for lane in self._lanes.values() for one in lane.events]
        times += [one.event.time for parcel in self._parcels for one in parcel.events]
        if self._unreadable_at is not None:
            times.append(self._unreadable_at)
        return max(0.0, self._runtime.time() - min(times)) if times else 0.0

    @property
    def running(self) -> int:
        """Requests under way."""
        return self._running

    @property
    def loaded(self) -> int:
        """Events in memory."""
        return self._loaded

    @property
    def skipped(self) -> int:
        """Events that were left behind in the queue, since others of their key fail."""
        return self._skipped

    def _read(self) -> None:
        policy = self._policy
        if self._reading or self._stopped or not (self._more or self._wanting):
            return
        if self._full():
            self._leave_behind()
        if self._full():
            return
        if self._wanting:
            self._reading = True
            first = min(lane.resume or 0 for lane in self._wanting.values())
            size = min(SCAN, policy.window_bytes)
            self._queue.page(first, policy.window_count, size, partial(self._found, first))
        elif self._skipped < SKIPPED * policy.window_count:
            self._reading = True
            self._more = False
            room = policy.window_count - self._loaded
            size = policy.window_bytes - self._loaded_bytes
            self._queue.page(self._next, room, size, self._page)

    def _full(self) -> bool:
        policy = self._policy
        return self._loaded >= policy.window_count or self._loaded_bytes >= policy.window_bytes

    def _leave_behind(self) -> None:
        """Make room, as far as held lanes can, once nothing else is left in memory that could be sent."""
        if not self._queue.rereads or self._ready:
            return
        if self._skipped >= SKIPPED * self._policy.window_count:
            return
        for lane in self._lanes.values():
            while lane.held and lane.events:
                one = lane.events.pop()
                self._loaded -= 1
                self._loaded_bytes -= one.size
                self._skipped += 1
                lane.resume = one.number
                self._behind[lane.key] = lane
            lane.alone = min(lane.alone, len(lane.events))

    def _found(
        self, first: int, found: list[Numbered], following: int, error: Exception | None
    ) -> None:
        """A page for lanes that are behind: of what is in it, that is theirs."""
        self._reading = False
        if self._stopped:
            return
        if error is not None:
            self._unreadable(error)
            return
        self._unreadable_at = None
        at = min(following, self._next) if following > first else self._next
        for one in found:
            if one.number >= self._next or self._full():
                at = min(at, one.number)
                break
            lane = self._wanting.get(self._key(one))
            if lane is not None and lane.resume is not None and one.number >= lane.resume:
                self._skipped -= 1
                self._load(lane, one)
        for lane in list(self._wanting.values()):
            lane.resume = max(lane.resume or 0, at)
            if lane.resume >= self._next:
                lane.resume = None
                del self._behind[lane.key]
            if lane.events or lane.resume is None:
                del self._wanting[lane.key]
            if lane.events:
                self._offer(lane)
            elif lane.resume is None:
                del self._lanes[lane.key]
        self._pump()
        self._read()
        self._rest()

    def _load(self, lane: Lane, one: Numbered) -> None:
        self._loaded += 1
        self._loaded_bytes += one.size
        lane.events.append(one)

    def _unreadable(self, error: Exception) -> None:
        if self._unreadable_at is None:
            self._unreadable_at = self._runtime.time()
        self._log("error", "webhook.queue_unreadable", reason=str(error))
        self._more = True
        self._later(5.0, self._read)

    def _page(self, found: list[Numbered], following: int, error: Exception | None) -> None:
        self._reading = False
        if self._stopped:
            return
        if error is not None:
            self._unreadable(error)
            return
        self._unreadable_at = None
        if following > self._next:
            self._more = True  # there may be more behind what fitted
        self._next = following
        for one in found:
            key = self._key(one)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane(key)
            if lane.resume is not None:
                self._skipped += 1  # nothing overtakes what is behind
                continue
            self._load(lane, one)
            self._offer(lane)
        self._pump()
        self._read()
        self._rest()

    def _offer(self, lane: Lane) -> None:
        if lane.events and not lane.busy and not lane.queued:
            lane.queued = True
            self._ready.append(lane)

    # out ------------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send as much as may be sent now."""
        while not self._stopped and self._running < self._policy.concurrency:
            if not self._blocked and not self._ready:
                return
            if not self._blocked and self._waits_for_more():
                return
            held = self._held_until - self._runtime.now()
            ask = self._breaker.ask() if held <= 0 else None
            if ask is None:
                self._when_closed(max(held, self._breaker.opens_in()))
                return
            self._attempt(self._due(), ask)

    def _due(self) -> Parcel:
        """Those that failed and those that were never tried take turns, or a few that fail again and again would have all
        turns, those with which it is tried whether the service is back among them."""
        blocked = bool(self._blocked) and (self._blocked_first or not self._ready)
        self._blocked_first = not blocked
        return self._blocked.popleft() if blocked else self._parcel()

    def _waits_for_more(self) -> bool:
        """Whether to linger, so that a batch is worth it."""
        policy = self._policy
        if policy.linger <= 0 or self._lingered or self._idle is not None:
            return False
        count = 0
        for lane in self._ready:
            count += len(lane.events)
            if count >= policy.batch_count or lane.alone:
                return False
        if self._linger is None:
            self._linger = self._runtime.call_later(policy.linger, self._linger_over)
        return True

    def _linger_over(self) -> None:
        self._linger = None
        self._lingered = True
        self._pump()
        self._lingered = False

    def _parcel(self) -> Parcel:
        policy = self._policy
        events: list[Numbered] = []
        lanes: list[Lane] = []
        room = policy.batch_bytes
        while self._ready and len(events) < policy.batch_count:
            lane = self._ready[0]
            if lane.alone:
                if not events:
                    return self._one(lane)
                break
            while (
                lane.events
                and len(events) < policy.batch_count
                and (not events or lane.events[0].size <= room)
            ):
                one = lane.events.popleft()
                room -= one.size
                events.append(one)
                if lane not in lanes[-1:]:
                    lanes.append(lane)
            if not lanes or lanes[-1] is not lane:
                break  # its first event does not fit any more
            self._ready.popleft()
            lane.queued = False
            lane.busy = True
        return Parcel(events, lanes)

    def _one(self, lane: Lane) -> Parcel:
        self._ready.popleft()
        lane.queued = False
        lane.busy = True
        lane.alone -= 1
        return Parcel([lane.events.popleft()], [lane], lane.attempts)

    def _attempt(self, parcel: Parcel, ask: Ask) -> None:
        self._running += 1
        self._parcels[parcel] = None
        parcel.attempts += 1
        self.counts.attempts += 1
        began = self._runtime.now()
        self._serial += 1
        serial = self._serial

        def answered(answer: Answer | None, error: BaseException | None) -> None:
            self._cancels.pop(serial, None)
            self._running -= 1
            self.counts.seconds += self._runtime.now() - began
            if error is not None or answer is None:
                answer = Answer(Verdict.AGAIN, f"{type(error).__name__}: {error}")
            opened = self._breaker.opened
            ask.end(answer.verdict is not Verdict.AGAIN)
            self._answered(parcel, answer)
            self._tell(answer, self._breaker.opened > opened)
            self._pump()
            self._read()
            self._rest()

        self._cancels[serial] = self._runtime.spawn(self._send(parcel.events), answered)

    def _tell(self, answer: Answer, opened: bool) -> None:
        """The log has a line when the service fails and one when it is back, whatever lies in between."""
        if answer.verdict is Verdict.AGAIN:
            if opened and not self._failing:
                self._failing = True
                self._log("warning", "webhook.service_failing", reason=answer.reason)
        elif self._failing:
            self._failing = False
            self._log("info", "webhook.service_back", waiting=self._queue.waiting)

    def _answered(self, parcel: Parcel, answer: Answer) -> None:
        policy = self._policy
        if answer.verdict is Verdict.ARRIVED:
            self.counts.delivered += len(parcel.events)
            self._finish(parcel)
            return
        self.counts.failed += 1
        oldest = min(one.event.time for one in parcel.events)
        worn = bool(policy.max_attempts) and parcel.attempts >= policy.max_attempts
        old = policy.max_age > 0 and self._runtime.time() - oldest >= policy.max_age
        if answer.verdict is Verdict.REFUSED or worn or old:
            if len(parcel.events) > 1:
                self._take_apart(parcel, parcel.attempts - 1 if worn else 0)
            else:
                self._give_up(parcel, answer.reason)
            return
        if parcel.delivered < 0:
            parcel.delivered = self.counts.delivered
        others = self.counts.delivered > parcel.delivered
        if len(parcel.events) > 1 and (others or parcel.attempts >= TOGETHER):
            # It may be one event alone that the service cannot stand, whatever it says.
            self._take_apart(parcel, parcel.attempts)
            return
        self._retrying += 1
        for lane in parcel.lanes:
            lane.held = True
        if answer.after:
            wait = min(answer.after, policy.longest_delay)
            self._held_until = max(self._held_until, self._runtime.now() + wait)
        self._later(self._delay(parcel.attempts, answer.after), lambda: self._again(parcel))

    def _delay(self, attempts: int, after: float | None) -> float:
        policy = self._policy
        delay = min(
            policy.longest_delay, policy.first_delay * 2.0 ** min(attempts - 1, MAX_BACKOFF)
        )
        delay *= 0.5 + self._runtime.random()  # spread out those that failed together
        return max(delay, min(after or 0.0, policy.longest_delay))

    def _again(self, parcel: Parcel) -> None:
        self._retrying -= 1
        self._blocked.append(parcel)
        self._pump()

    def _take_apart(self, parcel: Parcel, attempts: int) -> None:
        """Each is sent alone, those of one key still one after another. `attempts` were made of each, less one where that
        is enough: each has a try left."""
        del self._parcels[parcel]
        for lane in parcel.lanes:
            mine = [one for one in parcel.events if self._key(one) == lane.key]
            lane.events.extendleft(reversed(mine))
            lane.alone, lane.attempts = len(mine), attempts
            lane.busy = lane.held = False
            self._offer(lane)

    def _give_up(self, parcel: Parcel, reason: str) -> None:
        """Its lane stays busy until it is safe where it goes."""
        one = parcel.events[0]

        def buried(failed: str) -> None:
            if self._stopped:
                return
            if failed:
                self._log("error", "webhook.not_buried", id=one.id, reason=failed)
                self._later(BURY_AGAIN, lambda: self._give_up(parcel, reason))
                return
            self.counts.given_up += 1
            self._finish(parcel)
            self._pump()
            self._read()
            self._rest()

        self._bury(one, reason, parcel.attempts, buried)

    def _finish(self, parcel: Parcel) -> None:
        del self._parcels[parcel]
        for one in parcel.events:
            self._queue.done(one.number)
            self._loaded -= 1
            self._loaded_bytes -= one.size
        for lane in parcel.lanes:
            lane.busy = lane.held = False
            if lane.events:
                self._offer(lane)
            elif lane.resume is not None:
                self._wanting[lane.key] = lane
            else:
                del self._lanes[lane.key]

    def _when_closed(self, seconds: float) -> None:
        """The circuit is open, or the service asked for time: nothing is tried, and no attempt used up, until it may be.
        While one request tries whether the service is back, its end is what is waited for."""
        if seconds > 0 and self._reopen is None:
            self._reopen = self._runtime.call_later(seconds, self._may_try)

    def _may_try(self) -> None:
        self._reopen = None
        self._pump()

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        self._serial += 1
        serial = self._serial

        def run() -> None:
            self._timers.pop(serial, None)
            call()

        self._timers[serial] = self._runtime.call_later(delay, run), call

    # end ------------------------------------------------------------------------------------------------------------

    def drain(self, done: Callable[[], None]) -> None:
        """Call `done` when nothing waits any more; lingering ends."""
        self._idle = done
        self._pump()
        self._rest()

    def _rest(self) -> None:
        if self._idle is not None and self.idle:
            done, self._idle = self._idle, None
            done()

    def stop(self) -> None:
        """Send nothing more; what is under way is given up, and nothing is known of it."""
        self._stopped = True
        for timer in (self._linger, self._reopen, *(timer for timer, _ in self._timers.values())):
            if timer is not None:
                timer.cancel()
        self._timers.clear()
        cancels, self._cancels = self._cancels, {}
        for cancel in cancels.values():
            cancel()
