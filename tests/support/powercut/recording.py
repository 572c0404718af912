"""Records what a command does to a folder, and puts back what power cuts would have left of it.

    with Recorder(tmp_path / "disk", tmp_path) as recorder:
        process = subprocess.Popen(COMMAND, env={**os.environ, **recorder.environ})
        ...                        # talk to it; recorder.mark(b"...") after whatever it promised
        process.terminate()
        process.wait()
    report = cut(recorder.recording(), check, cuts=100, seed=7)
    assert not report.failures, report.text()

``check(folder, marks, cut)`` is called for each cut with the folder as the cut left it, and with the marks that were made
before; it starts whatever reads the folder, and raises what is wrong. The folder is the recorded one, its files where
they were: a file that still existed when the recording ended keeps its inode.

Processes that are killed (SIGKILL) while they write may have done what is not recorded: end them otherwise, or kill those
that only talk. `Recorder.recording` compares what was recorded with the folder.
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
    """A power cut: its number, the records that happened before it, and what it kept of what was not safe."""

    number: int
    position: int
    manner: Manner
    block: int = 512
    after: str = ""
    """What happened last."""

    def __str__(self) -> str:
        return (
            f"cut {self.number} after record {self.position} ({self.after}), keeping {self.manner} of what was not safe, "
            f"in blocks of {self.block}"
        )


class Recorder:
    """Records what happens to `folder`, which is made if it is not there; the log is put into `work`. The sync of number
    `failing` fails, if any."""

    def __init__(self, folder: Path, work: Path, failing: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self.work = work
        self.log = Log(build(work), work / _LOG, failing)
        self._library = work / "powercut.so"
        self._before()

    @property
    def environ(self) -> Mapping[str, str]:
        """To be added to the environment of the command; its children inherit it."""
        return {
            "LD_PRELOAD": str(self._library),
            "POWERCUT_ROOT": str(self.folder),
            "POWERCUT_LOG": str(self.log.path),
        }

    def mark(self, text: bytes) -> None:
        """Note something at this moment: what was promised, once it was heard, or what is asked for, before it is."""
        self.log.note(Kind.MARK, data=text)

    def recording(self, whole: bool = True) -> "Recording":
        """What was recorded, once all processes ended. Raises RecordingError if it does not tell how the folder came to
        be as it is; not `whole` where a process ended by itself while its threads wrote, whose last call may be missing.
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
        """Nothing to end: the log is written without buffers."""

    def _before(self) -> None:
        """What was there before is safe."""
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
    """What happened to a folder."""

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
        """A recording that was saved with `save`; its folder is made anew."""
        folder = Path((work / "folder").read_text())
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return cls(folder, read(work / _LOG), work)

    def save(self, to: Path) -> None:
        """Keep it, to be loaded and cut again."""
        to.mkdir(parents=True, exist_ok=True)
        shrink(self.work / _LOG, to / _LOG)
        (to / "folder").write_text(str(to / "disk"))
        (to / "root").write_text(str(self._root()))

    def _root(self) -> str:
        root = self.work / "root"
        return root.read_text() if root.exists() else str(self.folder)

    def compare(self) -> None:
        """Raise RecordingError unless the records lead to the folder as it is: to what its processes saw, whatever of it
        is safe."""
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
        """The marks made before a position."""
        return [one.data for one in self.records[:position] if one.kind is Kind.MARK]

    def positions(self, start: int = 0) -> list[tuple[int, int]]:
        """Where to cut, and how often: after each record from `start` on. What was just promised must be there already,
        and what was just made safe may be half of something."""
        weights = {Kind.MARK: 4, Kind.SYNC: 4}
        return [
            (number + 1, weights.get(record.kind, 1))
            for number, record in enumerate(self.records)
            if number >= start
        ]

    def plan(
        self, cuts: int, seed: int, start: int = 0, first: int = 0
    ) -> list[tuple[Cut, Random]]:
        """Cuts by their numbers, each with what draws its details. A number and a seed give the same cut each time."""
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
        """Make each cut, in the order of the records; when it is yielded, the folder is as it left it."""
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
    """What came of some cuts."""

    seed: int
    cuts: int = 0
    failures: list[tuple[Cut, BaseException]] = field(default_factory=list)

    def text(self) -> str:
        """In words, each failure with the cut that shows it."""
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
    """Cut the power `cuts` times from record `start` on, beginning with cut number `first`, and have each checked; ends
    after `most` failures. `progress` is told how many were made."""
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
