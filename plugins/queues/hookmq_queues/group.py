"""The state of one group of a queue's consumers: which messages are waiting, leased, deferred or settled. This module
uses no clock and no I/O, and does not hold messages.

    not leased yet --lease--> leased --settle--> settled
        |    |                  |  ^
        |    |        release,  |  | lease
        |    |         expire   v  |
        |    +-----admit------> ready <---------+
        |                       |  defer        | wake
        +---------defer-------> deferred -------+

A message is identified by its offset in the queue. `next` is the first offset that was never leased, admitted or
deferred. All offsets below it are settled, except those in `unsettled`. The size of the state therefore depends on the
number of unsettled messages below `next`, not on the number of messages behind it.

An offset is leased to only one consumer at a time. Messages that are ready come first, lowest offset first.
"""

import struct
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import Final, NamedTuple

from hookmq_queues.pages import SHIFT, Pages, decode

_HEAD: Final = struct.Struct("<BQQ")
"""Version, reserved, next."""
_VERSION: Final = 2
_MAX_COUNT: Final = (1 << 32) - 1
MAX_DUE: Final = float(1 << 40)
"""The latest possible due time, in epoch seconds."""


class Lease(NamedTuple):
    """A message that a consumer has not settled yet. Each of the group's leases has a different `token`."""

    token: int
    consumer: Hashable
    deadline: float


