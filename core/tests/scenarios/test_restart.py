"""Test that a broker that starts from another broker's store keeps its guarantees, and accounts for the time in
between.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.mqtt.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel
from hookmq.mqtt.properties import Properties
from hookmq.storage import group_commit as committer
from hookmq.storage.records import Queued, Record
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore, will

Make = Callable[..., Harness]


@pytest.fixture
def store() -> DurableStore:
    return DurableStore()


@pytest.fixture
def harness(broker_harness: Make, store: DurableStore) -> Harness:
    return broker_harness(store=store)


def durable(harness: Harness, name: str, expiry: int = 600, **options: Any) -> MemoryClient:
    return harness.connect(name, session_expiry_interval=expiry, **options)


def empty(store: DurableStore) -> bool:
    """Return whether the store contains no messages."""
    return not (store.queues or store.messages or store.received)


# --- sessions and time --------------------------------------------------------------------------------------------------


def test_expiry_counts_from_the_disconnect_and_not_from_the_restart(
    harness: Harness, store: DurableStore
) -> None:
    client = durable(harness, "one", 100)
    client.disconnect()
    harness.advance(60)
    harness.restart()
    harness.advance(39)
    assert "one" in harness.broker.sessions
    harness.advance(2)
    assert "one" not in harness.broker.sessions
    assert "one" not in store.sessions
    assert not client.reconnect().session_present


def test_expiry_of_who_was_connected_counts_from_the_restart(harness: Harness) -> None:
    durable(harness, "one", 100)
    harness.advance(500)
    harness.restart()
    harness.advance(99)
    assert "one" in harness.broker.sessions
    harness.advance(2)
    assert "one" not in harness.broker.sessions


def test_restarts_do_not_prolong_a_session(harness: Harness) -> None:
    durable(harness, "one", 100)
    harness.restart()
    harness.advance(60)
    harness.restart()
    harness.advance(60)
    assert "one" not in harness.broker.sessions


def test_messages_and_sessions_that_expired_while_the_broker_was_down_are_gone(
    broker_harness: Make, harness: Harness, store: DurableStore
) -> None:
    client = durable(harness, "one", 100)
    client.subscribe("#", 1)
    client.disconnect()
    durable(harness, "never", 0xFFFFFFFF).disconnect()
    later = broker_harness(store=store, start=False)
    later.clock.advance(1000)
    later.start()
    later.settle()
    assert set(later.broker.sessions) == {"never"}
    assert set(store.sessions) == {"never"}
    assert not later.connect("one", clean_start=False).session_present


# --- subscriptions ------------------------------------------------------------------------------------------------------


# --- messages -----------------------------------------------------------------------------------------------------------


def test_an_offline_queue_is_read_in_pages(broker_harness: Make, store: DurableStore) -> None:
    config = {"session": {"queue_page": 2, "max_inflight": 3}}
    harness = broker_harness(store=store, config=config)
    client = durable(harness, "one")
    client.subscribe("t/#", 2)
    client.disconnect()
    pub = harness.connect("pub")
    for number in range(7):
        pub.publish(f"t/{number}", b"%d" % number, number % 2 + 1, user_property=(("k", "v"),))
    assert len(store.messages) == 7
    harness.restart()
    session = harness.broker.sessions["one"]
    assert (session.queued, session.stored) == (7, 7)
    harness.connect("pub").publish("t/7", b"7", 1)
    client.reconnect()
    got = [(message.qos, message.payload) for message in client.messages]
    # Each QoS is in order [MQTT-4.6.0-6]. Only QoS 2 messages wait for their records.
    assert [payload for qos, payload in got if qos == 1] == [b"0", b"2", b"4", b"6", b"7"]
    assert [payload for qos, payload in got if qos == 2] == [b"1", b"3", b"5"]
    assert client.messages[0].properties.user_property == (("k", "v"),)
    assert not any(message.dup for message in client.messages)
    assert (session.queued, session.queued_bytes) == (0, 0)
    assert harness.broker.state.queued_bytes == 0
    assert empty(store)


def test_a_queue_that_outlives_two_restarts_goes_on_in_order(
    broker_harness: Make, store: DurableStore
) -> None:
    config = {"session": {"queue_page": 2, "max_inflight": 2}}
    harness = broker_harness(store=store, config=config)
    client = durable(harness, "one", auto_ack=False)
    client.subscribe("t", 1)
    pub = harness.connect("pub")
    for number in range(6):
        pub.publish("t", b"%d" % number, 1)
    assert [message.payload for message in client.messages] == [b"0", b"1"]
    client.ack(client.messages[0])  # 2 follows
    harness.restart()
    harness.restart()
    pub.reconnect().publish("t", b"6", 1)
    client.received.clear()
    client.reconnect(auto_ack=True)
    assert [(m.payload, m.dup) for m in client.messages] == [
        (b"1", True), (b"2", True), (b"3", False), (b"4", False), (b"5", False), (b"6", False),
    ]  # fmt: skip
    assert empty(store)


def test_messages_in_flight_keep_their_packet_ids_after_a_restart(
    harness: Harness, store: DurableStore
) -> None:
    client = durable(harness, "one", auto_ack=False)
    client.subscribe("t/#", 2)
    pub = harness.connect("pub")
    pub.publish("t/1", b"one", 1)
    pub.publish("t/2", b"two", 2)
    pub.publish("t/3", b"three", 2)
    ids = [message.packet_id for message in client.messages]
    client.ack(client.messages[2])
    client.expect(Pubrel)
    harness.restart()
    client.reconnect()
    first, second, third = client.next(), client.next(), client.next()  # CONNACK was expected
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert (first.packet_id, first.payload, first.qos, first.dup) == (ids[0], b"one", 1, True)
    assert (second.packet_id, second.payload, second.qos, second.dup) == (ids[1], b"two", 2, True)
    assert third == Pubrel(ids[2])  # [MQTT-4.3.3-6]
    harness.connect("pub").publish("t/4", b"four", 1)
    fourth = client.expect_message("t/4", dup=False)
    assert fourth.packet_id not in ids
    client.send(Puback(ids[0]), Puback(fourth.packet_id), Pubcomp(ids[2]))
    client.ack(second)
    client.expect(Pubrel)
    client.send(Pubcomp(ids[1]))
    assert empty(store)


def test_an_inbound_qos_2_id_is_known(harness: Harness, store: DurableStore) -> None:
    sub = durable(harness, "sub")
    sub.subscribe("t", 2)
    pub = durable(harness, "pub", auto_ack=False)
    number = pub.publish("t", b"x", 2)
    pub.expect(Pubrec)
    harness.restart()
    sub.reconnect()
    pub.reconnect()
    pub.publish("t", b"x", 2, dup=True, packet_id=number)
    assert pub.expect(Pubrec) == Pubrec(number)
    pub.send(Pubrel(number))
    assert pub.expect(Pubcomp) == Pubcomp(number)
    assert len(sub.messages) == 1
    pub.publish("t", b"y", 2, packet_id=number)  # the id is free again
    assert [message.payload for message in sub.messages] == [b"x", b"y"]


def test_a_message_expires_at_its_time_and_not_later(harness: Harness, store: DurableStore) -> None:
    sub = durable(harness, "sub")
    sub.subscribe("t", 1)
    sub.disconnect()
    pub = harness.connect("pub")
    pub.publish("t", b"short", 1, message_expiry_interval=50)
    pub.publish("t", b"long", 1, message_expiry_interval=500)
    harness.advance(30)
    harness.restart()
    harness.advance(30)
    sub.reconnect()
    message = sub.expect_message("t", b"long")
    assert message.properties.message_expiry_interval == 440
    sub.expect_nothing()
    assert empty(store)


def test_retained_messages_are_back(harness: Harness) -> None:
    pub = harness.connect("pub")
    pub.publish("r/1", b"one", 1, retain=True, content_type="text", message_expiry_interval=100)
    pub.publish("r/2", b"old", 2, retain=True)
    pub.publish("r/2", b"two", 2, retain=True)
    pub.publish("r/3", b"three", 0, retain=True)
    pub.publish("r/3", b"", 0, retain=True)
    harness.advance(40)
    before = harness.broker.state.retained_bytes
    harness.restart()
    core = harness.broker.state
    assert core.retained_bytes == before
    assert sum(kept.size for _, kept in core.retained.match("#")) == 16
    client = harness.connect("one")
    client.subscribe("r/#", 2)
    got = {message.topic: message for message in client.messages}
    assert set(got) == {"r/1", "r/2"}
    assert (got["r/1"].payload, got["r/1"].qos, got["r/1"].retain) == (b"one", 1, True)
    assert got["r/1"].properties == Properties(content_type="text", message_expiry_interval=60)
    assert (got["r/2"].payload, got["r/2"].qos) == (b"two", 2)
    harness.advance(61)
    another = harness.connect("another")
    another.subscribe("r/#")
    assert [message.topic for message in another.messages] == ["r/2"]


def test_a_group_keeps_what_waits_for_it(harness: Harness, store: DurableStore) -> None:
    members = [durable(harness, name) for name in ("m1", "m2")]
    for member in members:
        member.subscribe("$share/g/t", 1)
        member.disconnect()
    pub = harness.connect("pub")
    for number in range(4):
        pub.publish("t", b"%d" % number, 1)
    harness.restart()
    harness.connect("pub").publish("t", b"4", 1)
    members[1].reconnect()
    assert [message.payload for message in members[1].messages] == [b"%d" % n for n in range(5)]
    members[0].reconnect()
    assert members[0].messages == []
    assert harness.broker.state.queued_bytes == 0
    assert empty(store)


def test_messages_in_flight_to_a_member_return_to_its_group_after_a_restart(
    harness: Harness, store: DurableStore
) -> None:
    first = durable(harness, "m1", auto_ack=False)
    first.subscribe("$share/g/t", 1)
    second = durable(harness, "m2")
    second.subscribe("$share/g/t", 1)
    second.disconnect()
    pub = harness.connect("pub")
    pub.publish("t", b"x", 1)
    first.expect_message("t", b"x")
    harness.restart()
    second.reconnect()
    # [MQTT-4.8.2-4]: its first receiver disconnected without acknowledging it.
    second.expect_message("t", b"x")
    first.reconnect(auto_ack=True)
    first.expect_nothing()
    assert empty(store)


class LateStore(DurableStore):
    """A store in which each read takes one turn of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Callable[[], None]] = []

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Callable[[list[Queued]], None],
    ) -> None:
        self.reads.append(lambda: super(LateStore, self).read(owner, after, 2, max_size, done))

    def answer(self, harness: Harness) -> None:
        """Complete all pending reads, including those that follow from them."""
        harness.settle()
        while self.reads:
            self.reads.pop(0)()
            harness.settle()


