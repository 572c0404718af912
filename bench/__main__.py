"""`python -m bench`: run every load against each broker in turn and print a comparison."""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import signal
import sys
from typing import TYPE_CHECKING, Any

from hookmq_bench import native

from . import launch, peers, plugins, report, scenarios, session
from .session import say

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = peers.HERE / "results"
DEFAULT_PEERS = "mosquitto,mosquitto-disk,hookmq-pure,hookmq-compiled,nats,aedes,amqtt"

# Loads that a broker does not support. Measuring them would only produce void rows.
CANNOT = (
    ("nats", "v5-*", "MQTT 3.1.1 only"),
    ("aedes", "v5-*", "MQTT 3.1.1 only"),
    ("amqtt", "v5-*", "MQTT 3.1.1 only"),
    ("amqtt", "offline", "keeps nothing for anonymous clients"),
    ("nats", "shared", "no shared subscriptions over MQTT"),
    ("aedes", "shared", "no shared subscriptions"),
    ("amqtt", "shared", "no shared subscriptions"),
)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. `words` defaults to `sys.argv`."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compare HookMQ with other MQTT brokers: one load generator (C, epoll), runs "
        "that alternate between the brokers, one core for the broker and one for the generator. "
        "Cost is the broker's CPU time per delivered message; a ratio above 1 beats mosquitto. "
        "A run that loses, duplicates or reorders a message is void. See bench/README.md.",
        epilog="groups: "
        + ", ".join(scenarios.GROUPS)
        + "; scenarios: "
        + ", ".join(s.name for s in scenarios.SCENARIOS),
    )
    add = parser.add_argument
    add(
        "--scenarios",
        default="*",
        metavar="NAMES",
        help="names, groups or patterns, separated by commas",
    )
    add("--peers", default=DEFAULT_PEERS, metavar="NAMES", help="brokers (%(default)s)")
    add(
        "--against",
        type=pathlib.Path,
        metavar="CHECKOUT",
        help="also measure the HookMQ of another installed checkout",
    )
    add("--seconds", type=float, default=1.0, help="measured time of a run (%(default)s)")
    add("--warmup", type=float, default=0.5, help="seconds of load before it (%(default)s)")
    add("--runs", type=int, default=3, help="runs of each; the table has medians (%(default)s)")
    add("--quick", action="store_true", help="one run of 0.3 s with 0.1 s of warm-up: a rough look")
    add("--payload", type=int, default=64, help="bytes, at least 24 (%(default)s)")
    add("--protocol", choices=("3.1.1", "5"), default="3.1.1", help="MQTT version (%(default)s)")
    add("--cores", default="0,1", help="the broker's and the generator's core (%(default)s)")
    add("--no-pin", action="store_true", help="do not bind processes to cores")
    add(
        "--nice",
        type=int,
        help="priority of this session, such as -10 (needs root); restored at the end",
    )
    add("--no-plugins", action="store_true", help="leave out the costs of plugins (some 30 s)")
    add("--json", type=pathlib.Path, metavar="FILE", help="default: bench/results/TIME.json")
    options = parser.parse_args(words)
    if options.quick:
        options.runs, options.seconds, options.warmup = 1, 0.3, 0.1
    if options.runs < 1 or not 0 < options.seconds <= 300 or not 0 <= options.warmup <= 60:
        parser.error("--runs at least 1, --seconds up to 300, --warmup up to 60")
    if not 24 <= options.payload <= 65536:
        parser.error("--payload must be 24 to 65536")
    try:
        options.chosen = scenarios.select(options.scenarios)
        broker, load = (int(word) for word in options.cores.split(","))
    except ValueError as error:
        parser.error(str(error))
    options.pinned = None if options.no_pin else (broker, load)
    return options


