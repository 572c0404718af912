"""First-party plugins import only modules that third parties may import. There are no exceptions."""

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from workspace import Member, members

PUBLIC = (
    "hookmq.plugin",
    "hookmq.mqtt_api",
    "hookmq.storage_api",
    "hookmq.cluster_api",
    "hookmq.server_api",
    "hookmq.config_api",
    "hookmq.cli_api",
    "hookmq.build",
)
"""The modules of the core that `docs/reference/plugin-api.md` documents. Only names in their ``__all__`` are public."""
LIBRARIES = {"hookmq", "hookmq-testing"}
MEMBERS = [
    pytest.param(member, id=member.name) for member in members() if member.name not in LIBRARIES
]


def imported(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, module, name) for every import in a file, including imports in functions and for type checkers. The
    name is empty if the module itself is imported.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value), ""


def public(module: str, name: str) -> bool:
    """Return whether a plugin may import `name` from `module`."""
    package = module.split(".")[0]
    if package == "hookmq":
        if module not in PUBLIC:
            return module == "hookmq" and f"hookmq.{name}" in PUBLIC
        return not name or name in import_module(module).__all__
    if package == "hookmq_toolkit":
        parts = [*module.split("."), name]
        return not any(part.startswith("_") for part in parts) and find_spec(module) is not None
    if package == "hookmq_testing":
        return (
            module == "hookmq_testing.contracts" or name in import_module("hookmq_testing").__all__
        )
    return True


def behind(folder: Path) -> list[str]:
    """Return the imports of private modules in the files below `folder`."""
    return [
        f"{path}:{line} {module} {name}"
        for path in sorted(folder.rglob("*.py"))
        for line, module, name in sorted(imported(path))
        if not public(module, name)
    ]


@pytest.mark.parametrize("member", MEMBERS)
def test_a_plugin_imports_public_names_only(member: Member) -> None:
    assert behind(member.folder / member.package) == []


# The toolkit is a part of HookMQ, so its tests may use the core.
PLUGINS = [one for one in MEMBERS if one.id != "hookmq-toolkit"]


@pytest.mark.parametrize("member", PLUGINS)
def test_the_tests_of_a_plugin_need_the_kit_and_public_names_only(member: Member) -> None:
    """A plugin's tests import only public names and the testing kit, because authors copy these
    tests.
    """
    assert behind(member.folder / "tests") == []


def test_the_check_sees_every_kind_of_import(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import hookmq.broker.broker\n"
        "if TYPE_CHECKING:\n"
        "    from hookmq.model.client import ClientInfo\n"
        "def late():\n"
        "    from hookmq.plugin import Plugin, topics\n"
        "    from hookmq import plugin, broker\n"
        "    import_module('hookmq.cli')\n"
        "    from hookmq_toolkit._hidden import x\n"
    )
    found = [line.partition("plugin.py:")[2] for line in behind(tmp_path)]
    assert found == [
        "2 hookmq.broker.broker ",
        "4 hookmq.model.client ClientInfo",
        "6 hookmq.plugin topics",
        "7 hookmq broker",
        "8 hookmq.cli ",
        "9 hookmq_toolkit._hidden x",
    ]


def test_every_plugin_of_the_workspace_is_checked() -> None:
    checked = {str(one.id) for one in MEMBERS}
    assert {"hookmq-toolkit", "hookmq-storage", "hookmq-bench", "hookmq-example-greet"} <= checked