class Group:
    """A group's state; see the module docstring. `first` is the offset of the first message that the group gets.

    Lease deadlines may use any clock, in seconds. Due times are stored, so they are in epoch seconds.
    """

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self.unsettled: dict[int, int] = {}
        """For each unsettled message below `next`, how often it was leased. The order is that of the offsets."""
        self.leases: dict[int, Lease] = {}
        self.due: dict[int, int] = {}
        """When each deferred message becomes ready, in epoch milliseconds."""
        self._odd: set[int] = set()
        """The unsettled messages that were not leased exactly once."""
        self._unsure: set[int] = set()
        """The messages whose first delivery may not have happened: see `decode`."""
        self._ready: list[int] = []
        """A heap of offsets to lease again. Other entries are removed later."""
        self._deadlines: list[tuple[float, int, int]] = []
        """A heap of (deadline, offset, token). Entries of ended leases are removed later."""
        self._dues: list[tuple[int, int]] = []
        """A heap of (due, offset). Entries of messages that are no longer deferred are removed later."""
        self._pages = Pages()
        self.token = 0
        """The token of the newest lease."""
        self.since = 0
        """The newest token when `seek` was called. Leases up to it no longer count."""

    @property
    def floor(self) -> int:
        """Return the first unsettled offset. Messages below it are no longer needed."""
        return next(iter(self.unsettled), self.next)

    def backlog(self, end: int) -> int:
        """Return how many messages are unsettled if the queue ends at `end`. This includes leased and deferred ones."""
        return max(0, end - self.next) + len(self.unsettled)

    def attempts(self, offset: int) -> int:
        """Return how many times an unsettled message has definitely been delivered. This number counts towards the
        delivery limit.
        """
        return self.unsettled.get(offset, 0) - (offset in self._unsure)

    def is_ready(self, offset: int) -> bool:
        """Return whether an offset can be leased now. `next` can be leased too, but does not count as ready."""
        return offset in self.unsettled and offset not in self.leases and offset not in self.due

    # choosing --------------------------------------------------------------------------------------------------------

    def peek(self, end: int) -> int | None:
        """Return the offset to lease next, or None. Offsets at or above `end` do not exist."""
        ready = self._ready
        while ready:
            if self.is_ready(ready[0]):
                return ready[0]
            heappop(ready)
        return self.next if self.next < end else None

    def take_ready(self) -> list[int]:
        """Return the offsets that have become ready since the last call, lowest first. `peek` no longer returns them.

        Use this to choose messages in a different order than `peek` does.
        """
        if not self._ready:
            return []
        found = sorted({one for one in self._ready if self.is_ready(one)})
        self._ready.clear()
        return found

    def requeue(self) -> None:
        """Make `peek` return all ready messages, including those that `take_ready` returned."""
        self._ready = [one for one in self.unsettled if self.is_ready(one)]

    def admit(self) -> int:
        """Make `next` ready without leasing it, so that a later message can be leased before it. Return its offset."""
        offset = self._advance(0)
        heappush(self._ready, offset)
        return offset

    # leases ----------------------------------------------------------------------------------------------------------

    def lease(self, offset: int, consumer: Hashable, deadline: float) -> tuple[int, int]:
        """Lease `next` or a ready offset. Return the lease's token, and how many times the message has been leased so
        far.
        """
        if offset == self.next:
            self._advance(1)
            count = 1
        else:
            if self._ready and self._ready[0] == offset:
                heappop(self._ready)
            count = self._count(offset, 1)
        self.token += 1
        self.leases[offset] = Lease(self.token, consumer, deadline)
        heappush(self._deadlines, (deadline, offset, self.token))
        self._clean_deadlines()
        return self.token, count

    def lease_next(self, count: int, consumer: Hashable, deadline: float) -> None:
        """Lease `next` and the offsets after it, `count` in total. Their leases get the tokens after `token`."""
        first, token = self.next, self.token
        leases, unsettled, deadlines = self.leases, self.unsettled, self._deadlines
        for offset in range(first, first + count):
            token += 1
            unsettled[offset] = 1
            leases[offset] = Lease(token, consumer, deadline)
            heappush(deadlines, (deadline, offset, token))
        self.next = first + count
        self.token = token
        for page in range(first >> SHIFT, (self.next - 1 >> SHIFT) + 1):
            self._pages.touch(page)
        self._clean_deadlines()

    def _clean_deadlines(self) -> None:
        if len(self._deadlines) > 64 + 2 * len(self.leases):
            self._deadlines = [one for one in self._deadlines if self._is_current(one[1], one[2])]
            heapify(self._deadlines)

    def settle(self, offset: int) -> bool:
        """Forget a message that was acknowledged, expired or dropped. Return False if it was already settled.

        An acknowledgement counts even if the lease has expired, because the message was processed.
        """
        if offset == self.next:
            self.next += 1
            return True
        if self.unsettled.pop(offset, None) is None:
            return False
        self.leases.pop(offset, None)
        if self.due:
            self.due.pop(offset, None)
        if self._odd:
            self._odd.discard(offset)
        if self._unsure:
            self._unsure.discard(offset)
        self._pages.touch(offset >> SHIFT)
        return True

    def release(self, offset: int, token: int) -> bool:
        """End a lease without settling its message. Return False if the lease had already ended."""
        if not self._is_current(offset, token):
            return False
        del self.leases[offset]
        self._make_ready(offset)
        return True

    def withdraw(self, offset: int, token: int) -> None:
        """Undo a lease whose message could not be sent."""
        if self.release(offset, token):
            self._count(offset, -1)

    def expire(self, now: float) -> list[tuple[int, Lease]]:
        """End the leases whose deadlines have passed, and return them."""
        found: list[tuple[int, Lease]] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            _, offset, token = heappop(deadlines)
            lease = self.leases.get(offset)
            if lease is not None and self.release(offset, token):
                found.append((offset, lease))
        return found

    @property
    def deadline(self) -> float | None:
        """Return when `expire` will next have something to do, or None."""
        deadlines = self._deadlines
        while deadlines and not self._is_current(deadlines[0][1], deadlines[0][2]):
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    # deferred messages -----------------------------------------------------------------------------------------------

    def defer(self, offset: int, due: float) -> bool:
        """Keep a message from being leased until `wake` is called with a time of at least `due`.

        `offset` is `next`, or an unsettled offset below it. If it is leased, the lease ends. If it is already deferred,
        it gets the new due time. Return False if the message was already settled.
        """
        if offset == self.next:
            self._advance(0)
        elif offset not in self.unsettled:
            return False
        self.leases.pop(offset, None)
        late = self.due[offset] = int(1000 * min(max(due, 0.0), MAX_DUE))
        heappush(self._dues, (late, offset))
        if len(self._dues) > 64 + 2 * len(self.due):
            self._dues = [(late, offset) for offset, late in self.due.items()]
            heapify(self._dues)
        self._pages.touch(offset >> SHIFT)
        return True

    def wake(self, time: float) -> int:
        """Make deferred messages ready if they are due. Return how many became ready."""
        found = 0
        due = self.next_due
        while due is not None and due <= time:
            offset = heappop(self._dues)[1]
            del self.due[offset]
            self._make_ready(offset)
            self._pages.touch(offset >> SHIFT)
            found += 1
            due = self.next_due
        return found

    @property
    def next_due(self) -> float | None:
        """Return when `wake` will next have something to do, or None."""
        dues = self._dues
        while dues and self.due.get(dues[0][1]) != dues[0][0]:
            heappop(dues)
        return dues[0][0] / 1000 if dues else None

    def drop_oldest(self, end: int) -> int | None:
        """Settle the first message that no consumer holds, and return its offset. Return None if there is none."""
        offset = self.peek(end)
        if self.due:
            known = (one for one in self.unsettled if one not in self.leases)
            offset = next(known, offset)
        if offset is not None:
            self.settle(offset)
        return offset

    def purge(self, end: int) -> int:
        """Settle all messages below `end` that no consumer holds. Return how many were settled."""
        found = [offset for offset in self.unsettled if offset not in self.leases]
        for offset in found:
            self.settle(offset)
        more = max(0, end - self.next)
        self.next += more
        return len(found) + more

    # positions -------------------------------------------------------------------------------------------------------

    def seek(self, offset: int) -> None:
        """Move the group to `offset`. All messages below it count as settled and all others as new. All leases end."""
        self.next = offset
        self.since = self.token
        for part in (self.unsettled, self.leases, self.due, self._odd, self._unsure):
            part.clear()
        for heap in (self._ready, self._deadlines, self._dues):
            heap.clear()
        self._pages = Pages()

    def trim(self, first: int) -> int:
        """Settle the messages below `first`, because they were deleted. Return how many were settled."""
        deleted = list(takewhile(lambda offset: offset < first, self.unsettled))
        for offset in deleted:
            self.settle(offset)
        lost = len(deleted) + max(0, first - self.next)
        self.next = max(self.next, first)
        return lost

    def skip(self, offset: int, end: int) -> None:
        """Settle `offset`, which `peek` returned. The offsets from there up to `end` have no messages."""
        if offset == self.next:
            self.next = end
        else:
            self.settle(offset)

    # helpers ---------------------------------------------------------------------------------------------------------

    def _advance(self, count: int) -> int:
        """Add `next` to the unsettled messages. Return its offset."""
        offset = self.next
        self.next = offset + 1
        self.unsettled[offset] = count
        if count != 1:
            self._odd.add(offset)
        self._pages.touch(offset >> SHIFT)
        return offset

    def _count(self, offset: int, change: int) -> int:
        """Change how many times a message has been leased. Return the new number."""
        count = self.unsettled[offset] = min(_MAX_COUNT, self.unsettled[offset] + change)
        if count == 1:
            self._odd.discard(offset)
        else:
            self._odd.add(offset)
        self._pages.touch(offset >> SHIFT)
        return count

    def _make_ready(self, offset: int) -> None:
        ready = self._ready
        heappush(ready, offset)
        if len(ready) > 64 + 2 * len(self.unsettled):
            self._ready = sorted({one for one in ready if self.is_ready(one)})

    def _is_current(self, offset: int, token: int) -> bool:
        lease = self.leases.get(offset)
        return lease is not None and lease.token == token

    # stored form -----------------------------------------------------------------------------------------------------

    def encode(self, reserved: int) -> bytes:
        """Return the state as bytes. Offsets below `reserved` may be leased before the result of the next call is
        stored.
        """
        return _HEAD.pack(_VERSION, max(reserved, self.next), self.next) + self._pages.encode(
            self.unsettled, self._odd, self._unsure, self.due
        )

    @classmethod
    def decode(cls, data: bytes, earliest: int, end: int, time: float = MAX_DUE) -> "Group":
        """Return the group that `encode` wrote, without leases. The queue has the offsets from `earliest` to `end`.

        If `encode` reserved offsets, messages may have been delivered after it was called. These are the messages with
        a reserved offset, and those that were ready and never delivered. They count as delivered once, so the next
        delivery is marked as a redelivery. `attempts` does not count this delivery. Deferred messages that are due
        after `time` were not ready yet.

        Raises ValueError if the bytes are damaged.
        """
        try:
            if len(data) < _HEAD.size:
                raise ValueError("it is incomplete")
            version, reserved, following = _HEAD.unpack_from(data)
            if version != _VERSION or reserved < following:
                raise ValueError(f"version {version}, {len(data)} bytes")
            entries = list(decode(data[_HEAD.size :]))
            if entries and entries[-1].offset >= following:
                raise ValueError(f"it contains a message from {following} on")
        except (struct.error, ValueError) as error:
            raise ValueError(f"not the state of a group: {error}") from None
        group = cls(max(earliest, min(reserved, end)))
        for offset, count, unsure, due in entries:
            if earliest <= offset < group.next:
                if due >= 0:
                    group.due[offset] = due
                maybe = not count and reserved > following and due <= 1000 * time
                group._restore(offset, 1 if maybe else count, unsure or maybe)
        for offset in range(max(earliest, following), group.next):
            group._restore(offset, 1, True)
        group._ready = [one for one in group.unsettled if one not in group.due]
        group._dues = [(due, offset) for offset, due in group.due.items()]
        heapify(group._dues)
        return group

    def _restore(self, offset: int, count: int, unsure: bool) -> None:
        self.unsettled[offset] = count
        if count != 1:
            self._odd.add(offset)
        if unsure:
            self._unsure.add(offset)
        self._pages.touch(offset >> SHIFT)
