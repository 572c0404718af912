"""A lane's state is that of a simple model, whatever part of its log was written again and deleted."""

import pytest
from hookmq.plugin import ClientRecord
from hookmq.storage_api import (
    Dequeue,
    DropSession,
    DropState,
    PutMessage,
    PutPublisher,
    PutSession,
    PutState,
    Record,
    SetPacket,
)
from hookmq_cluster import compaction
from hookmq_cluster.frames import Frames, Origin, OwnerFrame, encode_owner
from hookmq_cluster.lane_state import LaneState
from hookmq_testing import DurableStore
from hookmq_testing.contracts import make_entry, make_message
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lane_records import BATCHES, EXPIRY, OWNERS, SEQS, Ids, contents, message, session


class Log:
    """The log of one lane."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.sequence = 0

    def append(self, parts: list[bytes]) -> int:
        """Append a frame, and return the sequence of its first part."""
        first = self.sequence + 1
        for part in parts:
            self.sequence += 1
            self.entries.append((self.sequence, part))
        return first

    def trim(self, before: int) -> None:
        self.entries = [entry for entry in self.entries if entry[0] >= before]

    @property
    def size(self) -> int:
        return sum(len(data) for _, data in self.entries)

    def replayed(self) -> LaneState:
        state = LaneState("n1")
        reader = Frames()
        parts: list[tuple[int, int]] = []
        for sequence, data in self.entries:
            parts.append((sequence, len(data)))
            frame = reader.read(data)
            if isinstance(frame, OwnerFrame):
                state.apply(parts[0][0], frame, sum(size for _, size in parts))
                parts.clear()
        assert state.complete() == ""
        return state


class Writer:
    """The owner of a lane: it commits to the log and to its state."""

    def __init__(self) -> None:
        self.log = Log()
        self.state = LaneState("n1")
        self.state.complete()
        self.number = 0
        self.model = DurableStore()

    def commit(self, records: list[Record], again: list[Record], applied: bool = True) -> None:
        self.number += 1
        frame = OwnerFrame(Origin("n1", "b", self.number), self.log.sequence, (*again, *records))
        parts = encode_owner(frame, 150)
        first = self.log.append(parts)
        self.model.commit(records, lambda result: None)
        if applied:
            self.state.apply(first, frame, sum(map(len, parts)))
        else:  # it died before it got the answer
            self.reopen()

    def reopen(self) -> None:
        self.state = self.log.replayed()


class LaneMachine(RuleBasedStateMachine):
    """Commits, compaction, trims and restarts in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = Writer()
        self.ids = Ids()

    @rule(batch=BATCHES, count=st.integers(0, 6), applied=st.booleans())
    def commit(self, batch: list[Record], count: int, applied: bool) -> None:
        again = self.writer.state.take_oldest(count)
        assert len(again) <= count
        self.writer.commit(self.ids.with_messages(batch), again, applied)

    @rule(owner=OWNERS, seq=SEQS, count=st.integers(0, 2), data=st.data())
    def move(self, owner: str, seq: int, count: int, data: st.DataObject) -> None:
        """Add an entry for a message that is already stored, as when it moves to another queue."""
        queues = self.writer.model.queues
        stored = sorted((one, number) for one, queue in queues.items() for number in queue)
        if stored:
            source = data.draw(st.sampled_from(stored))
            entry = queues[source[0]][source[1]]
            records: list[Record] = [Dequeue(owner, seq), entry._replace(owner=owner, seq=seq)]
            if source != (owner, seq):
                records.append(Dequeue(*source))
            self.writer.commit(records, self.writer.state.take_oldest(count))

    @rule()
    def trim(self) -> None:
        point = self.writer.state.trim_point
        self.writer.log.trim(point)
        self.writer.state.trimmed(point)

    @rule()
    def trim_and_die_before_the_answer(self) -> None:
        self.writer.log.trim(self.writer.state.trim_point)
        self.writer.reopen()

    @rule(count=st.integers(1, 6))
    def take_and_die_before_the_commit(self, count: int) -> None:
        self.writer.state.take_oldest(count)

    @invariant()
    def same(self) -> None:
        state, model = self.writer.state, self.writer.model
        assert contents(state) == contents(model)
        assert state.messages == len(model.messages)
        replayed = self.writer.log.replayed()
        assert contents(replayed) == contents(model)
        assert replayed.inbox == state.inbox
        assert replayed.newest == state.newest
        assert replayed.live_bytes == state.live_bytes
        assert replayed.oldest == state.oldest
        assert replayed.log_bytes == self.writer.log.size
        assert self.expired(state) == self.expired(replayed) == self.model_expired()
        if not contents(model) and not model.subscriptions and not model.received:
            assert (state.live_bytes, state.oldest) == (0, 0)

    @staticmethod
    def expired(state: LaneState) -> set[tuple[str, int]]:
        assert {one for one in state.expired(EXPIRY - 1) if one is not None} == set()
        return {(one.owner, one.seq) for one in state.expired(EXPIRY) if one is not None}

    def model_expired(self) -> set[tuple[str, int]]:
        model = self.writer.model
        entries = [entry for queue in model.queues.values() for entry in queue.values()]
        return {
            (entry.owner, entry.seq)
            for entry in entries
            if not entry.packet_id and model.messages[entry.message_ref].expires_at is not None
        }


