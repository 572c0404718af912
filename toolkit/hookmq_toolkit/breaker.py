"""A circuit breaker for failing services.

While a service is down, the breaker allows only an occasional request, to find out whether it is back.
"""

from collections.abc import Callable
from typing import Final

LONGEST: Final = 8
"""The longest pause, as a multiple of the first."""


class Breaker:
    """Counts the failures of one service, and stops requests while it is down.

    The breaker is closed while the service responds. After `failures` consecutive failures it opens for `pause` seconds,
    and `ask` returns None. It is then half-open and allows one request. If that request fails, the breaker opens again
    for twice as long, up to eight times `pause`. `now` is a function that returns the current time in seconds. The class
    is not thread-safe.
    """

    def __init__(self, failures: int, pause: float, now: Callable[[], float]) -> None:
        self._limit = failures
        self._pause = pause
        self._now = now
        self._failed = 0
        self._until = 0.0
        self._next = pause
        self._probing = False
        self.opened = 0
        """How many times the breaker has opened."""

    @property
    def state(self) -> str:
        """The breaker's state: ``closed``, ``open`` or ``half-open``."""
        if self._failed < self._limit:
            return "closed"
        return "open" if self._now() < self._until else "half-open"

    def ask(self) -> "Ask | None":
        """Return an `Ask` if a request is allowed now, otherwise None. Call its `end` when the request has ended."""
        state = self.state
        if state == "open" or (state == "half-open" and self._probing):
            return None
        probe = state == "half-open"
        self._probing = self._probing or probe
        return Ask(self, probe)

    def opens_in(self) -> float:
        """Return the seconds until a request is allowed, or 0 if it is allowed now."""
        return max(0.0, self._until - self._now()) if self._failed >= self._limit else 0.0

    def ended(self, probe: bool, good: bool | None) -> None:
        """Record the result of a request; see `Ask.end`."""
        if probe:
            self._probing = False
        if good:
            self._failed = 0
            self._next = self._pause
        elif good is False and (probe or self._failed < self._limit):
            self._failed = min(self._failed + 1, self._limit)
            if self._failed == self._limit:
                self._until = self._now() + self._next
                self._next = min(self._next * 2, self._pause * LONGEST)
                self.opened += 1


class Ask:
    """The permission for one request."""

    def __init__(self, breaker: Breaker, probe: bool) -> None:
        self._breaker: Breaker | None = breaker
        self._probe = probe

    def end(self, good: bool | None) -> None:
        """Report whether the service responded. Pass None if the request was abandoned. Only the first call counts."""
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker.ended(self._probe, good)