def test_a_store_may_take_its_time_to_read(broker_harness: Make) -> None:
    store = LateStore()
    harness = broker_harness(store=store)
    client = durable(harness, "one")
    client.subscribe("own", 1)
    member = durable(harness, "member")
    member.subscribe("$share/g/shared", 1)
    client.disconnect()
    member.disconnect()
    pub = harness.connect("pub")
    for number in range(5):
        pub.publish("own", b"%d" % number, 1)
        pub.publish("shared", b"%d" % number, 1)
    told: list[BaseException | None] = []
    for old in harness.clients:
        old.wire.closed = True
    harness.broker = Broker(harness.settings, harness.clock, harness.hooks, store)
    harness.broker.start(told.append)
    assert told == []  # it is not known yet how many messages wait for the groups
    store.answer(harness)
    assert told == [None]
    client.reconnect()
    member.reconnect()
    client.expect_nothing()
    store.answer(harness)
    everything = [b"%d" % number for number in range(5)]
    assert [message.payload for message in client.messages] == everything
    assert [message.payload for message in member.messages] == everything
    assert empty(store)


def test_a_client_that_returns_while_its_page_is_read_gets_it(broker_harness: Make) -> None:
    store = LateStore()
    harness = broker_harness(store=store, config={"session": {"queue_page": 2}})
    client = durable(harness, "one")
    client.subscribe("t", 1)
    client.disconnect()
    pub = harness.connect("pub")
    for number in range(5):
        pub.publish("t", b"%d" % number, 1)
    client.reconnect()
    assert store.reads
    client.reconnect()
    store.answer(harness)
    assert [message.payload for message in client.messages[-3:]] == [b"2", b"3", b"4"]
    assert empty(store)


