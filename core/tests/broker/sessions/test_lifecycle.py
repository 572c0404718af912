"""Test how sessions outlive connections: Session Present, expiry and how it can change, and the order of events when a
session is resumed.
"""

from collections.abc import Callable
from math import inf

import pytest
from hookmq.hooks.verdicts import Accept, Deny, Limits
from hookmq.model.events import SessionEvent
from hookmq.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.records import DropSession, PutSession
from hookmq_testing import (
    DurableStore,
    Harness,
    HookRecorder,
    MemoryClient,
    RecordingJournal,
    SlowStore,
    will,
)

Make = Callable[..., Harness]

FOREVER = 0xFFFFFFFF
OLD = pytest.mark.parametrize("version", [3, 4])


def granted(client: MemoryClient) -> int | None:
    assert client.connack is not None
    return client.connack.properties.session_expiry_interval


# --- session present ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expiry", [None, 0])
def test_a_session_without_expiry_ends_with_its_connection(
    harness: Harness, expiry: int | None
) -> None:
    client = harness.connect("c", session_expiry_interval=expiry)
    client.subscribe("a", 1)
    client.drop()
    assert not harness.broker.sessions
    client.reconnect()
    assert not client.session_present
    harness.connect("d").publish("a", qos=1, expect=0x10)


@pytest.mark.parametrize("clean", [True, False])
def test_a_session_is_resumed(harness: Harness, clean: bool) -> None:
    # [MQTT-3.1.2-5, 3.1.2-6, 3.2.2-2, 3.2.2-3]: regardless of Clean Start in the first CONNECT
    client = harness.connect("c", clean_start=clean, session_expiry_interval=100)
    assert not client.session_present
    client.subscribe("a", 1)
    client.drop()
    client.reconnect()
    assert client.session_present
    harness.connect("d").publish("a", b"x", 1, expect=0)
    client.expect_message("a", b"x")


def test_clean_start_ends_the_session(harness: Harness) -> None:
    # [MQTT-3.1.2-4]
    client = harness.connect("c", session_expiry_interval=100)
    client.subscribe("a", 1)
    client.drop()
    other = harness.connect("d")
    other.publish("a", b"waits", 1, expect=0)
    client.reconnect(clean_start=True)
    assert not client.session_present
    client.expect_nothing()
    other.publish("a", b"gone", 1, expect=0x10)
    assert harness.metrics.dropped == {("session_ended", "out"): 1}


@OLD
def test_clean_session_of_3(harness: Harness, version: int) -> None:
    # [MQTT311-3.1.2-4, 3.1.2-6]
    client = harness.connect("c", version, clean_start=False)
    client.subscribe("a", 1)
    client.drop()
    harness.advance(600000)
    client.reconnect(clean_start=False)
    # Edge case 57: that byte is reserved in 3.1
    assert client.session_present is (version == 4)
    harness.connect("d").publish("a", b"x", 1, expect=0)
    client.expect_message("a", b"x")
    client.drop()
    client.reconnect(clean_start=True)
    assert not client.session_present
    client.drop()
    assert "c" not in harness.broker.sessions
    client.reconnect(clean_start=False)
    assert not client.session_present


@OLD
def test_a_session_of_3_does_not_last_for_ever(broker_harness: Make, version: int) -> None:
    harness = broker_harness(config={"session": {"max_expiry": 1000.0}})
    client = harness.connect("c", version, clean_start=False)
    client.drop()
    harness.advance(999)
    assert "c" in harness.broker.sessions
    harness.advance(2)
    assert "c" not in harness.broker.sessions


def test_a_session_crosses_versions(harness: Harness) -> None:
    client = harness.connect("c", session_expiry_interval=100)
    client.subscribe("a", 2)
    client.drop()
    other = harness.connect("d")
    other.publish("a", b"1", 2, expect=0, content_type="text")
    older = harness.connect("c", 4, clean_start=False)
    assert older.session_present
    older.expect_message("a", b"1", 2)
    older.drop()
    other.publish("a", b"2", 1, expect=0)
    client.reconnect()
    assert client.session_present
    client.expect_message("a", b"2", 1)


# --- expiry -------------------------------------------------------------------------------------------------------------


def test_a_session_expires(harness: Harness) -> None:
    # [MQTT-4.1.0-2]
    client = harness.connect("c", session_expiry_interval=100)
    client.subscribe("a", 1)
    harness.advance(1000)  # the expiry interval does not run while the client is connected
    client.drop()
    harness.advance(99.9)
    assert "c" in harness.broker.sessions
    harness.advance(0.2)
    assert "c" not in harness.broker.sessions
    assert harness.metrics.sessions_expired == 1
    client.reconnect()
    assert not client.session_present


