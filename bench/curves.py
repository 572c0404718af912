"""`python -m bench.curves`: measure the cost of a message in whole brokers as one quantity grows.

Timings cannot prove how a cost grows, so tests/bench/test_shapes.py asserts it by counting operations. This module
shows the same curves in microseconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from hookmq_bench import native

from . import launch, peers, report, scenarios, session
from .__main__ import RESULTS, builds, installed
from .session import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .scenarios import Scenario

PAIRS = scenarios.Scenario("", "", "curve", pubs=10, subs=10, window=20, goal=None)
"""The load for curves in which some other quantity varies: 10 pairs, QoS 0, W20."""
HEAVY = 100_000
"""From this value on, only one run is measured, because most of the time goes into filling the broker."""


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """A plot. `values` are the values to measure, and `at` returns the load for a value.

    `descriptors` returns the number of connections that a value needs. Points above the open-file limit are left
    out.
    """

    name: str
    title: str
    x: str
    claim: str
    values: tuple[int, ...]
    at: Callable[[int], Scenario]
    descriptors: Callable[[int], int] = lambda value: 30
    ours_only: bool = False


def _with(**changes: Any) -> Scenario:
    return dataclasses.replace(PAIRS, **changes)


def _plugged(count: int) -> Scenario:
    return _with(variant=f"plugins-{count}" if count else "plain")


CURVES = (
    Curve(
        "subscriptions",
        "Cost of a message by number of subscriptions",
        "subscriptions, three of four with wildcards",
        "flat, because a lookup visits only the filters that could match the message",
        (10, 100, 1000, 10_000, 100_000, 1_000_000),
        lambda value: _with(filters=value),
        lambda value: 30 + value // 1000,
    ),
    Curve(
        "connections",
        "Cost of a message by number of connections",
        "idle connections",
        "flat, because an idle connection costs only memory",
        (10, 100, 1000, 10_000, 19_000, 50_000),
        lambda value: _with(idle=value),
        lambda value: 30 + value,
    ),
    Curve(
        "retained",
        "Cost of fetching a retained message by number of messages",
        "retained messages, all fetched by one subscriber after another",
        "flat, because a fetch visits each topic that its filter could match once",
        (1000, 10_000, 100_000, 1_000_000),
        lambda value: _with(mode="retained", topics=value),
    ),
    Curve(
        "fan-out",
        "Cost of a delivery by number of subscribers",
        "subscribers, one publisher, QoS 0, W10",
        "flat, because a message is encoded once for all subscribers, and each additional subscriber costs one delivery. "
        "A fan-out to more than 1,000 subscribers is divided into slices, one for each turn. Other clients are served in "
        "between. The topic's messages are then no longer sent in one write, and each delivery costs a system call",
        (1, 10, 100, 1000, 10_000),
        lambda value: _with(topology="all", pubs=1, subs=value, window=10),
        lambda value: 30 + value,
    ),
    Curve(
        "payload",
        "Cost of a message by its size",
        "bytes of payload",
        "a constant plus a linear part, because the bytes are copied a fixed number of times",
        (16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20),
        scenarios.sized,
    ),
    Curve(
        "plugins",
        "Cost of a message by plugins called for it",
        "plugins with a hook of one line in on_publish",
        "linear from the first plugin on, because each plugin is called once per message. Without plugins, messages "
        "take the fast path",
        (0, 1, 2, 5, 10),
        _plugged,
        ours_only=True,
    ),
)


def point(
    curve: Curve, value: int, name: str, options: argparse.Namespace
) -> tuple[report.Run, dict[str, float]]:
    """Measure one run. Also return the resident memory, and how many KiB each added item (such as a subscription)
    takes."""
    scenario = curve.at(value)
    words = scenario.arguments(payload=64, level=4, seconds=options.seconds, warmup=options.warmup)
    core = options.pinned[0] if options.pinned else None
    try:
        with launch.running(name, core=core, variant=scenario.variant) as running:
            raw = native.run(words, port=running.port, pids=running.pids(), timeout=300)
    except (peers.PeerError, native.NativeError) as error:
        return report.Run(scenario, name, error=" ".join(str(error).split())), {}
    more: dict[str, float] = {}
    if "rss_after_kib" in raw:
        more["rss_mib"] = raw["rss_after_kib"] / 1024
        more["kib_each"] = (raw["rss_after_kib"] - raw["rss_before_kib"]) / value if value else 0
    return report.Run(scenario, name, raw), more


def keeps(name: str, count: int) -> dict[str, float]:
    """Measure the memory that HookMQ itself needs for `count` connections, not counting sockets."""
    environment = {**os.environ, **peers.PEERS[name].environment}
    done = subprocess.run(
        [sys.executable, "-m", "bench.held", str(count)],
        capture_output=True, text=True, check=True, env=environment, cwd=peers.HERE.parent,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    say(f"{'':23} {name:16}{'without sockets':>12}  {found['kib_each']:8.2f} KiB each")
    return found


def measure(
    curve: Curve, names: list[str], options: argparse.Namespace, limit: int
) -> Iterator[dict[str, Any]]:
    """Measure a curve and yield its points. Brokers take turns at each value."""
    for value in curve.values:
        if value < options.least or (options.most and value > options.most):
            continue
        if curve.descriptors(value) + 100 > limit:
            reason = f"a process would need {curve.descriptors(value) + 100} open files, but the limit is {limit}"
            say(f"{curve.name:14}{value:>9} left out: {reason}")
            ours = [name for name in names if name.startswith("hookmq")]
            held = {name: keeps(name, value) for name in ours if curve.name == "connections"}
            yield {"value": value, "left_out": reason, "held": held}
            continue
        runs: dict[str, list[report.Run]] = {name: [] for name in names}
        extra: dict[str, dict[str, float]] = {}
        for number in range(1 if value >= HEAVY and curve.name != "payload" else options.runs):
            for name in names if number % 2 == 0 else reversed(names):
                run, more = point(curve, value, name, options)
                runs[name].append(run)
                extra[name] = more
        for name, found in runs.items():
            good = [run.figures() for run in found if not run.defects()]
            void = [run.defects() for run in found if run.defects()]
            row: dict[str, Any] = {"value": value, "broker": name, "void": void, **extra[name]}
            if good:
                costs = [figures["cost"] for figures in good]
                row |= {
                    "cost": statistics.median(costs),
                    "least": min(costs),
                    "most": max(costs),
                    "rate": statistics.median(figures["rate"] for figures in good),
                    "generator": statistics.median(figures["generator"] for figures in good),
                }
                if "store" in good[0]:
                    row["store"] = statistics.median(figures["store"] for figures in good)
            said = f"{row['cost']:9.3f} us" if good else f"VOID: {void}"
            each = f"  {row['kib_each']:8.2f} KiB each" if "kib_each" in row else ""
            say(f"{curve.name:14}{value:>9} {name:16}{said}{each}")
            yield row


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. `words` defaults to `sys.argv`."""
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m bench.curves", description=summary,
        epilog="curves: " + ", ".join(curve.name for curve in CURVES),
    )  # fmt: skip
    add = parser.add_argument
    add("--curves", default="", metavar="NAMES", help="names, separated by commas (all)")
    add("--peers", default="mosquitto,hookmq-pure,hookmq-compiled", metavar="NAMES")
    add("--seconds", type=float, default=1.0, help="measured time of a run (%(default)s)")
    add("--warmup", type=float, default=0.5, help="seconds of load before it (%(default)s)")
    add("--runs", type=int, default=3, help="runs of each point (%(default)s)")
    add("--quick", action="store_true", help="one run of 0.3 s, and no value above 10,000")
    add("--least", type=int, default=0, help="no value below this")
    add("--most", type=int, default=0, help="no value above this")
    add("--cores", default="0,1", help="the broker's and the generator's core (%(default)s)")
    add("--no-pin", action="store_true", help="do not bind processes to cores")
    add("--nice", type=int, help="as in python -m bench")
    add("--json", type=pathlib.Path, default=RESULTS / "curves.json", metavar="FILE")
    options = parser.parse_args(words)
    if options.quick:
        options.runs, options.seconds, options.warmup = 1, 0.3, 0.1
        options.most = options.most or 10_000
    wanted = [word for word in options.curves.split(",") if word]
    unknown = set(wanted) - {curve.name for curve in CURVES}
    if unknown:
        parser.error(f"no curve {', '.join(unknown)}; there are: {parser.epilog}")
    options.chosen = [curve for curve in CURVES if not wanted or curve.name in wanted]
    broker, load = (int(word) for word in options.cores.split(","))
    options.pinned = None if options.no_pin else (broker, load)
    return options


