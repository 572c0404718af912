"""Decide which messages a stream keeps, and report the messages that a group misses."""

from collections.abc import Callable
from typing import Final

from hookmq.plugin import Runtime, Timer

from hookmq_queues.config import RetentionConfig
from hookmq_queues.stream_log import StreamLog

REPEAT: Final = 60.0
"""Seconds between two reports about the same group."""


def first_to_keep(retention: RetentionConfig, log: StreamLog, aged: int, floor: int) -> int:
    """Return the offset of the first message to keep.

    Messages before `aged` are too old. The slowest group has settled all messages before `floor`. Uncommitted messages
    are always kept.
    """
    end = log.visible
    wait = retention.wait_for_groups
    first = max(aged, log.offset_within(retention.bytes, floor + 1 if wait else end))
    if retention.messages:
        first = max(first, end - retention.messages)
    if wait and first > floor:
        first = max(floor, log.offset_within(wait, end))
    return max(log.first, min(first, end))


class MissedMessages:
    """Counts the messages that one group missed, and calls `report` with their number. The first miss is reported at
    once. After that, reports come at most once every `REPEAT` seconds.
    """

    def __init__(self, runtime: Runtime, report: Callable[[int], None]) -> None:
        self._runtime = runtime
        self._report = report
        self._missed = 0
        self._timer: Timer | None = None

    def add(self, number: int) -> None:
        """Count missed messages."""
        self._missed += number
        if self._timer is None:
            self._say()

    def _say(self) -> None:
        self._timer = None
        if self._missed:
            missed, self._missed = self._missed, 0
            self._timer = self._runtime.call_later(REPEAT, self._say)
            self._report(missed)

    def close(self) -> None:
        """Report any messages that have not been reported yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._say()
            if self._timer is not None:
                self._timer.cancel()
