"""Stores of one or more nodes on a simulated log, for tests."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from hookmq.storage_api import (
    CommitId,
    DropPublisher,
    DropRetained,
    Loaded,
    PutPublisher,
    PutRetained,
    Record,
    StoreFailed,
)
from hookmq_cluster.engine import Appended, Entry
from hookmq_cluster.frames import (
    decode_client,
    decode_message,
    decode_value,
    encode_client,
    encode_message,
    encode_value,
)
from hookmq_cluster.lane_state import LaneState
from hookmq_cluster.names import Names
from hookmq_cluster.placement import Retained
from hookmq_cluster.store import ClusterStore
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import QUIET, Faults, SimulatedEngine, SimulatedLog

NAMES = Names("c")


class Bench:
    """A log, and the processes that use it."""

    def __init__(self, seed: int = 1, faults: Faults = QUIET) -> None:
        self.runtime = VirtualRuntime(seed)
        self.random = Random(seed)
        self.log = SimulatedLog(self.runtime, self.random, faults)
        self.boots = 0

    def wait(self, until: Callable[[], object], seconds: float = 100.0) -> None:
        """Advance the clock until `until()` is true."""
        end = self.runtime.now() + seconds
        self.runtime.run_until_idle()
        while not until():
            now = self.runtime.now()
            assert now < end, "the awaited event does not happen"
            due = self.runtime.next_timer()
            self.runtime.advance(min(due - now if due is not None else 0.05, 0.05))

    def own(self, lane: str, node: str) -> int:
        """Make `node` the owner of a lane, and return the fence."""
        result = self.log.append([Entry(NAMES.own(lane), node.encode(), replace=True)])
        assert isinstance(result, Appended)
        return result.last


class Process:
    """One process of a node with its store. It owns the lanes in `lanes`; the first one is its home lane."""

    def __init__(self, bench: Bench, node: str = "n1", lanes: Sequence[str] = ("n1",)) -> None:
        bench.boots += 1
        self.bench = bench
        self.boot = f"b{bench.boots}"
        self.engine = SimulatedEngine(bench.log, bench.runtime, bench.random)
        self.lost: list[tuple[str, str]] = []
        self.released: list[str] = []
        self.committed: list[tuple[CommitId, int]] = []
        self.outgoing: list[Entry] = []
        self.publishers: dict[int, PutPublisher] = {}
        self.store = self.make(node, lanes[0])
        for lane in lanes:
            self.open(lane)

    def make(self, node: str, home: str) -> ClusterStore:
        """Return the store."""
        return ClusterStore(
            self.engine, NAMES, self.bench.runtime, node, self.boot, home, self.retained, self.take,
            lambda commit, last: self.committed.append((commit, last)),
            self.lose,
        )  # fmt: skip

    def lose(self, lane: str, reason: str) -> None:
        """Note that a lane is lost, and its sessions, which the broker has to release."""
        self.lost.append((lane, reason))
        self.released += self.store.lanes()[lane].clients

    def try_open(self, lane: str, fence: int | None = None) -> LaneState | StoreFailed:
        """Take and open a lane, and return the result."""
        told: list[LaneState | StoreFailed] = []
        if fence is None:
            fence = self.bench.own(lane, self.boot)
        self.store.open_lane(lane, fence, told.append)
        self.bench.wait(lambda: told)
        [result] = told
        return result

    def open(self, lane: str) -> LaneState:
        """Take and open a lane, with its queues of shared subscriptions."""
        state = self.try_open(lane)
        assert isinstance(state, LaneState), state
        self.store.placement.add_groups(lane, ())
        return state

    def try_commit(self, *records: Record) -> CommitId | StoreFailed:
        """Commit records, and return the result."""
        told: list[CommitId | StoreFailed] = []
        self.store.commit(records, told.append)
        self.bench.wait(lambda: told)
        [result] = told
        return result

    def commit(self, *records: Record) -> CommitId:
        """Commit records."""
        result = self.try_commit(*records)
        assert isinstance(result, CommitId), result
        return result

    def topics(self, owner: str) -> list[str]:
        """Return the topics of the messages in a queue."""
        pages: list[Any] = []
        self.store.read(owner, -(1 << 62), 1000, 1 << 30, pages.append)
        return [message.topic for _, message in pages[0]]

    def messages(self) -> int:
        """Return the number of stored messages."""
        return sum(state.messages for state in self.store.lanes().values())

    def take(self) -> tuple[list[Entry], bool]:
        """Return the messages for other lanes, none of them with QoS 2."""
        taken, self.outgoing = self.outgoing, []
        return taken, False

    def retained(self, record: Retained) -> list[Entry]:
        """Return the entries of a retained message, with its publisher."""
        if isinstance(record, PutPublisher):
            self.publishers[record.id] = record
        elif isinstance(record, PutRetained):
            put = self.publishers.get(record.publisher)
            publisher = None if put is None else (put.id, encode_client(put.client))
            data = encode_value((encode_message(record.message), publisher))
            return [Entry(NAMES.retained(record.message.topic), data, replace=True)]
        elif isinstance(record, DropRetained):
            return [Entry(NAMES.retained(record.topic), b"", replace=True, ttl=60)]
        else:
            assert isinstance(record, DropPublisher)
        return []

    def loaded(self) -> Iterator[Loaded]:
        """Yield everything that is stored, as one store would."""
        for state in self.store.lanes().values():
            yield from state.loaded()
        entries = [
            decode_value(stored.data)
            for stored in self.bench.log.messages([NAMES.retained_messages])
            if stored.data
        ]
        for _, publisher in entries:
            if publisher is not None and publisher[0] not in self.publishers:
                record = PutPublisher(publisher[0], decode_client(publisher[1]))
                self.publishers[record.id] = record
                yield record
        for fields, publisher in entries:
            yield PutRetained(decode_message(fields), 0 if publisher is None else publisher[0])

    def crash(self) -> None:
        """End the process."""
        self.engine.crash()
