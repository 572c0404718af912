"""The names for plugins that join brokers to a cluster. See `hookmq.storage.cluster`."""

from hookmq.storage.cluster import (
    Cluster,
    Here,
    Node,
    Place,
    Redirect,
    Refused,
    Relay,
    RelayedConnection,
    Relaying,
    RelayTarget,
    Remote,
    RemoteMatch,
    RemoteRoute,
    SendSocket,
    Transfer,
    Wanted,
)
from hookmq.storage.cluster_packets import RemotePackets

__all__ = [
    "Cluster", "Here", "Node", "Place", "Redirect", "Refused", "Relay", "RelayTarget", "RelayedConnection", "Relaying",
    "Remote", "RemoteMatch", "RemotePackets", "RemoteRoute", "SendSocket", "Transfer", "Wanted",
]  # fmt: skip
