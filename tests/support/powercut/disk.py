"""A model of a disk, computed from the records: which data is safe, which is only in memory, and which may survive a
power cut.

A file's bytes are safe after its fsync or fdatasync, and a name after an fsync of its folder. After a failed sync, no
later sync makes the affected data safe, because the system forgets that the data must be written.

Data that is not safe may be in any state: each block of a file may have any content since the last sync, the file may
be longer or shorter, and any subset of the names may exist. A rename happens entirely or not at all. Blocks are
either 512 bytes, which a disk writes atomically, or 4096.
"""

import os
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, Final, Literal, NamedTuple

from powercut.shim import Kind, Record, RecordingError

Manner = Literal["nothing", "everything", "in order", "anything"]
MANNERS: Final[tuple[tuple[Manner, int], ...]] = (
    ("nothing", 25),
    ("everything", 5),
    ("in order", 25),
    ("anything", 45),
)
"""The ways in which unsafe data may survive a power cut, with their weights.

They are: nothing; everything; everything up to a write that is torn; or a random selection with a different share for
each file.
"""
_SHARES: Final = (0.0, 0.2, 0.5, 0.9, 1.0)


class Change(NamedTuple):
    """A change to a file's bytes that has not been synced yet."""

    at: int
    offset: int
    data: bytes
    size: int
    """The new size for a truncation; -1 for a write."""
    safe: bool
    """Whether the write used O_SYNC or O_DSYNC."""


class File:
    """A file with any number of names."""

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.safe = bytearray()
        self.changes: list[Change] = []
        self._lost = 0
        """Changes recorded before this position are never safe, because their sync failed."""
        self.mapped = False
        """Whether the file was also written through a memory mapping, so that its contents are unknown."""

    def sync(self, before: int) -> None:
        """Mark all changes recorded before position `before` as safe."""
        count = 0
        for change in self.changes:
            if change.at >= before:
                break
            if change.at >= self._lost:
                _apply(self.safe, change)
            count += 1
        del self.changes[:count]

    def fail(self, before: int) -> None:
        """Record that changes made before position `before` will never be safe."""
        self._lost = before


class Folder:
    """A folder: its current names, and the names that would survive a power cut."""

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.names: dict[str, File | Folder] = {}
        self.safe: dict[str, File | Folder] = {}


Node = File | Folder
Tree = dict[str, "bytes | Tree"]


class Naming(NamedTuple):
    """A change to names that has not been synced yet. It is applied entirely or not at all."""

    at: int
    names: tuple[tuple[Folder, str, Node | None], ...]


def _apply(data: bytearray, change: Change) -> None:
    if change.size >= 0:
        if change.size < len(data):
            del data[change.size :]
        else:
            data.extend(bytes(change.size - len(data)))
        return
    if change.offset > len(data):
        data.extend(bytes(change.offset - len(data)))
    data[change.offset : change.offset + len(change.data)] = change.data


