"""The file with a backup of a cluster: entries of its log as msgpack values, and a checksum over all that precedes it.

"HOOKMQ-CLUSTER-BACKUP\\n"
[version, cluster, time]          time in epoch seconds
[subject, sequence, data] ...     in the order of the log; the subject without the cluster's name
[last, {lane: first sequence}]    where the backup ends, and what each lane needs
BLAKE2b of everything before, 32 bytes
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
from hookmq.plugin import StoreError

from hookmq_cluster.engine import Stored
from hookmq_cluster.log_reader import LogPosition

MAGIC: Final = b"HOOKMQ-CLUSTER-BACKUP\n"
VERSION: Final = 1
CHECKSUM: Final = 32
"""Bytes of the checksum."""
_CHUNK: Final = 1 << 20


class BackupHeader(NamedTuple):
    """The cluster that was backed up, and when, in epoch seconds."""

    cluster: str
    time: float


class BackupWriter:
    """Writes a backup to `file`."""

    def __init__(self, file: IO[bytes], header: BackupHeader) -> None:
        self._file = file
        self._hash = blake2b(digest_size=CHECKSUM)
        self.bytes = 0
        """The size of the file so far."""
        self._write(MAGIC)
        self._write(msgpack.packb((VERSION, *header)))

    def add(self, subject: str, stored: Stored) -> None:
        """Add an entry of the log."""
        self._write(msgpack.packb((subject, stored.sequence, stored.data)))

    def finish(self, position: LogPosition) -> None:
        """Write the end and the checksum."""
        self._write(msgpack.packb((position.last, position.beginnings)))
        self._write(self._hash.digest())

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)
        self.bytes += len(data)


class BackupReader:
    """A backup, of which the checksum is right. Raises StoreError if it is damaged, or if a newer version wrote it."""

    def __init__(self, path: Path, progress: Callable[[int], None] = lambda _: None) -> None:
        self.path = path
        self._end = 0
        """Where the checksum begins."""
        try:
            self._verify(progress)
            self.header = BackupHeader(*next(self._values())[1:3])
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None
        self.position = LogPosition(0, {})
        """Where the backup ends. Known once `entries` has ended."""

    def _verify(self, progress: Callable[[int], None]) -> None:
        size = self.path.stat().st_size
        digest = blake2b(digest_size=CHECKSUM)
        with self.path.open("rb") as file:
            magic = file.read(len(MAGIC))
            if magic != MAGIC:
                raise StoreError(f"{self.path} is not a backup of a cluster")
            self._check_version(file)
            file.seek(0)
            left = self._end = size - CHECKSUM
            while left > 0:
                chunk = file.read(min(_CHUNK, left))
                digest.update(chunk)
                left -= len(chunk)
                progress(size - left)
            found = file.read(CHECKSUM)
        if found != digest.digest():
            raise StoreError(
                f"{self.path} is damaged or cut off: the checksum of its {max(0, self._end):,} bytes is wrong"
            )

    def _check_version(self, file: IO[bytes]) -> None:
        try:
            version = msgpack.Unpacker(file, read_size=64).unpack()[0]
        except Exception:  # msgpack raises many types; the checksum is wrong then
            return
        if isinstance(version, int) and version > VERSION:
            raise StoreError(
                f"{self.path} has version {version} of backups; this hookmq-cluster reads versions up to {VERSION}"
            )

    def _values(self) -> Iterator[Any]:
        with self.path.open("rb") as file:
            file.seek(len(MAGIC))
            left = self._end - len(MAGIC)
            unpacker = msgpack.Unpacker(max_buffer_size=0, strict_map_key=False)
            while left > 0:
                chunk = file.read(min(_CHUNK, left))
                left -= len(chunk)
                unpacker.feed(chunk)
                yield from unpacker

    def entries(self) -> Iterator[Stored]:
        """Yield the entries in the order of the log. Their subjects lack the name of the cluster."""
        values = self._values()
        next(values)
        for value in values:
            if len(value) == 3:
                yield Stored(value[0], value[1], value[2], 0.0)
            else:
                self.position = LogPosition(value[0], value[1])
