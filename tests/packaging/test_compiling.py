"""Test the sources of the compiled build, and what it requires of a machine."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from hookmq.build import SUFFIX, _listed
from workspace import ROOT

CORE = ROOT / "core"


@pytest.fixture(scope="module")
def compiling() -> ModuleType:
    """Import `core/compiling.py`, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("compiling", CORE / "compiling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(paths: list[Path]) -> set[str]:
    return {path.relative_to(CORE / "hookmq").as_posix() for path in paths}


def test_modules_on_the_way_of_a_message_are_compiled(compiling: ModuleType) -> None:
    found = names(compiling.modules())
    assert {
        "routing/subscription_tree.py",
        "session/inflight.py",
        "broker/packet_reader.py",
        "mqtt/decoder.py",
    } <= found
    assert (
        not {"plugin.py", "model/message.py", "storage/protocols.py", "broker/plugin_api/handle.py"}
        & found
    )
    assert not [name for name in found if name.startswith(("hooks/", "testing/", "cli/"))]


def test_modules_that_define_constants_and_types_count_as_source(compiling: ModuleType) -> None:
    found = names(compiling.sources())
    assert names(compiling.modules()) <= found
    assert {
        "__init__.py",
        "mqtt/reason_codes.py",
        "model/message.py",
        "storage/records.py",
        "hooks/call.py",
    } <= found
    assert not [name for name in found if name.startswith(("testing/", "cli/", "server/"))]


def test_every_way_of_importing_counts(compiling: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "any.py"
    file.write_text(
        "import hookmq.mqtt.framing\n"
        "from hookmq.broker import dispatch as table\n"
        "if False:\n    from hookmq.model.message import Message\n"
        "import os, pluggy\n"
    )
    assert names(list(compiling._imports(file, types=False))) == {
        "__init__.py", "mqtt/__init__.py", "mqtt/framing.py", "broker/__init__.py", "broker/dispatch.py",
        "model/__init__.py", "model/message.py",
    }  # fmt: skip


def test_imports_for_type_checkers_count_in_compiled_files(
    compiling: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "any.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from hookmq.server.plugin_listeners import Check\n"
        "else:\n    from hookmq.model.message import Message\n"
    )
    assert names(list(compiling._imports(file, types=False))) == {
        "__init__.py", "model/__init__.py", "model/message.py",
    }  # fmt: skip
    assert "server/plugin_listeners.py" in names(list(compiling._imports(file, types=True)))


def test_no_inner_function_names_another(compiling: ModuleType) -> None:
    """No nested function refers to itself or to a sibling, because that creates a cycle in compiled
    code.

    Only the garbage collector can then free the objects that the function refers to, such as a session and its will.
    The broker rarely runs the garbage collector.
    """

    def inner(within: ast.AST) -> list[ast.FunctionDef]:
        return [
            node
            for node in ast.walk(within)
            if isinstance(node, ast.FunctionDef) and node is not within
        ]

    def cycles(text: str) -> list[str]:
        return [
            f"{outer.name}: {function.name} names {node.id}"
            for outer in inner(ast.parse(text))
            for function in inner(outer)
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and node.id in {one.name for one in inner(outer)}
        ]

    assert cycles("def a():\n  def b(): 1\n  def c(): b()\n  return c") == ["a: c names b"]
    assert {path.name: cycles(path.read_text()) for path in compiling.modules()} == {
        path.name: [] for path in compiling.modules()
    }


KEYWORDS = frozenset(
    (
        "alignof", "asm", "attribute", "complex", "const", "extension", "imag", "inline", "int128", "label", "real",
        "restrict", "signed", "thread", "typeof", "volatile",
    )
)  # fmt: skip
"""What follows the underscores in GCC's own keywords, such as ``__volatile``."""


def test_no_field_is_a_keyword_of_c(compiling: ModuleType) -> None:
    """mypyc puts an underscore before each field's name. A field named `_volatile` would become ``__volatile``, a
    keyword.
    """
    fields = {
        (path.name, node.attr)
        for path in compiling.modules()
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute)
    }
    assert ("group_commit.py", "_running") in fields
    assert not [one for one in fields if one[1][:1] == "_" and one[1].strip("_") in KEYWORDS]


def test_the_manifest_is_as_hookmq_reads_it(compiling: ModuleType) -> None:
    lines = ["12  ../../a.py", f"34  hookmq/a{SUFFIX}"]
    text = compiling.manifest(lines).encode()
    assert _listed(text.splitlines(keepends=True)) == {
        "../../a.py": "12",
        f"hookmq/a{SUFFIX}": "34",
    }
    assert _listed(text.replace(b"12", b"13").splitlines(keepends=True)) is None


def test_a_missing_compiler_is_reported_with_what_to_install() -> None:
    for environ, lacks in (({"CC": "no-such-cc"}, "no-such-cc"), ({"PATH": ""}, "a C compiler")):
        done = subprocess.run(
            [sys.executable, CORE / "compiling.py", "check"],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 1
        assert re.match(rf"Cannot compile: .*{lacks}.* apt install gcc", done.stderr)
        assert "HookMQ runs without, as pure Python." in done.stderr


def test_types_are_checked_and_compiled_by_one_version_of_mypy() -> None:
    project = tomllib.loads((CORE / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    assert hook["enable-by-default"] is False
    assert f"mypy=={version('mypy')}" in hook["dependencies"]
    assert not [one for one in project["project"]["dependencies"] if one.startswith("mypy")]
