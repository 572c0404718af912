"""Test the writer process: large frames, a limited log, and what happens when either process ends."""

import asyncio
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hookmq.plugin import Message, StoreError
from hookmq.storage_api import CommitId, Enqueue, PutMessage, PutRetained, Record, StoreFailed
from hookmq_storage.database import Limits
from hookmq_storage.folder import DATABASE, MARK, Mark, read_mark
from hookmq_storage.process import Channel
from hookmq_storage.store import SQLiteStore
from hookmq_storage.writer import FAILED, Checkpoints, _read, frame
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.state_folder import lock_holder


def opened(folder: Path, loop: Any, **options: Any) -> SQLiteStore:
    store = SQLiteStore(folder, loop.runtime, **options)
    list(store.load())
    return store


def wait(loop: Any, told: list[Any]) -> Any:
    for _ in range(10_000):
        if told:
            return told[0]
        loop.turn()
    raise AssertionError("nothing was told")


def commit(store: SQLiteStore, loop: Any, *records: Record) -> CommitId | StoreFailed:
    told: list[CommitId | StoreFailed] = []
    store.commit(records, told.append)
    result: CommitId | StoreFailed = wait(loop, told)
    return result


def close(store: SQLiteStore, loop: Any) -> None:
    told: list[bool] = []
    store.close(lambda: told.append(True))
    wait(loop, told)


def pid_of(store: SQLiteStore) -> int:
    assert store._process is not None
    return store._process.process.pid


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_end_is_heard_behind_an_answer_where_something_was_left_unread(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """If the writer exits without reading all its input, the broker still handles the last answer before the exit. The
    kernel then reports an error, and uvloop calls back only once. This happens when the disk fails during commits.
    """
    ours, theirs = socket.socketpair()
    told: list[Any] = []
    loop = new_loop()

    def ended() -> None:
        told.append("ended")
        loop.stop()

    channel = Channel(ours, told.append, ended)
    channel.start(loop)
    channel.send(["a commit nobody reads"])
    theirs.sendall(frame((FAILED, "disk")))
    theirs.close()
    guard = loop.call_later(10.0, loop.stop)
    loop.run_forever()
    guard.cancel()
    loop.close()
    assert told == [(FAILED, "disk"), "ended"]


def test_a_broker_that_is_gone_already_is_no_error(tmp_path: Path, loop: Any) -> None:
    """The writer exits without an error if the broker is already gone. The broker's own error message must be the last
    line of output, not a traceback from the writer.
    """
    close(opened(tmp_path / "data", loop), loop)
    ours, theirs = socket.socketpair()
    ours.close()
    pages: list[Any] = []
    with theirs:
        _read(tmp_path / "data", theirs, False, pages)
    for one in pages:
        one.close()


def test_large_messages_go_out_in_parts_and_come_back(tmp_path: Path, loop: Any) -> None:
    store = opened(tmp_path / "data", loop)
    payload = os.urandom(8 << 20)
    entry = Enqueue("c/one", 1, 1, 1, len(payload))
    assert commit(store, loop, PutMessage(1, Message("t", payload, 1)), entry) == CommitId(
        store.identity, 1
    )
    pages: list[Any] = []
    store.read("c/one", 0, 10, 1 << 30, pages.append)
    [(found, message)] = wait(loop, pages)
    assert (found, message.payload) == (entry, payload)
    close(store, loop)


def test_pages_come_in_the_order_of_asking(tmp_path: Path, loop: Any) -> None:
    store = opened(tmp_path / "data", loop)
    records: list[Record] = []
    for number in range(1, 40):
        records += (
            PutMessage(number, Message(f"t/{number}", b"x", 1)),
            Enqueue(f"c/{number}", 1, number, 1, 1),
        )
    commit(store, loop, *records)
    told: list[Any] = []
    for number in range(39, 0, -1):
        store.read(f"c/{number}", 0, 10, 100, told.append)
    wait(loop, told[38:] or told)
    for _ in range(1000):
        if len(told) == 39:
            break
        loop.turn()
    assert [page[0][1].topic for page in told] == [f"t/{n}" for n in range(39, 0, -1)]
    close(store, loop)


def test_the_log_is_bounded(tmp_path: Path, loop: Any) -> None:
    limits = Limits(wal=1 << 18)
    store = opened(tmp_path / "data", loop, durability="os", limits=limits)
    sizes = []
    for number in range(150):
        commit(store, loop, PutRetained(Message(f"t/{number}", bytes(40_000), 1, True)))
        sizes.append(store.stats.log_bytes)
    assert max(sizes) < 9 * limits.wal
    assert store.stats.database_bytes > 150 * 40_000
    assert sorted(sizes)[len(sizes) // 2] < 4 * limits.wal
    close(store, loop)
    assert not (tmp_path / "data" / f"{DATABASE}-wal").exists()


def test_commits_without_rows(tmp_path: Path, loop: Any) -> None:
    """A commit of journals alone keeps the size of the database, and leaves its number on the disk."""
    store = opened(tmp_path / "data", loop)
    commit(store, loop, *(PutRetained(Message(f"t/{n}", bytes(40_000), 1, True)) for n in range(9)))
    size = store.stats.database_bytes
    assert size > 9 * 40_000
    log = store.stats.log_bytes
    for _ in range(3):
        commit(store, loop)
    assert store.stats.database_bytes == size
    assert store.stats.log_bytes - log <= 3 * 2 * (4096 + 24)
    number = store.last_commit().number
    assert number == 4
    close(store, loop)
    again = opened(tmp_path / "data", loop)
    assert again.last_commit().number == number
    close(again, loop)


def test_a_commit_without_rows_is_one_statement(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "data", VirtualRuntime())
    list(store.load())
    engine = store._engine
    assert engine is not None
    seen: list[str] = []
    engine.db.set_trace_callback(seen.append)
    assert engine.commit([]) == 1
    assert [one.split()[0] for one in seen] == ["UPDATE"]
    engine.db.set_trace_callback(None)
    store.close(lambda: None)


class Unmovable:
    """A connection on which the log cannot be merged into the database."""

    def __init__(self, error: sqlite3.Error) -> None:
        self.error = error
        self.asked = threading.Semaphore(0)

    def execute(self, statement: str) -> None:
        self.asked.release()
        raise self.error


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY])
def test_a_log_that_cannot_be_moved_is_a_disk_that_fails(tmp_path: Path, code: int) -> None:
    """If the log cannot be merged because of a disk error, the broker fails. If the cause is only another process
    reading the database, the log is merged later.
    """
    limits = Limits(wal=1)
    store = SQLiteStore(tmp_path / "data", VirtualRuntime(), limits=limits)
    list(store.load())
    assert store._engine is not None
    checkpoints = Checkpoints(tmp_path / "data", store._engine, limits)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    checkpoints._db.close()
    failing = Unmovable(error)
    checkpoints._db = failing  # type: ignore[assignment]
    store.commit([PutRetained(Message("t", b"x", 1, True))], lambda result: None)
    checkpoints.after_commit()
    assert failing.asked.acquire(timeout=60)
    assert checkpoints._moved.wait(60)
    if code == sqlite3.SQLITE_IOERR:
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            checkpoints.after_commit()
    else:
        checkpoints.after_commit()
    store.close(lambda: None)


