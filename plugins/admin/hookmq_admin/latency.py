"""Compute latency percentiles from the histograms among the broker's counters."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

FAMILIES: Final = {
    "commit": "commit_duration_seconds",
    "delivery": "delivery_delay_seconds",
    "hook": "hook_duration_seconds",
}
"""The histogram of each latency."""
QUANTILES: Final = {"p50": 0.5, "p99": 0.99}
LATENCIES: Final = tuple(f"{name}_{quantile}" for name in FAMILIES for quantile in QUANTILES)
"""The names of the percentiles, such as ``commit_p99``."""
_KINDS: Final = {family: name for name, family in FAMILIES.items()}
_BUCKET: Final = re.compile(rf'({"|".join(_KINDS)})_bucket{{.*\ble="([^"]+)"')
Buckets = dict[str, dict[float, float]]
"""For each latency and upper bound, the number of values so far up to this bound."""


def buckets(counters: Mapping[str, float]) -> Buckets:
    """Return the histograms' buckets. Histograms that differ only in their labels, such as those of hooks, are added
    up.
    """
    found: Buckets = {name: {} for name in FAMILIES}
    for key, value in counters.items():
        match = _BUCKET.match(key)
        if match is not None:
            bounds = found[_KINDS[match[1]]]
            bound = float(match[2])
            bounds[bound] = bounds.get(bound, 0.0) + value
    return found


def percentiles(before: Buckets, now: Buckets) -> dict[str, float | None]:
    """Return the percentiles, in seconds, of the values measured between two readings. A percentile is None if there
    are no values.
    """
    found: dict[str, float | None] = {}
    for name, bounds in now.items():
        earlier = before.get(name, {})
        new = [(bound, bounds[bound] - earlier.get(bound, 0.0)) for bound in sorted(bounds)]
        for quantile, share in QUANTILES.items():
            found[f"{name}_{quantile}"] = _quantile(new, share)
    return found


def _quantile(counts: Iterable[tuple[float, float]], share: float) -> float | None:
    """Return the lowest bucket bound that covers at least the fraction `share` of the values. The result is never above
    the highest finite bound, because JSON has no infinity.
    """
    counts = list(counts)
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    highest = max((bound for bound, _ in counts if bound < math.inf), default=0.0)
    return min(highest, next(bound for bound, count in counts if count >= total * share))
