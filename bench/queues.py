"""``python -m bench.queues``: measure what a message in a durable queue costs in HookMQ, RabbitMQ, NATS JetStream and
Redis.

Each message is published, stored, confirmed to its producer, delivered to one consumer and acknowledged. Messages are 256
bytes long. There are 50 producers with at most 100 unconfirmed messages each, and 10 consumers with at most 100
unacknowledged messages each. Rows with the same durability are compared:

    disk      an acknowledged message was written with fsync
    system    the operating system has an acknowledged message, so it survives the end of the process

Every acknowledged message must be consumed. Otherwise the run is void.

With ``--depths``, HookMQ's queue is first filled with that many messages. The cost is then measured while messages
arrive as fast as they are consumed. Finally, the broker is killed and restarted with these messages, to measure how
long it takes until it accepts clients.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time

from . import launch, peers, queue_depth, session
from .durable_load import Void
from .durable_report import spread
from .queue_client import SIZE
from .queue_load import Load, Run, measure
from .queue_servers import DISK, SERVERS, SYSTEM, Server, folder, running
from .session import say

HEADING = """\
| durability | server | messages/s | CPU us/message | HookMQ's CPU / its CPU | cores | gen. | delivered again | MiB |
|---|---|---|---|---|---|---|---|---|"""


def row(server: Server, runs: list[Run], reference: float) -> str:
    """Format a row of the comparison. `reference` is the CPU time of HookMQ's row, or 0."""
    cpu = sorted(run.cpu for run in runs)[len(runs) // 2]
    cells = [
        server.durability,
        server.name,
        spread([run.rate for run in runs], ",.0f"),
        spread([run.cpu for run in runs], ".1f"),
        f"{reference / cpu:.2f}x" if reference else "",
        f"{max(run.cores for run in runs):.2f}",
        f"{max(run.generator for run in runs):.2f}",
        str(sum(run.again for run in runs)),
        f"{max(run.resident for run in runs) / 2**20:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def table(runs: dict[Server, list[Run]], void: dict[Server, str]) -> str:
    """Format the comparison, one durability after another."""
    lines = [HEADING]
    for durability in (DISK, SYSTEM):
        ours = [
            sorted(run.cpu for run in found)[len(found) // 2]
            for server, found in runs.items()
            if server.name.startswith("hookmq") and server.durability == durability and found
        ]
        for server in SERVERS:
            if server.durability != durability:
                continue
            if server in void:
                lines.append(f"| {durability} | {server.name} | VOID: {void[server]} |" + " |" * 6)
            elif runs.get(server):
                lines.append(row(server, runs[server], min(ours, default=0.0)))
    return "\n".join(lines)


def compare(
    servers: list[Server], load: Load, rounds: int, core: int | None
) -> tuple[dict[Server, list[Run]], dict[Server, str], dict[str, str]]:
    """Measure each server `rounds` times. Return the runs, the reasons why runs are void, and the servers that were
    left out."""
    runs: dict[Server, list[Run]] = {server: [] for server in servers}
    void: dict[Server, str] = {}
    left_out: dict[str, str] = {}
    for number in range(rounds):
        # Reverse the order each time, because the machine's state changes over time.
        for server in servers if number % 2 == 0 else reversed(servers):
            if server.name in left_out:
                continue
            try:
                with folder() as where, running(server, where, core) as broker:
                    run = measure(server, broker, load)
            except peers.PeerError as error:
                left_out[server.name] = " ".join(str(error).split())
                said = f"left out: {left_out[server.name]}"
            except (Void, OSError) as error:
                void[server] = said = f"{error}"
                said = f"VOID: {error}"
            else:
                runs[server].append(run)
                said = f"{run.rate:10,.0f}/s {run.cpu:8.1f} us"
            say(f"{number + 1}/{rounds} {server.durability:7} {server.name:30}{said}")
    return runs, void, left_out


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. `words` defaults to `sys.argv`."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.queues",
        description="Publish, consume and acknowledge messages of a durable queue: HookMQ, RabbitMQ, NATS JetStream "
        "and Redis Streams, alternating in one run. See bench/README.md.",
    )
    add = parser.add_argument
    standard = Load()
    add("--servers", default="", help="beginnings of names, separated by commas (all)")
    add("--durability", choices=(DISK, SYSTEM), help="only these rows")
    add(
        "--seconds",
        type=float,
        default=standard.seconds,
        help="measured time of a run (%(default)s)",
    )
    add("--runs", type=int, default=3, help="runs of each; the table has medians (%(default)s)")
    add("--window", type=int, default=standard.window, help="unconfirmed messages of a producer")
    add("--prefetch", type=int, default=standard.prefetch, help="at most 100 (%(default)s)")
    add("--producers", type=int, default=standard.producers, help="connections (%(default)s)")
    add("--consumers", type=int, default=standard.consumers, help="connections (%(default)s)")
    add(
        "--depths",
        default="",
        help="measure HookMQ with so many waiting messages, such as 0,1000,100000,1000000; no comparison",
    )
    add("--build", choices=("compiled", "pure"), default="compiled", help="HookMQ for --depths")
    add("--cores", default="0,1", help="the server's and the generator's core (%(default)s)")
    add("--no-pin", action="store_true", help="do not bind processes to cores")
    add("--json", type=pathlib.Path, metavar="FILE", help="also write every run to this file")
    options = parser.parse_args(words)
    if not (0 < options.seconds <= 300 and options.runs > 0 and 0 < options.prefetch <= 100):
        parser.error("--seconds up to 300, --runs at least 1, --prefetch 1 to 100")
    if min(options.window, options.producers, options.consumers) < 1 or options.window > 30_000:
        parser.error("--window 1 to 30000, --producers and --consumers at least 1")
    try:
        options.depths = [int(word) for word in options.depths.split(",") if word]
        broker, load = (int(word) for word in options.cores.split(","))
    except ValueError as error:
        parser.error(str(error))
    options.pinned = None if options.no_pin else (broker, load)
    return options


def _chosen(options: argparse.Namespace) -> list[Server]:
    starts = tuple(word.strip() for word in options.servers.split(","))
    return [
        one
        for one in SERVERS
        if one.name.startswith(starts) and options.durability in (None, one.durability)
    ]


def main() -> int:
    """Print the table. Return 0, 1 if a row is void, or 2 if nothing can be measured."""
    options = arguments()
    began = time.monotonic()
    launch.raise_file_limit()
    machine = session.machine()
    pinned = session.pin(options.pinned)
    core = pinned[0] if pinned else None
    load = Load(
        options.seconds, options.producers, options.consumers, options.prefetch, options.window
    )
    say(f"{machine['cpu']}, load average {os.getloadavg()[0]:.2f}")
    document: dict[str, object] = {
        "format": 1,
        "machine": machine,
        "load": dataclasses.asdict(load),
        "pinned": pinned,
        "payload": SIZE,
    }
    failed = False
    if options.depths:
        try:
            points = queue_depth.curve(options.depths, load, options.build, core)
        except (peers.PeerError, Void, OSError) as error:
            say(f"bench: {error}")
            return 2
        print(queue_depth.table(points))
        document["depths"] = [dataclasses.asdict(point) for point in points]
    else:
        servers = _chosen(options)
        runs, void, left_out = compare(servers, load, options.runs, core)
        if not any(runs.values()):
            say(f"bench: nothing was measured: {left_out or void}")
            return 2
        versions = {one.name: one.version(one.program() or "") for one in servers if runs[one]}
        for name, version in versions.items():
            print(f"{name}: {version}")
        for name, why in left_out.items():
            print(f"{name}: left out: {why}")
        print(
            f"\n{SIZE} B, {load.producers} producers with up to {load.window} unconfirmed messages, {load.consumers} "
            f"consumers with up to {load.prefetch}; {options.runs} runs of {load.seconds:g} s; load average before "
            f"{machine['load_average'][0]:.2f}\n\n{table(runs, void)}"
        )
        document |= {
            "versions": versions,
            "left_out": left_out,
            "rows": [
                {
                    "server": one.name,
                    "durability": one.durability,
                    "void": void.get(one, ""),
                    "runs": [dataclasses.asdict(run) for run in found],
                }
                for one, found in runs.items()
            ],
        }
        failed = bool(void)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    say(f"{time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
