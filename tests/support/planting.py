"""Planted bugs: small changes of the core or a plugin, made in a copy of it, that the simulator or a power cut must find.

A file of tests/simulation/bugs says what is wrong, within how many seeds it must be found (or ``found by NAME``, a plan
of tests/simulation/regressions, where chance is too slow), and which text becomes which; one of tests/crash/powercut/bugs
says ``within N cuts``:

    PUBACK leaves before its commit.
    within 200 seeds
    === hookmq/broker/inbound.py
    --- old
        if outcome.relies:
    --- new
        if False:
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

BUGS = pathlib.Path(__file__).parents[1] / "simulation" / "bugs"


class Change(NamedTuple):
    """In the file `path`, that of a package and what lies below it, `old` becomes `new`."""

    path: str
    old: str
    new: str


class Bug(NamedTuple):
    """A planted bug."""

    name: str
    within: int
    """Seeds, from 0 on, of which one must find it; 0 where `plan` does."""
    plan: pathlib.Path | None
    """The regression that must find it."""
    changes: tuple[Change, ...]
    text: str = ""
    """What is wrong, in words."""
    cuts: int = 0
    """Power cuts of which one must find it."""

    @property
    def packages(self) -> set[str]:
        """Those that it changes."""
        return {change.path.partition("/")[0] for change in self.changes}


def load(path: pathlib.Path) -> Bug:
    """The bug of a file. Raises ValueError for a file that is not as it should be."""
    head, *parts = path.read_text().split("\n=== ")
    within = re.search(r"^within (\d+) (seeds|cuts)$", head, re.MULTILINE)
    by = re.search(r"^found by (\w+)$", head, re.MULTILINE)
    if (within is None) == (by is None) or not parts:
        raise ValueError(f"{path.name}: not one of 'within N' and 'found by', or no change")
    changes = []
    for part in parts:
        file, _, body = part.partition("\n--- old\n")
        old, found, new = body.partition("\n--- new\n")
        if not found:
            raise ValueError(f"{path.name}: no '--- new'")
        changes.append(Change(file.strip(), old, new.rstrip("\n")))
    plan = None if by is None else BUGS.parent / "regressions" / f"{by[1]}.py"
    count = int(within[1]) if within else 0
    cuts = count if within and within[2] == "cuts" else 0
    text = head.partition("\n")[0]
    return Bug(path.stem, count - cuts, plan, tuple(changes), text, cuts)


def bugs(folder: pathlib.Path = BUGS) -> list[Bug]:
    """All of a folder, by name."""
    return [load(path) for path in sorted(folder.glob("*.edit"))]


def package(name: str) -> pathlib.Path:
    """The folder of a package that can be imported."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    assert spec.origin is not None, name
    return pathlib.Path(spec.origin).parent


def problems(bug: Bug) -> list[str]:
    """Why a bug cannot be planted in the code as it is; empty when it can."""
    found = []
    for change in bug.changes:
        name, _, path = change.path.partition("/")
        count = (package(name) / path).read_text().count(change.old)
        if count != 1:
            found.append(f"{bug.name}: its text stands {count} times in {change.path}")
    return found


def plant(bug: Bug, folder: pathlib.Path) -> None:
    """Copy what it changes to `folder` and plant the bug there."""
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "_compiled")
    for name in bug.packages:
        shutil.copytree(package(name), folder / name, ignore=ignore)
    for change in bug.changes:
        file = folder / change.path
        file.write_text(file.read_text().replace(change.old, change.new))


def simulate(folder: pathlib.Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the simulator on the core in `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["HOOKMQ_BUILD"] = "pure"  # what is planted is source
    return subprocess.run(
        [sys.executable, "-m", "hookmq.testing.sim", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
