"""Retained messages: all nodes keep the same ones, whoever sets them, and whoever lags."""

from collections.abc import Callable
from random import Random

import pytest
from cluster_routing import NAMES, ModelBroker
from hookmq.plugin import ClientRecord, Message, Peer
from hookmq.storage_api import CommitId, DropPublisher, DropRetained, PutPublisher, PutRetained
from hookmq_cluster.engine import TOMBSTONE, Appended, Entry, Refused, Stored, Unavailable
from hookmq_cluster.frames import FrameError
from hookmq_cluster.retained import (
    Retained,
    RetainedEntry,
    decode_retained,
    encode_retained,
)
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import QUIET, Faults, SimulatedEngine, SimulatedLog, quiet

CLIENT = ClientRecord(
    "client", 5, "user", "identity", {"role": "x"}, "plugin:a", Peer("10.0.0.1", 7)
)


class Writer:
    """A node that sets retained messages in its memory first, and commits them batch by batch, as the broker does."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        world.boots += 1
        self.boot = f"boot{world.boots}"
        self.broker = ModelBroker()
        self.engine = SimulatedEngine(world.log, world.runtime, world.random)
        self.ready = False
        self.retained = Retained(self.engine, NAMES, world.runtime, name, self.boot, self._ready)
        self.retained.attach(self.broker.node)
        self.batch: list[PutRetained | DropRetained] = []
        self.commits = 0
        self.running = False
        self.retained.start()

    def _ready(self) -> None:
        self.ready = True

    def set(
        self, topic: str, payload: bytes, publisher: int = 0, expiry: float | None = None
    ) -> None:
        """Set or clear a retained message, as its publisher does."""
        message = Message(topic, payload, 1, True, sender="client", expires_at=expiry)
        known = self.broker.retained.get(topic)
        self.broker.retain(message, None)
        if payload:
            self.batch.append(PutRetained(message, publisher))
        elif known is not None:
            self.batch.append(DropRetained(topic))
        self.commit()

    def commit(self) -> None:
        """Commit the batch at the end of the turn, if no commit is running."""
        if not self.running and self.batch:
            self.running = True
            delay = self.world.random.choice((0.0, 0.0, 0.01))
            self.world.runtime.call_later(delay, self._cut)

    def _cut(self) -> None:
        batch, self.batch = self.batch, []
        delay = self.world.random.choice((0.0, 0.0, 0.05))  # other nodes must have messages first
        self.world.runtime.call_later(delay, lambda: self._store(batch))

    def _store(self, batch: list[PutRetained | DropRetained]) -> None:
        newest = {
            entry.subject: entry for record in batch for entry in self.retained.entries(record)
        }
        entries = list(newest.values())
        self.commits += 1
        number = self.commits
        if self.world.random.random() < 0.3:
            entries.append(Entry(NAMES.lane(self.name), b"more"))

        def appended(result: Appended | Refused | Unavailable) -> None:
            if not isinstance(result, Appended):
                self.engine.commit(entries, appended, f"{self.boot}/{number}")
                return
            self.retained.committed(CommitId(self.boot, number), result.last)
            self.running = False
            self.commit()

        if entries:
            self.engine.commit(entries, appended, f"{self.boot}/{number}")
        else:
            appended(Appended(self.world.log.sequence))

    def payloads(self) -> dict[str, bytes]:
        """Return the retained messages' payloads."""
        return {topic: message.payload for topic, (message, _) in self.broker.retained.items()}


class World:
    """A log and some nodes."""

    def __init__(self, seed: int = 1, faults: Faults = QUIET) -> None:
        self.runtime = VirtualRuntime(seed)
        self.random = Random(seed)
        self.log = SimulatedLog(self.runtime, self.random, faults)
        self.boots = 0

    def stored(self) -> dict[str, bytes]:
        """Return the payloads in the log."""
        found: dict[str, bytes] = {}
        for stored in self.log.messages([NAMES.retained_messages]):
            entry = decode_retained(stored.data)
            found.pop(entry.topic, None)
            if entry.message is not None:
                found[entry.topic] = entry.message.payload
        return found


def test_other_nodes_keep_a_message_with_its_publisher() -> None:
    world = World()
    a, b = Writer(world, "a"), Writer(world, "b")
    world.runtime.advance(1.0)
    assert a.retained.entries(PutPublisher(7, CLIENT)) == []
    a.set("x", b"1", publisher=7)
    a.set("y", b"2")
    world.runtime.advance(1.0)
    message, publisher = b.broker.retained["x"]
    assert (message.payload, message.qos, message.retain, message.sender) == (
        b"1",
        1,
        True,
        "client",
    )
    assert publisher is not None
    assert publisher.record() == CLIENT
    assert b.broker.retained["y"][1] is None
    b.set("x", b"")
    world.runtime.advance(1.0)
    assert a.payloads() == b.payloads() == {"y": b"2"}


