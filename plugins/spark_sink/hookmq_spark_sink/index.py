"""Find a stream's blocks by reading the headers in its segments, but not the payloads. Both the broker (at startup)
and every reader of the stream's folder use this module.
"""

import json
import os
import resource
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from hookmq.plugin import StoreError
from hookmq_toolkit.segment_log.frame import HEADER as FRAME
from hookmq_toolkit.segment_log.frame import MAGIC as FRAME_MAGIC
from hookmq_toolkit.segment_log.segment import SUFFIX

from hookmq_spark_sink import block, packed
from hookmq_spark_sink.files import LOG, State

_HEAD: Final = struct.Struct("<8sII")
_SEGMENT_MAGIC: Final = b"HookMQs1"
_CHUNK: Final = 1 << 16
_FILES: Final = 1 << 16
_TIMES: Final = frozenset({block.TIMESTAMP})


class Place(NamedTuple):
    """A block's offset range, and its position in the segment file."""

    base: int
    end: int
    position: int
    length: int


class Part:
    """The blocks of one partition in one segment, stored as columns."""

    __slots__ = ("bases", "end", "highs", "lengths", "positions")

    def __init__(self) -> None:
        self.bases = array("q")
        self.positions = array("q")
        self.lengths = array("q")
        self.highs = array("q")
        """For each block, the largest timestamp in that block and all earlier ones."""
        self.end = 0

    def add(self, head: block.Head, position: int, length: int) -> None:
        """Add the next block."""
        high = head.max_timestamp
        if self.highs and self.highs[-1] > high:
            high = self.highs[-1]
        self.positions.append(position)
        self.lengths.append(length)
        self.highs.append(high)
        self.bases.append(head.base)
        self.end = head.end

    def place(self, number: int) -> Place:
        """Return the offset range and position of a block."""
        end = self.bases[number + 1] if number + 1 < len(self.bases) else self.end
        return Place(self.bases[number], end, self.positions[number], self.lengths[number])

    def find(self, offset: int) -> int:
        """Return the number of the block that contains `offset`. Such a block must exist."""
        return bisect_right(self.bases, offset) - 1