# --- wills --------------------------------------------------------------------------------------------------------------


def test_a_will_that_waits_is_published_at_its_time(harness: Harness) -> None:
    given = will("bye", b"x", 1, retain=True, delay=50, content_type="text")
    durable(harness, "one", will=given).drop()
    harness.advance(30)
    harness.restart()
    watcher = harness.connect("watcher")
    watcher.subscribe("bye", 1)
    harness.advance(19)
    watcher.expect_nothing()
    harness.advance(2)
    message = watcher.expect_message("bye", b"x", 1)
    assert message.properties == Properties(content_type="text")
    watcher.expect_nothing()
    harness.restart()  # and never again
    harness.advance(1000)
    assert harness.metrics.wills_published == 0
    late = harness.connect("late")
    late.subscribe("bye")
    late.expect_message("bye", b"x", retain=True)


def test_a_will_whose_owner_returns_is_not_published(harness: Harness) -> None:
    client = durable(harness, "one", will=will("bye", delay=50))
    client.drop()
    harness.restart()
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    client.reconnect(will=None)
    harness.advance(100)
    watcher.expect_nothing()


def test_the_will_of_who_was_connected_counts_from_the_restart(harness: Harness) -> None:
    durable(harness, "one", will=will("bye", b"x", delay=50))
    harness.advance(500)
    harness.restart()
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    harness.advance(49)
    watcher.expect_nothing()
    harness.advance(2)
    watcher.expect_message("bye", b"x")


