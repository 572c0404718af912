"""The targets of an export: a local folder, or an object store accessed through fsspec. Files appear complete or not
at all.
"""

import hashlib
import importlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from hookmq.plugin import HookMQError, StoreError
from hookmq_toolkit.durable_files import replacing, sync_folder
from hookmq_toolkit.state_folder import try_lock

EXTRA: Final = "in a checkout, uv pip install './plugins/spark_sink[export]'"
_TEMPORARY: Final = ".hookmq"
_LOCK: Final = ".hookmq-export.lock"
_PIECE: Final = 1 << 20


class UsageError(HookMQError):
    """The command's arguments are invalid."""

    exit_code = 2


class PlaceError(StoreError):
    """The target cannot be read or written at the moment. A retry may succeed."""


class Stored(NamedTuple):
    """The size and checksum of a written file."""

    size: int
    sha256: str


Fill = Callable[[BinaryIO], None]


class Place(Protocol):
    """A target. Names are relative, with / between folders. All methods block, and raise PlaceError if the target
    fails.
    """

    url: str

    def write(self, name: str, fill: Fill) -> Stored:
        """Create or replace a file. `fill` writes its contents. The file is durable once this call returns. If `fill`
        raises, no file is created.
        """

    def names(self, folder: str) -> list[str]:
        """Return the names of the complete files in a folder, or nothing if the folder does not exist."""

    def read(self, name: str) -> bytes:
        """Return a file's contents."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes on this machine from exporting to this target. Raises UsageError if one is already
        doing so.
        """


def open_place(target: str) -> Place:
    """Return the target for a path or URL. Raises UsageError or PlaceError if it cannot be used."""
    scheme, separator, rest = target.partition("://")
    if not separator:
        return Folder(Path(target))
    if scheme == "file":
        return Folder(Path(rest))
    fsspec = package("fsspec")
    try:
        files, root = fsspec.core.url_to_fs(target)
    except ImportError as error:
        raise UsageError(
            f"{target}: {error} (install it with pip where hookmq-spark-sink is)"
        ) from None
    except ValueError as error:
        raise UsageError(
            f"{target}: {error}; expected a folder, s3://, gs://, abfs://, ..."
        ) from None
    except Exception as error:  # the object store's package may raise anything
        raise PlaceError(f"{target}: {_told(error)}") from error
    return Remote(files, root, target)


def package(name: str) -> Any:
    """Import a package from the `export` extra, which the broker never imports. Raises UsageError if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"hookmq spark export needs {name} ({error}): {EXTRA}") from None


def _told(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _Counted(io.RawIOBase):
    """Passes data on to a file, and computes its size and checksum."""

    def __init__(self, write: Callable[[memoryview], int]) -> None:
        self._write = write
        self._sum = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        whole = view = memoryview(data).cast("B")
        while view:
            view = view[self._write(view) :]
        self._sum.update(whole)
        self.size += len(whole)
        return len(whole)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.size

    @property
    def stored(self) -> Stored:
        """Return the size and checksum so far."""
        return Stored(self.size, self._sum.hexdigest())


class Folder:
    """A local folder. Files are written under a hidden name, synced and renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.url = str(path)
        self._made: set[Path] = set()

    def write(self, name: str, fill: Fill) -> Stored:
        """Write a file; see `Place`."""
        path = self.path / name
        hidden = path.with_name(f".{path.name}{_TEMPORARY}")
        try:
            self._make(path.parent)
            with replacing(path, hidden, mode=0o644) as file:
                counted = _Counted(lambda data: os.write(file, data))
                fill(counted)  # type: ignore[arg-type]  # what is used of it is there
        except OSError as error:
            raise _of_system(error, path) from error
        return counted.stored

    def _make(self, folder: Path) -> None:
        """Create a folder and its parents, and remove files that a killed process left behind."""
        if folder in self._made:
            return
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        for one in reversed(missing):
            one.mkdir(exist_ok=True)
            sync_folder(one.parent)
        for left in folder.glob(f".*{_TEMPORARY}"):
            left.unlink()
        self._made.add(folder)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; see `Place`."""
        try:
            return [
                one.name for one in os.scandir(self.path / folder) if not one.name.startswith(".")
            ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _of_system(error, self.path / folder) from error

    def read(self, name: str) -> bytes:
        """Read a file; see `Place`."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise _of_system(error, self.path / name) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder; see `Place`. The lock is a file in the folder, so containers that share the folder also
        share the lock."""
        try:
            self._make(self.path)
        except OSError as error:
            raise _of_system(error, self.path) from error
        with _held(self.path / _LOCK, self.url):
            yield


class Remote:
    """An object store, where each file is a single PUT."""

    def __init__(self, files: Any, root: str, url: str) -> None:
        self.url = url
        self._files = files
        self._root = root.rstrip("/")

    def write(self, name: str, fill: Fill) -> Stored:
        """Write a file; see `Place`. The file is kept in memory until it is complete."""
        parts: list[bytes] = []

        def keep(data: memoryview) -> int:
            parts.append(bytes(data))
            return len(data)

        counted = _Counted(keep)
        fill(counted)  # type: ignore[arg-type]  # what is used of it is there
        with self._asked(name):
            self._files.pipe_file(f"{self._root}/{name}", b"".join(parts))
        return counted.stored

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; see `Place`."""
        with self._asked(folder):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(f"{self._root}/{folder}", detail=False)
            except FileNotFoundError:
                return []
        return [one.rstrip("/").rpartition("/")[2] for one in found]

    def read(self, name: str) -> bytes:
        """Read a file; see `Place`."""
        with self._asked(name):
            return bytes(self._files.cat_file(f"{self._root}/{name}"))

    @contextmanager
    def _asked(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the object store's package may raise anything
            raise PlaceError(f"{self.url}: {name}: {_told(error)}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the target; see `Place`. The lock is a local file. That suffices, because only this machine has the log
        and can export it.
        """
        key = hashlib.sha256(self.url.rstrip("/").encode()).hexdigest()[:32]
        name = f"hookmq-export-{os.getuid()}-{key}.lock"
        with _held(Path(tempfile.gettempdir(), name), self.url):
            yield


@contextmanager
def _held(path: Path, url: str) -> Iterator[None]:
    """Lock the file `path`. The kernel releases the lock when the process ends for any reason."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _of_system(error, path) from error
    try:
        try:
            free = try_lock(file)
        except OSError as error:
            raise _of_system(error, path) from error
        if not free:
            raise UsageError(f"{url}: another hookmq spark export is writing there")
        yield
    finally:
        os.close(file)


def _of_system(error: OSError, path: Path) -> PlaceError:
    return PlaceError(f"{error.filename or path}: {error.strerror or error}")
