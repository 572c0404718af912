"""Measure a lane of a cluster without its engine: the CPU time of a durable message, and the cost of stored sessions.

    python -m bench.cluster_lane [--sessions 100000]

A message is one PutMessage and one Enqueue, later one Dequeue. `encode` makes the frame, `apply` adds it to the lane's
state. The log is a list in memory. CPU time is user and system time of this process.
"""

import argparse
import gc
import resource
from collections.abc import Callable
from itertools import count
from time import process_time

from hookmq.plugin import ClientRecord, Message, Peer, Subscription
from hookmq.storage_api import (
    Dequeue,
    Enqueue,
    PutMessage,
    PutSession,
    PutSubscription,
    Record,
    SessionRecord,
)
from hookmq_cluster.engine import Appended, Engine, Entry, Stored
from hookmq_cluster.frames import Frames, Origin, OwnerFrame, encode_owner
from hookmq_cluster.lane_state import LaneState
from hookmq_cluster.names import Names
from hookmq_cluster.store import ClusterStore
from hookmq_testing.runtime import VirtualRuntime


class ListEngine:
    """An engine that appends at once to a list, and never refuses."""

    max_entry = 1 << 20
    max_batch = 1000

    def __init__(self) -> None:
        self.entries: list[Stored] = []
        self.bytes = 0
        self.written = 0

    def commit(self, entries: list[Entry], done: Callable[[Appended], None], key: str = "") -> None:
        for entry in entries:
            self.written += len(entry.data)
            self.bytes += len(entry.data)
            self.entries.append(Stored(entry.subject, self.written, entry.data, 0.0))
        done(Appended(self.written))

    def read(self, filters: list[str], after: int, done: Callable[[list[Stored]], None]) -> None:
        done([])

    def trim(self, subject: str, before: int, done: Callable[[None], None]) -> None:
        done(None)


def message_costs() -> None:
    """Print the cost of durable messages by the number of messages in a commit."""
    print(f"{'messages per commit':>20} {'encode us':>10} {'apply us':>9} {'commit us':>10}")
    for batch in (1, 10, 100, 1000):
        rounds = 40_000 // batch
        state = LaneState("n1")
        state.complete()
        ids = count(77 << 32)
        batches: list[list[Record]] = []
        for number in range(rounds):
            records: list[Record] = []
            for one in range(batch):
                id = next(ids)
                message = Message(f"site/{one}/temperature", bytes(100), 1, sender=f"device-{one}")
                records.append(PutMessage(id, message))
                records.append(Enqueue(f"c/client-{one}", number, id, 1, 130, filter="site/#"))
                records.append(Dequeue(f"c/client-{one}", number - 1))
            batches.append(records)
        gc.freeze()  # as the server does: the collector does not visit the messages again and again
        frames = [
            OwnerFrame(Origin("n1", "b", number), number, tuple(records))
            for number, records in enumerate(batches, 1)
        ]
        began = process_time()
        sizes = [sum(map(len, encode_owner(frame, 1 << 20))) for frame in frames]
        encoded = process_time()
        for number, frame in enumerate(frames):
            state.apply(number + 1, frame, sizes[number])
        applied = process_time()
        engine = ListEngine()
        runtime = VirtualRuntime()
        store = open_store(engine, runtime)
        before = process_time()
        for records in batches:
            store.commit(records, lambda result: None)
        committed = process_time() - before
        total = rounds * batch / 1e6
        print(
            f"{batch:>20} {(encoded - began) / total:>10.2f} {(applied - encoded) / total:>9.2f} "
            f"{committed / total:>10.2f}"
        )


def open_store(engine: ListEngine, runtime: VirtualRuntime) -> ClusterStore:
    """Return a store with an empty home lane."""
    used: Engine = engine  # type: ignore[assignment]
    store = ClusterStore(
        used, Names("c"), runtime, "n1", "b", "n1", lambda record: [], lambda: ([], False),
        lambda commit, last: None, lambda lane, reason: None,
    )  # fmt: skip
    store.open_lane("n1", 1, lambda result: None)
    return store


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def session_costs(sessions: int) -> None:
    """Print the cost of sessions with two subscriptions each, and the time to open their lane again."""
    data: list[bytes] = []
    for at in range(0, sessions, 100):
        records: list[Record] = []
        for number in range(at, min(at + 100, sessions)):
            name = f"device-{number:06}"
            client = ClientRecord(
                name, 5, name, name, {}, "plugin:users", Peer("192.0.2.7", 40_000)
            )
            records.append(PutSession(SessionRecord(client, 3600.0)))
            for part in ("commands", "config"):
                filter = f"site/{number}/{part}/#"
                records.append(PutSubscription(name, Subscription(filter, filter, 1)))
        data += encode_owner(OwnerFrame(Origin("n1", "b", at), 1, tuple(records)), 1 << 20)
    gc.collect()
    before = resident()
    began = process_time()
    reader = Frames()
    state = LaneState("n1")
    for sequence, stored in enumerate(data, 1):
        frame = reader.read(stored)
        if isinstance(frame, OwnerFrame):
            state.apply(sequence, frame, len(stored))
    assert state.complete() == ""
    took = process_time() - began
    gc.collect()
    used = resident() - before
    print(
        f"\n{len(state.clients)} sessions with 2 subscriptions: {sum(map(len, data)) / sessions:.0f} bytes each in the "
        f"log, {used / sessions:.0f} in memory, opened again in {took:.1f} s of CPU time"
    )


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description="Measure a lane of a cluster")
    parser.add_argument("--sessions", type=int, default=100_000)
    message_costs()
    session_costs(parser.parse_args().sessions)


if __name__ == "__main__":
    main()
