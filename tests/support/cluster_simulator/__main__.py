"""Run seeds: `python -m cluster_simulator --seeds 100`. The exit status is 1 if a promise was broken."""

import argparse
import sys
import time

from cluster_simulator.run import run

TRACE = 40


def main() -> int:
    """Run the seeds of the command line. Print each seed that fails, with its steps."""
    parser = argparse.ArgumentParser(prog="cluster_simulator")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    options = parser.parse_args()
    runs = failed = sent = 0
    for seed in range(options.start, options.start + options.seeds):
        result = run(seed)
        runs += 1
        sent += result.sent
        if result.problems:
            failed += 1
            print(f"seed {seed} failed", *result.problems, *result.trace[-TRACE:], sep="\n  ")
            if options.first:
                break
    print(f"{runs} runs, {sent} messages, {failed} failed, {time.process_time():.1f} s of CPU")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
