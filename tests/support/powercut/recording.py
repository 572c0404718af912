"""Record what a command does to a folder, and restore what power cuts would have left of it.

    with Recorder(tmp_path / "disk", tmp_path) as recorder:
        process = subprocess.Popen(COMMAND, env={**os.environ, **recorder.environ})
        ...                        # talk to it; recorder.mark(b"...") after each promise
        process.terminate()
        process.wait()
    report = cut(recorder.recording(), check, cuts=100, seed=7)
    assert not report.failures, report.text()

``check(folder, marks, cut)`` is called for each cut with the restored folder and the marks recorded before the cut. It
starts the program that reads the folder, and raises an exception for each problem. Files keep their paths, and a file
that existed at the end of the recording keeps its inode.

A process killed with SIGKILL during a write may have made changes that are not recorded. Use SIGKILL only for processes
that do not write, and end the others in another way. `Recorder.recording` compares the records with the folder.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final

from powercut.disk import MANNERS, Disk, File, Folder, Left, Manner, Node
from powercut.shim import Kind, Log, Record, RecordingError, build, read, shrink

_LOG: Final = "log"


@dataclass(frozen=True)
class Cut:
    """A power cut: its number, the number of records before it, and the unsynced data that survived it."""

    number: int
    position: int
    manner: Manner
    block: int = 512
    after: str = ""
    """The last record before the cut."""

    def __str__(self) -> str:
        return (
            f"cut {self.number} after record {self.position} ({self.after}), keeping {self.manner} of what was not safe, "
            f"in blocks of {self.block}"
        )


class Recorder:
    """Records all changes in `folder`, which is created if needed. The log is written to the folder `work`.

    If `failing` is not 0, the sync with that number fails. Syncs are counted from 1.
    """

    def __init__(self, folder: Path, work: Path, failing: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self.work = work
        self.log = Log(build(work), work / _LOG, failing)
        self._library = work / "powercut.so"
        self._before()

    @property
    def environ(self) -> Mapping[str, str]:
        """Return the environment variables for the command. Its child processes inherit them."""
        return {
            "LD_PRELOAD": str(self._library),
            "POWERCUT_ROOT": str(self.folder),
            "POWERCUT_LOG": str(self.log.path),
        }

    def mark(self, text: bytes) -> None:
        """Record a mark: a guarantee once it has been received, or a request before it is sent."""
        self.log.note(Kind.MARK, data=text)

    def recording(self, whole: bool = True) -> "Recording":
        """Return the recording once all processes have ended.

        Raise RecordingError if the records do not explain the current state of the folder. Pass `whole=False` if a
        process exited while its threads were writing, because the last call of each thread may be missing.
        """
        recording = Recording(self.folder, read(self.log.path), self.work)
        if whole:
            recording.compare()
        return recording

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing. The log is unbuffered, so there is nothing to flush."""

    def _before(self) -> None:
        """Record the existing contents of the folder as safe."""
        self.log.note(Kind.MKDIR, os.stat(self.folder).st_ino, path=str(self.folder))
        for place, folders, files in os.walk(self.folder):
            for name in folders:
                path = os.path.join(place, name)
                self.log.note(Kind.MKDIR, os.stat(path).st_ino, path=path)
            for name in files:
                path = os.path.join(place, name)
                inode = os.stat(path).st_ino
                self.log.note(Kind.CREATE, inode, path=path)
                self.log.note(Kind.WRITE, inode, data=Path(path).read_bytes())
        self.log.note(Kind.SYNC_ALL, a=1 << 62)


