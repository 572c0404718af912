"""Repeatedly kill and stop the brokers and NATS servers of a cluster under load, and report the result.

    .venv/bin/python tests/crash/cluster --faults 50

The program exits with code 1 at the first broken guarantee and keeps the folder with the logs. `make chaos-cluster
FAULTS=50` runs it.
"""

import argparse
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from clusterkill.rounds import break_cluster
from killing.rounds import Broken


def main() -> int:
    """Run the program. Return 0 if every guarantee was kept."""
    parser = argparse.ArgumentParser(prog="tests/crash/cluster", description=__doc__)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--servers", type=int, default=3, help="NATS servers: 1, 3 or 5")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    folder = Path(tempfile.mkdtemp(prefix="hookmq-chaos-"))
    try:
        run = break_cluster(
            folder, options.faults, seed, lambda line: print(line, flush=True),
            options.brokers, options.servers,
        )  # fmt: skip
    except Broken as error:
        print(f"broken: {error}\nthe logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    print(", ".join(f"{count} {name}" for name, count in asdict(run.counts).items() if count))
    for line in run.recovery.lines():
        print(line)
    print(f"nothing broken; seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
