"""The contract that every store must meet."""

from hookmq.model.client import Certificate, ClientInfo, ClientRecord, Peer, Scope
from hookmq.model.subscription import Subscription
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import (
    CommitId,
    Dequeue,
    DropPublisher,
    DropReceived,
    DropRetained,
    DropSession,
    DropState,
    DropSubscription,
    Enqueue,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    QueueSummary,
    Record,
    SessionRecord,
    SetPacket,
    group_owner,
    session_owner,
    state_space,
    timer_space,
)

from hookmq_testing.contracts.crashes import StoreCrashes
from hookmq_testing.contracts.samples import (
    CLIENT,
    MESSAGE,
    PLAIN_CLIENT,
    SESSION,
    SUBSCRIPTION,
    UNSTORED,
    UNSTORED_SCOPE,
    comparable,
    fields_of,
    make_entry,
    make_message,
    of_kind,
    renamed,
    vars_of,
)


class StoreContract(StoreCrashes):
    """Tests of a `Store`. Stores that are not durable skip the restart tests; stores without `crash` skip the crash
    tests."""

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
            record = PutRetained(make_message("t", b"x"))
            assert self.commit(store, record) == CommitId(store.identity, number)
            assert store.last_commit() == CommitId(store.identity, number)
        self.close(store)

    def test_an_empty_batch_is_a_commit(self) -> None:
        store = self.opened()
        assert self.commit(store).number == 1
        assert store.last_commit().number == 1
        self.close(store)

    def test_a_commit_may_follow_from_the_one_before(self) -> None:
        # The core begins the next commit in the callback of the previous one.
        store = self.opened()
        told: list[CommitId | StoreFailed] = []

        def first(result: CommitId | StoreFailed) -> None:
            store.commit([make_entry("c/a", 1, 1)], told.append)

        store.commit([PutMessage(1, make_message("m")), make_entry("c/b", 1, 1)], first)
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
            self.commit(store, PutMessage(seq, make_message(topic)), make_entry("c/a", seq, seq))
        # Messages returned to a shared subscription are placed ahead of those already waiting.
        self.commit(store, PutMessage(20, make_message("m-1")), make_entry("c/a", -1, 20))
        assert self.topics(store, "c/a") == ["m-1", "m5", "m6", "m9"]
        assert self.topics(store, "c/a", after=5) == ["m6", "m9"]
        assert self.topics(store, "c/a", after=7) == ["m9"]
        assert self.topics(store, "c/a", after=9) == []
        self.close(store)

    def test_read_in_pages(self) -> None:
        store = self.opened()
        for seq in range(1, 8):
            message = make_message(f"m{seq}", b"x" * 10)
            self.commit(store, PutMessage(seq, message), make_entry("c/a", seq, seq, 10))
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
            self.commit(
                store, PutMessage(number, make_message(owner)), make_entry(owner, 1, number)
            )
        for owner in owners:
            assert self.topics(store, owner) == [owner]
        assert self.topics(store, "c/nobody") == []
        self.close(store)

    def test_a_message_is_kept_once_and_goes_with_its_last_entry(self) -> None:
        store = self.opened()
        entries = [make_entry(f"c/{n}", 1, 1) for n in range(3)]
        self.commit(store, PutMessage(1, make_message("m", b"x" * 1000)), *entries)
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
        self.commit(store, PutMessage(1, make_message("m")), make_entry("g/x/a", 1, 1))
        self.commit(store, make_entry("c/a", 1, 1, group="g/x/a"), Dequeue("g/x/a", 1))
        assert self.topics(store, "c/a") == ["m"]
        assert self.topics(store, "g/x/a") == []
        assert self.messages(store) == 1
        self.close(store)

    def test_a_message_may_come_and_go_in_one_batch(self) -> None:
        store = self.opened()
        self.commit(
            store, PutMessage(1, make_message("m")), make_entry("c/a", 1, 1), Dequeue("c/a", 1)
        )
        assert self.topics(store, "c/a") == []
        assert self.messages(store) == 0
        self.close(store)

    def test_what_is_not_there_may_be_removed(self) -> None:
        store = self.opened()
        self.commit(store, PutMessage(1, make_message("m")), make_entry("c/a", 1, 1))
        self.commit(
            store,
            Dequeue("c/a", 2),
            Dequeue("c/nobody", 1),
            SetPacket("c/a", 2, 5, False),
            DropSession("nobody"),
            DropSubscription("nobody", "a"),
            DropReceived("nobody", 1),
            DropRetained("nothing"),
            DropPublisher(4711),
            DropState(state_space("nobody"), "k"),
        )
        assert self.topics(store, "c/a") == ["m"]
        self.close(store)

    def test_set_packet(self) -> None:
        store = self.opened()
        for seq in (1, 2):
            self.commit(
                store, PutMessage(seq, make_message(f"m{seq}")), make_entry("c/a", seq, seq, qos=2)
            )
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
            PutMessage(1, make_message("shared")),
            PutMessage(2, make_message("own")),
            make_entry("c/a", 1, 1),
            make_entry("c/a", 2, 2),
            make_entry("c/b", 1, 1),
            make_entry("g/x/a", 1, 1),
        )
        self.commit(store, DropSession("a"))
        assert self.topics(store, "c/a") == []
        assert self.topics(store, "c/b") == ["shared"]
        assert self.topics(store, "g/x/a") == ["shared"]
        assert self.messages(store) == 1
        self.close(store)

    def test_a_session_may_end_and_begin_in_one_batch(self) -> None:
        store = self.opened()
        self.commit(store, PutMessage(1, make_message("old")), make_entry("c/a", 1, 1))
        self.commit(
            store, DropSession("a"), PutMessage(2, make_message("new")), make_entry("c/a", 1, 2)
        )
        assert self.topics(store, "c/a") == ["new"]
        assert self.messages(store) == 1
        self.close(store)

    # across a restart ----------------------------------------------------------------------------------------------

    def test_identity_and_number_survive(self) -> None:
        store = self._durable()
        identity = store.identity
        self.commit(store)
        self.commit(store, PutRetained(make_message("t", b"x")))
        store, _ = self.reopened(store)
        assert store.identity == identity
        assert store.last_commit() == CommitId(identity, 2)
        assert self.commit(store) == CommitId(identity, 3)
        self.close(store)

    def test_message_ids_are_not_used_again(self) -> None:
        store = self._durable()
        first = store.next_message_id()
        self.commit(store, PutMessage(first, make_message("m")), make_entry("c/a", 1, first))
        self.commit(
            store, PutMessage(first + 9, make_message("m")), make_entry("c/a", 2, first + 9)
        )
        store, _ = self.reopened(store)
        assert store.next_message_id() > first + 9
        self.close(store)

    def test_a_session_is_loaded_as_it_was_put(self) -> None:
        store = self._durable()
        plain = SessionRecord(ClientRecord("c2", 4), 60.0)
        old = renamed("c3")._replace(ended_at=None, will=None, will_at=None)
        new = old._replace(ended_at=5.0, client=old.client._replace(version=3))
        self.commit(store, PutSession(SESSION), PutSession(plain), PutSession(old))
        self.commit(store, PutSession(new))
        store, loaded = self.reopened(store)
        found = {one.session.client_id: one.session for one in of_kind(loaded, PutSession)}
        assert len(of_kind(loaded, PutSession)) == 3
        for expected in (SESSION, plain, new):
            assert comparable(found[expected.client_id]) == comparable(expected)
        self.close(store)

    def test_a_client_is_loaded_as_authorize_saw_it(self) -> None:
        """A client is loaded as `authorize` saw it, because rules may name any of its fields. If a
        field were not stored, a restart could change a rule's decision.
        """
        store = self._durable()
        self.commit(store, PutSession(SESSION))
        store, loaded = self.reopened(store)
        [found] = of_kind(loaded, PutSession)
        client = found.session.client.client()
        for name in vars_of(ClientInfo) - UNSTORED:
            value, plain = getattr(CLIENT, name), getattr(PLAIN_CLIENT, name)
            assert value != plain, f"the sample has no value of its own in ClientInfo.{name}"
            assert comparable(getattr(client, name)) == comparable(value), name
        for name in vars_of(Certificate):
            assert getattr(CLIENT.peer.certificate, name) != getattr(Certificate(), name), name
        for name in Peer._fields:
            assert getattr(CLIENT.peer, name) != getattr(PLAIN_CLIENT.peer, name), name
        for name in vars_of(Scope) - UNSTORED_SCOPE:
            assert getattr(CLIENT.scope, name) != getattr(Scope(), name), name
            assert getattr(client.scope, name) == getattr(CLIENT.scope, name), name
        self.close(store)

    def test_publishers_are_loaded_before_what_they_retained(self) -> None:
        """Publishers are loaded before their retained messages. Even after a restart, `authorize` can therefore decide
        whether a retained message may still be sent.
        """
        store = self._durable()
        other = CLIENT.record()._replace(client_id="other", connected_at=0.0)
        first = CLIENT.record()._replace(connected_at=0.0)
        self.commit(
            store,
            PutPublisher(1, first),
            PutRetained(make_message("a", b"x"), 1),
            PutRetained(make_message("b", b"x"), 1),
            PutPublisher(2, first),
            PutRetained(make_message("c", b"x"), 2),
            PutRetained(make_message("d", b"x")),
        )
        self.commit(
            store,
            PutPublisher(7, other),
            PutRetained(make_message("b", b"y"), 7),
            DropRetained("c"),
            DropPublisher(2),
        )
        store, loaded = self.reopened(store)
        found = {one.id: one.client for one in of_kind(loaded, PutPublisher)}
        assert {id: comparable(one) for id, one in found.items()} == {
            1: comparable(first),
            7: comparable(other),
        }
        put = {one.message.topic: one.publisher for one in of_kind(loaded, PutRetained)}
        assert put == {"a": 1, "b": 7, "d": 0}
        kinds = [type(one) for one in loaded]
        last = len(kinds) - 1 - kinds[::-1].index(PutPublisher)
        assert last < kinds.index(PutRetained)
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
        found = {
            one.subscription.filter: one.subscription for one in of_kind(loaded, PutSubscription)
        }
        assert found == {SUBSCRIPTION.filter: SUBSCRIPTION, "a/#": changed}
        kinds = [type(one) for one in loaded]
        assert kinds.index(PutSession) < kinds.index(PutSubscription)
        self.close(store)

    def test_queues_are_told_as_summaries_and_what_was_sent_as_entries(self) -> None:
        store = self._durable()
        records: list[Record] = [PutSession(SESSION)]
        for seq in range(1, 6):
            records += (
                PutMessage(seq, make_message(f"m{seq}", b"x" * seq)),
                make_entry("c/c1", seq, seq, seq, qos=2),
            )
        self.commit(store, *records)
        self.commit(store, SetPacket("c/c1", 1, 11, True), SetPacket("c/c1", 2, 12, False))
        self.commit(store, Dequeue("c/c1", 5))
        store, loaded = self.reopened(store)
        sent = of_kind(loaded, Enqueue)
        assert [(e.seq, e.packet_id, e.released) for e in sent] == [(1, 11, True), (2, 12, False)]
        put = {one.id: one.message.topic for one in of_kind(loaded, PutMessage)}
        assert put == {1: "m1", 2: "m2"}
        for entry in sent:
            before = loaded[: loaded.index(entry)]
            assert any(isinstance(o, PutMessage) and o.id == entry.message_ref for o in before)
        [summary] = of_kind(loaded, QueueSummary)
        assert (summary.owner, summary.entries, summary.size) == ("c/c1", 2, 7)
        assert summary.last_seq in (4, 5)
        assert self.topics(store, "c/c1", after=2) == ["m3", "m4"]
        self.close(store)

    def test_the_queue_of_a_group_is_loaded(self) -> None:
        store = self._durable()
        owner = group_owner("g", "a/#")
        self.commit(store, PutMessage(1, make_message("m", b"xyz")), make_entry(owner, -4, 1, 3))
        store, loaded = self.reopened(store)
        assert of_kind(loaded, QueueSummary) == [QueueSummary(owner, 1, 3, -4)]
        assert self.topics(store, owner) == ["m"]
        self.close(store)

    def test_received_packet_ids_are_loaded(self) -> None:
        store = self._durable()
        self.commit(store, PutSession(SESSION), PutReceived("c1", 1), PutReceived("c1", 65535))
        self.commit(store, DropReceived("c1", 1), PutReceived("c1", 2), PutReceived("c1", 2))
        store, loaded = self.reopened(store)
        assert sorted(of_kind(loaded, PutReceived)) == [
            PutReceived("c1", 2),
            PutReceived("c1", 65535),
        ]
        self.close(store)

    def test_retained_messages_are_loaded(self) -> None:
        store = self._durable()
        self.commit(
            store,
            PutRetained(MESSAGE),
            PutRetained(make_message("a", b"old")),
            PutRetained(make_message("gone", b"x")),
        )
        self.commit(store, PutRetained(make_message("a", b"new")), DropRetained("gone"))
        store, loaded = self.reopened(store)
        found = {one.message.topic: one.message for one in of_kind(loaded, PutRetained)}
        assert sorted(found) == ["a", MESSAGE.topic]
        assert found["a"].payload == b"new"
        assert fields_of(found[MESSAGE.topic]) == fields_of(MESSAGE)
        self.close(store)

    def test_the_state_of_plugins_is_loaded(self) -> None:
        store = self._durable()
        mine, other, timers = state_space("a"), state_space("a/b"), timer_space("a")
        first = [
            PutState(mine, "k", b"old"),
            PutState(mine, "gone", b"x"),
            PutState(mine, "", b""),
            PutState(mine, "ä☃" * 100, bytes(range(256)) * 300),
            PutState(mine, "K", b"other"),
            PutState(other, "k", b"its own"),
            PutState(timers, "k", b"data", 1700000000.25),
            PutState(timers, "gone", b"", -5.0),
        ]
        self.commit(store, *first)
        changed = PutState(mine, "k", b"new")
        moved = PutState(timers, "k", b"later", 1800000000.5)
        self.commit(store, changed, moved, DropState(mine, "gone"), DropState(timers, "gone"))
        store, loaded = self.reopened(store)
        kept = {(one.space, one.key): one for one in [*first, changed, moved]}
        del kept[mine, "gone"], kept[timers, "gone"]
        found = of_kind(loaded, PutState)
        assert {(one.space, one.key): one for one in found} == kept
        assert len(found) == len(kept)
        self.close(store)

    def test_a_key_may_change_several_times_in_one_batch(self) -> None:
        store = self._durable()
        space = state_space("a")
        self.commit(store, PutState(space, "back", b"1"), PutState(space, "out", b"1"))
        self.commit(
            store,
            PutState(space, "new", b"1"),
            PutState(space, "new", b"2"),
            DropState(space, "back"),
            PutState(space, "back", b"2"),
            PutState(space, "out", b"2"),
            DropState(space, "out"),
            PutState(space, "brief", b"1"),
            DropState(space, "brief"),
        )
        store, loaded = self.reopened(store)
        found = {one.key: one.value for one in of_kind(loaded, PutState)}
        assert found == {"new": b"2", "back": b"2"}
        self.close(store)

    def test_a_dropped_session_leaves_nothing(self) -> None:
        store = self._durable()
        other = renamed("c2")
        for record in (SESSION, other):
            self.commit(
                store,
                PutSession(record),
                PutSubscription(record.client_id, SUBSCRIPTION),
                PutReceived(record.client_id, 1),
                PutMessage(store.next_message_id() + 1, make_message("m")),
                make_entry(session_owner(record.client_id), 1, store.next_message_id() + 1),
            )
        self.commit(store, DropSession("c1"))
        store, loaded = self.reopened(store)
        assert [one.session.client_id for one in of_kind(loaded, PutSession)] == ["c2"]
        assert [one.client_id for one in of_kind(loaded, PutSubscription)] == ["c2"]
        assert [one.client_id for one in of_kind(loaded, PutReceived)] == ["c2"]
        assert [one.owner for one in of_kind(loaded, QueueSummary) if one.entries] == ["c/c2"]
        self.close(store)

    def test_a_large_batch_is_one(self) -> None:
        store = self._durable()
        records: list[Record] = [PutMessage(1, make_message("m"))]
        records += [make_entry(f"c/{n}", 1, 1) for n in range(3000)]
        assert self.commit(store, *records).number == 1
        store, loaded = self.reopened(store)
        assert sum(one.entries for one in of_kind(loaded, QueueSummary)) == 3000
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
