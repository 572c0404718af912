"""Load averages as mosquitto computes them: exponentially decaying rates per minute."""

from math import exp
from typing import Final

MINUTES: Final = (1, 5, 15)


class LoadAverage:
    """One counter's rates per minute, averaged over about 1, 5 and 15 minutes."""

    __slots__ = ("_before", "rates")

    def __init__(self, count: float = 0.0) -> None:
        self._before = count
        self.rates = [0.0] * len(MINUTES)

    def update(self, count: float, seconds: float) -> None:
        """Update the rates with the counter's value, `seconds` after the last update."""
        if seconds <= 0:
            return
        rate = (count - self._before) * 60 / seconds
        self._before = count
        for at, minutes in enumerate(MINUTES):
            keep = exp(-seconds / (60 * minutes))
            self.rates[at] = rate + keep * (self.rates[at] - rate)
