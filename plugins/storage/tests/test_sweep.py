"""Data of ended sessions is deleted in slices, and its space is used again."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hookmq.plugin import ClientRecord, Message, Subscription
from hookmq.storage_api import (
    CommitId,
    Dequeue,
    DropSession,
    Enqueue,
    PutMessage,
    PutReceived,
    PutRetained,
    PutSession,
    PutSubscription,
    Record,
    SessionRecord,
)
from hookmq_storage.engine import Engine
from hookmq_storage.folder import DATABASE
from hookmq_storage.pages import PAGE
from hookmq_storage.store import SQLiteStore
from hookmq_storage.sweep import FREE
from hookmq_testing import EPOCH, VirtualRuntime

TABLES = ("owner", "session", "subscription", "received", "message", "entry", "retained")


@pytest.fixture
def store(tmp_path: Path, runtime: VirtualRuntime) -> Iterator[SQLiteStore]:
    """Yield a store that does not wait for the disk."""
    made = SQLiteStore(tmp_path / "data", runtime, "os")
    list(made.load())
    yield made
    made.close(lambda: None)


def commit(store: SQLiteStore, *records: Record) -> None:
    told: list[object] = []
    store.commit(records, told.append)
    assert isinstance(told[0], CommitId), told


def engine_of(store: SQLiteStore) -> Engine:
    assert store._engine is not None
    return store._engine


def counts(store: SQLiteStore) -> dict[str, int]:
    db = engine_of(store).db
    found = {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES}
    return {table: number for table, number in found.items() if number}


def fill(store: SQLiteStore, name: str, messages: int, payload: bytes = b"x") -> None:
    records: list[Record] = [PutSession(SessionRecord(ClientRecord(name, 5), 60.0))]
    records += (PutSubscription(name, Subscription(f"f/{n}", f"f/{n}")) for n in range(300))
    records += (PutReceived(name, n + 1) for n in range(300))
    first = store.next_message_id()
    for number in range(messages):
        id = first + number
        records += (
            PutMessage(id, Message("t", payload, 1, expires_at=EPOCH + 1e9)),
            Enqueue(f"c/{name}", number, id, 1, 1),
        )
    commit(store, *records)


def test_a_session_ends_at_once_and_is_swept_away_later(
    store: SQLiteStore, runtime: VirtualRuntime
) -> None:
    fill(store, "one", 2000)
    fill(store, "two", 1)
    commit(store, DropSession("one"))
    assert counts(store)["entry"] == 2001
    pages: list[object] = []
    store.read("c/one", -1, 10, 1000, pages.append)
    assert pages == [[]]
    engine = engine_of(store)
    slices = 0
    while engine.ended:
        engine.sweep(0.0)
        slices += 1
        assert slices < 200
        left = counts(store)
        assert left["message"] == left["entry"]
    assert counts(store) == {
        "owner": 1, "session": 1, "subscription": 300, "received": 300, "message": 1, "entry": 1,
    }  # fmt: skip


def test_a_slice_is_one_chunk_when_there_is_no_time(store: SQLiteStore) -> None:
    fill(store, "one", 2000)
    commit(store, DropSession("one"))
    engine = engine_of(store)
    before = counts(store)["entry"]
    assert engine.sweep(0.0)
    assert counts(store)["entry"] == before - 128
    assert engine.sweep(3600.0) is False
    assert counts(store) == {}


def test_a_session_that_comes_back_is_not_swept_away(
    store: SQLiteStore, runtime: VirtualRuntime
) -> None:
    fill(store, "one", 500)
    commit(store, DropSession("one"))
    fill(store, "one", 3)
    runtime.run_until_idle()
    assert counts(store) == {
        "owner": 1, "session": 1, "subscription": 300, "received": 300, "message": 3, "entry": 3,
    }  # fmt: skip


def test_sweeping_goes_on_after_a_crash(
    tmp_path: Path, store: SQLiteStore, runtime: VirtualRuntime
) -> None:
    fill(store, "one", 500)
    commit(store, DropSession("one"))
    store.close(lambda: None)
    again = SQLiteStore(tmp_path / "data", runtime)
    assert list(again.load()) == []
    runtime.run_until_idle()
    assert counts(again) == {}
    again.close(lambda: None)


def test_expired_retained_messages_are_swept_away(
    store: SQLiteStore, runtime: VirtualRuntime
) -> None:
    for number in range(300):
        expires = EPOCH + 60 if number % 3 else None
        commit(store, PutRetained(Message(f"t/{number}", b"x", 1, True, expires_at=expires)))
    engine = engine_of(store)
    while engine.sweep():
        pass
    assert counts(store)["retained"] == 300
    runtime.advance(61)
    while engine.sweep():
        pass
    assert counts(store)["retained"] == 100


def test_room_is_used_again(tmp_path: Path, store: SQLiteStore, runtime: VirtualRuntime) -> None:
    """Filling and emptying a queue repeatedly does not make the file grow, and checkpoints limit the size of its log."""
    sizes = []
    ids = count(1)
    for _ in range(6):
        batch = [next(ids) for _ in range(400)]
        for id in batch:
            commit(
                store, PutMessage(id, Message("t", bytes(2000), 1)), Enqueue("c/one", id, id, 1, 1)
            )
        commit(store, *(Dequeue("c/one", id) for id in batch))
        assert counts(store) == {"owner": 1}
        engine_of(store).checkpoint()
        sizes.append((tmp_path / "data" / DATABASE).stat().st_size)
    assert max(sizes[1:]) == sizes[0]


def test_room_is_given_back_in_slices(tmp_path: Path, store: SQLiteStore) -> None:
    engine = engine_of(store)
    payload = bytes(60_000)
    commit(store, *(PutRetained(Message(f"t/{n}", payload, 1, True)) for n in range(500)))
    assert not engine.give_back()
    full = engine.size()
    assert full > 500 * 60_000
    engine.db.execute("DELETE FROM retained")
    slices = 0
    while engine.give_back():
        slices += 1
    assert slices > 10
    assert engine.size() < full * 3 // 4


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (FREE, "entry_message"),
        (f"{PAGE} WHERE e.owner = ? AND e.seq > ? ORDER BY e.seq LIMIT ?", "PRIMARY KEY"),
        ("DELETE FROM entry WHERE owner = ? AND seq BETWEEN ? AND ?", "PRIMARY KEY"),
        ("SELECT id FROM owner WHERE name = ?", "INDEX"),
        ("SELECT id FROM owner WHERE name IS NULL", "INDEX"),
        ("DELETE FROM subscription WHERE owner = ? AND filter = ?", "PRIMARY KEY"),
        ("DELETE FROM received WHERE owner = ? AND packet_id = ?", "PRIMARY KEY"),
        ("DELETE FROM retained WHERE topic = ?", "INDEX"),
        (
            "SELECT id FROM retained WHERE expires_at IS NOT NULL AND expires_at <= ? LIMIT ?",
            "INDEX",
        ),
    ],
)
def test_nothing_looks_through_a_whole_table(
    store: SQLiteStore, statement: str, index: str
) -> None:
    rows = engine_of(store).db.execute(
        f"EXPLAIN QUERY PLAN {statement}", (1,) * statement.count("?")
    )
    plan = [row[3] for row in rows]
    assert not any(step.startswith("SCAN") for step in plan), plan
    assert any(index in step for step in plan), plan


def test_many_messages_are_read_in_pages(store: SQLiteStore) -> None:
    for start in range(0, 20_000, 10_000):
        records: list[Record] = []
        for number in range(start + 1, start + 10_001):
            records += (
                PutMessage(number, Message("t", b"%d" % number, 1)),
                Enqueue("c/one", number, number, 1, 1),
            )
        commit(store, *records)
    after = 0
    pages: list[object] = []
    while True:
        store.read("c/one", after, 256, 1 << 20, pages.append)
        page = pages.pop()
        assert isinstance(page, list)
        if not page:
            break
        assert [entry.seq for entry, _ in page] == list(range(after + 1, after + 1 + len(page)))
        after = page[-1][0].seq
        commit(store, *(Dequeue("c/one", entry.seq) for entry, _ in page))
    assert after == 20_000
    assert counts(store) == {"owner": 1}
