"""The plugin's metrics. No label contains a value that a client sent."""

from collections import Counter
from typing import Any, Protocol

from hookmq.plugin import MetricRegistry

from hookmq_accounts.book import KINDS, Book


class Counted(Protocol):
    """The attributes of the plugin that are exported."""

    book: Book
    results: Counter[str]
    decisions: Counter[str]
    disconnected: int


def register(registry: MetricRegistry, plugin: Counted) -> None:
    """Add the metrics to a `MetricRegistry`."""

    def by(label: str, counter: Counter[str]) -> Any:
        return lambda: [({label: name}, value) for name, value in counter.items()]

    registry.gauge(
        "accounts",
        "Users and groups.",
        lambda: [({"kind": kind}, plugin.book.count(kind)) for kind in KINDS],
    )
    registry.gauge(
        "accounts_unreadable",
        "Records that cannot be read, so that their users are refused.",
        lambda: len(plugin.book.broken) + bool(plugin.book.unusable),
    )
    registry.counter(
        "accounts_connects_total", "CONNECT packets, by result.", by("result", plugin.results)
    )
    registry.counter(
        "accounts_decisions_total",
        "Decisions, without those that the broker had cached.",
        by("decision", plugin.decisions),
    )
    registry.counter(
        "accounts_disconnected_total",
        "Connections closed because their account changed.",
        lambda: plugin.disconnected,
    )
