"""A queue longer than a page, over a store that answers late or has not committed yet: nothing is lost on the way, and
nobody is forgotten. And what has room, or is refused, where others wait.
"""

from collections.abc import Callable
from typing import Any

from hookmq.codec import Puback, Publish
from hookmq.store import MemoryStore, Queued
from hookmq.testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore

Make = Callable[..., Harness]
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100_000}


class Late(MemoryStore):
    """Answers `read` when the test says so."""

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
            super(Late, self).read(owner, after, max_count, max_size, done)

        if self.late:
            self.reads.append(read)
        else:
            read()

    def finish(self) -> None:
        reads, self.reads = self.reads, []
        for read in reads:
            read()


def payloads(client: MemoryClient) -> list[bytes]:
    """The payloads of the unread messages, taken."""
    client.harness.settle()
    found = [p.payload for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return found


def test_who_has_room_while_a_page_is_read_for_another_reason(broker_harness: Make) -> None:
    """The queue made room for a new message, and reads on; meanwhile its client comes back."""
    store = Late()
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
    store = Late()
    harness = broker_harness(store=store, config={"session": {"queue_page": 2}})
    client = harness.connect("c", **KEPT)
    client.subscribe("t", 1)
    client.drop()
    harness.connect("p").publish("t", b"x", 1, expect=0)
    store.late = True
    client.reconnect()
    assert payloads(client) == [b"x"]
    assert store.reads == []


def test_what_is_still_being_committed_is_looked_for_again(broker_harness: Make) -> None:
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


def test_what_was_read_belongs_to_the_subscription_as_it_is(broker_harness: Make) -> None:
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
    """Not among the QoS 0 messages that wait for the slow client as well."""
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
    core = harness.broker.core
    assert core.queued_bytes == state.queued_bytes
    client.drop()
    assert core.queued_bytes == state.queued_bytes


def test_who_waits_for_room_is_let_go_when_the_queue_takes_no_more(broker_harness: Make) -> None:
    """Back-pressure: a message that is dropped will never start."""
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
    ending = harness.broker.core.ending
    assert ending == {"c": 2}
    store.slow = False
    store.finish()
    harness.settle()
    assert ending == {}


def test_qos_0_overtakes_what_waits_for_a_group(broker_harness: Make) -> None:
    """It needs no room in a window, and waits for nobody."""
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
    """[MQTT-4.8.2-6]: 0x80 itself is one."""
    harness = broker_harness()
    client = harness.connect("c", auto_ack=False, **KEPT)
    client.subscribe("t", 1)
    harness.connect("p").publish("t", b"x", 1, expect=0)
    client.ack(client.messages[0], 0x80)
    harness.settle()
    assert harness.metrics.dropped == {("refused", "out"): 1}


def test_where_nothing_outlives_the_process_nothing_is_recorded(broker_harness: Make) -> None:
    """What waits, or is in flight, is held once: by the session, in no second copy by the store."""
    harness = broker_harness(config={"session": {"queue_page": 1}})
    client = harness.connect("c", auto_ack=False, receive_maximum=2, **KEPT)
    client.subscribe("t", 2)
    shared = harness.connect("s", **KEPT)
    shared.subscribe("$share/g/t", 1)
    shared.drop()
    pub = harness.connect("p", **KEPT)
    records = harness.broker.core.committer.added
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
    # Two sessions left a connection and came back, and the store in memory is told so, as any other.
    assert harness.broker.core.committer.added - records == 3
