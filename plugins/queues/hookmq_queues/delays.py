"""Store delayed messages in a separate log, and move each to its queue's log when it is due.

A message gets its offset in the queue only when it moves. It therefore does not hold up other messages, and every group
sees it at the same position. One commit contains both the message in the queue and its (due, offset) in the plugin's
state. Messages move in the order of these pairs, so the last stored pair shows which messages have moved.

A delayed message takes about 150 bytes of memory, regardless of its size.
"""

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, Final, Protocol

from hookmq.plugin import BrokerHandle, Message, PluginError, Runtime, StoreError, Timer
from hookmq_toolkit.message_record import decode_block, size_of
from hookmq_toolkit.segment_log import Segment

from hookmq_queues.config import QueueConfig
from hookmq_queues.properties import due_of, with_due
from hookmq_queues.storage import QueueLog
from hookmq_queues.topics import queue_of

BATCH: Final = 256
"""Maximum number of one queue's messages that move in one turn."""
LONGEST: Final = 3600.0
"""Maximum seconds between checks of the due times, because the clock may be changed."""
PAUSE: Final = 1.0
"""Seconds until a full queue or a failed read is retried."""
_FOLDER: Final = "delayed"
_KEY: Final = "delayed/"
_STATE: Final = struct.Struct("<dQQ")
"""The due time and offset of the last message that has moved, and the first offset that may still exist."""

Place = tuple[float, int]
"""Due time in epoch seconds, and offset in the log of delayed messages."""


class DelayLog(QueueLog):
    """The delayed messages of all queues. This journal takes no published messages: only `Delays.add` appends to it."""

    def __init__(
        self, path: Path, runtime: Runtime, sync: bool = True, plugin: str = "queues"
    ) -> None:
        config = QueueConfig(_FOLDER, max_bytes=32 << 20, memory=4 << 20)
        super().__init__(config, path / f".{_FOLDER}", runtime, sync, plugin)
        self.name = f"{plugin}: delayed messages"
        self._moved: Counter[int] = Counter()
        """Number of messages that have moved from each segment, by the segment's first offset."""
        self.owners: Callable[[], Iterable[Delays]] = tuple
        """Returns the delayed messages of all queues."""
        self._tidying = False

    def wants(self, topic: str) -> bool:
        """Return False, because this journal does not take published messages."""
        return False

    def moved(self, offsets: Sequence[int]) -> None:
        """Record that messages have left this log. Delete segments at the log's start that are now empty."""
        segments = list(self.log.segments)
        for offset in offsets:
            self.forget(offset)
            at = bisect_right(segments, offset, key=_base) - 1
            self._moved[segments[max(0, at)].base] += 1
        floor = segments[0].base
        for one in segments[:-1]:
            if self._moved[one.base] < one.end - one.base:
                break
            floor = one.end
        for base in [one for one in self._moved if one < segments[0].base]:
            del self._moved[base]
        if floor > segments[0].base:
            self.settle(floor)

    def tidy(self) -> None:
        """If most of this log is no longer needed, append the first segment's remaining messages again. Otherwise, a
        message with a long delay would keep all later messages on disk.
        """
        segments, owners = self.log.segments, list(self.owners())
        wanted = 2 * sum(one.bytes for one in owners) + 4 * self.log.segment_size
        if self._tidying or len(segments) < 2 or self.log.size <= wanted:
            return
        end = segments[1].base
        offsets = [offset for one in owners for offset in one.below(end)]
        if offsets:
            self._tidying = True
            self.fetch(offsets, partial(self._tidy, owners, end))

    def _tidy(
        self, owners: "list[Delays]", end: int, messages: Mapping[int, Message], error: str
    ) -> None:
        self._tidying = False
        if not error and not self._closed:  # an error is reported when the message is due
            self.hold()
            for one in owners:
                one.renew(end, messages)

    def fetch(
        self, offsets: Sequence[int], done: Callable[[Mapping[int, Message], str], None]
    ) -> None:
        """Call `done` with the messages at `offsets`, or with an error."""
        found: dict[int, Message] = {}
        missing: list[int] = []
        for offset in offsets:
            message = self.get(offset)
            if message is None:
                missing.append(offset)
            else:
                found[offset] = message

        def fetched(result: Any, error: BaseException | None) -> None:
            done(found if error is not None else {**found, **result}, str(error or ""))

        if missing:
            self._runtime.run_blocking(partial(self._fetch, sorted(missing)), fetched)
        else:
            done(found, "")

    def _fetch(self, offsets: list[int]) -> dict[int, Message]:
        """Return the messages at `offsets`, which must be sorted. This runs in a thread."""
        found: dict[int, Message] = {}
        block: dict[int, Message] = {}
        for offset in offsets:
            if offset not in block:
                block = {}
                for frame in self.log.read(offset, 1):
                    block.update(enumerate(decode_block(frame.payload), frame.offset))
            if offset not in block:
                raise StoreError(f"the message {offset} is missing")
            found[offset] = block[offset]
        return found


