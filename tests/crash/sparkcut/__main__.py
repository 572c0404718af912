"""Cut the power to a broker with the Spark sink. Run as a program:

    python tests/crash/sparkcut --cuts 500 --seed 7       a new recording for each 100 cuts

It prints its findings. The exit code is 1 if there are any.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from sparkcut.runs import cut_and_check, record

EACH: Final = 100


def main() -> int:
    """Run the program and return the exit code."""
    parser = argparse.ArgumentParser(prog="python tests/crash/sparkcut")
    parser.add_argument("--cuts", type=int, default=EACH)
    parser.add_argument("--seed", type=int, help="a new one if left out")
    parser.add_argument("--messages", type=int, default=300, help="of each recording")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    for start in range(0, options.cuts, EACH):
        with tempfile.TemporaryDirectory(prefix="hookmq-sparkcut-") as work:
            try:
                recording = record(Path(work), seed + start, options.messages)
            except AssertionError as error:
                print(f"seed {seed + start}: a promise was broken before any cut: {error}")
                return 1
            report = cut_and_check(recording, min(EACH, options.cuts - start), seed + start)
        print(report.text(), flush=True)
        if report.failures:
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
