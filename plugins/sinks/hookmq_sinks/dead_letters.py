"""A sink's dead letters: records that could not be written, each with its reason. They are stored as JSON lines."""

import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from hookmq_toolkit.durable_files import sync_folder, write_all
from hookmq_toolkit.state_folder import make_folder

from hookmq_sinks.record import Record

FOLDER: Final = "dead-letters"
SUFFIX: Final = ".jsonl"
_FILES: Final = 8
"""The number of files that share the permitted size. Only whole files are removed, oldest first."""
_BYTES: Final = ("payload", "correlation_data")
_KEPT: Final = tuple(one.name for one in fields(Record) if one.name not in ("value", "changed"))


class DeadLetter(NamedTuple):
    """A record that could not be written, the reason, and the time in epoch seconds at which the sink gave up.

    `broken` says that a source could not make a message of what it received. Such a letter cannot be published.
    """

    record: Record
    reason: str
    at: float
    broken: bool = False


class DeadLetters:
    """Appends dead letters to files in a sink's folder. All methods block and raise OSError.

    If the dead letters take up more than `max_bytes`, the oldest file is deleted. `removed` counts the dead letters
    lost this way.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder / FOLDER
        self.count = 0
        self.removed = 0
        self._max_file = max(4096, max_bytes // _FILES)
        self._max = max_bytes
        self._file = -1
        self._size = 0
        self._ids: set[str] = set()

    def open(self) -> None:
        """Count the dead letters, and cut off an incomplete last line."""
        make_folder(self.folder)
        paths = _paths(self.folder)
        for path in paths:
            data = path.read_bytes()
            end = data.rfind(b"\n") + 1
            if end < len(data):
                os.truncate(path, end)
        letters = list(read_dead_letters(self.folder.parent))
        self.count = len(letters)
        self._ids = {one.record.id for one in letters}
        if paths:
            self._append_to(paths[-1])

    def _append_to(self, path: Path) -> None:
        self.close()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        sync_folder(self.folder)

    def add(
        self, letters: Sequence[tuple[Record, str]], broken: Collection[str] = frozenset()
    ) -> int:
        """Store dead letters on disk, skipping those that are already stored. Return how many are new. `broken` contains
        the ids of those that cannot be published.
        """
        lines: list[bytes] = []
        for record, reason in letters:
            if record.id not in self._ids:
                self._ids.add(record.id)
                letter = DeadLetter(record, reason, time.time(), record.id in broken)
                lines.append(encode_letter(letter))
        if not lines:
            return 0
        if self._file < 0 or self._size >= self._max_file:
            self._begin()
        data = b"".join(lines)
        write_all(self._file, data)
        os.fdatasync(self._file)
        self._size += len(data)
        self.count += len(lines)
        return len(lines)

    def _begin(self) -> None:
        paths = _paths(self.folder)
        number = int(paths[-1].name.removesuffix(SUFFIX)) + 1 if paths else 0
        sizes = [path.stat().st_size for path in paths]
        while len(paths) > 1 and sum(sizes) + self._max_file > self._max:
            for one in read_file(paths[0]):
                self._ids.discard(one.record.id)
                self.count -= 1
                self.removed += 1
            paths.pop(0).unlink()
            sizes.pop(0)
        self._append_to(self.folder / f"{number:010d}{SUFFIX}")

    def take(self) -> list[Path]:
        """Start a new file. Return the files that hold all dead letters so far, oldest first."""
        paths = _paths(self.folder)
        if paths:
            number = int(paths[-1].name.removesuffix(SUFFIX)) + 1
            self._append_to(self.folder / f"{number:010d}{SUFFIX}")
        return paths

    def remove(self, path: Path, again: Sequence[tuple[Record, str]] = ()) -> int:
        """Delete a dead-letter file, but keep the dead letters listed in `again` and update their reasons. Return how
        many were deleted.
        """
        try:
            found = read_file(path)
        except FileNotFoundError:
            return 0  # removed since, because the letters needed too much space
        ids = {one.record.id for one in found}
        self._ids -= ids
        self.add(again, {one.record.id for one in found if one.broken})
        path.unlink(missing_ok=True)
        sync_folder(self.folder)
        self.count -= len(ids)
        return len(ids) - len(again)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _paths(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.glob(f"*{SUFFIX}") if path.name.removesuffix(SUFFIX).isdecimal()
    )


def read_dead_letters(folder: Path) -> Iterator[DeadLetter]:
    """Yield the dead letters in a sink's folder, oldest first. This blocks. Raises OSError."""
    for path in _paths(folder / FOLDER):
        try:
            yield from read_file(path)
        except FileNotFoundError:
            continue  # removed since


def read_file(path: Path) -> list[DeadLetter]:
    """Return the dead letters in a file. This blocks. Raises OSError."""
    with path.open("rb") as file:
        return [decode_letter(line) for line in file if line.endswith(b"\n")]


def encode_letter(letter: DeadLetter) -> bytes:
    """Encode a dead letter as a line of JSON. Bytes become text if they are valid UTF-8, and base64 otherwise."""
    made: dict[str, Any] = {"reason": letter.reason, "at": round(letter.at, 3)}
    if letter.broken:
        made["broken"] = True
    for name in _KEPT:
        value = getattr(letter.record, name)
        if name in _BYTES and value is not None:
            try:
                made[name] = value.decode()
            except UnicodeDecodeError:
                made[f"{name}_base64"] = b64encode(value).decode()
        elif value is not None and value is not False and value != ():
            made[name] = value
    return json.dumps(made, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def decode_letter(line: bytes) -> DeadLetter:
    """Decode the dead letter in a line. Raises ValueError if the line is damaged."""
    try:
        found = json.loads(line)
        reason, at, broken = found.pop("reason"), found.pop("at"), found.pop("broken", False)
        for name in _BYTES:
            if (packed := found.pop(f"{name}_base64", None)) is not None:
                found[name] = b64decode(packed)
            elif name in found:
                found[name] = found[name].encode()
        found["user_properties"] = tuple((a, b) for a, b in found.get("user_properties", ()))
        return DeadLetter(Record(**found), reason, at, broken)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a dead letter: {error}") from None
