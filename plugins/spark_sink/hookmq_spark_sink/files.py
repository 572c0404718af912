"""A stream's folder: what describes it, what retention removed, how far its consumers are, and how far readers may go.

NAME/stream.json      what the stream is; written once
NAME/trimmed.json     where each partition begins, written before what lies below is deleted
NAME/consumers.json   how far each consumer is, written by the process that serves readers
NAME/state            how far readers may go, written after each commit; of no use when the broker is gone
NAME/log/*.segment    the records
"""

import fcntl
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from hookmq.errors import StoreError

STREAM: Final = "stream.json"
TRIMMED: Final = "trimmed.json"
CONSUMERS: Final = "consumers.json"
STATE: Final = "state"
LOG: Final = "log"
FORMAT: Final = 1
KNOWN: Final = frozenset({STREAM, TRIMMED, CONSUMERS, STATE, LOG})
_STATE_MAGIC: Final = b"HqSt"
_STATE: Final = struct.Struct("<4sI16sQQI4x")
"""magic, CRC of the rest, boot, generation, readable, partitions; then earliest and latest of each"""
_TRIES: Final = 100


class Description(NamedTuple):
    """What a stream is for good."""

    name: str
    partitions: int
    log_id: str


class State(NamedTuple):
    """How far readers may go. `boot` is of one life of the broker; `generation` grows when segments are replaced or
    deleted; `readable` is the log's; then by partition."""

    boot: bytes
    generation: int
    readable: int
    earliest: tuple[int, ...]
    latest: tuple[int, ...]


def write_atomically(path: Path, data: bytes, sync: bool = True) -> None:
    """Replace a file: after a crash it is the old one or the new one, whole. Raises OSError."""
    new = path.with_name(path.name + ".new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        if os.geteuid() == 0:
            # Root may run a command here, the broker somebody else, who is to read it.
            owner = os.stat(path.parent)
            os.fchown(file, owner.st_uid, owner.st_gid)
        if sync:
            os.fsync(file)
    finally:
        os.close(file)
    new.replace(path)
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder safe. Raises OSError."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise StoreError(f"{path} is not of format {FORMAT}: it is damaged, or of a newer version")
    return found


def read_description(folder: Path) -> Description | None:
    """What a stream's folder holds; None where nothing says so. Raises StoreError."""
    path = folder / STREAM
    found = _read_json(path)
    if found is None:
        return None
    try:
        return Description(str(found["name"]), int(found["partitions"]), str(found["log_id"]))
    except (KeyError, TypeError, ValueError):
        raise StoreError(f"{path} is damaged: it does not describe a stream") from None


def write_description(folder: Path, described: Description) -> None:
    """Raises OSError."""
    text = json.dumps({"format": FORMAT, **described._asdict()})
    write_atomically(folder / STREAM, text.encode())


def read_trimmed(folder: Path, log_id: str) -> dict[int, int]:
    """Where partitions begin from which something was removed. Raises StoreError."""
    path = folder / TRIMMED
    found = _read_json(path)
    if found is None:
        return {}
    try:
        if found["log_id"] != log_id:
            raise StoreError(f"{path} belongs to another log than {folder / LOG}")
        return {int(name): int(value) for name, value in found["earliest"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StoreError(f"{path} is damaged") from None


def write_trimmed(folder: Path, log_id: str, earliest: dict[int, int]) -> None:
    """Raises OSError."""
    text = {
        "format": FORMAT,
        "log_id": log_id,
        "earliest": {str(k): v for k, v in earliest.items()},
    }
    write_atomically(folder / TRIMMED, json.dumps(text).encode())


class StateFile:
    """`state`, for who writes it."""

    def __init__(self, folder: Path, boot: bytes) -> None:
        self._boot = boot
        self._file = os.open(
            folder / STATE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )

    def write(self, generation: int, readable: int, earliest: list[int], latest: list[int]) -> None:
        """Tell readers. A write into the page cache; never synced. Raises OSError."""
        count = len(earliest)
        rest = struct.pack(
            f"<16sQQI4x{2 * count}Q", self._boot, generation, readable, count, *earliest, *latest
        )
        os.pwrite(self._file, _STATE_MAGIC + crc32(rest).to_bytes(4, "little") + rest, 0)

    def close(self) -> None:
        """Let go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_state(folder: Path) -> State | None:
    """How far readers may go; None where nobody says so. A write may be under way: then it is read again."""
    path = folder / STATE
    for _ in range(_TRIES):
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) < _STATE.size:
            return None
        magic, check, boot, generation, readable, count = _STATE.unpack_from(data)
        size = _STATE.size + 16 * count
        if magic == _STATE_MAGIC and len(data) >= size and crc32(data[8:size]) == check:
            ends = struct.unpack_from(f"<{2 * count}Q", data, _STATE.size)
            return State(boot, generation, readable, ends[:count], ends[count:])
    return None


# consumers ------------------------------------------------------------------------------------------------------------


class Consumer(NamedTuple):
    """How far one is, by partition, and since when (epoch seconds)."""

    offsets: dict[int, int]
    updated: float


def read_consumers(folder: Path, log_id: str) -> dict[str, Consumer]:
    """By name. Those of another log are none of ours. Raises StoreError."""
    path = folder / CONSUMERS
    found = _read_json(path)
    if found is None or found.get("log_id") != log_id:
        return {}
    try:
        return {
            name: Consumer(
                {int(p): int(v) for p, v in one["offsets"].items()}, float(one["updated"])
            )
            for name, one in found["consumers"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StoreError(f"{path} is damaged") from None


@contextmanager
def consumers_locked(folder: Path) -> Iterator[None]:
    """Nobody else changes how far consumers are: the process that serves readers does, and so does the export. Raises
    OSError."""
    file = os.open(folder / STREAM, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def write_consumers(folder: Path, log_id: str, consumers: dict[str, Consumer]) -> None:
    """Raises OSError."""
    text = {
        "format": FORMAT,
        "log_id": log_id,
        "consumers": {
            name: {"offsets": {str(p): v for p, v in one.offsets.items()}, "updated": one.updated}
            for name, one in consumers.items()
        },
    }
    write_atomically(folder / CONSUMERS, json.dumps(text).encode())
