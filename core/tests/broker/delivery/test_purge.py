"""Test that a plugin can empty a client's queue, in memory and in the store, one slice per turn."""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hookmq.broker.delivery.purge import SLICE
from hookmq.model.events import Direction, DropReason
from hookmq.storage.records import Dequeue
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore

Make = Callable[..., Harness]


@pytest.fixture
def mine() -> HookRecorder:
    return HookRecorder("on_event", id="mine")


class Told:
    """Records the result of an awaitable."""

    def __init__(self, harness: Harness, awaitable: Awaitable[Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        harness.clock.spawn(awaitable, self._told)

    def _told(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error


class LateReads(DurableStore):
    """A store that completes reads only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Callable[[], None]] = []
        self.late = False

    def read(
        self, owner: str, after: int, max_count: int, max_size: int, done: Callable[..., None]
    ) -> None:
        read = super().read
        if self.late:
            self.reads.append(lambda: read(owner, after, max_count, max_size, done))
        else:
            read(owner, after, max_count, max_size, done)

    def answer(self, harness: Harness) -> int:
        """Complete all pending reads, including those that follow from them. Return the number of reads."""
        count = 0
        while self.reads:
            self.reads.pop(0)()
            harness.settle()
            count += 1
        return count


def queue(harness: Harness, count: int, qos: int = 1) -> MemoryClient:
    """Return an offline client with `count` messages in its queue."""
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe("t", 2)
    one.disconnect()
    pub = harness.connect("pub")
    for number in range(count):
        pub.publish("t", b"%d" % number, qos)
    return one


@pytest.mark.parametrize("page", [1, 7, 1000])
@pytest.mark.parametrize("late", [True, False])
def test_purge_queue(broker_harness: Make, mine: HookRecorder, page: int, late: bool) -> None:
    other = HookRecorder("on_dropped", "on_event", id="other")
    store = LateReads()
    settings = {"session": {"queue_page": page}}
    harness = broker_harness(plugins=[mine, other], store=store, config=settings)
    one = queue(harness, 20)
    state = harness.broker.state
    session = state.sessions["one"]
    store.late = late
    told = Told(harness, harness.handle("mine").purge_queue("one"))
    harness.settle()
    harness.connect("pub2").publish("t", b"new", 1)  # arrives after the call
    reads = store.answer(harness)
    assert bool(reads) == (late and page < 20)
    assert (told.done, told.result) == (True, 20)
    assert harness.logged("broker.queue_purged") == [
        {"plugin": "mine", "client_id": "one", "messages": 20}
    ]
    (event,) = other.calls("on_event")
    assert (event.event, event.plugin, dict(event.fields)) == (
        "broker.queue_purged", "mine", {"messages": 20}
    )  # fmt: skip
    assert event.client is session.client
    dropped = other.calls("on_dropped")
    assert [call.message.payload for call in dropped] == [b"%d" % number for number in range(20)]
    assert {(c.why.reason, c.why.direction, c.why.detail, c.client.client_id) for c in dropped} == {
        (DropReason.PLUGIN, Direction.OUT, "mine", "one")
    }
    assert harness.metrics.dropped[DropReason.PLUGIN, Direction.OUT] == 20
    assert (session.queued, session.paused) == (1, 0)
    assert sum(len(entries) for entries in store.queues.values()) == 1
    store.late = False
    one.reconnect()
    one.expect_message("t", b"new")
    one.expect_nothing()
    harness.settle()
    assert (state.queued_bytes, state.loaded_bytes, session.stored) == (0, 0, 0)
    assert not store.queues


def test_purging_a_long_queue_takes_turns(broker_harness: Make, mine: HookRecorder) -> None:
    harness = broker_harness(plugins=[mine])
    queue(harness, 1000)
    told = Told(harness, harness.handle("mine").purge_queue("one"))
    lengths = []
    while not told.done:
        harness.clock.turn()
        lengths.append(harness.broker.sessions["one"].queued)
    assert told.result == 1000
    steps = [before - after for before, after in itertools.pairwise([1000, *lengths])]
    assert max(steps) <= SLICE
    assert lengths[-1] == 0


def test_purging_while_online_leaves_what_is_in_flight(
    broker_harness: Make, mine: HookRecorder
) -> None:
    harness = broker_harness(plugins=[mine])
    one = harness.connect("one", properties={"receive_maximum": 2}, auto_ack=False)
    one.subscribe("t", 1)
    pub = harness.connect("pub")
    for number in range(5):
        pub.publish("t", b"%d" % number, 1)
    assert harness.clock.run(harness.handle("mine").purge_queue("one")) == 3
    for payload in (b"0", b"1"):
        one.ack(one.expect_message("t", payload))
    pub.publish("t", b"next", 1)
    one.expect_message("t", b"next")  # the session is no longer paused


def test_purging_the_qos_0_messages_of_a_slow_client(
    broker_harness: Make, mine: HookRecorder
) -> None:
    harness = broker_harness(plugins=[mine])
    one = harness.connect("one")
    one.subscribe("t")
    one.pause()
    harness.broker.sessions["one"].connection.pause_writing()  # type: ignore[union-attr]
    pub = harness.connect("pub")
    for _ in range(3):
        pub.publish("t", b"x")
    assert harness.clock.run(harness.handle("mine").purge_queue("one")) == 3
    harness.broker.sessions["one"].connection.resume_writing()  # type: ignore[union-attr]
    one.resume()
    one.expect_nothing()
    assert harness.broker.state.queued_bytes == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_what_arrives_between_two_slices_is_kept(
    broker_harness: Make, mine: HookRecorder, qos: int
) -> None:
    """Messages that arrive between two slices are kept. The QoS 1 queue exists only in memory here, and QoS 0 messages
    have a separate queue.
    """
    harness = broker_harness(plugins=[mine])
    one = harness.connect("one", properties={"receive_maximum": 1}, auto_ack=False)
    one.subscribe("t", qos)
    session = harness.broker.sessions["one"]
    connection = session.connection
    assert connection is not None
    pub = harness.connect("pub")
    if qos:
        pub.publish("t", b"in flight", 1)
    else:
        connection.pause_writing()  # type: ignore[attr-defined]
    with harness.together():
        for _ in range(3 * SLICE):
            pub.publish("t", b"old", qos, expect=None)
    told = Told(harness, harness.handle("mine").purge_queue("one"))
    while len(session.queue or session.queue_qos0 or ()) > 2 * SLICE:
        harness.clock.turn()
    assert not told.done
    with harness.together():
        for _ in range(20):
            pub.publish("t", b"new", qos, expect=None)
    assert told.result == 3 * SLICE
    assert len(session.queue or session.queue_qos0 or ()) == 20
    assert session.queued == (20 if qos else 0)
    assert harness.broker.state.loaded_bytes == 20 * 4 * qos
    assert session.queued_bytes == harness.broker.state.queued_bytes == 20 * 4


def test_what_arrives_during_two_purges_is_kept(broker_harness: Make, mine: HookRecorder) -> None:
    """Messages that arrive during two purges are kept. Each purge counts all messages at its start, although the other
    purge then drops some of them.
    """
    store = LateReads()
    harness = broker_harness(plugins=[mine], store=store, config={"session": {"queue_page": 2}})
    one = queue(harness, 7)
    store.late = True
    broker = harness.handle("mine")
    told = [Told(harness, broker.purge_queue("one")) for _ in range(2)]
    harness.settle()
    pub = harness.connect("pub2")
    for _ in range(5):
        pub.publish("t", b"new", 1)
    store.answer(harness)
    assert sum(one.result for one in told) == 7
    store.late = False
    one.reconnect()
    for _ in range(5):
        one.expect_message("t", b"new")
    one.expect_nothing()


def test_the_result_arrives_after_the_commit(broker_harness: Make, mine: HookRecorder) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness(plugins=[mine], store=store)
    queue(harness, 3)
    store.slow = True
    told = Told(harness, harness.handle("mine").purge_queue("one"))
    harness.settle()
    assert not harness.broker.sessions["one"].queued
    assert not told.done
    assert store.committing is not None
    assert {type(record) for record in store.committing} == {Dequeue}
    store.finish()
    harness.settle()
    assert told.result == 3


@pytest.mark.parametrize("twice", [True, False])
def test_a_session_that_ends_during_its_purge(
    broker_harness: Make, mine: HookRecorder, twice: bool
) -> None:
    store = LateReads()
    harness = broker_harness(plugins=[mine], store=store, config={"session": {"queue_page": 2}})
    queue(harness, 6)
    store.late = True
    broker = harness.handle("mine")
    purges = [Told(harness, broker.purge_queue("one")) for _ in range(1 + twice)]
    harness.settle()
    assert not any(told.done for told in purges)
    broker.end_session("one")
    harness.settle()
    assert [told.done for told in purges] == [True] * len(purges)
    assert sum(told.result for told in purges) == 2
    store.answer(harness)
    state = harness.broker.state
    assert (state.queued_bytes, state.loaded_bytes, store.queues) == (0, 0, {})


def test_two_purges_at_once_drop_each_message_once(
    broker_harness: Make, mine: HookRecorder
) -> None:
    store = LateReads()
    harness = broker_harness(plugins=[mine], store=store, config={"session": {"queue_page": 2}})
    queue(harness, 7)
    store.late = True
    broker = harness.handle("mine")
    first, second = (
        Told(harness, broker.purge_queue("one")),
        Told(harness, broker.purge_queue("one")),
    )
    harness.settle()
    store.answer(harness)
    assert (first.done, second.done) == (True, True)
    assert first.result + second.result == 7
    session = harness.broker.sessions["one"]
    assert (session.queued, session.queued_bytes, session.paused) == (0, 0, 0)


def test_a_client_that_returns_during_the_purge_waits_for_its_end(
    broker_harness: Make, mine: HookRecorder
) -> None:
    store = LateReads()
    harness = broker_harness(plugins=[mine], store=store, config={"session": {"queue_page": 2}})
    one = queue(harness, 6)
    store.late = True
    told = Told(harness, harness.handle("mine").purge_queue("one"))
    harness.settle()
    one.reconnect()
    harness.connect("pub2").publish("t", b"new", 1)
    one.expect_nothing()
    store.answer(harness)
    assert told.result == 6
    one.expect_message("t", b"new")
    one.expect_nothing()
