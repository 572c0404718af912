"""The service with which operators see the cluster, move lanes and drain nodes. See `hookmq_toolkit.cluster`."""

from collections.abc import Callable

from hookmq_toolkit.cluster import (
    ClusterError,
    ClusterLane,
    ClusterMember,
    ClusterStatus,
    NodeState,
)

from hookmq_cluster.cluster import JoinedCluster


class ClusterControl:
    """Implements `hookmq_toolkit.cluster.ClusterManager`. `joined` returns None until the broker has started."""

    def __init__(self, joined: Callable[[], JoinedCluster | None]) -> None:
        self._joined = joined

    def show_cluster(self) -> ClusterStatus:
        cluster = self._found()
        membership = cluster.membership
        members = [cluster.me, *membership.others.values()]
        return ClusterStatus(
            cluster.name,
            cluster.me.node,
            _state(cluster),
            cluster.lease,
            membership.renewed_ago if cluster.ready else None,
            [ClusterMember(one.node, one.address) for one in sorted(members)],
            [_lane(cluster, lane) for lane in sorted(cluster.lanes.owners)],
            cluster.drain.problem,
        )

    async def move_lane(self, lane: str, node: str) -> None:
        cluster = self._found()
        _check_lane(cluster, lane)
        if node == cluster.me.node:
            raise ClusterError("conflict", f"node {node!r} already owns lane {lane!r}", "node")
        target = cluster.membership.others.get(node)
        if target is None:
            raise _missing(cluster, node)
        if cluster.is_stopping(target):
            raise ClusterError("conflict", f"node {node!r} is stopping", "node")
        reason = await cluster.give_lane(lane, target)
        if reason:
            raise ClusterError("failed", f"the move of lane {lane!r} was not confirmed: {reason}")

    def drain_node(self, node: str, seconds: float, moved: bool) -> None:
        cluster = self._found()
        drain = cluster.drain
        _check_node(cluster, node)
        if not cluster.ready or (cluster.keeper.leaving and not drain.state):
            raise ClusterError("conflict", f"node {node!r} is {_state(cluster)}")
        if drain.running or drain.state == "drained":
            raise ClusterError("conflict", f"node {node!r} is {_state(cluster)} already")
        if all(map(cluster.is_stopping, cluster.membership.others.values())):
            raise ClusterError("conflict", f"no other node can take the lanes of node {node!r}")
        drain.start(seconds, moved)

    def undrain_node(self, node: str) -> None:
        cluster = self._found()
        _check_node(cluster, node)
        if cluster.drain.running or not cluster.drain.state or not cluster.ready:
            raise ClusterError("conflict", f"node {node!r} is {_state(cluster)}")
        cluster.drain.undo()

    def _found(self) -> JoinedCluster:
        cluster = self._joined()
        if cluster is None:
            raise ClusterError("conflict", "the broker has not started")
        return cluster


def _check_node(cluster: JoinedCluster, node: str) -> None:
    """Raise ClusterError if `node` is not this node."""
    if node == cluster.me.node:
        return
    if node not in cluster.membership.others:
        raise _missing(cluster, node)
    raise ClusterError(
        "conflict", f"this is node {cluster.me.node!r}; ask node {node!r} itself", "node"
    )


def _missing(cluster: JoinedCluster, node: str) -> ClusterError:
    live = ", ".join(sorted(cluster.membership.others))
    return ClusterError("missing", f"no other live node {node!r}; found: {live or 'none'}", "node")


def _state(cluster: JoinedCluster) -> NodeState:
    return cluster.unready() or "ready"


def _lane(cluster: JoinedCluster, lane: str) -> ClusterLane:
    state = cluster.store.lanes().get(lane) if cluster.owns(lane) else None
    return ClusterLane(
        lane,
        cluster.lanes.owners[lane].node,
        cluster.keeper.live_owner(lane) is not None,
        None if state is None else len(state.clients),
        None if state is None else state.live_bytes,
    )


def _check_lane(cluster: JoinedCluster, lane: str) -> None:
    """Raise ClusterError if this node cannot give `lane` away."""
    if not cluster.ready:
        raise ClusterError("conflict", f"node {cluster.me.node!r} is {_state(cluster)}")
    owner = cluster.lanes.owners.get(lane)
    if owner is None:
        raise ClusterError("missing", f"the cluster has no lane {lane!r}", "lane")
    if lane == cluster.home:
        raise ClusterError(
            "conflict", f"lane {lane!r} is this node's own lane; drain the node to move it", "lane"
        )
    if owner.node != cluster.me.node:
        where = f"node {owner.node!r} owns" if owner.node else "no node owns"
        raise ClusterError("conflict", f"{where} lane {lane!r}; ask the owner to move it", "lane")
    if not cluster.owns(lane):
        raise ClusterError("conflict", f"lane {lane!r} is being loaded or moved", "lane")
