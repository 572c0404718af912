"""Random batches of records for the lanes of a cluster, and the contents of a lane and of a model in the same form."""

from typing import Any

from hookmq.plugin import ClientRecord, Message, Subscription, Will
from hookmq.storage_api import (
    Dequeue,
    DropPublisher,
    DropReceived,
    DropSession,
    DropState,
    DropSubscription,
    Enqueue,
    Loaded,
    PutMessage,
    PutPublisher,
    PutReceived,
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
from hookmq_cluster.lane_state import LaneState
from hookmq_testing import DurableStore
from hookmq_testing.contracts.samples import fields_of
from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "ä/#"])
OWNERS = st.sampled_from(["c/a", "c/b", "c/ä/#", "g/x/a"])
SEQS = st.integers(-2, 4)
IDS = st.integers(1, 5)
TOPICS = st.sampled_from(["t", "t/u"])
EXPIRY = 50.0
"""When every second message expires."""


def message(id: int) -> Message:
    return Message(
        f"m/{id}",
        bytes(10 * id),
        1 + id % 2,
        received_at=id / 4,
        expires_at=EXPIRY if id % 2 else None,
    )


def session(name: str, expiry: float) -> PutSession:
    will = Will(message(1), 3) if expiry > 50 else None
    return PutSession(SessionRecord(ClientRecord(name, 5), expiry, will=will))


RARE = st.one_of(
    st.builds(session, NAMES, st.floats(0, 100)),
    st.builds(DropSession, NAMES),
    st.builds(lambda n, t: PutSubscription(n, Subscription(t, "x/" + t, 1)), NAMES, TOPICS),
    st.builds(DropSubscription, NAMES, TOPICS),
    st.builds(PutReceived, NAMES, IDS),
    st.builds(DropReceived, NAMES, IDS),
    st.builds(lambda id: PutPublisher(id, ClientRecord("p", 5)), IDS),
    st.builds(DropPublisher, IDS),
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
BATCHES = st.lists(st.one_of(QUEUES, QUEUES, RARE), max_size=8)


def shown(loaded: Loaded, sessions: set[str]) -> Any:
    """Return a record in a form that can be compared, or None if the record's session is not in `sessions`."""
    if isinstance(loaded, PutMessage):
        return ("message", loaded.id, fields_of(loaded.message))
    if isinstance(loaded, PutSubscription | PutReceived) and loaded.client_id not in sessions:
        return None
    if isinstance(loaded, PutSession) and loaded.session.will is not None:
        will = loaded.session.will
        return (
            repr(loaded._replace(session=loaded.session._replace(will=None))),
            fields_of(will.message),
            will.delay,
        )
    return (type(loaded).__name__, repr(loaded))


def contents(store: DurableStore | LaneState) -> list[Any]:
    loaded = list(store.load() if isinstance(store, DurableStore) else store.loaded())
    sessions = {one.session.client_id for one in loaded if isinstance(one, PutSession)}
    found = {shown(one, sessions) for one in loaded} - {None}
    for owner in {one.owner for one in loaded if isinstance(one, QueueSummary)}:
        pages: list[Any] = []
        if isinstance(store, DurableStore):
            store.read(owner, -100, 100, 1 << 20, pages.append)
        else:
            pages.append(store.read(owner, -100, 100, 1 << 20))
        found |= {("page", repr(entry), fields_of(kept)) for entry, kept in pages[0]}
    return sorted(found, key=repr)


class Ids:
    """Gives each message an id of its own."""

    def __init__(self) -> None:
        self.last = 0

    def with_messages(self, batch: list[Record]) -> list[Record]:
        """Return the batch as the broker would create it: each message gets a new id, and precedes its entries."""
        used: dict[int, int] = {}
        made: list[Record] = []
        for record in batch:
            if isinstance(record, Enqueue):
                if record.message_ref not in used:
                    self.last += 1
                    used[record.message_ref] = self.last
                    made.append(PutMessage(self.last, message(record.message_ref)))
                if record.seq % 2:  # half of them are overwritten
                    made.append(Dequeue(record.owner, record.seq))
                record = record._replace(message_ref=used[record.message_ref])
            made.append(record)
        return made
