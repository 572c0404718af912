"""The plugin's metrics."""

from typing import Protocol

from hookmq.plugin import MetricRegistry

from hookmq_ratelimit.bans import Bans
from hookmq_ratelimit.buckets import Allowance


class Counts(Protocol):
    """The parts of the plugin that are exported as metrics."""

    bans: Bans
    counts: dict[tuple[str, str], int]
    waits: dict[str, tuple[int, float]]
    waiting: int
    turned_away: int

    @property
    def allowances(self) -> tuple[Allowance, ...]: ...


def register(registry: MetricRegistry, plugin: Counts) -> None:
    """Add the metrics to a `MetricRegistry`."""
    registry.counter(
        "ratelimit_limited_total",
        "Messages, subscriptions and connections over a limit, by limit and outcome.",
        lambda: [
            ({"limit": limit, "outcome": outcome}, count)
            for (limit, outcome), count in plugin.counts.items()
        ],
    )
    registry.summary(
        "ratelimit_wait_seconds",
        "Time that throttled messages waited, by limit.",
        lambda: [({"limit": limit}, *waits) for limit, waits in plugin.waits.items()],
    )
    registry.gauge("ratelimit_waiting", "Clients whose messages wait now.", lambda: plugin.waiting)
    registry.gauge(
        "ratelimit_keys",
        "Clients, users or addresses that a limit stores.",
        lambda: [({"limit": one.name}, len(one)) for one in plugin.allowances],
    )
    registry.counter(
        "ratelimit_evicted_total",
        "Keys removed from a full table while part of their allowance was used.",
        lambda: [({"limit": one.name}, one.evicted) for one in plugin.allowances],
    )
    registry.gauge(
        "ratelimit_bans", "Bans, including those that have just expired.", lambda: len(plugin.bans)
    )
    registry.counter("ratelimit_banned_total", "Bans added.", lambda: plugin.bans.added)
    registry.counter(
        "ratelimit_bans_refused_total",
        "Bans not added because the table was full.",
        lambda: plugin.bans.refused,
    )
    registry.counter(
        "ratelimit_turned_away_total",
        "Connections refused because of a ban.",
        lambda: plugin.turned_away,
    )
