"""Test the stores and the journal of the testing kit."""

from collections.abc import Callable

import pytest
from hookmq.mqtt_api import Connack, Puback
from hookmq.plugin import Message
from hookmq.storage_api import (
    CommitId,
    Dequeue,
    Enqueue,
    PutMessage,
    PutRetained,
    PutSession,
    StoreFailed,
)
from hookmq_testing import DurableStore, Harness, RecordingJournal, SlowStore

Make = Callable[..., Harness]


def test_commits_wait() -> None:
    store = SlowStore(DurableStore("s"))
    told: list[CommitId | StoreFailed] = []
    store.commit([PutRetained(Message("a", b"x"))], told.append)
    assert told == []
    assert store.committing is not None
    assert store.committed == []
    assert len(store.records(PutRetained)) == 1
    store.finish()
    assert told == [CommitId("s", 1)]
    assert store.committing is None
    assert len(store.committed) == 1
    assert store.identity == "s"
    assert store.last_commit().number == 1
    assert store.next_message_id() == 1
    assert len(list(store.load())) == 1


def test_one_commit_or_all() -> None:
    store = SlowStore()
    told: list[str] = []

    def second(_: CommitId | StoreFailed) -> None:
        told.append("first")
        store.commit([], lambda _: told.append("second"))

    store.commit([], second)
    store.finish(all=False)
    assert told == ["first"]
    store.finish()
    assert told == ["first", "second"]


def test_two_commits_at_once_are_a_fault() -> None:
    store = SlowStore()
    store.commit([], lambda _: None)
    with pytest.raises(AssertionError, match="second commit"):
        store.commit([], lambda _: None)


def test_commits_fail() -> None:
    store = SlowStore()
    with pytest.raises(AssertionError, match="no commit"):
        store.fail()
    told: list[CommitId | StoreFailed] = []
    store.commit([], told.append)
    store.fail("full")
    assert told == [StoreFailed("full")]
    store.slow = False
    store.commit([], told.append)
    assert isinstance(told[1], CommitId)


def test_a_slow_store_in_a_broker(broker_harness: Make) -> None:
    store = SlowStore()
    harness = broker_harness(store=store)
    client = harness.connect("c", session_expiry_interval=60, expect=None)
    client.expect_nothing()
    assert len(store.records(PutSession)) == 1
    store.finish()
    client.expect(Connack)
    store.slow = False


def test_a_durable_store_forgets_messages_that_nobody_waits_for() -> None:
    store = DurableStore()
    told: list[CommitId | StoreFailed] = []
    message = PutMessage(1, Message("a", b"x"))
    store.commit([message, Enqueue("c/a", 1, 1, 1, 1)], told.append)
    assert list(store.messages) == [1]
    store.commit([Dequeue("c/a", 1)], told.append)
    assert not store.messages
    assert not store.queues
    with pytest.raises(AssertionError, match="before its message"):
        store.commit([Enqueue("c/a", 1, 9, 1, 1)], told.append)


def test_a_journal_in_a_broker(broker_harness: Make) -> None:
    journal = RecordingJournal(wants=lambda topic: topic.startswith("log/"), slow=True)
    harness = broker_harness(journals=[journal])
    client = harness.connect("c")
    client.publish("other", b"x", 1, expect=0x10)
    client.publish("log/a", b"x", 1)
    client.expect_nothing()
    assert [message.topic for _, message in journal.appended] == ["log/a"]
    assert journal.topics == []
    journal.finish()
    assert client.expect(Puback).code == 0
    assert journal.topics == ["log/a"]
    assert len(journal.flushes) == 1


def test_a_journal_fails(broker_harness: Make) -> None:
    journal = RecordingJournal(slow=True)
    with pytest.raises(AssertionError, match="no flush"):
        journal.fail()
    harness = broker_harness(journals=[journal])
    client = harness.connect("c")
    client.publish("a", b"x", 1)
    journal.fail("outbox full")
    client.expect_nothing()
    assert "outbox full" in str(harness.logged("store.failed")[0]["reason"])
