"""Test where messages are stored. A message in one queue is stored inside its queue entry. A message in several queues
gets its own row and keeps it.
"""

import json
import marshal
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import ClientRecord, Message, Properties, StoreError
from hookmq.storage_api import (
    Dequeue,
    DropSession,
    Enqueue,
    PutMessage,
    PutSession,
    Queued,
    Record,
    SessionRecord,
    SetPacket,
    StoreFailed,
)
from hookmq_storage.check import _right_entry, row_ok
from hookmq_storage.engine import HELD
from hookmq_storage.folder import DATABASE
from hookmq_storage.inline import LARGEST, body_of, head_of, inline_crc, parts_of
from hookmq_storage.rows import operations
from hookmq_storage.store import SQLiteStore
from hookmq_testing import Harness, run_command
from hookmq_testing.contracts import fields_of
from hookmq_testing.runtime import VirtualRuntime
from hypothesis import given, settings
from hypothesis import strategies as st

ONE = Message("a/b", b"payload", 1, sender="pub", received_at=1700000000.25)


def commit(store: SQLiteStore, *records: Record) -> Any:
    told: list[Any] = []
    store.commit(records, told.append)
    return told.pop()


def page(store: SQLiteStore, owner: str) -> list[tuple[Enqueue, tuple[Any, ...]]]:
    pages: list[list[Queued] | StoreFailed] = []
    store.read(owner, -100, 1000, 1 << 20, pages.append)
    assert isinstance(pages[0], list), pages
    return [(entry, fields_of(message)) for entry, message in pages[0]]


def counts(store: SQLiteStore) -> tuple[int, int, int]:
    """Return the numbers of messages, entries, and entries that contain their message."""
    assert store._engine is not None
    found: tuple[int, int, int] = store._engine.db.execute(
        "SELECT (SELECT count(*) FROM message), count(*), count(body) FROM entry"
    ).fetchone()
    return found


def queued(owner: str = "c/one", seq: int = 1, id: int = 1, **fields: Any) -> Enqueue:
    return Enqueue(owner, seq, id, 1, 10, **fields)


def test_one_queue(store: SQLiteStore) -> None:
    entry = queued(retain=True, identifiers=(3, 1), filter="a/#", packet_id=9, released=True)
    commit(store, PutMessage(1, ONE), entry)
    assert counts(store) == (0, 1, 1)
    assert page(store, "c/one") == [(entry, fields_of(ONE))]
    commit(store, SetPacket("c/one", 1, 10, False))
    assert page(store, "c/one")[0][0] == entry._replace(packet_id=10, released=False)
    assert store.next_message_id() == 2
    commit(store, Dequeue("c/one", 1))
    assert counts(store) == (0, 0, 0)


@pytest.mark.parametrize(
    "between",
    [[], [Dequeue("c/two", 9)], [SetPacket("c/one", 1, 7, False)]],
    ids=["next", "after another", "sent meanwhile"],
)
def test_two_queues_of_one_batch(store: SQLiteStore, between: list[Record]) -> None:
    commit(store, PutMessage(1, ONE), queued(), *between, queued("c/two"))
    assert counts(store) == (1, 2, 0)
    sent = 7 if any(isinstance(one, SetPacket) for one in between) else 0
    assert page(store, "c/one") == [(queued(packet_id=sent), fields_of(ONE))]
    assert page(store, "c/two") == [(queued("c/two"), fields_of(ONE))]
    commit(store, Dequeue("c/one", 1))
    assert counts(store) == (1, 1, 0)
    commit(store, Dequeue("c/two", 1))
    assert counts(store) == (0, 0, 0)


def test_it_came_and_went_before_the_other_entry(store: SQLiteStore) -> None:
    commit(store, PutMessage(1, ONE), queued(), Dequeue("c/one", 1), queued("c/two"))
    assert page(store, "c/two") == [(queued("c/two"), fields_of(ONE))]
    commit(store, PutMessage(2, ONE), queued(id=2), Dequeue("c/one", 1))
    assert counts(store)[1:] == (1, 0)
    assert store.next_message_id() == 3


def test_another_queue_in_a_later_batch(store: SQLiteStore) -> None:
    """A message that is added to another queue in a later batch gets its own row, whichever queue came first."""
    entry = queued(filter="a/#", packet_id=5)
    commit(store, PutMessage(1, ONE), entry, PutMessage(2, ONE), queued(seq=2, id=2))
    commit(store, queued("g/x/a"))
    assert counts(store) == (1, 3, 1)
    assert page(store, "c/one")[0] == (entry, fields_of(ONE))
    commit(store, queued("c/three", id=2), Dequeue("c/one", 2))
    assert counts(store) == (2, 3, 0)
    commit(store, DropSession("one"))
    assert page(store, "g/x/a") == [(queued("g/x/a"), fields_of(ONE))]
    assert page(store, "c/three") == [(queued("c/three", id=2), fields_of(ONE))]


