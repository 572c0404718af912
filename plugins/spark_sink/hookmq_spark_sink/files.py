"""The files in a stream's folder.

NAME/stream.json      the stream's description; written once
NAME/trimmed.json     where each partition begins; written before older records are deleted
NAME/consumers.json   each consumer's offsets; written by the reader process
NAME/operation.json   counters of refused and removed messages, for commands; written by the broker
NAME/declared.json    the names of the declared consumers, for commands; written when the broker starts
NAME/state            the position up to which readers may read; written after each commit, invalid once the broker ends
NAME/log/*.segment    the records
"""

import fcntl
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from hookmq.plugin import StoreError
from hookmq_toolkit.durable_files import write_atomically

from hookmq_spark_sink.placement import CRC32
from hookmq_spark_sink.placement import KNOWN as KNOWN_PLACEMENTS

STREAM: Final = "stream.json"
TRIMMED: Final = "trimmed.json"
CONSUMERS: Final = "consumers.json"
DECLARED: Final = "declared.json"
OPERATION: Final = "operation.json"
STATE: Final = "state"
LOG: Final = "log"
FORMAT: Final = 1
KNOWN: Final = frozenset({STREAM, TRIMMED, CONSUMERS, DECLARED, OPERATION, STATE, LOG})
_STATE_MAGIC: Final = b"HqSt"
_STATE: Final = struct.Struct("<4sI16sQQI4x")
"""Magic, CRC of the rest, boot, generation, readable, partitions; then each partition's earliest and latest offset."""
_TRIES: Final = 100


class Description(NamedTuple):
    """A stream's permanent properties."""

    name: str
    partitions: int
    log_id: str
    placement: str = CRC32


class State(NamedTuple):
    """The position up to which readers may read.

    `boot` identifies one run of the broker. `generation` increases when segments are replaced or deleted. `readable` is
    a record number in the log. `earliest` and `latest` contain an offset for each partition.
    """

    boot: bytes
    generation: int
    readable: int
    earliest: tuple[int, ...]
    latest: tuple[int, ...]


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise StoreError(
            f"{path} does not have format {FORMAT}: it is damaged, or from a newer version"
        )
    return found


def read_description(folder: Path) -> Description | None:
    """Read a stream's description. Return None if there is no description. Raises StoreError if it is invalid."""
    path = folder / STREAM
    found = _read_json(path)
    if found is None:
        return None
    try:
        described = Description(
            str(found["name"]),
            int(found["partitions"]),
            str(found["log_id"]),
            str(found.get("placement", CRC32)),
        )
    except (KeyError, TypeError, ValueError):
        raise StoreError(f"{path} is damaged: it does not describe a stream") from None
    if described.placement not in KNOWN_PLACEMENTS:
        raise StoreError(
            f"{path} has the placement {described.placement!r}: it is damaged, or from a newer version"
        )
    return described


def write_description(folder: Path, described: Description) -> None:
    """Write a stream's description. Raises OSError if that fails."""
    text = json.dumps({"format": FORMAT, **described._asdict()})
    write_atomically(folder / STREAM, text.encode(), owner_of_folder=True)


def read_trimmed(folder: Path, log_id: str) -> dict[int, int]:
    """Return the first offset of each trimmed partition. Raises StoreError if the file is invalid."""
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
    """Write the first offset of each trimmed partition. Raises OSError if that fails."""
    text = {
        "format": FORMAT,
        "log_id": log_id,
        "earliest": {str(k): v for k, v in earliest.items()},
    }
    write_atomically(folder / TRIMMED, json.dumps(text).encode(), owner_of_folder=True)


class StateFile:
    """Writes the `state` file."""

    def __init__(self, folder: Path, boot: bytes) -> None:
        self._boot = boot
        self._file = os.open(
            folder / STATE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )

    def write(self, generation: int, readable: int, earliest: list[int], latest: list[int]) -> None:
        """Publish the position up to which readers may read. This writes to the page cache and never syncs. Raises
        OSError if it fails.
        """
        count = len(earliest)
        rest = struct.pack(
            f"<16sQQI4x{2 * count}Q", self._boot, generation, readable, count, *earliest, *latest
        )
        os.pwrite(self._file, _STATE_MAGIC + crc32(rest).to_bytes(4, "little") + rest, 0)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_state(folder: Path) -> State | None:
    """Return the position up to which readers may read, or None if it is unknown. Retries while a
    write is in progress.
    """
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


