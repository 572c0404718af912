"""Planted bugs: small changes to a copy of the core or a plugin. The simulator or a power cut must reveal each of them.

A file in tests/simulation/bugs describes the bug, how many seeds may be needed to find it, and the change to a function.
With ``within 300 seeds from 400``, the search begins at seed 400. If random search is too slow, ``found by NAME`` names
a plan in tests/simulation/regressions. A file in tests/crash/powercut/bugs says ``within N cuts``:

    PUBACK leaves before its commit.
    within 200 seeds
    === hookmq/broker/handlers/publish.py::_acknowledge
    --- old
    if outcome.relies:
    --- new
    if False:

The function is given by its qualified name, such as ``Broker.start`` or ``load_page.loaded``. An annotated constant may
be named instead. The old code is an expression, consecutive statements, or the head of a compound statement. It is
compared as syntax, so comments and line breaks do not matter. It must occur in the function exactly once. An empty new
part removes the statements.
"""

import ast
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

SUPPORT = pathlib.Path(__file__).parent
BUGS = SUPPORT.parent / "simulation" / "bugs"


class Change(NamedTuple):
    """A change that replaces `old` with `new` in `function` of the file `path`. The path begins with the name of a
    package.
    """

    path: str
    function: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """Return the changed source. Raise ValueError unless the function exists exactly once and contains `old` exactly
        once.
        """
        tree = ast.parse(source)
        scopes = [node for name, node in functions(tree) if name == self.function]
        if len(scopes) != 1:
            raise ValueError(f"{self.path} has {len(scopes)} functions {self.function}")
        lines = source.encode().splitlines(keepends=True)
        found = list(_places(scopes[0], textwrap.dedent(self.old), lines))
        if len(found) != 1:
            raise ValueError(f"{self.path}: its code stands {len(found)} times in {self.function}")
        start, stop = found[0]
        data = b"".join(lines)
        indent = " " * (start - data.rfind(b"\n", 0, start) - 1)
        new = textwrap.indent(textwrap.dedent(self.new) or "pass", indent).strip()
        return (data[:start] + new.encode() + data[stop:]).decode()


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield the functions, classes and annotated constants below `node`, each with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield prefix + child.target.id, child
        else:
            yield from functions(child, prefix)


def _places(scope: ast.AST, old: str, lines: list[bytes]) -> Iterator[tuple[int, int]]:
    """Yield each occurrence of `old` in `scope` as offsets in bytes."""
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def span(first: ast.AST, last: ast.AST) -> tuple[int, int]:
        begin, end = vars(first), vars(last)
        return (
            starts[begin["lineno"] - 1] + begin["col_offset"],
            starts[end["end_lineno"] - 1] + end["end_col_offset"],
        )

    try:
        wanted = ast.parse(old).body
    except SyntaxError:
        [head] = ast.parse(old + "\n    pass").body
        for node in ast.walk(scope):
            if type(node) is type(head) and _head(node) == _head(head):
                (start, _), (_, last) = span(node, node), span(node, _head_of(node)[-1])
                colon = re.compile(rb"(?:[\s)]|#[^\n]*\n)*:").match(b"".join(lines), last)
                assert colon is not None
                yield start, colon.end()
        return
    if len(wanted) == 1 and isinstance(wanted[0], ast.Expr):
        dump = ast.dump(wanted[0].value)
        for node in ast.walk(scope):
            if isinstance(node, ast.expr) and ast.dump(node) == dump:
                yield span(node, node)
        return
    dumps = list(map(ast.dump, wanted))
    for node in ast.walk(scope):
        for _, block in ast.iter_fields(node):
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                told = list(map(ast.dump, block))
                for place in range(len(block) - len(dumps) + 1):
                    if told[place : place + len(dumps)] == dumps:
                        yield span(block[place], block[place + len(dumps) - 1])


