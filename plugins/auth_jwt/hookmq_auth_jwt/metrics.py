"""The plugin's metrics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookmq.plugin import MetricRegistry

from hookmq_auth_jwt.refusal import KINDS
from hookmq_auth_jwt.sources import Source, UrlSource


class Counts:
    """Counts of tokens verified since the plugin was created."""

    __slots__ = ("accepted", "refused", "seconds", "verified")

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = dict.fromkeys(KINDS, 0)
        self.verified = 0
        self.seconds = 0.0

    def took(self, seconds: float) -> None:
        """Count one verification and record its duration."""
        self.verified += 1
        self.seconds += seconds


def register(
    registry: MetricRegistry, counts: Counts, sources: Sequence[Source], now: Callable[[], float]
) -> None:
    """Add the metrics to a `MetricRegistry`."""
    remote = [one for one in sources if isinstance(one, UrlSource)]

    def each(
        value: Callable[[Any], float], chosen: Sequence[Any]
    ) -> list[tuple[Mapping[str, str], float]]:
        return [({"source": label}, value(one)) for label, one in _named(chosen)]

    registry.counter("jwt_accepted_total", "Tokens accepted.", lambda: counts.accepted)
    registry.counter(
        "jwt_refused_total",
        "Tokens refused, by reason.",
        lambda: [({"reason": kind}, count) for kind, count in counts.refused.items()],
    )
    registry.summary(
        "jwt_verify_seconds",
        "Duration of verifying one token, without fetching keys.",
        lambda: [({}, counts.verified, counts.seconds)],
    )
    registry.gauge(
        "jwt_keys",
        "Valid keys, by source.",
        lambda: each(lambda one: len(one.keys(now())), sources),
    )
    registry.gauge(
        "jwt_source_failing",
        "1 if the last attempt to read the keys failed, else 0.",
        lambda: each(lambda one: int(bool(one.fails)), sources),
    )
    if not remote:
        return
    registry.gauge(
        "jwt_keys_age_seconds",
        "Time since the keys were last fetched; -1 if never.",
        lambda: each(
            lambda one: -1 if one.fetched_at is None else max(0.0, now() - one.fetched_at), remote
        ),
    )
    registry.counter(
        "jwt_fetches_total", "Completed fetches.", lambda: each(lambda one: one.fetches, remote)
    )
    registry.counter(
        "jwt_fetch_failures_total",
        "Failed fetches.",
        lambda: each(lambda one: one.failures, remote),
    )
    registry.counter(
        "jwt_fetches_suppressed_total",
        "Fetches for an unknown key that were skipped because the last fetch was too recent.",
        lambda: each(lambda one: one.suppressed, remote),
    )


def _named(sources: Sequence[Source]) -> list[tuple[str, Source]]:
    """Return the sources with unique labels."""
    seen: dict[str, int] = {}
    named = []
    for one in sources:
        seen[one.label] = number = seen.get(one.label, 0) + 1
        named.append((one.label if number == 1 else f"{one.label} ({number})", one))
    return named