def test_restarts_do_not_put_a_will_off(harness: Harness) -> None:
    durable(harness, "one", will=will("bye", b"x", delay=50))
    harness.restart()
    harness.advance(30)
    harness.restart()
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    harness.advance(25)
    watcher.expect_message("bye", b"x")


def test_a_session_that_ends_publishes_its_will_first(harness: Harness) -> None:
    durable(harness, "one", 20, will=will("bye", b"x", delay=50)).drop()
    harness.restart()
    watcher = harness.connect("watcher")
    watcher.subscribe("bye")
    harness.advance(19)
    watcher.expect_nothing()
    harness.advance(2)
    watcher.expect_message("bye", b"x")
    assert "one" not in harness.broker.sessions


def test_a_will_that_is_not_decided_yet_survives_a_crash(
    broker_harness: Make, store: DurableStore
) -> None:
    recorder = HookRecorder("on_will")
    harness = broker_harness(plugins=[recorder], store=store)
    durable(harness, "one", will=will("bye", b"x", 1, delay=5)).drop()
    recorder.answer("on_will", harness.clock.event())
    watcher = durable(harness, "watcher")
    watcher.subscribe("bye", 1)
    harness.advance(5.5)
    assert len(recorder.calls("on_will")) == 1
    recorder.answer("on_will", None)
    harness.restart()
    harness.settle()
    watcher.reconnect()
    watcher.expect_message("bye", b"x")


@pytest.mark.parametrize("delay", [0, 50])
@pytest.mark.parametrize(("version", "clean"), [(3, True), (4, True), (5, True), (5, False)])
def test_the_will_of_a_session_that_ends_with_its_connection(
    harness: Harness, store: DurableStore, version: int, clean: bool, delay: int
) -> None:
    """[MQTT-3.1.2-7, 3.1.2-8] [MQTT311-3.1.2-8] If a clean session has a will, it is published after a restart, because
    the connection ended with the broker.
    """
    watcher = durable(harness, "watcher")
    watcher.subscribe("bye", 1)
    given = will("bye", b"x", 1, delay=delay) if version == 5 else will("bye", b"x", 1)
    client = harness.connect("one", version, clean_start=clean, will=given)
    client.subscribe("t", 1)
    harness.restart()
    watcher.reconnect()
    watcher.expect_message("bye", b"x", 1)
    assert set(store.sessions) == set(harness.broker.sessions) == {"watcher"}
    assert not client.reconnect().session_present
    harness.restart()
    watcher.reconnect()
    watcher.expect_message("bye", b"x", 1)  # the will of the next connection
    harness.restart()
    watcher.reconnect()
    watcher.expect_nothing()  # and never again


