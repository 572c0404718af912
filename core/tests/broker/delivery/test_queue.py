"""Test a queue that is longer than a page: its limits, and a store whose pages are late, unreadable or not committed
yet.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.model.errors import StoreError
from hookmq.mqtt.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrel,
)
from hookmq.storage.memory_store import MemoryStore
from hookmq.storage.protocols import Paged, StoreFailed
from hookmq.storage.records import Queued
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore

Make = Callable[..., Harness]
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100_000}


class LateStore(MemoryStore):
    """A store that completes `read` only when the test asks it to."""

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.late = False
        self.reads: list[Callable[[], None]] = []

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Callable[[list[Queued]], None],
    ) -> None:
        def read() -> None:
            super(LateStore, self).read(owner, after, max_count, max_size, done)

        if self.late:
            self.reads.append(read)
        else:
            read()

    def finish(self) -> None:
        reads, self.reads = self.reads, []
        for read in reads:
            read()


def payloads(client: MemoryClient) -> list[bytes]:
    """Remove the unread messages and return their payloads."""
    client.harness.settle()
    found = [p.payload for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return found


def test_a_client_that_returns_while_a_page_is_read_to_make_room_gets_its_queue(
    broker_harness: Make,
) -> None:
    """A client that reconnects gets its queue, even if the broker is reading a page to make room for a new message."""
    store = LateStore()
    session = {"queue_page": 1, "queue_messages": 3, "queue_drop": "oldest"}
    harness = broker_harness(store=store, config={"session": session})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    pub = harness.connect("p")
    for number in range(3):
        pub.publish("t", b"%d" % number, 1, expect=0)
    store.late = True
    pub.publish("t", b"3", 1, expect=0)
    assert len(store.reads) == 1
    client.reconnect()
    assert payloads(client) == []
    assert len(store.reads) == 1
    got = []
    for _ in range(3):
        store.finish()
        got += payloads(client)
    assert got == [b"1", b"2", b"3"]
    store.finish()
    assert store.reads == []


def test_nothing_is_read_where_nothing_is_stored(broker_harness: Make) -> None:
    store = LateStore()
    harness = broker_harness(store=store, config={"session": {"queue_page": 2}})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    harness.connect("p").publish("t", b"x", 1, expect=0)
    store.late = True
    client.reconnect()
    assert payloads(client) == [b"x"]
    assert store.reads == []


def test_entries_still_being_committed_are_read_after_the_commit(broker_harness: Make) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(store=store, config={"session": {"queue_page": 1}})
    client = harness.connect("c", auto_ack=False, receive_maximum=1, **KEPT)
    client.subscribe("t", 1)
    pub = harness.connect("p")
    pub.publish("t", b"0", 1, expect=0)
    pub.publish("t", b"1", 1, expect=0)
    store.slow = True
    pub.publish("t", b"2", 1)
    for number in (b"0", b"1"):
        (message,) = [p for p in client.unread if isinstance(p, Publish)]
        assert message.payload == number
        client.unread.clear()
        client.ack(message)
        harness.settle()
    assert payloads(client) == []
    store.slow = False
    store.finish()
    assert payloads(client) == [b"2"]
    pub.expect(Puback)


def test_a_session_that_ends_with_its_connection_keeps_all_in_memory(broker_harness: Make) -> None:
    harness = broker_harness(config={"session": {"queue_page": 1}})
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe("t", 1)
    pub = harness.connect("p")
    for number in range(4):
        pub.publish("t", b"%d" % number, 1, expect=0)
    session = harness.broker.sessions["c"]
    assert (session.queued, session.stored) == (3, 0)
    seen = []
    for _ in range(4):
        message = client.next()
        assert isinstance(message, Publish)
        seen.append(message.payload)
        client.ack(message)
    assert seen == [b"0", b"1", b"2", b"3"]


def test_messages_read_from_the_store_have_their_current_subscription(broker_harness: Make) -> None:
    recorder = HookRecorder("on_deliver")
    config = {"session": {"queue_page": 1}}
    harness = broker_harness(plugins=[recorder], store=DurableStore(), config=config)
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1, identifier=7)
    client.drop()
    pub = harness.connect("p")
    for number in range(3):
        pub.publish("t", b"%d" % number, 1, expect=0)
    client.reconnect()
    assert len(payloads(client)) == 3
    found = [call.arguments["subscription"].identifier for call in recorder.calls("on_deliver")]
    assert found == [7, 7, 7]


def test_a_full_queue_makes_room_in_itself(broker_harness: Make) -> None:
    """A full queue drops one of its own messages to make room. QoS 0 messages waiting for the slow client are not
    dropped.
    """
    session = {"queue_messages": 2, "queue_drop": "oldest"}
    harness = broker_harness(config={"session": session})
    client = harness.connect("c", auto_ack=False, receive_maximum=1, high_water=1, **KEPT)
    client.subscribe("t", 1)
    pub = harness.connect("p")
    client.pause()
    pub.publish("t", b"in flight", 1, expect=0)
    pub.publish("t", b"zero", 0)
    for number in range(3):
        pub.publish("t", b"%d" % number, 1, expect=0)
    state = harness.broker.sessions["c"]
    assert [d.outgoing.message.payload for d in state.queue or ()] == [b"1", b"2"]
    assert [d.outgoing.message.payload for d in state.queue_qos0 or ()] == [b"zero"]
    assert state.queued == 2
    core = harness.broker.state
    assert core.queued_bytes == state.queued_bytes
    client.drop()
    assert core.queued_bytes == state.queued_bytes


def test_backpressure_ends_when_the_waiting_message_is_dropped(broker_harness: Make) -> None:
    """Back-pressure ends when the message that causes it is dropped, because its delivery will never start."""
    session = {"inflight_overflow": "backpressure", "queue_messages": 1}
    harness = broker_harness(config={"session": session})
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe("t", 1)
    one, two, three = (harness.connect(name) for name in ("one", "two", "three"))
    one.publish("t", b"1", 1, expect=0)
    two.publish("t", b"2", 1)
    two.expect_nothing()
    three.publish("t", b"3", 1, expect=0)


def test_ends_of_sessions_are_forgotten_when_they_are_on_record(broker_harness: Make) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(store=store)
    client = harness.connect("c", **KEPT)
    store.slow = True
    for _ in range(2):
        client.reconnect(expect=None, clean_start=True)
    ending = harness.broker.state.ending
    assert ending == {"c": 2}
    store.slow = False
    store.finish()
    harness.settle()
    assert ending == {}


def test_qos_0_overtakes_what_waits_for_a_group(broker_harness: Make) -> None:
    """A QoS 0 message overtakes a message that is waiting for a shared subscription, because QoS 0 needs no room in the
    window.
    """
    harness = broker_harness()
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe("$share/g/t", 1)
    pub = harness.connect("p")
    for payload in (b"1", b"2"):
        pub.publish("t", payload, 1, expect=0)
    assert payloads(client) == [b"1"]
    pub.publish("t", b"zero", 0)
    assert payloads(client) == [b"zero"]


def test_the_least_code_that_refuses(broker_harness: Make) -> None:
    """[MQTT-4.8.2-6] A message is refused by any reason code from 0x80 upwards."""
    harness = broker_harness()
    client = harness.connect("c", auto_ack=False, **KEPT)
    client.subscribe("t", 1)
    harness.connect("p").publish("t", b"x", 1, expect=0)
    client.ack(client.messages[0], 0x80)
    harness.settle()
    assert harness.metrics.dropped == {("refused", "out"): 1}


def test_queues_and_packet_ids_are_not_recorded_in_a_store_in_memory(broker_harness: Make) -> None:
    """With an in-memory store, queued and in-flight messages exist only in the session. The store keeps no copy of
    them.
    """
    harness = broker_harness(config={"session": {"queue_page": 1}})
    client = harness.connect("c", auto_ack=False, receive_maximum=2, **KEPT)
    client.subscribe("t", 2)
    shared = harness.connect("s", **KEPT)
    shared.subscribe("$share/g/t", 1)
    shared.drop()
    pub = harness.connect("p", **KEPT)
    records = harness.broker.state.committer.added
    for number in range(6):
        pub.publish("t", b"%d" % number, 1 + number % 2)
    session = harness.broker.sessions["c"]
    assert (session.queued, session.stored, len(session.queue or ())) == (4, 0, 4)
    client.drop()
    client.reconnect(auto_ack=True)
    assert [m.payload for m in client.messages[2:]] == [b"%d" % number for number in range(6)]
    shared.reconnect()
    assert [m.payload for m in shared.messages] == [b"%d" % number for number in range(6)]
    assert (session.queued, session.queued_bytes, session.inflight) == (0, 0, {})
    # Only three records were added, when the sessions disconnected and reconnected. An in-memory store gets these too.
    assert harness.broker.state.committer.added - records == 3


def numbers(*which: int) -> list[bytes]:
    return [b"%d" % n for n in which]


def send(harness: Harness, which: range, qos: int = 1, topic: str = "t", name: str = "p") -> None:
    """Publish numbers and wait for each acknowledgement."""
    publisher = next((c for c in harness.clients if c.connect.client_id == name), None)
    if publisher is None:
        publisher = harness.connect(name)
    for number in which:
        publisher.publish(topic, b"%d" % number, qos, expect=0 if qos else None)


def nothing_left(harness: Harness, name: str = "c") -> bool:
    session = harness.broker.sessions[name]
    return (
        session.inflight == {}
        and (session.queued, session.stored, session.queued_bytes) == (0, 0, 0)
        and harness.broker.state.queued_bytes == 0
    )


@pytest.mark.parametrize("window", [1, 3, 1000])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("page", [1, 2, 7])
def test_a_long_queue_is_read_page_by_page(
    broker_harness: Make, page: int, qos: int, window: int
) -> None:
    """[MQTT-4.5.0-1, 4.6.0-5] All messages of a long queue arrive in order. At most one page is in memory at a time,
    even while new messages are queued.
    """
    harness = broker_harness(store=DurableStore(), config={"session": {"queue_page": page}})
    client = harness.connect("c", receive_maximum=window, **KEPT)
    client.subscribe("t", qos)
    client.drop()
    send(harness, range(50), qos)
    session = harness.broker.sessions["c"]
    assert session.queue is not None
    assert len(session.queue) == page
    assert session.stored == 50 - page
    client.reconnect(auto_ack=False)
    publisher = harness.clients[-1]
    seen = []
    number = 50
    for _ in range(400):
        found = [p for p in list(client.unread) if isinstance(p, Publish | Pubrel)]
        client.unread.clear()
        if not found:
            break
        assert len(session.queue or ()) <= page
        for packet in found:
            if isinstance(packet, Publish):
                seen.append(packet.payload)
                client.ack(packet)
            else:
                client.send(Pubcomp(packet.packet_id))
        if number < 60:
            publisher.publish("t", b"%d" % number, qos)
            number += 1
    assert seen == numbers(*range(60))
    assert nothing_left(harness)
    assert harness.metrics.dropped == {}


@pytest.mark.parametrize("page", [1, 3])
def test_interrupted_between_pages(broker_harness: Make, page: int) -> None:
    """A client that disconnects and reconnects while its queue is being read receives every message once. Only
    unacknowledged messages are repeated.
    """
    harness = broker_harness(store=DurableStore(), config={"session": {"queue_page": page}})
    client = harness.connect("c", auto_ack=False, receive_maximum=2, **KEPT)
    client.subscribe("t", 1)
    client.drop()
    send(harness, range(20))
    seen: list[bytes] = []
    for round_ in range(30):
        client.received.clear()
        client.reconnect()
        again = [m for m in client.messages if m.dup]
        assert [m.payload for m in again] == seen[len(seen) - len(again) :]
        if client.messages:
            client.ack(client.messages[0])
        seen += [m.payload for m in client.messages if not m.dup]
        if round_ == 10:
            send(harness, range(20, 25))
    assert seen == numbers(*range(25))


def test_a_page_that_comes_late(broker_harness: Make) -> None:
    """A page may arrive after its client has disconnected, or after it has disconnected and reconnected."""
    store = LateStore()
    harness = broker_harness(store=store, config={"session": {"queue_page": 2}})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    send(harness, range(9))
    store.late = True
    client.reconnect()
    assert payloads(client) == numbers(0, 1)
    client.drop()
    send(harness, range(9, 10))
    store.finish()  # the client is offline
    client.reconnect()
    assert payloads(client) == numbers(2, 3)
    assert len(store.reads) == 1
    client.reconnect()
    assert len(store.reads) == 1
    store.finish()  # the client has disconnected and returned
    assert payloads(client) == numbers(4, 5)
    client.drop()
    client.reconnect(clean_start=True)
    store.finish()  # by now, the client has another session
    assert payloads(client) == []
    assert harness.broker.state.queued_bytes == 0


def test_live_messages_while_a_page_is_read(broker_harness: Make) -> None:
    """[MQTT-4.6.0-5] Live messages wait until the page has been read and sent."""
    store = LateStore()
    harness = broker_harness(store=store, config={"session": {"queue_page": 2}})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    send(harness, range(5))
    store.late = True
    client.reconnect()
    send(harness, range(5, 8))
    assert payloads(client) == numbers(0, 1)
    for _ in range(5):
        store.finish()
    assert payloads(client) == numbers(2, 3, 4, 5, 6, 7)
    assert nothing_left(harness)


@pytest.mark.parametrize("page", [1, 2, None])
@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("bound", ["queue_messages", "queue_bytes", "max_queue_bytes"])
@pytest.mark.parametrize("policy", ["newest", "oldest", "disconnect"])
def test_bounds(
    broker_harness: Make, policy: str, bound: str, online: bool, page: int | None
) -> None:
    """The limits on messages, on bytes, and on the total bytes of all queues apply both in memory and in the store.

    Each drop is counted under its reason. The publisher is acknowledged even if a copy of its message is dropped.
    """
    size = 4 if bound == "queue_messages" else 4 * len("t0")
    session: dict[str, Any] = {"queue_drop": policy, "queue_page": page or 256}
    config = {"session": session, "broker": {}}
    config["broker" if bound == "max_queue_bytes" else "session"][bound] = size
    harness = broker_harness(store=DurableStore() if page else None, config=config)
    client = harness.connect("c", auto_ack=False, receive_maximum=1, **KEPT)
    client.subscribe("t", 1)
    if online:
        send(harness, range(1))
        assert payloads(client) == numbers(0)
    else:
        client.drop()
        send(harness, range(1))
    waiting = 4 - (not online)
    send(harness, range(1, 8))
    lost = 7 - waiting
    reason = "queue_full" if bound == "queue_messages" else "queue_bytes"
    if policy == "disconnect" and online:
        client.expect_disconnect(0x97)
    assert harness.metrics.dropped[reason, "out"] == lost
    assert harness.broker.state.queued_bytes == 4 * len("t0")
    client.received.clear()
    client.reconnect(auto_ack=True)
    kept = range(0, 5) if online else range(0, 4)
    if policy == "oldest":
        kept = range(4, 8)
    expected = numbers(*kept)
    if online and policy == "oldest":
        expected = numbers(0, *kept)
    assert [m.payload for m in client.messages] == expected
    assert sum(harness.metrics.dropped.values()) == lost
    assert nothing_left(harness)


def test_one_too_large_for_the_queue(broker_harness: Make) -> None:
    """With the `oldest` policy, a message that is too large for the queue displaces all earlier messages and is then
    dropped too.
    """
    harness = broker_harness(config={"session": {"queue_bytes": 20, "queue_drop": "oldest"}})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    send(harness, range(3))
    harness.clients[-1].publish("t", b"x" * 100, 1, expect=0)
    send(harness, range(3, 4))
    client.reconnect()
    found = payloads(client)
    assert found[-1] == b"3"
    assert b"x" * 100 not in found
    assert sum(harness.metrics.dropped.values()) == 4 - (len(found) - 1)
    assert nothing_left(harness)


def test_bytes_of_all_together(broker_harness: Make) -> None:
    """One client's queue may use room that other queues do not need. Ending the client's session frees that room."""
    harness = broker_harness(config={"broker": {"max_queue_bytes": 10}})
    greedy = harness.connect("greedy", **KEPT)
    modest = harness.connect("modest", **KEPT)
    greedy.subscribe("g", 1)
    modest.subscribe("m", 1)
    greedy.drop()
    modest.drop()
    send(harness, range(5), topic="g")
    send(harness, range(2), topic="m")
    assert harness.metrics.dropped == {("queue_bytes", "out"): 2}
    greedy.reconnect(clean_start=True)
    assert harness.broker.state.queued_bytes == 0
    send(harness, range(2), topic="m")
    modest.reconnect()
    assert payloads(modest) == numbers(0, 1)


def test_queues_of_clients_without_a_session_to_return_to(harness: Harness) -> None:
    """If a session ends with its connection, nothing of its queue remains."""
    client = harness.connect("c", 4, auto_ack=False, high_water=10)
    client.subscribe("t", 1)
    client.pause()
    for qos in (0, 1):
        send(harness, range(300, 600), qos)
    assert harness.broker.state.queued_bytes > 0
    client.resume()
    client.drop()
    assert harness.broker.state.queued_bytes == 0
    assert "c" not in harness.broker.sessions


class Unreadable(DurableStore):
    """A store whose reads fail once `ill` is set, either at once or when the test calls `answer`."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.ill = False
        self.late = late
        self.waiting: list[Paged] = []

    def read(  # type: ignore[override]  # its reads may fail
        self, owner: str, after: int, max_count: int, max_size: int, done: Paged
    ) -> None:
        if not self.ill:
            super().read(owner, after, max_count, max_size, done)
        elif self.late:
            self.waiting.append(done)
        else:
            done(StoreFailed("a bit flipped"))

    def answer(self) -> None:
        for done in self.waiting:
            done(StoreFailed("a bit flipped"))


