"""Choose a group's next message, and read it into memory."""

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Final

from hookmq.plugin import BrokerHandle, Timer

from hookmq_queues.consumers import Consumers
from hookmq_queues.filters import MAX_FILTERS, ByFilter, is_narrow
from hookmq_queues.group import Group
from hookmq_queues.group_state import PAUSE, GroupState
from hookmq_queues.limits import Limits
from hookmq_queues.order import Selection, make_selection
from hookmq_queues.storage import CLOSED, MessageLog

QUIET: Final = 60.0
"""Minimum seconds between reports that no consumer accepts a group's waiting messages."""


class Choice:
    """Chooses a group's next message: the oldest one, or the one that a `selection` chooses.

    `schedule` is called when a missing message has been read into memory.
    """

    def __init__(
        self,
        name: str,
        group: Group,
        state: GroupState,
        consumers: Consumers,
        limits: Limits,
        log: MessageLog,
        broker: BrokerHandle,
        schedule: Callable[[], None],
    ) -> None:
        self.selection = make_selection(limits.config, group, log.get)
        """Chooses the next message. None means that the oldest message is next."""
        self.filters: ByFilter | None = None
        """Chooses by the consumers' filters. None unless at least one filter is narrow."""
        self._name = name
        self._queue = limits.config.name
        self._group = group
        self._state = state
        self._consumers = consumers
        self._limits = limits
        self._log = log
        self._broker = broker
        self._schedule = schedule
        self._narrow: Counter[str] = Counter()
        """Number of consumers for each filter that accepts only some messages."""
        self._quiet_until = -inf
        self._pause: Timer | None = None
        """Runs while reading is paused after a failure."""
        self._unread = -1
        """The offset of the message that could not be read."""

    def takes_filter(self, topic_filter: str) -> bool:
        """Return whether a consumer may use this filter. It may not if the group already has too many filters."""
        return (
            not is_narrow(topic_filter, self._queue)
            or topic_filter in self._narrow
            or len(self._narrow) < MAX_FILTERS
        )

    def count_filter(self, topic_filter: str, change: int) -> None:
        """Record that a consumer with this filter was added or removed. The group selects messages by filter only while
        it has a narrow filter.
        """
        if not is_narrow(topic_filter, self._queue):
            return
        self._narrow[topic_filter] += change
        if not self._narrow[topic_filter]:
            del self._narrow[topic_filter]
            if self.filters is not None:
                self.filters.forget(topic_filter)
        if bool(self._narrow) != (self.filters is not None):
            self.renew()

    def renew(self) -> None:
        """Restart the selection with all messages that no consumer holds."""
        if self._narrow:
            self.filters = ByFilter(
                self._queue,
                self._consumers,
                self._limits.is_dead,
                self._limits.expires_at,
                self._broker.time,
            )
            self.selection = Selection(
                self._group, self.filters, self._limits.config.lookahead, self._log.get
            )
        else:
            self.filters = None
            self.selection = make_selection(self._limits.config, self._group, self._log.get)
        self._group.requeue()

    def select(self) -> int | None:
        """Return the next message in the queue's order, or None."""
        selection, log = self.selection, self._log
        assert selection is not None
        end = log.visible
        if self._state.stored and end > self._state.reserved:
            end = self._state.reserved
            if self._group.next >= end and selection.has_room:
                self._state.dirty = True
        offset = selection.next(end)
        if self.filters is not None and offset is None and not selection.has_room:
            self._report_window()
        missing = selection.missing
        while missing is not None and self.skips(missing):
            offset = selection.next(end)
            missing = selection.missing
        if missing is not None and (offset is None or log.get(offset) is not None):
            self.load(missing)
        return offset

    def _report_window(self) -> None:
        """Report that no consumer accepts any message in the window. Messages beyond the window may match."""
        now = self._broker.now()
        if self._group.next >= self._log.visible or now < self._quiet_until:
            return
        self._quiet_until = now + QUIET
        fields = {
            "queue": self._queue,
            "group": self._name,
            "messages": self._limits.config.lookahead,
        }
        self._broker.log("warning", "queue.filters_stuck", **fields)
        self._broker.emit("queue.filters_stuck", None, **fields)

    def skips(self, offset: int) -> bool:
        """Settle `offset` and the offsets after it that are known to have no message. Return False if `offset` itself
        has one.
        """
        end = self._log.gap_end(offset)
        if end == offset:
            return False
        self._group.skip(offset, min(end, self._log.visible))
        self._state.dirty = True
        return True

    def load(self, offset: int) -> None:
        """Read a message into memory, unless a read has just failed."""
        if self._pause is None:
            self._log.load(offset, self._loaded)

    def _loaded(self, error: str) -> None:
        if error == CLOSED:
            return
        if not error:
            if self._log.get(self._unread) is not None:
                self._unread = -1
            self._schedule()
            return
        selection = self.selection
        offset = self._group.peek(self._log.visible) if selection is None else selection.missing
        if offset is not None and offset != self._unread:
            self._unread = offset
            self._broker.log(
                "error", "queue.unreadable",
                queue=self._limits.config.name, group=self._name, offset=offset, error=error,
            )  # fmt: skip
        if self._pause is None:
            self._pause = self._broker.runtime.call_later(PAUSE, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._schedule()

    def close(self) -> None:
        """Stop reading."""
        if self._pause is not None:
            self._pause.cancel()
