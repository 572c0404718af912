"""Repeatedly kill the processes between devices and tables, and report the result. Run as a program:

    .venv/bin/python tests/crash/devices --kills 100

This needs .venv-spark, which `make crash-spark KILLS=100` creates. If a guarantee is broken, the exit code is 1, and
the folder with logs, checkpoints and tables is kept.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from devices.runs import PLANTED, VICTIMS, Run


def main() -> int:
    """Run the program and return the exit code."""
    parser = argparse.ArgumentParser(prog="python tests/crash/devices")
    parser.add_argument("--kills", type=int, default=8, help="at least 4, so that each is killed")
    parser.add_argument("--seed", type=int, help="repeats the choices of a run")
    parser.add_argument("--rate", type=float, default=300, help="messages a second")
    parser.add_argument("--planted", choices=PLANTED, default="", help="a bug, which must be found")
    options = parser.parse_args()
    if options.kills < len(VICTIMS):
        parser.error(f"--kills: at least {len(VICTIMS)}")
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    folder = Path(tempfile.mkdtemp(prefix="hookmq-devices-"))
    run = Run(
        folder, seed, options.rate, lambda line: print(line, flush=True), planted=options.planted
    )
    try:
        summary = asyncio.run(run.run(options.kills))
    except AssertionError as error:
        print(f"broken, seed {seed}: {error}\nlogs and tables are in {folder}")
        return 1
    print(summary.text())
    if summary.broken:
        print("broken: " + "\n".join(summary.broken) + f"\nlogs and tables are in {folder}")
        return 1
    shutil.rmtree(folder)
    print("nothing broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
