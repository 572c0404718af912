"""A plugin that offers a cluster with two nodes to the API of the plugin admin."""

from typing import Any

from hookmq.plugin import Context, Plugin
from hookmq_toolkit.cluster import (
    SERVICE,
    ClusterError,
    ClusterLane,
    ClusterMember,
    ClusterStatus,
    NodeState,
)


class TwoNodes(Plugin):
    """A cluster of the nodes `a` and `b`. Its lane `c` has no owner. Moves and drains are only recorded."""

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.state: NodeState = "ready"
        self.refusal: ClusterError | None = None
        self.moves: list[tuple[str, str]] = []
        self.offered_services = {SERVICE: self}
        self.drains: list[tuple[str, float, bool]] = []
        self.next_states: list[NodeState] = []
        """The states that the node shows, one after the other, before `state`."""
        self.problem = ""

    def show_cluster(self) -> ClusterStatus:
        members = (ClusterMember("a", "10.0.0.1:7222"), ClusterMember("b", "10.0.0.2:7222"))
        lanes = (
            ClusterLane("a", "a", True, 3, 900),
            ClusterLane("b", "b", True, None, None),
            ClusterLane("c", "", False, None, None),
        )
        state = self.next_states.pop(0) if self.next_states else self.state
        return ClusterStatus("plant", "a", state, 15.0, 1.25, members, lanes, self.problem)

    async def move_lane(self, lane: str, node: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.moves.append((lane, node))

    def drain_node(self, node: str, seconds: float, moved: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.drains.append((node, seconds, moved))
        self.state, self.next_states = "drained", ["draining", "draining"]

    def undrain_node(self, node: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.state, self.next_states = "ready", ["returning"]
