"""The feed: reads a sink's log and gives its records to the lanes."""

import asyncio
from collections.abc import Callable
from zlib import crc32

from hookmq.plugin import Message, StoreError
from hookmq_toolkit.message_columns import decode_columns, read_columns
from hookmq_toolkit.segment_log import Frame, LogTail, Trimmed

from hookmq_sinks.lane import Lane
from hookmq_sinks.lane_queue import Entry
from hookmq_sinks.record_maker import RecordMaker
from hookmq_sinks.record_run import RecordRun
from hookmq_sinks.record_template import RecordError

AGAIN = 5.0
"""Seconds after which an unreadable log is read again."""


class Feed:
    """Reads the log from `start` on, about `size` bytes at a time. Messages below `end` are committed, and `advance`
    raises `end`.
    """

    def __init__(
        self, tail: LogTail, maker: RecordMaker, lanes: list[Lane], name: str, start: int, end: int, size: int,
        log: Callable[..., None],
    ) -> None:  # fmt: skip
        self.read_to = start
        self.end = end
        self.failure = ""
        """Why the log cannot be read, or ''."""
        self.missing = 0
        """The number of messages that were deleted before they were read."""
        self._tail = tail
        self._maker = maker
        self._lanes = lanes
        self._name = name
        self._size = size
        self._log = log
        self._more = asyncio.Event()
        self._whole = maker.plain and len(lanes) == 1
        """Whether the lane gets whole runs instead of single records."""

    def advance(self, end: int) -> None:
        """Record that messages below `end` are committed."""
        if end > self.end:
            self.end = end
            self._more.set()

    @property
    def low(self) -> int:
        """The offset of the first message that is not done."""
        return min((one.low for one in self._lanes if one.low is not None), default=self.read_to)

    async def run(self) -> None:
        """Read until the task is cancelled."""
        while True:
            if self.read_to >= self.end:
                self._more.clear()
                await self._more.wait()
                continue
            for lane in self._lanes:
                await lane.room()
            try:
                frames = await asyncio.to_thread(
                    self._tail.read, self.read_to, self.end, self._size
                )
                for frame in frames:
                    self._add(frame)
                self.failure = ""
            except Trimmed as error:
                self.missing += error.earliest - self.read_to
                self._log(
                    "warning", "sinks.messages_dropped", messages=error.earliest - self.read_to,
                    first=self.read_to,
                )  # fmt: skip
                self.read_to = error.earliest
                continue
            except StoreError as error:
                if self.failure != str(error):
                    self.failure = str(error)
                    self._log("error", "sinks.log_unreadable", reason=self.failure)
                await asyncio.sleep(AGAIN)
                continue

    def _add(self, frame: Frame) -> None:
        now = asyncio.get_running_loop().time()
        offset = frame.offset
        try:
            if self._whole:
                columns = read_columns(frame.payload)
                start = max(0, self.read_to - offset)
                if start < len(columns):
                    self._lanes[0].add(
                        RecordRun(
                            self._maker, columns, offset, start, len(columns), self._name, now
                        )
                    )
            else:
                self._add_each(decode_columns(frame.payload), offset, now)
        except ValueError as error:
            raise StoreError(f"record {offset}: {error}") from error
        self.read_to = frame.end

    def _add_each(self, messages: list[Message], offset: int, now: float) -> None:
        lanes, count, maker = self._lanes, len(self._lanes), self._maker
        for message in messages:
            if offset >= self.read_to:
                record = maker.bare(message, self._name, offset)
                reason = ""
                try:
                    maker.complete(record)
                except RecordError as error:
                    reason = str(error)
                except Exception as error:  # no payload may stop the sink
                    reason = f"cannot be decoded: {type(error).__name__}: {error}"
                lane = lanes[
                    crc32((record.key or record.topic).encode()) % count if count > 1 else 0
                ]
                lane.add(Entry(record, reason, len(record.payload) + len(record.topic), now))
            offset += 1
