"""Test the commit point. Packets that depend on uncommitted state are not sent, and no other packet waits."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt.packets import (
    Connack,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
)
from hookmq.mqtt.properties import Properties
from hookmq.storage import group_commit as committer
from hookmq.storage.protocols import Committed, StoreFailed
from hookmq.storage.records import (
    Dequeue,
    DropReceived,
    DropSession,
    Enqueue,
    PutMessage,
    PutReceived,
    PutSession,
    PutSubscription,
    Record,
    SetPacket,
)
from hookmq_testing import DurableStore, Harness, MemoryClient, RecordingJournal, SlowStore

Make = Callable[..., Harness]


@pytest.fixture
def store() -> SlowStore:
    return SlowStore(DurableStore(), slow=False)


@pytest.fixture
def harness(broker_harness: Make, store: SlowStore) -> Harness:
    return broker_harness(store=store)


def durable(harness: Harness, name: str, **options: Any) -> MemoryClient:
    """Return a client whose session outlives its connection."""
    return harness.connect(name, **{"session_expiry_interval": 600, **options})


def away(harness: Harness, name: str, filter: str, qos: int = 2) -> MemoryClient:
    """Return a durable subscriber that has disconnected."""
    client = durable(harness, name)
    client.subscribe(filter, qos)
    client.disconnect()
    return client


def kinds(records: tuple[Record, ...] | None) -> list[type]:
    return [type(record) for record in records or ()]


# --- what waits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
def test_puback_waits_for_the_commit(harness: Harness, store: SlowStore, version: int) -> None:
    away(harness, "sub", "t")
    pub = harness.connect("pub", version)
    store.slow = True
    number = pub.publish("t", b"x", 1)
    pub.expect_nothing()
    assert kinds(store.committing) == [PutMessage, Enqueue]
    store.finish()
    assert pub.expect(Puback) == Puback(number)
    pub.expect_nothing()


def test_pubrec_waits_and_its_id_and_message_are_one_batch(
    harness: Harness, store: SlowStore
) -> None:
    away(harness, "sub", "t")
    pub = durable(harness, "pub")
    store.slow = True
    number = pub.publish("t", b"x", 2)
    pub.expect_nothing()
    # Split in two, a crash between them would deliver twice or not at all.
    assert sorted(map(str, kinds(store.committing))) == sorted(
        map(str, [PutReceived, PutMessage, Enqueue])
    )
    store.finish(all=False)
    assert pub.expect(Pubrec) == Pubrec(number)


def test_pubcomp_waits_until_the_id_is_free_on_record(harness: Harness, store: SlowStore) -> None:
    pub = durable(harness, "pub", auto_ack=False)
    number = pub.publish("t", b"x", 2)
    pub.expect(Pubrec)
    store.slow = True
    pub.send(Pubrel(number))
    pub.expect_nothing()
    assert store.committing == (DropReceived("pub", number),)
    store.finish()
    assert pub.expect(Pubcomp) == Pubcomp(number)


@pytest.mark.parametrize("version", [4, 5])
def test_a_repeated_pubrel_is_not_answered_before_the_first(
    harness: Harness, store: SlowStore, version: int
) -> None:
    pub = durable(harness, "pub", auto_ack=False, version=version, clean_start=version == 5)
    number = pub.publish("t", b"x", 2)
    pub.expect(Pubrec)
    store.slow = True
    pub.send(Pubrel(number))
    pub.send(Pubrel(number))
    # After a PUBCOMP, the client could reuse the id. If the broker then crashed, it would treat the new message as a
    # duplicate.
    pub.expect_nothing()
    store.finish()
    assert pub.expect(Pubcomp).code == 0
    assert pub.expect(Pubcomp).code == (0x92 if version == 5 else 0)


def test_pubrel_waits_until_pubrec_is_on_record(harness: Harness, store: SlowStore) -> None:
    sub = durable(harness, "sub", auto_ack=False)
    sub.subscribe("t", 2)
    harness.connect("pub").publish("t", b"x", 2)
    message = sub.expect_message("t", qos=2)
    store.slow = True
    sub.ack(message)
    sub.expect_nothing()
    assert store.committing == (SetPacket("c/sub", 1, message.packet_id, True),)
    store.finish()
    assert sub.expect(Pubrel) == Pubrel(message.packet_id)


def test_suback_and_unsuback_wait(harness: Harness, store: SlowStore) -> None:
    client = durable(harness, "one")
    store.slow = True
    client.send_subscribe("t", 1)
    client.expect_nothing()
    assert kinds(store.committing) == [PutSubscription]
    store.finish()
    assert client.expect(Suback).codes == (1,)
    client.send_unsubscribe("t")
    client.expect_nothing()
    store.finish()
    assert client.expect(Unsuback).codes == (0,)


def test_an_unsuback_for_nothing_waits_for_nothing(harness: Harness, store: SlowStore) -> None:
    client = durable(harness, "one")
    store.slow = True
    assert client.unsubscribe("never").codes == (0x11,)


def test_suback_leaves_before_its_retained_messages(harness: Harness, store: SlowStore) -> None:
    harness.connect("pub").publish("t", b"kept", 1, retain=True)
    client = durable(harness, "one")
    store.slow = True
    client.send_subscribe("t", 1)
    client.expect_nothing()
    store.finish()
    assert isinstance(client.next(), Suback)
    client.expect_message("t", b"kept", retain=True)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_connack_of_a_durable_session_waits(
    harness: Harness, store: SlowStore, version: int
) -> None:
    store.slow = True
    properties = Properties(session_expiry_interval=60) if version == 5 else None
    client = harness.connect("one", version, version == 5, properties=properties, expect=None)
    client.expect_nothing()
    assert kinds(store.committing) == [PutSession]
    store.finish()
    assert not client.expect(Connack).session_present


def test_connack_of_a_resumed_session_waits(harness: Harness, store: SlowStore) -> None:
    client = away(harness, "one", "t")
    store.slow = True
    client.reconnect(expect=None)
    client.expect_nothing()
    store.finish()
    assert client.expect(Connack).session_present


def test_connack_waits_until_the_old_session_is_gone(harness: Harness, store: SlowStore) -> None:
    client = away(harness, "one", "t")
    store.slow = True
    # The new session is not stored. But if the broker crashed now, the old one must not come back [MQTT-3.1.2-4].
    client.reconnect(clean_start=True, session_expiry_interval=0, expect=None)
    client.expect_nothing()
    assert DropSession("one") in (store.committing or ())
    store.finish()
    assert not client.expect(Connack).session_present


def test_nothing_is_sent_before_connack(harness: Harness, store: SlowStore) -> None:
    client = away(harness, "one", "#", 1)
    pub = harness.connect("pub")
    pub.publish("t", b"before", 1)
    store.slow = True
    client.reconnect(expect=None)
    client.expect_nothing()
    pub.publish("t", b"zero")
    pub.publish("t", b"one", 1)
    client.expect_nothing()  # [MQTT-3.2.0-1]
    store.finish()
    harness.settle()
    store.finish()
    assert isinstance(client.next(), Connack)
    got = [client.expect_message("t").payload for _ in range(3)]
    assert sorted(got) == [b"before", b"one", b"zero"]
    assert got.index(b"before") < got.index(b"one")
    client.expect_nothing()


def test_nothing_is_sent_before_connack_when_it_connects_twice(
    harness: Harness, store: SlowStore
) -> None:
    client = away(harness, "one", "#", 1)
    pub = harness.connect("pub")
    store.slow = True
    client.reconnect(expect=None)
    client.reconnect(expect=None)
    pub.publish("t", b"x", 1)
    store.finish(all=False)
    client.expect_nothing()
    store.finish()
    harness.settle()
    store.finish()
    assert isinstance(client.next(), Connack)
    client.expect_message("t", b"x")
    pub.publish("t", b"y", 1)
    client.expect_message("t", b"y")


def test_qos_2_to_a_durable_session_waits_for_its_record(
    harness: Harness, store: SlowStore
) -> None:
    sub = durable(harness, "sub")
    sub.subscribe("t", 2)
    pub = harness.connect("pub")
    store.slow = True
    pub.publish("t", b"x", 2)
    sub.expect_nothing()
    entry = next(r for r in store.committing or () if isinstance(r, Enqueue))
    assert entry.packet_id == 1
    store.finish()
    sub.expect_message("t", b"x", 2)


def test_qos_1_to_a_durable_session_does_not_wait(harness: Harness, store: SlowStore) -> None:
    sub = durable(harness, "sub")
    sub.subscribe("t", 1)
    pub = harness.connect("pub")
    store.slow = True
    pub.publish("t", b"x", 1)
    sub.expect_message("t", b"x", 1)  # at least once: a repetition after a crash is legal
    pub.expect_nothing()
    store.finish()
    pub.expect(Puback)


def test_a_repeated_qos_2_publish_waits_for_the_first(harness: Harness, store: SlowStore) -> None:
    away(harness, "sub", "t")
    pub = durable(harness, "pub", auto_ack=False)
    store.slow = True
    number = pub.publish("t", b"x", 2)
    pub.publish("t", b"x", 2, dup=True, packet_id=number)
    pub.expect_nothing()
    store.finish()
    assert [pub.expect(Pubrec).packet_id for _ in range(2)] == [number, number]
    assert len(store.records(PutMessage)) == 1


def test_a_retained_message_is_on_record_first(harness: Harness, store: SlowStore) -> None:
    pub = harness.connect("pub")
    store.slow = True
    pub.publish("t", b"kept", 1, retain=True)
    pub.expect_nothing()
    store.finish()
    assert pub.expect(Puback).code == 0x10


# --- order --------------------------------------------------------------------------------------------------------------


def test_acknowledgements_keep_their_order(harness: Harness, store: SlowStore) -> None:
    away(harness, "sub", "kept")
    pub = durable(harness, "pub", auto_ack=False)
    store.slow = True
    first = pub.publish("kept", b"", 1)
    # Depends on no commit, but stays in order [MQTT-4.6.0-2].
    second = pub.publish("nobody", b"", 1)
    third = pub.publish("kept", b"", 2)
    fourth = pub.publish("nobody", b"", 1)
    pub.expect_nothing()
    store.finish(all=False)
    harness.settle()
    assert [pub.next(), pub.next()] == [Puback(first), Puback(second, 0x10)]
    pub.expect_nothing()
    store.finish()
    assert [pub.next(), pub.next()] == [Pubrec(third), Puback(fourth, 0x10)]


def test_packets_without_records_do_not_wait_for_the_commit(
    harness: Harness, store: SlowStore
) -> None:
    away(harness, "kept", "kept")
    busy, pub, sub = (harness.connect(name) for name in ("busy", "pub", "sub"))
    store.slow = True
    busy.publish("kept", b"", 1)
    sub.subscribe("t", 2)
    for qos in (0, 1, 2):
        pub.publish("t", b"x", qos, expect=0)
        sub.expect_message("t", b"x", qos)
    sub.unsubscribe("t")
    harness.connect("another")
    busy.expect_nothing()
    assert store.committing is not None
    store.finish()
    busy.expect(Puback)


def test_live_clean_subscribers_write_nothing(harness: Harness, store: SlowStore) -> None:
    before = len(store.committed)
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t", 2)
    for qos in (1, 2):
        pub.publish("t", b"x", qos, expect=0)
    assert len(sub.messages) == 2
    assert len(store.committed) == before


def test_a_message_is_one_record_however_many_queue_it(harness: Harness, store: SlowStore) -> None:
    for number in range(20):
        away(harness, f"sub{number}", "t")
    harness.connect("pub").publish("t", b"x" * 100, 1, expect=0)
    assert len(store.records(PutMessage)) == 1
    entries = [one for one in store.records(Enqueue) if isinstance(one, Enqueue)]
    assert len(entries) == 20
    assert {entry.message_ref for entry in entries} == {1}


# --- group commit -------------------------------------------------------------------------------------------------------


def test_large_batches_are_cut_between_effects(
    harness: Harness, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "MAX_RECORDS", 4)
    away(harness, "sub", "#")
    pub = harness.connect("pub")
    store.slow = True
    with harness.together():
        for number in range(5):
            pub.publish("t", b"%d" % number, 1)
    sizes, acknowledged = [], []
    while store.committing is not None:
        sizes.append(kinds(store.committing))
        store.finish(all=False)
        harness.settle()
        count = len(pub.unread)
        acknowledged.append(count)
        pub.unread.clear()
    assert sizes == [[PutMessage, Enqueue] * 2, [PutMessage, Enqueue] * 2, [PutMessage, Enqueue]]
    assert acknowledged == [2, 2, 1]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_an_effect_is_never_cut(
    harness: Harness, store: SlowStore, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    for number in range(3):
        durable(harness, f"sub{number}").subscribe("t", 2)
    pub = durable(harness, "pub")
    monkeypatch.setattr(committer, "MAX_RECORDS", limit)
    store.slow = True
    with harness.together():
        pub.publish("t", b"one", 2)
        pub.publish("t", b"two", 2)
    for id in (1, 2):
        # The packet id, the message and all its queue entries. They must be in one commit in case the broker crashes.
        batch = store.committing or ()
        assert kinds(batch) == [PutReceived, PutMessage, Enqueue, Enqueue, Enqueue]
        assert {r.packet_id for r in batch if isinstance(r, PutReceived)} == {id}
        store.finish(all=False)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_message_changes_hands_in_one_batch(
    harness: Harness, store: SlowStore, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    member = durable(harness, "member")
    member.subscribe("$share/g/t", 2)
    member.disconnect()
    pub = harness.connect("pub")
    pub.publish("t", b"x", 2, expect=0)
    pub.publish("t", b"y", 2, expect=0)
    monkeypatch.setattr(committer, "MAX_RECORDS", limit)
    store.slow = True
    member.reconnect(expect=None)
    store.finish(all=False)  # CONNACK
    harness.settle()
    while store.committing is not None:
        # An entry moves from the group's queue to the member's. It is always in exactly one of them.
        moved = [r for r in store.committing if isinstance(r, Enqueue | Dequeue)]
        owners = [(type(r), r.owner) for r in moved if isinstance(r, Enqueue) or r.owner[0] == "g"]
        assert owners.count((Enqueue, "c/member")) == owners.count((Dequeue, "g/g/t"))
        store.finish(all=False)
        harness.settle()
    member.expect_message("t", b"x", 2)
    member.expect_message("t", b"y", 2)


def test_large_messages_cut_a_batch_as_well(
    harness: Harness, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "MAX_BYTES", 10)
    away(harness, "sub", "#")
    pub = harness.connect("pub")
    store.slow = True
    with harness.together():
        for number in range(5):
            pub.publish("t", b"%05d" % number, 1)
        pub.publish("t", b"retained", 1, retain=True)
    sizes = []
    while store.committing is not None:
        sizes.append(len([r for r in store.committing if isinstance(r, Enqueue)]))
        store.finish(all=False)
        harness.settle()
    assert sizes == [2, 2, 2]
    assert len([p for p in pub.unread if isinstance(p, Puback)]) == 6


# --- acknowledged before it was committed -------------------------------------------------------------------------------


def pubacks(client: MemoryClient) -> int:
    client.harness.settle()
    count = len([p for p in client.unread if isinstance(p, Puback)])
    client.unread.clear()
    return count


def test_a_message_acknowledged_before_its_commit_is_not_recorded(
    harness: Harness, store: SlowStore
) -> None:
    """If a message is acknowledged before its batch is committed, it is not recorded. The receiver has it, so a crash
    cannot lose it.
    """
    away(harness, "away", "other")
    one, two = durable(harness, "one"), durable(harness, "two", auto_ack=False)
    one.subscribe("t/#", 1)
    two.subscribe("t/both", 1)
    pub = harness.connect("pub")
    store.slow = True
    pub.publish("other", b"", 1)
    pub.publish("t", b"", 1)
    pub.publish("t/both", b"", 1)
    harness.settle()
    one.expect_message("t", b"", 1)
    one.expect_message("t/both", b"", 1)
    assert pubacks(pub) == 0
    store.finish(all=False)
    assert pubacks(pub) == 1
    batch = store.committing or ()
    assert kinds(batch) == [PutMessage, Enqueue]
    assert [r.owner for r in batch if isinstance(r, Enqueue)] == ["c/two"]
    assert [r.message.topic for r in batch if isinstance(r, PutMessage)] == ["t/both"]
    store.finish()
    assert pubacks(pub) == 2
    store.slow = False
    two.drop()
    two.reconnect(auto_ack=True)
    assert [m.topic for m in two.messages] == ["t/both", "t/both"]
    inner = store.inner
    assert isinstance(inner, DurableStore)
    assert [m.topic for m in inner.messages.values()] == ["other"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_sent_at_once_is_recorded_when_its_commit_starts(
    harness: Harness, store: SlowStore, version: int
) -> None:
    """A message that was sent at once is recorded when its commit starts, unless it has been acknowledged by then. The
    record shows how it was sent.
    """
    one = durable(harness, "one", auto_ack=False, version=version, clean_start=False)
    one.subscribe("t", 1)
    pub = harness.connect("pub", version=version)
    # Takes the slow path; the messages that follow can take the fast path.
    pub.publish("t", b"first", 1)
    store.slow = True
    for number in range(4):
        pub.publish("t", b"%d" % number, 1)
    harness.settle()
    sent = [p for p in one.unread if isinstance(p, Publish)]
    assert [p.payload for p in sent] == [b"first", b"0", b"1", b"2", b"3"]
    assert pubacks(pub) == 1
    one.ack(sent[2])
    harness.settle()
    assert kinds(store.committing or ()) == [PutMessage, Enqueue]
    store.finish(all=False)
    assert pubacks(pub) == 1
    batch = store.committing or ()
    assert kinds(batch) == [PutMessage, Enqueue] * 2
    found = [r for r in batch if isinstance(r, Enqueue)]
    assert [(r.owner, r.qos, r.filter) for r in found] == [("c/one", 1, "t")] * 2
    assert [r.packet_id for r in found] == [sent[3].packet_id, sent[4].packet_id]
    messages = [r for r in batch if isinstance(r, PutMessage)]
    assert [r.message.payload for r in messages] == [b"2", b"3"]
    assert [r.id for r in messages] == [r.message_ref for r in found]
    store.finish()
    assert pubacks(pub) == 3
    one.ack(sent[3])
    harness.settle()
    assert kinds(store.committing or ()) == [Dequeue]
    store.finish()
    store.slow = False
    one.drop()
    one.reconnect(auto_ack=True)
    again = [(m.payload, m.dup) for m in one.messages[-3:]]
    assert again == [(b"first", True), (b"0", True), (b"3", True)]
    inner = store.inner
    assert isinstance(inner, DurableStore)
    assert not inner.messages


def test_a_batch_without_remaining_records_is_not_committed(
    harness: Harness, store: SlowStore
) -> None:
    away(harness, "away", "other")
    one = durable(harness, "one")
    one.subscribe("t", 1)
    pub = harness.connect("pub")
    store.slow = True
    pub.publish("other", b"", 1)
    for number in range(10):
        pub.publish("t", b"%d" % number, 1)
    assert pubacks(pub) == 0
    number = store.last_commit().number
    store.finish(all=False)
    assert pubacks(pub) == 11
    assert store.committing is None
    assert store.last_commit().number == number + 1
    assert not harness.broker.state.committer.busy
    # From now on, messages are recorded as usual.
    store.slow = False
    one.disconnect()
    pub.publish("t", b"later", 1, expect=0)
    assert [m.payload for m in one.messages] == [b"%d" % number for number in range(10)]
    one.reconnect()
    assert one.messages[-1].payload == b"later"


# --- failure ------------------------------------------------------------------------------------------------------------


def test_after_a_failed_commit_nothing_is_acknowledged(harness: Harness, store: SlowStore) -> None:
    told: list[str] = []
    harness.broker.on_failure = told.append
    away(harness, "away", "t")
    sub = durable(harness, "sub", auto_ack=False)
    sub.subscribe("two", 2)
    pub = durable(harness, "pub", auto_ack=False)
    earlier = pub.publish("two", b"x", 2)
    pub.expect(Pubrec)
    delivered = sub.expect_message("two")
    store.slow = True
    pub.publish("t", b"", 1)
    pub.publish("t", b"", 2)
    store.fail("disk on fire")
    harness.settle()
    assert told == ["disk on fire"]
    assert harness.broker.state.failed == "disk on fire"
    assert [fields["reason"] for fields in harness.logged("store.failed")] == ["disk on fire"]
    store.slow = False  # even if the disk came back: a retried fsync may lie
    pub.publish("t", b"", 1)
    pub.send(Pubrel(earlier))
    pub.send_subscribe("more", 1)
    pub.send_unsubscribe("more")
    sub.ack(delivered)
    harness.connect("late", expect=0x88)
    harness.advance(60)
    pub.expect_nothing()
    sub.expect_nothing()
    assert told == ["disk on fire"]
    assert not harness.logged("internal.error")


def test_a_store_that_raises_has_failed(
    harness: Harness, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    harness.broker.on_failure = told.append
    away(harness, "away", "t")
    pub = harness.connect("pub")

    def broken(records: tuple[Record, ...], done: Committed) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(store, "commit", broken)
    pub.publish("t", b"", 1)
    pub.publish("t", b"", 1)
    pub.expect_nothing()
    assert len(told) == 1
    assert "no space left" in told[0]


def test_a_client_that_left_is_not_answered(harness: Harness, store: SlowStore) -> None:
    away(harness, "sub", "t")
    pub = durable(harness, "pub")
    store.slow = True
    pub.publish("t", b"", 1)
    pub.publish("t", b"", 2)
    pub.drop()
    writes = len(pub.wire.writes)
    store.finish()
    harness.settle()
    store.finish()
    assert len(pub.wire.writes) == writes
    pub.reconnect(expect=None)
    store.finish()
    assert isinstance(pub.next(), Connack)
    pub.expect_nothing()  # acknowledgements for the first connection are not sent on the second


def test_subscribe_in_one_segment_with_its_publish(harness: Harness, store: SlowStore) -> None:
    client = durable(harness, "one", auto_ack=False)
    store.slow = True
    client.send(Subscribe(7, (SubscribeRequest("t", 1),)), Publish("t", b"own", 1, packet_id=8))
    store.finish()
    harness.settle()
    store.finish()
    got = [client.next(), client.next(), client.next()]
    assert {type(one) for one in got} == {Suback, Publish, Puback}
    assert [type(one) for one in got if not isinstance(one, Publish)] == [Suback, Puback]


def burst(harness: Harness, client: MemoryClient, *numbers: int, topic: str = "t") -> None:
    """Publish all numbers in one turn."""
    with harness.together():
        for number in numbers:
            client.publish(topic, b"%d" % number, 1, expect=None)


def acknowledged_ids(client: MemoryClient) -> list[int]:
    """Return the packet ids acknowledged by PUBACK since the last call."""
    ids = [packet.packet_id for packet in client.unread if isinstance(packet, Puback)]
    client.unread.clear()
    return ids


def waiting(client: MemoryClient) -> tuple[int, int]:
    """Return the number of responses that are waiting for a commit, and the number of publishes that they acknowledge."""
    connection = client.wire.connection
    assert connection is not None
    return len(connection.answers or ()), connection.unacknowledged


def test_a_burst_costs_one_answer(harness: Harness, store: SlowStore) -> None:
    away(harness, "sub", "#")
    pub = harness.connect("pub")
    for number in range(3):
        pub.publish("t", b"%d" % number, 1)
    pub.unread.clear()
    store.slow = True
    burst(harness, pub, 1, 2, 3)
    assert waiting(pub) == (1, 3)
    first = len(store.committing or ())
    assert first == 6
    # Messages that arrive during this commit wait for the next one.
    burst(harness, pub, 4, 5)
    assert waiting(pub) == (2, 5)
    store.finish(all=False)
    harness.settle()
    assert acknowledged_ids(pub) == [4, 5, 6]
    assert waiting(pub) == (1, 2)
    store.finish()
    harness.settle()
    assert acknowledged_ids(pub) == [7, 8]
    assert waiting(pub) == (0, 0)


def test_acknowledgements_without_a_commit_keep_their_order_in_a_burst(
    harness: Harness, store: SlowStore
) -> None:
    away(harness, "sub", "t")
    pub, other = harness.connect("pub"), harness.connect("other")
    for client in (pub, other):
        for topic in ("t", "nobody"):
            for _ in range(2):
                client.publish(topic, b"", 1, expect=None)
        client.unread.clear()
    store.slow = True
    with harness.together():
        for topic in ("t", "nobody", "t", "t"):
            pub.publish(topic, b"", 1, expect=None)
        other.publish("t", b"", 1, expect=None)
        pub.publish("t", b"", 1, expect=None)
    assert waiting(pub) == (3, 5)  # the bytes of the other clients are read separately
    assert waiting(other) == (1, 1)
    assert acknowledged_ids(pub) == []
    store.finish()
    harness.settle()
    assert acknowledged_ids(pub) == [5, 6, 7, 8, 9]
    assert acknowledged_ids(other) == [5]


def test_joined_answers_are_bounded_as_those_apart(broker_harness: Make, store: SlowStore) -> None:
    harness = broker_harness(config={"broker": {"receive_maximum": 10}}, store=store)
    away(harness, "sub", "#")
    pub = harness.connect("pub", version=4)
    pub.publish("t", b"", 1)
    store.slow = True
    connection = pub.wire.connection
    assert connection is not None
    for number in range(2000):
        if not connection.reading:
            break
        burst(harness, pub, *range(number * 10, number * 10 + 10))
    assert not connection.reading
    assert 10 + 1024 < connection.unacknowledged <= 10 + 1024 + 10
    # Messages received with the last commit are processed after it.
    while store.committing is not None:
        store.finish()
        harness.settle()
    assert connection.reading
    assert connection.unacknowledged == 0
    assert len(acknowledged_ids(pub)) == 1 + number * 10


class VolatileJournal(RecordingJournal):
    """A journal that keeps messages in memory only."""

    volatile = True


def test_nothing_waits_for_a_volatile_journal(broker_harness: Make, store: SlowStore) -> None:
    volatile = VolatileJournal("memory", wants=lambda topic: topic.startswith("memory/"))
    other = RecordingJournal("disk", wants=lambda topic: topic == "memory/and/disk")
    harness = broker_harness(store=store, journals=[volatile, other])
    away(harness, "sub", "memory/and/store")
    pub = harness.connect("pub")
    store.slow = True
    number = pub.publish("memory/1", b"x", 1)
    assert pub.expect(Puback) == Puback(number)
    assert store.committing is None
    for topic in ("memory/and/store", "memory/and/disk"):
        number = pub.publish(topic, b"x", 1)
        pub.expect_nothing()
        store.finish()
        assert pub.expect(Puback) == Puback(number)
    assert volatile.topics == ["memory/1", "memory/and/store", "memory/and/disk"]


def test_an_acknowledgement_of_a_volatile_journal_keeps_the_order(
    broker_harness: Make, store: SlowStore
) -> None:
    volatile = VolatileJournal("memory", wants=lambda topic: topic == "memory")
    harness = broker_harness(store=store, journals=[volatile])
    away(harness, "sub", "t")
    pub = harness.connect("pub")
    store.slow = True
    first, second = pub.publish("t", b"x", 1), pub.publish("memory", b"x", 1)
    pub.expect_nothing()
    store.finish()
    assert [pub.expect(Puback), pub.expect(Puback)] == [Puback(first), Puback(second)]


# --- batches that a journal alone makes durable -----------------------------------------------------------------------


class SealingJournal(RecordingJournal):
    """A journal that needs no commit of the store for messages that it alone has. `seals` counts these batches."""

    willing = True
    seals = 0

    def seal(self, done: Callable[[StoreFailed | None], None]) -> bool:
        if not self.willing:
            return False
        self.seals += 1
        self.flush(self.appended[-1][0], done)
        return True


@pytest.fixture
def sealing() -> SealingJournal:
    return SealingJournal("sealing", wants=lambda topic: topic.startswith("j/"))


def test_a_batch_of_one_journal_needs_no_commit_of_the_store(
    broker_harness: Make, store: SlowStore, sealing: SealingJournal
) -> None:
    harness = broker_harness(store=store, journals=[sealing])
    pub = harness.connect("pub", session_expiry_interval=0)
    harness.settle()
    before = store.last_commit()
    sealing.slow = True
    number = pub.publish("j/1", b"x", 1)
    pub.expect_nothing()
    sealing.finish()
    harness.settle()
    assert pub.expect(Puback) == Puback(number)
    assert (sealing.seals, sealing.made, store.last_commit()) == (1, [], before)
    away(harness, "sub", "j/2")
    made = len(sealing.made)
    number = pub.publish("j/2", b"x", 1)
    pub.expect_nothing()
    sealing.finish()
    harness.settle()
    assert pub.expect(Puback) == Puback(number)
    # A queue entry is in the same batch, whose number is the store's.
    assert (sealing.seals, sealing.made[made:]) == (1, [store.last_commit()])


@pytest.mark.parametrize("others", [0, 1])
def test_the_store_commits_if_the_journal_cannot_or_is_not_alone(
    broker_harness: Make, store: SlowStore, sealing: SealingJournal, others: int
) -> None:
    sealing.willing = bool(others)
    other = RecordingJournal("other", wants=lambda topic: topic == "o")
    harness = broker_harness(store=store, journals=[sealing, other][: 1 + others])
    pub = harness.connect("pub", session_expiry_interval=0)
    for _ in range(3):
        pub.publish("j/1", b"x", 1)
        harness.settle()
    assert sealing.seals == 0
    assert sealing.made[-3:] == [commit for commit, _ in sealing.safe]
    assert sealing.made[-1] == store.last_commit()


def test_a_journal_that_cannot_seal_stops_the_broker(
    broker_harness: Make, store: SlowStore, sealing: SealingJournal
) -> None:
    harness = broker_harness(store=store, journals=[sealing])
    told: list[str] = []
    harness.broker.on_failure = told.append
    pub = harness.connect("pub", session_expiry_interval=0)
    sealing.slow = True
    pub.publish("j/1", b"x", 1)
    sealing.fail("no space left")
    harness.settle()
    pub.expect_nothing()
    assert told == ["no space left"]


def test_messages_that_arrive_while_a_batch_is_sealed_form_the_next_one(
    broker_harness: Make, store: SlowStore, sealing: SealingJournal
) -> None:
    harness = broker_harness(store=store, journals=[sealing])
    pub = harness.connect("pub", session_expiry_interval=0)
    sealing.slow = True
    first = pub.publish("j/1", b"x", 1)
    second = pub.publish("j/2", b"x", 1)
    sealing.finish()
    harness.settle()
    assert pub.expect(Puback) == Puback(first)
    pub.expect_nothing()
    sealing.finish()
    harness.settle()
    assert pub.expect(Puback) == Puback(second)
    assert sealing.seals == 2
