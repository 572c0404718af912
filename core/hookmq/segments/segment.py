"""One segment: a file that begins with what it belongs to and goes on with frames.

Its name is the number of its first record. It gets its name when its beginning is on the disk, and its first frame when
its name is; it is followed by another segment only when all of it is on the disk. So only the end of the last segment
may be torn.
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

from hookmq.errors import StoreError
from hookmq.segments.frame import HEADER, Frame, after_damage, decode, known_end, lost, scan

SUFFIX: Final = ".segment"
_MAGIC: Final = b"HookMQs1"
_HEAD: Final = struct.Struct("<8sII")
"""magic, CRC of the description, its length"""
_SMALLEST_INDEX: Final = 65536
"""Bytes between two entries of a segment's index."""
UNNAMED: Final = ".new"
"""Ends the name of a segment that is being made."""


@dataclass(slots=True)
class Segment:
    """A segment's file and what is known of it: `end` is the number of the record after its last, `size` its bytes."""

    path: Path
    log: str
    store: str
    base: int
    head: int
    end: int = 0
    size: int = 0
    commit: int = 0
    """The newest commit in it; 0 while it is empty."""
    offsets: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    @property
    def salt(self) -> int:
        """Where this log's checksums begin."""
        return crc32(self.log.encode())

    def grown(self, frame: Frame, position: int, after: int) -> None:
        """Take note of a frame from `position` to `after`."""
        if not self.positions or position - self.positions[-1] >= _SMALLEST_INDEX:
            self.positions.append(
                position
            )  # before the offset: a reader in another thread looks there first
            self.offsets.append(frame.offset)
        self.end, self.commit = frame.end, frame.commit
        self.size = after

    def marked(self, offset: int, position: int) -> None:
        """Have `find` know where the frame of record `offset` begins."""
        at = bisect_right(self.offsets, offset)
        if at == 0 or self.offsets[at - 1] != offset:
            self.positions.insert(
                at, position
            )  # first: until the other has it, too, a place before it is found
            self.offsets.insert(at, offset)

    def find(self, offset: int) -> int:
        """A position at or before the frame that holds record `offset`."""
        at = bisect_right(self.offsets, offset) - 1
        return self.positions[at] if at >= 0 else self.head

    def frames(self, position: int) -> Iterator[tuple[int, Frame]]:
        """The frames from `position` up to `size`, each with the position after it, read as they are asked for. Raises
        StoreError where one is not whole, FileNotFoundError when the segment is gone."""
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
    """The number of the first record from `offset` on that can be read, where that one cannot; the segment's end if none
    can. Reading can go on there. Raises OSError."""
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
    """The file of the segment whose first record is `base`."""
    return folder / f"{base:020d}{SUFFIX}"


def beginning(log: str, store: str, base: int) -> bytes:
    """What a segment's file begins with."""
    description = json.dumps({"log": log, "store": store, "base": base}).encode()
    return _HEAD.pack(_MAGIC, crc32(description), len(description)) + description


def create(folder: Path, log: str, store: str, base: int) -> Segment:
    """A new segment, on the disk when this returns, in the place of an empty one of that name. Raises OSError."""
    path = path_of(folder, base)
    unnamed = path.with_name(path.name + UNNAMED)
    head = beginning(log, store, base)
    file = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write(file, head)
        os.fsync(file)
    finally:
        os.close(file)
    unnamed.replace(path)
    sync_folder(folder)
    return Segment(path, log, store, base, len(head), base, len(head))


def read(path: Path, last: bool, verify: bool = True, name: str = "", salvage: str = "") -> Segment:
    """What is in a segment. `last`: no segment follows, so that its end may be torn, which is left for `truncate`.
    Without `verify` payloads are not looked at, but in the last. `name`: what it is going to be called. Raises
    StoreError for what no crash can have done to it, OSError. With `salvage`, the id of its log, what is damaged is
    passed over: no number in it is ever given out again."""
    with mapped(path) as data:
        segment = _head(path, data, name or path.name)
        if segment is None:
            if not salvage or not path.stem.isdigit():
                raise StoreError(
                    f"{path} does not begin as a segment does: it is damaged, or not ours"
                )
            base = int(path.name.removesuffix(SUFFIX))
            segment = Segment(path, salvage, "", base, 0, base, 0)
        at = segment.head
        while True:
            for after, frame in scan(data, at, segment.salt, verify or last):
                if frame.offset != segment.end:
                    raise StoreError(
                        f"{path} has record {frame.offset} where {segment.end} belongs"
                    )
                segment.grown(frame, at, after)
                at = after
            torn = at < len(data)
            if not torn or (
                last and segment.head and not lost(data, at, segment.end, segment.salt)
            ):
                return segment
            if not salvage:
                raise StoreError(
                    f"{path} is damaged at byte {at}: record {segment.end} had been safe"
                )
            good = after_damage(data, at - 1, segment.end, segment.salt)
            if good is None:
                if last:  # before one that follows, this one's end is known
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
    """The id of the log that a file belongs to, '' where it does not begin as a segment does. Raises OSError."""
    with mapped(path) as data:
        segment = _head(path, data, path.name)
        return "" if segment is None else segment.log


def _head(path: Path, data: memoryview, name: str) -> Segment | None:
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
    """Cut off what lies after the segment's known size; whether there was any. Raises OSError."""
    file = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_size <= segment.size:
            return False
        os.ftruncate(file, segment.size)
        os.fsync(file)
    finally:
        os.close(file)
    return True


def write(file: int, data: bytes) -> None:
    """Write all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` safe. Raises OSError."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, without reading them all at once."""
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
