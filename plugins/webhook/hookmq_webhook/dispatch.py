"""From a queue to the service: in order per key, several keys at a time, in batches, again and again until it arrived.

A *lane* is the events of one key, in their order. A *parcel* is what is sent at a time: the heads of one or more lanes,
as many as a batch holds. While a parcel is under way or waits for its next attempt its lanes are busy, so that nothing
overtakes it; other lanes go on. Attempts of one parcel have the same content and the same ids. A parcel that is refused
or has been tried long enough is taken apart, so that only what is wrong is given up.

A lane whose parcel failed is *held*; what becomes of the events behind it `hookmq_webhook.window` says.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from hookmq.breaker import Ask, Breaker
from hookmq.runtime import Cancel, Runtime, Timer

from hookmq_webhook.parcels import Answer, Lane, Parcel, Policy, Verdict
from hookmq_webhook.queues import Numbered, Queue
from hookmq_webhook.window import Window

Send = Callable[[Sequence[Numbered]], Awaitable[Answer]]
Buried = Callable[[str], None]
"""Told that what was given up is safe: an empty text, or why it is not."""
Bury = Callable[[Numbered, str, int, Buried], None]
"""Told an event that is given up, why, and after how many attempts; keeps it safe, if it is to be kept."""


TOGETHER: Final = 5
"""Attempts after which the events of a batch are sent one by one; two, where others arrived since the first."""
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
        self._window = Window(runtime, queue, key, policy, self._changed, self._log)
        self._blocked_first = True
        self._running = 0
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
        self._failing = False
        """The circuit opened, and the service did not answer since."""
        self.begun = False
        self._stopped = False
        self._idle: Callable[[], None] | None = None

    def use(self, policy: Policy, breaker: Breaker) -> None:
        """Go on with these: what is under way ends as it began, what waits for its next attempt need not wait for it any
        longer."""
        self._policy = self._window.policy = policy
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
            self._window.hurry()

    # in -------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin where the queue does."""
        self._window.begin()
        self.begun = True
        self.wake()

    def wake(self) -> None:
        """There may be new events."""
        if self.begun:
            self._window.wake()

    @property
    def idle(self) -> bool:
        """Nothing waits, nothing is under way."""
        return not self._running and self._window.idle

    @property
    def oldest_age(self) -> float:
        """Seconds since the oldest event that waits happened, or since the queue cannot be read; 0 if there is none."""
        times = [self._queue.oldest, self._window.unreadable_at]
        known = [time for time in times if time is not None]
        return max(0.0, self._runtime.time() - min(known)) if known else 0.0

    @property
    def running(self) -> int:
        """Requests under way."""
        return self._running

    @property
    def loaded(self) -> int:
        """Events in memory."""
        return self._window.loaded

    @property
    def skipped(self) -> int:
        """As that of `hookmq_webhook.window.Window`."""
        return self._window.skipped

    def _changed(self) -> None:
        self._pump()
        self._window.read()
        self._rest()

    # out ------------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send as much as may be sent now."""
        while not self._stopped and self._running < self._policy.concurrency:
            if not self._blocked and not self._window.ready:
                return
            if not self._blocked and self._waits_for_more():
                return
            # How long, before whether: time that passes in between would leave neither leave nor anything to wait for.
            pause = max(self._held_until - self._runtime.now(), self._breaker.opens_in())
            ask = self._breaker.ask() if pause <= 0 else None
            if ask is None:
                self._when_closed(pause)
                return
            self._attempt(self._due(), ask)

    def _due(self) -> Parcel:
        """Those that failed and those that were never tried take turns, or a few that fail again and again would have all
        turns, those with which it is tried whether the service is back among them."""
        blocked = bool(self._blocked) and (self._blocked_first or not self._window.ready)
        self._blocked_first = not blocked
        return self._blocked.popleft() if blocked else self._parcel()

    def _waits_for_more(self) -> bool:
        """Whether to linger, so that a batch is worth it."""
        policy = self._policy
        if policy.linger <= 0 or self._lingered or self._idle is not None:
            return False
        count = 0
        for lane in self._window.ready:
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
        while self._window.ready and len(events) < policy.batch_count:
            lane = self._window.ready[0]
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
            self._window.ready.popleft()
            lane.queued = False
            lane.busy = True
        return Parcel(events, lanes)

    def _one(self, lane: Lane) -> Parcel:
        self._window.ready.popleft()
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
            self._changed()

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
            self._window.offer(lane)

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
            self._changed()

        self._bury(one, reason, parcel.attempts, buried)

    def _finish(self, parcel: Parcel) -> None:
        del self._parcels[parcel]
        self._window.finish(parcel.events, parcel.lanes)

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
        self._window.stop()
        for timer in (self._linger, self._reopen, *(timer for timer, _ in self._timers.values())):
            if timer is not None:
                timer.cancel()
        self._timers.clear()
        cancels, self._cancels = self._cancels, {}
        for cancel in cancels.values():
            cancel()


__all__ = ["Answer", "Buried", "Bury", "Counts", "Dispatcher", "Policy", "Send", "Verdict"]
