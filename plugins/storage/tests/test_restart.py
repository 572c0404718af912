"""Test that clients see no difference after a broker on a virtual clock crashes and restarts from its files."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Puback, Pubcomp, Publish, Pubrec, Pubrel, SubscribeRequest
from hookmq.storage_api import CommitId
from hookmq_storage.store import SQLiteStore
from hookmq_testing import Harness, MemoryClient, will


class Crashing:
    """A broker whose process dies, losing uncommitted changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.harness = Harness(start=False)
        self.harness.broker.state.store.close(lambda: None)
        self.store: SQLiteStore | None = None
        self.harness.restart(store=self._open())

    def _open(self) -> SQLiteStore:
        self.store = SQLiteStore(self.folder, self.harness.clock)
        return self.store

    def crash(self) -> None:
        """Crash and restart without an orderly close: no checkpoint, and the lock ends with the process."""
        store = self.store
        assert store is not None
        engine, pages = store._engine, store._pages
        assert engine is not None
        assert pages is not None
        store._closed = True
        pages.close()
        engine.abandon()
        os.close(store._lock)
        self.harness.restart(store=self._open())

    def close(self) -> None:
        self.harness.close()


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Crashing]:
    made = Crashing(tmp_path / "data")
    yield made
    made.close()


def durable(crashing: Crashing, name: str, expiry: int = 600, **options: Any) -> MemoryClient:
    return crashing.harness.connect(name, session_expiry_interval=expiry, **options)


def rows(crashing: Crashing, table: str) -> int:
    """Return the number of rows in a table."""
    assert crashing.store is not None
    engine = crashing.store._engine
    assert engine is not None
    count: int = engine.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return count


def empty(crashing: Crashing) -> bool:
    """Return whether the store contains no messages."""
    crashing.harness.settle()
    return not (rows(crashing, "message") or rows(crashing, "entry") or rows(crashing, "received"))


def test_sessions_keep_their_expiry_and_who_they_are(crashing: Crashing) -> None:
    client = durable(crashing, "one", 100, username="al")
    old = crashing.harness.connect("old", 4, clean_start=False)
    crashing.harness.connect("gone")
    client.disconnect()
    crashing.harness.advance(60)
    crashing.crash()
    assert set(crashing.harness.broker.sessions) == {"one", "old"}
    info = crashing.harness.broker.sessions["one"].client
    assert (info.username, info.peer.host, info.version) == ("al", "192.0.2.1", 5)
    crashing.harness.advance(39)
    assert "one" in crashing.harness.broker.sessions
    crashing.harness.advance(2)
    assert "one" not in crashing.harness.broker.sessions
    crashing.crash()
    assert set(crashing.harness.broker.sessions) == {"old"}
    assert old.reconnect().session_present
    assert not client.reconnect().session_present


def test_subscriptions_keep_their_options(crashing: Crashing) -> None:
    client = durable(crashing, "one")
    client.subscribe(
        [
            SubscribeRequest("a/#", 1, no_local=True, retain_as_published=True),
            SubscribeRequest("b", 2, retain_handling=2),
            SubscribeRequest("$share/g/c", 1),
            SubscribeRequest("dropped", 1),
        ],
        identifier=7,
    )
    client.unsubscribe("dropped")
    before = dict(crashing.harness.broker.sessions["one"].subscriptions)
    assert len(before) == 3
    crashing.crash()
    assert crashing.harness.broker.sessions["one"].subscriptions == before


def test_a_queue_is_read_in_pages_over_two_crashes(crashing: Crashing) -> None:
    crashing.harness.settings = crashing.harness.settings.__class__(
        crashing.harness.settings.broker,
        crashing.harness.settings.session.__class__(queue_page=2, max_inflight=2),
        crashing.harness.settings.auth,
        crashing.harness.settings.authz,
    )
    crashing.crash()
    client = durable(crashing, "one", auto_ack=False)
    client.subscribe("t", 1)
    pub = crashing.harness.connect("pub")
    for number in range(6):
        pub.publish("t", b"%d" % number, 1, user_property=(("k", "v"),))
    assert [message.payload for message in client.messages] == [b"0", b"1"]
    client.ack(client.messages[0])
    crashing.crash()
    crashing.crash()
    pub.reconnect().publish("t", b"6", 1, expect=None)
    client.received.clear()
    client.reconnect(auto_ack=True)
    assert [(m.payload, m.dup) for m in client.messages] == [
        (b"1", True), (b"2", True), (b"3", False), (b"4", False), (b"5", False), (b"6", False),
    ]  # fmt: skip
    assert client.messages[0].properties.user_property == (("k", "v"),)
    session = crashing.harness.broker.sessions["one"]
    assert (session.queued, session.queued_bytes) == (0, 0)
    assert empty(crashing)


