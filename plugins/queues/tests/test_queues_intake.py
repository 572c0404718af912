"""Test the publisher's options: idempotent publishing and delays. Bad properties are refused."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt_api import EMPTY, Properties, Puback, Publish
from hookmq.plugin import Message
from hookmq_queues.config import QueueConfig
from hookmq_queues.duplicates import Duplicates
from hookmq_queues.keys import shortened
from hookmq_queues.plugin import QueuesPlugin
from hookmq_queues.properties import checked, due_of, identity_of, names_of
from hookmq_testing import Harness, MemoryClient
from hypothesis import given
from hypothesis import strategies as st

Make = Callable[..., Harness]
JOBS = "$queue/jobs"
DEDUPE = {"name": "jobs", "dedupe_window": "60s"}


def plugin_of(harness: Harness) -> QueuesPlugin:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return instance.plugin


def results(harness: Harness, queue: str = "jobs") -> dict[str, int]:
    found = plugin_of(harness).queues[queue].results
    return {name: count for name, count in found.items() if count}


def payloads(client: MemoryClient) -> list[bytes]:
    client.harness.settle()
    found = [one.payload for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


Pair = tuple[str, str]


def publish(
    client: MemoryClient, payload: bytes, *pairs: Pair, topic: str = JOBS, **more: Any
) -> None:
    client.publish(topic, payload, 1, user_property=pairs, **more)


def refused(client: MemoryClient, *pairs: Pair) -> tuple[int, str | None]:
    """Publish a message that is refused. Return the reason code and text."""
    client.publish(JOBS, b"refused", 1, user_property=pairs)
    answer = client.expect(Puback)
    return int(answer.code), answer.properties.reason_string


def drain(harness: Harness, name: str = "drain", filter: str = JOBS) -> list[bytes]:
    consumer = harness.connect(name)
    consumer.subscribe(filter, 1)
    found = payloads(consumer)
    consumer.drop()
    harness.settle()
    return found


# --- properties ------------------------------------------------------------------------------------------------------


def message(*pairs: tuple[str, str], sender: str | None = "p", origin: str = "client") -> Message:
    properties = Properties(user_property=pairs) if pairs else EMPTY
    return Message(JOBS, b"", 1, False, properties, sender, origin)


BAD = [
    ([("delay", "soon")], "delay: expected seconds such as 90 or 1.5, found 'soon'"),
    ([("delay", "-1")], "delay: expected seconds such as 90 or 1.5, found '-1'"),
    ([("delay", "")], "delay: expected seconds such as 90 or 1.5, found ''"),
    ([("delay", "nan")], "delay: expected seconds such as 90 or 1.5, found 'nan'"),
    ([("delay", "1e3")], "delay: expected seconds such as 90 or 1.5, found '1e3'"),
    ([("delay", "9" * 50)], f"delay: expected seconds such as 90 or 1.5, found '{'9' * 40}...'"),
    ([("delay", "3601")], "delay: the queue jobs delays messages by at most 3600 s"),
    ([("deliver-at", "tomorrow")], "deliver-at: expected epoch seconds such as 90 or 1.5, found 'tomorrow'"),
    ([("deliver-at", "9999999999")], "deliver-at: the queue jobs delays messages by at most 3600 s"),
    ([("delay", "1"), ("deliver-at", "1")], "a message has delay or deliver-at, not both"),
    ([("delay", "1"), ("delay", "1")], "the user property delay is given more than once"),
    ([("message-id", "")], "message-id: expected 1 to 256 characters, found 0"),
    ([("message-id", "x" * 257)], "message-id: expected 1 to 256 characters, found 257"),
    ([("message-id", "a"), ("message-id", "b")], "the user property message-id is given more than once"),
]  # fmt: skip


@pytest.mark.parametrize(("pairs", "problem"), BAD)
def test_bad_properties_are_refused(make: Make, pairs: list[tuple[str, str]], problem: str) -> None:
    harness = make(queues=[{**DEDUPE, "bindings": ["in/#"], "max_delay": "1h"}])
    publisher = harness.connect("p")
    assert refused(publisher, *pairs) == (0x99, problem)
    assert results(harness) == {}
    # On a captured message, the properties are those of other people.
    publish(publisher, b"other", *pairs, topic="in/1")
    assert drain(harness) == [b"other"]


NAMES = ["delay", "deliver-at", "priority", "message-id", "x"]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.text(max_size=8))))
def test_any_text_is_refused_or_understood(pairs: list[tuple[str, str]]) -> None:
    config = QueueConfig("jobs", dedupe_window=1.0)
    made = message(*pairs)
    found = checked(made, names_of(config), config, 1000.0)
    if isinstance(found, str):
        assert any(name in found for name in ("delay", "deliver-at", "message-id"))
        return
    due = due_of(found)
    assert due is None or 1000 < due <= 1000 + config.max_delay
    assert [one for one in found.user_property if one[0] == "x"] == [one for one in pairs if one[0] == "x"]  # fmt: skip


def test_a_queue_without_delays_refuses_them(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "max_delay": 0}])
    why = "delay: the queue jobs does not accept delayed messages"
    assert refused(harness.connect("p"), ("delay", "1")) == (0x99, why)


def test_what_a_queue_does_not_use_is_an_ordinary_property(make: Make) -> None:
    harness = make()
    publisher, consumer = harness.connect("p"), harness.connect("c")
    consumer.subscribe(JOBS, 1)
    for _ in range(2):
        publish(publisher, b"", ("message-id", ""), ("priority", "high"))
        pairs = consumer.expect_message(JOBS).properties.user_property or ()
        assert ("priority", "high") in pairs


# --- idempotent publishing -------------------------------------------------------------------------------------------


def test_a_duplicate_is_acknowledged_and_not_stored(make: Make) -> None:
    harness = make(queues=[DEDUPE])
    publisher = harness.connect("p")
    for _ in range(3):
        publish(publisher, b"1", ("message-id", "one"), expect=0)
    publish(publisher, b"2", ("message-id", "two"), expect=0)
    publish(publisher, b"3", expect=0)
    assert drain(harness) == [b"1", b"2", b"3"]
    assert results(harness)["duplicate"] == 2
    harness.advance(59)
    publish(publisher, b"again", ("message-id", "one"))
    harness.advance(2)
    publish(publisher, b"late", ("message-id", "one"))
    assert drain(harness) == [b"late"]


@pytest.mark.parametrize(("scope", "stored"), [("client", [b"p", b"q"]), ("queue", [b"p"])])
def test_whose_duplicates_count(make: Make, scope: str, stored: list[bytes]) -> None:
    """By default, a message is a duplicate only if the same client published the first one. A client that guesses
    another client's ids therefore cannot suppress that client's messages.
    """
    harness = make(queues=[{**DEDUPE, "dedupe_scope": scope}])
    for name in ("p", "q"):
        publish(harness.connect(name), name.encode(), ("message-id", "1"))
    assert drain(harness) == stored


def test_a_duplicate_is_acknowledged_after_the_commit(make: Any) -> None:
    harness = make(queues=[DEDUPE])
    publisher = harness.connect("p")
    commit, done = make.store.commit, []
    make.store.commit = lambda records, ready: done.append((records, ready))
    for packet_id in (1, 2):
        publisher.send(
            Publish(JOBS, b"1", 1, False, False, packet_id, Properties(user_property=(("message-id", "1"),)))
        )  # fmt: skip
        harness.settle()
    publisher.expect_nothing()
    make.store.commit = commit
    for records, ready in done:
        commit(records, ready)
    harness.settle()
    assert [one.packet_id for one in publisher.unread] == [1, 2]
    assert results(harness) == {"accepted": 1, "duplicate": 1}


@pytest.mark.parametrize("how", ["stop", "crash"])
@pytest.mark.parametrize("settled", [True, False])
def test_duplicates_are_known_after_a_restart(make: Any, how: str, settled: bool) -> None:
    """Duplicates are recognized after a restart, even if all messages were settled and their
    segments could be deleted.
    """
    queues = [{**DEDUPE, "max_bytes": "64KiB"}]  # the smallest segments
    harness = make(queues=queues)
    publisher = harness.connect("p")
    publish(publisher, b"first", ("message-id", "first"))
    consumer = harness.connect("c")
    if settled:
        consumer.subscribe(JOBS, 1)
        for number in range(6):
            publish(publisher, bytes(30_000), ("message-id", f"{number}"))
        assert len(payloads(consumer)) == 7
    harness.advance(30)
    if how == "stop":
        harness.close()
        make.made.remove(harness)
    else:
        make.crash(harness)
    harness = make(queues=queues)
    publisher = harness.connect("p")
    publish(publisher, b"again", ("message-id", "first"))
    assert drain(harness) == ([] if settled else [b"first"])
    assert results(harness)["duplicate"] == 1
    harness.advance(61)  # the clock of the new broker starts where that of the first one did
    publish(publisher, b"new", ("message-id", "first"))
    assert drain(harness) == [b"new"]
    assert plugin_of(harness).queues["jobs"].log.earliest == (7 if settled else 0)


def test_the_number_of_ids_is_bounded() -> None:
    duplicates = Duplicates(100.0, 3)
    for number in range(5):
        duplicates.add(str(number), float(number), number)
    assert [duplicates.has(str(number), 5.0) for number in range(5)] == [False, False, True, True, True]  # fmt: skip
    assert (duplicates.forgotten, len(duplicates), duplicates.floor(5.0)) == (2, 3, 2)
    assert duplicates.floor(103.5) == 4
    assert duplicates.floor(104.0) is None
    assert len(duplicates) == 0


def test_a_message_that_a_full_queue_drops_may_come_again(make: Make) -> None:
    harness = make(queues=[{**DEDUPE, "max_messages": 1, "on_full": "drop_newest"}])
    publisher = harness.connect("p")
    publish(publisher, b"1", ("message-id", "1"))
    publish(publisher, b"2", ("message-id", "2"))
    assert drain(harness) == [b"1"]
    publish(publisher, b"2", ("message-id", "2"))
    assert drain(harness) == [b"2"]


def test_a_dead_letter_is_no_duplicate(make: Make) -> None:
    """A dead letter keeps its publisher's properties, but the dead-letter queue ignores them."""
    queues = [
        {**DEDUPE, "delivery_limit": 1, "dead_letter": "dead"},
        {"name": "dead", "dedupe_window": "60s"},
    ]
    harness = make(queues=queues)
    publisher = harness.connect("p")
    publish(publisher, b"dead", ("message-id", "1"), topic="$queue/dead")
    publish(publisher, b"job", ("message-id", "1"))
    consumer = harness.connect("c", auto_ack=False)
    consumer.subscribe(JOBS, 1)
    harness.settle()
    consumer.drop()
    harness.settle()
    assert drain(harness, filter="$queue/dead") == [b"dead", b"job"]


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_different_messages_have_different_identities(
    a: str, b: str, first: str, second: str
) -> None:
    def identity(sender: str, id: str) -> str | None:
        return identity_of(message(("message-id", id), sender=sender), "client")

    # Neither client ids nor user properties contain the null character [MQTT-1.5.4-2].
    a, b, first, second = (one.replace("\0", "") for one in (a, b, first, second))
    if first and second:
        assert (identity(a, first) == identity(b, second)) == ((a, first) == (b, second))
    assert len(shortened(a + b)) <= 64


