"""Commits with several lanes, lanes that are lost, unknown results, the inbox, and the size of the log."""

from typing import Any

import pytest
from cluster_source import needs_the_source
from cluster_stores import NAMES, Bench, Process
from hookmq.plugin import ClientRecord, Message, Subscription
from hookmq.storage_api import (
    CommitId,
    Dequeue,
    DropReceived,
    DropSession,
    Enqueue,
    ExpiredEntries,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    QueueSummary,
    Record,
    SessionRecord,
    StoreFailed,
)
from hookmq_cluster import compaction
from hookmq_cluster.claims import decode_session
from hookmq_cluster.engine import Appended, Entry, Stored
from hookmq_cluster.frames import (
    Frames,
    MessageItem,
    Origin,
    OwnerFrame,
    PeerFrame,
    encode_owner,
    encode_peer,
    is_owner_frame,
)
from hookmq_cluster.lane_state import LaneState
from hookmq_testing.contracts import make_entry, make_message, of_kind
from simulated_engine import Faults


def session(name: str, expiry: float = 60.0) -> PutSession:
    return PutSession(SessionRecord(ClientRecord(name, 5), expiry))


def queued(owner: str, id: int, seq: int = 1, **fields: Any) -> list[Record]:
    return [PutMessage(id, make_message(f"m{id}", **fields)), make_entry(owner, seq, id)]


def frames(bench: Bench, lane: str) -> list[OwnerFrame]:
    reader = Frames()
    found = [
        reader.read(one.data)
        for one in bench.log.messages([NAMES.lane(lane)])
        if is_owner_frame(one.data)
    ]
    return [frame for frame in found if isinstance(frame, OwnerFrame)]


def two_lanes(bench: Bench) -> Process:
    """Return a process with the clients a in its home lane and b in the adopted lane n2."""
    other = Process(bench, "n2", ["n2"])
    other.commit(session("b"))
    other.crash()
    process = Process(bench)
    process.open("n2")
    process.commit(session("a"))
    return process


@pytest.mark.parametrize(("expiry", "lane"), [(0.0, "n1"), (60.0, "n2")])
def test_the_new_session_of_a_client_replaces_one_that_ended_with_its_connection(
    expiry: float, lane: str
) -> None:
    bench = Bench()
    other = Process(bench, "n2", ["n2"])
    other.commit(session("c", expiry))
    other.crash()
    process = Process(bench)
    process.commit(session("c", 0.0))
    state = process.open("n2")
    assert process.store.placement.add_volatile("n2", state) == (["c"] if lane == "n1" else [])
    assert process.store.lane_of("c") == lane
    if lane == "n1":
        process.store.placement.drop("c", "n2")
        assert process.store.lane_of("c") == "n1"
    process.commit(session("a"))
    assert ("c" in process.store.lanes()["n2"].clients) == (lane == "n2")
    assert "c" in process.store.lanes()["n1"].clients


def beside_a_volatile_session() -> Process:
    """Return a process beside the lane n2, in which a dead process has left a volatile session of the client c."""
    bench = Bench()
    other = Process(bench, "n2", ["n2"])
    other.commit(session("c", 0.0))
    other.crash()
    return Process(bench)


def test_a_former_session_of_a_client_without_a_stored_session_is_dropped() -> None:
    process = beside_a_volatile_session()
    state = process.open("n2")
    assert process.store.placement.add_volatile("n2", state) == []
    assert process.store.lane_of("c") == "n2"
    process.store.placement.drop("c", "n2")
    assert process.store.lane_of("c") is None
    process.commit(session("c", 0.0))
    assert ["c" in process.store.lanes()[lane].clients for lane in ("n1", "n2")] == [True, False]


def test_a_session_that_ended_while_a_lane_was_opened_does_not_hide_another_one() -> None:
    process = beside_a_volatile_session()
    process.commit(session("c", 0.0))
    state = process.open("n2")
    process.commit(DropSession("c"))
    assert process.store.placement.add_volatile("n2", state) == []
    assert process.store.lane_of("c") == "n2"
    process.commit(DropSession("c"))
    assert not any("c" in one.clients for one in process.store.lanes().values())


# several lanes -------------------------------------------------------------------------------------------------------


