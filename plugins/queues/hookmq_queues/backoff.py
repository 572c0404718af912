"""Compute how long a message waits before it is delivered again."""

from dataclasses import dataclass
from math import log
from typing import Literal

from hookmq.plugin import ConfigError, Seconds, setting

MAX_DELAY = 604_800.0
"""The longest delay of a message, in seconds."""
Cause = Literal["nack", "timeout", "lost"]
"""Why a message is delivered again: its consumer asked for it, did not settle it in time, or disconnected."""


@dataclass(frozen=True)
class Backoff:
    """A group's settings for how long to delay messages that are delivered again."""

    initial: Seconds = setting(
        0.0, "delay after the first delivery; 0 means no delay", maximum=MAX_DELAY
    )
    multiplier: float = setting(
        2.0, "factor by which the delay grows with each delivery", minimum=1.0, maximum=100.0
    )
    maximum: Seconds = setting(300.0, "the longest delay", maximum=MAX_DELAY)
    jitter: float = setting(
        0.1, "share of the delay by which it is changed at random, from 0 to 1", minimum=0.0, maximum=1.0
    )  # fmt: skip
    causes: tuple[Cause, ...] = setting(
        ("nack",),
        "what delays a message: nack, timeout (visibility_timeout has passed), lost (the consumer disconnected)",
    )

    def __post_init__(self) -> None:
        if self.initial > self.maximum:
            raise ConfigError(f"initial: {self.initial:g}s is more than maximum, {self.maximum:g}s")

    def delay(self, cause: Cause, deliveries: int, random: float) -> float:
        """Return how many seconds to wait after `deliveries` deliveries. `random` is a number in [0, 1)."""
        if not self.initial or cause not in self.causes:
            return 0.0
        delay, steps = self.maximum, max(0, deliveries - 1)
        if steps * log(self.multiplier) < log(self.maximum / self.initial):  # it would not overflow
            delay = self.initial * self.multiplier**steps
        delay *= 1 + self.jitter * (2 * random - 1)
        return min(delay, self.maximum)
