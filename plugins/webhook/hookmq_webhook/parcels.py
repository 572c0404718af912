"""What is sent, and what becomes of it: lanes of waiting events, parcels of those on their way, answers."""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hookmq_webhook.queues import Numbered


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

    __slots__ = (
        "alone",
        "attempts",
        "busy",
        "events",
        "held",
        "key",
        "queued",
        "resume",
        "skipped",
    )

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
        self.skipped = 0
        """How many those are, or were, about."""


class Parcel:
    """Events on their way, and the lanes that they are of."""

    __slots__ = ("attempts", "delivered", "events", "lanes")

    def __init__(self, events: list[Numbered], lanes: list[Lane], attempts: int = 0) -> None:
        self.events = events
        self.lanes = lanes
        self.attempts = attempts
        self.delivered = -1
        """Events that had arrived when it failed first."""
