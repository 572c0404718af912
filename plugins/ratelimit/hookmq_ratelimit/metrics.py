"""What the plugin counts, for the exporter."""

from typing import Any, Protocol

from hookmq_ratelimit.bans import Bans
from hookmq_ratelimit.buckets import Allowance


class Counts(Protocol):
    """The plugin, as far as it is of interest here."""

    allowances: tuple[Allowance, ...]
    bans: Bans
    counts: dict[tuple[str, str], int]
    waits: dict[str, tuple[int, float]]
    waiting: int
    turned_away: int


def register(registry: Any, plugin: Counts) -> None:
    """Add the families to a `hookmq.metric_registry.MetricRegistry`."""
    registry.counter(
        "ratelimit_limited_total",
        "What was over a limit, by the limit and by what became of it.",
        lambda: [
            ({"limit": limit, "outcome": outcome}, count)
            for (limit, outcome), count in plugin.counts.items()
        ],
    )
    registry.summary(
        "ratelimit_wait_seconds",
        "How long what was throttled waited before it went on, by the limit.",
        lambda: [({"limit": limit}, *waits) for limit, waits in plugin.waits.items()],
    )
    registry.gauge("ratelimit_waiting", "What is throttled now.", lambda: plugin.waiting)
    registry.gauge(
        "ratelimit_keys",
        "Clients, users or addresses that a limit remembers.",
        lambda: [({"limit": one.name}, len(one)) for one in plugin.allowances],
    )
    registry.counter(
        "ratelimit_evicted_total",
        "Keys forgotten for lack of room while something of their allowance was used.",
        lambda: [({"limit": one.name}, one.evicted) for one in plugin.allowances],
    )
    registry.gauge(
        "ratelimit_bans", "Bans, those included that just ended.", lambda: len(plugin.bans)
    )
    registry.counter("ratelimit_banned_total", "Bans begun.", lambda: plugin.bans.added)
    registry.counter(
        "ratelimit_bans_refused_total", "Bans that found no room.", lambda: plugin.bans.refused
    )
    registry.counter(
        "ratelimit_turned_away_total",
        "Connections refused because of a ban.",
        lambda: plugin.turned_away,
    )