def test_expiry_begins_anew_with_each_connection(harness: Harness) -> None:
    client = harness.connect("c", session_expiry_interval=100)
    for _ in range(3):
        client.drop()
        harness.advance(99)
        client.reconnect()
        assert client.session_present
        harness.advance(99)
        client.expect_nothing()
    assert harness.metrics.sessions_expired == 0


def test_expiry_is_judged_at_the_return(harness: Harness) -> None:
    # The deadline and the reconnection coincide. The reconnection itself must check the expiry.
    client = harness.connect("c", session_expiry_interval=100)
    client.drop()
    session = harness.broker.sessions["c"]
    assert session.expiry_due is not None
    session.expiry_due.cancel()  # simulates a late expiry timer
    harness.advance(100)
    client.reconnect()
    assert not client.session_present
    assert harness.metrics.sessions_expired == 1


@pytest.mark.parametrize(
    ("asked", "ceiling", "told", "expiry"),
    [
        (None, 1000.0, None, 0),
        (50, 1000.0, None, 50),
        (1000, 1000.0, None, 1000),
        (1001, 1000.0, 1000, 1000),
        (FOREVER, 1000.0, 1000, 1000),
        (FOREVER, 1e12, None, inf),
        (FOREVER - 1, 1e12, None, FOREVER - 1),
        (10, 0.0, 0, 0),
    ],
)
def test_connack_announces_the_granted_session_expiry(
    broker_harness: Make, asked: int | None, ceiling: float, told: int | None, expiry: float
) -> None:
    # Edge case 2
    harness = broker_harness(config={"session": {"max_expiry": ceiling}})
    client = harness.connect("c", session_expiry_interval=asked)
    assert granted(client) == told
    assert harness.broker.sessions["c"].expiry == expiry


def test_a_session_that_never_expires(broker_harness: Make) -> None:
    harness = broker_harness(config={"session": {"max_expiry": 1e12}})
    client = harness.connect("c", session_expiry_interval=FOREVER)
    client.drop()
    harness.advance(1e6)
    client.reconnect()
    assert client.session_present


def test_the_latest_connection_sets_expiry(harness: Harness) -> None:
    # Edge case 3: an older session is resumed, and then ends with its connection
    client = harness.connect("c", session_expiry_interval=100)
    client.subscribe("a", 1)
    client.drop()
    client.reconnect(session_expiry_interval=None)
    assert client.session_present
    harness.connect("d").publish("a", b"x", 1, expect=0)
    client.expect_message("a", b"x")
    client.drop()
    assert "c" not in harness.broker.sessions
    client.reconnect(session_expiry_interval=100)
    assert not client.session_present


# --- a change at DISCONNECT ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "lasts"), [(100, 10, 10), (100, 1000, 1000), (100, None, 100)]
)
def test_disconnect_changes_expiry(
    harness: Harness, before: int, after: int | None, lasts: int
) -> None:
    client = harness.connect("c", session_expiry_interval=before)
    client.disconnect(session_expiry_interval=after)
    harness.advance(lasts - 0.5)
    assert "c" in harness.broker.sessions
    harness.advance(1)
    assert "c" not in harness.broker.sessions


def test_disconnect_ends_the_session(harness: Harness) -> None:
    client = harness.connect("c", session_expiry_interval=100)
    client.disconnect(session_expiry_interval=0)
    assert not harness.broker.sessions
    client.reconnect()
    assert not client.session_present


@pytest.mark.parametrize("before", [None, 0])
def test_disconnect_cannot_keep_what_was_to_end(harness: Harness, before: int | None) -> None:
    # Edge case 1: a protocol error, so that the will is published
    watcher = harness.connect("watcher")
    watcher.subscribe("will")
    client = harness.connect("c", session_expiry_interval=before, will=will("will", b"gone"))
    client.disconnect(session_expiry_interval=10)
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)
    watcher.expect_message("will", b"gone")
    assert "c" not in harness.broker.sessions


def test_disconnect_may_repeat_that_it_ends(harness: Harness) -> None:
    client = harness.connect("c")
    client.disconnect(session_expiry_interval=0)
    client.expect_closed()
    assert harness.metrics.protocol_errors == 0


def test_disconnect_cannot_exceed_what_is_configured(broker_harness: Make) -> None:
    harness = broker_harness(config={"session": {"max_expiry": 50.0}})
    client = harness.connect("c", session_expiry_interval=10)
    client.disconnect(session_expiry_interval=FOREVER)
    harness.advance(49)
    assert "c" in harness.broker.sessions
    harness.advance(2)
    assert "c" not in harness.broker.sessions