# --- delays ----------------------------------------------------------------------------------------------------------


def test_a_delayed_message_comes_when_it_is_due(make: Make) -> None:
    harness = make()
    publisher, consumer = harness.connect("p"), harness.connect("c")
    consumer.subscribe(JOBS, 1)
    publish(publisher, b"later", ("delay", "10"), ("mine", "1"), expect=0)
    publish(publisher, b"at", ("deliver-at", f"{harness.handle('queues').time() + 5:.3f}"))
    publish(publisher, b"now", ("delay", "0"))
    publish(publisher, b"past", ("deliver-at", "1"))
    assert payloads(consumer) == [b"now", b"past"]
    harness.advance(4.5)
    assert payloads(consumer) == []
    harness.advance(1)
    assert payloads(consumer) == [b"at"]
    harness.advance(4)
    assert payloads(consumer) == []
    harness.advance(1)
    found = consumer.expect_message(JOBS, b"later")
    assert ("mine", "1") in (found.properties.user_property or ())
    assert dict(found.properties.user_property or ())["delivery-count"] == "1"
    assert results(harness) == {"accepted": 4, "delayed": 2, "delivered": 4, "acknowledged": 4}
    assert plugin_of(harness).queues["jobs"].delayed == 0


def test_delayed_messages_come_in_the_order_of_their_time_to_all_groups(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "groups": ["a", "b"]}])
    publisher = harness.connect("p")
    for delay in (30, 10, 20, 10):
        publish(publisher, b"%d" % delay, ("delay", str(delay)))
    harness.advance(40)
    for group in ("a", "b"):
        assert drain(harness, group, f"$share/{group}/$queue/jobs") == [b"10", b"10", b"20", b"30"]


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_delayed_messages_survive_a_restart(make: Any, how: str) -> None:
    queues = [DEDUPE, {"name": "other"}]
    harness = make(queues=queues)
    publisher = harness.connect("p")
    for delay in (30, 10, 20):
        publish(publisher, b"%d" % delay, ("delay", str(delay)), ("message-id", str(delay)))
    publish(publisher, b"other", ("delay", "15"), topic="$queue/other")
    harness.advance(11)
    assert results(harness) == {"delayed": 3, "accepted": 1}
    if how == "stop":
        harness.close()
        make.made.remove(harness)
    else:
        make.crash(harness)
    harness = make(queues=queues)
    assert plugin_of(harness).queues["jobs"].delayed == 2
    publisher = harness.connect("p")
    for delay in (30, 10, 20):  # duplicates, whether they have been due or not
        publish(publisher, b"%d" % delay, ("delay", str(delay)), ("message-id", str(delay)))
    harness.advance(30)
    assert drain(harness) == [b"10", b"20", b"30"]
    assert drain(harness, filter="$queue/other") == [b"other"]
    assert results(harness)["duplicate"] == 3


