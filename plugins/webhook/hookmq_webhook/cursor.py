"""Record on disk which events of an outbox are done.

Two kinds of files in the outbox folder hold this. ``cursor.json`` is written durably about once a second: all events
below `Position.edge` are done, except those in `Position.open`. ``done-N`` gets a few bytes for each event that is done
since then. These bytes are not fsynced. They survive the end of the process, but perhaps not a power cut, after which
the events of the last second are sent again.
"""

import json
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from hookmq_webhook.folder import CURSOR, DONE, write_at_any_cost

_RECORD: Final = struct.Struct("<QI")
"""The number of an event, and a check. After a power cut, a file may end with zeros."""


class Position(NamedTuple):
    """All events below `edge` are done, except those in `open`, which is in order.

    `skipped` counts the numbers below `edge` that belong to no event. `gone` is a range of events that were neither done
    nor are still in the log, and their count: (first, end, count).
    """

    edge: int
    open: Sequence[int] = ()
    skipped: int = 0
    gone: tuple[int, int, int] = (0, 0, 0)

    @property
    def start(self) -> int:
        """The number of the first event that is not done."""
        return self.open[0] if self.open else self.edge


class CursorUnusable(Exception):
    """The cursor cannot be read. All events that are still stored are sent again."""


def read_position(folder: Path, log: str, earliest: int) -> tuple[Position, int]:
    """Return the stored position in the log with the id `log`, and the generation of the next ``done`` file.

    The log begins with event `earliest`. Without a cursor, no event is done. This call blocks. Raises `CursorUnusable`.
    """
    edge, waiting, skipped, generation, known = earliest, list[int](), 0, 0, False
    try:
        found = json.loads((folder / CURSOR).read_bytes())
        if found["log"] == log:
            edge, waiting = int(found["edge"]), sorted(map(int, found["open"]))
            skipped, generation, known = int(found["skipped"]), int(found["done"]), True
    except FileNotFoundError:
        pass
    except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CursorUnusable(repr(error)) from error
    files = [(number, path) for number, path in _done_files(folder) if number >= generation]
    done = {number for _, path in files for number in _read_done(path, log)}
    end = max(edge, max(done, default=-1) + 1)
    waiting = [n for n in (*waiting, *range(edge, end)) if n not in done]
    following = max((number + 1 for number, _ in files), default=generation)
    kept = [number for number in waiting if number >= earliest]
    # Events that were deleted had been done. Any other missing event was lost.
    count = len(waiting) - len(kept) + max(0, earliest - end) if known else 0
    gone = (min([*waiting[:1], end]), earliest, count) if count else (0, 0, 0)
    return Position(max(end, earliest), kept, skipped, gone), following


def _done_files(folder: Path) -> list[tuple[int, Path]]:
    found = []
    for path in folder.glob(f"{DONE}*"):
        number = path.name.removeprefix(DONE)
        if number.isascii() and number.isdigit():
            found.append((int(number), path))
    return sorted(found)


def _read_done(path: Path, log: str) -> Iterable[int]:
    with suppress(OSError):
        data = path.read_bytes()
        salt = crc32(log.encode())
        for number, check in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]):
            if check == crc32(number.to_bytes(8, "little"), salt):
                yield number


class CursorFile:
    """Writes the position in the log with the id `log`. Only one process may do this."""

    def __init__(self, folder: Path, log: str, generation: int) -> None:
        self._folder = folder
        self._log = log
        self._salt = crc32(log.encode())
        self._generation = generation
        self._file = -1

    def add(self, numbers: Iterable[int]) -> None:
        """Record that events are done. Raises OSError."""
        if self._file < 0:
            path = self._folder / f"{DONE}{self._generation}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        salt = self._salt
        os.write(
            self._file,
            b"".join(
                _RECORD.pack(number, crc32(number.to_bytes(8, "little"), salt))
                for number in numbers
            ),
        )

    def save(self, position: Position) -> Callable[[], None]:
        """Return a function that stores `position` durably. It blocks, may run in a thread, and raises OSError.

        Events that are done from now on are recorded for the next time.
        """
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._generation += 1
        return partial(self._store, position, self._generation)

    def _store(self, position: Position, generation: int) -> None:
        numbers = position.open
        # Encode in small pieces: if there are many numbers, other threads can run between the pieces.
        pieces = [
            ",".join(map(str, numbers[at : at + 1000])) for at in range(0, len(numbers), 1000)
        ]
        known = {
            "log": self._log,
            "edge": position.edge,
            "skipped": position.skipped,
            "done": generation,
        }
        text = f'{json.dumps(known)[:-1]}, "open": [{",".join(pieces)}]}}'
        write_at_any_cost(self._folder / CURSOR, text.encode())
        for number, path in _done_files(self._folder):
            if number < generation:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


__all__ = ["CursorFile", "CursorUnusable", "Position", "read_position"]
