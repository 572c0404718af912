"""`python -m bench.micro`: the steps of a message, now against the last commit; fails by name where one became slower.

Both sides run alternately in processes of their own, from copies of the source, pure: the checkout may change meanwhile.
A case fails when both the median of the rounds' ratios and the ratio of the fastest values are above the threshold: one
of them alone is noise. Bytecodes are exact, and say which of the two it was.
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
CASES = peers.HERE / "micro_cases.py"
FOLDER = peers.CACHE / "micro"


class MicroError(Exception):
    """It cannot be measured; the text says why."""


def git(*words: str) -> bytes:
    """What git says. Raises MicroError with what it complains of."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    if done.returncode:
        raise MicroError(f"git {words[0]}: {done.stderr.decode().strip()}")
    return done.stdout


def default_base() -> str:
    """HEAD, where the core was changed since; else the commit before it."""
    return "HEAD" if git("status", "--porcelain", "core/hookmq").strip() else "HEAD~1"


def unpack(revision: str, folder: pathlib.Path) -> pathlib.Path:
    """The core of a revision, or with "" that of the checkout as it is; the folder for PYTHONPATH."""
    shutil.rmtree(folder, ignore_errors=True)
    if revision:
        with tarfile.open(fileobj=BytesIO(git("archive", revision, "core/hookmq"))) as archive:
            archive.extractall(folder, filter="data")
        return folder / "core"
    ignored = shutil.ignore_patterns("_compiled", "__pycache__")
    shutil.copytree(ROOT / "core" / "hookmq", folder / "hookmq", ignore=ignored)
    return folder


def run(core: pathlib.Path, *words: str, prefix: tuple[str, ...] = ()) -> str:
    """Run the script of cases against a core; its output. Raises MicroError with the end of what it complains of."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{core}:{install.PYPERF}",
        "PYTHONHASHSEED": "0",
        "HOOKMQ_BUILD": "pure",
    }
    command = [*prefix, sys.executable, str(CASES), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=FOLDER
    )
    if done.returncode:
        raise MicroError(f"{' '.join(words)}: {done.stderr.strip()[-600:]}")
    return done.stdout


def values(core: pathlib.Path) -> dict[str, list[float]]:
    """One round of one side: seconds for an operation, by case."""
    output = FOLDER / "round.json"
    output.unlink(missing_ok=True)
    run(core, "--quiet", "--inherit-environ=PYTHONPATH,PYTHONHASHSEED,HOOKMQ_BUILD", "-o", str(output))  # fmt: skip
    document: dict[str, Any] = json.loads(output.read_text())
    return {
        bench.get("metadata", document["metadata"])["name"]: [
            value for part in bench["runs"] for value in part.get("values", ())
        ]
        for bench in document["benchmarks"]
    }


def instructions(core: pathlib.Path, case: str) -> float:
    """Machine instructions for an operation, by callgrind: those of 4 steps less those of 2, under it some 20 s each."""
    counts = []
    for steps in (2, 4):
        output = FOLDER / "callgrind.out"
        tool = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", "--quiet")
        run(core, "--count", case, str(steps), prefix=tool)
        (line,) = (text for text in output.read_text().splitlines() if text.startswith("summary:"))
        counts.append(int(line.split()[1]))
    return (counts[1] - counts[0]) / 2 / 100


def judge(
    base: dict[str, list[list[float]]], new: dict[str, list[list[float]]]
) -> dict[str, tuple[float, float, float, float]]:
    """By case: microseconds of both sides, the median of the rounds' ratios, and the ratio of the fastest values.

    `base` and `new` have for each case a list of rounds, each a list of seconds.
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
    """The cases above the threshold, by both measures."""
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
    """One line for each case."""
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
    """Exit code 0; 1 when a case became slower; 2 when nothing can be measured."""
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m bench.micro", description=summary)
    add = parser.add_argument
    add(
        "--base",
        metavar="REV",
        help="what to compare with (HEAD if the core is changed, else HEAD~1)",
    )
    add("--rounds", type=int, default=5, help="of both sides (%(default)s)")
    add("--threshold", type=float, default=10.0, metavar="PERCENT", help="(%(default)s)")
    add(
        "--instructions",
        default="",
        metavar="CASES",
        help="count these with callgrind as well: slow",
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
