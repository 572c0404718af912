"""Encode a group's unsettled messages for storage, in pages of 128 offsets.

A page contains the positions of the unsettled messages, as a bitmap or a list, whichever is smaller. An ordinary
message (delivered once, not deferred) needs nothing else. Other messages also need their count, their due time or a
bit.

A group's state is stored with each commit, even if it has many unsettled messages. Only a few pages change between
commits, so `Pages` keeps the encoded bytes of the others.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

SHIFT: Final = 7
"""An offset is in the page `offset >> SHIFT`."""
_SIZE: Final = 1 << SHIFT
_HEAD: Final = struct.Struct("<QB")
"""The page number, and flags for the parts that follow the positions of the unsettled messages."""
_UNSURE: Final = 1
_COUNTS: Final = 2
_DUES: Final = 4
_MAP: Final = _SIZE // 8
"""Size of a bitmap in bytes. With at least as many positions, a bitmap is smaller than a list."""
_DIGITS: Final = bytes.maketrans(b"\0\1", b"01")
_WIDTHS: Final = (("B", 1), ("H", 2), ("I", 4), ("Q", 8))
_MAX_DUE: Final = 1 << 53


class Entry(NamedTuple):
    """An unsettled message. `due` is in milliseconds since the epoch, or -1 if the message is not deferred."""

    offset: int
    deliveries: int
    unsure: bool
    due: int


class Pages:
    """The stored form of a group's unsettled messages. Call `touch` whenever one changes."""

    def __init__(self) -> None:
        self._forms: dict[int, bytes] = {}
        self._touched: set[int] = set()
        self.touch = self._touched.add
        """Records that a message in the page with this number has changed."""

    def encode(
        self, counts: Mapping[int, int], odd: Set[int], unsure: Set[int], dues: Mapping[int, int]
    ) -> bytes:
        """Return the messages as bytes. `counts` holds each message's number of deliveries. `odd` holds the messages
        for which that number is not 1. `dues` is in milliseconds. Only pages that were touched are encoded.
        """
        forms = self._forms
        for number in self._touched:
            form = _encode(number, counts, odd, unsure, dues)
            if form:
                forms[number] = form
            else:
                forms.pop(number, None)
        self._touched.clear()
        return b"".join(forms.values())


def _encode(
    number: int, counts: Mapping[int, int], odd: Set[int], unsure: Set[int], dues: Mapping[int, int]
) -> bytes:
    start = number << SHIFT
    flags = bytes(map(counts.__contains__, range(start, start + _SIZE)))
    if 1 not in flags:
        return b""
    kinds = 0
    parts = [b"", _positions(flags)]
    if unsure:
        flags = bytes(map(unsure.__contains__, range(start, start + _SIZE)))
        if 1 in flags:
            kinds |= _UNSURE
            parts.append(_positions(flags))
    if odd:
        found = [offset for offset in range(start, start + _SIZE) if offset in odd]
        if found:
            kinds |= _COUNTS
            parts += (_positions_of(start, found), _values([counts[offset] for offset in found]))
    if dues:
        found = [offset for offset in range(start, start + _SIZE) if offset in dues]
        if found:
            kinds |= _DUES
            first = min(dues[offset] for offset in found)
            parts += (
                _positions_of(start, found),
                struct.pack("<Q", first),
                _values([dues[offset] - first for offset in found]),
            )
    parts[0] = _HEAD.pack(number, kinds)
    return b"".join(parts)


def _positions(flags: bytes) -> bytes:
    """Return where `flags` contains ones: their number and a list, or 0 and a bitmap."""
    count = flags.count(1)
    if count < _MAP:
        return bytes((count, *(at for at, one in enumerate(flags) if one)))
    bits = int(flags.translate(_DIGITS)[::-1], 2)
    return b"\0" + bits.to_bytes(_MAP, "little")


def _positions_of(start: int, offsets: Iterable[int]) -> bytes:
    flags = bytearray(_SIZE)
    for offset in offsets:
        flags[offset - start] = 1
    return _positions(bytes(flags))


def _values(values: Sequence[int]) -> bytes:
    """Encode numbers with the smallest width that fits them all, preceded by that width."""
    most = max(values)
    kind, width = next(one for one in _WIDTHS if most < 1 << 8 * one[1])
    return struct.pack(f"<B{len(values)}{kind}", width, *values)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise ValueError("it is incomplete")
        self._at += size
        return found

    def positions(self) -> list[int]:
        count = self.take(1)[0]
        if not count:
            bits = int.from_bytes(self.take(_MAP), "little")
            return [at for at in range(_SIZE) if bits >> at & 1]
        found = list(self.take(count))
        if count >= _MAP or found != sorted(set(found)):
            raise ValueError("a list of positions is damaged")
        return found

    def values(self, count: int) -> tuple[int, ...]:
        width = self.take(1)[0]
        kind = {width: kind for kind, width in _WIDTHS}.get(width)
        if kind is None:
            raise ValueError(f"unknown width {width}")
        return struct.unpack(f"<{count}{kind}", self.take(count * width))


def decode(data: bytes) -> Iterator[Entry]:
    """Yield the messages that `Pages.encode` encoded, in offset order. Raises ValueError if the bytes are damaged."""
    pages: dict[int, list[Entry]] = {}
    reader = _Reader(data)
    while reader:
        number, kinds = _HEAD.unpack(reader.take(_HEAD.size))
        if number in pages or number >> (63 - SHIFT) or kinds >= 8:
            raise ValueError(f"page {number}, parts {kinds}")
        start = number << SHIFT
        positions = reader.positions()
        unsure = reader.positions() if kinds & _UNSURE else []
        counts: dict[int, int] = {}
        if kinds & _COUNTS:
            odd = reader.positions()
            counts = dict(zip(odd, reader.values(len(odd)), strict=True))
        dues: dict[int, int] = {}
        if kinds & _DUES:
            late = reader.positions()
            first = struct.unpack("<Q", reader.take(8))[0]
            dues = {at: first + one for at, one in zip(late, reader.values(len(late)), strict=True)}
        if not positions or not {*unsure, *counts, *dues} <= set(positions):
            raise ValueError(f"page {number} contradicts itself")
        if max(dues.values(), default=0) > _MAX_DUE:
            raise ValueError(f"page {number} has a due time that is too late")
        pages[number] = [
            Entry(start + at, counts.get(at, 1), at in unsure, dues.get(at, -1)) for at in positions
        ]
    for number in sorted(pages):
        yield from pages[number]
