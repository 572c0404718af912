"""`python -m bench.micro`: compare each step of handling a message with an earlier commit, and name the slower steps.

The two sides alternate. Each runs uncompiled, in its own process, from a copy of its source. Modules may have moved
between the commits, so each side runs its own commit's cases, and cases are compared by name. A case fails if the
median of the rounds' ratios and the ratio of the fastest values both exceed the threshold. If only one does, it is
noise. Bytecode counts are exact, so they show whether a step does more work or the machine was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
from io import BytesIO
from typing import Any

from . import install, peers

ROOT = peers.HERE.parent
CASES = "bench/micro_cases.py"
PACKAGES = ("core/hookmq", "toolkit/hookmq_toolkit", "testing/hookmq_testing")
"""The packages that the cases import. Commits from before the testing kit had its own distribution have only the
first."""
FOLDER = peers.CACHE / "micro"


class MicroError(Exception):
    """The steps could not be measured. The message gives the reason."""


def git(*words: str) -> bytes:
    """Run git and return its output. Raises MicroError with git's error message."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    if done.returncode:
        raise MicroError(f"git {words[0]}: {done.stderr.decode().strip()}")
    return done.stdout


def default_base() -> str:
    """Return HEAD if the measured packages have changed since HEAD, else the commit before it."""
    return "HEAD" if git("status", "--porcelain", *PACKAGES).strip() else "HEAD~1"


def unpack(revision: str, folder: pathlib.Path) -> pathlib.Path:
    """Copy a commit's packages and cases into `folder` and return it. An empty `revision` copies the working tree.

    Raises MicroError if the commit does not exist or has no cases.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if revision:
        found = git("ls-tree", "--name-only", revision, CASES, *PACKAGES).decode().split()
        if CASES not in found:
            raise MicroError(f"{revision} has no {CASES}")
        with tarfile.open(fileobj=BytesIO(git("archive", revision, *found))) as archive:
            archive.extractall(folder, filter="data")
        return folder
    ignored = shutil.ignore_patterns("_compiled", "__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    (folder / CASES).parent.mkdir()
    shutil.copy(ROOT / CASES, folder / CASES)
    return folder


def run(side: pathlib.Path, *words: str, prefix: tuple[str, ...] = ()) -> str:
    """Run one side's cases and return their output. Raises MicroError with the end of stderr if they fail."""
    paths = [str((side / package).parent) for package in PACKAGES]
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join((*paths, str(install.PYPERF))),
        "PYTHONHASHSEED": "0",
        "HOOKMQ_BUILD": "pure",
    }
    command = [*prefix, sys.executable, str(side / CASES), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=FOLDER
    )
    if done.returncode:
        raise MicroError(f"{' '.join(words)}: {done.stderr.strip()[-600:]}")
    return done.stdout


def values(side: pathlib.Path) -> dict[str, list[float]]:
    """Measure one round of one side. Return seconds per operation, by case."""
    output = FOLDER / "round.json"
    output.unlink(missing_ok=True)
    run(side, "--quiet", "--inherit-environ=PYTHONPATH,PYTHONHASHSEED,HOOKMQ_BUILD", "-o", str(output))  # fmt: skip
    document: dict[str, Any] = json.loads(output.read_text())
    return {
        bench.get("metadata", document["metadata"])["name"]: [
            value for part in bench["runs"] for value in part.get("values", ())
        ]
        for bench in document["benchmarks"]
    }


def instructions(side: pathlib.Path, case: str) -> float:
    """Count the machine instructions per operation with callgrind: run 4 steps and 2 steps, and take the difference.
    This takes about 40 s.
    """
    counts = []
    for steps in (2, 4):
        output = FOLDER / "callgrind.out"
        tool = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", "--quiet")
        run(side, "--count", case, str(steps), prefix=tool)
        (line,) = (text for text in output.read_text().splitlines() if text.startswith("summary:"))
        counts.append(int(line.split()[1]))
    return (counts[1] - counts[0]) / 2 / 100


def judge(
    base: dict[str, list[list[float]]], new: dict[str, list[list[float]]]
) -> dict[str, tuple[float, float, float, float]]:
    """Return four figures per case: each side's microseconds, the median ratio of the rounds, and the ratio of the
    fastest values.

    `base` and `new` map each case to its rounds. A round is a list of seconds.
    """
    found = {}
    for case in base:
        if case not in new:
            continue
        ratios = [
            min(after) / min(before) for before, after in zip(base[case], new[case], strict=True)
        ]
        fastest = [min(min(values) for values in side[case]) for side in (base, new)]
        found[case] = (
            fastest[0] * 1e6,
            fastest[1] * 1e6,
            statistics.median(ratios),
            fastest[1] / fastest[0],
        )
    return found


def slower(judged: dict[str, tuple[float, float, float, float]], threshold: float) -> list[str]:
    """Return the cases in which both ratios exceed the threshold, which is in percent."""
    return [
        case
        for case, (_, _, middle, fastest) in judged.items()
        if min(middle, fastest) > 1 + threshold / 100
    ]


def table(
    judged: dict[str, tuple[float, float, float, float]],
    codes: tuple[dict[str, float], dict[str, float]],
    failed: list[str],
) -> str:
    """Format the table, with one line per case."""
    lines = [
        f"{'case':22}{'base us':>9}{'now us':>9}{'ratio':>8}{'of best':>9}{'bytecodes':>11}{'now':>8}"
    ]
    for case, (before, after, middle, fastest) in judged.items():
        old, new = (side.get(case, 0) for side in codes)
        mark = "  SLOWER" if case in failed else ""
        lines.append(
            f"{case:22}{before:9.3f}{after:9.3f}{middle:8.3f}{fastest:9.3f}{old:11.1f}{new:8.1f}{mark}"
        )
    return "\n".join(lines)


def main() -> int:
    """Print the table. Return 0, 1 if a case became slower, or 2 if nothing can be measured."""
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m bench.micro", description=summary)
    add = parser.add_argument
    add(
        "--base",
        metavar="REV",
        help="commit to compare with (HEAD if its packages are changed, else HEAD~1)",
    )
    add("--rounds", type=int, default=5, help="rounds of both sides (%(default)s)")
    add(
        "--threshold",
        type=float,
        default=10.0,
        metavar="PERCENT",
        help="slower than this fails (%(default)s)",
    )
    add(
        "--instructions",
        default="",
        metavar="CASES",
        help="also count instructions of these cases with callgrind, which is slow",
    )
    options = parser.parse_args()  # fmt: skip
    FOLDER.mkdir(parents=True, exist_ok=True)
    wrong = install.pyperf()
    try:
        if wrong:
            raise MicroError(f"pyperf could not be installed: {wrong}")
        base = options.base or default_base()
        told = git("log", "-1", "--format=%h %s", base).decode().strip()
        sides = unpack(base, FOLDER / "base"), unpack("", FOLDER / "now")
        print(f"base: {told}", file=sys.stderr)
        found: tuple[dict[str, list[list[float]]], ...] = ({}, {})
        for number in range(options.rounds):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                for case, measured in values(sides[side]).items():
                    found[side].setdefault(case, []).append(measured)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        before, after = (json.loads(run(side, "--bytecodes")) for side in sides)
        judged = judge(*found)
        failed = slower(judged, options.threshold)
        print(table(judged, (before, after), failed))
        for case in filter(None, options.instructions.split(",")):
            old, new = (instructions(side, case) for side in sides)
            print(f"{case}: {old:,.0f} instructions, now {new:,.0f}: {new / old:.3f}")
    except MicroError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if failed:
        print(f"slower by more than {options.threshold:g} %: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
