"""Backs up a cluster into one file, while its nodes may run, and restores it into an empty cluster.

Sequences of the log differ after a restore. They matter in one place only: a lane's state names the sequence up to which
the messages of other nodes are delivered. So the delivered ones are left out, and the others follow a new frame of the
owner, which names its own sequence.
"""

from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from hookmq.plugin import Runtime, StoreError

from hookmq_cluster.backup_file import BackupHeader, BackupReader, BackupWriter
from hookmq_cluster.engine import TOMBSTONE, Engine, Entry, Stored
from hookmq_cluster.facts import decode_fact, fact_entry
from hookmq_cluster.frames import (
    FrameError,
    Frames,
    Origin,
    OwnerFrame,
    encode_owner,
    is_incomplete,
    is_owner_frame,
)
from hookmq_cluster.log_reader import copy_log
from hookmq_cluster.log_writer import LogWriter
from hookmq_cluster.migration import prepare
from hookmq_cluster.names import Names
from hookmq_cluster.retained import decode_retained, log_entry

STEP = 1000
"""Entries between two calls of a progress function."""


class BackupCounts(NamedTuple):
    """The contents of a backup. `undelivered` counts frames of other nodes that wait in lanes."""

    lanes: int
    sessions: int
    retained: int
    entries: int
    undelivered: int
    position: int


class _Counter:
    """Counts entries of the log, of which the last one of each subject is valid."""

    def __init__(self) -> None:
        self._live: dict[str, bool] = {}
        self._lanes: set[str] = set()
        self._entries = 0

    def add(self, subject: str, data: bytes) -> None:
        self._entries += 1
        if subject.startswith("sess."):
            self._live[subject] = bool(data)
        elif subject.startswith("ret."):
            self._live[subject] = decode_retained(data).message is not None
        elif subject.startswith("lane."):
            self._lanes.add(subject)

    def counts(self, position: int, undelivered: int = 0) -> BackupCounts:
        live = [subject for subject, there in self._live.items() if there]
        sessions = sum(subject.startswith("sess.") for subject in live)
        return BackupCounts(
            len(self._lanes), sessions, len(live) - sessions, self._entries, undelivered, position
        )


async def write_backup(
    engine: Engine,
    names: Names,
    runtime: Runtime,
    file: IO[bytes],
    progress: Callable[[int], None] = lambda _: None,
) -> BackupCounts:
    """Write everything in the cluster's log to `file`, as of one position. Nodes may be running.

    Raises StoreError if the log does not answer, or is damaged.
    """
    writer = BackupWriter(file, BackupHeader(names.cluster, runtime.time()))
    counter = _Counter()
    written = 0

    def put(stored: Stored) -> None:
        nonlocal written
        subject = names.relative(stored.subject)
        writer.add(subject, stored)
        counter.add(subject, stored.data)
        written += 1
        if written % STEP == 0:
            progress(written)

    try:
        position = await copy_log(engine, names, runtime, put)
    except FrameError as error:
        raise StoreError(f"the log of cluster {names.cluster!r} is damaged: {error}") from None
    lane = {names.relative(subject): first for subject, first in position.beginnings.items()}
    writer.finish(position._replace(beginnings=lane))
    return counter.counts(position.last)


class _Lane:
    """A lane of a backup: its last frame of the owner, and the frames of other nodes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._complete = True
        self.others: list[int] = []
        self.inbox = 0

    def add(self, stored: Stored) -> None:
        if not is_owner_frame(stored.data):
            self.others.append(stored.sequence)
            return
        if self._complete:
            self.parts.clear()
        self.parts.append(stored.data)
        self._complete = not is_incomplete(stored.data)

    def finish(self) -> None:
        frames, frame = Frames(), None
        for part in self.parts:
            frame = frames.read(part)
        if isinstance(frame, OwnerFrame):
            self.inbox = frame.inbox
        self.others = [sequence for sequence in self.others if sequence > self.inbox]


class Backup:
    """A verified backup. Raises StoreError if it is damaged, or if a newer version wrote it."""

    def __init__(self, reader: BackupReader) -> None:
        self._reader = reader
        self.lanes: dict[str, _Lane] = {}
        counter = _Counter()
        try:
            for _ in reader.entries():
                pass  # the position is at the end
            for stored in self._entries():
                kind, _, name = stored.subject.partition(".")
                counter.add(stored.subject, stored.data)
                if kind in ("own", "lane"):
                    lane = self.lanes.setdefault(name, _Lane())
                    if kind == "lane":
                        lane.add(stored)
            for lane in self.lanes.values():
                lane.finish()
        except FrameError as error:
            raise StoreError(f"{reader.path}: {error}") from None
        undelivered = sum(len(lane.others) for lane in self.lanes.values())
        self.counts = counter.counts(reader.position.last, undelivered)

    def _entries(self) -> Iterator[Stored]:
        """Yield the entries that belong to the position of the backup."""
        return self._reader.position.valid(self._reader.entries())

    async def restore(
        self,
        writer: LogWriter,
        engine: Engine,
        names: Names,
        runtime: Runtime,
        replace: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Fill an empty cluster; see `hookmq_cluster.migration.prepare`."""
        await prepare(writer, engine, names, runtime, tuple(self.lanes), replace)
        count = 0
        for stored in self._entries():
            kind, _, name = stored.subject.partition(".")
            if kind == "own" or (kind == "lane" and not is_owner_frame(stored.data)):
                continue
            if kind == "away" and not stored.data:  # the node has stored the state in its lane
                continue
            await writer.add([_entry(names, runtime, kind, stored)])
            count += 1
            if count % STEP == 0:
                progress(count)
        await writer.flush()
        for number, name in enumerate(self.lanes):
            frame = OwnerFrame(Origin("", writer.token, number), writer.last, ())
            data = encode_owner(frame, engine.max_entry)
            await writer.add([Entry(names.lane(name), one) for one in data])
        await writer.flush()
        for stored in self._entries():
            kind, _, name = stored.subject.partition(".")
            if kind != "lane" or is_owner_frame(stored.data):
                continue
            if stored.sequence > self.lanes[name].inbox:
                await writer.add([Entry(names.absolute(stored.subject), stored.data)])
        await writer.finish()


def _entry(names: Names, runtime: Runtime, kind: str, stored: Stored) -> Entry:
    """Return an entry of a backup for the log. What ends there after some time does so again."""
    if kind == "ret":
        return log_entry(names, runtime.time(), decode_retained(stored.data))
    if kind == "fact":
        return fact_entry(names, runtime.time(), decode_fact(stored.data))
    ttl = TOMBSTONE if kind == "sess" and not stored.data else 0
    return Entry(
        names.absolute(stored.subject), stored.data, replace=kind not in ("lane", "away"), ttl=ttl
    )