def test_a_damaged_inline_message_is_not_shared_with_another_queue(store: SQLiteStore) -> None:
    commit(store, PutMessage(1, ONE), queued())
    assert store._engine is not None
    store._engine.db.execute("UPDATE entry SET size = 11")
    told = commit(store, queued("c/two"))
    assert isinstance(told, StoreFailed)
    assert "queue entry 1 of owner 1: wrong checksum" in told.reason


@pytest.mark.parametrize(
    ("message", "entry"),
    [
        (ONE, queued("g/x/a")),
        (ONE, queued(group="g/x/a")),
        (Message("t", b"", 1, expires_at=2e9), queued()),
        (Message("t", bytes(LARGEST + 1), 1), queued()),
        (Message("t" * 400, b"", 1), queued()),
        (Message("t", b"", 1, origin="a\0b"), queued()),
        (Message("t", b"", 1, received_at=7), queued()),
    ],
    ids=["of a group", "from a group", "expires", "large", "long topic", "a NUL", "an integer"],
)
def test_large_or_special_messages_have_their_own_row(
    store: SQLiteStore, message: Message, entry: Enqueue
) -> None:
    commit(store, PutMessage(1, message), entry)
    assert counts(store) == (1, 1, 0)
    assert page(store, entry.owner) == [(entry, fields_of(message))]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
MESSAGES = st.builds(
    Message,
    TEXT.filter(bool),
    st.binary(max_size=LARGEST),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([Properties(), Properties(content_type="ä", user_property=(("a", "b"),))]),
    st.none() | TEXT,
    TEXT,
    st.floats(0, 4e9),
)
ENTRIES = st.builds(
    lambda seq, qos, retain, identifiers, filter, packet_id: Enqueue(
        "c/one", seq, 1, qos, 5, retain, tuple(identifiers), filter, packet_id, packet_id > 60000
    ),
    st.integers(-5, 1 << 40),
    st.integers(0, 2),
    st.booleans(),
    st.lists(st.integers(1, 268435455), max_size=3),
    TEXT,
    st.integers(1, 65535),
)


@settings(max_examples=50)
@given(MESSAGES, ENTRIES)
def test_everything_of_both_survives(message: Message, entry: Enqueue) -> None:
    with tempfile.TemporaryDirectory() as name:
        store = SQLiteStore(Path(name) / "data", VirtualRuntime(), "os")
        list(store.load())
        commit(
            store,
            PutSession(SessionRecord(ClientRecord("one", 5), 60.0)),
            PutMessage(1, message),
            entry,
        )
        assert counts(store) == (0, 1, 1)
        store.close(lambda: None)
        store = SQLiteStore(Path(name) / "data", VirtualRuntime(), "os")
        _, put, loaded, _ = store.load()
        assert loaded == entry
        assert isinstance(put, PutMessage)
        assert fields_of(put.message) == fields_of(message)
        store.close(lambda: None)


def row_of(store: SQLiteStore) -> tuple[Any, ...]:
    assert store._engine is not None
    row: tuple[Any, ...] = store._engine.db.execute(HELD, (json.dumps([1]),)).fetchone()
    return row