def test_disconnect_cannot_exceed_what_a_plugin_allows(broker_harness: Make) -> None:
    recorder = HookRecorder("on_connect")
    recorder.answer("on_connect", Accept(limits=Limits(session_expiry=50)))
    harness = broker_harness([recorder])
    client = harness.connect("c", session_expiry_interval=10)
    client.disconnect(session_expiry_interval=1000)
    harness.advance(49)
    assert "c" in harness.broker.sessions
    harness.advance(2)
    assert "c" not in harness.broker.sessions


def test_disconnect_of_who_was_granted_nothing(broker_harness: Make) -> None:
    # The broker granted 0, so the client does not violate the protocol.
    harness = broker_harness(config={"session": {"max_expiry": 0.0}})
    client = harness.connect("c", session_expiry_interval=10)
    client.disconnect(session_expiry_interval=20)
    client.expect_closed()
    assert harness.metrics.protocol_errors == 0
    assert not harness.broker.sessions


def test_disconnect_for_ever(broker_harness: Make) -> None:
    harness = broker_harness(config={"session": {"max_expiry": 1e12}})
    client = harness.connect("c", session_expiry_interval=10)
    client.disconnect(session_expiry_interval=FOREVER)
    assert harness.broker.sessions["c"].expiry == inf


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_messages_wait(harness: Harness) -> None:
    client = harness.connect("c", session_expiry_interval=100)
    client.subscribe("a", 2)
    client.drop()
    other = harness.connect("d")
    other.publish("a", b"0", 0)
    other.publish("a", b"1", 1, expect=0)
    other.publish("a", b"2", 2, expect=0)
    other.publish("a", b"3", 1, expect=0)
    client.reconnect()
    # The order of each QoS is kept [MQTT-4.6.0-6]; a QoS 2 message waits for its packet id to be on record.
    came = [(message.payload, message.qos) for message in client.messages]
    assert sorted(came) == [(b"1", 1), (b"2", 2), (b"3", 1)]
    assert came.index((b"1", 1)) < came.index((b"3", 1))
    assert not any(message.dup for message in client.messages)
    assert harness.metrics.dropped == {("offline_qos0", "out"): 1}


@pytest.mark.parametrize("version", [4, 5])
def test_unfinished_deliveries_are_sent_again(harness: Harness, version: int) -> None:
    # Edge case 43 [MQTT-4.4.0-1] [MQTT311-4.4.0-1]: the same ids, DUP, the original order, PUBREL after PUBREC
    expiry = {"session_expiry_interval": 100} if version == 5 else {}
    client = harness.connect("c", version, False, auto_ack=False, properties=expiry)
    client.subscribe("a", 2)
    other = harness.connect("d")
    for payload, qos in ((b"1", 1), (b"2", 2), (b"3", 2), (b"4", 1)):
        other.publish("a", payload, qos, expect=0)
    first = [client.expect_message() for _ in range(4)]
    client.send(Pubrec(first[1].packet_id))
    assert client.expect(Pubrel).packet_id == first[1].packet_id
    client.drop()
    other.publish("a", b"5", 1, expect=0)
    client.reconnect()
    again = [client.next() for _ in range(5)]
    assert [type(packet) for packet in again] == [Publish, Pubrel, Publish, Publish, Publish]
    assert [getattr(packet, "packet_id", 0) for packet in again[:4]] == [
        packet.packet_id for packet in first
    ]
    assert [p.payload for p in again if isinstance(p, Publish)] == [b"1", b"3", b"4", b"5"]
    assert [p.dup for p in again if isinstance(p, Publish)] == [True, True, True, False]
    client.send(Puback(first[0].packet_id), Pubcomp(first[1].packet_id))
    client.send(Pubrec(first[2].packet_id), Puback(first[3].packet_id))
    client.expect(Pubrel)
    client.send(Pubcomp(first[2].packet_id))
    client.drop()
    client.reconnect()
    message = client.expect_message("a", b"5", dup=True)
    client.ack(message)
    client.drop()
    client.reconnect()
    client.expect_nothing()


def test_acknowledged_messages_are_not_sent_again(harness: Harness) -> None:
    client = harness.connect("c", session_expiry_interval=100)
    client.subscribe("a", 2)
    other = harness.connect("d")
    for qos in (1, 2):
        other.publish("a", b"x", qos, expect=0)
        client.expect_message()
    client.drop()
    client.reconnect()
    client.expect_nothing()


