"""What the exporter shows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookmq_auth_jwt.refusal import KINDS
from hookmq_auth_jwt.sources import Source, UrlSource


class Counts:
    """What was counted since the plugin was made."""

    __slots__ = ("accepted", "refused", "seconds", "verified")

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = dict.fromkeys(KINDS, 0)
        self.verified = 0
        self.seconds = 0.0

    def took(self, seconds: float) -> None:
        """A token was looked at."""
        self.verified += 1
        self.seconds += seconds


def register(
    registry: Any, counts: Counts, sources: Sequence[Source], now: Callable[[], float]
) -> None:
    """Add the metrics to a `hookmq.metric_registry.MetricRegistry`."""
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
        "Looking at one token, fetching of keys not included.",
        lambda: [({}, counts.verified, counts.seconds)],
    )
    registry.gauge(
        "jwt_keys",
        "Keys that hold, by where they are.",
        lambda: each(lambda one: len(one.keys(now())), sources),
    )
    registry.gauge(
        "jwt_source_failing",
        "Whether keys could not be read the last time.",
        lambda: each(lambda one: int(bool(one.fails)), sources),
    )
    if not remote:
        return
    registry.gauge(
        "jwt_keys_age_seconds",
        "Since keys were last fetched; -1 for never.",
        lambda: each(
            lambda one: -1 if one.fetched_at is None else max(0.0, now() - one.fetched_at), remote
        ),
    )
    registry.counter(
        "jwt_fetches_total", "Fetches ended.", lambda: each(lambda one: one.fetches, remote)
    )
    registry.counter(
        "jwt_fetch_failures_total",
        "Fetches that failed.",
        lambda: each(lambda one: one.failures, remote),
    )
    registry.counter(
        "jwt_fetches_suppressed_total",
        "Fetches for an unknown key that did not happen, as there had just been one.",
        lambda: each(lambda one: one.suppressed, remote),
    )


def _named(sources: Sequence[Source]) -> list[tuple[str, Source]]:
    """Each with a label of its own, also where two are of the same place."""
    seen: dict[str, int] = {}
    named = []
    for one in sources:
        seen[one.label] = number = seen.get(one.label, 0) + 1
        named.append((one.label if number == 1 else f"{one.label} ({number})", one))
    return named
