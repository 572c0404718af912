"""Estimate how many bytes of a log come before an event."""

from bisect import bisect_right
from typing import Final

MOST: Final = 1024
"""Maximum number of marks. Beyond it, every second one is forgotten."""


class Marks:
    """Some events of a log, with the number of bytes added before them. Between two marks, all events count the same."""

    def __init__(self) -> None:
        self._numbers = [0]
        self._bytes = [0]

    def begin(self, segments: list[tuple[int, int]], end: int) -> int:
        """Start over with the first events and the sizes of all segments, and the end of the log. Return the bytes."""
        total = 0
        self._numbers, self._bytes = [], []
        for number, size in segments:
            self._numbers.append(number)
            self._bytes.append(total)
            total += size
        self.add(end, total)
        return total

    def add(self, number: int, size: int) -> None:
        """Record that `size` bytes come before event `number`, the next one."""
        if self._numbers and self._numbers[-1] >= number:
            self._bytes[-1] = size
            return
        self._numbers.append(number)
        self._bytes.append(size)
        if len(self._numbers) > MOST:
            del self._numbers[1:-1:2], self._bytes[1:-1:2]

    def before(self, number: int) -> int:
        """Return about how many bytes come before event `number`. Events before it are forgotten."""
        at = bisect_right(self._numbers, number) - 1
        if at < 0:
            return self._bytes[0]
        if at > 0:
            del self._numbers[:at], self._bytes[:at]
        if len(self._numbers) == 1:
            return self._bytes[0]
        first, end = self._numbers[0], self._numbers[1]
        share = (number - first) / (end - first)
        return self._bytes[0] + int((self._bytes[1] - self._bytes[0]) * share)


__all__ = ["Marks"]