def test_records_go_to_the_lane_of_their_client() -> None:
    bench = Bench()
    process = two_lanes(bench)
    assert (process.store.lane_of("a"), process.store.lane_of("b")) == ("n1", "n2")
    process.commit(
        PutSubscription("a", Subscription("t", "t")),
        PutSubscription("b", Subscription("t", "t")),
        PutReceived("b", 7),
        PutMessage(5, make_message("m")),
        make_entry("c/a", 1, 5),
        make_entry("c/b", 1, 5),
        make_entry("g/x/t", 1, 5),
        PutState("s/p", "k", b"v"),
    )
    home, adopted = frames(bench, "n1")[-1].records, frames(bench, "n2")[-1].records
    assert [type(one) for one in home] == [PutSubscription, PutMessage, Enqueue, Enqueue, PutState]
    assert [type(one) for one in adopted] == [PutSubscription, PutReceived, PutMessage, Enqueue]
    assert process.topics("c/a") == process.topics("c/b") == process.topics("g/x/t") == ["m"]
    process.commit(Dequeue("c/b", 1), DropReceived("b", 7))
    assert (process.topics("c/a"), process.topics("c/b")) == (["m"], [])


def test_a_commit_of_two_lanes_is_one() -> None:
    bench = Bench()
    process = two_lanes(bench)
    before = len(bench.log.commits)
    process.commit(*queued("c/a", 1), *queued("c/b", 2))
    assert len(bench.log.commits) == before + 1
    assert bench.log.commits[-1].last - bench.log.commits[-1].first == 1
    assert process.committed[-1][1] == bench.log.sequence


def test_a_message_moves_from_a_shared_queue_to_a_session_of_another_lane() -> None:
    bench = Bench()
    process = two_lanes(bench)
    process.commit(*queued("g/x/t", 9))
    process.commit(make_entry("c/b", 1, 9, group="g/x/t"), Dequeue("g/x/t", 1))
    assert (process.topics("g/x/t"), process.topics("c/b")) == ([], ["m9"])
    assert process.messages() == 1
    process.crash()
    again = Process(bench, "n1", ["n1", "n2"])
    assert again.topics("c/b") == ["m9"]
    again.commit(make_entry("g/x/t", -1, 9), Dequeue("c/b", 1))
    assert (again.topics("g/x/t"), again.topics("c/b")) == (["m9"], [])


def test_the_queue_of_a_shared_subscription_in_an_adopted_lane_is_served_there() -> None:
    bench = Bench()
    other = Process(bench, "n2", ["n2"])
    other.commit(*queued("g/x/t", 1), *queued("g/y/t", 2))
    other.crash()
    process = Process(bench)
    process.commit(*queued("g/y/t", 3))
    state = process.open("n2")
    assert {one.owner for one in of_kind(state.loaded(), QueueSummary)} == {"g/x/t", "g/y/t"}
    assert process.topics("g/x/t") == ["m1"]
    assert process.topics("g/y/t") == ["m3"], "the home lane has a queue of its own"
    process.commit(*queued("g/x/t", 4, 2))
    assert process.topics("g/x/t") == ["m1", "m4"]
    process.commit(Dequeue("g/x/t", 1), Dequeue("g/x/t", 2))
    process.commit(*queued("g/x/t", 5, 3))
    assert process.topics("g/x/t") == ["m5"]
    assert process.store.lanes()["n1"].has_queue("g/x/t")


def test_a_shared_subscription_with_members_here_stays_in_the_home_lane() -> None:
    bench = Bench()
    other = Process(bench, "n2", ["n2"])
    other.commit(*queued("g/x/t", 1))
    other.crash()
    process = Process(bench)
    assert isinstance(process.try_open("n2"), LaneState)
    process.commit(*queued("g/x/t", 2))
    assert process.topics("g/x/t") == ["m2"], "the core has not adopted the lane yet"
    process.commit(Dequeue("g/x/t", 1))
    assert process.store.placement.add_groups("n2", {"g/x/t"}) == ["g/x/t"]
    process.store.append("n2", [Dequeue("g/x/t", 1)])
    before = len(bench.log.commits)
    process.commit(*queued("g/x/t", 3, 2))
    assert len(bench.log.commits) == before + 1
    assert process.topics("g/x/t") == ["m3"]
    assert process.store.lanes()["n2"].groups == []


def test_a_missing_message_fails_the_store() -> None:
    process = Process(Bench())
    result = process.try_commit(make_entry("c/a", 1, 77))
    assert result == StoreFailed("the batch cannot be stored: 77")


# sessions in the log -------------------------------------------------------------------------------------------------


def entry_of(bench: Bench, client_id: str) -> Stored | None:
    found = bench.log.messages([NAMES.session(client_id)])
    return found[-1] if found else None


