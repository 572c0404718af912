"""``python -m bench.cluster``: measure the cost of a message in a cluster, compared with a single broker with storage.

CPU time is the sum over all brokers, their child processes and all NATS servers, divided by the messages that subscribers
received. The generator's own CPU time does not count. Messages are 64 bytes long, and each publisher has at most 20
unacknowledged messages. The rows are:

    single-q1        one broker with storage, QoS 1, durable sessions
    single-q0        the same broker, QoS 0
    local-q1         a cluster of three, all clients on one node, QoS 1, durable sessions
    local-q0         the same, QoS 0
    across-q1        publishers on one node and subscribers on another one, QoS 1, durable sessions
    across-volatile  the same, QoS 1, without durable sessions
    across-q0        the same, QoS 0
    worker-1, -2     one or two workers and their nats-server, QoS 0
    worker-half      one worker with half of the messages per second
    together-2       two workers, with each pair of clients on one of them
    share-1, -2      one or two workers, QoS 0, all publishers to one shared subscription
    share-half       one worker with half of the messages per second
    nats-q1          three NATS servers that are MQTT brokers themselves, from server to server, QoS 1, durable sessions
    nats-q0          the same, QoS 0
    takeover         seconds until the sessions of a killed node are resumed on another one
    subscriptions    memory of each node and traffic between nodes, by the number of subscriptions

Two workers can use twice the CPU time of one. If each of them has a CPU, they handle 2 / ratio times as many messages.
Here they share their CPUs with the generator, so each of them handles half of what it could. Messages are read in smaller
batches then, which cost more: compare together-2 with worker-half, and share-2 with share-half.

A run is void if a message with QoS 1 was lost, doubled or reordered, or if a session was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from . import cluster_nodes, cluster_sessions, launch, peers, session
from .cluster_nodes import Brokers
from .durable_load import Void
from .durable_report import spread
from .session import say

DURABLE = ("-V", "mqttv5", "-x", "3600")
OLD = ("-V", "mqttv311")
"""NATS servers do not know MQTT 5."""
WINDOW = 20
HEADING = """\
| row | messages/s | CPU us/message | ratio | brokers | NATS servers |
|---|--:|--:|--:|--:|--:|"""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A load. `brokers` says which brokers run: single, cluster, nats, a number of workers, or the number and `together`.

    Each publisher has a subscriber. If `across`, they are on different nodes. If `shared`, all subscribers share one
    subscription to all topics instead. If `half_of` is a row, the rate is half of that row's. The row's cost is compared
    with that of the row `reference`.
    """

    name: str
    brokers: str
    qos: int
    durable: bool
    across: bool = False
    reference: str = ""
    shared: bool = False
    half_of: str = ""

    def session(self, role: str) -> tuple[str, ...]:
        """The options of the generator for its sessions."""
        if self.brokers == "nats":
            return (*OLD, "-c", "-i", f"bench-{role}") if self.durable else OLD
        return DURABLE if self.durable else ()