def test_messages_in_flight_keep_their_packet_ids_after_a_restart(crashing: Crashing) -> None:
    client = durable(crashing, "one", auto_ack=False)
    client.subscribe("t/#", 2)
    pub = crashing.harness.connect("pub")
    for number, qos in ((1, 1), (2, 2), (3, 2)):
        pub.publish(f"t/{number}", b"x", qos)
    ids = [message.packet_id for message in client.messages]
    client.ack(client.messages[2])
    client.expect(Pubrel)
    crashing.crash()
    client.reconnect()
    first, second, third = client.next(), client.next(), client.next()
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert [(one.packet_id, one.qos, one.dup) for one in (first, second)] == [
        (ids[0], 1, True),
        (ids[1], 2, True),
    ]
    assert third == Pubrel(ids[2])
    client.send(Puback(ids[0]), Pubcomp(ids[2]))
    client.ack(second)
    client.expect(Pubrel)
    client.send(Pubcomp(ids[1]))
    assert empty(crashing)


def test_an_inbound_qos_2_id_is_known(crashing: Crashing) -> None:
    sub = durable(crashing, "sub")
    sub.subscribe("t", 2)
    pub = durable(crashing, "pub", auto_ack=False)
    number = pub.publish("t", b"x", 2)
    pub.expect(Pubrec)
    crashing.crash()
    sub.reconnect()
    pub.reconnect()
    pub.publish("t", b"x", 2, dup=True, packet_id=number)
    assert pub.expect(Pubrec) == Pubrec(number)
    pub.send(Pubrel(number))
    assert pub.expect(Pubcomp) == Pubcomp(number)
    assert len(sub.messages) == 1
    assert empty(crashing)


def test_a_will_waits_its_time_and_is_published_once(crashing: Crashing) -> None:
    watcher = durable(crashing, "watcher")
    watcher.subscribe("bye/#", 1)
    client = durable(crashing, "one", will=will("bye/one", b"x", qos=1, delay=30, content_type="t"))
    client.drop()
    crashing.harness.advance(20)
    crashing.crash()
    watcher.reconnect()
    crashing.harness.advance(9)
    watcher.expect_nothing()
    crashing.harness.advance(2)
    message = watcher.expect_message("bye/one", b"x", 1)
    assert message.properties.content_type == "t"
    crashing.crash()
    watcher.reconnect()
    crashing.harness.advance(1000)
    watcher.expect_nothing()


def test_retained_messages_keep_everything(crashing: Crashing) -> None:
    pub = crashing.harness.connect("pub")
    properties: dict[str, Any] = {
        "content_type": "text",
        "correlation_data": b"\0\xff",
        "response_topic": "answer",
        "payload_format_indicator": 1,
        "user_property": (("b", "1"), ("a", "2"), ("b", "1")),
    }
    pub.publish("r/1", b"one", 1, retain=True, message_expiry_interval=100, **properties)
    pub.publish("r/2", b"old", 2, retain=True)
    pub.publish("r/2", b"two", 2, retain=True)
    pub.publish("r/3", b"three", 0, retain=True)
    pub.publish("r/3", b"", 0, retain=True)
    crashing.harness.advance(40)
    crashing.crash()
    client = crashing.harness.connect("one")
    client.subscribe("r/#", 2)
    got = {message.topic: message for message in client.messages}
    assert set(got) == {"r/1", "r/2"}
    assert (got["r/2"].payload, got["r/2"].qos, got["r/2"].retain) == (b"two", 2, True)
    kept = got["r/1"].properties
    assert kept.message_expiry_interval == 60
    for name, value in properties.items():
        assert getattr(kept, name) == value


def test_a_group_keeps_what_waits_for_it(crashing: Crashing) -> None:
    members = [durable(crashing, name) for name in ("m1", "m2")]
    for member in members:
        member.subscribe("$share/g/t", 1)
        member.disconnect()
    pub = crashing.harness.connect("pub")
    for number in range(4):
        pub.publish("t", b"%d" % number, 1)
    crashing.crash()
    members[1].reconnect()
    assert [message.payload for message in members[1].messages] == [b"%d" % n for n in range(4)]
    assert empty(crashing)


def test_one_message_for_many_is_one_row(crashing: Crashing) -> None:
    names = [f"c{number}" for number in range(20)]
    clients = [durable(crashing, name) for name in names]
    for client in clients:
        client.subscribe("t", 1)
        client.disconnect()
    crashing.harness.connect("pub").publish("t", b"x" * 1000, 1)
    assert (rows(crashing, "message"), rows(crashing, "entry")) == (1, 20)
    crashing.crash()
    for client in clients:
        client.reconnect().expect_message("t", b"x" * 1000)
    assert empty(crashing)


def test_commits_go_on_counting(crashing: Crashing) -> None:
    durable(crashing, "one")
    assert crashing.store is not None
    before = crashing.store.last_commit()
    assert before.number > 0
    crashing.crash()
    assert crashing.store.last_commit().store == before.store
    crashing.harness.settle()
    assert crashing.store.last_commit() > CommitId(before.store, before.number - 1)
