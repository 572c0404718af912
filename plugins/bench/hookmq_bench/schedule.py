"""Compute when messages are due at a fixed rate. Nothing here reads a clock."""

from collections.abc import Sequence
from math import sqrt

from hookmq_bench.plan import SECOND


class Schedule:
    """The schedule for the publishers in `own`, in order of time.

    The rate rises evenly from 0 to `rate` per second over `ramp` seconds, and then stays constant. Messages are
    numbered across all publishers. Message k is due when that rate has produced k messages, and publisher k modulo
    `publishers` sends it. `begin` is in nanoseconds. `count` limits k; 0 means no limit.
    """

    __slots__ = (
        "_at",
        "_begin",
        "_count",
        "_half",
        "_publishers",
        "_ramp",
        "_rate",
        "_round",
        "own",
    )

    def __init__(
        self,
        rate: float,
        ramp: float,
        publishers: int,
        own: Sequence[int],
        begin: int,
        count: int = 0,
    ) -> None:
        self.own = own
        self._rate = rate
        self._ramp = ramp
        self._half = rate * ramp / 2  # messages sent during the ramp
        self._publishers = publishers
        self._begin = begin
        self._count = count
        self._round = 0
        self._at = 0

    def time(self, number: int) -> int:
        """Return when message `number` is due, in nanoseconds."""
        if number < self._half:
            seconds = sqrt(2 * self._ramp * number / self._rate)
        else:
            seconds = number / self._rate + self._ramp / 2
        return self._begin + int(seconds * SECOND)

    def _number(self) -> int:
        return self._round * self._publishers + self.own[self._at]

    @property
    def following(self) -> int | None:
        """The time when the next message is due, in nanoseconds, or None after the last message."""
        if not self.own:
            return None
        number = self._number()
        if self._count and number >= self._count:
            return None
        return self.time(number)

    def due(self, now: int) -> list[tuple[int, int]]:
        """Return the messages that have become due since the last call, up to `now`. Each is a pair of the publisher's
        index in `own` and the due time.
        """
        found = []
        while (time := self.following) is not None and time <= now:
            found.append((self._at, time))
            self._at += 1
            if self._at == len(self.own):
                self._at = 0
                self._round += 1
        return found
