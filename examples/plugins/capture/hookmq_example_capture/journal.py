"""A journal in one file, with one JSON object per line.

For each commit, the broker calls `append` for every message, then calls `flush`, commits to the store and acknowledges
the messages. After a crash, the file can therefore end with messages whose commit is missing from the store. They were
not acknowledged and will be resent, so `recover` drops them, along with a torn last line.
"""

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hookmq.mqtt_api import matches
from hookmq.plugin import Cancel, Done, Message, StoreError
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_toolkit.durable_files import replacing, sync_folder, write_all

RunBlocking = Callable[[Callable[[], Any], Done], Cancel]
"""The type of `hookmq.plugin.Runtime.run_blocking`."""


class FileJournal:
    """A `hookmq.storage_api.Journal`. Its methods are called on the event loop. Only writes and fsyncs run
    in a thread.
    """

    def __init__(
        self, name: str, path: Path, topics: Sequence[str], run_blocking: RunBlocking
    ) -> None:
        self.name = name
        self._path = path
        self._topics = tuple(topics)
        self._run_blocking = run_blocking
        self._lines: list[bytes] = []
        self._file = -1

    def wants(self, topic: str) -> bool:
        """Return whether one of the filters matches."""
        return any(matches(filter, topic) for filter in self._topics)

    def append(self, commit: CommitId, message: Message) -> None:
        """Buffer the message until the next `flush`."""
        self._lines.append(_line(commit, message))

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Write and fsync the buffered lines in a thread. Failures are final. Nothing is retried, because the state of
        the disk is then unknown.
        """
        lines, self._lines = self._lines, []
        if not lines:
            done(None)
            return

        def written(_: object, error: BaseException | None) -> None:
            done(None if error is None else StoreFailed(f"{self._path}: {error}"))

        self._run_blocking(partial(_write, self._file, b"".join(lines)), written)

    def recover(self, last: CommitId) -> None:
        """Open the file, and drop this store's messages after commit `last`. Keep messages from other stores. Raises
        StoreError if the file cannot be read or written.
        """
        try:
            if self._path.exists() and not all(good for _, good in _lines(self._path, last)):
                self._rewrite(last)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
            sync_folder(self._path.parent)
        except (OSError, ValueError) as error:
            raise StoreError(f"journal {self.name}: {self._path}: {error}") from error

    def _rewrite(self, last: CommitId) -> None:
        with replacing(self._path) as number, open(number, "wb", closefd=False) as file:
            file.writelines(line for line, good in _lines(self._path, last) if good)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def messages(path: Path) -> Iterator[tuple[CommitId, Message]]:
    """Yield the messages in a journal file, in order. A torn last line is skipped."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield _read(line)


def _lines(path: Path, last: CommitId) -> Iterator[tuple[bytes, bool]]:
    """Yield each line, and whether it should be kept."""
    with path.open("rb") as file:
        for line in file:
            yield line, line.endswith(b"\n") and _committed(_read(line)[0], last)


def _committed(commit: CommitId, last: CommitId) -> bool:
    return commit.store != last.store or commit.number <= last.number


def _line(commit: CommitId, message: Message) -> bytes:
    entry = {
        "store": commit.store,
        "commit": commit.number,
        "received_at": message.received_at,
        "topic": message.topic,
        "qos": message.qos,
        "retain": message.retain,
        "sender": message.sender,
        "origin": message.origin,
        "user_property": message.user_property,
        "payload": base64.b64encode(message.payload).decode(),
    }
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _read(line: bytes) -> tuple[CommitId, Message]:
    """Return the commit and the message stored in a line. Raises ValueError if this journal did not write the line."""
    try:
        entry = json.loads(line)
        message = Message(
            entry["topic"],
            base64.b64decode(entry["payload"], validate=True),
            entry["qos"],
            entry["retain"],
            sender=entry["sender"],
            origin=entry["origin"],
            received_at=entry["received_at"],
        )
        return CommitId(entry["store"], entry["commit"]), message
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a line of this journal: {line[:80]!r}") from error


def _write(file: int, data: bytes) -> None:
    write_all(file, data)
    os.fsync(file)
