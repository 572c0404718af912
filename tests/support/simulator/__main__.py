"""Run many seeds on all cores, run one seed with its trace, or shrink a failure.

python -m simulator --seeds 2000 python -m simulator --seed 139 --trace python -m simulator --seed 139 --shrink
"""

import argparse
import os
import runpy
import sys
import time

from simulator.coverage import UNREACHABLE, Coverage
from simulator.generate import make_plan, make_queue_plan
from simulator.plan import Plan
from simulator.process import Result
from simulator.runner import run_seeds
from simulator.shrink import as_test, shrink
from simulator.world import run

ENOUGH = 500
"""Number of seeds after which every cell of the connection's state table must have been reached."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Return 0 if all invariants held in every run."""
    options = _parse(arguments)
    make = make_queue_plan if options.queues else make_plan
    if options.plan is not None:
        return _one(options, runpy.run_path(options.plan)["PLAN"])
    if options.seed is not None:
        return _one(options, make(options.seed))
    began = time.monotonic()
    coverage = Coverage()
    failures: list[Result] = []
    done = events = packets = crashes = 0
    count = options.seeds
    for result in run_seeds(range(options.start, options.start + count), options.workers, make):
        done += 1
        events += result.events
        packets += result.packets
        crashes += result.crashes
        coverage.add(result.cells.items())
        if result.failed:
            failures.append(result)
            _report(result, options.queues)
            if options.first:
                break
        if not options.quiet and (done % 25 == 0 or done == count):
            rate = events / (time.monotonic() - began)
            print(
                f"\r{done}/{count} seeds, {len(failures)} failed, {rate:,.0f} events/s ",
                end="", file=sys.stderr, flush=True,
            )  # fmt: skip
    seconds = time.monotonic() - began
    if not options.quiet:
        print(file=sys.stderr)
        print(coverage)
        for cell, reason in UNREACHABLE.items():
            print(f"not reached: {cell[0].name} {cell[1].name}: {reason}")
    print(
        f"{done} seeds in {seconds:.1f} s: {events:,} events, {packets:,} packets, {crashes:,} crashes, "
        f"{len(failures)} failures"
    )
    whole = done >= ENOUGH and not options.first and not options.queues
    missing = coverage.missing() if whole else []
    for cell in missing:
        print(f"never reached: {cell[0].name} {cell[1].name}")
    return 1 if failures or missing else 0


def _one(options: argparse.Namespace, plan: Plan) -> int:
    result = run(plan, print if options.trace else None)
    if not result.failed:
        print(
            f"seed {result.seed}: all invariants hold; {result.events} events, {result.packets} packets, "
            f"trace {result.hash:08x}"
        )
        return 0
    _report(result, options.queues)
    if options.shrink:
        short = shrink(plan, result.invariant, options.seconds, lambda text: print(f"# {text}"))
        last = run(short)
        print(as_test(short, last.invariant, last.text))
    return 1


def _report(result: Result, queues: bool) -> None:
    print(
        f"\nseed {result.seed}, at {result.at:.4f} s, trace {result.hash:08x}: {result.invariant}: {result.text}"
    )
    more = " --queues" if queues else ""
    print(f"    replay: python -m simulator{more} --seed {result.seed} --trace")
    print(f"    shrink: python -m simulator{more} --seed {result.seed} --shrink", flush=True)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m simulator",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    parser.add_argument("--quiet", action="store_true", help="no progress, no coverage")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--queues", action="store_true", help="worlds with queues")
    parser.add_argument("--plan", help="one plan only: a Python file with a PLAN")
    parser.add_argument("--trace", action="store_true", help="tell everything that happens in it")
    parser.add_argument("--shrink", action="store_true", help="make its failure short, as a test")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to shrink")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