def test_only_what_has_a_will_is_recorded_of_it(harness: Harness, store: DurableStore) -> None:
    client = harness.connect("one", will=will("bye", b"x"))
    client.subscribe("t", 1)
    harness.connect("pub").publish("t", b"1", 1)
    harness.connect("plain")
    assert set(store.sessions) == {"one"}
    assert empty(store)
    assert not store.subscriptions
    client.disconnect()
    harness.settle()
    assert not store.sessions


def test_connack_waits_until_the_will_is_on_record(broker_harness: Make) -> None:
    store = SlowStore(DurableStore())
    harness = broker_harness(store=store)
    client = harness.connect("one", will=will("bye", b"x"), expect=None)
    client.expect_nothing()
    store.finish()
    assert client.expect(Connack).code == 0
    plain = harness.connect("two", expect=None)
    assert plain.expect(Connack).code == 0  # does not wait for the disk


@pytest.mark.parametrize(("expiry", "returns"), [(0, False), (0, True), (20, False)])
def test_a_will_that_nobody_decided_yet_outlives_its_session_and_a_crash(
    broker_harness: Make, store: DurableStore, expiry: int, returns: bool
) -> None:
    recorder = HookRecorder("on_will")
    harness = broker_harness(plugins=[recorder], store=store)
    watcher = durable(harness, "watcher")
    watcher.subscribe("bye", 1)
    recorder.answer("on_will", harness.clock.event())
    client = durable(harness, "one", expiry, will=will("bye", b"x", 1, delay=50))
    client.drop()
    harness.advance(expiry + 0.5)
    assert len(recorder.calls("on_will")) == 1
    recorder.answer("on_will", None)
    if returns:
        client.reconnect(will=None)
    harness.restart()
    watcher.reconnect()
    watcher.expect_message("bye", b"x")
    harness.restart()
    watcher.reconnect()
    watcher.expect_nothing()
    assert set(store.sessions) == {"watcher"}


# --- crashes ------------------------------------------------------------------------------------------------------------


class Publisher:
    """A client that keeps its unacknowledged messages and sends them again [MQTT-4.4.0-1]."""

    def __init__(self, client: MemoryClient, messages: list[tuple[bytes, int]]) -> None:
        self.client = client
        self.todo = list(messages)
        self.pending: dict[int, tuple[bytes, int, bool]] = {}

    def work(self) -> bool:
        busy = bool(self.client.unread)
        while self.client.unread:
            packet = self.client.next()
            if isinstance(packet, Puback | Pubcomp):
                self.pending.pop(packet.packet_id, None)
            elif isinstance(packet, Pubrec):
                payload, qos, _ = self.pending[packet.packet_id]
                self.pending[packet.packet_id] = (payload, qos, True)
                self.client.send(Pubrel(packet.packet_id))
        while self.todo and len(self.pending) < 2:
            payload, qos = self.todo.pop(0)
            number = self.client.publish("t", payload, qos)
            self.pending[number] = (payload, qos, False)
            busy = True
        return busy

    def resume(self) -> None:
        assert self.client.reconnect().session_present
        for number, (payload, qos, released) in self.pending.items():
            if released:
                self.client.send(Pubrel(number))
            else:
                self.client.publish("t", payload, qos, dup=True, packet_id=number)


