"""Limit the number of requests to the service per second."""

from typing import Final

BURST: Final = 0.1
"""Seconds of unused capacity that a later burst of requests may use."""


class Pace:
    """Determines when the next request may be sent. `per_second` is the limit; 0 means no limit."""

    def __init__(self, per_second: float) -> None:
        self._apart = 1.0 / per_second if per_second > 0 else 0.0
        self._slack = max(self._apart, BURST)
        self._next = float("-inf")
        """When the next request would be due if requests were evenly spaced."""

    def wait(self, now: float) -> float:
        """Return the seconds until a request may be sent, or 0 if it may be sent now."""
        if not self._apart:
            return 0.0
        return max(0.0, self._next + self._apart - self._slack - now)

    def sent(self, now: float) -> None:
        """Count a request."""
        if self._apart:
            self._next = max(self._next, now) + self._apart
