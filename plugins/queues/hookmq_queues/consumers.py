"""Manage a group's consumers, and choose among them. This module uses no clock and no I/O.

The next message goes to the consumer with the fewest unacknowledged messages relative to its weight. Among equals,
messages are shared in proportion to the weights. A choice takes O(f + log n) among n consumers with f filters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Literal

Mode = Literal["shared", "exclusive", "single_active"]
"""Which consumers get messages: all of them, or only the first one to subscribe."""
MAX_WEIGHT: Final = 100
_AT_ONCE: Final = 16
"""Maximum number of messages that one of several consumers gets at once."""

WEIGHT: Final = "weight"
"""The user property of SUBSCRIBE with the weight of a consumer."""

_Entry = tuple[float, float, int, "Consumer"]
"""(messages held relative to the weight, turn, number of the turn's last change, consumer)"""


@dataclass(slots=True)
class Consumer:
    """An online client's subscription. `filter` is written as the client sent it.

    `held` counts the messages that the consumer has not settled. While it is `blocked`, the broker cannot send to it.
    Both change only through the methods of `Consumers`.
    """

    client_id: str
    filter: str
    topic_filter: str
    with_properties: bool
    weight: int = 1
    connection: object = field(default=None, repr=False, compare=False)
    """Identifies the client's connection."""
    held: int = 0
    blocked: bool = False
    turn: float = 0.0
    """Increases by 1 / `weight` with each message."""
    served: int = 0
    """Number of the last change of `turn`. It differs for each consumer."""
    most: int = 0
    """Maximum number of messages that it may hold: `prefetch`, or fewer while it cannot take that many."""
    freed: bool = False
    """Whether it holds fewer messages than its entry states."""
    entry: _Entry | None = field(default=None, repr=False)
    """The consumer's entry in the heap, or None while it cannot take a message."""

    @property
    def key(self) -> tuple[str, str]:
        """This consumer's name in leases."""
        return self.client_id, self.filter


class _Line:
    """A heap of entries, one for each consumer with the same filter."""

    __slots__ = ("heap", "size")

    def __init__(self) -> None:
        self.heap: list[_Entry] = []
        """An entry is valid if its consumer refers to it. Other entries are removed later."""
        self.size = 0
        """The number of consumers."""

    def first(self) -> _Entry | None:
        """Return the entry of the consumer that gets the next message. Return None if no consumer can take one."""
        heap = self.heap
        while heap:
            entry = heap[0]
            if entry[3].entry is entry:
                return entry
            heappop(heap)
        return None

    def push(self, entry: _Entry, before: _Entry | None) -> None:
        """Add an entry to the heap. It replaces `before`, the consumer's earlier entry."""
        heap = self.heap
        if heap and heap[0] is before:
            heapreplace(heap, entry)
            return
        heappush(heap, entry)
        if len(heap) > 64 + 2 * self.size:
            self.heap = [one for one in heap if one[3].entry is one]
            heapify(self.heap)


class Consumers:
    """One group's consumers. Each holds at most `prefetch` messages.

    Unless `mode` is ``shared``, only the consumer that was added first is `active`. The others wait.
    """

    def __init__(self, prefetch: int, mode: Mode = "shared") -> None:
        self.by_key: dict[tuple[str, str], Consumer] = {}
        """The consumers, in the order in which they were added."""
        self.mode: Final = mode
        self.active: Consumer | None = None
        """The only consumer that gets messages. Always None if `mode` is ``shared``."""
        self._prefetch = prefetch
        self._lines: dict[str, _Line] = {}
        """The consumers that can take a message, by their topic filter."""
        self._stuck: dict[tuple[str, str], Consumer] = {}
        """Blocked consumers without messages, which no event will unblock."""
        self._freed: list[Consumer] = []
        """Consumers whose entries are not up to date."""
        self._turn = 0.0
        self._served = 0

    def __len__(self) -> int:
        return len(self.by_key)

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. If it was added before, it keeps its messages."""
        known = self.by_key.get(consumer.key)
        if known is None:
            known = self.by_key[consumer.key] = consumer
            self._served += 1
            consumer.served = self._served
            consumer.turn = self._turn
        else:
            known.entry = None
            self._leave_line(known.topic_filter)
        known.topic_filter = consumer.topic_filter
        self._lines.setdefault(known.topic_filter, _Line()).size += 1
        known.with_properties = consumer.with_properties
        known.connection = consumer.connection
        known.weight = consumer.weight
        known.most = self._prefetch
        self._elect()
        self._offer(known)

    def set_prefetch(self, prefetch: int) -> None:
        """Change the maximum number of messages that each consumer may hold."""
        self._prefetch = prefetch
        for one in self.by_key.values():
            one.most = prefetch
            self._offer(one)

    def remove(self, key: tuple[str, str]) -> Consumer | None:
        """Remove a consumer and return it."""
        found = self.by_key.pop(key, None)
        if found is not None:
            found.entry = None
            self._leave_line(found.topic_filter)
            self._stuck.pop(key, None)
            if found is self.active:
                self.active = None
                self._elect()
        return found

    def _leave_line(self, topic_filter: str) -> None:
        line = self._lines[topic_filter]
        line.size -= 1
        if not line.size:
            del self._lines[topic_filter]

    def choose(self) -> Consumer | None:
        """Return the consumer that gets the next message. Return None if no consumer can take one."""
        if self._freed:
            self._take_freed()
        best: _Entry | None = None
        for line in self._lines.values():
            entry = line.first()
            if entry is not None and (best is None or entry < best):
                best = entry
        return None if best is None else best[3]

    def share(self, consumer: Consumer, number: int) -> int:
        """Return how many of `number` waiting messages the chosen consumer gets at once. If few are waiting, it gets
        one. Otherwise, it gets more, but all consumers still end up with about the same share.
        """
        others = len(self.by_key) if self.mode == "shared" else 1
        fair = number if others == 1 else min(_AT_ONCE, max(1, number // (2 * others)))
        return min(fair, consumer.most - consumer.held)

    def free_filters(self) -> list[str]:
        """Return the filters of all consumers that can take a message."""
        if self._freed:
            self._take_freed()
        return [name for name, line in self._lines.items() if line.first() is not None]

    def choose_if(self, takes: Callable[[str], bool]) -> Consumer | None:
        """Return the consumer that gets the next message, among those whose filter `takes` accepts. Return None if
        there is none.
        """
        found = (self._lines[name].first() for name in self.free_filters() if takes(name))
        best = min((one for one in found if one is not None), default=None)
        return None if best is None else best[3]

    def took(self, consumer: Consumer, number: int = 1) -> None:
        """Record that the chosen consumer got `number` messages."""
        consumer.held += number
        self._turn = max(self._turn, consumer.turn)
        consumer.turn = self._turn + number / consumer.weight
        self._served += 1
        consumer.served = self._served
        self._offer(consumer)

    def returned(self, consumer: Consumer, number: int) -> None:
        """Record that `number` messages could not be sent to the consumer chosen for them."""
        consumer.held -= number
        consumer.most = max(1, consumer.held)
        self.block(consumer)

    def freed(self, consumer: Consumer) -> None:
        """Record that a consumer holds one message fewer and can therefore take more. The next choice takes this into
        account.
        """
        consumer.held -= 1
        if not consumer.freed:
            consumer.freed = True
            self._freed.append(consumer)

    def received(self, consumer: Consumer) -> None:
        """Record that a consumer has acknowledged a message and can therefore take more. The next choice takes this
        into account.
        """
        if not consumer.freed:
            consumer.freed = True
            self._freed.append(consumer)

    def _take_freed(self) -> None:
        freed, self._freed = self._freed, []
        for one in freed:
            one.freed = False
            one.most = min(self._prefetch, one.most + 1 + one.most // 4)
            self._unblock(one)

    def block(self, consumer: Consumer) -> None:
        """Do not choose a consumer until it holds one message fewer, or until `unblock` is called."""
        consumer.blocked = True
        consumer.entry = None
        if not consumer.held and self.by_key.get(consumer.key) is consumer:
            self._stuck[consumer.key] = consumer

    @property
    def is_stuck(self) -> bool:
        """Whether some blocked consumer holds no messages, so that only `unblock` can release it."""
        if self._freed:
            self._take_freed()
        return bool(self._stuck)

    def unblock(self) -> None:
        """Make blocked consumers that hold no messages available again."""
        for one in list(self._stuck.values()):
            self._unblock(one)

    def _unblock(self, consumer: Consumer) -> None:
        if consumer.blocked:
            consumer.blocked = False
            if self._stuck.get(consumer.key) is consumer:
                del self._stuck[consumer.key]
        self._offer(consumer)

    def _elect(self) -> None:
        """Make the first consumer active if none is active."""
        if self.mode != "shared" and self.active is None and self.by_key:
            self.active = next(iter(self.by_key.values()))
            self._offer(self.active)

    def _offer(self, consumer: Consumer) -> None:
        """Update a consumer's entry."""
        before = consumer.entry
        if (
            consumer.blocked
            or consumer.held >= consumer.most
            or (self.mode != "shared" and consumer is not self.active)
            or self.by_key.get(consumer.key) is not consumer
        ):
            consumer.entry = None
            return
        entry = (consumer.held / consumer.weight, consumer.turn, consumer.served, consumer)
        consumer.entry = entry
        self._lines[consumer.topic_filter].push(entry, before)


def weight_in(properties: Sequence[tuple[str, str]]) -> int | None:
    """Return the weight in a SUBSCRIBE's user properties, or None. Raises ValueError if it is invalid."""
    found = [value for name, value in properties if name == WEIGHT]
    if not found:
        return None
    if len(found) > 1:
        raise ValueError(f"the subscription has {len(found)} user properties weight: expected one")
    text = found[0]
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_WEIGHT):
        raise ValueError(f"weight: expected a number from 1 to {MAX_WEIGHT}, found {text[:40]!r}")
    return int(text)
