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
from typing import Any

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


@pytest.fixture(scope="module")
def core(compiling: ModuleType) -> Any:
    """Return the `Project` of the core."""
    return compiling.Project(CORE)


@pytest.fixture(params=["core", "plugins/cluster"])
def project(compiling: ModuleType, request: pytest.FixtureRequest) -> Any:
    """Return the `Project` of each distribution with compiled modules."""
    return compiling.Project(ROOT / request.param)


def names(paths: list[Path]) -> set[str]:
    return {path.relative_to(CORE / "hookmq").as_posix() for path in paths}


def test_modules_on_the_way_of_a_message_are_compiled(core: Any) -> None:
    found = names(core.modules())
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


def test_modules_that_define_constants_and_types_count_as_source(core: Any) -> None:
    found = names(core.sources())
    assert names(core.modules()) <= found
    assert {
        "__init__.py",
        "mqtt/reason_codes.py",
        "model/message.py",
        "storage/records.py",
        "hooks/call.py",
    } <= found
    assert not [name for name in found if name.startswith(("testing/", "cli/", "server/"))]


def test_every_way_of_importing_counts(core: Any, tmp_path: Path) -> None:
    file = tmp_path / "any.py"
    file.write_text(
        "import hookmq.mqtt.framing\n"
        "from hookmq.broker import dispatch as table\n"
        "if False:\n    from hookmq.model.message import Message\n"
        "import os, pluggy\n"
    )
    assert names(list(core.imports(file, types=False))) == {
        "__init__.py", "mqtt/__init__.py", "mqtt/framing.py", "broker/__init__.py", "broker/dispatch.py",
        "model/__init__.py", "model/message.py",
    }  # fmt: skip


def test_imports_for_type_checkers_count_in_compiled_files(core: Any, tmp_path: Path) -> None:
    file = tmp_path / "any.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from hookmq.server.plugin_listeners import Check\n"
        "else:\n    from hookmq.model.message import Message\n"
    )
    assert names(list(core.imports(file, types=False))) == {
        "__init__.py", "model/__init__.py", "model/message.py",
    }  # fmt: skip
    assert "server/plugin_listeners.py" in names(list(core.imports(file, types=True)))


def test_no_inner_function_names_another(project: Any) -> None:
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
    assert {path.name: cycles(path.read_text()) for path in project.modules()} == {
        path.name: [] for path in project.modules()
    }


def test_no_compiled_class_inherits_from_another_package(
    project: Any, compiling: ModuleType, tmp_path: Path
) -> None:
    """Raising such an exception would kill the process, because mypyc does not know its base."""
    assert project.foreign() == []
    package = tmp_path / "doorbell"
    package.mkdir()
    (package / "a.py").write_text(
        "import abc\nimport hookmq.plugin as api\nfrom hookmq.plugin import HookMQError as Bad\n"
        "from doorbell.b import Own\n"
        "class A(Bad): pass\nclass B(api.Plugin): pass\nclass C(Own, abc.ABC): pass\nclass D: pass\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[tool.hatch.build.targets.wheel]\npackages = ["doorbell"]\n'
        '[tool.hatch.build.targets.wheel.hooks.custom]\nmodules = ["*"]\n'
    )
    made = compiling.Project(tmp_path)
    assert made.foreign() == ["a.A", "a.B"]
    with pytest.raises(
        RuntimeError, match=r"do not compile modules with these classes: a\.A, a\.B"
    ):
        made.compile_into(tmp_path)


KEYWORDS = frozenset(
    (
        "alignof", "asm", "attribute", "complex", "const", "extension", "imag", "inline", "int128", "label", "real",
        "restrict", "signed", "thread", "typeof", "volatile",
    )
)  # fmt: skip
"""What follows the underscores in GCC's own keywords, such as ``__volatile``."""


def test_no_field_is_a_keyword_of_c(project: Any) -> None:
    """mypyc puts an underscore before each field's name. A field named `_volatile` would become ``__volatile``, a
    keyword.
    """
    fields = {
        (path.name, node.attr)
        for path in project.modules()
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute)
    }
    assert fields
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


def test_types_are_checked_and_compiled_by_one_version_of_mypy(project: Any) -> None:
    file = tomllib.loads((project.root / "pyproject.toml").read_text())
    hook = file["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    assert hook["enable-by-default"] is False
    assert f"mypy=={version('mypy')}" in hook["dependencies"]
    assert not [one for one in file["project"]["dependencies"] if one.startswith("mypy")]