ROWS = (
    Row("single-q1", "single", 1, True),
    Row("single-q0", "single", 0, False),
    Row("local-q1", "cluster", 1, True, reference="single-q1"),
    Row("local-q0", "cluster", 0, False, reference="single-q0"),
    Row("across-q1", "cluster", 1, True, True, "single-q1"),
    Row("across-volatile", "cluster", 1, False, True, "single-q1"),
    Row("across-q0", "cluster", 0, False, True, "single-q0"),
    Row("worker-1", "1", 0, False),
    Row("worker-2", "2", 0, False, reference="worker-1"),
    Row("worker-half", "1", 0, False, half_of="worker-1"),
    Row("together-2", "2 together", 0, False, reference="worker-half"),
    Row("share-1", "1", 0, False, shared=True),
    Row("share-half", "1", 0, False, shared=True, half_of="share-1"),
    Row("share-2", "2", 0, False, reference="share-half", shared=True),
    Row("nats-q1", "nats", 1, True, True, "single-q1"),
    Row("nats-q0", "nats", 0, False, True, "single-q0"),
)
OTHERS = ("takeover", "subscriptions")


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A run of a row. `cpu` is microseconds for each received message, of each broker and NATS server."""

    messages: int
    rate: float
    cpu: dict[str, float]

    @property
    def cost(self) -> float:
        """The CPU time of all processes for a message, in microseconds."""
        return sum(self.cpu.values())


def generator(words: list[str]) -> list[str]:
    """Return the command line of a load generator that prints its result as JSON."""
    _, program = peers.find("hookmq")
    return [program, "bench", *words, "--json", "-", "--quiet"]


def result(printed: str, lossy: bool, shared: bool = False) -> dict[str, Any]:
    """Return the result that a generator printed. Raises Void if it printed none, or if messages were lost,
    doubled or reordered. If `lossy`, lost ones are allowed. If `shared`, different subscribers may get them in another
    order."""
    start = printed.find("{")
    if start < 0:
        raise Void(f"the generator printed no result: {printed[-200:]!r}")
    found: dict[str, Any] = json.JSONDecoder().raw_decode(printed[start:])[0]
    bad = {key: found[key] for key in ("lost", "duplicates", "reordered") if found[key]}
    if lossy:
        bad.pop("lost", None)
    if shared:
        bad.pop("reordered", None)
    if bad or found["refused"] or found["lost_connections"]:
        raise Void(f"{bad}, refused {found['refused']}, disconnected {found['lost_connections']}")
    return found


def _load(
    row: Row, brokers: Brokers, seconds: float, clients: int, rate: float
) -> tuple[int, float]:
    """Run a row's load, with at most `rate` messages per second if that is not 0. Return the number of received messages
    and their rate."""
    words = ["-q", str(row.qos)]
    home = ["-p", str(brokers.ports["a"])]
    timing = ["--duration", f"{seconds}s", "--warm-up", "0s"]
    number, window = str(clients), ["--window", str(WINDOW)]
    if rate:
        timing += ["--rate", f"{rate:.0f}"]
    if not row.across:
        words += ["--publishers", number, *row.session("pair")]
        scenario = ["fanin", "--shared", "--subscribers", number] if row.shared else ["pair"]
        program = generator([*scenario, *words, *home, *timing, *window])
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        found = result(done.stdout or done.stderr, lossy=not row.qos, shared=row.shared)
        return found["received"], found["rates"]["received"]
    words += ["-t", f"bench/{time.monotonic_ns()}/{{i}}"]
    # The subscribers end some time after the publishers.
    ending = ["--duration", f"{seconds + 4}s", "--warm-up", "0s"]
    other = ["-p", str(brokers.ports["b"])]
    sub = ["sub", "--subscribers", number, *words, *row.session("sub"), *other, *ending]
    subscribers = subprocess.Popen(
        generator(sub), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        # If the generator is late, the run is void.
        time.sleep(2.0)  # the generator does not say when it has subscribed
        pub = ["pub", "--publishers", number, *words, *row.session("pub"), *home, *timing, *window]
        done = subprocess.run(generator(pub), capture_output=True, text=True, check=False)
        sent = result(done.stdout or done.stderr, lossy=False)
        received = result(subscribers.communicate(timeout=seconds + 60)[0], lossy=not row.qos)
    finally:
        subscribers.kill()
        subscribers.wait()
    missing = sent["acked"] - received["received"]
    if row.qos and missing > 0:
        raise Void(f"{missing} acknowledged messages were not received")
    return received["received"], received["received"] / seconds


def measure(row: Row, brokers: Brokers, seconds: float, clients: int, limit: float) -> Run:
    """Measure one run of a row, with at most `limit` messages per second if that is not 0. Raises Void if the run does
    not count."""
    before = brokers.cpu()
    messages, rate = _load(row, brokers, seconds, clients, limit)
    after = brokers.cpu()
    if not messages:
        raise Void("no message was received")
    cpu = {name: (after[name] - before[name]) * 1e6 / messages for name in after}
    return Run(messages, rate, cpu)


@contextlib.contextmanager
def running(kind: str) -> Iterator[Brokers]:
    """Run the brokers of a row."""
    if kind == "single":
        context = cluster_nodes.single()
    elif kind == "cluster":
        context = cluster_nodes.cluster()
    elif kind == "nats":
        context = cluster_nodes.nats()
    else:
        count, _, together = kind.partition(" ")
        context = cluster_nodes.workers(int(count), bool(together))
    with context as brokers:
        yield brokers


def compare(
    rows: list[Row], rounds: int, seconds: float, clients: int
) -> tuple[dict[str, list[Run]], dict[str, str]]:
    """Measure each row `rounds` times, with all brokers running. Return the runs, and why rows are void."""
    runs: dict[str, list[Run]] = {row.name: [] for row in rows}
    void: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        kinds = dict.fromkeys(row.brokers for row in rows)
        started = {kind: stack.enter_context(running(kind)) for kind in kinds}
        for number in range(rounds):
            # Reverse the order each time, because the machine's state changes over time.
            for row in rows if number % 2 == 0 else reversed(rows):
                other = runs.get(row.half_of)
                limit = other[-1].rate / 2 if other else 0.0
                try:
                    run = measure(row, started[row.brokers], seconds, clients, limit)
                except Void as error:
                    void[row.name] = str(error)
                    said = f"VOID: {error}"
                else:
                    runs[row.name].append(run)
                    each = " ".join(f"{name} {cost:.2f}" for name, cost in run.cpu.items())
                    said = f"{run.rate:10,.0f}/s {run.cost:7.2f} us ({each})"
                say(f"{number + 1}/{rounds} {row.name:16}{said}")
    return runs, void


def _median(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.cost)[len(runs) // 2]


def table(rows: list[Row], runs: dict[str, list[Run]], void: dict[str, str]) -> str:
    """Format the costs. The ratio is a row's cost divided by that of its reference."""
    lines = [HEADING]
    for row in rows:
        if row.name in void:
            lines.append(f"| {row.name} | VOID: {void[row.name]} |" + " |" * 4)
            continue
        found = runs[row.name]
        middle = _median(found)
        ratio = ""
        if runs.get(row.reference):
            reference = _median(runs[row.reference])
            ratio = f"{middle.cost / reference.cost:.2f}x"
        nats = sum(cost for name, cost in middle.cpu.items() if name.startswith("n"))
        cells = [
            row.name,
            spread([run.rate for run in found], ",.0f"),
            spread([run.cost for run in found], ".2f"),
            ratio,
            f"{middle.cost - nats:.2f}",
            f"{nats:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sessions_table(found: cluster_sessions.Takeover) -> str:
    """Format the takeover."""
    return (
        "| sessions | adoption began, s | first resumed, s | all resumed, s | CPU s |\n|--:|--:|--:|--:|--:|\n"
        f"| {found.sessions:,} | {found.noticed:.1f} | {found.first:.1f} | {found.last:.1f} | {found.cpu:.1f} |"
    )


def subscriptions_table(points: list[cluster_sessions.Subscriptions]) -> str:
    """Format the curve of subscriptions."""
    lines = [
        "| subscriptions | MiB of each node | bytes between nodes, each | CPU us each | seconds |",
        "|--:|--:|--:|--:|--:|",
    ]
    for one in points:
        memory = ", ".join(f"{size / 2**20:.0f}" for size in one.memory.values())
        lines.append(
            f"| {one.subscriptions:,} | {memory} | {one.traffic / one.subscriptions:.0f} "
            f"| {one.cpu * 1e6 / one.subscriptions:.0f} | {one.seconds:.0f} |"
        )
    return "\n".join(lines)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. `words` defaults to `sys.argv`."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster",
        description="Measure the CPU time of messages in a cluster, compared with a single broker. See bench/README.md.",
    )
    names = [*(row.name for row in ROWS), *OTHERS]
    add = parser.add_argument
    add("--only", default="", help=f"beginnings of rows, separated by commas: {', '.join(names)}")
    add("--runs", type=int, default=3, help="runs of each; the table has medians (%(default)s)")
    add("--seconds", type=float, default=5.0, help="time of a run (%(default)s)")
    add("--clients", type=int, default=20, help="publishers, and subscribers (%(default)s)")
    add("--sessions", type=int, default=10_000, help="sessions to take over (%(default)s)")
    add("--lease", type=float, default=10.0, help="the nodes' lease in the takeover (%(default)s)")
    add(
        "--subscriptions",
        default="100000,300000,1000000",
        help="points of the curve (%(default)s)",
    )
    add("--json", type=pathlib.Path, metavar="FILE", help="also write every run to this file")
    options = parser.parse_args(words)
    starts = tuple(word.strip() for word in options.only.split(","))
    options.rows = [row for row in ROWS if row.name.startswith(starts)]
    options.others = [name for name in OTHERS if name.startswith(starts)]
    if not options.rows and not options.others:
        parser.error(f"--only {options.only}: expected beginnings of {', '.join(names)}")
    if (
        options.runs < 1
        or not 0 < options.seconds <= 300
        or min(options.clients, options.sessions) < 1
    ):
        parser.error("--runs, --clients and --sessions at least 1, --seconds up to 300")
    if not 3 <= options.lease <= 600:
        parser.error("--lease 3 to 600")
    try:
        options.points = [int(word) for word in options.subscriptions.split(",")]
    except ValueError as error:
        parser.error(f"--subscriptions: {error}")
    if min(options.points) < len(cluster_nodes.NODES):
        parser.error(f"--subscriptions at least {len(cluster_nodes.NODES)}")
    return options


