"""Test that the tests mirror the core's modules: `core/hookmq/X/Y.py` is tested in `core/tests/X/test_Y.py`.

A module with many tests has additional files named `test_Y_TOPIC.py`. Definitions in `X/__init__.py` are tested in
`X/test_main.py`. Tests that span modules are in `core/tests/scenarios`; see its README.
"""

import ast
from pathlib import Path

import hookmq
import pytest

ROOT = Path(hookmq.__file__).parent
TESTS = Path(__file__).parent

UNTESTED = {
    **dict.fromkeys(
        (f"{name}_api.py" for name in ("cli", "cluster", "config", "mqtt", "server", "storage")),
        "exports names; test_public_api.py checks them",
    ),
    "cli/__main__.py": "one call; test_main.py starts it as a process",
    "hooks/broker_handle.py": "a protocol; broker/plugin_api implements it",
    "hooks/clients.py": "protocols and fields; broker/plugin_client.py implements them",
    "hooks/direct_deliveries.py": "a protocol; broker/direct_deliveries.py implements it",
    "hooks/plugin_state.py": "a protocol; broker/plugin_api/keeping.py implements it",
    "hooks/registries.py": "protocols",
    "model/runtime.py": "protocols; testing and server/asyncio_runtime.py implement them",
    "model/settings.py": "fields, whose bounds the tests of config read",
    "model/subscription.py": "fields",
    "mqtt/errors.py": "two exceptions",
    "mqtt/packet_limits.py": "fields",
    "server/protocols.py": "protocols",
    "storage/protocols.py": "protocols; StoreContract and JournalContract test those who implement them",
}
"""Modules without behavior of their own, and why."""

WHOLE = {
    "function_size", "hooks_named", "layers", "mirror", "path_of_a_publish", "public_api", "size",
}  # fmt: skip
"""Tests of the whole core, next to this one."""


def modules() -> set[str]:
    """Return the paths of all modules that contain definitions."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if "_compiled" not in path.parts and (path.name != "__init__.py" or defines(path))
    }


def defines(path: Path) -> bool:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) for node in ast.parse(path.read_text()).body)


def mirror_of(module: str) -> Path:
    """Return the path of the test file for `module`, relative to `core/tests`."""
    path = Path(module)
    name = "main" if path.name == "__init__.py" else path.stem
    return path.parent / f"test_{name}.py"


def missing(found: set[str], tests: set[Path]) -> list[str]:
    """Return the modules that have no test file and are not in `UNTESTED`."""
    return sorted(one for one in found if one not in UNTESTED and mirror_of(one) not in tests)


def orphans(found: set[str], tests: set[Path]) -> list[str]:
    """Return the test files that are named neither after a module nor after a module and a topic."""
    wanted = {mirror_of(one).with_suffix("").as_posix() for one in found}
    return sorted(
        one.as_posix()
        for one in tests
        if one.with_suffix("").as_posix() not in wanted
        and not any(one.with_suffix("").as_posix().startswith(f"{name}_") for name in wanted)
    )


def mirrors() -> set[Path]:
    """Return the paths of all test files that must mirror a module."""
    found = {path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    whole = {Path(f"test_{name}.py") for name in WHOLE}
    assert whole <= found, "a test of the whole core is gone: take it out of WHOLE"
    return {one for one in found - whole if one.parts[0] != "scenarios"}


def test_every_module_has_its_tests() -> None:
    assert missing(modules(), mirrors()) == [], "write the test file that mirrors the module"


def test_every_test_file_has_its_module() -> None:
    assert orphans(modules(), mirrors()) == [], (
        "name it after a module, or move it to core/tests/scenarios if it spans several"
    )


def test_every_exception_is_a_module_without_tests() -> None:
    assert UNTESTED.keys() <= modules()
    assert [one for one in UNTESTED if mirror_of(one) in mirrors()] == []


@pytest.mark.parametrize(
    ("module", "tests", "expected"),
    [
        ("a/b.py", "a/test_b.py", ([], [])),
        ("a/__init__.py", "a/test_main.py", ([], [])),
        ("a/b.py", "a/test_c.py", (["a/b.py"], ["a/test_c.py"])),
        ("a/b.py", "test_b.py", (["a/b.py"], ["test_b.py"])),
        ("a/b.py", "a/test_b_more.py", (["a/b.py"], [])),
        ("a/b.py", "a/test_bc.py", (["a/b.py"], ["a/test_bc.py"])),
    ],
)
def test_a_gap_on_either_side_is_seen(
    module: str, tests: str, expected: tuple[list[str], list[str]]
) -> None:
    assert (missing({module}, {Path(tests)}), orphans({module}, {Path(tests)})) == expected
