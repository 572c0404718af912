"""Read a log that another process writes, without taking the log's lock.

The reader must learn from the writer which records are committed: it must not read any others, because a crash may
remove them. It also learns when files were created, deleted or replaced, and then calls `LogReader.refresh`. Files stay
open, so that reads continue when the writer deletes or replaces them.
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from hookmq.plugin import StoreError

from hookmq_toolkit.segment_log.frame import Frame, decode, header_of
from hookmq_toolkit.segment_log.log import Trimmed
from hookmq_toolkit.segment_log.segment import SUFFIX, head_of

_BEGINNING: Final = 4096
"""The number of bytes at the start of a file that contain the segment's description."""
_CHUNK: Final = 256 << 10
"""Bytes to read from the disk at a time."""
_STEP: Final = 1 << 16
"""Bytes between two entries of a segment's index."""


class SegmentReader:
    """The file of one segment. `base` is the number of its first record, and `log` the id of its log.

    All methods block, and may be called in any thread. They raise StoreError for damage, and OSError if reading fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self._file).st_ino
        found = head_of(path, memoryview(os.pread(self._file, _BEGINNING, 0)), path.name)
        if found is None:
            raise StoreError(f"{path} does not begin like a segment: it is damaged")
        self.log, self.base = found.log, found.base
        self._salt = found.salt
        self._offsets = array("q", [found.base])
        self._positions = array("q", [found.head])
        self._indexing = Lock()
        """Held while the index is used. The index grows as the file is read."""

    def __del__(self) -> None:
        # Reads in progress may still use a file that was replaced. The last one closes it.
        if getattr(self, "_file", -1) >= 0:
            os.close(self._file)
            self._file = -1

    def frames(self, offset: int, end: int) -> Iterator[Frame]:
        """Yield the frames that hold any record from `offset` to just before `end`. Stop at the end of the file. All
        records before `end` must be committed."""
        position, at = self._before(offset)
        while at < end:
            data = os.pread(self._file, _CHUNK, position)
            if not data:
                return
            used = 0
            while at < end and used < len(data):
                found = header_of(data, used, self._salt)
                if found is None or found[0].offset != at:
                    if found is None and used:
                        break  # the next read begins with this frame
                    raise self._damaged(position + used)
                head, length = found
                if used + length > len(data):
                    if used:
                        break
                    data = os.pread(self._file, length, position)
                if head.end > offset:
                    frame = decode(data, used, self._salt)
                    if frame is None:
                        raise self._damaged(position + used)
                    yield frame
                used += length
                at = head.end
                self._mark(at, position + used)
            position += used

    def places(self, end: int) -> Sequence[int]:
        """Return the offsets of some frames before `end`, in order. These frames are about `_STEP` bytes apart. The file
        is read up to `end`, but only once.
        """
        for _ in self.frames(end - 1, end):
            pass
        with self._indexing:
            return self._offsets[: bisect_right(self._offsets, end - 1)]

    def _before(self, offset: int) -> tuple[int, int]:
        """Return the position of a frame at or before the one with record `offset`, and the number of that frame's first
        record.
        """
        with self._indexing:
            at = bisect_right(self._offsets, offset) - 1
            return self._positions[at], self._offsets[at]

    def _mark(self, offset: int, position: int) -> None:
        """Remember the position of the frame that holds record `offset`."""
        if position - self._positions[-1] >= _STEP:
            with self._indexing:
                if offset > self._offsets[-1]:
                    self._offsets.append(offset)
                    self._positions.append(position)

    def _damaged(self, position: int) -> StoreError:
        return StoreError(f"{self.path} is damaged at byte {position}")


class LogReader:
    """The segments of a log in `folder`. `refresh` finds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments: tuple[SegmentReader, ...] = ()

    def refresh(self) -> None:
        """Open new files, and forget those that were deleted or replaced. This call blocks. Raises StoreError or
        OSError.
        """
        known = {(one.path.name, one.inode): one for one in self.segments}
        found: list[SegmentReader] = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                one = known.get((path.name, path.stat().st_ino)) or SegmentReader(path)
            except FileNotFoundError:
                continue  # it was just deleted
            found.append(one)
        self.segments = tuple(found)


def frames(segments: Sequence[SegmentReader], offset: int, end: int) -> Iterator[Frame]:
    """Yield the frames of a log that hold any record from `offset` to just before `end`, without gaps. All records before
    `end` must be committed.

    This call blocks, and may be made in any thread. Raises Trimmed if the first segment begins after `offset`,
    StoreError if records are damaged or missing, and OSError if reading fails.
    """
    if segments and offset < segments[0].base:
        raise Trimmed(segments[0].base)
    for number, one in enumerate(segments):
        last = number + 1 == len(segments)
        until = end if last else min(end, segments[number + 1].base)
        if until <= offset:
            continue
        for frame in one.frames(offset, until):
            yield frame
            offset = frame.end
        if offset < until:
            raise StoreError(f"{one.path}: records {offset} to {until} are missing")
        if offset >= end:
            return
    if offset < end:
        raise StoreError(f"records {offset} to {end} are missing")


__all__ = ["LogReader", "SegmentReader", "frames"]
