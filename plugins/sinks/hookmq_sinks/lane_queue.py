"""The queue of a lane: entries and runs of records, in offset order."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from hookmq_sinks.record import Record
from hookmq_sinks.record_run import RecordRun, RunRecords


class Entry(NamedTuple):
    """A waiting record, the reason why it cannot be written ('' if it can), its size, and the time when it was read."""

    record: Record
    reason: str
    size: int
    at: float


class Taken(NamedTuple):
    """The first records of a queue: those that can be written, those that cannot with the reasons, and the offset after
    the last one.
    """

    good: Sequence[Record]
    dead: list[tuple[Record, str]]
    end: int


class LaneQueue:
    """Holds `count` records with `bytes` bytes of payloads and topics. Records leave it in the order of their offsets."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._items: deque[Entry | RecordRun] = deque()

    def __len__(self) -> int:
        return self.count

    def add(self, item: Entry | RecordRun) -> None:
        """Add an entry or a run. Its offsets must be higher than those of earlier items."""
        self._items.append(item)
        if isinstance(item, RecordRun):
            self.count += len(item)
        else:
            self.count += 1
        self.bytes += item.size

    @property
    def first(self) -> int | None:
        """The offset of the first record, or None if the queue is empty."""
        if not self._items:
            return None
        item = self._items[0]
        return item.first if isinstance(item, RecordRun) else item.record.offset

    @property
    def received_at(self) -> float | None:
        """The time when the broker received the first message, or None if the queue is empty."""
        if not self._items:
            return None
        item = self._items[0]
        if isinstance(item, RecordRun):
            return item.columns.times[item.start]
        return item.record.received_at

    @property
    def read_at(self) -> float:
        """The time when the first message was read, on the event loop's clock. The queue must not be empty."""
        return self._items[0].at

    def fitting(self, messages: int, size: int) -> int:
        """Return how many records fit into a batch of at most `messages` records and `size` bytes. At least one does,
        however large it is.
        """
        if self.bytes <= size:
            return min(self.count, messages)
        count = used = 0
        for item in self._items:
            if isinstance(item, Entry):
                sizes = [item.size]
            elif used + item.size <= size:
                used += item.size
                count += len(item)
                continue
            else:
                sizes = [item.size_of(row) for row in range(item.start, item.stop)]
            for one in sizes:
                used += one
                if count and used > size:
                    return min(count, messages)
                count += 1
            if count >= messages:
                break
        return min(count, messages)

    def peek(self, count: int) -> Taken:
        """Return the first `count` records, which must exist. They stay in the queue."""
        good: list[Record] = []
        dead: list[tuple[Record, str]] = []
        runs: list[RecordRun] = []
        end, left = 0, count
        for item in self._items:
            if not left:
                break
            if isinstance(item, Entry):
                if item.reason:
                    dead.append((item.record, item.reason))
                else:
                    good.append(item.record)
                end = item.record.offset + 1
                left -= 1
            else:
                run = item if len(item) <= left else item.part(item.start, item.start + left)
                runs.append(run)
                end = run.end
                left -= len(run)
        if not runs:
            return Taken(good, dead, end)
        if not good:
            return Taken(RunRecords(runs), dead, end)
        good += [record for run in runs for record in run]
        good.sort(key=lambda one: one.offset)
        return Taken(good, dead, end)

    def drop_below(self, offset: int) -> None:
        """Remove the records below `offset`."""
        items = self._items
        while items:
            item = items[0]
            if isinstance(item, Entry):
                if item.record.offset >= offset:
                    return
                removed, size = 1, item.size
                items.popleft()
            elif item.end <= offset:
                removed, size = len(item), item.size
                items.popleft()
            elif item.first < offset:
                rest = item.part(offset - item.base, item.stop)
                removed, size = len(item) - len(rest), item.size - rest.size
                items[0] = rest
            else:
                return
            self.count -= removed
            self.bytes -= size

    def refuse_first(self, reason: str) -> None:
        """Set the reason why the first record cannot be written. The queue must not be empty."""
        item = self._items[0]
        if isinstance(item, Entry):
            self._items[0] = item._replace(reason=reason)
            return
        if len(item) == 1:
            self._items.popleft()
        else:
            self._items[0] = item.part(item.start + 1, item.stop)
        size = item.size_of(item.start)
        self._items.appendleft(Entry(item.record(item.start), reason, size, item.at))


__all__ = ["Entry", "LaneQueue", "Taken"]
