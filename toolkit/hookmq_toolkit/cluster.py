"""A service for managing a cluster of brokers: one plugin provides it, and another can offer it to operators. Also an
attribute of plugins that do not work in a cluster.

A plugin offers a `ClusterManager` in `Plugin.offered_services` under the name `SERVICE`. A lane is the part of the
cluster's state that one node owns at a time, with its sessions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

SERVICE: Final = "cluster"
"""The name of the service in `Plugin.offered_services`."""
NodeState = Literal["joining", "ready", "isolated", "draining", "drained", "returning", "leaving"]
"""The state of a node. `isolated` means that the log does not confirm its lease, so that other nodes may soon regard it
as dead. A node that is `draining` gives away its clients and lanes; then it is `drained`, until it is put back."""


class ClusterError(Exception):
    """A refused request. The message tells the operator why.

    `reason` is ``missing`` (no lane or node has this name), ``conflict`` (the request conflicts with the current state)
    or ``failed`` (the cluster's log did not accept the change). `field` is the name of the parameter at fault, or empty.
    """

    def __init__(
        self, reason: Literal["missing", "conflict", "failed"], text: str, field: str = ""
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.field = field


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """A live node. `address` is where it accepts connections of other nodes, as ``host:port``."""

    node: str
    address: str


@dataclass(frozen=True, slots=True)
class ClusterLane:
    """The state of a lane.

    - `owner`: the node that owns the lane, or empty.
    - `live`: whether that node is alive and, if it is this one, has loaded the lane.
    - `sessions`: the number of durable sessions, or None if another node owns the lane.
    - `bytes`: the size of the lane's state, or None if another node owns the lane.
    """

    name: str
    owner: str
    live: bool
    sessions: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster, as one node sees it.

    - `name`: the name of the cluster; `node`: the name of this node.
    - `lease`: seconds after which a silent node counts as dead.
    - `lease_age`: seconds since this node's lease was last renewed, or None if the node has not joined.
    - `members`: all live nodes, including this one.
    - `problem`: why the last attempt to drain the node or to put it back did not succeed, or empty.
    """

    name: str
    node: str
    state: NodeState
    lease: float
    lease_age: float | None
    members: Sequence[ClusterMember]
    lanes: Sequence[ClusterLane]
    problem: str = ""


@runtime_checkable
class ClusterManager(Protocol):
    """Shows a cluster, moves its lanes, and drains this node. Call it in the event loop."""

    def show_cluster(self) -> ClusterStatus:
        """Return the cluster as this node sees it, with members and lanes in the order of their names."""

    async def move_lane(self, lane: str, node: str) -> None:
        """Give a lane of this node to `node`. Return once `node` owns it. Clients of the lane are disconnected.

        Raises ClusterError if this node does not own the lane, if the lane must not move, if `node` is not a live node,
        or if the log does not accept the new owner.
        """

    def drain_node(self, node: str, seconds: float, moved: bool) -> None:
        """Begin to drain `node`, which must be this one: refuse clients, disconnect the others, and give all lanes to
        other nodes. `ClusterStatus.state` tells when it is done. Clients without a durable session are disconnected over
        `seconds`, the others together with their lane. If `moved`, they are asked to use the other server from now on.

        Raises ClusterError if the node has not joined or is drained already, or if no other node can take the lanes.
        """

    def undrain_node(self, node: str) -> None:
        """Begin to put `node`, which must be this one, back into service: take its own lane back, and accept clients.

        Raises ClusterError if the node is not drained.
        """


@runtime_checkable
class PerNode(Protocol):
    """A plugin whose effects end at its node, contrary to what its users expect. The plugin `cluster` refuses to run
    together with it, unless its setting `per_node` contains the plugin's id.
    """

    per_node: str
    """A clause that says how the nodes are separate, such as "each node has its own queues". Empty if this object can be
    used in a cluster. May be a property."""
