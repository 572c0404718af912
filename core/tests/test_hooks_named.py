"""Test that every hook has a test named after it."""

import ast
from functools import cache
from pathlib import Path

import pytest
from hookmq.hooks.specs import SPECS

TESTS = Path(__file__).parent


@cache
def names() -> set[str]:
    """Return the names of all test functions, and the strings that select hooks in parametrized tests."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        if path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("test_"):
                    found.add(node.name)
                for decorator in node.decorator_list:
                    found |= {
                        f"test_{inner.value}"
                        for inner in ast.walk(decorator)
                        if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
                    }
    return found


@pytest.mark.parametrize("hook", SPECS)
def test_a_test_is_named_for_it(hook: str) -> None:
    assert any(hook in name for name in names())


def test_the_search_finds_no_hook_that_is_not_there() -> None:
    assert not any("on_frobnicate" in name for name in names())
