"""Two nodes that take each other's lanes hold what simple models hold, with lost answers, crashes and trims."""

from typing import Any

from cluster_stores import Bench, Process
from hookmq.storage_api import (
    CommitId,
    Dequeue,
    DropReceived,
    DropSession,
    DropState,
    DropSubscription,
    Enqueue,
    PutMessage,
    PutReceived,
    PutSession,
    PutState,
    PutSubscription,
    Record,
    SetPacket,
)
from hookmq_cluster import compaction
from hookmq_testing import DurableStore
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lane_records import BATCHES, Ids, contents
from simulated_engine import Faults

HOMES = {"a": "n1", "b": "n2", "ä/#": "n1"}
"""The lanes of the clients."""
NODES = st.sampled_from(["n1", "n2"])
FAULTS = st.sampled_from([Faults(), Faults(lost_request=0.1, lost_answer=0.2, late=0.1, page=2)])


def client_of(record: Record) -> str | None:
    """Return the client that a record belongs to, or None."""
    if isinstance(record, Enqueue | Dequeue | SetPacket):
        return record.owner[2:] if record.owner.startswith("c/") else None
    if isinstance(record, PutSession):
        return record.session.client_id
    if isinstance(
        record, DropSession | PutSubscription | DropSubscription | PutReceived | DropReceived
    ):
        return record.client_id
    return None


class StoreMachine(RuleBasedStateMachine):
    """The lane n1 and the lane n2, each owned by one of two nodes. A node that has lost a lane starts again."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = compaction.SLACK, compaction.LEAST, compaction.TRIM
        compaction.SLACK, compaction.LEAST, compaction.TRIM = 50, 100, 1  # type: ignore[misc]

    @initialize(seed=st.integers(0, 1000), faults=FAULTS)
    def begin(self, seed: int, faults: Faults) -> None:
        self.bench = Bench(seed, faults)
        self.ids = Ids()
        self.models = {"n1": DurableStore(), "n2": DurableStore()}
        self.nodes = {node: Process(self.bench, node, [node]) for node in ("n1", "n2")}

    def teardown(self) -> None:
        compaction.SLACK, compaction.LEAST, compaction.TRIM = self.kept  # type: ignore[misc]

    def by_lane(
        self, node: str, batch: list[Record]
    ) -> tuple[list[Record], dict[str, list[Record]]]:
        """Return the records that the node can commit, and the part of each lane."""
        store = self.nodes[node].store
        owned = store.lanes()
        for name, lane in HOMES.items():
            if lane in owned:
                store.place(name, lane)  # as when a client connects
        used: list[Record] = []
        lanes: dict[str, list[Record]] = {}
        messages: dict[int, PutMessage] = {}
        for record in batch:
            client_id = client_of(record)
            if isinstance(record, PutMessage):
                messages[record.id] = record
            elif client_id is None and not isinstance(record, PutState | DropState):
                continue
            else:
                target = node if client_id is None else HOMES[client_id]
                if target not in owned:
                    continue
                part = lanes.setdefault(target, [])
                if isinstance(record, Enqueue) and messages[record.message_ref] not in part:
                    part.append(messages[record.message_ref])
                part.append(record)
            used.append(record)
        return used, lanes

    def passed(self, node: str) -> None:
        """What the inbox does when there are no frames of other nodes."""
        store = self.nodes[node].store
        for lane, state in store.lanes().items():
            store.passed(lane, state.newest)

    @rule(node=NODES, batches=st.lists(BATCHES, min_size=1, max_size=8))
    def commit(self, node: str, batches: list[list[Record]]) -> None:
        for batch in batches:
            self.commit_one(node, batch)

    def commit_one(self, node: str, batch: list[Record]) -> None:
        used, lanes = self.by_lane(node, self.ids.with_messages(batch))
        process = self.nodes[node]
        if isinstance(process.try_commit(*used), CommitId):
            assert not process.lost
            for lane, records in lanes.items():
                self.models[lane].commit(records, lambda result: None)
            self.passed(node)
        else:
            assert not all(self.owns(node, lane) for lane, _ in process.lost)
            self.restart(node)

    @rule(node=NODES, batch=BATCHES, delay=st.sampled_from([0.0, 0.0005, 0.002, 1.5]))
    def die_in_a_commit(self, node: str, batch: list[Record], delay: float) -> None:
        """The other node adopts all lanes. The commit is whole or not there."""
        used, lanes = self.by_lane(node, self.ids.with_messages(batch))
        process = self.nodes[node]
        owned = [lane for lane in process.store.lanes() if self.owns(node, lane)]
        told: list[Any] = []
        number = process.store.last_commit().number + 1
        process.store.commit(used, told.append)
        self.bench.runtime.advance(delay)
        process.crash()
        other = "n2" if node == "n1" else "n1"
        if self.nodes[other].store.lanes().get(other) is None or not self.owns(other, other):
            self.restart(other)
        for lane in owned:
            self.take(other, lane)
        keys = [one.key.split("/")[:2] for one in self.bench.log.commits]
        whole = [process.boot, str(number)] in keys
        if told and isinstance(told[0], CommitId) and any(lane in owned for lane in lanes):
            assert whole, "a finished commit is lost"
        if whole:
            for lane in owned:
                self.models[lane].commit(lanes.get(lane, []), lambda result: None)
        self.nodes[node] = self.started(node)

    @rule(node=NODES)
    def restart(self, node: str) -> None:
        """The node starts again, and takes its home lane from its owner."""
        self.nodes[node].crash()
        self.nodes[node] = self.started(node)

    def started(self, node: str) -> Process:
        return Process(self.bench, node, [node])

    @rule(node=NODES, lane=NODES)
    def take(self, node: str, lane: str) -> None:
        """A node adopts a lane. The former owner notices it at its next commit."""
        process = self.nodes[node]
        if lane == node and not self.owns(node, node):
            return  # it has to start again
        process.open(lane)

    def owns(self, node: str, lane: str) -> bool:
        """Return whether the last owner of the lane is the node's process."""
        owner = self.bench.log.messages([f"hmq.c.own.{lane}"])[-1]
        return owner.data == self.nodes[node].boot.encode()

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "nodes"):
            return
        for lane, model in self.models.items():
            for node, process in self.nodes.items():
                if self.owns(node, lane):
                    state = process.store.lanes()[lane]
                    assert contents(state) == contents(model)
                    stored = self.bench.log.messages([f"hmq.c.lane.{lane}"])
                    size = sum(len(one.data) for one in stored)
                    # A trim may be under way. The rest is one frame, headers, and `compaction.SLACK`.
                    assert size < 3 * state.live_bytes + 6000


TestStoreMachine = StoreMachine.TestCase
# Failures are printed as they were found: to shrink one would take minutes.
TestStoreMachine.settings = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate), max_examples=40, stateful_step_count=25
)
