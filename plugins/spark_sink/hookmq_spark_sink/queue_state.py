"""The files of a stream that serves a queue. The messages themselves are in the queue's folder.

NAME/queue.json       the name of the queue
NAME/consumers.json   each consumer's offsets; written by the reader process
NAME/queue_state      the readable part of the queue; written after each commit, invalid after the broker has ended
"""

import json
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from hookmq.plugin import StoreError
from hookmq_toolkit.durable_files import write_atomically
from hookmq_toolkit.queue_streams import StreamFiles

from hookmq_spark_sink import files

QUEUE: Final = "queue.json"
STATE: Final = "queue_state"
KNOWN: Final = frozenset({QUEUE, STATE, files.CONSUMERS})
_HEAD: Final = struct.Struct("<4sII")
"""Magic, CRC of the rest, length of the rest, which is JSON."""
_MAGIC: Final = b"HqQs"
_TRIES: Final = 100


class QueueState(NamedTuple):
    """The readable part of a queue. `boot` identifies one run of the broker.

    `found` is None if the broker does not know the queue yet. If nothing can be read, `found` is the reason as text.
    """

    boot: bytes
    found: StreamFiles | str | None


class QueueStateFile:
    """Writes the state."""

    def __init__(self, folder: Path, boot: bytes) -> None:
        self._boot = boot.hex()
        self._file = os.open(
            folder / STATE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )

    def write(self, found: StreamFiles | str | None) -> None:
        """Publish the readable part. This writes to the page cache and never syncs. Raises OSError if it fails."""
        given: object = found
        if isinstance(found, StreamFiles):
            place = str(found.folder.absolute())
            given = (
                place, found.log_id, found.earliest, found.latest, found.files, found.bytes, found.filters,
            )  # fmt: skip
        text = json.dumps([self._boot, given]).encode()
        os.pwrite(self._file, _HEAD.pack(_MAGIC, crc32(text), len(text)) + text, 0)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_queue_state(folder: Path) -> QueueState | None:
    """Return the published state, or None if it is unknown. Retries while a write is in progress."""
    path = folder / STATE
    for _ in range(_TRIES):
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) < _HEAD.size:
            return None
        magic, check, length = _HEAD.unpack_from(data)
        text = data[_HEAD.size : _HEAD.size + length]
        if magic != _MAGIC or not text or len(text) != length or crc32(text) != check:
            continue
        boot, given = json.loads(text)
        found = given
        if isinstance(given, list):
            place, log_id, earliest, latest, changed, size, filters = given
            found = StreamFiles(
                Path(place),
                log_id,
                earliest,
                latest,
                (changed[0], changed[1]),
                size,
                tuple(filters),
            )
        return QueueState(bytes.fromhex(boot), found)
    return None


def describe_queue(folder: Path, queue: str) -> None:
    """Write the name of the queue that the stream serves, if it has changed. Raises OSError if that fails."""
    text = json.dumps({"format": files.FORMAT, "queue": queue}).encode()
    path = folder / QUEUE
    if not path.exists() or path.read_bytes() != text:
        write_atomically(path, text, owner_of_folder=True)


def check_folder(folder: Path, name: str) -> None:
    """Raise StoreError if the folder belongs to a stream that stores messages."""
    if (folder / files.STREAM).exists():
        raise StoreError(
            f"{folder} contains messages of topics, but the stream {name} serves a queue: move the folder away, or use "
            "another name"
        )
