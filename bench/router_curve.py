"""Measure routing as the number of subscriptions grows: the time to build the tree, its memory, matching and caching.

    python bench/router_curve.py [--million] [--json FILE]

Every subscription has its own subscriber. The filters are a mix: 50 % exact ``site/S/device/D/status``, 20 %
``site/S/device/D/#``, 20 % ``site/S/device/D/+/state``, 9 % ``+/S/device/D/alarm``, and at most a hundred ``site/S/#``.
Topics use the same names, so each topic matches few filters or none.
"""

import argparse
import gc
import json
import platform
import random
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

from hookmq.routing.subscription_tree import SubscriptionTree

SITES = 100
SIZES = (10, 1_000, 10_000, 100_000)
TOPICS = 20_000


class Subscriber:
    """An empty subscriber: the router only uses its identity."""

    __slots__ = ()


class Route:
    """A minimal route."""

    __slots__ = ("matched", "valid")

    def __init__(self, topic: str, matched: list[tuple[Subscriber, str, int]]) -> None:
        self.valid = True
        self.matched = len(matched)


def filters(count: int) -> list[str]:
    """Return a mix of `count` filters. The mix is the same in every run."""
    made: list[str] = []
    for n in range(count):
        site, device = n % SITES, n // SITES
        base = f"site/{site}/device/{device}"
        kind = (n * 2_654_435_761 >> 16) % 100  # unrelated to the site and the device
        if kind < 50:
            made.append(f"{base}/status")
        elif kind < 70:
            made.append(f"{base}/#")
        elif kind < 90:
            made.append(f"{base}/+/state")
        elif kind < 99 or n >= 100 * SITES:
            made.append(f"+/{site}/device/{device}/alarm")
        else:
            made.append(f"site/{site}/#")
    return made


def topics(count: int) -> list[str]:
    """Return `TOPICS` topics that use the same names as `count` subscriptions."""
    draw = random.Random(1)
    made: list[str] = []
    for _ in range(TOPICS):
        n = draw.randrange(count)
        leaf = draw.choice(("status", "x/state", "alarm", "log"))
        made.append(f"site/{n % SITES}/device/{n // SITES}/{leaf}")
    return made


def measure(count: int) -> dict[str, Any]:
    wanted = [(filter, Subscriber()) for filter in filters(count)]
    asked = topics(count)

    gc.collect()
    router: SubscriptionTree[Subscriber, int, Route] = SubscriptionTree(Route)
    began = time.perf_counter()
    for filter, subscriber in wanted:
        router.subscribe(filter, subscriber, 0)
    load = time.perf_counter() - began

    match = found = 0.0
    for _ in range(3):
        began = time.perf_counter()
        total = 0
        for topic in asked:
            total += len(router.match(topic))
        took = time.perf_counter() - began
        match = min(match, took) if match else took
        found = total / len(asked)

    for topic in asked:
        router.lookup(topic)
    lookup = 0.0
    for _ in range(3):
        began = time.perf_counter()
        for topic in asked:
            router.lookup(topic)
        took = time.perf_counter() - began
        lookup = min(lookup, took) if lookup else took

    # Add and remove a wildcard subscription while the cache is full, to measure what keeping the cache valid costs.
    rounds = 2_000
    guest = Subscriber()
    began = time.perf_counter()
    for n in range(rounds):
        filter = f"site/{n % SITES}/device/{n}/guest/#"
        router.subscribe(filter, guest, 0)
        router.lookup(asked[n % len(asked)])
        router.unsubscribe(filter, guest)
    churn = time.perf_counter() - began

    router.clear_cache()
    began = time.perf_counter()
    for filter, subscriber in wanted:
        router.unsubscribe(filter, subscriber)
    unload = time.perf_counter() - began
    if len(router):
        raise SystemExit(f"{len(router)} subscriptions left over")

    return {
        "subscriptions": count,
        "load_s": round(load, 4),
        "load_us": round(load / count * 1e6, 2),
        "unload_us": round(unload / count * 1e6, 2),
        "match_us": round(match / len(asked) * 1e6, 3),
        "matches_per_topic": round(found, 2),
        "lookup_ns": round(lookup / len(asked) * 1e9, 1),
        "churn_us": round(churn / rounds * 1e6, 2),
        "bytes_per_subscription": round(memory(wanted) / count),
    }


def memory(wanted: list[tuple[str, Subscriber]]) -> int:
    """Return the router's size in bytes, excluding filters and subscribers. Tracing memory is slow, so times are measured
    separately.
    """
    gc.collect()
    tracemalloc.start()
    try:
        router: SubscriptionTree[Subscriber, int, Route] = SubscriptionTree(Route)
        for filter, subscriber in wanted:
            router.subscribe(filter, subscriber, 0)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


COLUMNS = (
    ("subscriptions", "subscriptions"),
    ("load_s", "load s"),
    ("load_us", "load us each"),
    ("unload_us", "unload us each"),
    ("match_us", "match us"),
    ("matches_per_topic", "matches/topic"),
    ("lookup_ns", "lookup ns"),
    ("churn_us", "sub+lookup+unsub us"),
    ("bytes_per_subscription", "bytes each"),
)


def main(argv: list[str] | None = None) -> int:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--million", action="store_true", help="also measure 1,000,000 (1 GiB)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures to this file"
    )
    options = parser.parse_args(argv)

    print("  ".join(title for _, title in COLUMNS), flush=True)
    rows: list[dict[str, Any]] = []
    for count in (*SIZES, 1_000_000) if options.million else SIZES:
        row = measure(count)
        rows.append(row)
        print("  ".join(f"{row[key]:>{len(title)}}" for key, title in COLUMNS), flush=True)
    if options.json:
        report = {
            "bench": "router_curve",
            "python": platform.python_version(),
            "machine": platform.machine(),
            "rows": rows,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
