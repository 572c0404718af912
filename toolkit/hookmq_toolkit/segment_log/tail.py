"""Follow a log that another process writes. See `LogTail`."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from hookmq.plugin import StoreError

from hookmq_toolkit.segment_log.frame import HEADER, Frame, after_damage, decode, header_of, scan
from hookmq_toolkit.segment_log.log import Trimmed
from hookmq_toolkit.segment_log.segment import SUFFIX, head_of, mapped, path_of

_ATTEMPTS: Final = 5
"""Attempts to find a record while segments before it are being deleted."""
_SMALLEST: Final = 16 << 10
_CHUNK: Final = 64 << 10
"""Bytes to read from the disk at a time: the smaller number first, because often only one frame is new. Larger blocks
would be mapped and unmapped by each read. A larger frame is read alone."""


class LogTail:
    """Reads the frames of the log in `folder` without changing it. The caller must learn from the writer which records
    are committed.

    All methods block.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path: Path | None = None
        self._salt = 0
        self._position = 0
        self._next = -1

    def bases(self) -> list[int]:
        """Return the numbers of the first records of all segments. Raises OSError."""
        names = os.listdir(self.folder)
        return sorted(int(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))

    def read(self, offset: int, end: int, size: int, count: int = 1 << 30) -> list[Frame]:
        """Return at most `count` frames of about `size` bytes, starting with the frame that holds record `offset`. No
        frame goes beyond record `end`, which must be committed. The list is empty only if `offset` is `end`.

        Raises Trimmed if the record was deleted, and StoreError if it is damaged or missing.
        """
        found: list[Frame] = []
        try:
            while offset < end and size > 0 and count > len(found):
                frames = self._frames(offset, end, size, count - len(found))
                found += frames
                offset = self._next = frames[-1].end
                size -= sum(len(frame.payload) for frame in frames)
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror}") from error
        except (Trimmed, StoreError):
            if not found:
                raise
        return found

    def next_good(self, offset: int, end: int, log: str) -> int:
        """Return the number of the next readable record, at most `end`, which `read` can read now. Use it after `read`
        raised StoreError for `offset`. `log` is the log's id. Raises OSError.
        """
        salt = crc32(log.encode())
        bases = self.bases()
        base = max((one for one in bases if one <= offset), default=None)
        if base is not None:
            path = path_of(self.folder, base)
            with suppress(FileNotFoundError, StoreError), mapped(path) as data:
                segment = head_of(path, data, path.name)
                position = segment.head if segment is not None else 0
                for after, frame in scan(data, position, salt):
                    if frame.end > offset:
                        return self._continue(path, salt, position, max(frame.offset, offset), end)
                    position = after
                found = after_damage(data, max(0, position - 1), offset, salt)
                if found is not None:
                    return self._continue(path, salt, found[0], found[1].offset, end)
        return min((one for one in bases if offset < one < end), default=end)

    def _continue(self, path: Path, salt: int, position: int, offset: int, end: int) -> int:
        """Let the next read begin with record `offset`, at `position`. The segment's head may be damaged."""
        self._path, self._salt, self._position, self._next = path, salt, position, offset
        return min(offset, end)

    def _frames(self, offset: int, end: int, size: int, count: int) -> list[Frame]:
        """Return at least one frame of one segment."""
        if offset == self._next and self._path is not None:
            with suppress(FileNotFoundError):
                if frames := self._read(end, size, count):
                    return frames
        # The segment ended or was deleted.
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                self._seek(offset)
                if frames := self._read(end, size, count):
                    return frames
                break
        raise StoreError(f"{self._path or self.folder}: record {offset} is damaged or missing")

    def _seek(self, offset: int) -> None:
        """Find the frame that holds record `offset`. Raises OSError, Trimmed or StoreError."""
        bases = self.bases()
        base = max((one for one in bases if one <= offset), default=None)
        if base is None:
            raise Trimmed(bases[0]) if bases else StoreError(f"{self.folder} has no segments")
        path = path_of(self.folder, base)
        with mapped(path) as data:
            segment = head_of(path, data, path.name)
            if segment is None:
                raise StoreError(f"{path} does not begin like a segment")
            position = segment.head
            for after, frame in scan(data, position, segment.salt, False):
                if frame.end > offset:
                    break
                position = after
        self._path, self._salt, self._position = path, segment.salt, position

    def _read(self, end: int, size: int, count: int) -> list[Frame]:
        assert self._path is not None
        found: list[Frame] = []
        chunk = _SMALLEST
        file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while size > 0 and len(found) < count:
                data = os.pread(file, chunk, self._position)
                chunk = _CHUNK
                used = 0
                while size > 0 and len(found) < count and len(data) - used >= HEADER.size:
                    length = HEADER.unpack_from(data, used)[3] + HEADER.size
                    if length > len(data) - used:
                        if used:
                            break  # the next read begins with this frame
                        if header_of(data, used, self._salt) is None:
                            return found
                        data = os.pread(file, length, self._position)
                    frame = decode(data, used, self._salt)
                    if frame is None or frame.end > end:
                        return found
                    found.append(frame)
                    used += length
                    self._position += length
                    size -= length
                    if frame.end == end:
                        return found
                if not used:
                    return found
        finally:
            os.close(file)
        return found
