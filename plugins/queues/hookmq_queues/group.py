"""The state of one group of consumers of a queue: which message is where. Pure: no clock, no I/O, no messages.

    not leased yet --lease--> leased --settle--> settled
                                |  ^
                      release,  |  | lease
                       expire   v  |
                               ready

A message is known by its offset in the queue. `next` is the first offset that was never leased. All offsets below it
are settled, except those in `unsettled`. The state is therefore as large as the number of unsettled messages, however
many wait behind `next`.

A new lease replaces none: an offset is leased to one consumer at a time. Messages that were delivered before come
first, lowest offset first.
"""

import struct
from collections.abc import Collection, Hashable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct("<BQQII")
"""Version, reserved, next, number of unsettled offsets, number of those that were leased more than once."""
_VERSION: Final = 1


class Lease(NamedTuple):
    """A message that a consumer has and has not settled. `token` differs for each lease of the group."""

    token: int
    consumer: Hashable
    deadline: float


class Group:
    """The state of a group; see the module docstring. `first` is the offset of the first message that it gets."""

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self.unsettled: dict[int, int] = {}
        """How often each message below `next` was leased, in the order of the offsets."""
        self.leases: dict[int, Lease] = {}
        self._ready: list[int] = []
        """A heap of offsets to lease again. Settled offsets leave it later."""
        self._deadlines: list[tuple[float, int, int]] = []
        """A heap of (deadline, offset, token). Ended leases leave it later."""
        self._token = 0

    @property
    def floor(self) -> int:
        """Return the first offset that is not settled. Messages below it are no longer needed."""
        return next(iter(self.unsettled), self.next)

    def backlog(self, end: int) -> int:
        """Return the number of unsettled messages, with those that are leased, if the queue ends at offset `end`."""
        return max(0, end - self.next) + len(self.unsettled)

    def peek(self, end: int) -> int | None:
        """Return the offset to lease next, or None. Offsets from `end` on do not exist."""
        ready = self._ready
        while ready:
            offset = ready[0]
            if offset in self.unsettled and offset not in self.leases:
                return offset
            heappop(ready)
        return self.next if self.next < end else None

    def lease(self, offset: int, consumer: Hashable, deadline: float) -> tuple[int, int]:
        """Lease the offset that `peek` returned. Return the token of the lease, and how often it was leased by now."""
        if offset == self.next:
            self.next += 1
            count = self.unsettled[offset] = 1
        else:
            heappop(self._ready)
            count = self.unsettled[offset] = self.unsettled[offset] + 1
        self._token += 1
        self.leases[offset] = Lease(self._token, consumer, deadline)
        heappush(self._deadlines, (deadline, offset, self._token))
        if len(self._deadlines) > 64 + 2 * len(self.leases):
            self._deadlines = [one for one in self._deadlines if self._is_current(one[1], one[2])]
            heapify(self._deadlines)
        return self._token, count

    def settle(self, offset: int) -> bool:
        """Forget a message: it was acknowledged, expired or dropped. Return False if it was settled before.

        An acknowledgement counts even if the lease has expired, because the message was processed.
        """
        if offset == self.next:
            self.next += 1
            return True
        self.leases.pop(offset, None)
        return self.unsettled.pop(offset, None) is not None

    def release(self, offset: int, token: int) -> bool:
        """End a lease without settling the message. Return False if this lease has ended before."""
        if not self._is_current(offset, token):
            return False
        del self.leases[offset]
        heappush(self._ready, offset)
        return True

    def withdraw(self, offset: int, token: int) -> None:
        """Undo a lease whose message could not be sent."""
        if self.release(offset, token):
            self.unsettled[offset] -= 1

    def expire(self, now: float) -> list[tuple[int, Lease]]:
        """End the leases whose deadline has passed, and return them."""
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
        """Return when `expire` has something to do, or None."""
        deadlines = self._deadlines
        while deadlines and not self._is_current(deadlines[0][1], deadlines[0][2]):
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def drop_oldest(self, end: int) -> int | None:
        """Settle the first message that nobody has, and return its offset. Return None if there is none."""
        offset = self.peek(end)
        if offset is not None:
            self.settle(offset)
        return offset

    def _is_current(self, offset: int, token: int) -> bool:
        lease = self.leases.get(offset)
        return lease is not None and lease.token == token

    # stored form -----------------------------------------------------------------------------------------------------

    def encode(self, reserved: int) -> bytes:
        """Return the state as bytes. Offsets below `reserved` may be leased before the next call is stored."""
        again = {offset: count for offset, count in self.unsettled.items() if count > 1}
        head = _HEAD.pack(
            _VERSION, max(reserved, self.next), self.next, len(self.unsettled), len(again)
        )
        return b"".join(
            (head, _little("Q", self.unsettled), _little("Q", again), _little("I", again.values()))
        )

    @classmethod
    def decode(cls, data: bytes, earliest: int, end: int) -> "Group":
        """Return the group that `encode` wrote, with nothing leased. The queue has the offsets from `earliest` to `end`.

        Offsets that were reserved may have been delivered, so they count as delivered once. So do unsettled messages
        whose lease was withdrawn, because they may have been sent after `encode`. Raises ValueError if the
        bytes are damaged.
        """
        try:
            version, reserved, following, count, counted = _HEAD.unpack_from(data)
            if version != _VERSION or len(data) != _HEAD.size + 8 * count + 12 * counted:
                raise ValueError(f"version {version}, {len(data)} bytes")
        except (struct.error, ValueError) as error:
            raise ValueError(f"not the state of a group: {error}") from None
        at = _HEAD.size
        offsets = _numbers("Q", data[at : at + 8 * count])
        at += 8 * count
        again = _numbers("Q", data[at : at + 8 * counted])
        counts = _numbers("I", data[at + 8 * counted :])
        times = dict(zip(again, counts, strict=True))
        group = cls(max(earliest, min(reserved, end)))
        for offset in (*offsets, *range(following, group.next)):
            if earliest <= offset < group.next:
                group.unsettled[offset] = times.get(offset, 1)
        group._ready = list(group.unsettled)
        return group


def _little(kind: str, numbers: Collection[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)


def _numbers(kind: str, data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // struct.calcsize('<' + kind)}{kind}", data)