def test_a_session_that_was_not_claimed_gets_its_entry() -> None:
    bench = Bench()
    process = two_lanes(bench)
    process.store.place("claimed", "n1", claimed=True)
    process.store.place("read", "n2")
    names = ["read", "a"]
    process.commit(session("claimed"), *map(session, names))
    assert entry_of(bench, "claimed") is None
    stored = [entry_of(bench, name) for name in names]
    assert [decode_session(one.data) for one in stored if one is not None] == [
        ("read", "n2"), ("a", "n1"),
    ]  # fmt: skip
    process.commit(*map(session, names))
    assert [entry_of(bench, name) for name in names] == stored
    process.commit(DropSession("claimed"))
    process.store.place("claimed", "n1")  # the end of the session was not read yet
    process.commit(session("claimed"))
    again = entry_of(bench, "claimed")
    assert again is not None
    assert decode_session(again.data) == ("claimed", "n1")


def test_the_end_of_a_session_is_in_the_log_for_a_while() -> None:
    bench = Bench()
    process = Process(bench)
    process.commit(session("a"), session("b"))
    process.commit(DropSession("a"), DropSession("b"), session("b"))
    ended, kept = entry_of(bench, "a"), entry_of(bench, "b")
    assert ended is not None
    assert kept is not None
    assert (ended.data, decode_session(kept.data)) == (b"", ("b", "n1"))
    assert (process.store.lane_of("a"), process.store.lane_of("b")) == (None, "n1")
    bench.runtime.advance(3601.0)
    assert entry_of(bench, "a") is None
    process.commit(session("a"))
    assert process.store.lane_of("a") == "n1"
    assert entry_of(bench, "a") is not None


def test_a_new_session_of_a_client_in_an_adopted_lane_stays_there() -> None:
    bench = Bench()
    process = two_lanes(bench)
    process.commit(DropSession("b"), session("b"), *queued("c/b", 1))
    assert process.store.lane_of("b") == "n2"
    assert list(process.store.lanes()["n2"].clients) == ["b"]
    assert process.topics("c/b") == ["m1"]


# fences --------------------------------------------------------------------------------------------------------------


def test_the_former_owner_of_the_home_lane_is_fenced() -> None:
    bench = Bench()
    first = Process(bench)
    first.commit(session("a"), *queued("c/a", 1))
    second = Process(bench)
    assert second.topics("c/a") == ["m1"]
    result = first.try_commit(Dequeue("c/a", 1))
    assert isinstance(result, StoreFailed)
    assert "another process owns lane 'n1'" in result.reason
    assert first.lost == [("n1", result.reason)]
    assert isinstance(first.try_commit(), StoreFailed)
    pages: list[Any] = []
    first.store.read("c/a", 0, 1, 1, pages.append)
    assert pages == [StoreFailed(result.reason)]
    second.commit(*queued("c/a", 2, 2))
    assert second.topics("c/a") == ["m1", "m2"]
    third = Process(bench)
    assert third.topics("c/a") == ["m1", "m2"]


def test_a_log_that_was_deleted_and_made_again_is_not_used() -> None:
    bench = Bench()
    process = Process(bench)
    process.commit(session("a"))
    bench.log.append([Entry(NAMES.own("n1"), b"", replace=True, ttl=1)])
    bench.runtime.advance(2.0)
    result = process.try_commit(*queued("c/a", 1))
    assert isinstance(result, StoreFailed)
    assert result.reason == "nobody owns lane 'n1': the log was deleted, and another one was made"
    assert process.lost == [("n1", result.reason)]


def test_a_commit_without_own_frames_is_fenced() -> None:
    bench = Bench()
    first = Process(bench)
    Process(bench)
    result = first.try_commit(PutRetained(make_message("t", b"x")))
    assert isinstance(result, StoreFailed)
    assert bench.log.messages([NAMES.retained_messages]) == []


def test_nothing_is_committed_without_a_lost_lane() -> None:
    bench = Bench()
    process = two_lanes(bench)
    other = Process(bench, "n2", ["n2"])
    process.outgoing = [Entry(NAMES.lane("n3"), b"for n3")]
    result = process.try_commit(*queued("c/a", 1), *queued("c/b", 2), DropSession("b"))
    assert isinstance(result, StoreFailed)
    assert "another process owns lane 'n2'" in result.reason
    assert process.lost == [("n2", result.reason)]
    assert process.released == ["b"]
    assert (other.topics("c/b"), list(other.store.lanes()["n2"].clients)) == ([], ["b"])
    assert bench.log.messages([NAMES.lane("n3")]) == []
    assert process.try_commit(*queued("c/a", 1)) == result
    again = Process(bench, "n1", ["n1"])
    assert again.topics("c/a") == []


