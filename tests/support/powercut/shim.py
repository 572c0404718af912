"""The recorder, which is a C library built with gcc when needed, and the recorder's log."""

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).with_name("shim.c")
ROOM: Final = 1 << 30
"""Maximum size of a log in bytes. The file is sparse, so only written data takes space."""
_HEAD: Final = struct.Struct("<QQQQ")
_RECORD: Final = struct.Struct("<IHHQQqqQIIII")
_MAGIC: Final = 0x54554352
_DURABLE: Final = 1


class Kind(IntEnum):
    """The kinds of records, as in shim.c."""

    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    RENAME = 4
    UNLINK = 5
    MKDIR = 6
    RMDIR = 7
    LINK = 8
    SYNC = 9
    SYNC_ALL = 10
    MAPPED = 11
    MARK = 12
    UNKNOWN = 13
    ZERO = 14
    FAILED = 15


class Record(NamedTuple):
    """One change, sync or mark, at its position in the sequence of records."""

    at: int
    kind: Kind
    durable: bool
    inode: int
    a: int
    """WRITE, ZERO: the offset. TRUNCATE: the new size. SYNC, FAILED: the position before which records are affected."""
    b: int
    """ZERO: the number of bytes."""
    data: bytes
    first: str
    second: str
    process: int


class RecordingError(Exception):
    """Raised if the records are incomplete or contradict the folder, or if an operation cannot be recorded."""


def missing() -> str:
    """Return why recording is impossible on this machine, or '' if it is possible."""
    if not sys.platform.startswith("linux"):
        return "the recorder is for Linux"
    return "" if _compiler() else "a compiler builds the recorder: gcc or cc"


def _compiler() -> str:
    return shutil.which("gcc") or shutil.which("cc") or ""


def build(folder: Path) -> Path:
    """Build the recorder library in `folder` and return its path. Raise RecordingError if that fails."""
    made = folder / "powercut.so"
    if missing():
        raise RecordingError(missing())
    compiler = _compiler()
    command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RecordingError(f"the recorder does not compile:\n{done.stderr}")
    return made


class Log:
    """The log that this process and all recorded processes append to.

    Sync number `failing`, counted from 1, fails with EIO.
    """

    def __init__(self, library: Path, path: Path, failing: int = 0) -> None:
        self.path = path
        with path.open("wb") as file:
            file.write(_HEAD.pack(64, ROOM, 0, failing))
            file.truncate(ROOM)
        self._library = ctypes.CDLL(str(library))
        # A library maps one log per process. For a second log, only that log's own library would append to it.
        if self._library.powercut_attach(os.fsencode(path)):
            raise RecordingError(f"{path} cannot be mapped")
        self._note = self._library.powercut_note
        self._note.argtypes = (
            ctypes.c_int, ctypes.c_uint64, ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
        )  # fmt: skip
        self._note.restype = None

    def note(
        self, kind: Kind, inode: int = 0, a: int = 0, data: bytes = b"", path: str = ""
    ) -> None:
        """Append a record."""
        self._note(kind, inode, a, data, len(data), os.fsencode(path))


def read(path: Path) -> list[Record]:
    """Return all records of a log in order. Raise RecordingError if the log overflowed."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return list(_records(data))


def shrink(path: Path, to: Path) -> None:
    """Copy a log, leaving out its unused space."""
    with path.open("rb") as file:
        tail, *_ = _HEAD.unpack(file.read(_HEAD.size))
        file.seek(0)
        to.write_bytes(file.read(tail))


def _records(data: mmap.mmap) -> Iterator[Record]:
    tail, size, *_ = _HEAD.unpack_from(data)
    if tail > size:
        raise RecordingError(f"more than {size} bytes were recorded")
    at = 64
    while at < tail:
        (
            magic, kind, flags, length, inode, a, b, bytes_, first, second, process, ready,
        ) = _RECORD.unpack_from(data, at)  # fmt: skip
        if magic != _MAGIC or not ready:
            # The process was killed while recording: that call counts as not done.
            at += 8 if magic != _MAGIC or not length else length
            continue
        start = at + _RECORD.size
        paths = start + bytes_
        yield Record(
            at,
            Kind(kind),
            bool(flags & _DURABLE),
            inode,
            a,
            b,
            data[start:paths],
            os.fsdecode(data[paths : paths + first]),
            os.fsdecode(data[paths + first : paths + first + second]),
            process,
        )
        at += length
