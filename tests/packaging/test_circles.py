"""No package contains an import cycle. Modules that import each other should be one module."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import ROOT

PACKAGES = sorted(
    path.parent
    for pattern in (
        "core/hookmq/__init__.py",
        "toolkit/*/__init__.py",
        "testing/hookmq_testing/__init__.py",
        "plugins/*/hookmq_*/__init__.py",
        "clients/*/hookmq_*/__init__.py",
        "spark/pyspark_mqtt/__init__.py",
        "pipelines/mqtt_pipelines/__init__.py",
    )
    for path in ROOT.glob(pattern)
)
UNTYPED = {"hookmq"}
"""Packages in which imports for type checkers do not count."""


def modules(package: Path) -> dict[str, Path]:
    """Return the modules of a package by their full names."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(path: Path, typed: bool) -> Iterator[str]:
    """Yield the modules that a module imports at import time, and the names imported from them. Leave out imports
    inside functions.
    """
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not typed:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting.extend(ast.iter_child_nodes(node))


def imports(names: dict[str, Path], typed: bool) -> dict[str, set[str]]:
    """Return, for each module in `names`, the modules in `names` that it imports."""
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found = (one if one in names else one.rpartition(".")[0] for one in imported(path, typed))
        graph[name] = {one for one in found if one in names and one != name}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of an import cycle, in order, or an empty result if there is none."""
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return trail[trail.index(name) :]
        if name not in done:
            for other in sorted(graph[name]):
                if found := visit(other, [*trail, name]):
                    return found
            done.add(name)
        return []

    for name in sorted(graph):
        if found := visit(name, []):
            return found
    return []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_module_is_in_a_circle(package: Path) -> None:
    graph = imports(modules(package), package.name not in UNTYPED)
    assert circle(graph) == []
    assert any(graph.values()) or len(graph) < 4, "the check sees no imports"


@pytest.mark.parametrize("typed", [False, True])
def test_a_circle_is_found(tmp_path: Path, typed: bool) -> None:
    package = tmp_path / "p"
    (package / "sub").mkdir(parents=True)
    guard = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    " if typed else ""
    texts = {
        "__init__": "", "a": "from p import b", "b": "from p.sub.c import X", "sub/__init__": "",
        "sub/c": f"X = 1\n{guard}import p.a", "d": "def f():\n    import p.e", "e": "import p.d",
    }  # fmt: skip
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    assert circle(imports(modules(package), True)) == ["p.a", "p.b", "p.sub.c"]
    assert bool(circle(imports(modules(package), False))) is not typed


def test_pipelines_are_checked() -> None:
    assert {"hookmq", "hookmq_testing", "mqtt_pipelines", "pyspark_mqtt"} <= {
        package.name for package in PACKAGES
    }