def measure(scenario: scenarios.Scenario, broker: str, options: argparse.Namespace) -> report.Run:
    """Start a broker, measure one run of a scenario against it, and stop it."""
    words = scenario.arguments(
        payload=options.payload,
        level=5 if options.protocol == "5" else 4,
        seconds=options.seconds,
        warmup=options.warmup,
    )
    core = options.pinned[0] if options.pinned else None
    try:
        with launch.running(broker, core=core, variant=scenario.variant) as running:
            raw = native.run(
                words, port=running.port, pids=running.pids(), timeout=options.seconds + 60
            )
    except peers.PeerError as error:
        return report.Run(scenario, broker, left_out=" ".join(str(error).split()))
    except native.NativeError as error:
        return report.Run(scenario, broker, error=" ".join(str(error).split()))
    return report.Run(scenario, broker, raw)


def taking_part(scenario: scenarios.Scenario, names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each broker that has a configuration for the scenario, and the reason to leave it out, '' if none."""
    for name in names:
        if scenario.variant in peers.PEERS[name].configs:
            reasons = (
                reason
                for peer, pattern, reason in CANNOT
                if peer == name and fnmatch.fnmatch(scenario.name, pattern)
            )
            yield name, next(reasons, "")


def said(run: report.Run) -> str:
    """Describe a run's outcome in a few words."""
    if run.left_out:
        return f"left out: {run.left_out}"
    defects = run.defects()
    if defects:
        return f"VOID: {defects}"
    figures = run.figures()
    unit = "KiB" if run.scenario.mode == "idle" else "us"
    return f"{figures.get('rate', 0):12,.0f}/s {figures['cost']:9.3f} {unit}"


def run_all(options: argparse.Namespace, names: list[str], runs: list[report.Run]) -> None:
    """Measure everything and append each run to `runs`. Brokers take turns, in reverse order every other round."""
    for scenario in options.chosen:
        concerned = dict(taking_part(scenario, names))
        for number in range(options.runs):
            for name in list(concerned) if number % 2 == 0 else reversed(concerned):
                if concerned[name]:
                    run = report.Run(scenario, name, left_out=concerned[name])
                else:
                    run = measure(scenario, name, options)
                    concerned[name] = run.left_out
                runs.append(run)
                say(f"{scenario.name:15} {number + 1}/{options.runs} {name:16} {said(run)}")


def heading(options: argparse.Namespace, document: dict[str, Any]) -> str:
    """Return the lines above the table, which describe the conditions."""
    host, pinned = document["machine"], options.pinned
    where = "not pinned"
    if pinned:
        where = f"broker on core {pinned[0]}, generator on core {pinned[1]}"
    lines = [
        f"{host['cpu']}, {host['cores']} cores, Linux {host['kernel']}, Python {host['python']}; {where}; "
        f"load average before {host['load_average'][0]:.2f}",
        f"MQTT {options.protocol}, {options.payload} B payload, loopback TCP, clean sessions, unless noted; "
        f"medians of {options.runs} x {options.seconds:g} s after {options.warmup:g} s",
        *(f"{name}: {version}" for name, version in document["versions"].items()),
        *(f"{name}: left out: {reason}" for name, reason in document["left_out"].items()),
    ]
    if "mosquitto" in document["versions"]:
        settings = peers.PEERS["mosquitto"].configs["plain"].splitlines()[1:]
        lines.append("mosquitto runs with " + ", ".join(settings))
    lines.append(
        "W = messages each publisher may have outstanding end to end; cost ratio = mosquitto's cost / "
        "this one's; core, gen. = share of a core that broker and generator used"
    )
    if options.against:
        lines.append(
            "against = cost of the same build in the other checkout (@commit) / this one's, of medians and of lowest runs"
        )
    return "\n".join(lines)


def installed(names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Start each broker once. Return the versions of those that started, and why the others did not.

    Raises PeerError for an unknown name.
    """
    versions, left_out = {}, {}
    for name in names:
        if name not in peers.PEERS:
            peers.find(name)
        try:
            peer, program = peers.find(name)
            # Discover a broker that does not start now, not minutes into the comparison.
            with launch.running(name, core=None, variant=next(iter(peer.configs))):
                versions[name] = peer.version(program)
        except peers.PeerError as error:
            left_out[name] = " ".join(str(error).split())
    return versions, left_out


def with_counterparts(names: list[str], suffix: str) -> tuple[list[str], dict[str, str]]:
    """Insert the other checkout's HookMQ builds next to this checkout's. Return all names, and each one's counterpart."""
    earlier = {name: name + suffix for name in names if name.startswith("hookmq")}
    return [one for name in names for one in (name, earlier.get(name)) if one], earlier


def builds(versions: dict[str, str]) -> dict[str, str]:
    """Return, for each HookMQ from this checkout, whether it is compiled or pure."""
    return {
        name: "compiled" if "compiled" in version else "pure"
        for name, version in versions.items()
        if name.startswith("hookmq") and "@" not in name
    }


def written(document: dict[str, Any]) -> str:
    """Format the document as JSON with one line per row."""
    rows = ",\n".join(json.dumps(row) for row in document["rows"])
    return (
        json.dumps({**document, "rows": []}, indent=1).replace(
            '"rows": []', f'"rows": [\n{rows}\n]', 1
        )
        + "\n"
    )


def main() -> int:
    """Run the comparison. Return 0, 1 if a HookMQ row is void, 2 if nothing can be measured, or 130 after Ctrl-C."""
    options = arguments()
    # Make SIGTERM stop the broker too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    launch.raise_file_limit()
    try:
        binary = native.build()
        names = [name.strip() for name in options.peers.split(",")]
        if options.against:
            names, earlier = with_counterparts(names, peers.add_checkout(options.against.resolve()))
        else:
            earlier = {}
        versions, left_out = installed(names)
        if not versions:
            raise peers.PeerError(f"no broker to measure: {left_out}")
    except (native.NativeError, peers.PeerError) as error:
        say(f"bench: {error}")
        return 2
    names = list(versions)
    document: dict[str, Any] = {"format": 2, "machine": session.machine()}
    cores = os.sched_getaffinity(0)
    options.pinned = session.pin(options.pinned)
    say(f"generator {binary}; {len(options.chosen)} scenarios x {options.runs} runs x {names}")
    started = datetime.datetime.now(datetime.UTC)
    runs: list[report.Run] = []
    costs: list[plugins.Row] = []
    early = False
    try:
        with session.priority(options.nice):
            run_all(options, names, runs)
            if options.scenarios == "*" and not options.no_plugins and not options.quick:
                with plugins.on_all_cores(cores):
                    costs = plugins.measure(say)
    except PermissionError as error:
        say(f"bench: {error}")
        return 2
    except KeyboardInterrupt:
        say(f"bench: ended early by Ctrl-C, after {len(runs)} runs")
        early = True
        options.json = None  # do not overwrite an older file with an incomplete run
    if early and not runs:
        return 130
    rows = report.summarise(runs, builds(versions), earlier)
    document |= {
        "started": started.isoformat(timespec="seconds"),
        "took_s": round((datetime.datetime.now(datetime.UTC) - started).total_seconds()),
        "versions": versions,
        "left_out": left_out,
        "configuration": {name: dict(peers.PEERS[name].configs) for name in names},
        "options": {
            "payload": options.payload,
            "protocol": options.protocol,
            "seconds": options.seconds,
            "warmup": options.warmup,
            "runs": options.runs,
            "nice": options.nice,
            "cores": options.pinned,
        },
        "rows": report.to_json(rows),
        "plugins": plugins.to_json(costs),
    }
    print(heading(options, document), report.table(rows), sep="\n\n")
    if costs:
        print(f"\n{plugins.table(costs)}")
    target = options.json or RESULTS / f"{started:%Y%m%dT%H%M%SZ}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(written(document))
    say(f"wrote {target} after {document['took_s']} s")
    if early:
        return 130
    ours = [row for row in rows if row.build]
    return 1 if any(row.void for row in ours) or any(row.void for row in costs) else 0


if __name__ == "__main__":
    sys.exit(main())
