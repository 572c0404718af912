"""Test the core's layers. Imports only point down, and code below the server uses neither the clock nor I/O."""

import ast
import pathlib
import re
from collections.abc import Iterator
from functools import cache

import hookmq
import pytest

ROOT = pathlib.Path(hookmq.__file__).parent

FLOORS = {
    "mqtt": 0, "model": 1, "storage": 2, "session": 2, "storage_api": 2, "cluster_api": 2, "hooks": 3, "plugin": 3,
    "routing": 4, "mqtt_api": 4, "broker": 5, "server": 6, "server_api": 6, "build": 6, "config": 7, "config_api": 7,
    "cli": 7, "cli_api": 7,
}  # fmt: skip
IMPURE = {
    "asyncio", "time", "socket", "random", "threading", "aiohttp", "logging", "secrets", "os", "ssl", "uvloop",
    "selectors", "subprocess", "signal", "concurrent", "multiprocessing",
}  # fmt: skip


def modules() -> list[pathlib.Path]:
    return sorted(ROOT.rglob("*.py"))


def room(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imports(path: pathlib.Path) -> tuple[tuple[int, str], ...]:
    """Return (line, absolute module) for each run-time import, including imports inside functions."""
    return tuple(_imports(path))


def _imports(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    left_out = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            for alias in node.names:
                below = ROOT.parent.joinpath(*module.split("."), alias.name)
                is_module = below.with_suffix(".py").exists() or below.is_dir()
                yield node.lineno, f"{module}.{alias.name}" if is_module else module


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in modules()} - {"__init__"} <= FLOORS.keys()


def upward(path: pathlib.Path) -> Iterator[str]:
    """Yield each import of a higher layer, of an unknown hookmq module, or of a plugin."""
    if room(path) == "__init__":
        return
    floor = FLOORS[room(path)]
    for line, module in imports(path):
        package = module.split(".")[0]
        if package != "hookmq" and package.startswith("hookmq_"):
            yield f"{path}:{line} imports {module}"
        if package != "hookmq" or module == "hookmq":
            continue
        other = module.split(".")[1]
        if FLOORS[other] > floor:
            yield f"{path}:{line} imports {module}, {FLOORS[other]} floors up"


def test_imports_go_down_only() -> None:
    assert len(modules()) > 100
    assert [found for path in modules() for found in upward(path)] == []


def test_the_core_knows_no_clock_and_no_io() -> None:
    paths = [path for path in modules() if FLOORS.get(room(path), 6) <= 5]
    assert len(paths) > 100
    assert [
        f"{path}:{line} imports {module}"
        for path in paths
        for line, module in imports(path)
        if module.split(".")[0] in IMPURE
    ] == []


def test_the_check_sees_an_upward_import(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "subscription_tree.py"
    file.write_text("def f():\n    from hookmq.server.server import Server\n    import time\n")
    assert list(_imports(file)) == [(2, "hookmq.server.server"), (3, "time")]


def test_the_manual_names_every_room_in_its_layer() -> None:
    page = ROOT.parents[1] / "docs" / "explanation" / "architecture.md"
    if not page.exists():
        pytest.skip("the manual is not part of this copy (an sdist)")
    rows = re.findall(r"^\| (\d) \w+ \| (.*?) \|", page.read_text(), re.M)
    named = {name: int(layer) for layer, names in rows for name in re.findall(r"`(\w+)/?`", names)}
    assert named == FLOORS


def test_distributions_are_looked_up_in_one_way() -> None:
    """All code looks up distributions with importlib-metadata, which behaves the same on every Python version."""
    found = [
        path
        for path in modules()
        for _, name in imports(path)
        if name.startswith("importlib.metadata")
    ]
    assert found == []