class SegmentIndex:
    """The blocks of one segment. Its file stays open, so it can be read even after it has been replaced or deleted."""

    def __init__(self, path: Path) -> None:
        """Open the segment. Raises StoreError or OSError if it cannot be read."""
        self.path = path
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.inode = os.fstat(self.file).st_ino
            self.parts: dict[int, Part] = {}
            self.blocks = 0
            self.packed = 0
            """Number of compressed blocks."""
            self._read_head()
        except BaseException:
            self.close()
            raise

    def _read_head(self) -> None:
        start = os.pread(self.file, _HEAD.size, 0)
        if len(start) == _HEAD.size:
            magic, check, length = _HEAD.unpack(start)
            text = os.pread(self.file, length, _HEAD.size) if length < _CHUNK else b""
            if magic == _SEGMENT_MAGIC and crc32(text) == check:
                known = json.loads(text)
                self.log: str = known["log"]
                self.store: str = known["store"]
                self.base: int = known["base"]
                self.end = self.base
                self.position = _HEAD.size + length
                self.salt = crc32(self.log.encode())
                return
        raise StoreError(f"{self.path} does not begin like a segment: it is damaged")

    def extend(self, readable: int | None = None) -> None:
        """Add the log's blocks up to record `readable`. If it is None, add all complete blocks. Raises StoreError for
        a damaged block.
        """
        size = os.fstat(self.file).st_size
        while readable is None or self.end < readable:
            header = os.pread(self.file, FRAME.size + block.HEADER.size, self.position)
            if len(header) < FRAME.size + block.HEADER.size:
                break
            magic, check, _, length, records, _, offset, _ = FRAME.unpack_from(header)
            after = self.position + FRAME.size + length
            whole = magic == FRAME_MAGIC and crc32(header[8 : FRAME.size], self.salt) == check
            if not whole or after > size:
                break
            try:
                head = block.read_head(header, FRAME.size)
            except block.Damaged as error:
                raise StoreError(f"{self.path}, byte {self.position}: {error}") from None
            if offset != self.end or head.length != length or head.rows != records:
                raise StoreError(f"{self.path}, byte {self.position}: not the expected block")
            if readable is not None and offset + records > readable:
                return
            part = self.parts.get(head.partition)
            if part is None:
                part = self.parts[head.partition] = Part()
            elif part.end != head.base:
                raise StoreError(
                    f"{self.path}, byte {self.position}: partition {head.partition} goes from offset {part.end} to "
                    f"{head.base}"
                )
            part.add(head, self.position + FRAME.size, length)
            self.end = offset + records
            self.position = after
            self.blocks += 1
            self.packed += head.version == packed.VERSION
        if readable is not None and self.end < readable and self.position < size:
            raise StoreError(f"{self.path} is damaged at byte {self.position}")

    def read(self, place: Place) -> bytes:
        """Read a block's bytes. Raises StoreError or OSError if that fails."""
        data = os.pread(self.file, place.length, place.position)
        if len(data) != place.length:
            raise StoreError(f"{self.path} has become shorter")
        return data

    def close(self) -> None:
        """Close the file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        # Responses in progress may still use a replaced index. The last one closes its file.
        if getattr(self, "file", -1) >= 0:
            self.close()


class StreamIndex:
    """An index of all segments in a stream's folder, updated by `refresh`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments: list[SegmentIndex] = []
        self.log_id = ""
        self._generation: tuple[bytes, int] | None = None

    def refresh(self, state: State | None) -> None:
        """Add the new blocks that `state` allows readers to read. If there is no state, add all new blocks. Raises
        StoreError or OSError if a segment cannot be read.
        """
        readable = None if state is None else state.readable
        known = None if state is None else (state.boot, state.generation)
        if known is None or known != self._generation:
            self._list()
            self._generation = known
        elif readable is not None and self.segments and self.segments[-1].end >= readable:
            return
        while True:
            if self.segments:
                self.segments[-1].extend(readable)
            if readable is None or not self.segments or self.segments[-1].end >= readable:
                return
            # The missing records are in a segment that was started in the meantime.
            before, reached = self.segments[-1].base, self.segments[-1].end
            self._list()
            if not self.segments or self.segments[-1].base <= before:
                raise StoreError(f"{self.folder}: records {reached} to {readable} are missing")

    def _list(self) -> None:
        paths = sorted((self.folder / LOG).glob(f"*{SUFFIX}"))
        known = {(one.path.name, one.inode): one for one in self.segments}
        found: list[SegmentIndex] = []
        for path in paths:
            try:
                one = known.get((path.name, path.stat().st_ino)) or SegmentIndex(path)
            except FileNotFoundError:
                continue  # retention just deleted it
            found.append(one)
        for one in found[:-1]:
            one.extend()
        self.segments = found
        if found:
            self.log_id = found[-1].log

    def blocks(self, partition: int, start: int, end: int) -> Iterator[tuple[SegmentIndex, Place]]:
        """Yield a partition's blocks that contain any offset from `start` to `end`, in order."""
        for segment in list(self.segments):
            part = segment.parts.get(partition)
            if part is None or part.end <= start:
                continue
            number = max(part.find(start), 0)
            while number < len(part.bases):
                place = part.place(number)
                if place.base >= end:
                    return
                yield segment, place
                number += 1

    def at(self, partition: int, timestamp: int, earliest: int, latest: int) -> int | None:
        """Return the offset of the first message at or after `timestamp` (µs), or None if there is none.

        Searches the offsets from `earliest` to `latest - 1`. Raises StoreError for a damaged block.
        """
        for segment in list(self.segments):
            part = segment.parts.get(partition)
            if part is None or part.end <= earliest or part.highs[-1] < timestamp:
                continue
            for number in range(bisect_left(part.highs, timestamp), len(part.bases)):
                place = part.place(number)
                if place.base >= latest:
                    return None
                if place.end <= earliest:
                    continue
                times = block.fixed(parse(segment, place, _TIMES), block.TIMESTAMP)
                for row, time in enumerate(times):
                    if time >= timestamp and place.base + row >= earliest:
                        offset = place.base + row
                        return offset if offset < latest else None
        return None

    def newest(self, partition: int, offset: int) -> int | None:
        """Return the newest timestamp (µs) up to the end of the block that contains `offset`. Return None if no block
        contains `offset`.
        """
        for segment in self.segments:
            part = segment.parts.get(partition)
            if part is not None and part.bases[0] <= offset < part.end:
                return part.highs[part.find(offset)]
        return None

    def ends(self) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end of each partition. Partitions without blocks are omitted."""
        found: dict[int, tuple[int, int]] = {}
        for segment in self.segments:
            for number, part in segment.parts.items():
                first = found[number][0] if number in found else part.bases[0]
                found[number] = (first, part.end)
        return found

    def close(self) -> None:
        """Close all files."""
        self.segments = []
        self._generation = None


def closed_indexes(folder: Path) -> list[SegmentIndex]:
    """Return an index for each segment that is no longer being written, with its file closed. Raises StoreError or
    OSError if a segment cannot be read.
    """
    found: list[SegmentIndex] = []
    for path in sorted((folder / LOG).glob(f"*{SUFFIX}")):
        one = SegmentIndex(path)
        try:
            one.extend()
        finally:
            one.close()
        found.append(one)
    return found


def raise_file_limit() -> None:
    """Raise this process's limit on open files to the maximum, because a reader opens one file per segment."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def parse(segment: SegmentIndex, place: Place, wanted: frozenset[int] | None = None) -> block.Block:
    """Decode a block and verify its checksum. With `wanted`, omit all other columns. Raises StoreError if the block is
    damaged.
    """
    try:
        return packed.parse(segment.read(place), wanted)
    except block.Damaged as error:
        raise StoreError(f"{segment.path}, byte {place.position}: {error}") from None
