"""The sizes of live objects are close to those in the log."""

import pytest
from hookmq.plugin import Message, Properties, Subscription
from hookmq.storage_api import (
    Dequeue,
    DropSession,
    Enqueue,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutSession,
    PutState,
    PutSubscription,
    Record,
    SessionRecord,
)
from hookmq_cluster.compaction import weight_of
from hookmq_cluster.frames import Origin, OwnerFrame, encode_owner
from hookmq_testing.contracts import MESSAGE, SESSION, SUBSCRIPTION

EMPTY = len(encode_owner(OwnerFrame(Origin("n", "b", 1), 0, ()), 1 << 20)[0])
LONG = Message(
    "a/" * 100, bytes(5000), 1, sender="x" * 50, properties=Properties(content_type="y" * 300)
)
RECORDS: list[Record] = [
    PutSession(SESSION),
    PutSession(SessionRecord(SESSION.client._replace(claims={}), 60.0)),
    PutSession(
        SESSION._replace(client=SESSION.client._replace(claims={"rights": ["a/b/#"] * 100}))
    ),
    PutSubscription("client", SUBSCRIPTION),
    PutSubscription("client", Subscription("site/+/temperature", "site/+/temperature", 1)),
    PutMessage(77 << 32, MESSAGE),
    PutMessage(77 << 32, LONG),
    PutMessage(77 << 32, Message("site/1/temperature", b"21.5", 1)),
    Enqueue("c/client", 1000, 77 << 32, 1, 100, filter="site/+/temperature"),
    Enqueue("g/x/site/#", -5, 77 << 32, 1, 100, True, (5, 1 << 20), "site/#", 70, True, "g/x/a"),
    PutReceived("client", 1000),
    PutPublisher(5, SESSION.client),
    PutState("s/plugin", "key", bytes(1000)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_the_weight_is_about_the_size_in_a_frame(record: Record) -> None:
    size = len(encode_owner(OwnerFrame(Origin("n", "b", 1), 0, (record,)), 1 << 20)[0]) - EMPTY
    assert 0.8 * size - 8 <= weight_of(record) <= 1.25 * size + 8


def test_records_that_only_delete_weigh_nothing() -> None:
    assert weight_of(DropSession("a")) == weight_of(Dequeue("c/a", 1)) == 0
