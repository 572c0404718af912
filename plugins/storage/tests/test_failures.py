"""Failed changes are never acknowledged, and untrustworthy data is not served."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import ClientRecord, Message, StoreError, Subscription
from hookmq.storage_api import (
    CommitId,
    Enqueue,
    PutMessage,
    PutReceived,
    PutRetained,
    PutSession,
    PutSubscription,
    Record,
    SessionRecord,
    StoreFailed,
)
from hookmq_storage.database import Limits
from hookmq_storage.folder import DATABASE
from hookmq_storage.store import SQLiteStore
from hookmq_testing import Harness, run_command
from hookmq_testing.runtime import VirtualRuntime

EVERYTHING: list[Record] = [
    PutSession(SessionRecord(ClientRecord("one", 5), 60.0)),
    PutSubscription("one", Subscription("a", "a", 1)),
    PutReceived("one", 7),
    PutRetained(Message("kept", b"retained payload", 1, True)),
    PutMessage(1, Message("queued", b"queued payload", 1, expires_at=1e12)),
    Enqueue("c/one", 1, 1, 1, 14),
]
Break = Callable[[sqlite3.Connection], object]


def commit(store: SQLiteStore, *records: Record) -> CommitId | StoreFailed:
    told: list[CommitId | StoreFailed] = []
    store.commit(records, told.append)
    [result] = told
    return result


def make(folder: Path, *records: Record) -> None:
    store = SQLiteStore(folder, VirtualRuntime())
    list(store.load())
    assert commit(store, *(records or EVERYTHING)).number == 1  # type: ignore[union-attr]
    store.close(lambda: None)


class Failing:
    """A connection on which one kind of statement fails."""

    def __init__(self, db: sqlite3.Connection, word: str, text: str) -> None:
        self._db = db
        self._word = word
        self._text = text

    def execute(self, statement: str, *args: Any) -> Any:
        if statement.startswith(self._word):
            raise sqlite3.OperationalError(self._text)
        return self._db.execute(statement, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


@pytest.mark.parametrize(
    "text",
    ["disk I/O error", "database or disk is full", "attempt to write a readonly database"],
)
def test_a_failed_commit_is_told_and_is_the_last(store: SQLiteStore, text: str) -> None:
    assert commit(store, *EVERYTHING).number == 1  # type: ignore[union-attr]
    engine = store._engine
    assert engine is not None
    engine.db = Failing(engine.db, "COMMIT", text)  # type: ignore[assignment]
    failed = commit(store, PutRetained(Message("t", b"x", 1, True)))
    assert isinstance(failed, StoreFailed)
    assert text in failed.reason
    assert str(store.folder) in failed.reason
    engine.db = engine.db._db  # type: ignore[attr-defined]
    # The disk works again, but nobody knows what it kept.
    assert commit(store) == failed


def test_a_full_disk_fails_the_commit(tmp_path: Path, runtime: VirtualRuntime) -> None:
    store = SQLiteStore(tmp_path / "data", runtime, limits=Limits(size=1 << 20))
    list(store.load())
    results = [
        commit(store, PutRetained(Message(f"t/{number}", bytes(100_000), 1, True)))
        for number in range(12)
    ]
    failed = next(one for one in results if isinstance(one, StoreFailed))
    assert "database or disk is full" in failed.reason
    assert "MiB free" in failed.reason
    safe = [one for one in results if isinstance(one, CommitId)]
    assert safe == results[: len(safe)]
    assert len(safe) >= 5
    store.close(lambda: None)
    again = SQLiteStore(tmp_path / "data", runtime)
    assert len([one for one in again.load() if isinstance(one, PutRetained)]) == len(safe)
    again.close(lambda: None)


def test_nothing_is_acknowledged_after_a_failed_commit(store: SQLiteStore) -> None:
    harness = Harness(store=store)
    sub = harness.connect("sub", session_expiry_interval=60)
    sub.subscribe("t", 1)
    sub.disconnect()
    pub = harness.connect("pub")
    pub.publish("t", b"safe", 1, expect=0)
    engine = store._engine
    assert engine is not None
    engine.db = Failing(engine.db, "COMMIT", "disk I/O error")  # type: ignore[assignment]
    failures: list[str] = []
    harness.broker.on_failure = failures.append
    pub.publish("t", b"lost", 1, expect=None)
    pub.publish("t", b"lost too", 1, expect=None)
    pub.expect_nothing()
    [reason] = failures
    assert "disk I/O error" in reason
    engine.db = engine.db._db  # type: ignore[attr-defined]
    harness.close()


# --- the files on disk ------------------------------------------------------------------------------------------------


def update(table: str, change: str) -> Break:
    return lambda db: db.execute(f"UPDATE {table} SET {change}")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (update("session", "expiry = 61"), "session 1: wrong checksum"),
        (update("subscription", "options = 2"), "subscription 1: wrong checksum"),
        (update("received", "packet_id = 8"), "received 1: wrong checksum"),
        (update("retained", "payload = x'00'"), "retained 'kept': wrong checksum"),
        (update("message", "payload = x'00'"), "message 1: wrong checksum"),
        (update("message", "payload = NULL"), "message 1: wrong checksum"),
        (update("entry", "seq = 2"), "entry 1: wrong checksum"),
        (update("entry", "sent = 5"), "entry 1: wrong checksum"),
        (lambda db: db.execute("DELETE FROM message"), "1 queue entries without a message"),
        (lambda db: db.execute("DELETE FROM owner"), "1 queue entries without an owner"),
    ],
)
def test_a_damaged_row_is_not_served(tmp_path: Path, damage: Break, says: str) -> None:
    make(tmp_path / "data")
    db = sqlite3.connect(tmp_path / "data" / DATABASE, isolation_level=None)
    damage(db)
    db.close()
    store = SQLiteStore(tmp_path / "data", VirtualRuntime())
    with pytest.raises(StoreError) as caught:
        list(store.load())
    assert says in str(caught.value)
    assert "hookmq storage repair" in str(caught.value)
    store.close(lambda: None)


@pytest.mark.parametrize("place", [0, 1], ids=["table or index", "the other"])
def test_a_client_id_that_changed_on_the_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: int
) -> None:
    """If a client id is damaged on disk, its session is not given to any client. The id is stored on two pages without
    checksums, so damage to one makes the two copies differ.
    """
    make(tmp_path / "data")
    path = tmp_path / "data" / DATABASE
    parts = path.read_bytes().split(b"c/one")
    assert len(parts) == 3
    damaged = [b"c/one", b"c/one"]
    damaged[place] = b"c/onf"
    path.write_bytes(parts[0] + damaged[0] + parts[1] + damaged[1] + parts[2])
    store = SQLiteStore(tmp_path / "data", VirtualRuntime())
    with pytest.raises(StoreError, match="1 owners whose name differs from the index"):
        list(store.load())
    store.close(lambda: None)
    assert run_command(["storage", "repair", str(tmp_path / "data")]) == 0
    told = capsys.readouterr().out
    assert "lost: owner 1: its name is 'c/on" in told
    assert "lost: session 1: its client id is missing" in told
    assert run_command(["storage", "check", str(tmp_path / "data")]) == 0


def test_repair_reports_the_content_of_a_lost_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "data")
    with closing(sqlite3.connect(tmp_path / "data" / DATABASE, isolation_level=None)) as db:
        db.execute("UPDATE session SET expiry = 61")
    assert run_command(["storage", "repair", str(tmp_path / "data")]) == 0
    told = capsys.readouterr().out
    assert "lost: session 1: wrong checksum" in told
    assert "lost: 3 subscriptions, ids and queue entries of c/one: its session is lost" in told


def test_a_damaged_page_is_not_served(tmp_path: Path) -> None:
    make(
        tmp_path / "data",
        *(PutRetained(Message(f"t/{number}", bytes(1000), 1, True)) for number in range(100)),
    )
    path = tmp_path / "data" / DATABASE
    data = bytearray(path.read_bytes())
    at = len(data) // 2 // 4096 * 4096
    data[at : at + 16] = b"\xff" * 16
    path.write_bytes(data)
    store = SQLiteStore(tmp_path / "data", VirtualRuntime())
    with pytest.raises(StoreError, match=r"malformed|SQLite"):
        list(store.load())
    store.close(lambda: None)


def test_a_broker_does_not_start_on_it(tmp_path: Path) -> None:
    make(tmp_path / "data")
    db = sqlite3.connect(tmp_path / "data" / DATABASE, isolation_level=None)
    db.execute("UPDATE message SET topic = 'other'")
    db.close()
    harness = Harness(start=False)
    harness.store = harness.broker.state.store = SQLiteStore(tmp_path / "data", harness.clock)
    with pytest.raises(StoreError, match="message 1: wrong checksum"):
        harness.start()
    harness.close()


def test_a_row_that_changes_while_the_broker_runs(store: SQLiteStore) -> None:
    commit(store, *EVERYTHING)
    engine = store._engine
    assert engine is not None
    engine.db.execute("UPDATE message SET payload = x'00'")
    pages: list[Any] = []
    store.read("c/one", 0, 10, 1000, pages.append)
    assert [type(page) for page in pages] == [StoreFailed]
    assert "message 1: wrong checksum" in pages[0].reason
    assert isinstance(commit(store), StoreFailed)
