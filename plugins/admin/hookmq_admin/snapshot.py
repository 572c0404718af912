"""Take snapshots of a running broker for `hookmq top`. Each holds the results of one round of requests. Also compute
the rates between two snapshots.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hookmq_admin.api_client import ApiClient, RequestRefused

MAX_PAGE: Final = 500
"""Maximum number of clients per request."""
FLOWS: Final = {
    "in": ("messages_received", "bytes_received"),
    "out": ("messages_delivered", "bytes_sent"),
}
_BUCKET: Final = re.compile(r'(\w*commit\w*)_bucket\{le="([^"]+)"\}')


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The broker's state at one moment. `more` is true if the broker has more clients than `clients` lists."""

    overview: Mapping[str, Any]
    counters: Mapping[str, float]
    clients: Sequence[Mapping[str, Any]]
    more: bool = False

    @property
    def time(self) -> float:
        """The broker's time, in epoch seconds."""
        return float(self.overview["time"])


def fetch(api: ApiClient, prefix: str, most: int) -> Snapshot:
    """Request a snapshot with at most `most` clients whose ids begin with `prefix`. Blocks. Raises RequestRefused."""
    try:
        overview = api.ask("GET", "/overview")
        counters = api.ask("GET", "/counters")["counters"]
        clients: list[Mapping[str, Any]] = []
        cursor = ""
        while len(clients) < most:
            limit = min(MAX_PAGE, most - len(clients))
            query = {"client_id": prefix, "cursor": cursor, "limit": limit}
            page = api.ask("GET", "/clients", query)
            clients += page["items"]
            cursor = page["cursor"]
            if not cursor:
                break
        found = Snapshot(overview, counters, clients, bool(cursor))
        found.time, rates(None, found), drops(None, found)  # fail here if a value is missing
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestRefused(f"the answer is not one of this API: {error!r}") from error
    return found


def rates(before: Snapshot | None, now: Snapshot) -> dict[str, float]:
    """Return how much the counters changed per second since `before`. If there is no earlier snapshot of the same
    broker run, return the rates that the broker itself sampled.
    """
    sampled = {name: float(value) for name, value in now.overview["rates"].items()}
    if not _same_run(before, now):
        return sampled
    assert before is not None
    seconds = now.time - before.time
    found = dict(sampled)
    for name in sampled:
        key = f"{name}_total"
        if key in now.counters:
            found[name] = max(0.0, now.counters[key] - before.counters.get(key, 0.0)) / seconds
    return found


def drops(before: Snapshot | None, now: Snapshot) -> list[tuple[str, float, int]]:
    """Return (reason, rate, total) for each reason why messages were dropped. Sort by rate and then by total, highest
    first.
    """
    earlier: Mapping[str, float] = {}
    seconds = 0.0
    if _same_run(before, now):
        assert before is not None
        earlier, seconds = before.overview["dropped"], now.time - before.time
    found = []
    for reason, total in now.overview["dropped"].items():
        rate = max(0.0, total - earlier.get(reason, 0.0)) / seconds if seconds else 0.0
        if total:
            found.append((reason, rate, int(total)))
    return sorted(found, key=lambda one: (-one[1], -one[2], one[0]))


def commit_quantile(before: Snapshot | None, now: Snapshot, quantile: float) -> float | None:
    """Return the bucket bound, in seconds, within which the fraction `quantile` of the commits finished. Return None if
    the broker has no such histogram or made no commits. Without an earlier snapshot, all commits since the broker
    started count.
    """
    earlier = before.counters if before is not None and _same_run(before, now) else {}
    buckets = []
    for name, value in now.counters.items():
        found = _BUCKET.fullmatch(name)
        if found is not None:
            buckets.append((float(found[2]), value - earlier.get(name, 0.0)))
    buckets.sort()
    if not buckets or buckets[-1][1] <= 0:
        return None
    wanted = buckets[-1][1] * quantile
    return next(limit for limit, count in buckets if count >= wanted)


def _same_run(before: Snapshot | None, now: Snapshot) -> bool:
    return (
        before is not None
        and before.overview["started_at"] == now.overview["started_at"]
        and now.time > before.time
    )
