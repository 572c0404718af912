"""Send queued events to the service in batches, in order for each key, and retry until they arrive.

A *lane* contains the waiting events of one key, in order. A *parcel* contains the events of one request: as many as fit
into a batch, from the front of one or more lanes. While a parcel is being sent or waits for its next attempt, its lanes
are busy, so that no event overtakes it. Other lanes continue. All attempts to send a parcel have the same content and
ids. A parcel that is refused, or has used up its attempts, is split. The plugin gives up only on events that also fail
alone.

A lane whose parcel failed is *held*. `hookmq_webhook.window` describes what happens to its other events.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from hookmq.plugin import Cancel, Runtime, Timer
from hookmq_toolkit.breaker import Ask, Breaker

from hookmq_webhook.counts import Counts
from hookmq_webhook.deliveries import Deliveries
from hookmq_webhook.health import Health
from hookmq_webhook.pace import Pace
from hookmq_webhook.parcels import Answer, Bury, Lane, Parcel, Policy, Verdict
from hookmq_webhook.queues import Numbered, Queue
from hookmq_webhook.window import Window

Send = Callable[[Sequence[Numbered]], Awaitable[Answer]]

TOGETHER: Final = 5
"""Failed attempts after which a batch is split. If other events arrive in the meantime, two attempts are enough."""
BURY_AGAIN: Final = 5.0
"""Seconds to wait before retrying to store a dead letter."""


MAX_BACKOFF: Final = 40
"""Maximum number of times that a delay is doubled. Prevents overflow."""


class Dispatcher:
    """Sends the events in `queue`. Call `wake` when there may be new events, and `stop` at the end."""

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
        *,
        disable: Callable[[str], None] = lambda reason: None,
        deliveries: Deliveries | None = None,
        health_changed: Callable[[], None] = lambda: None,
        failing_since: float | None = None,
    ) -> None:
        self.counts = Counts()
        self._deliveries = deliveries or Deliveries()
        self._runtime = runtime
        self._log = log or runtime.log
        self._queue = queue
        self._send = send
        self._bury = bury
        self._key = key
        self._policy = policy
        self._breaker = breaker
        self.health = Health(
            runtime.time,
            self._log,
            lambda: queue.waiting,
            disable,
            health_changed,
            failing_since,
        )
        self._pace = Pace(policy.rate)
        self._window = Window(runtime, queue, key, policy, self._changed, self._log)
        self._blocked_first = True
        self._running = 0
        self._parcels: dict[Parcel, None] = {}
        """Parcels that are being sent or are waiting for their next attempt."""
        self._blocked: deque[Parcel] = deque()
        self._linger: Timer | None = None
        self._lingered = False
        self._reopen: Timer | None = None
        self._cancels: dict[int, Cancel] = {}
        self._timers: dict[int, tuple[Timer, Callable[[], None]]] = {}
        self._serial = 0
        self._held_until = float("-inf")
        self.begun = False
        self._stopped = False
        self._paused = False
        self._idle: Callable[[], None] | None = None

    def use(self, policy: Policy, breaker: Breaker) -> None:
        """Replace the policy and the breaker.

        Requests in progress finish with the old settings. Waiting parcels are retried immediately.
        """
        self._policy = self._window.policy = policy
        self._breaker = breaker
        self._pace = Pace(policy.rate)
        for timer in (self._linger, self._reopen):
            if timer is not None:
                timer.cancel()
        self._linger = self._reopen = None
        self._held_until = float("-inf")
        if self.begun and not self._stopped:
            self._hurry()
            self._window.hurry()

    def _hurry(self) -> None:
        """Retry failed parcels now instead of waiting for their delays."""
        waiting, self._timers = self._timers, {}
        for timer, call in waiting.values():
            timer.cancel()
            call()
        self._pump()

    @property
    def paused(self) -> bool:
        """Whether sending is paused."""
        return self._paused

    def pause(self, paused: bool) -> None:
        """Pause or resume sending. When sending resumes, failed parcels are retried at once."""
        self._paused = paused
        if not paused and self.begun and not self._stopped:
            self._held_until = float("-inf")
            self._hurry()
            self._changed()

    # from the queue -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start with the first event in the queue."""
        self._window.begin()
        self.begun = True
        self.wake()

    def wake(self) -> None:
        """Check the queue for new events."""
        if self.begun:
            self._window.wake()

    @property
    def idle(self) -> bool:
        """True if no event is waiting and no request is in progress."""
        return not self._running and self._window.idle

    @property
    def oldest_age(self) -> float:
        """Age of the oldest waiting event in seconds, or 0 if none is waiting.

        While the queue is unreadable, the age is at least the time since it became unreadable.
        """
        times = [self._queue.oldest, self._window.unreadable_at]
        known = [time for time in times if time is not None]
        return max(0.0, self._runtime.time() - min(known)) if known else 0.0

    @property
    def running(self) -> int:
        """Number of requests in progress."""
        return self._running

    @property
    def loaded(self) -> int:
        """Number of events in memory."""
        return self._window.loaded

    @property
    def unreadable_at(self) -> float | None:
        """When the queue became unreadable, in epoch seconds, or None if it can be read."""
        return self._window.unreadable_at

    @property
    def skipped(self) -> int:
        """Approximate number of events left behind in the queue; see `hookmq_webhook.window.Window`."""
        return self._window.skipped

    def _changed(self) -> None:
        self._pump()
        self._window.read()
        self._rest()

    # to the service -------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send as many parcels as possible now."""
        while not self._stopped and not self._paused and self._running < self._policy.concurrency:
            if not self._blocked and not self._window.ready:
                return
            if not self._blocked and self._waits_for_more():
                return
            # Compute the pause before asking the breaker. In the reverse order, the pause could end in between: the
            # breaker would refuse the request, and no timer would be set.
            now = self._runtime.now()
            pause = max(self._held_until - now, self._breaker.opens_in(), self._pace.wait(now))
            ask = self._breaker.ask() if pause <= 0 else None
            if ask is None:
                self._when_closed(pause)
                return
            self._pace.sent(now)
            self._attempt(self._due(), ask)

    def _due(self) -> Parcel:
        """Return the next parcel, alternating between failed and new parcels.

        Without alternation, a few parcels that keep failing would use up every attempt, including those that probe the
        service.
        """
        blocked = bool(self._blocked) and (self._blocked_first or not self._window.ready)
        self._blocked_first = not blocked
        return self._blocked.popleft() if blocked else self._parcel()

    def _waits_for_more(self) -> bool:
        """Return whether to wait for a batch to fill. Sets a timer if so."""
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
                break  # the lane's first event does not fit
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
            seconds = self._runtime.now() - began
            wall = self._runtime.time()
            self.counts.timed(seconds, wall, parcel.events)
            if error is not None or answer is None:
                answer = Answer(Verdict.AGAIN, f"{type(error).__name__}: {error}")
            self._deliveries.add(parcel.events, wall, seconds, parcel.attempts, answer)
            opened = self._breaker.opened
            ask.end(answer.verdict is not Verdict.AGAIN)
            self._answered(parcel, answer)
            if self.health.answered(answer, self._breaker.opened > opened, self._policy):
                self._hurry()
            self._changed()

        self._cancels[serial] = self._runtime.spawn(self._send(parcel.events), answered)

    def _answered(self, parcel: Parcel, answer: Answer) -> None:
        policy = self._policy
        if answer.verdict is Verdict.ARRIVED:
            self.counts.delivered += len(parcel.events)
            self._finish(parcel)
            return
        self.counts.fail(answer.reason)
        oldest = min(one.event.time for one in parcel.events)
        worn = bool(policy.max_attempts) and parcel.attempts >= policy.max_attempts
        old = policy.max_age > 0 and self._runtime.time() - oldest >= policy.max_age
        if answer.verdict is Verdict.GONE:
            parcel.attempts -= 1  # it says nothing about these events
            for lane in parcel.lanes:
                lane.held = True
            self._blocked.append(parcel)
            return
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
            # One event in the batch may be the cause, even if the status does not say so.
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
        delay *= (
            0.5 + self._runtime.random()
        )  # spread out the retries of parcels that failed at the same time
        return max(delay, min(after or 0.0, policy.longest_delay))

    def _again(self, parcel: Parcel) -> None:
        self._blocked.append(parcel)
        self._pump()

    def _take_apart(self, parcel: Parcel, attempts: int) -> None:
        """Split a parcel, so that its events are sent one by one, still in order for each key.

        `attempts` is the number of attempts that each event has used up. At least one attempt is left.
        """
        del self._parcels[parcel]
        for lane in parcel.lanes:
            mine = [one for one in parcel.events if self._key(one) == lane.key]
            lane.events.extendleft(reversed(mine))
            lane.alone, lane.attempts = len(mine), attempts
            lane.busy = lane.held = False
            self._window.offer(lane)

    def _give_up(self, parcel: Parcel, reason: str) -> None:
        """Store a parcel's only event as a dead letter. The lane remains busy until it is stored safely."""
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
        """Resume sending after `seconds`, when the circuit closes or the delay that the service requested has passed.

        Waiting does not count as an attempt. If `seconds` is 0, a request is already probing the service, and sending
        resumes when that request ends.
        """
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

    # stop -----------------------------------------------------------------------------------------------------------

    def drain(self, done: Callable[[], None]) -> None:
        """Send incomplete batches at once, and call `done` once no events are waiting."""
        self._idle = done
        self._pump()
        self._rest()

    def _rest(self) -> None:
        if self._idle is not None and self.idle:
            done, self._idle = self._idle, None
            done()

    def stop(self) -> None:
        """Stop sending, and cancel requests in progress. Their events may or may not have arrived."""
        self._stopped = True
        self._window.stop()
        for timer in (self._linger, self._reopen, *(timer for timer, _ in self._timers.values())):
            if timer is not None:
                timer.cancel()
        self._timers.clear()
        cancels, self._cancels = self._cancels, {}
        for cancel in cancels.values():
            cancel()


__all__ = ["Answer", "Counts", "Dispatcher", "Policy", "Send", "Verdict"]
