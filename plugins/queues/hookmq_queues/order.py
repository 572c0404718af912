"""Choose a group's next message in an order other than first in, first out. This module uses no clock and no I/O.

A `Selection` considers the window: the oldest waiting messages, at most `lookahead` of them. It admits them to the
group one by one, and lets a strategy choose the next one. Without a selection, `Group.peek` chooses the oldest message.

A strategy identifies a message by its offset, and knows it from `add` to `gone`. Between `ready` and `leased`, the
message is waiting.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from hookmq.plugin import Message

from hookmq_queues.config import QueueConfig
from hookmq_queues.group import Group
from hookmq_queues.keys import KeyTemplate, shortened, value_of
from hookmq_queues.properties import PRIORITY
from hookmq_queues.topics import PREFIX

_DIGITS: Final = frozenset("0123456789")


class Strategy(Protocol):
    """Chooses among waiting messages."""

    waiting: set[int]
    """The offsets of the known messages that no consumer has."""

    def add(self, offset: int, message: Message) -> None:
        """Add a message. Messages must be added in offset order."""

    def ready(self, offset: int) -> None:
        """Record that a message is waiting."""

    def leased(self, offset: int) -> None:
        """Record that a consumer got a message."""

    def gone(self, offset: int) -> None:
        """Forget a message. The message may be unknown."""

    def peek(self) -> int | None:
        """Return the offset of the next message, or None."""


class ByPriority:
    """Chooses the message with the highest priority. If several have the same priority, chooses the oldest of them."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self._priorities: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """(-priority, offset) of the waiting messages. Other entries are removed later."""

    def add(self, offset: int, message: Message) -> None:
        self._priorities[offset] = priority_of(message)

    def ready(self, offset: int) -> None:
        if offset not in self.waiting:
            self.waiting.add(offset)
            heappush(self._heap, (-self._priorities[offset], offset))
            self._tidy()

    def leased(self, offset: int) -> None:
        self.waiting.discard(offset)

    def gone(self, offset: int) -> None:
        self.waiting.discard(offset)
        self._priorities.pop(offset, None)

    def peek(self) -> int | None:
        heap = self._heap
        while heap and heap[0][1] not in self.waiting:
            heappop(heap)
        return heap[0][1] if heap else None

    def _tidy(self) -> None:
        if len(self._heap) > 64 + 2 * len(self.waiting):
            self._heap = [(-self._priorities[one], one) for one in self.waiting]
            heapify(self._heap)


class ByKey:
    """Chooses the oldest message whose key is not shared by an older unsettled message. Messages with the same key are
    therefore processed in order, one at a time. `key_of` returns a message's key, or None if it has none.
    """

    def __init__(self, key_of: Callable[[Message], str | None]) -> None:
        self.waiting: set[int] = set()
        self._key_of = key_of
        self._keys: dict[int, str] = {}
        """The key of each message that has one."""
        self._lines: dict[str, deque[int]] = {}
        """The messages of each key, oldest first. Only the first one may be leased."""
        self._heap: list[int] = []
        """The waiting messages that may be leased. Other entries are removed later."""

    def add(self, offset: int, message: Message) -> None:
        key = self._key_of(message)
        if key is not None:
            key = shortened(key)
            self._keys[offset] = key
            self._lines.setdefault(key, deque()).append(offset)

    def ready(self, offset: int) -> None:
        if offset not in self.waiting:
            self.waiting.add(offset)
            key = self._keys.get(offset)
            if key is None or self._lines[key][0] == offset:
                self._push(offset)

    def leased(self, offset: int) -> None:
        self.waiting.discard(offset)

    def gone(self, offset: int) -> None:
        self.waiting.discard(offset)
        key = self._keys.pop(offset, None)
        if key is None:
            return
        line = self._lines[key]
        if line[0] != offset:
            return  # it leaves the line later
        while line and line[0] not in self._keys:
            line.popleft()
        if not line:
            del self._lines[key]
        elif line[0] in self.waiting:
            self._push(line[0])

    def peek(self) -> int | None:
        heap = self._heap
        while heap and heap[0] not in self.waiting:
            heappop(heap)
        return heap[0] if heap else None

    def _push(self, offset: int) -> None:
        heap = self._heap
        heappush(heap, offset)
        if len(heap) > 64 + 2 * len(self.waiting):
            self._heap = sorted({one for one in heap if one in self.waiting})


class Selection:
    """Chooses a group's next message with a strategy. `get` returns a message if it is in memory."""

    def __init__(
        self,
        group: Group,
        strategy: Strategy,
        lookahead: int,
        get: Callable[[int], Message | None],
    ) -> None:
        self.missing: int | None = None
        """The offset of a message that `next` needs in memory, or None."""
        self._group = group
        self._strategy = strategy
        self._lookahead = lookahead
        self._get = get
        self._unknown: deque[int] = deque(group.unsettled)
        """Messages that were admitted elsewhere, such as by an earlier process, and are not known to the strategy yet."""
        self._end = group.next
        """Messages below this offset are known, or are in `_unknown`, or are settled."""

    @property
    def waiting(self) -> int:
        """The number of messages in the window."""
        return len(self._strategy.waiting)

    @property
    def has_room(self) -> bool:
        """Whether more messages may be admitted to the window."""
        return len(self._strategy.waiting) < self._lookahead

    def next(self, end: int) -> int | None:
        """Return the offset of the message to lease next, or None. Messages from `end` on must not be admitted."""
        group, strategy = self._group, self._strategy
        self.missing = None
        if group.next > self._end:
            self._unknown += [one for one in range(self._end, group.next) if one in group.unsettled]
            self._end = group.next
        if self._unknown and not self._learn():
            return None
        for offset in group.take_ready():
            strategy.ready(offset)
        while group.next < end and len(strategy.waiting) < self._lookahead:
            message = self._get(group.next)
            if message is None:
                self.missing = group.next
                break
            offset = group.admit()
            self._end = offset + 1
            strategy.add(offset, message)
            strategy.ready(offset)
        return strategy.peek()

    def _learn(self) -> bool:
        """Tell the strategy about all messages it does not know yet, before it chooses. Return False if one is not in
        memory.
        """
        unknown, unsettled = self._unknown, self._group.unsettled
        while unknown:
            offset = unknown[0]
            if offset in unsettled:
                message = self._get(offset)
                if message is None:
                    self.missing = offset
                    return False
                self._strategy.add(offset, message)
            unknown.popleft()
        return True

    def leased(self, offset: int) -> None:
        """Record that the message was leased."""
        self._strategy.leased(offset)

    def settled(self, offset: int) -> None:
        """Record that a message was settled."""
        self._strategy.gone(offset)

    def oldest(self) -> int | None:
        """Return the oldest admitted message that no consumer holds. Takes O(n) for n leased messages."""
        group = self._group
        return next((one for one in group.unsettled if one not in group.leases), None)


def priority_of(message: Message) -> int:
    """Return a message's priority, from 0 to 9. A captured message has priority 0."""
    if not message.topic.startswith(PREFIX):
        return 0
    text = value_of(message, PRIORITY)
    return int(text) if text in _DIGITS else 0


def make_selection(
    config: QueueConfig, group: Group, get: Callable[[int], Message | None]
) -> Selection | None:
    """Return the selection that the configuration calls for. Return None for first in, first out."""
    if config.order == "fifo":
        return None
    strategy: Strategy = ByPriority()
    if config.order == "by_key":
        strategy = ByKey(KeyTemplate(config.order_key).key_of)
    return Selection(group, strategy, config.lookahead, get)