class Recording:
    """The record of all changes to a folder."""

    def __init__(self, folder: Path, records: list[Record], work: Path) -> None:
        self.folder = folder
        self.records = records
        self.work = work
        self._kept = work / "inodes"
        self._inodes: set[int] = set()
        if not self._kept.exists():
            self._kept.mkdir()
            for path in sorted(folder.rglob("*")):
                inode = path.lstat().st_ino
                if path.is_file() and inode not in self._inodes:
                    os.link(path, self._kept / str(inode))
                    self._inodes.add(inode)

    @classmethod
    def load(cls, work: Path) -> "Recording":
        """Load a recording written by `save`, and recreate its folder."""
        folder = Path((work / "folder").read_text())
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return cls(folder, read(work / _LOG), work)

    def save(self, to: Path) -> None:
        """Save the recording, so that it can be loaded and used for further power cuts."""
        to.mkdir(parents=True, exist_ok=True)
        shrink(self.work / _LOG, to / _LOG)
        (to / "folder").write_text(str(to / "disk"))
        (to / "root").write_text(str(self._root()))

    def _root(self) -> str:
        root = self.work / "root"
        return root.read_text() if root.exists() else str(self.folder)

    def compare(self) -> None:
        """Raise RecordingError unless replaying the records reproduces the folder's current contents, as its processes
        saw them.
        """
        disk = Disk(self._root())
        for record in self.records:
            if record.kind is not Kind.FAILED:
                disk.take(record)
        left = disk.left(Random(0), "everything")
        wrong = []
        expected = dict(_walk(disk, left))
        found = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*")}
        for name in sorted(expected.keys() | found.keys()):
            node = expected.get(name)
            if node is None or name not in found:
                wrong.append(f"{name} is {'not recorded' if node is None else 'not there'}")
            elif (
                isinstance(node, File)
                and not node.mapped
                and left.content(node) != found[name].read_bytes()
            ):
                wrong.append(f"{name} has other bytes than were recorded")
        if wrong:
            raise RecordingError("; ".join(wrong))

    def marks(self, position: int) -> list[bytes]:
        """Return the marks recorded before a position."""
        return [one.data for one in self.records[:position] if one.kind is Kind.MARK]

    def positions(self, start: int = 0) -> list[tuple[int, int]]:
        """Return the positions of possible cuts, one after each record from `start` on, with their weights.

        Marks and syncs have a higher weight. At a mark, a guarantee has just been given. At a sync, data that should
        have become safe may be incomplete.
        """
        weights = {Kind.MARK: 4, Kind.SYNC: 4}
        return [
            (number + 1, weights.get(record.kind, 1))
            for number, record in enumerate(self.records)
            if number >= start
        ]

    def plan(
        self, cuts: int, seed: int, start: int = 0, first: int = 0
    ) -> list[tuple[Cut, Random]]:
        """Return the planned cuts, each with a random generator for its details. The same number and seed always produce
        the same cut.
        """
        places = self.positions(start)
        numbers, weights = [one for one, _ in places], [one for _, one in places]
        planned = []
        for number in range(first, first + cuts):
            random = Random(f"{seed}/{number}")
            position = random.choices(numbers, weights)[0]
            manner = random.choices([one for one, _ in MANNERS], [w for _, w in MANNERS])[0]
            planned.append((Cut(number, position, manner), random))
        return planned

    def replay(self, planned: list[tuple[Cut, Random]]) -> Iterator[tuple[Cut, list[bytes]]]:
        """Replay the records and yield each planned cut in turn, with its marks. At that moment, the folder contains
        what the cut left behind.
        """
        disk = Disk(self._root())
        marks: list[bytes] = []
        done = 0
        for cut, random in sorted(planned, key=lambda one: (one[0].position, one[0].number)):
            for record in self.records[done : cut.position]:
                if record.kind is Kind.MARK:
                    marks.append(record.data)
                else:
                    disk.take(record)
            done = cut.position
            left = disk.left(random, cut.manner)
            self._restore(left, disk)
            after = _describe(self.records[cut.position - 1])
            yield Cut(cut.number, cut.position, cut.manner, left.block, after), list(marks)

    def _restore(self, left: Left, disk: Disk) -> None:
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        free = set(self._inodes)
        placed: dict[int, Path] = {}
        for name, node in _walk(disk, left):
            path = self.folder / name
            if isinstance(node, Folder):
                path.mkdir(mode=0o700)
                continue
            if id(node) in placed:
                os.link(placed[id(node)], path)
                continue
            content = left.content(node)
            if content is None:
                continue
            placed[id(node)] = path
            if node.inode in free:
                free.remove(node.inode)
                os.link(self._kept / str(node.inode), path)
            with open(path, "wb", opener=_private) as file:
                file.write(content)


@dataclass
class Report:
    """The results of some cuts."""

    seed: int
    cuts: int = 0
    failures: list[tuple[Cut, BaseException]] = field(default_factory=list)

    def text(self) -> str:
        """Return the report as text, with the power cut that caused each failure."""
        lines = [f"{self.cuts} power cuts with seed {self.seed}: {len(self.failures)} failed"]
        lines += [f"{cut}: {type(error).__name__}: {error}" for cut, error in self.failures]
        return "\n".join(lines)


Check = Callable[[Path, list[bytes], Cut], None]


def cut(
    recording: Recording,
    check: Check,
    cuts: int,
    seed: int,
    start: int = 0,
    first: int = 0,
    most: int = 5,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Cut the power `cuts` times, at or after record `start`, and check each cut. The first cut gets the number `first`.

    Stop after `most` failures. `progress` is called with the number of cuts made so far.
    """
    report = Report(seed)
    for one, marks in recording.replay(recording.plan(cuts, seed, start, first)):
        try:
            check(recording.folder, marks, one)
        except Exception as error:
            report.failures.append((one, error))
        report.cuts += 1
        if progress is not None:
            progress(report.cuts)
        if len(report.failures) >= most:
            break
    return report


def _walk(disk: Disk, left: Left) -> Iterator[tuple[str, Node]]:
    waiting: list[tuple[str, Folder]] = [("", disk.top)]
    while waiting:
        prefix, folder = waiting.pop()
        for name, node in sorted(left.names(folder).items()):
            path = os.path.join(prefix, name)
            yield path, node
            if isinstance(node, Folder):
                waiting.append((path, node))


def _describe(record: Record) -> str:
    if record.kind is Kind.MARK:
        return "mark " + record.data[:60].decode(errors="replace")
    where = os.path.basename(record.first) or f"inode {record.inode}"
    return f"{record.kind.name.lower()} of {where}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
