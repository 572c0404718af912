"""What every store, journal and plugin must keep to, as tests to inherit.

    class TestMyStore(StoreContract):
        def open(self) -> Store:
            return MyStore(self.folder / "data.db")

        def messages(self, store: Store) -> int:
            return store.count_messages()

Every test gets an empty `folder` of its own. Where something goes on in the background, override `settle`.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hookmq.config.plugins import accepts
from hookmq.hooks.discovery import find, load
from hookmq.hooks.entry import PluginInstance
from hookmq.hooks.specs import HOOK_API
from hookmq.plugin import Plugin
from hookmq.properties import Properties
from hookmq.store import (
    CommitId,
    Dequeue,
    DropReceived,
    DropRetained,
    DropSession,
    DropSubscription,
    Enqueue,
    Journal,
    Loaded,
    PutMessage,
    PutReceived,
    PutRetained,
    PutSession,
    PutSubscription,
    Queued,
    QueueSummary,
    Record,
    SessionRecord,
    SetPacket,
    Store,
    StoreFailed,
    group_owner,
    session_owner,
)
from hookmq.testing.client import will
from hookmq.testing.harness import Harness
from hookmq.testing.plugins import make_plugin
from hookmq.types import Message, Subscription, Will

MESSAGE = Message(
    "t/\N{SNOWMAN}",
    bytes(range(256)),
    2,
    True,
    Properties(
        payload_format_indicator=1,
        message_expiry_interval=0xFFFFFFFF,
        content_type="text/plain",
        response_topic="answers/here",
        correlation_data=b"\x00\xff",
        user_property=(("b", "1"), ("a", "2"), ("b", "1"), ("", "")),
    ),
    "sender",
    "plugin:x",
    1_700_000_000.25,
    1_700_000_060.5,
)
"""A message with a value in every field."""
SESSION = SessionRecord(
    "c1",
    5,
    inf,
    "user",
    "identity",
    {"groups": ["a", "b"], "level": 3, "nested": {"yes": True, "none": None, "pi": 3.5}},
    "tls",
    "tenant/",
    "192.0.2.7",
    {"queue_messages": 5},
    1_700_000_000.0,
    1_700_000_100.125,
    Will(MESSAGE, 30),
    1_700_000_130.125,
)
"""A session with a value in every field."""
SUBSCRIPTION = Subscription("$share/g/a/+", "tenant/a/+", 2, True, True, 1, 268435455, "g")
"""A subscription with a value in every field."""

_MESSAGE_FIELDS = (
    "topic", "payload", "qos", "retain", "properties", "sender", "origin", "received_at", "expires_at",
)  # fmt: skip


def fields_of(message: Message) -> tuple[Any, ...]:
    """A message's values, to be compared: two messages are never equal."""
    return tuple(getattr(message, name) for name in _MESSAGE_FIELDS)


def _comparable(value: Any) -> Any:
    if isinstance(value, Message):
        return fields_of(value)
    if isinstance(value, Will):
        return (fields_of(value.message), value.delay)
    if isinstance(value, Mapping):
        return {key: _comparable(value[key]) for key in value}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (type(value).__name__, *map(_comparable, value))
    if isinstance(value, tuple | list):
        return list(map(_comparable, value))
    return value


def _message(topic: str, payload: bytes = b"", **fields: Any) -> Message:
    return Message(topic, payload, fields.pop("qos", 1), **fields)


def _queue(owner: str, seq: int, id: int, size: int = 0, **fields: Any) -> Enqueue:
    return Enqueue(owner, seq, id, fields.pop("qos", 1), size, **fields)


