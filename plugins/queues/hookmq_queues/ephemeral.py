"""Queues of the type `ephemeral`. They exist only in memory, and a group without consumers loses its messages."""

from collections.abc import Callable
from pathlib import Path

from hookmq.plugin import BrokerHandle, DirectDeliveries, Message, Timer
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_toolkit.message_record import size_of

from hookmq_queues.queue import Queue
from hookmq_queues.storage import MessageLog


class MemoryLog(MessageLog):
    """A queue's messages in memory. Implements `Volatile` of `hookmq.storage_api`."""

    volatile = True
    _first = 0
    """All messages below this offset are gone."""

    def append(self, commit: CommitId, message: Message) -> None:
        """Add a message, unless it is dropped. Consumers get it in the next turn, even if the commit fails."""
        if self.is_dropped(message):
            return
        size = size_of(message)
        self._cache[self.end] = (message, size)
        self._cached += size
        self.end += 1
        self._add_size(size)
        self.on_appended()
        if self.visible == self.end - 1:
            self._runtime.call_soon(self._show)

    def _show(self) -> None:
        if not self._closed:
            self.visible = self.end
            self.on_committed()

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Do nothing, because messages are not written."""
        done(None)

    def committed(self, commit: CommitId) -> None:
        """Do nothing, because messages do not wait for commits."""

    def recover(self, last: CommitId) -> None:
        """Do nothing, because a queue in memory starts empty."""

    @property
    def earliest(self) -> int:
        """The offset of the first remaining message."""
        self._first = self.gap_end(self._first)
        return self._first

    def gap_end(self, offset: int) -> int:
        """Return the offset of the first remaining message at or after `offset`."""
        cache, end = self._cache, self.end
        while offset < end and offset not in cache:
            offset += 1
        return offset

    def read(self, offset: int) -> list[tuple[int, Message]]:
        """Return an empty list, because no messages are on disk."""
        return []

    def load(self, offset: int, done: Callable[[str], None]) -> None:
        """Report that a message is missing, because no messages are on disk."""
        done(f"the message {offset} is missing")

    def settle(self, floor: int) -> None:
        """Forget all messages below `floor`."""
        super().settle(floor)
        if self._first < floor:
            self.forget_all(list(range(self._first, floor)))
            self._first = floor


class EphemeralQueue(Queue):
    """A queue in memory. If a group has had no consumer for `expires_after`, it loses its messages. It gets no new ones
    until it has a consumer again.
    """

    stored = False

    def _make_log(self, path: Path, broker: BrokerHandle, sync: bool, plugin: str) -> MessageLog:
        self._expired: set[str] = set()
        """The groups that have expired and get no messages."""
        self._timers: dict[str, Timer] = {}
        """The timers of the groups without consumers."""
        return MemoryLog(self.config, broker.runtime, plugin)

    def open(self, deliveries: DirectDeliveries) -> None:
        """Create the groups. Each must get its first consumer within `expires_after`."""
        super().open(deliveries)
        for name in self.dispatchers:
            self.consumers_changed(name)

    def consumers_changed(self, group: str) -> None:
        """Start or stop the timer after which a group without consumers expires."""
        super().consumers_changed(group)
        dispatcher = self.dispatchers.get(group)
        if dispatcher is None or dispatcher.consumers:
            self._expired.discard(group)
            timer = self._timers.pop(group, None)
            if timer is not None:
                timer.cancel()
        elif group not in self._timers and group not in self._expired and not self.closed:
            self._timers[group] = self._broker.runtime.call_later(
                self.config.expires_after, lambda: self._expire(group)
            )

    def _expire(self, group: str) -> None:
        del self._timers[group]
        if group not in self.dispatchers:
            return
        self._expired.add(group)
        dropped = self._drop(group)
        self._broker.log(
            "info", "queue.expired", queue=self.config.name, group=group, messages=dropped
        )
        self._broker.emit(
            "queue.expired", None, queue=self.config.name, group=group, messages=dropped
        )
        self.ended()

    def _drop(self, group: str) -> int:
        dropped = self.dispatchers[group].trim(self.log.visible)
        self.count("dropped_unused", dropped)
        return dropped

    def _is_dropped(self, message: Message) -> bool:
        if self._expired and self._expired >= self.dispatchers.keys():
            self.count("dropped_unused")
            return True
        return super()._is_dropped(message)

    def _committed(self) -> None:
        self._expired &= self.dispatchers.keys()
        for name in self._expired:
            self._drop(name)
        super()._committed()
        self.ended()

    def close(self) -> None:
        """Stop the timers."""
        super().close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