@pytest.mark.parametrize("late", [False, True])
def test_a_page_that_cannot_be_read_ends_the_broker(broker_harness: Make, late: bool) -> None:
    store = Unreadable(late)
    harness = broker_harness(store=store)
    client = harness.connect("one", session_expiry_interval=60)
    client.subscribe("t", 1)
    client.disconnect()
    harness.connect("pub").publish("t", b"x", 1, expect=0)
    harness.restart()
    store.ill = True
    failures: list[str] = []
    harness.broker.on_failure = failures.append
    client.reconnect()
    store.answer()
    client.expect_nothing()
    assert failures == ["a bit flipped"]
    harness.connect("other", expect=0x88, session_expiry_interval=60)
    assert len(store.queues["c/one"]) == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_group_that_cannot_be_read_forbids_to_start(broker_harness: Make, late: bool) -> None:
    store = Unreadable(late)
    harness = broker_harness(store=store)
    member = harness.connect("one", session_expiry_interval=60)
    member.subscribe("$share/g/t", 1)
    member.disconnect()
    harness.connect("pub").publish("t", b"x", 1, expect=0)
    store.ill = True
    told: list[BaseException | None] = []
    Broker(harness.settings, harness.clock, harness.hooks, store).start(told.append)
    store.answer()
    [error] = told
    assert isinstance(error, StoreError)
    assert "a bit flipped" in str(error)