def test_a_lane_that_no_commit_needs_may_be_lost() -> None:
    bench = Bench()
    process = two_lanes(bench)
    bench.own("n2", "other")
    process.commit(*queued("c/a", 1))
    assert process.lost == []


def test_a_store_that_was_told_to_fail_makes_no_commit_again() -> None:
    bench = Bench()
    process = two_lanes(bench)
    told: list[Any] = []
    process.store.set_fence("n1", bench.own("n1", process.boot))
    process.store.commit([*queued("c/a", 1), *queued("c/b", 2)], told.append)
    process.store.set_fence("n1", bench.own("n1", process.boot))  # the commit must be made again
    process.store.close_lane("n2")
    process.store.fail("the lane n2 is lost")
    bench.wait(lambda: told)
    assert told == [StoreFailed("the lane n2 is lost")]
    assert Process(bench, "n1", ["n1"]).topics("c/a") == []


def test_a_lane_may_be_closed_while_a_commit_runs() -> None:
    bench = Bench()
    process = two_lanes(bench)
    told: list[Any] = []
    process.store.commit([*queued("c/a", 1), *queued("c/b", 2)], told.append)
    process.store.close_lane("n2")
    bench.wait(lambda: told)
    assert isinstance(told[0], CommitId)
    told.clear()
    process.open("n2")
    bench.own("n2", "other")
    process.store.commit([*queued("c/a", 3, 3), *queued("c/b", 4, 4)], told.append)
    process.store.close_lane("n2")
    bench.wait(lambda: told)
    assert isinstance(told[0], CommitId)
    assert process.topics("c/a") == ["m1", "m3"]


def test_records_of_a_closed_lane_are_left_out() -> None:
    bench = Bench()
    process = two_lanes(bench)
    process.store.close_lane("n2")
    count = len(frames(bench, "n2"))
    process.commit(*queued("c/a", 1))
    assert len(frames(bench, "n2")) == count
    assert process.topics("c/a") == ["m1"]


def test_a_fence_may_change_while_a_commit_runs() -> None:
    bench = Bench()
    process = Process(bench)
    told: list[Any] = []
    fence = bench.own("n1", "b1")
    process.store.commit([session("a")], told.append)
    process.store.set_fence("n1", fence)
    bench.wait(lambda: told)
    assert isinstance(told[0], CommitId)
    assert process.lost == []
    assert [type(one) for one in frames(bench, "n1")[-1].records] == [PutSession]


def test_a_refusal_that_no_fence_explains_fails_the_store() -> None:
    bench = Bench()
    process = Process(bench)
    process.outgoing = [Entry(NAMES.lane("n3"), b"", (NAMES.own("n3"), 99))]
    result = process.try_commit(session("a"))
    assert isinstance(result, StoreFailed)
    assert "refused a commit" in result.reason


def test_a_store_without_its_home_lane_fails() -> None:
    bench = Bench()
    process = Process(bench)
    process.store.close_lane("n1")
    assert process.commit() == CommitId("c/n1/b1", 1)
    assert process.try_commit(PutRetained(make_message("t"))) == StoreFailed(
        "the home lane 'n1' is not open"
    )


# unknown results and crashes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_acknowledged_records_survive_faults_and_crashes(seed: int) -> None:
    """Two processes own a lane one after the other, while the engine loses requests and answers. No record of a finished
    commit is lost, none is there twice, and the order remains."""
    bench = Bench(seed, Faults(lost_request=0.1, lost_answer=0.1, late=0.1, page=3))
    finished: list[int] = []
    tried: list[int] = []
    id = 0
    process = Process(bench)
    process.commit(session("a"))
    for number in range(4):
        for _ in range(5):
            id += 1
            tried.append(id)
            if isinstance(process.try_commit(*queued("c/a", id, id)), CommitId):
                finished.append(id)
        id += 1
        tried.append(id)
        process.store.commit(queued("c/a", id, id), lambda result: None)
        bench.runtime.advance(bench.random.choice((0.0, 0.001, 0.01)))
        if number % 2:
            process.crash()
        process = Process(bench)
        found = [int(topic[1:]) for topic in process.topics("c/a")]
        assert found == sorted(found)
        assert set(finished) <= set(found) <= set(tried)
        finished = found  # the last one may have been committed


