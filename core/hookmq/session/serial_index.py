"""List objects in the order in which they were added, starting at any position.

Every object gets a serial number, which never changes and is never reused. A reader that remembers the last serial
number it has seen misses nothing and sees nothing twice. This holds even if objects are added and removed in between.
The objects are in small sorted lists. Adding or removing an object therefore takes the same time for ten objects and
for ten million.
"""

from bisect import bisect_left, bisect_right
from typing import Final, Generic, TypeVar

BLOCK: Final = 256
"""Maximum number of objects in one list."""
_SPARSE: Final = BLOCK // 4
"""A list with fewer objects is merged into the previous list, if there is room."""


class Numbered:
    """The base class of objects in a `SerialIndex`. `serial` is 0 until the object is added."""

    __slots__ = ("serial",)

    def __init__(self) -> None:
        self.serial = 0


V = TypeVar("V", bound=Numbered)


class SerialIndex(Generic[V]):
    """Objects sorted by serial number."""

    __slots__ = ("_blocks", "_last", "_size")

    def __init__(self) -> None:
        self._blocks: list[list[V]] = []
        """Lists of objects, none of them empty."""
        self._last = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, item: V) -> None:
        """Give `item` the next serial number and add it."""
        self._last += 1
        item.serial = self._last
        self._size += 1
        blocks = self._blocks
        if blocks and len(blocks[-1]) < BLOCK:
            blocks[-1].append(item)
        else:
            blocks.append([item])

    def remove(self, item: V) -> None:
        """Remove `item`. Does nothing if it is not in the index."""
        blocks = self._blocks
        at = bisect_right(blocks, item.serial, key=_first) - 1
        if at < 0:
            return
        block = blocks[at]
        index = bisect_left(block, item.serial, key=_serial)
        if index == len(block) or block[index] is not item:
            return
        del block[index]
        self._size -= 1
        if not block:
            del blocks[at]
        elif at and len(block) < _SPARSE and len(blocks[at - 1]) + len(block) <= BLOCK:
            blocks[at - 1] += block
            del blocks[at]

    def page(self, serial: int, count: int) -> list[V]:
        """Return a new list of up to `count` objects with serial numbers of at least `serial`, lowest first."""
        found: list[V] = []
        blocks = self._blocks
        at = max(0, bisect_right(blocks, serial, key=_first) - 1)
        if at == len(blocks):
            return found
        index = bisect_left(blocks[at], serial, key=_serial)
        while at < len(blocks) and len(found) < count:
            found += blocks[at][index : index + count - len(found)]
            index = 0
            at += 1
        return found


def _serial(item: Numbered) -> int:
    return item.serial


def _first(block: list[V]) -> int:
    return block[0].serial