TestLaneMachine = LaneMachine.TestCase
TestLaneMachine.settings = settings(max_examples=100, stateful_step_count=30)


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 3), st.booleans()), min_size=50, max_size=300
    )
)
def test_the_log_stays_small(rounds: list[tuple[int, int, bool]]) -> None:
    """The log has less than twice the bytes of the live objects, and a constant, in any order of queueing."""
    slack, least = compaction.SLACK, compaction.LEAST
    compaction.SLACK, compaction.LEAST = 2000, 300  # type: ignore[misc]
    try:
        writer = Writer()
        for id, (client, count, keep) in enumerate(rounds, 1):
            records: list[Record] = [PutMessage(id, make_message("a/topic", bytes(40)))]
            for owner in range(client, client + count):
                records += [Dequeue(f"c/{owner}", id - 7), make_entry(f"c/{owner}", id, id, 40)]
                if not keep:
                    records.append(Dequeue(f"c/{owner}", id))
            writer.commit(records, writer.state.due(400))
            point = writer.state.trim_point
            writer.log.trim(point)
            writer.state.trimmed(point)
            assert writer.log.size == writer.state.log_bytes
            assert writer.log.size < 2.1 * writer.state.live_bytes + 5000
    finally:
        compaction.SLACK, compaction.LEAST = slack, least  # type: ignore[misc]


def test_a_missing_message_is_named() -> None:
    state = LaneState("n1")
    state.apply(5, OwnerFrame(Origin("n1", "b", 1), 0, (make_entry("c/a", 7, 3),)), 10)
    assert state.complete() == "message 3 of queue 'c/a', entry 7, is missing"


def test_a_search_that_was_not_finished_is_repeated() -> None:
    writer = Writer()
    for id in (1, 3):
        writer.commit([PutMessage(id, message(id)), make_entry("c/a", id, id)], [])
    search = writer.state.expired(EXPIRY)
    assert next(search) is not None
    del search
    assert sum(one is not None for one in writer.state.expired(EXPIRY)) == 2
    writer.commit([Dequeue("c/a", 1), SetPacket("c/a", 3, 1, False)], [])
    assert list(writer.state.expired(EXPIRY)) == [None]
    assert list(writer.state.expired(EXPIRY)) == [], "sent entries are not examined again"


def test_entries_may_go_while_a_search_runs() -> None:
    writer = Writer()
    for id in (1, 3, 5):
        writer.commit([PutMessage(id, message(id)), make_entry(f"c/{id}", id, id)], [])
    search = writer.state.expired(EXPIRY)
    first = next(search)
    assert first is not None
    writer.commit([DropSession("1"), DropSession("3")], [])
    assert [one.owner for one in search if one is not None] == ["c/5"]


def test_the_log_is_kept_for_unread_frames() -> None:
    writer = Writer()
    writer.commit([PutState("s/p", "k", b"")], [])
    frame = OwnerFrame(Origin("n1", "b", 2), 1, (DropState("s/p", "k"),))
    writer.state.apply(writer.log.append([b""]) + 8, frame, 1)
    assert (writer.state.oldest, writer.state.trim_point) == (0, 2)


@pytest.mark.parametrize("size", [1, 1000])
def test_take_oldest_is_limited(size: int) -> None:
    writer = Writer()
    for number in range(20):
        writer.commit([PutState("s/p", str(number), bytes(50))], [])
    taken = writer.state.take_oldest(5, size)
    assert [one.key for one in taken if isinstance(one, PutState)] == [
        str(n) for n in range(1 if size == 1 else 5)
    ]


def test_an_entry_may_be_written_again_long_after_its_message() -> None:
    writer = Writer()
    writer.commit([PutMessage(1, message(1)), make_entry("g/x/a", 1, 1)], [])
    writer.commit([Dequeue("g/x/a", 1), make_entry("c/a", 1, 1)], [])
    for _ in range(2):
        again = writer.state.take_oldest(1)
        assert len(again) == 1
        writer.commit([], again)
    assert [sequence for sequence, _ in writer.log.entries][-1] > writer.state.trim_point > 2
    writer.log.trim(writer.state.trim_point)
    assert contents(writer.log.replayed()) == contents(writer.model)


def test_the_state_of_another_nodes_plugins_can_be_left_out() -> None:
    writer = Writer()
    publisher = PutPublisher(1, ClientRecord("p", 5))
    writer.commit([session("a", 5.0), PutState("s/p", "k", b""), publisher], [])
    assert [type(one) for one in writer.state.loaded()] == [PutState, PutSession, PutPublisher]
    assert [type(one) for one in writer.state.loaded(sessions_only=True)] == [PutSession]