def test_delayed_messages_of_a_removed_queue_do_not_return_with_its_name(make: Any) -> None:
    jobs, other = {"name": "jobs"}, {"name": "other"}
    harness = make(queues=[jobs, other])
    publisher = harness.connect("p")
    publish(publisher, b"old", ("delay", "100"))
    publish(publisher, b"other", ("delay", "100"), topic="$queue/other")
    for queues in ([other], [jobs, other]):
        harness.close()
        make.made.remove(harness)
        shutil.rmtree(make.path / "jobs", ignore_errors=True)
        harness = make(queues=queues)
    publish(harness.connect("p"), b"new", ("delay", "100"))
    harness.advance(101)
    assert drain(harness) == [b"new"]
    assert drain(harness, filter="$queue/other") == [b"other"]


def test_new_delayed_messages_survive_after_their_log_was_lost(make: Any) -> None:
    harness = make(queues=[DEDUPE])
    for _ in range(5):
        publish(harness.connect("p"), b"old", ("delay", "100"))
    delays = plugin_of(harness).queues["jobs"].intake.delays
    assert delays is not None
    assert delays.clear() == 5
    harness.close()
    make.made.remove(harness)
    shutil.rmtree(make.path / ".delayed")
    harness = make(queues=[DEDUPE])
    publish(harness.connect("p"), b"new", ("delay", "100"))
    make.crash(harness)
    harness = make(queues=[DEDUPE])
    harness.advance(101)
    assert drain(harness) == [b"new"]