def test_an_unknown_publisher_is_replaced_by_one_without_identity() -> None:
    world = World()
    a, b = Writer(world, "a"), Writer(world, "b")
    world.runtime.advance(1.0)
    a.retained.entries(PutPublisher(7, CLIENT))
    a.retained.entries(DropPublisher(7))
    a.set("x", b"1", publisher=7)
    world.runtime.advance(1.0)
    publisher = b.broker.retained["x"][1]
    assert publisher is not None
    assert (publisher.client_id, publisher.username, publisher.identity) == ("client", None, None)
    assert [name for _, name, _ in world.runtime.logged] == ["cluster.publisher_unknown"]


def test_a_message_that_is_too_large_is_retained_nowhere() -> None:
    world = World()
    a, b = Writer(world, "a"), Writer(world, "b")
    world.runtime.advance(1.0)
    a.set("t", b"small")
    world.runtime.advance(1.0)
    assert b.payloads() == {"t": b"small"}
    a.set("t", bytes(a.engine.max_entry))
    a.set("u", b"fits")
    world.runtime.advance(1.0)
    assert a.payloads() == b.payloads() == world.stored() == {"u": b"fits"}
    [(level, event, fields)] = world.runtime.logged
    assert (level, event) == ("warning", "cluster.retained_too_large")
    assert (fields["topic"], fields["limit"]) == ("t", a.engine.max_entry)
    a.set("t", b"again")
    world.runtime.advance(1.0)
    assert a.payloads() == b.payloads() == {"u": b"fits", "t": b"again"}


@pytest.mark.parametrize("seed", range(10))
def test_a_message_after_one_that_is_too_large_is_retained(seed: int) -> None:
    world = World(seed)
    a, b = Writer(world, "a"), Writer(world, "b")
    world.runtime.advance(1.0)
    a.set("t", bytes(a.engine.max_entry))
    world.runtime.advance(0.01 * seed)
    a.set("t", b"small")
    world.runtime.advance(1.0)
    assert a.payloads() == b.payloads() == world.stored() == {"t": b"small"}


def test_entries_end_when_they_should() -> None:
    world = World()
    a = Writer(world, "a")
    now = world.runtime.time()

    def entry(record: PutRetained | DropRetained) -> Entry:
        (one,) = a.retained.entries(record)
        assert one.replace
        assert one.expect is None
        assert one.subject == NAMES.retained("x")
        return one

    assert entry(PutRetained(Message("x", b"1"))).ttl == 0
    assert entry(PutRetained(Message("x", b"1", expires_at=now + 2.5))).ttl == 3
    assert entry(PutRetained(Message("x", b"1", expires_at=now - 5))).ttl == 1
    assert a.retained.entries(DropRetained("x")) == []  # it has expired everywhere
    assert entry(PutRetained(Message("x", b"1", expires_at=now + 2.5))).ttl == 3
    assert entry(DropRetained("x")).ttl == TOMBSTONE
    entry(PutRetained(Message("x", b"1", expires_at=now - 5)))
    entry(PutRetained(Message("x", b"1")))
    assert entry(DropRetained("x")).ttl == TOMBSTONE


def test_the_expiry_on_one_node_does_not_clear_a_newer_message() -> None:
    world = World()
    a, b = Writer(world, "a"), Writer(world, "b")
    world.runtime.advance(1.0)
    b.set("x", b"old", expiry=world.runtime.time() + 10)
    world.runtime.advance(10.5)
    b.broker.retained.clear()
    b.set("x", b"new")
    # The broker of a expires the message now, and records it.
    a.batch.append(DropRetained("x"))
    a.broker.retained.clear()
    a.commit()
    world.runtime.advance(1.0)
    assert a.payloads() == b.payloads() == {"x": b"new"}


def test_a_node_is_ready_when_it_has_read_everything() -> None:
    world = World(faults=Faults(page=30))
    a = Writer(world, "a")
    world.runtime.advance(1.0)
    assert a.ready
    for number in range(300):
        a.set(f"t{number}", b"%d" % number)
    a.set("t5", b"")
    world.runtime.advance(5.0)
    again = Writer(world, "a")  # the same node, restarted
    assert not again.ready
    while not again.ready:
        assert len(again.payloads()) < 300
        world.runtime.advance(0.0005)
    assert again.payloads() == a.payloads()
    assert len(again.payloads()) == 299