def test_a_nacked_delivery_is_not_sent_again(harness: Harness) -> None:
    # Edge case 40
    client = harness.connect("c", session_expiry_interval=100, auto_ack=False)
    client.subscribe("a", 2)
    harness.connect("d").publish("a", b"x", 2, expect=0)
    client.ack(client.expect_message(), 0x80)
    client.expect_nothing()
    client.drop()
    client.reconnect()
    client.expect_nothing()


def test_qos_2_publishes_go_on_where_they_were(harness: Harness) -> None:
    # [MQTT-4.3.3-10]: exactly once across connections
    watcher = harness.connect("watcher")
    watcher.subscribe("a", 2)
    client = harness.connect("c", session_expiry_interval=100, auto_ack=False)
    client.publish("a", b"once", 2, packet_id=7)
    client.expect(Pubrec)
    client.drop()
    client.reconnect()
    client.publish("a", b"once", 2, packet_id=7, dup=True)
    assert client.expect(Pubrec).code == 0
    client.send(Pubrel(7))
    assert client.expect(Pubcomp).code == 0
    watcher.expect_message("a", b"once")
    client.publish("a", b"twice", 2, packet_id=7)
    client.expect(Pubrec)
    watcher.expect_message("a", b"twice")
    client.drop()
    client.reconnect()
    client.send(Pubrel(7))
    assert client.expect(Pubcomp).code == 0
    client.send(Pubrel(7))
    assert client.expect(Pubcomp).code == ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
    watcher.expect_nothing()


def test_unfinished_publishes_of_an_ended_session_are_new(harness: Harness) -> None:
    watcher = harness.connect("watcher")
    watcher.subscribe("a", 2)
    client = harness.connect("c", auto_ack=False)
    client.publish("a", b"1", 2, packet_id=7)
    watcher.expect_message("a", b"1")
    client.drop()
    client.reconnect()
    client.publish("a", b"1", 2, packet_id=7, dup=True)
    watcher.expect_message("a", b"1")


def test_subscriptions_and_options_stay(harness: Harness) -> None:
    client = harness.connect("c", session_expiry_interval=100)
    client.subscribe("a/#", 1, identifier=7, no_local=True, retain_as_published=True)
    client.subscribe("b", 2)
    client.unsubscribe("b")
    client.drop()
    client.reconnect()
    client.publish("a/b", b"mine", 1, expect=0)
    client.expect_nothing()
    harness.connect("d").publish("a/b", b"x", 1, retain=True)
    message = client.expect_message("a/b", b"x", 1, retain=True)
    assert message.properties.subscription_identifier == (7,)


def test_a_right_that_was_lost_meanwhile(broker_harness: Make) -> None:
    recorder = HookRecorder("authorize")
    harness = broker_harness([recorder])
    client = harness.connect("c", session_expiry_interval=100)
    client.subscribe("a", 1)
    client.drop()
    client.reconnect()
    client.expect_nothing()
    client.drop()
    recorder.answer("authorize", Deny())
    client.reconnect()
    client.expect_disconnect(ReasonCode.NOT_AUTHORIZED)
    assert not harness.broker.sessions["c"].subscriptions


# --- durability ---------------------------------------------------------------------------------------------------------


def test_connack_waits_for_the_commit(broker_harness: Make) -> None:
    store = SlowStore()
    harness = broker_harness(store=store)
    client = harness.connect("c", session_expiry_interval=100, expect=None)
    client.publish("a", qos=1)
    client.expect_nothing()
    [record] = store.records(PutSession)
    assert isinstance(record, PutSession)
    assert record.session.client_id == "c"
    store.finish()
    assert client.next() == client.connack
    assert client.expect(Puback).code == ReasonCode.NO_MATCHING_SUBSCRIBERS
    store.slow = False


def test_a_session_that_ends_with_its_connection_waits_for_nothing(broker_harness: Make) -> None:
    store = SlowStore()
    harness = broker_harness(store=store)
    client = harness.connect("c")
    client.subscribe("a", 2)
    client.publish("a", b"x", 2, expect=0)
    client.expect_message("a", b"x")
    client.drop()
    assert store.records() == []


def test_the_end_of_a_session_is_on_record_before_the_next_begins(broker_harness: Make) -> None:
    store = SlowStore(slow=False)
    harness = broker_harness(store=store)
    client = harness.connect("c", session_expiry_interval=100)
    client.drop()
    store.slow = True
    client.reconnect(clean_start=True, session_expiry_interval=None, expect=None)
    client.expect_nothing()
    assert isinstance(store.records()[-1], DropSession)
    store.finish()
    assert client.connack is None
    harness.settle()
    assert client.connack is not None
    store.slow = False


