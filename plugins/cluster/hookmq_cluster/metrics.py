"""The cluster's metrics, as one node sees them."""

from collections.abc import Callable

from hookmq.plugin import MetricRegistry

from hookmq_cluster.cluster import JoinedCluster


def register(registry: MetricRegistry, joined: Callable[[], JoinedCluster | None]) -> None:
    """Add the metrics. `joined` returns None until the broker has started."""

    def value(read: Callable[[JoinedCluster], float]) -> Callable[[], float]:
        def now() -> float:
            cluster = joined()
            return 0.0 if cluster is None else read(cluster)

        return now

    registry.gauge(
        "cluster_ready",
        "1 if clients may connect to the node: it has joined, is not drained, and the log confirms its lease.",
        value(lambda cluster: float(not cluster.unready())),
    )
    registry.gauge(
        "cluster_drained",
        "1 if the node is drained or being drained, so that it takes no clients and no lanes.",
        value(lambda cluster: float(bool(cluster.drain.state))),
    )
    registry.gauge(
        "cluster_members",
        "Live nodes, including this one.",
        value(lambda cluster: len(cluster.membership.others) + 1.0),
    )
    registry.gauge(
        "cluster_lanes",
        "Lanes of this node: its own one, and those that it has adopted.",
        value(lambda cluster: float(len(cluster.keeper.open))),
    )
    registry.counter(
        "cluster_adopted_lanes_total",
        "Lanes of other nodes that this node has adopted or been given.",
        value(lambda cluster: float(cluster.keeper.adopted)),
    )
    registry.counter(
        "cluster_lost_lanes_total",
        "Lanes that another node has taken from this one, because it regarded this one as dead.",
        value(lambda cluster: float(cluster.keeper.lost_lanes)),
    )
    registry.histogram(
        "cluster_commit_seconds",
        "Time until a majority of the log's servers has a commit of this node.",
        lambda: [] if (cluster := joined()) is None else [({}, cluster.store.counters.durations)],
    )
    registry.counter(
        "cluster_refused_commits_total",
        "Commits that the log refused, because another process owns a lane or its fence has changed.",
        value(lambda cluster: float(cluster.store.counters.refused)),
    )
    registry.counter(
        "cluster_unknown_commits_total",
        "Commits whose result was unknown for some time, because the log did not answer.",
        value(lambda cluster: float(cluster.store.counters.unknown)),
    )
    registry.gauge(
        "cluster_lag_seconds",
        "Age of the oldest message from other nodes that was read from the log and is not delivered yet.",
        value(lambda cluster: cluster.inbox.lag),
    )
    registry.gauge(
        "cluster_inbox_bytes",
        "Bytes of messages from other nodes that were read from the log and are not delivered yet.",
        value(lambda cluster: float(cluster.inbox.backlog)),
    )
    registry.gauge(
        "cluster_lease_age_seconds",
        "Time since the log confirmed this node's lease. Other nodes adopt its lane when the lease has ended.",
        value(lambda cluster: cluster.membership.renewed_ago if cluster.ready else 0.0),
    )
    registry.counter(
        "cluster_forwarded_messages_total",
        "Messages sent to other nodes, counted once for each node or lane.",
        value(lambda cluster: float(cluster.forwarding.forwarded)),
    )
    registry.counter(
        "cluster_forwarded_frames_total",
        "Frames with these messages, counted once for each node or lane.",
        value(lambda cluster: float(cluster.forwarding.frames)),
    )
    registry.counter(
        "cluster_dropped_messages_total",
        "Messages with QoS 0 that another node did not get, because too much was waiting for it.",
        value(lambda cluster: float(cluster.forwarding.dropped)),
    )
    registry.counter(
        "cluster_invalid_frames_total",
        "Messages of other nodes that could not be read.",
        value(lambda cluster: float(cluster.inbox.invalid)),
    )
    registry.gauge(
        "cluster_lane_bytes",
        "Bytes of the sessions, queues and messages in this node's lanes, which are also in memory.",
        value(lambda cluster: float(sum(one.live_bytes for one in cluster.store.lanes().values()))),
    )
