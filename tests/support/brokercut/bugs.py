"""Bugs planted in the storage plugin.

Each bug is planted in a copy of the code. Separate processes run the copy, record what it writes to disk, and check what
simulated power cuts leave behind.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from planting import BUGS, Bug, bugs, load, plant, simulate

PROGRAM: Final = Path(__file__).parents[2] / "crash" / "powercut"
RECORDINGS: Final = 3
SIMULATED: Final = (
    "ack_before_commit",
    "qos2_id_not_recorded",
    "outbound_id_reused",
    "outbound_qos2_before_record",
    "finished_stays_on_record",
    "freed_when_sent",
)
"""Bugs in how the core uses the store, which simulator runs reveal."""


def planted() -> list[Bug]:
    """Return the planted bugs that simulated power cuts must reveal."""
    return bugs(PROGRAM / "bugs")


def find(bug: Bug, folder: Path) -> str:
    """Plant a bug in `folder` and return the failure that a power cut revealed, or '' if none did.

    Whether a recording reveals the bug depends on what the writer happened to commit together. This function therefore
    makes up to `RECORDINGS` recordings, each with its own seed. It cuts the power in each recording as often as the
    bug's file says.
    """
    plant(bug, folder)
    return next(
        filter(None, (_find_in_one(bug, folder, seed) for seed in range(1, RECORDINGS + 1))), ""
    )


def _find_in_one(bug: Bug, folder: Path, seed: int) -> str:
    done = subprocess.run(
        [
            sys.executable, str(PROGRAM), "--cuts", str(bug.cuts), "--seed", str(seed), "--most", "1", "--real", "0",
            "--keep", str(folder / f"kept-{seed}"), "--messages", "450",
        ],
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return ""
    lines = done.stdout.splitlines()
    found = [line for line in lines if line.startswith("cut ") or " before any cut: " in line]
    assert found, f"{bug.name}: no cut found it, the run failed: {done.stdout}{done.stderr}"
    # An error may have several lines. The last one names the problem.
    return " ".join([found[0], *lines[lines.index(found[0]) + 1 :][-1:]])


def hunt(say: Callable[[str], None]) -> int:
    """Plant each bug and report which power cut revealed it. Return 1 if any bug was not revealed."""
    missed = 0
    for bug in planted():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = find(bug, Path(folder))
        missed += not found
        say(_line(bug, "a power cut", found, time.monotonic() - began))
    for name in SIMULATED:
        bug = load(BUGS / f"{name}.edit")
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            plant(bug, Path(folder))
            seeds = ("--seeds", str(bug.within), "--start", str(bug.first))
            done = simulate(Path(folder), "--first", "--quiet", "--workers", "1", *seeds)
        text = done.stdout.strip().splitlines()[0] if done.returncode == 1 else ""
        missed += not text
        say(_line(bug, "the simulator", text, time.monotonic() - began))
    say(f"{missed} planted bugs were not found" if missed else "every planted bug was found")
    return int(bool(missed))


def _line(bug: Bug, who: str, found: str, seconds: float) -> str:
    what = f"found by {who} in {seconds:.0f} s: {found}" if found else "NOT FOUND"
    return f"{bug.name}: {bug.text}\n    {what}"
