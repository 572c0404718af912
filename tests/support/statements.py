"""Tables of normative statements and edge cases, and the marks that link tests to them."""

import ast
import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "conformance"
TABLES = TESTS / "statements"
SOURCE = ROOT / "core" / "hookmq"


def statement(*ids: str) -> pytest.MarkDecorator:
    """Mark a test as covering these normative statements. Examples are ``MQTT-3.1.4-3`` (5.0) and ``MQTT311-3.1.4-2``
    (3.1.1).
    """
    return pytest.mark.statement(*ids)


def edge(*numbers: int) -> pytest.MarkDecorator:
    """Mark a test as covering these cases of ``statements/edges.tsv``."""
    return pytest.mark.edge(*numbers)


def one_broker(reason: str) -> pytest.MarkDecorator:
    """Mark a test that cannot run on a cluster, with the reason; see `cluster_front`."""
    return pytest.mark.one_broker(reason)


class Statement(NamedTuple):
    """A row of the tables.

    `side` is server, client or both. `kind` says how a server's conformance can be tested: wire, internal or none.
    """

    id: str
    section: str
    side: str
    kind: str
    text: str

    @property
    def concerns_us(self) -> bool:
        """Return whether the statement binds a broker or describes a client error that a broker must handle."""
        return self.side != "client" or self.kind == "wire"


def _rows(name: str) -> list[dict[str, str]]:
    with (TABLES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def statements() -> dict[str, Statement]:
    """Return all statements of both standards by id, in order."""
    rows = _rows("mqtt5.tsv") + _rows("mqtt311.tsv")
    return {row["id"]: Statement(*row.values()) for row in rows}


def edges() -> dict[int, str]:
    """Return all edge cases by number."""
    return {int(row["number"]): row["case"] for row in _rows("edges.tsv")}


def exceptions() -> dict[str, str]:
    """Return the statements that may lack a test or an enforcing line, each with the reason."""
    return {row["id"]: row["reason"] for row in _rows("exceptions.tsv")}


def excused(lacks: str) -> dict[str, str]:
    """Return the statements that may lack `lacks` (``test`` or ``line``), each with the reason."""
    return {
        row["id"]: row["reason"]
        for row in _rows("exceptions.tsv")
        if lacks in row["lacks"].split(", ")
    }


Covered = dict[str | int, list[str]]


def covered() -> Covered:
    """Return the ids of statements and the numbers of edge cases, each with the tests that cover it as
    ``file::function``.
    """
    found: Covered = {}
    for path in sorted(TESTS.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tables = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for key in _marks(node, tables):
                    tests = found.setdefault(key, [])
                    name = f"{path.name}::{node.name}"
                    if name not in tests:
                        tests.append(name)
    return found


def _marks(
    function: ast.FunctionDef | ast.AsyncFunctionDef, tables: dict[str, ast.expr]
) -> Iterator[str | int]:
    """Yield the marks in a function's decorators, and those in the rows of any module tables that the decorators refer
    to.
    """
    nodes = [node for one in function.decorator_list for node in ast.walk(one)]
    for node in list(nodes):
        if isinstance(node, ast.Name) and node.id in tables:
            nodes += ast.walk(tables[node.id])
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("statement", "edge")
        ):
            for argument in node.args:
                assert isinstance(argument, ast.Constant), "marks are written out"
                assert isinstance(argument.value, str | int)
                yield argument.value


_TAG = re.compile(r"\[(MQTT(?:311)?-\d[^\]]*)\]")


def tagged() -> dict[str, list[tuple[str, int]]]:
    """For each statement, return the places where the broker's source names it: (file below hookmq, line)."""
    found: dict[str, list[tuple[str, int]]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for match in _TAG.finditer(source):
            line = source.count("\n", 0, match.start()) + 1
            for id in ids_of(match[1]):
                places = found.setdefault(id, [])
                place = (path.relative_to(SOURCE).as_posix(), line)
                if place not in places:
                    places.append(place)
    return found


def ids_of(tag: str) -> list[str]:
    """Return the ids that a tag names. ``MQTT-3.3.2-4, 3.3.2-15 to 20`` names seven ids."""
    prefix = tag.partition("-")[0]
    found = []
    for part in tag.split(","):
        name, _, last = part.strip().partition(" to ")
        name = name.removeprefix(f"{prefix}-")
        section, _, number = name.rpartition("-")
        first = int(number)
        found += [
            f"{prefix}-{section}-{n}" for n in range(first, int(last) + 1 if last else first + 1)
        ]
    return found
