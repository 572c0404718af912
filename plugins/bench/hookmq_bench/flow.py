"""Track one publisher's messages as one subscriber sees them: arrived, duplicated, late or missing.

Message numbers start at 0. Missing numbers are stored as ranges, so the counts stay exact no matter how many are
missing.
"""

from array import array
from bisect import bisect_right


class Flow:
    """The flow of messages from one publisher to one subscriber. `next` is the message number expected next.

    When the expected number arrives, the caller adds one to `next` itself. For any other number, it calls `odd`.
    Counting starts at `first`. `missing` counts the numbers below `next` that have not arrived. `duplicates` counts
    repeats. `reordered` counts messages that arrived once, but late.
    """

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
        """Process a number other than `next`. Return how far `next` advances."""
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
        """The number of distinct messages that have arrived."""
        return self.next - self.first - self.missing
