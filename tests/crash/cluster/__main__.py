"""Break clusters of three brokers and three NATS servers under load, one for each seed, and judge their histories.

    .venv/bin/python tests/crash/cluster --seeds 15 --results results.json

A seed determines the faults and the load. Real processes do not repeat exactly, so a seed that failed may succeed the
next time: `--repeat 5` runs each seed several times. The folder of a seed with findings remains. It has all logs, and the
history, which `--judge` judges again. The program exits with code 1 if a seed has findings. `make chaos-cluster
CLUSTERS=15` runs it.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from clusterkill.checker import check
from clusterkill.history import read_history
from clusterkill.report import outcome_lines, recovery_lines, write_results
from clusterkill.rounds import Broken, Outcome, break_cluster


def main() -> int:
    """Run the program. Return 0 if no seed has findings."""
    parser = argparse.ArgumentParser(prog="tests/crash/cluster", description=__doc__)
    parser.add_argument("--seeds", type=int, default=15, help="number of seeds")
    parser.add_argument("--seed", type=int, default=None, help="first seed; random by default")
    parser.add_argument("--faults", type=int, default=3, help="faults of each seed")
    parser.add_argument("--kind", default="", help="the kind of all faults, such as 'kill broker'")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each seed")
    parser.add_argument("--results", type=Path, default=None, help="write the results as JSON")
    parser.add_argument("--judge", type=Path, default=None, help="judge this history again")
    options = parser.parse_args()
    if options.judge is not None:
        verdict = check(read_history(options.judge))
        print("\n".join(verdict.lines()) or "nothing found")
        return 0 if verdict.ok else 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unmount the disks
    first = options.seed if options.seed is not None else random.randrange(1_000_000)
    folder = Path(tempfile.mkdtemp(prefix="hookmq-chaos-"))
    outcomes: list[Outcome] = []
    failed = 0
    for number in range(options.seeds * options.repeat):
        seed = first + number // options.repeat
        place = folder / f"{seed}-{number % options.repeat}"
        place.mkdir()
        try:
            outcome = break_cluster(place, seed, options.faults, options.kind)
        except (Broken, AssertionError) as error:
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            failed += 1
            continue
        outcomes.append(outcome)
        for line in outcome_lines(outcome):
            print(line, flush=True)
        if outcome.verdict.ok:
            shutil.rmtree(place)
        else:
            failed += 1
        if options.results is not None:
            write_results(options.results, outcomes, failed)
    for line in recovery_lines(outcomes):
        print(line)
    if failed:
        print(f"{failed} of {options.seeds * options.repeat} runs failed; see {folder}")
        return 1
    folder.rmdir()
    print(f"nothing found; the first seed is {first}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