def test_a_crash_neither_loses_nor_doubles_a_message_that_is_due(make: Any) -> None:
    """Crash the broker before or after the commit that moves the message."""
    harness = make()
    publish(harness.connect("p"), b"1", ("delay", "10"))
    commit = make.store.commit
    make.store.commit = lambda records, done: None
    harness.advance(11)
    assert results(harness) == {"delayed": 1, "accepted": 1}
    make.crash(harness)
    make.store.commit = commit
    harness = make()
    assert plugin_of(harness).queues["jobs"].delayed == 1
    harness.advance(11)
    assert plugin_of(harness).queues["jobs"].delayed == 0
    make.crash(harness)
    harness = make()
    assert plugin_of(harness).queues["jobs"].delayed == 0
    assert drain(harness) == [b"1"]


def test_the_number_of_delayed_messages_is_bounded(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "max_delayed": 2}])
    publisher = harness.connect("p")
    for _ in range(2):
        publish(publisher, b"", ("delay", "10"), expect=0)
    why = "the queue jobs has no room for another delayed message"
    assert refused(publisher, ("delay", "10")) == (0x97, why)
    publish(publisher, b"", expect=0)
    harness.advance(11)
    publish(publisher, b"", ("delay", "10"), expect=0)


def test_a_delayed_message_waits_for_room(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "max_messages": 1}])
    publisher = harness.connect("p")
    for payload in (b"1", b"2"):
        publish(publisher, payload, ("delay", "10"))
    harness.advance(20)
    assert drain(harness) == [b"1"]
    harness.advance(1.1)
    assert drain(harness) == [b"2"]


