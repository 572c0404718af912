"""A segment: a file with a description of the log, followed by frames.

A segment's file is named after the number of its first record. The file gets this name once its description is on disk,
before its first frame is written. The next segment begins only when the whole file is on disk, so only the end of the
last segment can be torn.
"""

import json
import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

from hookmq.plugin import StoreError

from hookmq_toolkit.durable_files import replacing, write_all
from hookmq_toolkit.segment_log.frame import (
    HEADER,
    Frame,
    after_damage,
    decode,
    known_end,
    lost,
    scan,
)

SUFFIX: Final = ".segment"
_MAGIC: Final = b"HookMQs1"
_HEAD: Final = struct.Struct("<8sII")
"""Magic, CRC of the description, length of the description."""
_SMALLEST_INDEX: Final = 65536
"""Bytes between two entries of a segment's index."""
UNNAMED: Final = ".new"
"""File name suffix of a segment that is not complete yet."""


@dataclass(slots=True)
class Segment:
    """A segment's file and index. `end` is the number that follows its last record, and `size` is in bytes."""

    path: Path
    log: str
    store: str
    base: int
    head: int
    end: int = 0
    size: int = 0
    commit: int = 0
    """The newest commit; 0 if the segment is empty."""
    offsets: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    @property
    def salt(self) -> int:
        """Return the number that seeds this log's checksums."""
        return crc32(self.log.encode())

    def grown(self, frame: Frame, position: int, after: int) -> None:
        """Add a frame that lies between the positions `position` and `after`."""
        if not self.positions or position - self.positions[-1] >= _SMALLEST_INDEX:
            self.positions.append(
                position
            )  # before the offset: a reader in another thread looks up the offset first
            self.offsets.append(frame.offset)
        self.end, self.commit = frame.end, frame.commit
        self.size = after

    def marked(self, offset: int, position: int) -> None:
        """Add the position of the frame with record `offset` to the index."""
        at = bisect_right(self.offsets, offset)
        if at == 0 or self.offsets[at - 1] != offset:
            self.positions.insert(
                at, position
            )  # before the offset: until both are there, `find` returns an earlier position
            self.offsets.insert(at, offset)

    def find(self, offset: int) -> int:
        """Return a position at or before the frame that holds record `offset`."""
        at = bisect_right(self.offsets, offset) - 1
        return self.positions[at] if at >= 0 else self.head

    def frames(self, position: int) -> Iterator[tuple[int, Frame]]:
        """Yield the frames from `position` up to `size`, each with the position after it. Reads the file lazily. Raises
        StoreError if a frame is incomplete or damaged, and FileNotFoundError if the segment was deleted."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = self.size
            while position < size:
                header = os.pread(file, HEADER.size, position)
                length = HEADER.unpack(header)[3] if len(header) == HEADER.size else 0
                data = header + os.pread(file, min(length, size), position + HEADER.size)
                frame = decode(data, 0, self.salt)
                if frame is None:
                    raise StoreError(f"{self.path} is damaged at byte {position}")
                position += len(data)
                yield position, frame
        finally:
            os.close(file)


def next_good(segment: Segment, offset: int) -> int:
    """Return the number of the first readable record at or after `offset`, where reading has failed. Return the
    segment's end if there is no such record. Raises OSError.
    """
    with mapped(segment.path) as data:
        position = at = segment.find(offset)
        for after, frame in scan(data, position, segment.salt):
            if frame.end > offset:
                segment.marked(frame.offset, at)
                return frame.offset
            at = after
        found = after_damage(data, at, offset, segment.salt)
        if found is None:
            return segment.end
        segment.marked(found[1].offset, found[0])
        return found[1].offset


def path_of(folder: Path, base: int) -> Path:
    """Return the path of the segment that begins with record `base`."""
    return folder / f"{base:020d}{SUFFIX}"


def beginning(log: str, store: str, base: int) -> bytes:
    """Return the first bytes of a segment's file, which describe it."""
    description = json.dumps({"log": log, "store": store, "base": base}).encode()
    return _HEAD.pack(_MAGIC, crc32(description), len(description)) + description


