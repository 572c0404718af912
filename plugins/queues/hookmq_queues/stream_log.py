"""A stream's log. It is a queue's log that keeps settled messages and finds offsets by time."""

from bisect import bisect_left
from pathlib import Path
from threading import Lock
from typing import Final

from hookmq.plugin import Message, Runtime
from hookmq.storage_api import CommitId
from hookmq_toolkit.message_frames import decode_frame
from hookmq_toolkit.segment_log import Frame, Segment, Trimmed

from hookmq_queues.config import QueueConfig
from hookmq_queues.storage import PAGE, QueueLog

_ATTEMPTS: Final = 8
"""Maximum number of attempts for a search, if the segment that it reads is deleted."""


class StreamLog(QueueLog):
    """A stream's messages on disk. `first` is the offset of the first message that retention keeps."""

    def __init__(
        self, config: QueueConfig, path: Path, runtime: Runtime, sync: bool = True, plugin: str = "queues"
    ) -> None:  # fmt: skip
        super().__init__(config, path, runtime, sync, plugin)
        self.first = 0
        self.replacing = Lock()
        """Held while a segment is read, and while it is replaced."""

    def recover(self, last: CommitId) -> None:
        """Open the folder, as `QueueLog.recover` does."""
        super().recover(last)
        self.first = self.log.earliest

    @property
    def earliest(self) -> int:
        """The offset of the first remaining message."""
        return max(self.first, self.log.earliest)

    def _remember(self, offset: int, message: Message, size: int) -> None:
        """Keep a new message in memory. If there is no room, the oldest message leaves memory, because most groups read
        the newest ones.
        """
        self._cache[offset] = (message, size)
        self._cached += size
        while self._cached > self.config.memory and self._cache:
            self._forget_first()

    def _frames(self, offset: int, size: int = PAGE) -> list[Frame]:
        with self.replacing:
            return self.log.read(offset, size)

    # retention -------------------------------------------------------------------------------------------------------

    def offset_within(self, limit: int, end: int) -> int:
        """Return the lowest offset such that the messages from there to the log's end have at most `limit` bytes in
        total. Search no further than `end`.

        Sizes are known only for short runs of messages. The result may therefore be too high, by up to the length of
        one run.
        """
        left, first = self.bytes, self.first
        for after, size in self._sizes:
            if left <= limit or first >= end:
                break
            left -= size
            first = after
        return first

    def keep_from(self, first: int) -> None:
        """Drop the messages before `first`. Delete segments that contain only such messages."""
        self.first = max(self.first, first)
        self.settle(self.first)

    def measure_closed(self) -> None:
        """Measure closed segments again, because compaction has changed their sizes."""
        segments = self.log.segments
        if len(segments) > 1:
            self._measure(segments[-1].base)
            self.settle(self.first)

    # times -----------------------------------------------------------------------------------------------------------

    def find_time(self, wanted: float) -> int:
        """Return the offset of the first message received at or after `wanted`, in epoch seconds. If there is none,
        return the offset of the next message.

        This call blocks, and may run in any thread. It uses bisection and reads only a few blocks of the log. Raises
        StoreError. If the broker's clock was set back, messages from that time may be missed.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._find_time(wanted)
            except Trimmed:
                continue
        return self.log.earliest

    def time_of_last_segment(self) -> float:
        """Return when the first message of the last segment was received, or infinity if there is none. This call
        blocks.
        """
        return self._time_from(self.log.segments[-1].base)

    def _find_time(self, wanted: float) -> int:
        segments = list(self.log.segments)
        at = bisect_left(segments, wanted, key=lambda one: self._time_from(one.base)) - 1
        if at < 0:
            return max(self.first, segments[0].base)
        offset = self._place_before(segments[at], wanted)
        while frame := self._frame(offset):
            for found, message in decode_frame(frame)[0]:
                if message.received_at >= wanted:
                    return max(self.first, found)
            offset = frame.end
        return max(self.first, offset)

    def _place_before(self, segment: Segment, wanted: float) -> int:
        places = list(segment.offsets)
        at = bisect_left(places, wanted, key=self._time_from)
        return places[max(0, at - 1)] if places else segment.base

    def _time_from(self, offset: int) -> float:
        """Return when the first remaining message at or after `offset` was received."""
        while frame := self._frame(offset):
            for at, message in decode_frame(frame)[0]:
                if at >= offset:
                    return message.received_at
            offset = frame.end
        return float("inf")

    def _frame(self, offset: int) -> Frame | None:
        """Return the block that contains `offset`, or None if there is none."""
        if offset >= self.log.readable:
            return None
        frames = self._frames(offset, 1)
        return frames[0] if frames else None
