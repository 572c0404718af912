"""The process that writes. It shares no interpreter lock with the broker's event loop, and a slow disk is its alone.

``python -P -m hookmq_storage.writer CONFIG`` is started by `hookmq_storage.process`, with two sockets: commits come by
one and are answered in order; pages of queues are asked for by the other and read by a thread of its own, which does not
wait for commits. A third thread moves the log into the database. It ends when the broker does.
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
"""The frame that asks for the end."""
_IDLE: Final = 30.0
"""Seconds without a commit after which expired retained messages are looked for."""
_DUTY: Final = 0.05
"""Seconds of commits that one slice of sweeping may come between."""
_REST: Final = 512
"""Pages of the log that may be moved between two commits: 2 MiB."""
_MOST: Final = 8
"""Times `limits.wal` that the log may grow to while it is moved beside the commits."""


def frame(value: Any) -> bytes:
    """A value as it crosses the sockets. Both ends run the same Python."""
    data = marshal.dumps(value)
    return HEADER.pack(len(data)) + data


def receive(connection: socket.socket) -> tuple[bool, Any]:
    """The next value, blocking; (False, None) at the end."""
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
"""What may be asked of the reading thread."""


class Checkpoints:
    """Moves the log into the database beside the commits. A log that is written to all the time is never moved to its
    end that way, so the short rest is moved between two commits, after which it begins anew."""

    def __init__(self, folder: Path, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._db = connect(folder, limits, engine.durability)
        self._wanted = threading.Event()
        self._moved = threading.Event()
        self._busy = threading.Lock()
        self._rest = 0
        """Pages that came into the log while the others were moved."""
        self._error: sqlite3.Error | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def check(self) -> None:
        """Raise sqlite3.Error if the log could not be moved: an fsync that failed is final, whose ever it was. Before a
        commit is told, too: Linux reports a failed write to every open file (fsync(2)), other systems to the first that
        asks, and that may have been this thread, with the commit's own pages."""
        if self._error is not None:
            raise self._error

    def after_commit(self) -> None:
        """To be called between two commits. Raises sqlite3.Error as `check` does."""
        self.check()
        engine = self._engine
        size = engine.wal_size()
        if size <= engine.limits.wal:
            return
        if self._wanted.is_set():
            if size > _MOST * engine.limits.wal:
                # The disk cannot keep up with commits and this at once: now the commits wait. Never for readers, such as
                # an export, who keep the log from beginning anew for as long as they look at what was.
                with self._busy:
                    pass
            return
        if self._moved.is_set():
            self._moved.clear()
            if self._rest <= _REST and engine.checkpoint():
                return
        self._wanted.set()

    def close(self) -> None:
        """Let go, after what it is doing."""
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
    """Serve pages; first of all tell whether the database is whole. What it opens for them is put into `opened`."""
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
        with suppress(OSError):  # the broker is gone: something else kept it from starting
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
    while True:
        if not parts and not poll.poll(0):
            while engine.ended and not poll.poll(0):
                engine.sweep()
            while not poll.poll(0) and engine.give_back():
                pass
            if not poll.poll(_IDLE * 1000):
                engine.ended = True  # maybe something expired
                if engine.durability == "group":
                    engine.mark()
                continue
        there, batch = receive(connection)
        if not there or batch is CLOSE:
            # The last connection that closes takes the log's files away.
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
        told = (DONE, number, engine.next_message, took, engine.size(), engine.wal_size())
        connection.sendall(frame(told))
        checkpoints.after_commit()
        if engine.ended and time.monotonic() - swept > _DUTY:
            engine.sweep()
            swept = time.monotonic()


def main(config: str) -> None:
    """Serve one broker to its end. An error that leaves open what is on the disk is told and ends it: what was not
    acknowledged then never is."""
    # Ctrl-C and the service manager's TERM are for the broker, which still has commits to make.
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
        pass  # the broker is gone
    except Exception as error:
        try:
            commits.sendall(frame((FAILED, str(wrong(folder, error)))))
        except OSError:
            pass
        os._exit(1)
    # Threads may be at work; everything that matters is closed.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