def test_every_flipped_bit_is_found(store: SQLiteStore) -> None:
    commit(store, PutMessage(1, ONE), queued(filter="a/#", packet_id=9))
    row = row_of(store)
    assert row_ok("entry", row)
    body: bytes = row[10]
    owner, seq, id, _, size, *_, sent, _, crc = row
    rest = (owner, seq, id, size, *(None,) * 5)
    assert _right_entry(sent, crc, body, rest)
    for bit in range(len(body) * 8):
        other = bytearray(body)
        other[bit // 8] ^= 1 << bit % 8
        assert not _right_entry(sent, crc, bytes(other), rest), bit
    for at, value in enumerate(rest):
        others = [0, 1, "", b""] if value is None else [value ^ 1 << bit for bit in range(40)]
        for other_value in others:
            assert not row_ok("entry", (*row[:3], *_moved(rest, at, other_value), *row[9:]))
    for bit in range(17):
        assert not _right_entry(sent ^ 1 << bit, crc, body, rest)
    for bit in range(48):
        assert not _right_entry(sent, crc ^ 1 << bit, body, rest)


def _moved(rest: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    """Return the columns from `qos` to `share_group` after setting the item at index `at`. If that item is one of the
    three keys, the size becomes None.
    """
    changed = list(rest)
    changed[at] = value
    qos, size = changed[4], changed[3]
    if at < 3:
        size = None
    return (qos, size, *changed[5:])


@pytest.mark.parametrize(
    "change", ["seq = 2", "message = 2", "size = 11", "qos = 0", "body = x''", "sent = 5"]
)
def test_a_damaged_row_is_not_served(tmp_path: Path, store: SQLiteStore, change: str) -> None:
    commit(
        store, PutSession(SessionRecord(ClientRecord("one", 5), 60.0)), PutMessage(1, ONE), queued()
    )
    store.close(lambda: None)
    with closing(sqlite3.connect(tmp_path / "data" / DATABASE, isolation_level=None)) as db:
        db.execute(f"UPDATE entry SET {change}")
    again = SQLiteStore(tmp_path / "data", VirtualRuntime())
    with pytest.raises(StoreError, match=r"wrong checksum; hookmq storage repair"):
        list(again.load())
    again.close(lambda: None)


def test_the_bytes_are_these() -> None:
    """The stored bytes are the same in every Python version."""
    head = head_of((1, True, (3, 1), "a/#", "", "ä", 5, b"\x02\x01\x01", "pub", "client"))
    assert head is not None
    assert head[:4] == b"\x19\x00\x03\x00"
    assert head[4:-3].decode() == "511\0ä\0a/#\0client\x003 1\0pub"
    body = body_of(head, 1.5, b"xyz")
    assert body[len(head) :] == b"\0\0\0\0\0\0\xf8\x3fxyz"
    assert inline_crc(1, 2, 3, 4, 0, body) == 111815712
    assert inline_crc(1, 2, 3, 4, 2, body) == 111815712 + 2 * 2654435761
    assert parts_of(body) == (
        (1, 1, "3 1", "a/#", None),
        ("ä", b"xyz", 5, b"\x02\x01\x01", "pub", "client", 1.5, None),
    )


def test_an_inline_queue_entry_is_one_small_operation(store: SQLiteStore) -> None:
    records: list[Record] = []
    for number in range(1, 1001):
        records += (
            PutMessage(number, Message("bench/t", bytes(64), 1, sender="pub-0")),
            Enqueue("c/offline", number, number, 1, 71, filter="bench/#"),
        )
    made = operations(records)
    assert len(made) == 1000
    assert len(marshal.dumps(made)) < 160 * 1000
    engine = store._engine
    assert engine is not None
    commit(store)
    before = engine.wal_size()
    commit(store, *records)
    assert engine.wal_size() - before < 190 * 1000
    assert counts(store) == (0, 1000, 1000)


def test_the_commands(
    tmp_path: Path, store: SQLiteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands `export`, `import`, `check`, `info` and `repair` support both kinds of entries."""
    commit(
        store,
        PutSession(SessionRecord(ClientRecord("one", 5), 60.0)),
        PutSession(SessionRecord(ClientRecord("two", 5), 60.0)),
        *(PutMessage(1, ONE), queued(identifiers=(4, 5), filter="a/#")),
        *(PutMessage(2, ONE), queued(seq=2, id=2), queued("c/two", id=2)),
    )
    pages = [page(store, owner) for owner in ("c/one", "c/two")]
    assert counts(store) == (1, 3, 1)
    store.close(lambda: None)
    folder = tmp_path / "data"
    assert run_command(["storage", "check", str(folder)]) == 0
    capsys.readouterr()
    assert run_command(["storage", "info", "--json", str(folder)]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["messages"], info["queue_entries"]) == (2, 3)
    lines = tmp_path / "lines"
    assert run_command(["storage", "export", str(folder), "-o", str(lines)]) == 0
    assert run_command(["storage", "import", str(tmp_path / "other"), str(lines)]) == 0
    assert run_command(["storage", "repair", str(folder)]) == 0
    for path in (folder, tmp_path / "other"):
        again = SQLiteStore(path, VirtualRuntime())
        list(again.load())
        assert [page(again, owner) for owner in ("c/one", "c/two")] == pages
        again.close(lambda: None)


def test_the_broker_gives_no_held_message_away(tmp_path: Path) -> None:
    """The broker never moves a message that is stored inside its entry, because it would have to search every entry. A
    message that may move has its own row from the start.
    """
    harness = Harness(start=False)
    store = SQLiteStore(tmp_path / "data", harness.clock, "os")
    harness.restart(store=store)
    engine = store._engine
    assert engine is not None
    looks: list[str] = []
    engine.db.set_trace_callback(lambda text: looks.append(text) if "json_each" in text else None)
    plain = harness.connect("plain", session_expiry_interval=600)
    plain.subscribe("u/#", 1)
    plain.disconnect()
    members = [
        harness.connect(
            f"m{number}", session_expiry_interval=600, receive_maximum=2, auto_ack=False
        )
        for number in range(2)
    ]
    for member in members:
        member.subscribe("$share/g/t", 1)
    pub = harness.connect("pub")
    for number in range(12):
        pub.publish("t", b"%d" % number, 1)
        pub.publish("u", b"%d" % number, 1)
    assert counts(store)[2] == 12
    taken = [len(member.messages) for member in members]
    assert taken == [2, 2]
    members[0].drop()  # its messages go back to the group, and on to the other member
    for message in list(members[1].messages):
        members[1].ack(message)
    harness.settle()
    members[0].reconnect(auto_ack=True)
    harness.settle()
    assert counts(store)[1] > counts(store)[2]
    members[1].disconnect()
    harness.settle()
    plain.reconnect(auto_ack=True)
    harness.settle()
    assert len(plain.messages) == 12
    assert counts(store) == (0, 0, 0)
    assert looks == []
    harness.close()