class StoreContract:
    """What holds of every `hookmq.store.Store`. Tests of what outlives the process pass over a store that is not
    durable."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def open(self) -> Store:
        """The store over the data in `folder`: a new one, or the same again after it was closed."""
        raise NotImplementedError

    def messages(self, store: Store) -> int:
        """How many messages the store holds."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let work in the background go on; called until what is waited for has happened, at most 10,000 times."""

    # to be used by further tests of a store ------------------------------------------------------------------------

    def opened(self) -> Store:
        """A store that is open and loaded, as the broker uses it."""
        store = self.open()
        list(store.load())
        return store

    def wait(self, told: list[Any]) -> Any:
        """What a callback was told, once; background work is given its time."""
        for _ in range(10_000):
            if told:
                break
            self.settle()
        assert len(told) == 1, f"the callback was called {len(told)} times"
        return told[0]

    def commit(self, store: Store, *records: Record) -> CommitId:
        """Commit a batch and return its id."""
        told: list[CommitId | StoreFailed] = []
        store.commit(records, told.append)
        result = self.wait(told)
        assert isinstance(result, CommitId), result
        return result

    def read(
        self,
        store: Store,
        owner: str,
        after: int = -(1 << 62),
        count: int = 1000,
        size: int = 1 << 30,
    ) -> list[Queued]:
        """A page of a queue."""
        told: list[list[Queued]] = []
        store.read(owner, after, count, size, told.append)
        page: list[Queued] = self.wait(told)
        return page

    def topics(self, store: Store, owner: str, **options: Any) -> list[str]:
        """Topics of a page."""
        return [message.topic for _, message in self.read(store, owner, **options)]

    def close(self, store: Store) -> None:
        """Close it."""
        told: list[None] = []
        store.close(lambda: told.append(None))
        self.wait(told)

    def reopened(self, store: Store) -> tuple[Store, list[Loaded]]:
        """The store closed and opened again, and what it loaded."""
        self.close(store)
        again = self.open()
        return again, list(again.load())

    def _durable(self) -> Store:
        store = self.opened()
        if not store.durable:
            pytest.skip("this store promises nothing across a restart")
        return store

    # commits -------------------------------------------------------------------------------------------------------

    def test_new_store_is_empty(self) -> None:
        store = self.open()
        assert list(store.load()) == []
        assert store.identity
        assert store.last_commit() == CommitId(store.identity, 0)
        assert store.next_message_id() >= 1
        assert self.messages(store) == 0
        self.close(store)

    def test_commits_are_numbered(self) -> None:
        store = self.opened()
        for number in (1, 2, 3):
            record = PutRetained(_message("t", b"x"))
            assert self.commit(store, record) == CommitId(store.identity, number)
            assert store.last_commit() == CommitId(store.identity, number)
        self.close(store)

    def test_an_empty_batch_is_a_commit(self) -> None:
        store = self.opened()
        assert self.commit(store).number == 1
        assert store.last_commit().number == 1
        self.close(store)

    def test_a_commit_may_follow_from_the_one_before(self) -> None:
        # The core begins the next commit from within the callback of the last.
        store = self.opened()
        told: list[CommitId | StoreFailed] = []

        def first(result: CommitId | StoreFailed) -> None:
            store.commit([_queue("c/a", 1, 1)], told.append)

        store.commit([PutMessage(1, _message("m")), _queue("c/b", 1, 1)], first)
        assert self.wait(told) == CommitId(store.identity, 2)
        assert self.topics(store, "c/a") == ["m"]
        self.close(store)

    # queues --------------------------------------------------------------------------------------------------------

    def test_read_returns_what_was_put(self) -> None:
        store = self.opened()
        entry = Enqueue("c/c1", 7, 3, 2, 256, True, (1, 268435455, 1), "a/#", 0, False, "g/x/a")
        self.commit(store, PutMessage(3, MESSAGE), entry)
        [(found, message)] = self.read(store, "c/c1")
        assert found == entry
        assert fields_of(message) == fields_of(MESSAGE)
        self.close(store)

    def test_read_in_order_of_seq(self) -> None:
        store = self.opened()
        for seq in (5, 6, 9):
            topic = f"m{seq}"
            self.commit(store, PutMessage(seq, _message(topic)), _queue("c/a", seq, seq))
        # What comes back to a shared subscription goes before what waits there.
        self.commit(store, PutMessage(20, _message("m-1")), _queue("c/a", -1, 20))
        assert self.topics(store, "c/a") == ["m-1", "m5", "m6", "m9"]
        assert self.topics(store, "c/a", after=5) == ["m6", "m9"]
        assert self.topics(store, "c/a", after=7) == ["m9"]
        assert self.topics(store, "c/a", after=9) == []
        self.close(store)

    def test_read_in_pages(self) -> None:
        store = self.opened()
        for seq in range(1, 8):
            message = _message(f"m{seq}", b"x" * 10)
            self.commit(store, PutMessage(seq, message), _queue("c/a", seq, seq, 10))
        assert self.topics(store, "c/a", count=3) == ["m1", "m2", "m3"]
        assert self.topics(store, "c/a", after=3, count=3) == ["m4", "m5", "m6"]
        assert self.topics(store, "c/a", after=6, count=3) == ["m7"]
        assert self.topics(store, "c/a", size=30) == ["m1", "m2", "m3"]
        assert self.topics(store, "c/a", size=39) == ["m1", "m2", "m3"]
        assert self.topics(store, "c/a", size=1) == ["m1"], "the first comes whatever its size"
        self.close(store)

    def test_queues_are_apart(self) -> None:
        store = self.opened()
        owners = (session_owner("a"), session_owner("a/b"), group_owner("g", "a"), "c/A", "c/ä")
        for number, owner in enumerate(owners, 1):
            self.commit(store, PutMessage(number, _message(owner)), _queue(owner, 1, number))
        for owner in owners:
            assert self.topics(store, owner) == [owner]
        assert self.topics(store, "c/nobody") == []
        self.close(store)

    def test_a_message_is_kept_once_and_goes_with_its_last_entry(self) -> None:
        store = self.opened()
        entries = [_queue(f"c/{n}", 1, 1) for n in range(3)]
        self.commit(store, PutMessage(1, _message("m", b"x" * 1000)), *entries)
        assert self.messages(store) == 1
        self.commit(store, Dequeue("c/0", 1))
        self.commit(store, Dequeue("c/1", 1))
        assert self.messages(store) == 1
        assert self.topics(store, "c/2") == ["m"]
        self.commit(store, Dequeue("c/2", 1))
        assert self.messages(store) == 0
        assert self.topics(store, "c/2") == []
        self.close(store)

    def test_a_message_may_change_hands_in_one_batch(self) -> None:
        store = self.opened()
        self.commit(store, PutMessage(1, _message("m")), _queue("g/x/a", 1, 1))
        self.commit(store, _queue("c/a", 1, 1, group="g/x/a"), Dequeue("g/x/a", 1))
        assert self.topics(store, "c/a") == ["m"]
        assert self.topics(store, "g/x/a") == []
        assert self.messages(store) == 1
        self.close(store)

    def test_a_message_may_come_and_go_in_one_batch(self) -> None:
        store = self.opened()
        self.commit(store, PutMessage(1, _message("m")), _queue("c/a", 1, 1), Dequeue("c/a", 1))
        assert self.topics(store, "c/a") == []
        assert self.messages(store) == 0
        self.close(store)

    def test_what_is_not_there_may_be_removed(self) -> None:
        store = self.opened()
        self.commit(store, PutMessage(1, _message("m")), _queue("c/a", 1, 1))
        self.commit(
            store,
            Dequeue("c/a", 2),
            Dequeue("c/nobody", 1),
            SetPacket("c/a", 2, 5, False),
            DropSession("nobody"),
            DropSubscription("nobody", "a"),
            DropReceived("nobody", 1),
            DropRetained("nothing"),
        )
        assert self.topics(store, "c/a") == ["m"]
        self.close(store)

    def test_set_packet(self) -> None:
        store = self.opened()
        for seq in (1, 2):
            self.commit(store, PutMessage(seq, _message(f"m{seq}")), _queue("c/a", seq, seq, qos=2))
        self.commit(store, SetPacket("c/a", 1, 4711, False))
        first, second = (entry for entry, _ in self.read(store, "c/a"))
        assert (first.packet_id, first.released) == (4711, False)
        assert (second.packet_id, second.released) == (0, False)
        self.commit(store, SetPacket("c/a", 1, 4711, True))
        first = self.read(store, "c/a")[0][0]
        assert (first.packet_id, first.released) == (4711, True)
        self.close(store)

    def test_drop_session_drops_its_queue_only(self) -> None:
        store = self.opened()
        self.commit(
            store,
            PutMessage(1, _message("shared")),
            PutMessage(2, _message("own")),
            _queue("c/a", 1, 1),
            _queue("c/a", 2, 2),
            _queue("c/b", 1, 1),
            _queue("g/x/a", 1, 1),
        )
        self.commit(store, DropSession("a"))
        assert self.topics(store, "c/a") == []
        assert self.topics(store, "c/b") == ["shared"]
        assert self.topics(store, "g/x/a") == ["shared"]
        assert self.messages(store) == 1
        self.close(store)

    def test_a_session_may_end_and_begin_in_one_batch(self) -> None:
        store = self.opened()
        self.commit(store, PutMessage(1, _message("old")), _queue("c/a", 1, 1))
        self.commit(store, DropSession("a"), PutMessage(2, _message("new")), _queue("c/a", 1, 2))
        assert self.topics(store, "c/a") == ["new"]
        assert self.messages(store) == 1
        self.close(store)

    # across a restart ----------------------------------------------------------------------------------------------

    def test_identity_and_number_survive(self) -> None:
        store = self._durable()
        identity = store.identity
        self.commit(store)
        self.commit(store, PutRetained(_message("t", b"x")))
        store, _ = self.reopened(store)
        assert store.identity == identity
        assert store.last_commit() == CommitId(identity, 2)
        assert self.commit(store) == CommitId(identity, 3)
        self.close(store)

    def test_message_ids_are_not_used_again(self) -> None:
        store = self._durable()
        first = store.next_message_id()
        self.commit(store, PutMessage(first, _message("m")), _queue("c/a", 1, first))
        self.commit(store, PutMessage(first + 9, _message("m")), _queue("c/a", 2, first + 9))
        store, _ = self.reopened(store)
        assert store.next_message_id() > first + 9
        self.close(store)

    def test_a_session_is_loaded_as_it_was_put(self) -> None:
        store = self._durable()
        plain = SessionRecord("c2", 4, 60.0)
        old = SESSION._replace(client_id="c3", ended_at=None, will=None, will_at=None)
        new = old._replace(ended_at=5.0, version=3)
        self.commit(store, PutSession(SESSION), PutSession(plain), PutSession(old))
        self.commit(store, PutSession(new))
        store, loaded = self.reopened(store)
        found = {one.session.client_id: one.session for one in _of(loaded, PutSession)}
        assert len(_of(loaded, PutSession)) == 3
        for expected in (SESSION, plain, new):
            assert _comparable(found[expected.client_id]) == _comparable(expected)
        self.close(store)

    def test_subscriptions_are_loaded_after_their_sessions(self) -> None:
        store = self._durable()
        plain = Subscription("a/#", "a/#")
        changed = plain.replace(qos=1, identifier=9)
        self.commit(
            store,
            PutSession(SESSION),
            PutSubscription("c1", SUBSCRIPTION),
            PutSubscription("c1", plain),
            PutSubscription("c1", Subscription("gone", "gone")),
        )
        self.commit(store, PutSubscription("c1", changed), DropSubscription("c1", "gone"))
        store, loaded = self.reopened(store)
        found = {one.subscription.filter: one.subscription for one in _of(loaded, PutSubscription)}
        assert found == {SUBSCRIPTION.filter: SUBSCRIPTION, "a/#": changed}
        kinds = [type(one) for one in loaded]
        assert kinds.index(PutSession) < kinds.index(PutSubscription)
        self.close(store)

    def test_queues_are_told_as_summaries_and_what_was_sent_as_entries(self) -> None:
        store = self._durable()
        records: list[Record] = [PutSession(SESSION)]
        for seq in range(1, 6):
            records += (
                PutMessage(seq, _message(f"m{seq}", b"x" * seq)),
                _queue("c/c1", seq, seq, seq, qos=2),
            )
        self.commit(store, *records)
        self.commit(store, SetPacket("c/c1", 1, 11, True), SetPacket("c/c1", 2, 12, False))
        self.commit(store, Dequeue("c/c1", 5))
        store, loaded = self.reopened(store)
        sent = _of(loaded, Enqueue)
        assert [(e.seq, e.packet_id, e.released) for e in sent] == [(1, 11, True), (2, 12, False)]
        put = {one.id: one.message.topic for one in _of(loaded, PutMessage)}
        assert put == {1: "m1", 2: "m2"}
        for entry in sent:
            before = loaded[: loaded.index(entry)]
            assert any(isinstance(o, PutMessage) and o.id == entry.message_id for o in before)
        [summary] = _of(loaded, QueueSummary)
        assert (summary.owner, summary.entries, summary.size) == ("c/c1", 2, 7)
        assert summary.last_seq in (4, 5)
        assert self.topics(store, "c/c1", after=2) == ["m3", "m4"]
        self.close(store)

    def test_the_queue_of_a_group_is_loaded(self) -> None:
        store = self._durable()
        owner = group_owner("g", "a/#")
        self.commit(store, PutMessage(1, _message("m", b"xyz")), _queue(owner, -4, 1, 3))
        store, loaded = self.reopened(store)
        assert _of(loaded, QueueSummary) == [QueueSummary(owner, 1, 3, -4)]
        assert self.topics(store, owner) == ["m"]
        self.close(store)

    def test_received_packet_ids_are_loaded(self) -> None:
        store = self._durable()
        self.commit(store, PutSession(SESSION), PutReceived("c1", 1), PutReceived("c1", 65535))
        self.commit(store, DropReceived("c1", 1), PutReceived("c1", 2), PutReceived("c1", 2))
        store, loaded = self.reopened(store)
        assert sorted(_of(loaded, PutReceived)) == [PutReceived("c1", 2), PutReceived("c1", 65535)]
        self.close(store)

    def test_retained_messages_are_loaded(self) -> None:
        store = self._durable()
        self.commit(
            store,
            PutRetained(MESSAGE),
            PutRetained(_message("a", b"old")),
            PutRetained(_message("gone", b"x")),
        )
        self.commit(store, PutRetained(_message("a", b"new")), DropRetained("gone"))
        store, loaded = self.reopened(store)
        found = {one.message.topic: one.message for one in _of(loaded, PutRetained)}
        assert sorted(found) == ["a", MESSAGE.topic]
        assert found["a"].payload == b"new"
        assert fields_of(found[MESSAGE.topic]) == fields_of(MESSAGE)
        self.close(store)

    def test_a_dropped_session_leaves_nothing(self) -> None:
        store = self._durable()
        other = SESSION._replace(client_id="c2")
        for record in (SESSION, other):
            self.commit(
                store,
                PutSession(record),
                PutSubscription(record.client_id, SUBSCRIPTION),
                PutReceived(record.client_id, 1),
                PutMessage(store.next_message_id() + 1, _message("m")),
                _queue(session_owner(record.client_id), 1, store.next_message_id() + 1),
            )
        self.commit(store, DropSession("c1"))
        store, loaded = self.reopened(store)
        assert [one.session.client_id for one in _of(loaded, PutSession)] == ["c2"]
        assert [one.client_id for one in _of(loaded, PutSubscription)] == ["c2"]
        assert [one.client_id for one in _of(loaded, PutReceived)] == ["c2"]
        assert [one.owner for one in _of(loaded, QueueSummary) if one.entries] == ["c/c2"]
        self.close(store)

    def test_a_large_batch_is_one(self) -> None:
        store = self._durable()
        records: list[Record] = [PutMessage(1, _message("m"))]
        records += [_queue(f"c/{n}", 1, 1) for n in range(3000)]
        assert self.commit(store, *records).number == 1
        store, loaded = self.reopened(store)
        assert sum(one.entries for one in _of(loaded, QueueSummary)) == 3000
        assert self.messages(store) == 1
        self.close(store)

    def test_other_data_has_another_identity(self) -> None:
        store = self._durable()
        identity = store.identity
        self.close(store)
        self.folder = self.folder / "other"
        self.folder.mkdir()
        other = self.opened()
        assert other.identity != identity
        self.close(other)


