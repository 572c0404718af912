"""The number of live nodes of a cluster, for limits that all nodes share."""

from collections.abc import Callable
from typing import Final

from hookmq.plugin import BrokerHandle, Timer
from hookmq_toolkit.cluster import SERVICE, ClusterError, ClusterManager

EVERY: Final = 2.0
"""Seconds between two looks."""


class NodeCount:
    """Calls `changed` with the number of live nodes whenever it changes. Without a cluster, it stays 1."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        self._changed = changed
        self._nodes = 1
        self._timer: Timer | None = None

    def open(self, broker: BrokerHandle) -> None:
        """Look now, and regularly if the broker is in a cluster."""
        manager = next(
            (one for one in broker.services(SERVICE).values() if isinstance(one, ClusterManager)),
            None,
        )
        if manager is None or self._timer is not None:
            return
        self._look(broker, manager)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, broker: BrokerHandle, manager: ClusterManager) -> None:
        self._timer = broker.runtime.call_later(EVERY, lambda: self._look(broker, manager))
        try:
            nodes = max(1, len(manager.show_cluster().members))
        except ClusterError:
            return  # the node is starting or stopping
        if nodes != self._nodes:
            self._nodes = nodes
            self._changed(nodes)