def test_the_work_of_a_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookmq_cluster.retained.SLICE", 10)
    monkeypatch.setattr("hookmq_cluster.retained.BACKLOG", 50)
    world = World()
    a, b = Writer(world, "a"), Writer(world, "b")
    world.runtime.advance(1.0)
    calls = 0
    longest = 0

    def counted(call: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            nonlocal longest, calls
            before = len(b.broker.retained)
            call()
            calls += 1
            longest = max(longest, len(b.broker.retained) - before)

        return run

    b.retained._work = counted(b.retained._work)  # type: ignore[method-assign]
    for number in range(400):
        a.set(f"t{number}", b"%d" % number)
    world.runtime.advance(5.0)
    assert b.payloads() == a.payloads()
    assert len(b.payloads()) == 400
    assert longest <= 10
    assert calls >= 40


def test_a_damaged_entry_is_logged_and_skipped() -> None:
    world = World()
    damaged = [
        b"",
        b"\xc1",
        encode_retained(RetainedEntry("a", "1", "x", None, None))[:-1],
        encode_retained(RetainedEntry("a", "1", "other", Message("x", b"1"), None)),
        b"\x96\x02\xa1a\xa11\xa1x\xc0\xc0",
        b"\x96\x01\xa1a\xa11\x05\xc0\xc0",
    ]
    for number, data in enumerate(damaged):
        world.log.append([Entry(NAMES.retained(f"t{number}"), data)])
        with pytest.raises(FrameError):
            decode_retained(data)
    a = Writer(world, "a")
    world.runtime.advance(1.0)
    assert a.ready
    assert a.retained.invalid == 6
    fields = world.runtime.logged[0][2]
    assert (fields["subject"], fields["sequence"]) == (NAMES.retained("t0"), 1)
    world.log.append(
        [
            Entry(
                NAMES.retained("y"),
                encode_retained(RetainedEntry("z", "1", "y", Message("y", b"1"), None)),
            )
        ]
    )
    world.runtime.advance(1.0)
    assert a.payloads() == {"y": b"1"}


def other(topic: str, payload: bytes) -> bytes:
    """Return an entry of another node."""
    return encode_retained(RetainedEntry("z", "1", topic, Message(topic, payload), None))


def test_an_entry_below_an_own_commit_is_ignored_when_a_follower_lags() -> None:
    world = World()
    a = Writer(world, "a")
    world.runtime.advance(1.0)
    own = Message("x", b"own", retain=True)
    a.broker.retain(own, None)
    a.retained.entries(PutRetained(own))
    a.retained.committed(CommitId(a.boot, 1), 10)
    a.retained._receive(Stored(NAMES.retained("x"), 9, other("x", b"older"), 0.0))
    world.runtime.advance(0.0)
    assert a.payloads() == {"x": b"own"}
    assert a.retained._committed == {"x": 10}
    a.retained._receive(Stored(NAMES.retained("x"), 11, other("x", b"newer"), 0.0))
    world.runtime.advance(0.0)
    assert a.payloads() == {"x": b"newer"}
    assert not a.retained._committed


@pytest.mark.parametrize("faults", [QUIET, Faults(lost_answer=0.5)])
def test_a_conflict_with_a_large_commit_is_decided_by_the_log(faults: Faults) -> None:
    world = World(faults=faults)
    a = Writer(world, "a")
    world.runtime.advance(10.0)
    own = Message("x", b"own", retain=True)
    a.broker.retain(own, None)
    (entry,) = a.retained.entries(PutRetained(own))
    world.log.append([entry])
    world.log.append([Entry(NAMES.retained("x"), other("x", b"newer"), replace=True)])
    world.log.append([Entry(NAMES.lane("a"), b"the last part")])
    world.runtime.advance(10.0)
    assert a.payloads() == {"x": b"own"}
    a.retained.committed(CommitId(a.boot, 1), world.log.sequence)
    world.runtime.advance(30.0)
    assert a.payloads() == {"x": b"newer"}


def test_nothing_is_applied_after_close() -> None:
    world = World()
    a, b = Writer(world, "a"), Writer(world, "b")
    world.runtime.advance(1.0)
    b.retained.close()
    a.set("x", b"1")
    world.runtime.advance(1.0)
    assert b.payloads() == {}


@pytest.mark.parametrize("seed", range(60))
def test_all_nodes_converge_whoever_sets_what(seed: int) -> None:
    random = Random(seed)
    world = World(seed, Faults.drawn(random))
    writers = [Writer(world, name) for name in "abc"]
    world.runtime.advance(60.0)
    for _ in range(10):
        for number in range(15):
            writer = random.choice(writers)
            payload = b"" if random.random() < 0.3 else b"%s %d" % (writer.name.encode(), number)
            writer.set(random.choice("xyz"), payload)
            if random.random() < 0.05:
                writer.engine.cut()
            for one in writers:
                if one.engine.is_cut and random.random() < 0.3:
                    one.engine.heal()
            if random.random() < 0.6:
                world.runtime.advance(random.choice((0.0, 0.001, 0.01, 0.1, 1.0)))
        faults = world.log.faults
        world.log.faults = quiet(faults)
        for one in writers:
            one.engine.heal()
        world.runtime.advance(120.0)
        late = Writer(world, "d")
        world.runtime.advance(10.0)
        expected = world.stored()
        for one in [*writers, late]:
            assert one.payloads() == expected, one.name
            assert not one.retained._own
            assert not one.retained._held
        late.retained.close()
        late.engine.crash()
        world.log.faults = faults
