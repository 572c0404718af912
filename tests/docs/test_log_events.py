"""docs/reference/log-events.md lists exactly the events that the source code logs, with their levels and fields."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/log-events.md"
SOURCES = sorted(
    path
    for folder in (ROOT / "core/hookmq", *ROOT.glob("plugins/*/hookmq_*"))
    for path in folder.rglob("*.py")
)
LEVELS = {"debug", "info", "warning", "error"}
NAME = re.compile(r"[a-z_]+\.[a-z_]+")
WRITTEN = {"log", "_log", "tell", "_tell", "log_failure"}
"""Names of logging functions. They take the level first, then the event. Plugins use the same names."""


def constants(node: ast.AST) -> set[str]:
    """Return the strings that an expression can evaluate to."""
    return {
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def logged(path: Path) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield (event, levels, fields) for each place that logs, as far as the source states them there."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Dict):  # a record made by hand
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "event":
                    yield from (
                        (name, set(), set()) for name in constants(value) if NAME.fullmatch(name)
                    )
        if not isinstance(node, ast.Call):
            continue
        called = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        fields = {keyword.arg for keyword in node.keywords if keyword.arg}
        if called == "StartupNotice":
            first = constants(node.args[0])
            yield from ((name, {"warning"}, {"text"}) for name in first)
        elif called in WRITTEN and len(node.args) > 1:
            levels = constants(node.args[0]) & LEVELS
            for name in constants(node.args[1]):
                if NAME.fullmatch(name):
                    yield name, levels, fields


def documented() -> dict[str, tuple[set[str], set[str], str]]:
    """Return the levels, fields and meaning of each documented event."""
    found = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            name = cells[0].strip("`")
            assert name not in found, f"{name} is there twice"
            found[name] = (
                set(cells[1].split(" or ")),
                set(re.findall(r"`([a-z_]+)`", cells[2])),
                cells[3],
            )
    return found


EVENTS = documented()
LOGGED = [(path, *one) for path in SOURCES for one in logged(path)]


def test_the_walk_finds_what_is_logged() -> None:
    """The test below is only meaningful if the search finds the log calls."""
    names = {name for _, name, *_ in LOGGED}
    assert {
        "client.connected",
        "log.lost",
        "auth.anonymous",
        "jwt.keys",
        "webhook.stopped",
    } <= names
    assert len(names) > 90


@pytest.mark.parametrize("event", sorted({name for _, name, *_ in LOGGED} | set(EVENTS)))
def test_events(event: str) -> None:
    assert event in EVENTS, f"{event} is not in {PAGE.name}"
    levels, fields, meaning = EVENTS[event]
    places = [one for one in LOGGED if one[1] == event]
    assert places, f"nothing logs {event}"
    assert levels <= LEVELS
    written: set[str] = set().union(*(one[2] for one in places))
    assert written <= levels, f"{event} is logged as {written}"
    given: set[str] = set().union(*(one[3] for one in places))
    assert given - {"plugin"} <= fields, f"{event} has the fields {given - fields}"
    assert meaning.endswith(".")
