"""`python -m bench`: run every scenario against every broker in turn and print the comparison."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import signal
import sys
from typing import TYPE_CHECKING, Any

from . import generator, peers, plugins, report, scenarios

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = generator.HERE / "results"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compare HookMQ with other MQTT brokers: one load generator (C, epoll), runs "
        "that alternate between the brokers, a core for the broker and one for the generator. "
        "Cost is the broker's CPU time per delivered message; a ratio above 1 beats mosquitto. "
        "A run that loses, duplicates or reorders a message is void. See bench/README.md.",
        epilog="scenarios: " + ", ".join(s.name for s in scenarios.SCENARIOS),
    )
    add = parser.add_argument
    add("--scenarios", default="*", metavar="NAMES", help="comma-separated names or patterns (all)")
    add("--peers", default="mosquitto,hookmq", metavar="NAMES", help="brokers (%(default)s)")
    add("--seconds", type=float, default=2.0, help="measured time of a run (%(default)s)")
    add("--warmup", type=float, default=0.5, help="seconds of load before it (%(default)s)")
    add("--runs", type=int, default=3, help="runs of each; the table has medians (%(default)s)")
    add("--quick", action="store_true", help="one run of 1 s with 0.3 s of warm-up")
    add("--payload", type=int, default=64, help="bytes, at least 24 (%(default)s)")
    add("--protocol", choices=("3.1.1", "5"), default="3.1.1", help="MQTT version (%(default)s)")
    add("--cores", default="0,1", help="the broker's and the generator's core (%(default)s)")
    add("--no-pin", action="store_true", help="leave processes on whatever core")
    add("--nice", type=int, help="priority of this session, say -10 (needs root); put back after")
    add("--no-plugins", action="store_true", help="leave out what plugins cost (some 30 s)")
    add("--json", type=pathlib.Path, metavar="FILE", help="default: bench/results/TIME.json")
    options = parser.parse_args(words)
    if options.quick:
        options.runs, options.seconds, options.warmup = 1, 1.0, 0.3
    if options.runs < 1 or not 0 < options.seconds <= 300 or not 0 <= options.warmup <= 60:
        parser.error("--runs at least 1, --seconds up to 300, --warmup up to 60")
    if not 24 <= options.payload <= 65536:
        parser.error("--payload must be 24 to 65536")
    try:
        options.chosen = scenarios.select(options.scenarios)
        broker, load = (int(word) for word in options.cores.split(","))
    except ValueError as error:
        parser.error(str(error))
    options.broker_core, options.load_core = broker, load
    return options


def say(text: str) -> None:
    """Progress, on stderr: stdout has the table only."""
    print(text, file=sys.stderr, flush=True)


def pin(options: argparse.Namespace) -> None:
    """Put this process, and so the generator, on its core; without two cores, say so and do not."""
    if not options.no_pin and not {options.broker_core, options.load_core} <= os.sched_getaffinity(
        0
    ):
        say(f"cores {options.cores} are not both available: not pinned")
        options.no_pin = True
    if options.no_pin:
        options.broker_core = options.load_core = None
    else:
        os.sched_setaffinity(0, {options.load_core})


@contextlib.contextmanager
def priority(nice: int | None) -> Iterator[None]:
    """Run the block, and what it starts, at that niceness: of the process and of its autogroup.

    With autogroups, Linux's default, niceness weighs within a session only; the session's own
    weight, which counts against everything else on the machine, is in /proc/self/autogroup.
    """
    if nice is None:
        yield
        return
    group = pathlib.Path("/proc/self/autogroup")
    before = group.read_text().split()[-1] if group.exists() else None
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if before is not None:
        group.write_text(str(nice))
    try:
        yield
    finally:
        if before is not None:
            group.write_text(before)


def measure(scenario: scenarios.Scenario, broker: str, options: argparse.Namespace) -> report.Run:
    """One run on a broker started for it alone."""
    words = scenario.arguments(
        payload=options.payload,
        level=5 if options.protocol == "5" else 4,
        seconds=options.seconds,
        warmup=options.warmup,
    )
    try:
        with peers.running(broker, core=options.broker_core) as running:
            raw = generator.run(
                words, port=running.port, pids=running.pids(), timeout=options.seconds + 60
            )
    except (generator.GeneratorError, peers.PeerError) as error:
        return report.Run(scenario, broker, error=" ".join(str(error).split()))
    return report.Run(scenario, broker, raw)


def run_all(options: argparse.Namespace, names: list[str]) -> list[report.Run]:
    """Every run, brokers alternating, each round in the other order."""
    runs = []
    for scenario in options.chosen:
        for number in range(options.runs):
            for name in names if number % 2 == 0 else reversed(names):
                run = measure(scenario, name, options)
                runs.append(run)
                said = run.defects()
                if said:
                    said = f"VOID: {said}"
                else:
                    figures = run.figures()
                    unit = "KiB" if scenario.mode == "idle" else "us"
                    said = f"{figures.get('rate', 0):12,.0f}/s {figures['cost']:9.3f} {unit}"
                say(f"{scenario.name:14} {number + 1}/{options.runs} {name:10} {said}")
    return runs


def machine() -> dict[str, Any]:
    """What the figures depend on, as far as the system tells."""
    model = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def heading(options: argparse.Namespace, versions: dict[str, str], host: dict[str, Any]) -> str:
    """What was compared with what, above the table."""
    where = (
        "not pinned"
        if options.no_pin
        else f"broker on core {options.broker_core}, generator on core {options.load_core}"
    )
    lines = [
        f"{host['cpu']}, {host['cores']} cores, Linux {host['kernel']}, Python {host['python']}; {where}; "
        f"load average before {host['load_average'][0]:.2f}",
        f"MQTT {options.protocol}, {options.payload} B payload, loopback TCP, clean sessions; "
        f"medians of {options.runs} x {options.seconds:g} s after {options.warmup:g} s",
        *(f"{name}: {version}" for name, version in versions.items()),
    ]
    if "mosquitto" in versions:
        settings = peers.MOSQUITTO_CONF.splitlines()[1:]
        lines.append("mosquitto runs with " + ", ".join(settings))
    lines.append(
        "W = messages each publisher may have outstanding end to end; cost ratio = mosquitto's cost / "
        "this one's; core, gen. = share of a core that broker and generator used"
    )
    return "\n".join(lines)


def main() -> int:
    """Exit code 0; 1 when a row is void; 2 when it cannot run at all."""
    options = arguments()
    # So that a broker is stopped on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = [name.strip() for name in options.peers.split(",")]
    try:
        binary = generator.build()
        versions = {}
        for name in names:
            peer, program = peers.find(name)
            versions[name] = peer.version(program)
            # Better now than after minutes: a broker that does not start.
            with peers.running(name, core=None):
                pass
    except (generator.GeneratorError, peers.PeerError) as error:
        say(f"bench: {error}")
        return 2
    host = machine()
    peers.raise_file_limit()
    cores = os.sched_getaffinity(0)
    pin(options)
    say(f"generator {binary}; {len(options.chosen)} scenarios x {options.runs} runs x {names}")
    started = datetime.datetime.now(datetime.UTC)
    try:
        with priority(options.nice):
            runs = run_all(options, names)
            costs: list[plugins.Row] = []
            if options.scenarios == "*" and not options.no_plugins:
                with plugins.on_all_cores(cores):
                    costs = plugins.measure(say)
    except PermissionError as error:
        say(f"bench: {error}")
        return 2
    rows = report.summarise(runs)
    print(heading(options, versions, host))
    print()
    print(report.table(rows))
    if costs:
        print()
        print(plugins.table(costs))
    target = options.json or RESULTS / f"{started:%Y%m%dT%H%M%SZ}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "format": 1,
        "started": started.isoformat(timespec="seconds"),
        "machine": host,
        "versions": versions,
        "configuration": {name: peers.PEERS[name].config for name in names},
        "options": {
            "payload": options.payload,
            "protocol": options.protocol,
            "seconds": options.seconds,
            "warmup": options.warmup,
            "runs": options.runs,
            "nice": options.nice,
            "cores": None if options.no_pin else options.cores,
        },
        "rows": report.to_json(rows),
        "plugins": plugins.to_json(costs),
    }
    target.write_text(json.dumps(document, indent=1) + "\n")
    say(f"wrote {target}")
    return 1 if any(row.void for row in rows) or any(row.void for row in costs) else 0


if __name__ == "__main__":
    sys.exit(main())