class Disk:
    """The state of the folder `root` after the last applied record."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.top = Folder(0)
        self.nodes: dict[int, Node] = {}
        self.namings: list[Naming] = []

    def take(self, record: Record) -> None:
        """Apply a record. Raise RecordingError if the record is impossible or this model does not cover it."""
        kind = record.kind
        if kind is Kind.WRITE:
            self._change(record, record.a, record.data)
        elif kind is Kind.TRUNCATE:
            self._change(record, 0, b"", record.a)
        elif kind is Kind.ZERO:
            self._change(record, record.a, bytes(record.b))
        elif kind is Kind.SYNC:
            self._sync(record)
        elif kind is Kind.FAILED:
            node = self.nodes.get(record.inode)
            if isinstance(node, File):
                node.fail(record.a)
        elif kind is Kind.SYNC_ALL:
            self._sync_all(record.a)
        elif kind is Kind.MAPPED:
            self._file(record).mapped = True
        elif kind is Kind.UNKNOWN:
            raise RecordingError(f"the recorder does not know {record.second or record.first}")
        elif kind is not Kind.MARK:
            self._name(record)

    def _name(self, record: Record) -> None:
        kind = record.kind
        if record.first == self.root:
            self.nodes[record.inode] = self.top
            return
        folder, name = self._place(record.first)
        if kind is Kind.CREATE:
            if self.nodes.get(record.inode) is not None and folder.names.get(name) is not None:
                return  # another process has created it first
            node: Node = File(record.inode)
            self.nodes[record.inode] = node
            self._naming(record, (folder, name, node))
        elif kind is Kind.MKDIR:
            node = Folder(record.inode)
            self.nodes[record.inode] = node
            self._naming(record, (folder, name, node))
        elif kind in (Kind.UNLINK, Kind.RMDIR):
            self._naming(record, (folder, name, None))
        else:
            moved = folder.names.get(name)
            if moved is None:
                raise RecordingError(f"nobody knows {record.first}, which was renamed")
            other, new = self._place(record.second)
            if kind is Kind.LINK:
                self._naming(record, (other, new, moved))
            else:
                self._naming(record, (folder, name, None), (other, new, moved))

    def _naming(self, record: Record, *names: tuple[Folder, str, Node | None]) -> None:
        for folder, name, node in names:
            _put(folder.names, name, node)
        self.namings.append(Naming(record.at, names))

    def _place(self, path: str) -> tuple[Folder, str]:
        relative = os.path.relpath(path, self.root)
        *folders, name = relative.split(os.sep)
        node: Node | None = self.top
        for one in folders:
            node = node.names.get(one) if isinstance(node, Folder) else None
        if not isinstance(node, Folder):
            raise RecordingError(f"nobody knows the folder of {path}")
        return node, name

    def _file(self, record: Record) -> File:
        node = self.nodes.get(record.inode)
        if not isinstance(node, File):
            raise RecordingError(f"{record.kind.name} of an unknown file (inode {record.inode})")
        return node

    def _change(self, record: Record, offset: int, data: bytes, size: int = -1) -> None:
        change = Change(record.at, offset, data, size, record.durable)
        self._file(record).changes.append(change)

    def _sync(self, record: Record) -> None:
        node = self.nodes.get(record.inode)
        if isinstance(node, File):
            node.sync(record.a)
            return
        if node is None:
            raise RecordingError(f"sync of something unknown (inode {record.inode})")
        left = []
        for naming in self.namings:
            if naming.at < record.a and any(one is node for one, _, _ in naming.names):
                for one, name, named in naming.names:
                    _put(one.safe, name, named)
            else:
                left.append(naming)
        self.namings = left

    def _sync_all(self, before: int) -> None:
        left = []
        for naming in self.namings:
            if naming.at < before:
                for one, name, named in naming.names:
                    _put(one.safe, name, named)
            else:
                left.append(naming)
        self.namings = left
        for node in self.nodes.values():
            if isinstance(node, File):
                node.sync(before)

    # --- the power is cut ----------------------------------------------------------------------------------------------

    def left(self, random: Random, manner: Manner) -> "Left":
        """Return a state that a power cut at this point may leave behind."""
        return Left(self, random, manner)


class Left:
    """One of the possible states after a power cut."""

    def __init__(self, disk: Disk, random: Random, manner: Manner) -> None:
        self._random = random
        self.manner = manner
        self.block = random.choice((512, 4096))
        self._ordered_names = random.random() < 0.5
        self._moment = 0
        self._last = 0
        self._truncated = True
        """Whether all truncations of the current file so far were kept. If one is lost, so are all later ones."""
        if manner == "in order":
            times = sorted(
                {naming.at for naming in disk.namings}
                | {change.at for file in _files(disk) for change in file.changes}
            )
            if times:
                self._moment = random.choice([*times, times[-1] + 1])
                self._last = max((at for at in times if at < self._moment), default=0)
        self._names: dict[int, dict[str, Node]] = {}
        for naming in self._kept(disk.namings):
            for folder, name, node in naming.names:
                _put(self._of(folder), name, node)
        self.top = self._of(disk.top)

    def _of(self, folder: Folder) -> dict[str, Node]:
        found = self._names.get(id(folder))
        if found is None:
            found = self._names[id(folder)] = dict(folder.safe)
        return found

    def names(self, folder: Folder) -> dict[str, Node]:
        """Return the names in a folder that remain after the power cut."""
        return self._of(folder)

    def _kept(self, namings: list[Naming]) -> Iterable[Naming]:
        if self.manner == "nothing":
            return ()
        if self.manner == "everything":
            return namings
        if self.manner == "in order":
            return [one for one in namings if one.at < self._moment]
        if self._ordered_names:  # like a journaling file system: all changes before some moment
            return namings[: self._random.randint(0, len(namings))]
        return [one for one in namings if self._random.random() < 0.5]

    def content(self, file: File) -> bytes | None:
        """Return the bytes of a file that remain after the power cut, or None if the file should be left out."""
        random = self._random
        if file.mapped:
            return random.choice((None, random.randbytes(32768)))
        data = bytearray(file.safe)
        keeps = self._blocks(file)
        limit = 1 << 62
        largest = len(data)
        for number, change in enumerate(file.changes):
            if change.size >= 0:
                if self._keeps(change):
                    _apply(data, change)
                    largest = change.size
                else:  # this change is lost, and so are later bytes beyond its size
                    limit = min(limit, change.size)
                continue
            end = min(change.offset + len(change.data), limit)
            largest = max(largest, end)
            start = change.offset
            while start < end:
                block = start // self.block
                stop = min(end, (block + 1) * self.block)
                if keeps(number, change, block):
                    part = change.data[start - change.offset : stop - change.offset]
                    _apply(data, Change(0, start, part, -1, False))
                start = stop
        if self.manner == "anything" and random.random() < 0.25:
            data.extend(bytes(largest - len(data)))  # the size was durable, but the bytes were not
        return bytes(data)

    def _keeps(self, change: Change) -> bool:
        if self.manner == "in order":
            return change.at < self._moment
        if self.manner == "anything":
            self._truncated = self._truncated and self._random.random() < 0.5
            return self._truncated
        return self.manner == "everything"

    def _blocks(self, file: File) -> Any:
        """Return a function that takes (number, change, block) and decides whether a changed block is kept."""
        random = self._random
        self._truncated = True
        if self.manner == "nothing":
            return lambda number, change, block: change.safe
        if self.manner == "everything":
            return lambda number, change, block: True
        if self.manner == "in order":

            def until(number: int, change: Change, block: int) -> bool:
                if change.safe:
                    return True
                if change.at == self._last and len(change.data) > self.block:
                    return random.random() < 0.5
                return change.at < self._moment

            return until
        share = random.choice(_SHARES)
        cuts: dict[int, int] = {}
        count = len(file.changes)

        def any_time(number: int, change: Change, block: int) -> bool:
            # A block is written with its content at some moment: earlier changes are included, later ones are not.
            last = cuts.get(block)
            if last is None:
                last = count if random.random() < share else -1
                if random.random() < 0.25:
                    last = random.randrange(-1, count)
                cuts[block] = last
            return change.safe or number <= last

        return any_time


def _files(disk: Disk) -> Iterator[File]:
    for node in disk.nodes.values():
        if isinstance(node, File):
            yield node


def _put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
