"""docs/reference/log-events.md lists exactly the events that the source code logs, with their levels and fields."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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
    """Yield (event, levels, fields) for each logging call, as far as the source code shows them."""
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


@cache
def places() -> dict[str, list[tuple[set[str], set[str]]]]:
    """Return (levels, fields) of each logging call, keyed by event. Parsing all sources is slow, so this runs only when
    a test needs it.
    """
    found: dict[str, list[tuple[set[str], set[str]]]] = {}
    for path in SOURCES:
        for name, levels, fields in logged(path):
            found.setdefault(name, []).append((levels, fields))
    return found


def test_the_walk_finds_what_is_logged() -> None:
    """The search finds the log calls. If it found none, the test below would prove nothing."""
    names = places().keys()
    assert {
        "client.connected",
        "log.lost",
        "auth.anonymous",
        "jwt.keys",
        "webhook.stopped",
    } <= names
    assert len(names) > 90


def test_each_logged_event_is_on_the_page() -> None:
    assert sorted(places().keys() - EVENTS.keys()) == [], f"not in {PAGE.name}"


def test_events() -> None:
    wrong = []
    for event, (levels, fields, meaning) in EVENTS.items():
        found = places().get(event, [])
        written: set[str] = set().union(*(one[0] for one in found))
        given: set[str] = set().union(*(one[1] for one in found))
        if not found:
            wrong.append(f"nothing logs {event}")
        if not levels <= LEVELS or not written <= levels:
            wrong.append(f"{event} is logged as {written}, and documented as {levels}")
        if not given - {"plugin"} <= fields:
            wrong.append(f"{event} has the fields {given - fields}")
        if not meaning.endswith("."):
            wrong.append(f"the meaning of {event} has no full stop")
    assert wrong == []