def test_an_engine_that_does_not_answer_fails_the_store() -> None:
    bench = Bench()
    process = Process(bench)
    process.engine.cut()
    result = process.try_commit(session("a"))
    assert isinstance(result, StoreFailed)
    assert "cannot be written: the engine did not answer" in result.reason
    assert process.lost == []


def test_a_lane_is_read_again_until_the_engine_answers() -> None:
    bench = Bench()
    Process(bench).commit(session("a"))
    told: list[Any] = []
    process = Process(bench, "n2", ["n2"])
    process.engine.cut()
    process.store.open_lane("n1", bench.own("n1", "x"), told.append)
    bench.runtime.advance(5.0)
    assert not told
    process.engine.heal()
    bench.wait(lambda: told)
    assert list(told[0].clients) == ["a"]
    process.engine.cut()
    failed = process.try_open("n1")
    assert isinstance(failed, StoreFailed)
    assert "lane 'n1' cannot be read" in failed.reason
    assert "n1" not in process.store.lanes()


# damaged logs --------------------------------------------------------------------------------------------------------


def test_a_refused_commit_fails_if_the_home_lane_was_given_away() -> None:
    bench = Bench()
    process = Process(bench)
    process.outgoing = [Entry(NAMES.lane("n2"), b"x")]
    bench.own("n1", "other")
    told: list[CommitId | StoreFailed] = []
    process.store.commit((session("c"),), told.append)
    process.store.close_lane("n1")
    bench.wait(lambda: told)
    assert told == [StoreFailed("the home lane 'n1' was given away during a commit")]


def test_a_damaged_log_is_refused_with_the_place() -> None:
    bench = Bench()
    process = Process(bench)
    process.commit(session("a"))
    damaged = bench.log.append([Entry(NAMES.lane("n1"), b"\x98\x01\x01junk")])
    assert isinstance(damaged, Appended)
    failed = Process(bench, "n2", ["n2"]).try_open("n1")
    assert isinstance(failed, StoreFailed)
    assert failed.reason.startswith(
        f"the log of lane 'n1' is damaged: sequence {damaged.last}: invalid msgpack"
    )


def test_an_incomplete_frame_and_a_missing_message_are_refused() -> None:
    bench = Bench()
    frame = OwnerFrame(Origin("n1", "b", 1), 0, tuple(queued("c/a", 1, payload=bytes(500))))
    parts = encode_owner(frame, 200)
    bench.log.append([Entry(NAMES.lane("n1"), part) for part in parts[:-1]])
    process = Process(bench, "n2", ["n2"])
    failed = process.try_open("n1")
    assert failed == StoreFailed(
        "the log of lane 'n1' is damaged: sequence 1: the last frame is incomplete"
    )
    [part] = encode_owner(frame._replace(records=(make_entry("c/a", 3, 8),)), 200)
    bench.log.append([Entry(NAMES.lane("n3"), part)])
    failed = process.try_open("n3")
    assert isinstance(failed, StoreFailed)
    assert failed.reason.endswith("message 8 of queue 'c/a', entry 3, is missing")


def test_a_log_that_is_trimmed_while_it_is_read_is_read_again() -> None:
    bench = Bench(faults=Faults(page=1))
    first = Process(bench)
    first.commit(session("a"), session("b"))
    for number in range(5):
        first.commit(PutState("s/p", str(number), b""))
    first.commit(DropSession("a"))
    state = first.store.lanes()["n1"]
    first.store.passed("n1", bench.log.sequence)
    again = state.take_oldest(100)
    told: list[Any] = []
    second = Process(bench, "n2", ["n2"])
    first.commit(*again)
    second.store.open_lane("n1", bench.own("n1", "x"), told.append)
    bench.runtime.advance(0.005)  # two or three pages of one frame
    assert not told
    bench.log.trim(NAMES.lane("n1"), bench.log.messages([NAMES.lane("n1")])[-1].sequence)
    bench.wait(lambda: told)
    assert isinstance(told[0], LaneState)
    assert list(told[0].clients) == ["b"]


def test_a_range_of_message_ids_is_not_used_twice() -> None:
    bench = Bench()
    first = Process(bench)
    id = first.store.next_message_id()
    first.commit(session("a"), *queued("c/a", id))
    second = Process(bench, "n2", ["n2"])
    second.store._first_id = id
    failed = second.try_open("n1")
    assert failed == StoreFailed("lane 'n1' has message ids of this process: restart it")
    first.store.close_lane("n1")
    assert first.open("n1").messages == 1, "the ids are its own"


