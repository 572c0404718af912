"""Rate limits for clients. A packet above a limit waits, is refused or is dropped before other hooks see it.

A plugin's `provide_rate_limiter` returns a `RateLimiter` for each new client, or None. The broker consults it for
every PUBLISH and subscription from the client, and for every message sent to the client. A rate limiter must not
block. If a packet must wait, the broker holds it until the limiter resumes it. Later packets wait behind a held
PUBLISH, except acknowledgements and PINGREQ. A held packet never times out. An exception raised by a rate limiter
closes the connection.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hookmq.hooks.verdicts import Deny, Drop
from hookmq.model.runtime import Cancel


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """A refusal by a rate limit. `limit` is the name of the limit, as `on_dropped` and `on_denied` see it. `verdict`
    decides what the client receives.
    """

    limit: str
    verdict: Deny | Drop


Resume = Callable[[LimitExceeded | None], None]
"""Resumes a waiting PUBLISH if called with None; otherwise refuses it."""


class PublishLimit(ABC):
    """The limit on publishes to a topic. The broker checks one PUBLISH at a time, in order."""

    __slots__ = ()

    @abstractmethod
    def take(self, size: int) -> bool:
        """Count a PUBLISH and return True, or return False if it exceeds the limit. `size` is its Remaining Length.

        The broker calls this method for every message, so it should take well under a microsecond.
        """

    @abstractmethod
    def over(self, size: int, qos: int, go: Resume) -> Cancel | LimitExceeded:
        """Refuse a PUBLISH that `take` did not accept, or make it wait.

        To make it wait, return a `Cancel` and call `go` in a later turn. Pass None to `go` once the PUBLISH has been
        counted, or a `LimitExceeded` to refuse it. The broker calls the `Cancel` if the client disconnects.
        """


class DeliveryLimit(ABC):
    """The limit on messages sent to a client."""

    __slots__ = ()

    drops: bool = False
    """Whether QoS 0 messages above the limit are dropped instead of waiting."""

    @abstractmethod
    def ready(self) -> bool:
        """Return whether a message may be sent now."""

    @abstractmethod
    def sent(self) -> None:
        """Count a message. The broker calls this method after `ready` has returned True."""

    @abstractmethod
    def wait(self, go: Callable[[], None]) -> Cancel:
        """Call `go` in a later turn, once `ready` returns True. Return a function that cancels the wait."""

    @abstractmethod
    def dropped(self) -> str:
        """Count a dropped QoS 0 message. Return the name of the limit."""


class RateLimiter:
    """The rate limits for one client's connection. This base class sets no limits."""

    __slots__ = ()

    delivery_limit: DeliveryLimit | None = None
    """The limit on messages to the client; None for no limit."""

    def publish_limit(self, topic: str) -> PublishLimit | None:
        """Return the limit on publishes to `topic`, or None. The result is cached for as long as the permission to
        publish."""
        return None

    def subscribe(self, filter: str) -> LimitExceeded | None:
        """Count one more subscription and return None, or return a refusal."""
        return None


class _PublishLimits(PublishLimit):
    """The publish limits of several plugins, checked in order. Each limit counts a message only once, even if a later
    limit makes it wait.
    """

    __slots__ = ("_limits", "_paid")

    def __init__(self, limits: Sequence[PublishLimit]) -> None:
        self._limits = tuple(limits)
        self._paid = 0

    def take(self, size: int) -> bool:
        limits = self._limits
        while self._paid < len(limits):
            if not limits[self._paid].take(size):
                return False
            self._paid += 1
        self._paid = 0
        return True

    def over(self, size: int, qos: int, go: Resume) -> Cancel | LimitExceeded:
        waiting: list[Cancel] = []

        def paid(refusal: LimitExceeded | None) -> None:
            if refusal is None:
                self._paid += 1
                if self.take(size):
                    go(None)
                    return
                answer = self._limits[self._paid].over(size, qos, paid)
                if not isinstance(answer, LimitExceeded):
                    waiting[0] = answer
                    return
                refusal = answer
            self._paid = 0
            go(refusal)

        answer = self._limits[self._paid].over(size, qos, paid)
        if isinstance(answer, LimitExceeded):
            self._paid = 0
            return answer
        waiting.append(answer)

        def cancel() -> None:
            self._paid = 0
            waiting[0]()

        return cancel


class _DeliveryLimits(DeliveryLimit):
    """The delivery limits of several plugins. A message may be sent once all of them are ready."""

    __slots__ = ("_limits", "drops")

    def __init__(self, limits: Sequence[DeliveryLimit]) -> None:
        self._limits = tuple(limits)
        self.drops = any(limit.drops for limit in limits)

    def ready(self) -> bool:
        return self._late() is None

    def _late(self) -> DeliveryLimit | None:
        return next((limit for limit in self._limits if not limit.ready()), None)

    def sent(self) -> None:
        for limit in self._limits:
            limit.sent()

    def wait(self, go: Callable[[], None]) -> Cancel:
        return (self._late() or self._limits[0]).wait(go)

    def dropped(self) -> str:
        return (self._late() or self._limits[0]).dropped()


class RateLimiters(RateLimiter):
    """The rate limiters of several plugins, combined into one."""

    __slots__ = ("_limiters", "_limits", "delivery_limit")

    def __init__(self, limiters: Sequence[RateLimiter]) -> None:
        self._limiters = tuple(limiters)
        self._limits: dict[tuple[PublishLimit, ...], _PublishLimits] = {}
        limits = [one.delivery_limit for one in limiters if one.delivery_limit is not None]
        self.delivery_limit = None
        if limits:
            self.delivery_limit = limits[0] if len(limits) == 1 else _DeliveryLimits(limits)

    def publish_limit(self, topic: str) -> PublishLimit | None:
        limits = (limiter.publish_limit(topic) for limiter in self._limiters)
        found = tuple(limit for limit in limits if limit is not None)
        if len(found) < 2:
            return found[0] if found else None
        # The object remembers which limits accepted a waiting message, so return the same one again.
        known = self._limits.get(found)
        if known is None:
            if len(self._limits) >= 64:
                self._limits.clear()
            known = self._limits[found] = _PublishLimits(found)
        return known

    def subscribe(self, filter: str) -> LimitExceeded | None:
        for limiter in self._limiters:
            over = limiter.subscribe(filter)
            if over is not None:
                return over
        return None