def _base(segment: Segment) -> int:
    return segment.base


class Target(Protocol):
    """The queue that delayed messages move to."""

    def release(self, message: Message) -> bool:
        """Store a due message in this turn's commit. Return False if the queue is full."""

    def restored(self, message: Message) -> None:
        """Take over a message that was added before the restart."""


class Delays:
    """The delayed messages of one queue."""

    def __init__(
        self, config: QueueConfig, log: DelayLog, broker: BrokerHandle, target: Target
    ) -> None:
        self.bytes = 0
        """The size of the messages."""
        self._config = config
        self._log = log
        self._broker = broker
        self._target = target
        self._key = _KEY + config.name
        self._waiting: list[Place] = []
        """A heap of the messages that are waiting."""
        self._moving: list[Place] = []
        """Messages that are being read."""
        self._last: Place = (0.0, 0)
        """The last message that has moved or is being read. All messages before it have moved, too."""
        self._stored: Place = (0.0, 0)
        """The last message that has moved."""
        self._first = 0
        self._timer: Timer | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._moving)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another message."""
        return len(self) >= self._config.max_delayed or self.bytes >= self._config.max_bytes

    @property
    def next_due(self) -> float | None:
        """When the first message is due, in epoch seconds."""
        places = self._moving or self._waiting
        return places[0][0] if places else None

    def add(self, message: Message, due: float) -> None:
        """Store a message until `due`, in this turn's commit."""
        offset = self._log.end
        if (due, offset) <= self._last:  # the clock was set back
            due = self._last[0]
            message = with_due(message, due)
        self._broker.append(self._log, message)
        self.bytes += size_of(message)
        heappush(self._waiting, (due, offset))
        if self._waiting[0][1] == offset:
            self.wake()

    # moving ----------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Check whether the first message is due. Call this when it is new or has been committed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed or self._moving or not self._waiting:
            return
        due, offset = self._waiting[0]
        wait = due - self._broker.time()
        if wait <= 0 and offset >= self._log.visible:
            return  # the end of the commit wakes it
        runtime = self._broker.runtime
        self._timer = runtime.call_later(max(0.0, min(wait, LONGEST)), self._read)

    def _read(self) -> None:
        """Read the messages that are due."""
        self._timer = None
        waiting, now, visible = self._waiting, self._broker.time(), self._log.visible
        while waiting and len(self._moving) < BATCH and waiting[0][0] <= now:
            if waiting[0][1] >= visible:
                break
            self._moving.append(heappop(waiting))
        if not self._moving:
            self.wake()
            return
        self._last = max(self._last, self._moving[-1])
        offsets = [offset for _, offset in self._moving]
        self._log.fetch(offsets, partial(self._move, self._moving))

    def _move(self, places: list[Place], messages: Mapping[int, Message], error: str) -> None:
        if self._closed or self._moving is not places:
            return  # `clear` was called meanwhile
        self._moving = []
        if error:
            self._broker.log("error", "queue.delayed_unreadable", queue=self._config.name, error=error)  # fmt: skip
            self._again(places)
            return
        self._log.hold()
        moved: list[int] = []
        for _, offset in places:
            if not self._target.release(messages[offset]):
                break
            moved.append(offset)
            self.bytes -= size_of(messages[offset])
        if moved:
            self._stored = places[len(moved) - 1]
            self._save()
            self._log.moved(moved)
            self._log.tidy()
        if len(moved) < len(places):
            self._again(places[len(moved) :])
        else:
            self.wake()

    def _again(self, places: list[Place]) -> None:
        """Try to move these messages again later."""
        for one in places:
            heappush(self._waiting, one)
        if self._timer is None:
            self._timer = self._broker.runtime.call_later(PAUSE, self._read)

    def below(self, end: int) -> list[int]:
        """Return the log offsets of the messages that are stored before `end`."""
        return [offset for _, offset in self._waiting if offset < end]

    def renew(self, end: int, messages: Mapping[int, Message]) -> None:
        """Append the messages stored before `end` to the log a second time, in this turn's commit."""
        old = sorted(one for one in self._waiting if one[1] < end)
        if not old or self._closed or any(offset < end for _, offset in self._moving):
            return
        self._waiting = [one for one in self._waiting if one[1] >= end]
        heapify(self._waiting)
        for due, offset in old:
            self.bytes -= size_of(messages[offset])
            self.add(messages[offset], due)
        self._first = end
        self._save()
        self._log.moved([offset for _, offset in old])

    def _save(self) -> None:
        try:
            self._broker.state.put(self._key, _STATE.pack(*self._stored, self._first))
        except PluginError as error:  # after a crash, these messages move again
            self._broker.log(
                "error", "queue.state_not_stored",
                queue=self._config.name, group="", error=str(error),
            )  # fmt: skip

    def configure(self, config: QueueConfig) -> None:
        """Apply new settings."""
        self._config = config

    # life cycle ------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read which messages have already moved. Raises StoreError if the state is damaged."""
        stored = self._broker.state.get(self._key)
        if stored is None:
            return
        try:
            due, offset, self._first = _STATE.unpack(stored)
        except struct.error as error:
            raise StoreError(f"queue {self._config.name}: state of delayed messages: {error}") from None  # fmt: skip
        self._last = self._stored = (due, offset)
        if self._first > self._log.end:
            # The log has lost messages, or is new. Those that come next are not the ones that have moved.
            self._first = self._log.end
            self._save()

    def restore(self, message: Message, offset: int) -> bool:
        """Take over a message from the log, after a restart. Return False if the message has already moved."""
        due = due_of(message)
        if due is None or offset < self._first or (due, offset) <= self._last:
            return False
        self._waiting.append((due, offset))
        self.bytes += size_of(message)
        self._target.restored(message)
        return True

    def start(self) -> None:
        """Start moving messages. Call this after `restore`."""
        heapify(self._waiting)
        self.wake()

    def clear(self) -> int:
        """Drop all messages, because the queue is being purged or deleted. Return how many were dropped."""
        dropped = [offset for _, offset in (*self._waiting, *self._moving)]
        self._waiting.clear()
        self._moving = []
        self.bytes = 0
        self._first = self._log.end
        self._stored = self._last
        self._save()
        self._log.moved(dropped)
        return len(dropped)

    def close(self) -> None:
        """Stop moving messages."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


def forget(log: DelayLog, queue: str, broker: BrokerHandle) -> None:
    """Drop the messages of a queue that no longer exists. If the queue is created again, they do not come back."""
    broker.state.put(_KEY + queue, _STATE.pack(0.0, 0, log.end))


def restore(log: DelayLog, find: Callable[[str], Delays | None]) -> list[tuple[Message, int]]:
    """Hand each message in the log to its queue's `Delays`. Return the messages whose queue is unknown. This call
    blocks.
    """
    lost: list[tuple[Message, int]] = []
    gone: list[int] = []
    at = log.earliest
    while at < log.visible:
        page = log.read(at)
        for offset, message in page:
            delays = find(queue_of(message.topic))
            if delays is None:
                lost.append((message, offset))
            if delays is None or not delays.restore(message, offset):
                gone.append(offset)
        at = page[-1][0] + 1
    log.moved(gone)
    return lost
