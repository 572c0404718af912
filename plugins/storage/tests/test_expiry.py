"""Messages that expire while they wait for an offline client are deleted from disk in slices. Nothing else is deleted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Publish
from hookmq.storage_api import Dequeue, DropRetained, DropSession, Record
from hookmq_storage.engine import Engine
from hookmq_storage.pages import EXPIRED, EXPIRED_ENTRIES
from hookmq_storage.store import SQLiteStore
from hookmq_testing import Harness, MemoryClient

# How often the broker deletes expired messages, in seconds, and how many at once.
EVERY = 60.0
MESSAGES = 256
RETAINED = 64
SESSIONS = 64


class Watched(Harness):
    """A broker with an on-disk store. Its commits are recorded."""

    def __init__(self, folder: Path, **config: Any) -> None:
        super().__init__(start=False, config=config)
        self.commits: list[list[Record]] = []
        self.sqlite = SQLiteStore(folder, self.clock, "os")
        commit = self.sqlite.commit

        def noted(records: Any, done: Any) -> None:
            self.commits.append(list(records))
            commit(records, done)

        self.sqlite.commit = noted  # type: ignore[method-assign]
        self.restart(store=self.sqlite)

    @property
    def engine(self) -> Engine:
        assert self.sqlite._engine is not None
        return self.sqlite._engine

    def rows(self) -> tuple[int, int]:
        """Return the number of messages and the number of queue entries on disk."""
        held = "SELECT count(*) FROM entry WHERE body IS NOT NULL"
        counts: tuple[int, int] = self.engine.db.execute(
            f"SELECT (SELECT count(*) FROM message) + ({held}), (SELECT count(*) FROM entry)"
        ).fetchone()
        return counts


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path / "data", session={"queue_page": 16, "max_inflight": 4})
    yield made
    made.close()


def away(broker: Watched, name: str, filter: str = "t") -> MemoryClient:
    """Return a client that subscribed and then disconnected."""
    client = broker.connect(name, session_expiry_interval=100_000)
    client.subscribe(filter, 1)
    client.drop()
    return client


def publish(broker: Watched, count: int, expiry: int | None, topic: str = "t") -> None:
    options: dict[str, Any] = {} if expiry is None else {"message_expiry_interval": expiry}
    publisher = broker.connect()
    with broker.together():
        for number in range(count):
            publisher.publish(topic, b"%d" % number, 1, expect=None, **options)
    publisher.drop()


def payloads(client: MemoryClient) -> list[bytes]:
    client.harness.settle()
    return [packet.payload for packet in client.unread if isinstance(packet, Publish)]


def hold_back(broker: Watched) -> list[Any]:
    """Hold back the results of the next search for expired messages. Return the list in which the search's callback and
    results are held.
    """
    expired: Any = broker.sqlite.expired
    held: list[Any] = []

    def once(*request: Any) -> None:
        setattr(broker.sqlite, "expired", expired)  # noqa: B010
        *where, done = request
        expired(*where, lambda found: held.append((done, found)))

    setattr(broker.sqlite, "expired", once)  # noqa: B010
    return held


def test_expired_messages_leave_the_disk_without_a_reader(broker: Watched) -> None:
    clients = [away(broker, name) for name in ("one", "two")]
    publish(broker, 600, 30)
    publish(broker, 20, None)
    publish(broker, 5, 10_000)
    assert broker.rows() == (625, 1250)
    broker.commits.clear()
    broker.advance(EVERY + 1)
    assert broker.rows() == (25, 50)
    gone = [sum(type(record) is Dequeue for record in batch) for batch in broker.commits]
    assert sum(gone) == 1200
    assert max(gone) <= MESSAGES
    assert broker.metrics.dropped == {("expired", "out"): 1200}
    for session in broker.broker.sessions.values():
        # The bounds count everything in memory and in the store.
        assert (session.queued, session.stored) == (25, 25)
        assert session.queued_bytes == 25 * (1 + 1) + 10  # t and a digit or two
    for client in clients:
        client.reconnect()
        assert payloads(client) == [b"%d" % n for n in [*range(20), *range(5)]]
    broker.settle()
    assert broker.rows() == (0, 0)
    assert broker.broker.state.queued_bytes == 0


def test_messages_in_memory_and_in_flight_stay_in_order(broker: Watched) -> None:
    """Messages stay in order if the head of the queue is in memory and four messages are in flight. Messages in flight
    are sent again, even if they have expired.
    """
    client = away(broker, "one")
    client.auto_ack = False
    publish(broker, 4, 30)
    client.reconnect()
    first = payloads(client)
    assert first == [b"0", b"1", b"2", b"3"]
    for number in range(60):
        publish(broker, 1, 30 if number % 2 else None)
    client.drop()
    broker.advance(EVERY + 1)
    assert broker.rows() == (34, 34)
    client.auto_ack = True
    client.unread.clear()
    client.reconnect()
    assert payloads(client) == [*first, *[b"0"] * 30]
    assert broker.rows() == (0, 0)
    assert broker.metrics.dropped == {("expired", "out"): 30}


def test_a_page_that_is_wanted_meanwhile_is_read_when_they_are_gone(broker: Watched) -> None:
    client = away(broker, "one")
    publish(broker, 40, 30)
    publish(broker, 40, None)
    session = broker.broker.sessions["one"]
    broker.clock.advance(EVERY - 1)
    held = hold_back(broker)
    broker.clock.advance(2)
    client.reconnect()
    [(done, found)] = held
    assert len(found.entries) == 80 - 40
    done(found)
    broker.settle()
    assert payloads(client) == [b"%d" % number for number in range(40)]
    assert (session.queued, session.stored, session.queued_bytes) == (0, 0, 0)
    assert broker.broker.state.queued_bytes == 0
    assert broker.rows() == (0, 0)


def test_a_session_that_is_new_meanwhile_loses_nothing(broker: Watched) -> None:
    """A session created during the search for expired messages loses nothing. Its queue has the same name and positions
    as the queue of the session that ended.
    """
    client = away(broker, "one")
    publish(broker, 40, 30)
    broker.advance(EVERY - 1)
    held = hold_back(broker)
    broker.advance(2)
    [(done, found)] = held
    assert [seq for _, seq, _, _ in found.entries] == list(range(1, 41))
    client.reconnect(clean_start=True)
    client.subscribe("t", 1)
    client.drop()
    publish(broker, 40, None)
    done(found)
    broker.settle()
    assert broker.broker.sessions["one"].queued == 40
    client.unread.clear()
    client.reconnect()
    assert payloads(client) == [b"%d" % number for number in range(40)]


def test_messages_of_a_shared_subscription_expire(broker: Watched) -> None:
    member = away(broker, "one", "$share/g/t")
    publish(broker, 300, 30)
    publish(broker, 3, None)
    assert broker.rows() == (303, 303)
    broker.advance(EVERY + 1)
    assert broker.rows() == (3, 3)
    assert broker.metrics.dropped == {("expired", "out"): 300}
    member.reconnect()
    assert payloads(member) == [b"0", b"1", b"2"]
    assert broker.broker.state.queued_bytes == 0


def test_messages_and_sessions_that_expired_while_the_broker_was_down_are_gone(
    broker: Watched, tmp_path: Path
) -> None:
    client = away(broker, "one")
    publish(broker, 100, 30)
    publish(broker, 1, None)
    broker.sqlite.close(lambda: None)
    broker.clock.advance(3600)
    again = SQLiteStore(tmp_path / "data", broker.clock, "os")
    broker.restart(store=again)
    broker.sqlite = again
    broker.advance(EVERY + 1)
    assert broker.rows() == (1, 1)
    client.reconnect()
    assert payloads(client) == [b"0"]


def test_retained_messages_that_expire_together_go_in_slices(broker: Watched) -> None:
    publisher = broker.connect()
    with broker.together():
        for number in range(400):
            publisher.publish(
                f"r/{number}", b"x", 1, retain=True, expect=None, message_expiry_interval=30
            )
    count = "SELECT count(*) FROM retained"
    assert broker.engine.db.execute(count).fetchone() == (400,)
    broker.commits.clear()
    broker.advance(31)
    assert broker.engine.db.execute(count).fetchone() == (0,)
    dropped = [sum(type(one) is DropRetained for one in batch) for batch in broker.commits]
    assert sum(dropped) == 400
    assert max(dropped) <= RETAINED


def test_sessions_that_expire_together_go_in_slices(broker: Watched) -> None:
    for number in range(200):
        broker.connect(f"c{number}", session_expiry_interval=30).drop()
    broker.commits.clear()
    broker.advance(31)
    ends = [sum(type(one) is DropSession for one in batch) for batch in broker.commits]
    assert sum(ends) == 200
    assert max(ends) <= SESSIONS
    assert broker.engine.db.execute("SELECT count(*) FROM owner").fetchone() == (0,)


@pytest.mark.parametrize(
    ("statement", "index"), [(EXPIRED, "message_expires"), (EXPIRED_ENTRIES, "entry_message")]
)
def test_nothing_is_sorted_and_nothing_looked_through(
    broker: Watched, statement: str, index: str
) -> None:
    marks = (1,) * statement.count("?")
    plan = [row[3] for row in broker.engine.db.execute(f"EXPLAIN QUERY PLAN {statement}", marks)]
    assert not any(step.startswith(("SCAN", "USE TEMP")) for step in plan), plan
    assert any(index in step for step in plan), plan


def test_the_steps_of_one_look_do_not_grow_with_what_there_is(broker: Watched) -> None:
    """A search takes the same work regardless of how much data there is. The test counts the steps of SQLite's virtual
    machine to find 256 of 1,000 and 256 of 4,000 expired messages.
    """
    away(broker, "one")
    steps: list[int] = []
    pages = broker.sqlite._pages
    assert pages is not None
    for count in (1000, 3000):
        publish(broker, count, 30)
        told: list[int] = []
        pages.db.set_progress_handler(lambda told=told: told.append(1), 100)  # type: ignore[misc]
        found, place = pages.expired(broker.clock.time() + 31, None, 256)
        pages.db.set_progress_handler(None, 0)
        assert (len(found), place is None) == (256, False)
        steps.append(len(told))
    assert 0 < steps[1] < 1.2 * steps[0]


def test_room_of_what_expired_is_used_again(broker: Watched) -> None:
    """The space of expired messages is reused. After ten rounds, the file is no larger than after the second, and its
    log is still within its limit.
    """
    away(broker, "one")
    sizes = []
    for _ in range(10):
        publish(broker, 300, 30)
        broker.advance(EVERY + 40)
        assert broker.rows() == (0, 0)
        broker.engine.checkpoint()
        sizes.append((broker.engine.size(), broker.engine.wal_size()))
    pages = [size for size, _ in sizes]
    assert max(pages[2:]) == pages[1]
    assert max(log for _, log in sizes) < 4 << 20