def test_the_times_of_a_delayed_message(make: Make) -> None:
    """`message_ttl` starts when the message is due. The publisher's expiry starts when the message is published."""
    harness = make(queues=[{"name": "jobs", "message_ttl": "5s"}])
    publisher = harness.connect("p")
    publish(publisher, b"own", ("delay", "10"), message_expiry_interval=8)
    publish(publisher, b"good", ("delay", "10"))
    harness.advance(12)
    assert drain(harness) == [b"good"]


def test_a_clock_that_is_set_back(make: Any) -> None:
    """After the clock is set back, a new message still comes after those that have already moved. This also holds after
    a restart.
    """
    harness = make()
    publisher = harness.connect("p")
    publish(publisher, b"1", ("delay", "10"))
    harness.advance(11)
    clock = harness.handle("queues").time()
    delays = plugin_of(harness).queues["jobs"].intake.delays
    assert delays is not None
    early = message(("deliver-at", f"{clock - 5:.3f}"))
    delays.add(early.replace(payload=b"2"), clock - 5)
    harness.settle()
    make.crash(harness)
    harness = make()
    harness.advance(12)
    assert drain(harness) == [b"1", b"2"]


def test_empty_segments_of_delayed_messages_are_deleted(make: Any) -> None:
    harness = make()
    log = plugin_of(harness)._delayed
    assert log is not None
    log.log.segment_size = 1 << 16
    publisher = harness.connect("p")
    for number in range(20):
        publish(publisher, bytes(30_000), ("delay", str(1000 if number == 10 else 10)))
    assert len(log.log.segments) >= 6
    commit, held = make.store.commit, []
    make.store.commit = lambda records, done: held.append((records, done))
    harness.advance(11)
    assert plugin_of(harness).queues["jobs"].delayed == 1
    assert log.log.segments[0].base == 0  # not before the commit that moves the messages
    make.store.commit = commit
    for one in held:
        commit(*one)
    harness.settle()
    assert [log.log.segments[0].base <= 10 < log.log.segments[0].end, log.get(0)] == [True, None]
    make.crash(harness)
    harness = make()
    assert plugin_of(harness).queues["jobs"].delayed == 1
    harness.advance(1001)
    assert len(drain(harness)) == 20


@pytest.mark.parametrize("crash", ["before", "between", "after"])
def test_a_message_with_a_long_delay_does_not_keep_the_others_on_disk(
    make: Any, crash: str
) -> None:
    """The message with the long delay is added again at the end of the log. The broker crashes before that commit,
    after it, or after the old segment is deleted.
    """
    queues = [{"name": "jobs"}, {"name": "other"}]
    harness = make(queues=queues)
    log = plugin_of(harness)._delayed
    assert log is not None
    log.log.segment_size = 1 << 16
    publisher = harness.connect("p")
    for number in range(30):
        delay, topic = ("1000", "$queue/other") if number == 1 else ("10", JOBS)
        publish(publisher, bytes(30_000), ("delay", delay), topic=topic)
    commit = make.store.commit
    if crash == "before":
        count = iter(range(10))
        make.store.commit = lambda records, done: commit(records, done) if next(count) < 1 else None
    if crash == "between":
        log.log.trim = lambda offset: 0  # type: ignore[method-assign]
    harness.advance(11)
    if crash == "after":
        assert log.log.segments[0].base >= 20
        assert log.log.size < 400_000
    else:
        assert log.log.segments[0].base == 0
    assert plugin_of(harness).queues["other"].delayed == 1
    make.crash(harness)
    make.store.commit = commit
    harness = make(queues=queues)
    assert plugin_of(harness).queues["other"].delayed == 1
    harness.advance(990)
    assert len(drain(harness)) == 29
    assert drain(harness, filter="$queue/other") == []
    harness.advance(15)
    assert len(drain(harness, filter="$queue/other")) == 1
    assert len(drain(harness)) == 0
