"""The writer process. It does not share the interpreter lock with the broker's event loop, so a slow disk does not
delay the broker.

`hookmq_storage.process` starts it as ``python -P -m hookmq_storage.writer CONFIG`` with two sockets. Commits arrive on
the first socket and are answered in order. Page requests arrive on the second socket; a thread serves them without
waiting for commits. A third thread moves the log into the database. The process ends when the broker ends.
"""

import json
import marshal
import os
import select
import signal
import socket
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hookmq_storage.check import problems
from hookmq_storage.database import Limits, connect, connect_reading, state, wrong
from hookmq_storage.engine import Engine
from hookmq_storage.pages import Pages

HEADER: Final = struct.Struct("<Q")
DONE: Final = 0
FAILED: Final = 1
CLOSED: Final = 2
OPEN: Final = 3
CLOSE: Final = None
"""The frame that tells the process to end."""
_IDLE: Final = 30.0
"""Seconds without a commit before expired retained messages are swept."""
_DUTY: Final = 0.05
"""Seconds to spend on commits between two slices of sweeping."""
_REST: Final = 512
"""Maximum number of log pages to move between two commits: 2 MiB."""
_MOST: Final = 8
"""The log may grow to this multiple of `limits.wal` while a checkpoint runs."""


def frame(value: Any) -> bytes:
    """Encode a value for the sockets. Both ends run the same Python version."""
    data = marshal.dumps(value)
    return HEADER.pack(len(data)) + data


def receive(connection: socket.socket) -> tuple[bool, Any]:
    """Return (True, value) for the next value, or (False, None) at the end of the stream. This call blocks."""
    header = _exactly(connection, HEADER.size)
    if header is None:
        return False, None
    data = _exactly(connection, HEADER.unpack(header)[0])
    if data is None:
        return False, None
    return True, marshal.loads(data)


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            got = connection.recv_into(view)
        except ConnectionError:
            return None
        if not got:
            return None
        view = view[got:]
    return data


ANSWERS: Final[Mapping[str, Callable[..., Any]]] = {"read": Pages.read, "expired": Pages.expired}
"""The requests that the reading thread serves."""


class Checkpoints:
    """Moves the log into the database while commits continue.

    New commits keep adding pages, so these checkpoints alone never empty the log. The few remaining pages are moved
    between two commits, after which the log starts over.
    """

    def __init__(self, folder: Path, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._db = connect(folder, limits, engine.durability)
        self._wanted = threading.Event()
        self._moved = threading.Event()
        self._busy = threading.Lock()
        self._rest = 0
        """Pages that were added to the log while a checkpoint ran."""
        self._error: sqlite3.Error | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def check(self) -> None:
        """Raise sqlite3.Error if a checkpoint failed. A failed fsync is fatal in any thread.

        Also call this before reporting a commit. Linux reports a write error once to every open file descriptor
        (fsync(2)). Other systems report it only to the first caller of fsync. On those systems, the checkpoint thread
        may already have consumed the error for this commit's pages.
        """
        if self._error is not None:
            raise self._error

    def after_commit(self) -> None:
        """Start a checkpoint if one is due. Call this after each commit. Raises sqlite3.Error, as `check` does."""
        self.check()
        engine = self._engine
        size = engine.log_bytes
        if size <= engine.limits.wal:
            return
        if self._wanted.is_set():
            if size > _MOST * engine.limits.wal:
                # The disk cannot keep up with both, so commits wait. They never wait for readers such as an export,
                # although a reader keeps the log from starting over until it has finished.
                with self._busy:
                    pass
            return
        if self._moved.is_set():
            self._moved.clear()
            if self._rest <= _REST and engine.checkpoint():
                return
        self._wanted.set()

    def close(self) -> None:
        """Wait for the current checkpoint, then close the connection."""
        with self._busy:
            self._db.close()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            with self._busy:
                try:
                    _, log, done = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    self._rest = max(0, log - done)
                except sqlite3.Error as error:
                    if error.sqlite_errorcode not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                        self._error = error
            self._moved.set()
            self._wanted.clear()


def _read(folder: Path, connection: socket.socket, verify: bool, opened: list[Pages]) -> None:
    """Report whether the database is intact, then serve page requests. Append the `Pages` object to `opened`."""
    try:
        problem = ""
        if verify:
            db = connect_reading(folder, 32 << 20)
            problem = next(problems(db), "")
            db.close()
        pages = Pages(folder)
        opened.append(pages)
        connection.sendall(frame((OPEN, problem)))
    except Exception as error:
        with suppress(OSError):  # the broker has ended: another error prevented its start
            connection.sendall(frame((OPEN, str(wrong(folder, error)))))
        return
    while True:
        there, request = receive(connection)
        if not there:
            return
        try:
            what, *arguments = request
            answer: tuple[int, Any] = (DONE, ANSWERS[what](pages, *arguments))
        except Exception as error:
            answer = (FAILED, str(error) or repr(error))
        try:
            connection.sendall(frame(answer))
        except OSError:
            return


def _write(
    engine: Engine, checkpoints: Checkpoints, pages: list[Pages], connection: socket.socket
) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    swept = time.monotonic()
    parts: list[Any] = []
    # A commit without rows, as for a stream, frees no pages and leaves the database's size as it was.
    size = engine.size()
    changed = True
    while True:
        if not parts:
            if (engine.ended or changed) and not poll.poll(0):
                while engine.ended and not poll.poll(0):
                    engine.sweep()
                    changed = True
                while changed and not poll.poll(0):
                    changed = engine.give_back()
                size = engine.size()
            if not poll.poll(_IDLE * 1000):
                engine.ended = True  # messages may have expired in the meantime
                if engine.durability == "group":
                    engine.mark()
                continue
        there, batch = receive(connection)
        if not there or batch is CLOSE:
            # Closing the last connection removes the log's files.
            checkpoints.close()
            for one in pages:
                one.close()
            engine.close()
            if there:
                connection.sendall(frame((CLOSED, engine.number)))
            return
        if isinstance(batch, tuple):
            parts += batch[0]
            continue
        began = time.perf_counter()
        if parts:
            batch, parts = parts + batch, []
        number = engine.commit(batch)
        checkpoints.check()
        took = time.perf_counter() - began
        if batch:
            changed = True
            size = engine.size()
        connection.sendall(frame((DONE, number, engine.next_message, took, size, engine.log_bytes)))
        checkpoints.after_commit()
        if engine.ended and time.monotonic() - swept > _DUTY:
            engine.sweep()
            changed = True
            swept = time.monotonic()


def main(config: str) -> None:
    """Serve one broker until it ends.

    If an error leaves the disk in an unknown state, report the error and end the process. Nothing else is acknowledged
    after that.
    """
    # Only the broker handles Ctrl-C and SIGTERM, because it still has commits to send.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    options = json.loads(config)
    folder = Path(options["folder"])
    commits = socket.socket(fileno=options["commits"])
    reads = socket.socket(fileno=options["reads"])
    limits = Limits(**options["limits"])
    try:
        db = connect(folder, limits, options["durability"])
        engine = Engine(folder, db, state(db), options["durability"], limits)
        checkpoints = Checkpoints(folder, engine, limits)
        pages: list[Pages] = []
        threading.Thread(
            target=_read, args=(folder, reads, options["verify"], pages), daemon=True
        ).start()
        _write(engine, checkpoints, pages, commits)
    except BrokenPipeError:
        pass  # the broker has ended
    except Exception as error:
        try:
            commits.sendall(frame((FAILED, str(wrong(folder, error)))))
        except OSError:
            pass
        os._exit(1)
    # Threads may still be running, but everything important is closed.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