def test_messages_of_a_lane_that_was_given_away_may_return_in_another_one() -> None:
    bench = Bench()
    first = Process(bench)
    second = Process(bench, "n2", ["n2"])
    second.commit(*queued("g/x/t", first.store.next_message_id()))
    first.store.close_lane("n1")
    first.open("n1")
    assert first.open("n2").messages == 1


# the inbox -----------------------------------------------------------------------------------------------------------


class Inbox:
    """Delivers the frames of other nodes in a lane to the queue of the client a."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.after = process.store.lanes()["n1"].inbox
        self.reader = Frames()
        self.seq = max([seq for seq, _ in self.queue()], default=0)

    def queue(self) -> list[tuple[int, str]]:
        pages: list[Any] = []
        self.process.store.read("c/a", -1, 1000, 1 << 30, pages.append)
        return [(entry.seq, message.topic) for entry, message in pages[0]]

    def deliver(self) -> list[Record]:
        records: list[Record] = []
        for stored in self.process.bench.log.messages([NAMES.lane("n1")], self.after):
            self.after = stored.sequence
            if is_owner_frame(stored.data):
                self.process.store.passed("n1", stored.sequence)
                continue
            frame = self.reader.read(stored.data)
            if isinstance(frame, PeerFrame):
                for item in frame.items:
                    assert isinstance(item, MessageItem)
                    self.seq += 1
                    id = self.process.store.next_message_id() + self.seq
                    records += [PutMessage(id, item.message), make_entry("c/a", self.seq, id)]
                self.process.store.received("n1", stored.sequence, len(stored.data))
        return records


@pytest.mark.parametrize("seed", range(10))
def test_frames_of_other_nodes_are_delivered_once(seed: int) -> None:
    """The cursor of the inbox is committed together with the messages, also if the process dies at any moment."""
    bench = Bench(seed, Faults(lost_answer=0.1))
    sent: list[str] = []
    process = Process(bench)
    process.commit(session("a"))
    inbox = Inbox(process)
    for number in range(30):
        items = tuple(
            MessageItem(make_message(f"m{number}.{part}", bytes(100)), (), True)
            for part in range(2)
        )
        sent += [item.message.topic for item in items]
        frame = PeerFrame(Origin("n2", "b0", number), items)
        bench.log.append([Entry(NAMES.lane("n1"), part) for part in encode_peer(frame, 150)])
        if bench.random.random() < 0.5:
            records = inbox.deliver()
            if bench.random.random() < 0.5:
                process.try_commit(*records)
            else:
                process.store.commit(records, lambda result: None)
                bench.runtime.advance(bench.random.choice((0.0, 0.001, 3.0)))
                process.crash()
                process = Process(bench)
                inbox = Inbox(process)
    process.try_commit(*inbox.deliver())
    assert [topic for _, topic in inbox.queue()] == sent
    assert [topic for _, topic in Inbox(Process(bench)).queue()] == sent


def test_a_moved_cursor_alone_is_a_commit() -> None:
    bench = Bench()
    process = Process(bench)
    process.store.received("n1", 5)
    process.commit()
    assert [frame.inbox for frame in frames(bench, "n1")] == [5]
    process.commit()
    process.store.passed("n1", 9)
    process.commit()
    assert len(frames(bench, "n1")) == 1
    process.commit(session("a"))
    assert frames(bench, "n1")[-1].inbox == 9


def test_the_cursor_survives_a_restart() -> None:
    bench = Bench()
    process = Process(bench)
    process.store.received("n1", 5)
    process.commit()
    for _ in range(2):
        process = Process(bench)
        assert process.store.lanes()["n1"].inbox == 5
        process.commit(session("a"))


# the size of commits and of the log ----------------------------------------------------------------------------------


def test_an_empty_batch_calls_back_at_once() -> None:
    bench = Bench()
    process = Process(bench)
    told: list[Any] = []
    before = bench.log.sequence
    process.store.commit([], told.append)
    assert told == [CommitId("c/n1/b1", 1)]
    assert process.committed == [(told[0], 0)]
    assert bench.log.sequence == before


def test_many_retained_messages_take_several_commits_of_the_log() -> None:
    bench = Bench()
    process = Process(bench)
    records = [PutRetained(make_message(f"t{number}", b"x")) for number in range(2500)]
    records += [PutRetained(make_message("t0", b"y"))]
    before = len(bench.log.commits)
    process.commit(PutPublisher(1, ClientRecord("p", 5)), *records, session("a"))
    sizes = [one.last - one.first + 1 for one in bench.log.commits[before:]]
    assert sizes == [1000, 502, 1000]
    assert len(bench.log.messages([NAMES.retained_messages])) == 2500
    assert process.committed[-1][1] == bench.log.sequence
    assert list(process.store.lanes()["n1"].clients) == ["a"]


@pytest.mark.parametrize("retained", [997, 998, 999, 1000, 1998])
def test_the_parts_of_a_frame_stay_together(retained: int) -> None:
    bench = Bench()
    process = Process(bench)
    lane = NAMES.lane("n3")
    process.outgoing = [Entry(lane, b"part 0"), Entry(lane, b"part 1"), Entry(lane, b"part 2")]
    before = len(bench.log.commits)
    process.commit(*(PutRetained(make_message(f"t{number}", b"x")) for number in range(retained)))
    commits = bench.log.commits[before:]
    parts = [one.sequence for one in bench.log.messages([lane])]
    assert len(parts) == 3
    assert any(one.first <= parts[0] and parts[-1] <= one.last for one in commits)
    assert len(bench.log.messages([NAMES.retained_messages])) == retained


def test_a_frame_with_more_parts_than_a_commit_has_entries_is_split() -> None:
    bench = Bench()
    process = Process(bench)
    process.outgoing = [Entry(NAMES.lane("n3"), b"%d" % number) for number in range(2100)]
    before = len(bench.log.commits)
    process.commit()
    sizes = [one.last - one.first + 1 for one in bench.log.commits[before:]]
    assert sum(sizes) == 2100
    assert max(sizes) == 1000


def test_many_sessions_may_end_in_one_batch() -> None:
    bench = Bench()
    process = Process(bench)
    names = [f"c{number}" for number in range(2500)]
    for start in range(0, 2500, 500):
        process.commit(*map(session, names[start : start + 500]))
    before = len(bench.log.commits)
    assert isinstance(process.try_commit(*map(DropSession, names)), CommitId)
    bench.runtime.advance(1.0)
    sizes = [one.last - one.first + 1 for one in bench.log.commits[before:]]
    assert len(sizes) == 3
    assert max(sizes) == 1000
    stored = {one.subject: one.data for one in bench.log.messages([NAMES.sessions])}
    assert [stored[NAMES.session(name)] for name in names] == [b""] * 2500
    process.commit(session("c1"))
    assert list(process.store.lanes()["n1"].clients) == ["c1"]


def test_many_sessions_may_begin_in_one_batch() -> None:
    """Clients with a will and without a durable session claim no entry before."""
    bench = Bench()
    process = Process(bench)
    names = [f"c{number}" for number in range(2500)]
    process.outgoing = [Entry(NAMES.lane("n3"), b"for n3")]
    before = len(bench.log.commits)
    process.commit(*map(session, names))
    commits = bench.log.commits[before:]
    assert [one.last - one.first + 1 for one in commits] == [1000, 502, 1000]
    assert bench.log.messages([NAMES.lane("n3")])[0].sequence >= commits[-1].first
    stored = {one.subject: one.data for one in bench.log.messages([NAMES.sessions])}
    assert [decode_session(stored[NAMES.session(name)]) for name in names] == [
        (name, "n1") for name in names
    ]
    assert len(process.store.lanes()["n1"].clients) == 2500
    Process(bench)
    more = [session(f"d{number}") for number in range(1500)]
    assert isinstance(process.try_commit(*more), StoreFailed), "each part is fenced"
    assert bench.log.sequence == commits[-1].last + 1


def test_entries_about_ended_sessions_are_fenced() -> None:
    """They come after their commit. If the lane has another owner by then, the session may exist again."""
    bench = Bench()
    process = Process(bench)
    names = [f"c{number}" for number in range(1500)]
    process.commit(*map(session, names[:700]))
    process.commit(*map(session, names[700:]))
    commit, late = process.engine.commit, []

    def hold(entries: Any, done: Any, key: str = "") -> None:
        late.append((entries, done, key)) if "/late" in key else commit(entries, done, key)

    process.engine.commit = hold  # type: ignore[method-assign]
    process.commit(*map(DropSession, names))
    [(entries, done, key)] = late
    other = Process(bench)
    other.commit(*map(session, names[:700]))
    other.commit(*map(session, names[700:]))
    commit(entries, done, key)
    bench.runtime.advance(1.0)
    stored = {one.subject: one.data for one in bench.log.messages([NAMES.sessions])}
    assert all(stored[NAMES.session(name)] for name in names)


def test_a_batch_that_is_too_large_fails() -> None:
    bench = Bench()
    process = Process(bench)
    process.engine.max_batch, process.engine.max_entry = 3, 1000
    assert isinstance(process.try_commit(*queued("c/a", 1, payload=bytes(1500))), CommitId)
    result = process.try_commit(*queued("c/a", 2, payload=bytes(4000)))
    assert isinstance(result, StoreFailed)
    assert "entries in this node's lanes, at most 3 are possible" in result.reason


@needs_the_source
def test_the_log_is_compacted_and_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLACK", 20_000)
    monkeypatch.setattr(compaction, "TRIM", 5_000)
    bench = Bench()
    process = Process(bench)
    inbox = Inbox(process)
    process.commit(session("a"), *queued("c/a", 1, payload=bytes(2000)))
    for number in range(200):
        assert inbox.deliver() == []
        process.commit(*queued("c/b", 10 + number, payload=bytes(1000)), Dequeue("c/b", 0))
        process.commit(Dequeue("c/b", 1))
    stored = bench.log.messages([NAMES.lane("n1")])
    assert sum(len(one.data) for one in stored) < 40_000
    state = process.store.lanes()["n1"]
    assert state.log_bytes == sum(len(one.data) for one in stored)
    again = Process(bench)
    assert again.topics("c/a") == ["m1"]
    assert again.store.lanes()["n1"].live_bytes == state.live_bytes


@needs_the_source
def test_a_lane_whose_inbox_lags_is_not_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLACK", 5_000)
    monkeypatch.setattr(compaction, "TRIM", 1_000)
    bench = Bench()
    process = Process(bench)
    first = bench.log.append([Entry(NAMES.lane("n1"), b"for n1")])
    assert isinstance(first, Appended)
    for number in range(50):
        process.commit(*queued("c/b", 10 + number, payload=bytes(1000)), Dequeue("c/b", 1))
    stored = bench.log.messages([NAMES.lane("n1")])
    assert stored[0].sequence == first.last
    assert sum(len(one.data) for one in stored) < 100_000, "nothing is written again in vain"


@needs_the_source
def test_nothing_is_written_again_while_a_trim_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLACK", 5_000)
    monkeypatch.setattr(compaction, "TRIM", 1_000)
    bench = Bench()
    process = Process(bench)
    trims: list[int] = []
    monkeypatch.setattr(
        process.engine, "trim", lambda _subject, before, _done: trims.append(before)
    )
    inbox = Inbox(process)
    for number in range(10, 60):
        records = queued("c/b", number, number, payload=bytes(1000))
        process.commit(*records, Dequeue("c/b", number - 4))
        inbox.deliver()
    assert len(trims) == 1
    stored = bench.log.messages([NAMES.lane("n1")])
    assert sum(len(one.data) for one in stored) < 50 * 1200


# queues --------------------------------------------------------------------------------------------------------------


def test_expired_entries_of_all_lanes_are_found() -> None:
    bench = Bench()
    process = two_lanes(bench)
    for id in range(1, 21):
        expires_at = bench.runtime.time() + (10.0 if id % 2 else 1000.0)
        message = Message(f"m{id}", b"", 1, expires_at=expires_at)
        process.commit(PutMessage(id, message), make_entry("c/a" if id < 11 else "c/b", id, id, 5))
    found: list[tuple[str, int, int, int]] = []
    place: object = None
    pages = 0
    while place is not None or not pages:
        told: list[ExpiredEntries] = []
        process.store.expired(bench.runtime.time() + 20.0, place, 3, told.append)  # type: ignore[arg-type]
        found += told[0].entries
        place = told[0].place
        pages += 1
    owners = ["c/a"] * 5 + ["c/b"] * 5
    assert sorted(found) == [
        (owner, id, 5, id) for owner, id in zip(owners, range(1, 21, 2), strict=True)
    ]
    assert pages == 4


def test_the_state_of_a_lane_that_is_not_open_is_empty() -> None:
    process = two_lanes(Bench())
    process.commit(*queued("c/b", 1))
    process.store.close_lane("n2")
    assert process.topics("c/b") == []
    told: list[None] = []
    process.store.close(lambda: told.append(None))
    assert told
    assert process.store.lanes() == {}
