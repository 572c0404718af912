"""The messages of one publisher as one subscriber sees them: which came, twice, late or never.

Numbers begin with 0. What is missing is kept as ranges, so that the account is exact however many are missing.
"""

from array import array
from bisect import bisect_right


class Flow:
    """`next` is the number that should come next. Whoever sees it arrive adds one to `next` himself; everything else goes
    to `odd`. `first` is where counting began; `missing` tells how many below `next` have not come; `duplicates` and
    `reordered` (late, but once) are counts."""

    __slots__ = ("_ends", "_starts", "duplicates", "first", "missing", "next", "reordered")

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.next = first
        self.missing = 0
        self.duplicates = 0
        self.reordered = 0
        self._starts = array("Q")
        self._ends = array("Q")

    def odd(self, number: int) -> int:
        """Take a number that is not `next`; how far it moves `next`."""
        expected = self.next
        if number >= expected:
            if number > expected:
                self._starts.append(expected)
                self._ends.append(number)
                self.missing += number - expected
            self.next = number + 1
            return number + 1 - expected
        self._late(number)
        return 0

    def _late(self, number: int) -> None:
        starts, ends = self._starts, self._ends
        at = bisect_right(starts, number) - 1
        if at < 0 or number >= ends[at]:
            self.duplicates += 1
            return
        self.reordered += 1
        self.missing -= 1
        start, end = starts[at], ends[at]
        if number == start:
            if start + 1 == end:
                del starts[at], ends[at]
            else:
                starts[at] = start + 1
        elif number + 1 == end:
            ends[at] = number
        else:
            ends[at] = number
            starts.insert(at + 1, number + 1)
            ends.insert(at + 1, end)

    @property
    def received(self) -> int:
        """How many have come, each counted once."""
        return self.next - self.first - self.missing
