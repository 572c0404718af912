"""Random batches are committed to the files and to a simple model. Both must have the same contents."""

import tempfile
from pathlib import Path
from typing import Any

from hookmq.plugin import ClientRecord, Message, Subscription
from hookmq.storage_api import (
    Dequeue,
    DropReceived,
    DropRetained,
    DropSession,
    DropState,
    DropSubscription,
    Enqueue,
    Loaded,
    PutMessage,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    QueueSummary,
    Record,
    SessionRecord,
    SetPacket,
    state_space,
    timer_space,
)
from hookmq_storage.store import SQLiteStore
from hookmq_testing import DurableStore
from hookmq_testing.contracts import fields_of
from hookmq_testing.runtime import VirtualRuntime
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "ä/#"])
OWNERS = st.sampled_from(["c/a", "c/b", "c/ä/#", "g/x/a"])
SEQS = st.integers(-2, 4)
IDS = st.integers(1, 5)
TOPICS = st.sampled_from(["t", "t/u"])


MESSAGES = "SELECT id FROM message UNION ALL SELECT message FROM entry WHERE body IS NOT NULL"


def message(id: int) -> Message:
    return Message(f"m/{id}", bytes(id), 1 + id % 2, received_at=id / 4)


RARE = st.one_of(
    st.builds(
        lambda n, e: PutSession(SessionRecord(ClientRecord(n, 5), e)), NAMES, st.floats(0, 100)
    ),
    st.builds(DropSession, NAMES),
    st.builds(
        lambda n, t, q: PutSubscription(n, Subscription(t, "x/" + t, q)), NAMES, TOPICS, st.just(1)
    ),
    st.builds(DropSubscription, NAMES, TOPICS),
    st.builds(PutReceived, NAMES, IDS),
    st.builds(DropReceived, NAMES, IDS),
    st.builds(lambda t, n: PutRetained(Message(t, bytes(n), 1, True)), TOPICS, IDS),
    st.builds(DropRetained, TOPICS),
    st.builds(lambda t, n: PutState(state_space("p"), t, bytes(n)), TOPICS, IDS),
    st.builds(lambda t, n: PutState(timer_space("p"), t, b"", float(n)), TOPICS, IDS),
    st.builds(DropState, st.sampled_from((state_space("p"), timer_space("p"))), TOPICS),
)
QUEUES = st.one_of(
    st.builds(
        lambda o, s, i, p: Enqueue(o, s, i, 1, i, packet_id=p), OWNERS, SEQS, IDS, st.integers(0, 1)
    ),
    st.builds(SetPacket, OWNERS, SEQS, st.integers(1, 65535), st.booleans()),
    st.builds(Dequeue, OWNERS, SEQS),
)
BATCHES = st.lists(st.lists(st.one_of(QUEUES, QUEUES, RARE), max_size=12), max_size=6)


def shown(loaded: Loaded, sessions: set[str]) -> Any:
    """Return a record in a form that can be compared, or None if the record's session is not in `sessions`."""
    if isinstance(loaded, PutMessage):
        return ("message", loaded.id, fields_of(loaded.message))
    if isinstance(loaded, PutRetained):
        return ("retained", fields_of(loaded.message))
    if isinstance(loaded, PutSubscription | PutReceived) and loaded.client_id not in sessions:
        return None
    return (type(loaded).__name__, repr(loaded))


def contents(store: Any) -> list[Any]:
    loaded = list(store.load())
    sessions = {one.session.client_id for one in loaded if isinstance(one, PutSession)}
    found = {shown(one, sessions) for one in loaded} - {None}
    for owner in {one.owner for one in loaded if isinstance(one, QueueSummary)}:
        pages: list[Any] = []
        store.read(owner, -100, 100, 1 << 20, pages.append)
        found |= {("page", repr(entry), fields_of(kept)) for entry, kept in pages[0]}
    return sorted(found, key=repr)


def with_messages(batch: list[Record], stored: dict[int, int]) -> list[Record]:
    """Return the batch as the broker would create it.

    Each message precedes the first entry that refers to it, and gets a new id in each batch. Entries do not overlap.
    """
    used: dict[int, int] = {}
    made: list[Record] = []
    for record in batch:
        if isinstance(record, Enqueue):
            if record.message_ref not in used:
                stored[0] += 1
                used[record.message_ref] = stored[0]
                made.append(PutMessage(stored[0], message(record.message_ref)))
            made.append(Dequeue(record.owner, record.seq))
            record = record._replace(message_ref=used[record.message_ref])
        made.append(record)
    return made


@settings(max_examples=40)
@given(BATCHES)
def test_the_files_hold_what_the_model_holds(batches: list[list[Record]]) -> None:
    runtime = VirtualRuntime()
    model = DurableStore()
    ids = {0: 0}
    with tempfile.TemporaryDirectory() as name:
        store = SQLiteStore(Path(name) / "data", runtime, "os")
        list(store.load())
        for number, batch in enumerate(batches):
            records = with_messages(batch, ids)
            model.commit(records, lambda result: None)
            told: list[Any] = []
            store.commit(records, told.append)
            assert [one.number for one in told] == [model.number]
            if number % 2:
                runtime.run_until_idle()  # sweep, or do not
        runtime.run_until_idle()
        store.close(lambda: None)
        store = SQLiteStore(Path(name) / "data", runtime, "os")
        assert contents(store) == contents(model)
        engine = store._engine
        assert engine is not None
        kept = {id for (id,) in engine.db.execute(MESSAGES)}
        assert kept == set(model.messages)
        store.close(lambda: None)
