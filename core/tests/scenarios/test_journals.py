"""Test how journals join a commit. They are flushed in parallel, then the store commits, and then acknowledgements are
sent.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Deny, Drop
from hookmq.model.message import Message
from hookmq.mqtt.packets import Puback, Pubcomp, Pubrec
from hookmq.storage import group_commit as committer
from hookmq.storage.records import CommitId
from hookmq_testing import (
    DurableStore,
    Harness,
    HookRecorder,
    RecordingJournal,
    SlowStore,
    will,
)

Make = Callable[..., Harness]


def wants(prefix: str) -> Callable[[str], bool]:
    return lambda topic: topic.startswith(prefix)


def test_an_acknowledgement_waits_for_the_flush(broker_harness: Make) -> None:
    journal = RecordingJournal(slow=True)
    harness = broker_harness(journals=[journal])
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1)
    pub.expect_nothing()
    assert journal.safe == []
    journal.finish()
    pub.expect(Puback)
    assert journal.topics == ["t"]


def test_journals_flush_in_parallel_and_before_the_store(broker_harness: Make) -> None:
    store = SlowStore(DurableStore())
    first, second = RecordingJournal("first", slow=True), RecordingJournal("second", slow=True)
    harness = broker_harness(store=store, journals=[first, second])
    pub = harness.connect("pub")
    pub.publish("t", b"x", 2)
    assert len(first.flushes) == len(second.flushes) == 1
    assert first.flushes == second.flushes
    second.finish()
    harness.settle()
    assert store.committing is None  # the first is not safe yet
    first.finish()
    harness.settle()
    assert store.committing is not None
    pub.expect_nothing()
    store.finish()
    pub.expect(Pubrec)
    assert store.last_commit() == first.flushes[0]
    pub.expect(Pubcomp)


def test_a_journal_alone_makes_a_commit(broker_harness: Make) -> None:
    store = SlowStore(DurableStore(), slow=False)
    journal = RecordingJournal()
    harness = broker_harness(store=store, journals=[journal])
    pub = harness.connect("pub")
    pub.publish("t", b"zero")
    pub.publish("t", b"one", 1, expect=0)
    assert store.committed == [(), ()]
    assert [commit.number for commit, _ in journal.safe] == [1, 2]
    assert {commit.store for commit, _ in journal.safe} == {store.identity}
    assert [message.payload for _, message in journal.safe] == [b"zero", b"one"]
    assert [message.sender for _, message in journal.safe] == ["pub", "pub"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_journal_is_a_match(broker_harness: Make, version: int) -> None:
    harness = broker_harness(journals=[RecordingJournal(wants=wants("kept/"))])
    pub = harness.connect("pub", version)
    pub.publish("kept/1", b"", 1, expect=0)
    pub.publish("kept/1", b"", 2, expect=0)
    pub.publish("other", b"", 1, expect=0x10 if version == 5 else 0)


def test_only_what_it_wants_reaches_a_journal(broker_harness: Make) -> None:
    asked: list[str] = []

    def chosen(topic: str) -> bool:
        asked.append(topic)
        return topic.startswith("kept/")

    journal = RecordingJournal(wants=chosen)
    harness = broker_harness(journals=[journal])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("#")
    for topic in ("kept/1", "other", "kept/2", "other", "kept/1"):
        pub.publish(topic, b"x")
        sub.expect_message(topic)
    assert journal.topics == ["kept/1", "kept/2", "kept/1"]
    # The journal is asked once for each topic, not for each message.
    assert sorted(asked) == ["kept/1", "kept/2", "other"]


def test_invalidate_routes_asks_again(broker_harness: Make) -> None:
    prefix = ["a/"]
    journal = RecordingJournal(wants=lambda topic: topic.startswith(prefix[0]))
    recorder = HookRecorder("on_connect")
    harness = broker_harness(plugins=[recorder], journals=[journal])
    pub = harness.connect("pub")
    pub.publish("a/1", b"", 1)
    prefix[0] = "b/"
    pub.publish("a/1", b"", 1)
    broker: Any = harness.handle(recorder.id)
    broker.invalidate_routes()
    pub.publish("a/1", b"", 1)
    pub.publish("b/1", b"", 1)
    assert journal.topics == ["a/1", "a/1", "b/1"]


def test_a_publish_that_no_journal_wants_does_not_wait(broker_harness: Make) -> None:
    journal = RecordingJournal(wants=wants("kept/"), slow=True)
    harness = broker_harness(journals=[journal])
    busy, pub = harness.connect("busy"), harness.connect("pub")
    busy.publish("kept/1", b"", 1)
    pub.publish("other", b"", 1, expect=0x10)
    busy.expect_nothing()
    journal.finish()
    busy.expect(Puback)


def test_publishes_during_a_flush_are_the_next_commit(broker_harness: Make) -> None:
    journal = RecordingJournal(slow=True)
    harness = broker_harness(journals=[journal])
    pub = harness.connect("pub")
    for number in range(4):
        pub.publish("t", b"%d" % number, 1)
    assert [commit.number for commit in journal.flushes] == [1]
    journal.finish()
    harness.settle()
    assert [commit.number for commit in journal.flushes] == [1, 2]
    assert [message.payload for _, message in journal.safe] == [b"0"]
    pub.expect(Puback)
    pub.expect_nothing()
    journal.finish()
    assert [pub.expect(Puback).packet_id for _ in range(3)] == [2, 3, 4]
    assert len(journal.safe) == 4


def test_a_journaled_batch_is_never_cut(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The journal got this commit's number with every message, so all messages must be in this commit.
    store = SlowStore(DurableStore(), slow=False)
    journal = RecordingJournal()
    harness = broker_harness(store=store, journals=[journal])
    sub = harness.connect("sub", session_expiry_interval=60)
    sub.subscribe("#", 1)
    sub.disconnect()
    pub = harness.connect("pub")
    monkeypatch.setattr(committer, "MAX_RECORDS", 1)
    before = len(store.committed)
    with harness.together():
        for number in range(5):
            pub.publish("t", b"%d" % number, 1)
    assert len(store.committed) == before + 1
    assert {commit.number for commit, _ in journal.safe} == {before + 1}


@pytest.mark.parametrize("which", [0, 1])
def test_a_failed_flush_stops_everything(broker_harness: Make, which: int) -> None:
    store = SlowStore(DurableStore(), slow=False)
    journals = [RecordingJournal("first", slow=True), RecordingJournal("second", slow=True)]
    harness = broker_harness(store=store, journals=journals)
    told: list[str] = []
    harness.broker.on_failure = told.append
    pub = harness.connect("pub")
    pub.publish("t", b"1", 1)
    pub.publish("t", b"2", 1)
    journals[which].fail("outbox on fire")
    journals[1 - which].finish()
    harness.settle()
    assert told == ["outbox on fire"]
    assert store.committed == []
    pub.publish("t", b"3", 1)
    harness.advance(10)
    pub.expect_nothing()
    harness.connect("late", expect=0x88)


@pytest.mark.parametrize("method", ["append", "flush"])
def test_a_journal_that_raises_has_failed(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    journal = RecordingJournal("outbox")
    harness = broker_harness(journals=[journal])
    told: list[str] = []
    harness.broker.on_failure = told.append

    def broken(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(journal, method, broken)
    pub = harness.connect("pub")
    pub.publish("t", b"", 1)
    pub.publish("t", b"", 2)
    pub.expect_nothing()
    assert len(told) == 1
    assert "outbox" in told[0]
    assert "no space left" in told[0]


def test_recover_is_called_at_start(broker_harness: Make) -> None:
    store = DurableStore()
    journal = RecordingJournal()
    harness = broker_harness(store=store, journals=[journal])
    assert journal.recovered == [CommitId("durable", 0)]
    pub = harness.connect("pub")
    pub.publish("t", b"", 1, expect=0)
    harness.restart()
    assert journal.recovered[1:] == [CommitId("durable", 1)]


def test_a_journal_drops_what_the_store_never_committed(broker_harness: Make) -> None:
    inner = DurableStore()
    store = SlowStore(inner, slow=False)
    journal = RecordingJournal()
    harness = broker_harness(store=store, journals=[journal])
    pub = harness.connect("pub")
    pub.publish("t", b"committed", 1, expect=0)
    store.slow = True
    pub.publish("t", b"lost", 1)
    assert len(journal.safe) == 2  # flushed, but the store's transaction never came
    pub.expect_nothing()
    harness.restart(store=SlowStore(inner, slow=False))
    assert [message.payload for _, message in journal.safe] == [b"committed"]
    pub.reconnect()
    pub.publish("t", b"again", 1, expect=0)
    assert [message.payload for _, message in journal.safe] == [b"committed", b"again"]
    assert [commit.number for commit, _ in journal.safe] == [1, 2]


def test_a_new_store_keeps_the_journal(broker_harness: Make) -> None:
    journal = RecordingJournal()
    harness = broker_harness(store=DurableStore("one"), journals=[journal])
    harness.connect("pub").publish("t", b"old", 1, expect=0)
    harness.restart(store=DurableStore("two"))
    harness.connect("pub").publish("t", b"new", 1, expect=0)
    assert [(commit.store, message.payload) for commit, message in journal.safe] == [
        ("one", b"old"),
        ("two", b"new"),
    ]


def test_a_message_of_a_plugin_or_a_will_is_journaled(broker_harness: Make) -> None:
    journal = RecordingJournal()
    recorder = HookRecorder("on_connect")
    harness = broker_harness(plugins=[recorder], journals=[journal])
    harness.handle(recorder.id).publish("from/plugin", b"")
    harness.settle()
    harness.connect("one", will=will("from/will")).drop()
    assert journal.topics == ["from/plugin", "from/will"]
    origins = [message.origin for _, message in journal.safe]
    assert origins == ["plugin:recorder", "will"]


def test_denied_and_dropped_publishes_are_not_journaled(broker_harness: Make) -> None:
    def judge(message: Message) -> Deny | Drop | None:
        if message.topic == "deny":
            return Deny()
        return Drop() if message.topic == "drop" else None

    journal = RecordingJournal()
    recorder = HookRecorder("on_publish")
    recorder.answer("on_publish", judge)
    harness = broker_harness(plugins=[recorder], journals=[journal])
    pub = harness.connect("pub")
    pub.publish("deny", b"", 1, expect=0x87)
    pub.publish("drop", b"", 1, expect=0)
    pub.publish("keep", b"", 1, expect=0)
    assert journal.topics == ["keep"]


def test_a_journal_is_told_when_the_store_has_made_the_commit(broker_harness: Make) -> None:
    store, journal = SlowStore(DurableStore()), RecordingJournal(wants=lambda topic: topic == "t")
    harness = broker_harness(store=store, journals=[journal])
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1)
    assert (len(journal.safe), journal.made) == (1, [])
    store.finish()
    assert journal.made == [store.last_commit()] == [journal.safe[0][0]]
    pub.expect(Puback)
    pub.publish("u", b"retained", 1, retain=True)  # stored only in the store
    store.finish()
    pub.expect(Puback)
    assert len(journal.made) == 1
    pub.publish("t", b"y", 1)
    store.fail()
    harness.settle()
    assert (len(journal.safe), len(journal.made)) == (2, 1)


class DivertingJournal(RecordingJournal):
    """A journal that diverts messages on ``mine/#`` from subscriptions. It also wants other messages."""

    def diverts(self, topic: str) -> bool:
        return topic.startswith("mine/")


def test_a_diverted_message_reaches_journals_only(broker_harness: Make) -> None:
    """`Diverting.diverts` is called once for each topic. Other journals still receive the message."""
    diverting = DivertingJournal(wants=lambda topic: topic.startswith(("mine/", "both/")))
    other = RecordingJournal(name="other")
    harness = broker_harness(journals=[other, diverting])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe(["#", "$share/g/mine/#"], 1)
    for _ in range(2):
        pub.publish("mine/1", b"x", 1, expect=0)
        sub.expect_nothing()
    pub.publish("both/1", b"x", 1, expect=0)
    sub.expect_message("both/1")
    assert diverting.topics == other.topics == ["mine/1", "mine/1", "both/1"]


def test_a_journal_diverts_only_what_it_wants(broker_harness: Make) -> None:
    harness = broker_harness(journals=[DivertingJournal(wants=wants("else/"))])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("#")
    pub.publish("mine/1", b"x")
    sub.expect_message("mine/1")
