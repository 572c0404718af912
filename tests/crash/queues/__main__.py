"""Repeatedly kill HookMQ and its queues' consumers under load, and report the result.

    .venv/bin/python tests/crash/queues --kills 1000

The program exits with code 1 at the first broken guarantee and keeps the broker's data folder. `make crash-queues
KILLS=1000` runs it.
"""

import argparse
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from killing.rounds import Broken
from queuekill.rounds import kill_queues


def main() -> int:
    """Run the program. Return 0 if every guarantee was kept."""
    parser = argparse.ArgumentParser(prog="tests/crash/queues", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
    parser.add_argument("--durability", choices=("group", "os"), default="group")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    folder = Path(tempfile.mkdtemp(prefix="hookmq-crash-queues-"))
    try:
        run = kill_queues(
            folder, options.kills, seed, lambda line: print(line, flush=True), options.durability
        )
    except Broken as error:
        print(f"broken: {error}\nthe data is in {folder}")
        return 1
    shutil.rmtree(folder)
    published = run.ledger.counts
    print(
        f"{published.kills} kills of the broker, {published.early} more while it started, "
        f"{sum(one.kills for one in run.workers)} of consumers; {published.acknowledged} messages acknowledged"
    )
    print(", ".join(f"{count} {name}" for name, count in asdict(run.counts).items() if count))
    print(f"nothing broken; seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