def _head_of(node: ast.AST) -> list[ast.AST]:
    """Return the nodes between the keyword and the colon of a compound statement."""
    found: list[ast.AST] = []
    for name, value in ast.iter_fields(node):
        if name not in ("body", "orelse", "finalbody", "handlers"):
            found += value if isinstance(value, list) else [value]
    return [one for one in found if isinstance(one, ast.AST)]


def _head(node: ast.AST) -> list[str]:
    return list(map(ast.dump, _head_of(node)))


class Bug(NamedTuple):
    """A planted bug."""

    name: str
    within: int
    """The number of seeds from `first` on that must be enough to find the bug; 0 if `plan` finds it."""
    plan: pathlib.Path | None
    """The regression plan that must find the bug."""
    changes: tuple[Change, ...]
    text: str = ""
    """A description of the bug."""
    cuts: int = 0
    """The number of power cuts that must be enough to find the bug."""
    first: int = 0
    """The seed at which the search begins."""

    @property
    def packages(self) -> set[str]:
        """Return the names of the packages that the bug changes."""
        return {change.path.partition("/")[0] for change in self.changes}


def load(path: pathlib.Path) -> Bug:
    """Load a bug from its file. Raise ValueError if the file is invalid."""
    head, *parts = path.read_text().split("\n=== ")
    within = re.search(r"^within (\d+) (seeds|cuts)(?: from (\d+))?$", head, re.MULTILINE)
    by = re.search(r"^found by (\w+)$", head, re.MULTILINE)
    if (within is None) == (by is None) or not parts:
        raise ValueError(f"{path.name}: not one of 'within N' and 'found by', or no change")
    changes = []
    for part in parts:
        place, _, body = part.partition("\n--- old\n")
        file, named, function = place.strip().partition("::")
        old, found, new = (body + "\n").partition("\n--- new\n")
        if not (named and found):
            raise ValueError(f"{path.name}: no function after '::', or no '--- new'")
        changes.append(Change(file, function, old, new.rstrip("\n")))
    plan = None if by is None else BUGS.parent / "regressions" / f"{by[1]}.py"
    count = int(within[1]) if within else 0
    cuts = count if within and within[2] == "cuts" else 0
    text = head.partition("\n")[0]
    first = int((within and within[3]) or 0)
    return Bug(path.stem, count - cuts, plan, tuple(changes), text, cuts, first)


def bugs(folder: pathlib.Path = BUGS) -> list[Bug]:
    """Return all bugs in a folder, sorted by name."""
    return [load(path) for path in sorted(folder.glob("*.edit"))]


def package(name: str) -> pathlib.Path:
    """Return the folder of an importable package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    assert spec.origin is not None, name
    return pathlib.Path(spec.origin).parent


def problems(bug: Bug) -> list[str]:
    """Return the reasons why a bug cannot be planted in the current code. The list is empty if it can."""
    found = []
    sources: dict[str, str] = {}
    for change in bug.changes:
        name, _, path = change.path.partition("/")
        source = sources.get(change.path)
        try:
            if source is None:
                source = (package(name) / path).read_text()
            sources[change.path] = change.apply(source)
            ast.parse(sources[change.path])
        except (OSError, ValueError, SyntaxError) as error:
            found.append(f"{bug.name}: {error}")
    return found


def plant(bug: Bug, folder: pathlib.Path) -> None:
    """Copy the changed packages to `folder` and plant the bug there."""
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "_compiled")
    for name in bug.packages:
        shutil.copytree(package(name), folder / name, ignore=ignore)
    for change in bug.changes:
        file = folder / change.path
        file.write_text(change.apply(file.read_text()))


def simulate(
    folder: pathlib.Path, *arguments: str, module: str = "simulator"
) -> "subprocess.CompletedProcess[str]":
    """Run the simulator `module` with the packages in `folder`."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{SUPPORT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment["HOOKMQ_BUILD"] = "pure"  # bugs are planted in source files
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
