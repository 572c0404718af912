"""Follow a log that another process writes. See `LogTail`."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from hookmq.plugin import StoreError

from hookmq_toolkit.segment_log.frame import HEADER, Frame, decode, scan
from hookmq_toolkit.segment_log.log import Trimmed
from hookmq_toolkit.segment_log.segment import SUFFIX, head_of, mapped, path_of

_ATTEMPTS: Final = 5
"""Attempts to find a record while segments before it are being deleted."""


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

    def read(self, offset: int, end: int, size: int) -> list[Frame]:
        """Return frames of about `size` bytes, starting with the frame that holds record `offset`. No frame goes beyond
        record `end`, which must be committed. The list is empty only if `offset` is `end`.

        Raises Trimmed if the record was deleted, and StoreError if it is damaged or missing.
        """
        found: list[Frame] = []
        try:
            while offset < end and size > 0:
                frames = self._frames(offset, end, size)
                found += frames
                offset = self._next = frames[-1].end
                size -= sum(len(frame.payload) for frame in frames)
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror}") from error
        except (Trimmed, StoreError):
            if not found:
                raise
        return found

    def _frames(self, offset: int, end: int, size: int) -> list[Frame]:
        """Return at least one frame of one segment."""
        if offset == self._next and self._path is not None:
            with suppress(FileNotFoundError):
                if frames := self._read(end, size):
                    return frames
        # The segment ended or was deleted.
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                self._seek(offset)
                if frames := self._read(end, size):
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

    def _read(self, end: int, size: int) -> list[Frame]:
        assert self._path is not None
        found: list[Frame] = []
        file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while size > 0:
                header = os.pread(file, HEADER.size, self._position)
                if len(header) < HEADER.size:
                    break
                length = HEADER.unpack(header)[3]
                data = header + os.pread(file, length, self._position + HEADER.size)
                frame = decode(data, 0, self._salt)
                if frame is None or frame.end > end:
                    break
                found.append(frame)
                self._position += len(data)
                size -= length
                if frame.end == end:
                    break
        finally:
            os.close(file)
        return found
