"""Run seeds: `python -m cluster_simulator --seeds 100`. The exit status is 1 if a promise was broken."""

import argparse
import os
import resource
import sys
import time
from collections import Counter
from typing import Final

from cluster_simulator.jobs import results_of
from cluster_simulator.run import Result

TRACE: Final = 60
"""The last steps to print of a run that failed."""
PROGRESS: Final = 10.0
"""Seconds between two lines about the progress."""


class Totals:
    """The sums over all runs."""

    def __init__(self) -> None:
        self.runs = self.failed = self.meaningful = self.drained = self.acknowledged = 0
        self.faults: Counter[str] = Counter()
        self._begun = time.monotonic()

    def add(self, result: Result) -> None:
        """Add one run."""
        self.runs += 1
        self.failed += bool(result.problems)
        self.meaningful += result.meaningful
        self.faults += result.faults
        self.drained += result.drained
        self.acknowledged += result.acknowledged

    def __str__(self) -> str:
        seconds = time.monotonic() - self._begun
        kinds = (f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.runs} runs ({self.meaningful} with faults and messages), {self.faults.total()} faults "
            f"({', '.join(kinds)}), {self.drained} drains completed, "
            f"{self.acknowledged} messages acknowledged, {self.failed} failed, {seconds:.0f} s, "
            f"{cpu_seconds():.1f} s of CPU"
        )


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds of the command line, or of `arguments`. Print each seed that fails, with its steps."""
    parser = argparse.ArgumentParser(prog="cluster_simulator")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use")
    parser.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    options = parser.parse_args(arguments)
    totals = Totals()
    reported = time.monotonic()
    for result in results_of(range(options.start, options.start + options.seeds), options.jobs):
        totals.add(result)
        if result.problems:
            lines = (*result.problems, *result.trace[-TRACE:])
            print(f"seed {result.seed} failed", *lines, sep="\n  ", flush=True)
            if options.first:
                break
        if time.monotonic() - reported >= PROGRESS:
            reported = time.monotonic()
            print(totals, file=sys.stderr, flush=True)
    print(totals)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets must not change, so that a seed gives the same run again.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "cluster_simulator", *sys.argv[1:]])
    sys.exit(main())
