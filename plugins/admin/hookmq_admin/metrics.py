"""The API's metrics."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from hookmq.plugin import MetricRegistry

from hookmq_admin.services import Services


class Counted(Protocol):
    """The parts of the plugin that the metrics read."""

    @property
    def services(self) -> Services: ...


def register(registry: MetricRegistry, plugin: Counted) -> None:
    """Add the metrics to a `MetricRegistry`."""

    def requests() -> Iterator[tuple[Mapping[str, str], int]]:
        for name, count in plugin.services.counts.items():
            kind, _, rest = name.partition(":")
            if kind == "requests":
                route, _, status = rest.partition(":")
                yield {"route": route, "status": status}, count

    def count(name: str) -> int:
        return plugin.services.counts[name]

    add = registry.counter
    add(
        "admin_requests_total",
        "Requests to the admin API, by route and status.",
        lambda: list(requests()),
    )
    add(
        "admin_wrong_tokens_total",
        "Requests with a wrong token.",
        lambda: plugin.services.failures.failures,
    )
    add("admin_limited_total", "Requests refused after too many wrong tokens.",
        lambda: plugin.services.failures.limited)  # fmt: skip
    add(
        "admin_tail_skipped_total",
        "Messages that live tails skipped.",
        lambda: count("tail_skipped"),
    )
    add(
        "admin_tail_dropped_total",
        "Live tails that ended because nobody read them.",
        lambda: count("tails_dropped"),
    )
    registry.gauge("admin_tails", "Open live tails.", lambda: plugin.services.tails)
    registry.gauge("admin_tokens", "Tokens.", lambda: len(plugin.services.tokens))