def main() -> int:
    """Print the tables. Return 0, 1 if a row is void, or 2 if nothing can be measured."""
    options = arguments()
    launch.raise_file_limit()
    machine = session.machine()
    say(f"{machine['cpu']}, {machine['cores']} cores, load average {os.getloadavg()[0]:.2f}")
    document: dict[str, Any] = {"format": 1, "machine": machine}
    tables: list[str] = []
    void: dict[str, str] = {}
    try:
        peer, program = peers.find("hookmq")
        before = machine["load_average"][0]
        tables.append(f"HookMQ {peer.version(program)}; load average before {before:.2f}")
        if options.rows:
            runs, void = compare(options.rows, options.runs, options.seconds, options.clients)
            tables.append(table(options.rows, runs, void))
            document["rows"] = {
                name: [dataclasses.asdict(run) for run in found] for name, found in runs.items()
            }
        if "takeover" in options.others:
            with cluster_nodes.cluster(options.lease) as brokers:
                taken = cluster_sessions.takeover(brokers, options.sessions)
            tables.append(sessions_table(taken))
            document["takeover"] = dataclasses.asdict(taken)
        if "subscriptions" in options.others:
            points = []
            for total in options.points:
                with cluster_nodes.cluster() as brokers:
                    points.append(cluster_sessions.subscriptions(brokers, total))
                say(f"{points[-1]}")
            tables.append(subscriptions_table(points))
            document["subscriptions"] = [dataclasses.asdict(point) for point in points]
    except (peers.PeerError, Void, OSError) as error:
        say(f"bench: {error}")
        return 2
    print("\n\n".join(tables))
    if options.json:
        options.json.write_text(json.dumps({**document, "void": void}, indent=1) + "\n")
    return 1 if void else 0


if __name__ == "__main__":
    sys.exit(main())
