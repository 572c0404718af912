"""What a node counts about relayed connections, and its log lines about failures."""

from hookmq.plugin import Log, MetricRegistry

_QUIET = 1.0
"""Minimum time in seconds between two log lines with the same event."""


class RelayCounters:
    """Counts the connections that this node relays or transfers to others (out), and those that others relay or transfer
    to it (in). The open ones that arrived by transfer count as relayed."""

    def __init__(self, log: Log) -> None:
        self.open_out = 0
        self.open_in = 0
        self.relayed_out = 0
        self.relayed_in = 0
        self.transferred_out = 0
        self.transferred_in = 0
        self.transfers_declined = 0
        self.failed_out = 0
        self.refused_in = 0
        self._log = log
        self._last: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def failed(self, now: float, node: str, address: str, reason: str) -> None:
        """Count and log a connection that could not be relayed to `node`. `now` is monotonic."""
        self.failed_out += 1
        if self._tells("failed", now):
            self._log(
                "warning", "cluster.relay_failed", node=node, address=address, reason=reason,
                unsaid=self._unsaid.pop("failed", 0) or None,
            )  # fmt: skip

    def refused(self, now: float, sender: str, reason: str) -> None:
        """Count and log a connection that `sender` wanted to relay to this node."""
        self.refused_in += 1
        if self._tells("refused", now):
            unsaid = self._unsaid.pop("refused", 0) or None
            self._log("warning", "cluster.relay_refused", peer=sender, reason=reason, unsaid=unsaid)

    def _tells(self, what: str, now: float) -> bool:
        """Return whether to log `what` now: at most once a second, because strangers could cause any number of them."""
        if now - self._last.get(what, -_QUIET) < _QUIET:
            self._unsaid[what] = self._unsaid.get(what, 0) + 1
            return False
        self._last[what] = now
        return True

    def register(self, metrics: MetricRegistry) -> None:
        """Add the counters to the plugin's metrics."""
        metrics.counter(
            "cluster_relays_total", "Connections relayed between nodes, by direction.",
            lambda: _both(self.relayed_out, self.relayed_in),
        )  # fmt: skip
        metrics.counter(
            "cluster_transfers_total",
            "Clients whose sockets were transferred between nodes of a machine, by direction.",
            lambda: _both(self.transferred_out, self.transferred_in),
        )  # fmt: skip
        metrics.counter(
            "cluster_transfers_declined_total",
            "Clients that another node of the machine did not take, and that were relayed or stayed.",
            lambda: [({}, self.transfers_declined)],
        )  # fmt: skip
        metrics.counter(
            "cluster_relay_failures_total", "Connections that could not be relayed, by direction.",
            lambda: _both(self.failed_out, self.refused_in),
        )  # fmt: skip
        metrics.gauge(
            "cluster_open_relays", "Relayed connections that are open, by direction.",
            lambda: _both(self.open_out, self.open_in),
        )  # fmt: skip


def _both(out: int, into: int) -> list[tuple[dict[str, str], int]]:
    return [({"direction": "out"}, out), ({"direction": "in"}, into)]
