"""Test that queued messages are on disk, and that memory holds no more of them than the settings allow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Publish
from hookmq.plugin import ClientRecord, Message
from hookmq.storage_api import Enqueue, PutMessage, PutSession, SessionRecord
from hookmq_storage.store import SQLiteStore
from hookmq_testing import Harness, MemoryClient

PAGE = 64
LEAST_PAGE = 65536
"""Number of bytes that the broker may always read at once from a client's queue, regardless of how much is already in
memory.
"""
MEMORY = 100_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    config: dict[str, Any] = {
        "session": {"queue_page": PAGE, "max_inflight": 16, "queue_messages": 1_000_000},
        "broker": {"queue_memory": MEMORY},
    }
    with Harness(start=False, config=config) as made:
        made.restart(store=SQLiteStore(tmp_path / "data", made.clock, "os"))
        yield made


def held(broker: Harness) -> int:
    """Return the total size of the messages in the sessions' queues. Assert that the broker's counter agrees."""
    found = sum(
        delivery.outgoing.size
        for session in broker.broker.sessions.values()
        for delivery in session.queue or ()
    )
    assert broker.broker.state.loaded_bytes == found
    return found


def watch(broker: Harness) -> dict[str, int]:
    """Check memory usage at every commit and page, and record the maximum values in the returned dict."""
    most = {"deliveries": 0, "bytes": 0, "pages": 0}
    store: Any = broker.store
    commit, read = store.commit, store.read

    def note() -> None:
        for session in broker.broker.sessions.values():
            waiting = len(session.queue or ()) + len(session.inflight)
            most["deliveries"] = max(most["deliveries"], waiting)
        most["bytes"] = max(most["bytes"], held(broker))

    def committing(records: Any, done: Any) -> None:
        note()
        commit(records, done)

    def reading(*request: Any) -> None:
        *where, done = request

        def came(page: Any) -> None:
            done(page)
            note()

        most["pages"] += 1
        read(*where, came)

    store.commit, store.read = committing, reading
    return most


def payloads(client: MemoryClient) -> list[bytes]:
    client.harness.settle()
    return [packet.payload for packet in client.unread if isinstance(packet, Publish)]


def test_a_long_queue_is_never_loaded_as_a_whole(broker: Harness) -> None:
    count = 10_000
    records: list[Any] = [
        PutSession(SessionRecord(ClientRecord("one", 5), 6000.0, ended_at=broker.clock.time()))
    ]
    for number in range(1, count + 1):
        message = Message("t", b"%d" % number, 1)
        records += (
            PutMessage(number, message),
            Enqueue("c/one", number, number, 1, len(message.payload) + len(message.topic)),
        )
    broker.store.commit(records, lambda result: None)
    broker.store.close(lambda: None)
    folder = broker.store.folder  # type: ignore[attr-defined]
    broker.restart(store=SQLiteStore(folder, broker.clock, "os"))
    session = broker.broker.sessions["one"]
    assert (session.stored, session.queue, held(broker)) == (count, None, 0)
    most = watch(broker)
    client = broker.connect("one", clean_start=False, session_expiry_interval=6000)
    assert payloads(client) == [b"%d" % number for number in range(1, count + 1)]
    assert PAGE <= most["deliveries"] <= PAGE + 16
    assert count // PAGE <= most["pages"] <= count // PAGE + 3
    assert (session.queued, session.stored, held(broker)) == (0, 0, 0)


def test_all_queues_together_hold_what_is_allowed(broker: Harness) -> None:
    clients = [broker.connect(f"c{n}", session_expiry_interval=6000) for n in range(40)]
    for client in clients:
        client.subscribe("t", 1)
        client.drop()
    most = watch(broker)
    pub = broker.connect("pub")
    for number in range(50):
        pub.publish("t", b"%04d" % number + bytes(996), 1, expect=0)
    assert MEMORY - 1001 < held(broker) <= MEMORY
    assert sum(session.stored for session in broker.broker.sessions.values()) > 1800
    for client in clients[:20]:
        client.reconnect()
        assert [int(payload[:4]) for payload in payloads(client)] == list(range(50))
    for client in clients[20:30]:
        client.reconnect(clean_start=True)
    held(broker)
    # Connected clients continue page by page, although offline ones hold all the memory.
    assert most["bytes"] <= MEMORY + LEAST_PAGE
    for client in clients[30:]:
        client.reconnect()
        assert len(payloads(client)) == 50
    assert held(broker) == 0
    assert broker.broker.state.queued_bytes == 0


def test_the_counter_follows_every_way_out(broker: Harness) -> None:
    broker.settings = broker.settings.__class__(
        broker.settings.broker,
        broker.settings.session.__class__(
            queue_page=4, max_inflight=2, queue_messages=6, queue_drop="oldest"
        ),
        broker.settings.auth,
        broker.settings.authz,
    )
    broker.restart()
    client = broker.connect("one", session_expiry_interval=60, auto_ack=False)
    client.subscribe("t", 1)
    client.subscribe("u", 1)
    pub = broker.connect("pub")
    for number in range(12):
        pub.publish("tu"[number % 2], b"x" * number, 1, message_expiry_interval=90, expect=0)
        held(broker)
    assert broker.metrics.dropped[("queue_full", "out")] == 4
    client.unsubscribe("u")
    client.drop()
    held(broker)
    broker.advance(30)
    client.reconnect()
    held(broker)
    client.drop()
    broker.advance(59)
    held(broker)
    broker.advance(2)
    assert "one" not in broker.broker.sessions
    assert held(broker) == 0
