"""A circuit breaker: a service that is down is not asked again and again, but now and then whether it is back. For
plugins that ask or tell one."""

from collections.abc import Callable
from typing import Final

LONGEST: Final = 8
"""Times the first pause that the longest may be."""


class Breaker:
    """Closed while the service answers. After `failures` in a row it is open for `pause` seconds: `ask` gives no leave.
    Then one request may try; if that fails it opens again, for twice as long, up to eight times `pause`."""

    def __init__(self, failures: int, pause: float, now: Callable[[], float]) -> None:
        self._limit = failures
        self._pause = pause
        self._now = now
        self._failed = 0
        self._until = 0.0
        self._next = pause
        self._probing = False
        self.opened = 0
        """How often it opened."""

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        if self._failed < self._limit:
            return "closed"
        return "open" if self._now() < self._until else "half-open"

    def ask(self) -> "Ask | None":
        """Leave to ask now, or None. Whoever gets it says how it ended, once."""
        state = self.state
        if state == "open" or (state == "half-open" and self._probing):
            return None
        probe = state == "half-open"
        self._probing = self._probing or probe
        return Ask(self, probe)

    def opens_in(self) -> float:
        """Seconds until somebody may ask; 0 when that is now."""
        return max(0.0, self._until - self._now()) if self._failed >= self._limit else 0.0

    def ended(self, probe: bool, good: bool | None) -> None:
        """A request ended: answered, not answered, or nobody knows (None)."""
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
    """Leave for one request."""

    def __init__(self, breaker: Breaker, probe: bool) -> None:
        self._breaker: Breaker | None = breaker
        self._probe = probe

    def end(self, good: bool | None) -> None:
        """Say how it ended; later words do not count. None: it was given up, and nothing is known."""
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker.ended(self._probe, good)
