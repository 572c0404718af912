"""Test that core functions are short and flat, unless a comment gives a reason."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hookmq

ROOT: Final = Path(hookmq.__file__).parent
MAX_LINES: Final = 80
MAX_DEPTH: Final = 5
EXEMPT: Final = "# Long on purpose:"
"""The start of the comment that gives the reason. It is inside the function."""
BLOCKS: Final = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match,
)  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            yield node


def depth(node: ast.AST, level: int = 0) -> int:
    """Return how deeply blocks are nested. ``elif`` and inner functions do not add a level."""
    deepest = level
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        inner = level + 1 if isinstance(child, BLOCKS) and not chained else level
        deepest = max(deepest, depth(child, inner))
    return deepest


def too_large(source: str) -> list[str]:
    lines = source.splitlines()
    found = []
    for function in functions(source):
        end = function.end_lineno or function.lineno
        size, deep = end - function.lineno + 1, depth(function)
        exempt = any(EXEMPT in line for line in lines[function.lineno - 1 : end])
        if (size > MAX_LINES or deep > MAX_DEPTH) and not exempt:
            found.append(f"{function.name}: {size} lines, {deep} levels")
    return found


def test_functions_are_short_and_flat() -> None:
    paths = sorted(ROOT.rglob("*.py"))
    assert len(paths) > 100
    assert [f"{path}: {found}" for path in paths for found in too_large(path.read_text())] == []


def test_a_long_function_is_found_unless_it_says_why() -> None:
    body = "    x = 1\n" * MAX_LINES
    assert too_large(f"def f():\n{body}") == [f"f: {MAX_LINES + 1} lines, 0 levels"]
    assert too_large(f"def f():\n    {EXEMPT} a table.\n{body}") == []


def test_a_deep_function_is_found() -> None:
    source = "def f():\n"
    for level in range(1, MAX_DEPTH + 2):
        source += "    " * level + "if x:\n"
    source += "    " * (MAX_DEPTH + 2) + "pass\n"
    assert too_large(source) == [f"f: {MAX_DEPTH + 3} lines, {MAX_DEPTH + 1} levels"]