def create(folder: Path, log: str, store: str, base: int) -> Segment:
    """Create a segment, replacing an empty one with the same name. The new segment is on disk when this returns. Raises
    OSError."""
    path = path_of(folder, base)
    head = beginning(log, store, base)
    with replacing(path, path.with_name(path.name + UNNAMED)) as file:
        write_all(file, head)
    return Segment(path, log, store, base, len(head), base, len(head))


def read(path: Path, last: bool, verify: bool = True, name: str = "", salvage: str = "") -> Segment:
    """Return the segment in the file `path`, with its index.

    If `last` is true, no segment follows, so the end may be torn; `truncate` cuts off a torn end. Without `verify`,
    payloads are checked only in the last segment. `name` is the name that the file will get. `salvage` is the id of the
    segment's log. If it is given, damage is skipped, and the record numbers in the damaged part are never reused. Raises
    OSError, or StoreError for damage that no crash can cause.
    """
    with mapped(path) as data:
        segment = head_of(path, data, name or path.name)
        if segment is None:
            if not salvage or not path.stem.isdigit():
                raise StoreError(
                    f"{path} does not begin like a segment: it is damaged or another program's"
                )
            base = int(path.name.removesuffix(SUFFIX))
            segment = Segment(path, salvage, "", base, 0, base, 0)
        at = segment.head
        while True:
            for after, frame in scan(data, at, segment.salt, verify or last):
                if frame.offset != segment.end:
                    raise StoreError(f"{path} has record {frame.offset} instead of {segment.end}")
                segment.grown(frame, at, after)
                at = after
            torn = at < len(data)
            if not torn or (
                last and segment.head and not lost(data, at, segment.end, segment.salt)
            ):
                return segment
            if not salvage:
                raise StoreError(
                    f"{path} is damaged at byte {at}: record {segment.end} was safe before"
                )
            good = after_damage(data, at - 1, segment.end, segment.salt)
            if good is None:
                if last:  # otherwise the next segment shows where this one ends
                    segment.end = max(segment.end, known_end(data, at, segment.salt))
                    if not segment.head:
                        segment.end = max(segment.end, segment.base + len(data) // HEADER.size)
                segment.size = len(data)
                return segment
            at, frame = good
            segment.end = frame.offset
            segment.marked(frame.offset, at)
            segment.head = segment.head or at


def log_of(path: Path) -> str:
    """Return the id of the log that a file belongs to, or '' if it does not begin like a segment. Raises OSError."""
    with mapped(path) as data:
        segment = head_of(path, data, path.name)
        return "" if segment is None else segment.log


def head_of(path: Path, data: memoryview, name: str) -> Segment | None:
    """Return the segment described by `data`, the first bytes of the file `path`. It has no frames yet. Return None if
    `data` does not describe a segment. Raises StoreError if `name` is not the name of this segment.
    """
    if len(data) < _HEAD.size:
        return None
    magic, check, length = _HEAD.unpack(data[: _HEAD.size])
    description = bytes(data[_HEAD.size : _HEAD.size + length])
    if magic != _MAGIC or len(description) != length or crc32(description) != check:
        return None
    known = json.loads(description)
    head = _HEAD.size + length
    base = known["base"]
    if path_of(path.parent, base).name != name:
        raise StoreError(f"{path} was renamed: it begins with record {base}")
    return Segment(path, known["log"], known["store"], base, head, base, head)


def truncate(segment: Segment) -> bool:
    """Cut off all bytes beyond the segment's known size, and return whether there were any. Raises OSError."""
    file = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_size <= segment.size:
            return False
        os.ftruncate(file, segment.size)
        os.fsync(file)
    finally:
        os.close(file)
    return True


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Map a file into memory, without reading all of it."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            view = memoryview(data)
            try:
                yield view
            finally:
                view.release()
