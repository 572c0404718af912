"""Define lanes of waiting events, parcels of events that are sent together, and the results of sending them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.queues import Numbered

Buried = Callable[[str], None]
"""Called with '' when a dead letter is stored safely, or with the reason why it could not be stored."""
Bury = Callable[[Numbered, str, int, Buried], None]
"""Store an event as a dead letter. The arguments are the event, the reason, the number of attempts, and a callback."""


class Verdict(Enum):
    """The outcome of an attempt to send events."""

    ARRIVED = "arrived"
    AGAIN = "again"
    """The service cannot accept the events now; retry later."""
    REFUSED = "refused"
    """The service will never accept these events."""
    GONE = "gone"
    """The service is gone for good, so no more events are sent."""


class Answer(NamedTuple):
    """The result of an attempt: a verdict, its reason, and the delay in seconds that the service requested."""

    verdict: Verdict
    reason: str = ""
    after: float | None = None

    @property
    def error(self) -> str:
        """Why the events did not arrive, or ''."""
        return "" if self.verdict is Verdict.ARRIVED else self.reason or self.verdict.value


@dataclass(frozen=True)
class Policy:
    """Settings for sending events. Times are in seconds. A `max_age` of 0 means no limit."""

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
    """Maximum number of attempts; 0 means no limit."""
    rate: float = 0.0
    """Maximum number of requests per second; 0 means no limit."""
    disable_after: float = 0.0
    """Seconds of failure after which nothing more is sent; 0 means never."""


def policy_of(config: WebhookConfig) -> Policy:
    """Return the policy that a configuration describes."""
    retry, batch = config.retry, config.batch
    return Policy(
        batch.count,
        batch.bytes,
        batch.linger,
        config.concurrency,
        config.window,
        config.window_bytes,
        retry.first_delay,
        retry.longest_delay,
        retry.max_age,
        retry.max_attempts,
        config.rate,
        config.disable.after,
    )


class Lane:
    """The waiting events of one key, in order."""

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
        """Number of events at the start of the lane that are sent one by one."""
        self.attempts = 0
        """Number of attempts that these events have already used up."""
        self.held = False
        """True if the lane's last parcel failed."""
        self.resume: int | None = None
        """Number from which the lane's events are only in the queue, not in memory. None if the lane is not behind."""
        self.skipped = 0
        """Approximate number of the lane's events that are only in the queue."""


class Parcel:
    """Events that are sent together, with their lanes."""

    __slots__ = ("attempts", "delivered", "events", "lanes")

    def __init__(self, events: list[Numbered], lanes: list[Lane], attempts: int = 0) -> None:
        self.events = events
        self.lanes = lanes
        self.attempts = attempts
        self.delivered = -1
        """Total number of delivered events when this parcel first failed; -1 if it has not failed."""