def test_nothing_is_acknowledged_after_a_failed_commit(broker_harness: Make) -> None:
    store = SlowStore()
    harness = broker_harness(store=store)
    told: list[str] = []
    harness.broker.on_failure = told.append
    client = harness.connect("c", session_expiry_interval=100, expect=None)
    store.fail("disk on fire")
    assert client.connack is None
    assert len(told) == 1
    assert "disk on fire" in told[0]
    harness.connect("d", expect=ReasonCode.SERVER_UNAVAILABLE)


def test_a_crash(broker_harness: Make) -> None:
    store = DurableStore()
    harness = broker_harness(store=store)
    client = harness.connect("c", session_expiry_interval=100, auto_ack=False)
    client.subscribe("a/#", 2, identifier=7)
    other = harness.connect("d")
    other.publish("a/1", b"1", 1, expect=0)
    other.publish("a/2", b"2", 2, expect=0)
    other.publish("keep", b"kept", 1, retain=True)
    first, second = client.expect_message(), client.expect_message()
    client.send(Pubrec(second.packet_id))
    client.expect(Pubrel)
    client.publish("b", b"once", 2, packet_id=9)
    client.expect(Pubrec)
    harness.restart()
    other.reconnect()
    assert not other.session_present
    other.subscribe("keep")
    other.expect_message("keep", b"kept", retain=True)
    other.publish("a/3", b"3", 1, expect=0)
    other.subscribe("b", 2)
    client.reconnect()
    assert client.session_present
    again = client.expect_message("a/1", b"1", 1, dup=True)
    assert again.packet_id == first.packet_id
    assert again.properties.subscription_identifier == (7,)
    assert client.expect(Pubrel).packet_id == second.packet_id
    client.expect_message("a/3", b"3", 1, dup=False)
    client.publish("b", b"once", 2, packet_id=9, dup=True)
    assert client.expect(Pubrec).code == 0
    other.expect_nothing()


def test_expiry_across_a_crash(broker_harness: Make) -> None:
    harness = broker_harness(store=DurableStore())
    harness.connect("away", session_expiry_interval=100).drop()
    harness.connect("there", session_expiry_interval=100)
    harness.advance(60)
    harness.restart()
    assert set(harness.broker.sessions) == {"away", "there"}
    harness.advance(41)
    assert set(harness.broker.sessions) == {"there"}
    harness.advance(60)
    assert not harness.broker.sessions
    harness.restart()
    assert not harness.broker.sessions


def test_expiry_of_a_resumed_session_counts_from_the_restart(broker_harness: Make) -> None:
    harness = broker_harness(store=DurableStore())
    client = harness.connect("c", session_expiry_interval=100)
    client.drop()
    harness.advance(60)
    client.reconnect()
    harness.advance(60)
    harness.restart()
    harness.advance(60)
    client.reconnect()
    assert client.session_present


def test_a_journal_recovers_with_its_store(broker_harness: Make) -> None:
    journal = RecordingJournal()
    harness = broker_harness(store=DurableStore("s"), journals=[journal])
    harness.connect("c").publish("a", b"x", 1, expect=0)
    harness.restart()
    assert [commit.number for commit in journal.recovered] == [0, 1]
    assert journal.topics == ["a"]


# --- notifications ----------------------------------------------------------------------------------------------------


def test_observers_are_told(broker_harness: Make) -> None:
    recorder = HookRecorder("on_session", "on_disconnect")
    harness = broker_harness([recorder])
    client = harness.connect("c", session_expiry_interval=10)
    client.disconnect()
    client.reconnect()
    client.drop("cable")
    harness.advance(11)
    client.reconnect()
    client.reconnect(clean_start=True, session_expiry_interval=None)
    client.drop()
    harness.settle()
    assert [call.event for call in recorder.calls("on_session")] == [
        SessionEvent.CREATED,
        SessionEvent.RESUMED,
        SessionEvent.EXPIRED,
        SessionEvent.CREATED,
        SessionEvent.ENDED,
        SessionEvent.CREATED,
        SessionEvent.ENDED,
    ]
    reasons = [call.reason for call in recorder.calls("on_disconnect")]
    assert [reason.by for reason in reasons[:2]] == ["client", "network"]
    assert reasons[1].error == "cable"
    metrics = harness.metrics
    assert (metrics.sessions_created, metrics.sessions_resumed, metrics.sessions_expired) == (
        3,
        1,
        1,
    )
