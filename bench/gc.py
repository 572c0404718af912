"""`python -m bench.gc`: measure how long garbage collection pauses the broker, with Python's thresholds and the server's.

An in-memory broker with many sessions does work that creates objects. It queues QoS 1 messages for offline sessions,
and clients connect and disconnect. `gc.callbacks` times every collection. Without a network, only the collector's cost
is visible.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from hookmq.server.server import GC_THRESHOLDS
from hookmq_testing import Harness

if TYPE_CHECKING:
    from collections.abc import Sequence

PYTHON = (700, 10, 10)


def measure(sessions: int, rounds: int, thresholds: Sequence[int], frozen: bool) -> str:
    """Measure one row: each generation's collections and pauses, and their share of the total time."""
    pauses: dict[int, list[float]] = defaultdict(list)
    started = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter()
        else:
            pauses[info["generation"]].append(time.perf_counter() - started)

    gc.set_threshold(*PYTHON)
    with Harness(config={"session": {"max_expiry": 86400.0}}) as harness:
        for number in range(sessions):
            client = harness.connect(f"s{number}", version=5, session_expiry_interval=3600)
            client.subscribe([(f"t/{number}", 1), (f"u/{number % 1000}/#", 0)])
            client.drop()
            harness.clients.clear()
            harness.logs.clear()
        gc.collect()
        if frozen:
            gc.freeze()
        gc.set_threshold(*thresholds)
        gc.callbacks.append(note)
        begin = time.perf_counter()
        for number in range(rounds):
            client = harness.connect(f"c{number}", version=5)
            for one in range(20):
                client.publish(f"t/{(number * 20 + one) % sessions}", b"x" * 64, qos=1)
            client.disconnect()
            harness.clients.clear()
            harness.logs.clear()
        took = time.perf_counter() - begin
        gc.callbacks.remove(note)
        gc.unfreeze()
        gc.disable()
    cells = [f"{len(pauses[n]):>6} {max(pauses[n], default=0) * 1e3:>8.2f}" for n in (0, 1, 2)]
    share = sum(sum(found) for found in pauses.values()) / took
    name = f"{thresholds}{', frozen' if frozen else ''}"
    return f"{name:<32}{'  '.join(cells)}   {share:>6.1%}"


def main() -> None:
    """Print the table. Each row is measured in its own process."""
    parser = argparse.ArgumentParser(prog="python -m bench.gc", description=__doc__)
    parser.add_argument("--sessions", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5_000, help="rounds of 20 publishes")
    options = parser.parse_args()
    print(f"{options.sessions:,} sessions, {options.rounds * 20:,} publishes at QoS 1")
    print(f"{'thresholds':<32}{'young, ms':>15}  {'middle, ms':>15}  {'full, ms':>15}   share")
    context = multiprocessing.get_context("spawn")
    for thresholds, frozen in ((PYTHON, False), (GC_THRESHOLDS, False), (GC_THRESHOLDS, True)):
        with context.Pool(1) as pool:
            row = pool.apply(measure, (options.sessions, options.rounds, thresholds, frozen))
        print(row, flush=True)


if __name__ == "__main__":
    main()