def main() -> int:
    """Measure the curves. Return 0, 1 if a HookMQ point is void, or 2 if nothing can be measured."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    limit = launch.raise_file_limit()
    try:
        native.build()
        versions, left_out = installed(options.peers.split(","))
    except (native.NativeError, peers.PeerError) as error:
        say(f"bench: {error}")
        return 2
    for name, reason in left_out.items():
        say(f"{name} left out: {reason}")
    host = session.machine()
    options.pinned = session.pin(options.pinned)
    ours = builds(versions)
    document: dict[str, Any] = {
        "format": 2,
        "machine": host,
        "versions": versions,
        "left_out": left_out,
        "options": {"seconds": options.seconds, "warmup": options.warmup, "runs": options.runs},
        "curves": [],
    }
    with session.priority(options.nice):
        for curve in options.chosen:
            names = [name for name in versions if name in ours or not curve.ours_only]
            points = list(measure(curve, names, options, limit))
            document["curves"].append(
                {"name": curve.name, "title": curve.title, "x": curve.x, "claim": curve.claim, "points": points}
            )  # fmt: skip
            # Write after each curve. Otherwise an error in the last one would lose an hour of measurements.
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    say(f"wrote {options.json}")
    found = [point for curve in document["curves"] for point in curve["points"]]
    return 1 if any(point.get("void") for point in found if point.get("broker") in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
