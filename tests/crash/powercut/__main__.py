"""Cut the power to a broker and its storage. Run as a program:

    python tests/crash/powercut --cuts 1000 --seed 7          more cuts; a new recording for each 200
    python tests/crash/powercut --replay FOLDER --seed 7 --first 13 --cuts 1      one cut of a kept recording
    python tests/crash/powercut --bugs                        plant the bugs in bugs/ and report what finds each

A recording with a failed cut is kept, and the command that repeats the cut is printed.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from brokercut.bugs import hunt
from brokercut.runs import cut_and_check, record
from powercut.recording import Recording, Report

EACH: Final = 200
"""Cuts per recording."""


def main() -> int:
    """Run the program. Return 1 if a guarantee was broken or a planted bug was not found."""
    parser = argparse.ArgumentParser(prog="python tests/crash/powercut")
    parser.add_argument("--cuts", type=int, default=EACH, help="how often the power is cut")
    parser.add_argument(
        "--seed", type=int, help="of the traffic and the cuts; a new one if left out"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first cut")
    parser.add_argument("--messages", type=int, default=600, help="published in each recording")
    parser.add_argument("--real", type=int, default=20, help="each so many cuts, a real broker")
    parser.add_argument("--most", type=int, default=5, help="failures after which it ends")
    parser.add_argument("--replay", type=Path, help="a recording that was kept")
    parser.add_argument("--keep", type=Path, help="where a recording that failed is kept")
    parser.add_argument("--bugs", action="store_true", help="plant bugs, and find them")
    options = parser.parse_args()
    if options.bugs:
        return hunt(print)
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    if options.replay is not None:
        recording = Recording.load(options.replay)
        return told(one(recording, options, options.cuts, seed, options.first))
    for start in range(0, options.cuts, EACH):
        cuts = min(EACH, options.cuts - start)
        if run(options, seed + start // EACH, cuts):
            return 1
    return 0


def run(options: argparse.Namespace, seed: int, cuts: int) -> int:
    """Make one recording, and check power cuts at random points in it."""
    work = Path(tempfile.mkdtemp(prefix="hookmq-powercut-"))
    try:
        began = time.monotonic()
        try:
            recording = record(work, seed, options.messages)
        except AssertionError as error:
            print(f"seed {seed}: a promise was broken before any cut: {error}", flush=True)
            return 1
        print(
            f"seed {seed}: {len(recording.records)} records in {time.monotonic() - began:.1f} s",
            flush=True,
        )
        report = one(recording, options, cuts, seed, options.first)
        if report.failures:
            kept = options.keep or work.with_name(f"{work.name}-kept")
            recording.save(kept)
            number = report.failures[0][0].number
            print(
                f"python tests/crash/powercut --replay {kept} --seed {seed} --first {number} --cuts 1"
            )
        return told(report)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def one(
    recording: Recording, options: argparse.Namespace, cuts: int, seed: int, first: int
) -> Report:
    """Check power cuts of a recording, and show the progress."""

    def progress(count: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{count}/{cuts} cuts", end="", file=sys.stderr, flush=True)

    report = cut_and_check(recording, cuts, seed, first, options.real, options.most, progress)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return report


def told(report: Report) -> int:
    """Print a report and return the exit code."""
    print(report.text(), flush=True)
    return int(bool(report.failures))


if __name__ == "__main__":
    raise SystemExit(main())