def _of(loaded: Iterable[Loaded], kind: type[Any]) -> list[Any]:
    return [one for one in loaded if isinstance(one, kind)]


class JournalContract:
    """What holds of every `hookmq.store.Journal`."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def open(self) -> Journal:
        """The journal over the data in `folder`. One that outlives no process returns the object it returned before."""
        raise NotImplementedError

    def close(self, journal: Journal) -> None:
        """Let go of it, if there is anything to let go of."""

    def payloads(self, journal: Journal) -> list[bytes]:
        """The payloads of the messages it holds that are safe, in order."""
        raise NotImplementedError

    def settle(self) -> None:
        """As `StoreContract.settle`."""

    def flush(self, journal: Journal, commit: CommitId) -> None:
        """Flush and wait for it."""
        told: list[StoreFailed | None] = []
        journal.flush(commit, told.append)
        for _ in range(10_000):
            if told:
                break
            self.settle()
        assert told == [None]

    def append(self, journal: Journal, commit: CommitId, *payloads: bytes) -> None:
        """Append a message for each payload."""
        for payload in payloads:
            journal.append(commit, _message("journal/x", payload))

    def opened(self, last: CommitId) -> Journal:
        """A journal as the broker uses it, its store's newest commit being `last`."""
        journal = self.open()
        journal.recover(last)
        return journal

    def reopened(self, journal: Journal, last: CommitId) -> Journal:
        """The journal closed and opened again."""
        self.close(journal)
        return self.opened(last)

    def test_it_has_a_name_and_says_what_it_wants(self) -> None:
        journal = self.opened(CommitId("s", 0))
        assert journal.name
        assert journal.wants("journal/x") is True
        self.close(journal)

    def test_what_is_flushed_is_kept_in_order(self) -> None:
        journal = self.opened(CommitId("s", 0))
        self.append(journal, CommitId("s", 1), b"1", b"2")
        self.append(journal, CommitId("s", 1), b"3")
        self.flush(journal, CommitId("s", 1))
        self.append(journal, CommitId("s", 2), b"4")
        self.flush(journal, CommitId("s", 2))
        assert self.payloads(journal) == [b"1", b"2", b"3", b"4"]
        self.close(journal)

    def test_a_flush_of_nothing(self) -> None:
        journal = self.opened(CommitId("s", 0))
        self.flush(journal, CommitId("s", 1))
        assert self.payloads(journal) == []
        self.close(journal)

    def test_what_was_committed_is_recovered(self) -> None:
        journal = self.opened(CommitId("s", 0))
        for number in (1, 2):
            self.append(journal, CommitId("s", number), str(number).encode())
            self.flush(journal, CommitId("s", number))
        journal = self.reopened(journal, CommitId("s", 2))
        assert self.payloads(journal) == [b"1", b"2"]
        self.append(journal, CommitId("s", 3), b"3")
        self.flush(journal, CommitId("s", 3))
        journal = self.reopened(journal, CommitId("s", 3))
        assert self.payloads(journal) == [b"1", b"2", b"3"]
        self.close(journal)

    def test_what_the_store_did_not_commit_is_dropped(self) -> None:
        # The process died between the journal's flush and the store's commit: nobody was acknowledged.
        journal = self.opened(CommitId("s", 0))
        for number in (1, 2, 3):
            self.append(journal, CommitId("s", number), str(number).encode())
            self.flush(journal, CommitId("s", number))
        journal = self.reopened(journal, CommitId("s", 1))
        assert self.payloads(journal) == [b"1"]
        self.append(journal, CommitId("s", 2), b"2 again")
        self.flush(journal, CommitId("s", 2))
        journal = self.reopened(journal, CommitId("s", 2))
        assert self.payloads(journal) == [b"1", b"2 again"]
        self.close(journal)

    def test_another_store_drops_nothing_and_begins_an_epoch(self) -> None:
        journal = self.opened(CommitId("s", 0))
        for number in (1, 2):
            self.append(journal, CommitId("s", number), str(number).encode())
            self.flush(journal, CommitId("s", number))
        journal = self.reopened(journal, CommitId("other", 0))
        assert self.payloads(journal) == [b"1", b"2"]
        for number in (1, 2):
            self.append(journal, CommitId("other", number), b"other %d" % number)
            self.flush(journal, CommitId("other", number))
        assert self.payloads(journal) == [b"1", b"2", b"other 1", b"other 2"]
        journal = self.reopened(journal, CommitId("other", 1))
        assert self.payloads(journal) == [b"1", b"2", b"other 1"]
        self.close(journal)