class Reported(NamedTuple):
    """What a consumer has reported about its tables: the number of dead letters so far, and the last batch of the
    query that counted them.
    """

    dead_letters: int
    query: str
    batch: int


class Consumer(NamedTuple):
    """A consumer's offsets by partition, and the time of their last update in epoch seconds.

    The time is 0 if the consumer has never committed offsets. `reported` is None if it has never sent a report.
    """

    offsets: dict[int, int]
    updated: float
    reported: Reported | None = None


def read_consumers(folder: Path, log_id: str) -> dict[str, Consumer]:
    """Return the consumers by name, leaving out those of another log. Raises StoreError if the file is invalid."""
    path = folder / CONSUMERS
    found = _read_json(path)
    if found is None or found.get("log_id") != log_id:
        return {}
    try:
        return {
            name: Consumer(
                {int(p): int(v) for p, v in one["offsets"].items()},
                float(one["updated"]),
                _reported(one.get("reported")),
            )
            for name, one in found["consumers"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StoreError(f"{path} is damaged") from None


def _reported(found: dict[str, Any] | None) -> Reported | None:
    if found is None:
        return None
    return Reported(int(found["dead_letters"]), str(found["query"]), int(found["batch"]))


@contextmanager
def consumers_locked(locked: Path) -> Iterator[None]:
    """Lock the consumers' offsets, because both the reader process and the export update them. All of them lock the
    file `locked`. Raises OSError if that fails.
    """
    file = os.open(locked, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def write_consumers(folder: Path, log_id: str, consumers: dict[str, Consumer]) -> None:
    """Write the consumers' offsets. Raises OSError if that fails."""
    text = {
        "format": FORMAT,
        "log_id": log_id,
        "consumers": {
            name: {
                "offsets": {str(p): v for p, v in one.offsets.items()},
                "updated": one.updated,
                **({} if one.reported is None else {"reported": one.reported._asdict()}),
            }
            for name, one in consumers.items()
        },
    }
    write_atomically(folder / CONSUMERS, json.dumps(text).encode(), owner_of_folder=True)


def read_declared(folder: Path) -> tuple[str, ...]:
    """Return the names of the consumers that the stream declared when the broker last started. Raises StoreError if the
    file is invalid.
    """
    found = _read_json(folder / DECLARED)
    names = [] if found is None else found.get("consumers")
    if not isinstance(names, list):
        raise StoreError(f"{folder / DECLARED} is damaged")
    return tuple(map(str, names))


def write_declared(folder: Path, names: tuple[str, ...]) -> None:
    """Write the names of the declared consumers if they have changed. Raises OSError if that fails."""
    with suppress(StoreError):  # a damaged file is replaced
        if read_declared(folder) == names and (folder / DECLARED).exists():
            return
    text = {"format": FORMAT, "consumers": names}
    write_atomically(folder / DECLARED, json.dumps(text).encode(), owner_of_folder=True)


# operation ------------------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """The broker's report about a stream, which commands read. Its counters start from 0 when the broker starts.

    `refused` counts messages that were refused because the stream was full. `dropped` counts those removed before a
    consumer had committed them. `full` is True while messages are refused, and `held` while retention waits for a
    consumer.
    """

    refused: int = 0
    dropped: int = 0
    full: bool = False
    held: bool = False


def read_operation(folder: Path) -> Operation:
    """Read the newest report. Return an empty one if there is none. Raises StoreError if the file is invalid."""
    found = _read_json(folder / OPERATION)
    if found is None:
        return Operation()
    try:
        return Operation(
            int(found["refused"]), int(found["dropped"]), bool(found["full"]), bool(found["held"])
        )
    except (KeyError, TypeError, ValueError):
        raise StoreError(f"{folder / OPERATION} is damaged") from None


def write_operation(folder: Path, report: Operation) -> None:
    """Write a report without syncing it, because only commands read it. Raises OSError if that fails."""
    target = folder / OPERATION
    made = target.with_name(f"{OPERATION}.new")
    made.write_text(json.dumps({"format": FORMAT, **report._asdict()}))
    made.replace(target)
