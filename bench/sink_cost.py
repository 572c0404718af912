"""``python -m bench.sink_cost``: measure the CPU time that a sink adds to a message in the broker.

Publishers send QoS 1 messages of 64 bytes to topics without a subscriber, with 1,000 in flight. The rows alternate:

    no sink      the cost of every message
    sink         each message is also stored in the log of a sink, which writes to a file

The columns are microseconds of CPU per message in the broker, in the storage plugin's process, and in the sink's process,
which does not delay publishers. CPU time depends on the load of the machine: with fewer messages in a commit, each of
them bears more of its cost. The load average is therefore part of the output.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import statistics
import sys
from collections.abc import Iterator

from . import launch, sinks, spark_sink
from .durable_report import spread
from .queue_servers import folder
from .session import say

LIMIT = 2.0
"""The maximum cost that a sink may add to a message in the broker, in the compiled build, in microseconds."""
WARM = 2000
"""Messages that are published before the measurement."""
PROCESSES = ("broker", "storage", "sink")


def name_of(pid: int, broker: int) -> str:
    """Return which of `PROCESSES` a process is."""
    if pid == broker:
        return "broker"
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return "sink" if b"hookmq_sinks" in words else "storage"


@contextlib.contextmanager
def started(where: pathlib.Path, logged: bool) -> Iterator[launch.Broker]:
    """Run HookMQ with the storage plugin, and with a sink if `logged` is True."""
    if logged:
        with sinks.sink(where, "file", {"path": str(where / "out")}) as found:
            yield found
    else:
        with sinks.broker(where, "broker", [sinks.STORAGE]) as found:
            yield found


def measure(logged: bool, count: int) -> dict[str, float]:
    """Return the microseconds of CPU per message in each process."""
    with folder() as where, started(where, logged) as broker:
        sinks.publish(broker.port, WARM)
        names = {pid: name_of(pid, broker.pid) for pid in broker.pids()}
        before = {pid: launch.cpu_seconds(pid) for pid in names}
        sinks.publish(broker.port, count)
        used = dict.fromkeys(PROCESSES, 0.0)
        for pid, name in names.items():
            used[name] += (launch.cpu_seconds(pid) - before[pid]) / count * 1e6
    return used


def main() -> int:
    """Print the table. Return 0."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.sink_cost", description="The CPU time that a sink adds to a message."
    )
    parser.add_argument(
        "--messages", type=int, default=200_000, help="messages of a run (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each row (%(default)s)")
    options = parser.parse_args()
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(options.rounds):
        for logged in (False, True) if number % 2 == 0 else (True, False):
            used = measure(logged, options.messages)
            runs[logged].append(used)
            texts = ", ".join(f"{name} {used[name]:.2f} us" for name in PROCESSES)
            say(f"{number + 1}/{options.rounds} {'sink' if logged else 'no sink':8} {texts}")
    print(
        f"HookMQ {spark_sink.build()}, {options.messages:,} messages, load {os.getloadavg()[0]:.1f}\n"
    )
    print("| | " + " | ".join(f"{name} us" for name in PROCESSES) + " |\n|---|--:|--:|--:|")
    for logged, found in runs.items():
        cells = (spread([one[name] for one in found], ".2f") for name in PROCESSES)
        print(f"| {'sink' if logged else 'no sink'} | {' | '.join(cells)} |")
    middle = {
        logged: [statistics.median(one[name] for one in found) for name in PROCESSES[:2]]
        for logged, found in runs.items()
    }
    added = middle[True][0] - middle[False][0]
    print(
        f"\nA sink adds {added:.2f} us in the broker, and {sum(middle[True]) - sum(middle[False]):.2f} us "
        f"with the storage plugin's process. Limit for the broker, compiled: {LIMIT:g} us."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