class PluginContract:
    """What holds of every plugin: it loads, its hooks fit, it starts and stops, and ordinary traffic makes no hook fail.

    `kind` is the class, `configs` are configurations that must be accepted, `bad_configs` that must be refused, and `use`
    is its name as an entry point, '' for a plugin that is not installed.
    """

    kind: ClassVar[type[Plugin]]
    configs: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    bad_configs: ClassVar[Sequence[Mapping[str, Any]]] = ()
    use: ClassVar[str] = ""

    def instance(self, config: Mapping[str, Any], id: str = "") -> PluginInstance:
        """A new plugin object with a configuration, and with an id of its own."""
        use = self.use or self.kind.__name__.lower()
        return make_plugin(self.kind, dict(config), id or use, use=use)

    def harness(self, config: Mapping[str, Any]) -> Harness:
        """A broker with the plugin in it."""
        return Harness([self.instance(config)])

    def test_it_is_installed(self) -> None:
        if not self.use:
            pytest.skip("no entry point is named")
        assert load(find(self.use)) is self.kind

    def test_it_works_with_this_version(self) -> None:
        assert issubclass(self.kind, Plugin)
        assert accepts(self.kind.requires_api, HOOK_API)

    def test_good_configurations_are_bound(self) -> None:
        for config in self.configs:
            plugin = self.instance(config).plugin
            if self.kind.Config is not None:
                assert isinstance(plugin.config, self.kind.Config)

    def test_bad_configurations_are_refused(self) -> None:
        for config in self.bad_configs:
            with pytest.raises(Exception):  # noqa: B017, PT011 - whose error it is depends on Config
                self.instance(config)

    def test_it_starts_and_stops(self) -> None:
        for config in self.configs:
            harness = self.harness(config)
            self._no_failures(harness)
            harness.close()
            self._no_failures(harness)

    def test_it_stops_when_it_was_never_started(self) -> None:
        harness = Harness([self.instance(self.configs[0])], start=False)
        harness.close()

    def test_two_of_it_live_together(self) -> None:
        first, second = (self.instance(self.configs[0], id) for id in ("first", "second"))
        with Harness([first, second]) as harness:
            traffic(harness)
            self._no_failures(harness)

    def test_ordinary_traffic(self) -> None:
        for config in self.configs:
            with self.harness(config) as harness:
                traffic(harness)
                self._no_failures(harness)

    def _no_failures(self, harness: Harness) -> None:
        harness.settle()
        failed = [
            (name, dict(labels), value)
            for name, labels, value in harness.hooks.metrics()
            if value and labels.get("outcome") in ("error", "timeout")
        ]
        assert not failed, f"{failed}: {[log for log in harness.logs if log[0] != 'info']}"
        assert not harness.logged("internal.error")