def test_answers_that_come_after_a_failure(tmp_path: Path, loop: Any) -> None:
    store = opened(tmp_path / "data", loop)
    entry = Enqueue("c/bad", 1, 1, 1, 2)
    commit(store, loop, PutMessage(1, Message("t", b"x", 1)), entry)
    with closing(sqlite3.connect(tmp_path / "data" / DATABASE)) as db:
        db.execute("UPDATE entry SET size = 3")
        db.commit()
    told: list[Any] = []
    store.read("c/bad", 0, 10, 100, told.append)
    store.read("c/good", 0, 10, 100, told.append)
    faults: list[Any] = []
    loop.loop.set_exception_handler(lambda _, context: faults.append(context))
    assert isinstance(wait(loop, told), StoreFailed)
    for _ in range(20):
        loop.turn()
    assert [type(one) for one in told] == [StoreFailed, StoreFailed]
    assert faults == []
    close(store, loop)


def test_a_clean_end_leaves_the_mark_and_no_lock(tmp_path: Path, loop: Any) -> None:
    store = opened(tmp_path / "data", loop)
    commit(store, loop, PutRetained(Message("t", b"x", 1, True)))
    assert lock_holder(tmp_path / "data") == os.getpid()
    close(store, loop)
    assert lock_holder(tmp_path / "data") is None
    assert read_mark(tmp_path / "data") == Mark(store.identity, 1)
    names = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert names == [DATABASE, "lock", MARK]


def test_a_store_that_was_never_loaded_ends(tmp_path: Path, loop: Any) -> None:
    store = SQLiteStore(tmp_path / "data", loop.runtime)
    close(store, loop)
    assert lock_holder(tmp_path / "data") is None
    close(store, loop)


def test_a_writer_that_is_killed_is_told_and_remembered(tmp_path: Path, loop: Any) -> None:
    store = opened(tmp_path / "data", loop)
    os.kill(pid_of(store), signal.SIGSTOP)
    os.waitpid(pid_of(store), os.WUNTRACED)  # all its threads stand still: none answers any more
    told: list[Any] = []
    paged: list[Any] = []
    store.commit([PutRetained(Message("t", b"x", 1, True))], told.append)
    store.read("c/one", 0, 10, 100, paged.append)
    os.kill(pid_of(store), signal.SIGKILL)
    failed = StoreFailed("the writer process was killed by signal 9")
    assert wait(loop, told) == failed
    assert wait(loop, paged) == failed
    assert commit(store, loop) == failed
    store.read("c/one", 0, 10, 100, paged.append)
    assert paged == [failed, failed]
    close(store, loop)


def test_a_writer_that_is_gone_before_the_start(tmp_path: Path, loop: Any) -> None:
    store = SQLiteStore(tmp_path / "data", loop.runtime)
    os.kill(pid_of(store), signal.SIGKILL)
    with pytest.raises(StoreError, match="the writer process was killed by signal 9"):
        list(store.load())
    close(store, loop)


def test_damage_is_found_by_the_writer(tmp_path: Path, loop: Any) -> None:
    store = opened(tmp_path / "data", loop)
    entry = Enqueue("c/one", 1, 1, 1, 1)
    commit(store, loop, PutMessage(1, Message("t", b"x", 1, expires_at=1e12)), entry)
    close(store, loop)
    from hookmq_storage.database import connect

    db = connect(tmp_path / "data")
    db.execute("UPDATE message SET payload = x'00'")
    db.close()
    store = SQLiteStore(tmp_path / "data", loop.runtime)
    with pytest.raises(StoreError, match="message 1: wrong checksum"):
        list(store.load())
    close(store, loop)
    store = opened(tmp_path / "data", loop, verify=False)
    told: list[Any] = []
    store.read("c/one", 0, 10, 100, told.append)
    failed = wait(loop, told)
    assert isinstance(failed, StoreFailed)
    assert "message 1: wrong checksum" in failed.reason
    assert commit(store, loop) == failed
    close(store, loop)
