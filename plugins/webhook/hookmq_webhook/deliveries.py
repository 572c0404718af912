"""Keep the latest attempts to send each event, for operators."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from hookmq_toolkit.sinks import SinkDelivery

from hookmq_webhook.parcels import Answer
from hookmq_webhook.queues import Numbered

KEPT: Final = 1000
"""Maximum number of attempts to keep. An attempt with several events counts once for each event."""


class _Attempt(NamedTuple):
    id: str
    type: str
    at: float
    seconds: float
    attempt: int
    answer: Answer


class Deliveries:
    """The latest attempts, in memory. Beyond `KEPT` attempts, the oldest are forgotten."""

    def __init__(self) -> None:
        self._kept: deque[_Attempt] = deque(maxlen=KEPT)

    def add(
        self,
        events: Sequence[Numbered],
        at: float,
        seconds: float,
        attempt: int,
        answer: Answer,
    ) -> None:
        """Record an attempt that ended at `at`, in epoch seconds, and took `seconds`."""
        self._kept.extend(
            _Attempt(one.id, one.event.type, at, seconds, attempt, answer) for one in events[-KEPT:]
        )

    def latest(self, event: str = "") -> Iterator[SinkDelivery]:
        """Yield attempts, newest first: all of them, or those for the event with the id `event`."""
        for one in reversed(tuple(self._kept)):
            if not event or one.id == event:
                yield SinkDelivery(
                    one.id,
                    one.type,
                    one.at,
                    one.seconds,
                    one.attempt,
                    one.answer.verdict.value,
                    one.answer.reason,
                )