def traffic(harness: Harness) -> None:
    """What clients of every version ordinarily do, and some rare things; what is refused is not done."""
    for version in (5, 4, 3):
        expiry = {"session_expiry_interval": 60} if version == 5 else {}
        name = f"client{version}"
        testament = will("wills/x", b"gone", qos=1, retain=True, delay=5 if version == 5 else None)
        one = harness.connect(
            name, version, False, 30, "user", b"secret", testament, expiry, expect=None
        )
        two = harness.connect(f"other{version}", version, expect=None)
        for client in (one, two):
            if client.connack is None or client.connack.code:
                continue
            client.send_subscribe(["a/#", "+/b", "wills/#"], 2)
            for qos in (0, 1, 2):
                if not client.closed:
                    client.publish("a/b", b"payload", qos, retain=qos == 1)
            if not client.closed:
                client.send_unsubscribe("+/b")
        harness.advance(1)
        if not one.closed:
            one.drop()
        two.publish("a/away", b"waits", 1) if not two.closed else None
        harness.advance(10)
        one.reconnect(expect=None)
        again = harness.connect(name, version, expect=None)
        harness.advance(100)
        for client in (one, two, again):
            if not client.closed:
                client.disconnect()
        harness.advance(100)


__all__ = ["JournalContract", "PluginContract", "StoreContract", "fields_of", "traffic"]