class Subscriber:
    """A client that recognizes a repeated QoS 2 message by its packet id until it receives PUBREL."""

    def __init__(self, client: MemoryClient) -> None:
        self.client = client
        self.held: set[int] = set()
        self.got: list[bytes] = []

    def work(self) -> bool:
        busy = bool(self.client.unread)
        while self.client.unread:
            packet = self.client.next()
            if isinstance(packet, Publish) and packet.qos == 1:
                self.got.append(packet.payload)
                self.client.send(Puback(packet.packet_id))
            elif isinstance(packet, Publish):
                if packet.packet_id not in self.held:
                    self.held.add(packet.packet_id)
                    self.got.append(packet.payload)
                self.client.send(Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                self.held.discard(packet.packet_id)
                self.client.send(Pubcomp(packet.packet_id))
        return busy

    def resume(self) -> None:
        assert self.client.reconnect().session_present


MESSAGES = [(b"a", 1), (b"b", 2), (b"c", 2), (b"d", 1), (b"e", 2), (b"f", 1)]


def crash_and_resume(
    make: Make, crashes: list[int], late: bool, filters: list[str], config: dict[str, Any]
) -> tuple[list[Subscriber], list[tuple[Record, ...]], DurableStore]:
    """Run the exchange, and crash after each of the numbers of commits in `crashes`. Return the results.

    If `late`, packets that depend on these commits are still sent before the crash.
    """
    inner = DurableStore()
    store = SlowStore(inner, slow=False)
    harness = make(store=store, config=config)
    subscribers = []
    for number, filter in enumerate(filters):
        client = durable(harness, f"sub{number}", auto_ack=False)
        client.subscribe(filter, 2)
        subscribers.append(Subscriber(client))
    publisher = Publisher(durable(harness, "pub", auto_ack=False), MESSAGES)
    parts: list[Publisher | Subscriber] = [publisher, *subscribers]
    left = list(crashes)
    allowed = left.pop(0) if left else -1
    store.slow = True
    batches: list[tuple[Record, ...]] = []
    for _ in range(500):
        harness.settle()
        worked = [part.work() for part in parts]
        harness.settle()
        if store.committing is not None and allowed == 0:
            store = SlowStore(inner, slow=False)
            harness.restart(store=store)
            for part in parts:
                part.resume()
            allowed = left.pop(0) if left else -1
            store.slow = True
        elif store.committing is not None:
            batches.append(store.committing)
            store.finish(all=False)
            allowed -= 1
            if late or allowed:
                harness.settle()
        elif not any(worked):
            break
    assert publisher.pending == {}
    assert publisher.todo == []
    return subscribers, batches, inner


def check(subscribers: list[Subscriber], store: DurableStore) -> None:
    everything = [payload for subscriber in subscribers for payload in subscriber.got]
    for payload, qos in MESSAGES:
        if qos == 2:
            assert everything.count(payload) == 1, everything  # exactly once
        else:
            assert everything.count(payload) >= 1, everything  # at least once
    assert empty(store), (store.queues, store.received)


def count_commits(make: Make, **how: Any) -> int:
    subscribers, batches, store = crash_and_resume(make, [], True, **how)
    assert sum(len(subscriber.got) for subscriber in subscribers) == len(MESSAGES)
    check(subscribers, store)
    assert len(batches) > 5
    return len(batches)


PLAIN: dict[str, Any] = {"filters": ["t"], "config": {}}
NARROW: dict[str, Any] = {
    "filters": ["t"],
    "config": {"session": {"max_inflight": 1, "queue_page": 1}},
}
GROUP: dict[str, Any] = {"filters": ["$share/g/t", "$share/g/t"], "config": {}}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("how", [PLAIN, NARROW, GROUP], ids=["plain", "narrow", "group"])
def test_a_crash_at_every_commit_loses_and_repeats_nothing(
    broker_harness: Make, how: dict[str, Any], late: bool
) -> None:
    for crash in range(count_commits(broker_harness, **how)):
        subscribers, _, store = crash_and_resume(broker_harness, [crash], late, **how)
        check(subscribers, store)


@pytest.mark.parametrize("how", [PLAIN, NARROW, GROUP], ids=["plain", "narrow", "group"])
def test_two_crashes_lose_and_repeat_nothing(broker_harness: Make, how: dict[str, Any]) -> None:
    for first in range(0, count_commits(broker_harness, **how), 2):
        for second in range(4):
            subscribers, _, store = crash_and_resume(
                broker_harness, [first, second], bool(second % 2), **how
            )
            check(subscribers, store)


def test_a_crash_between_cut_batches_loses_and_repeats_nothing(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "MAX_RECORDS", 1)
    for crash in range(count_commits(broker_harness, **PLAIN)):
        subscribers, _, store = crash_and_resume(broker_harness, [crash], False, **PLAIN)
        check(subscribers, store)
