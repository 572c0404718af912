"""The pages about the toolkit and the testing kit list every public name, and each example of the toolkit runs."""

import ast
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import hookmq_testing
import hookmq_toolkit
import pytest
from pages import Block, blocks
from workspace import ROOT

PAGE = ROOT / "docs" / "reference" / "toolkit.md"
MODULES = sorted(
    path.stem
    for path in Path(hookmq_toolkit.__file__).parent.iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
    if path.stem != "__init__"
)
SECTIONS = dict(re.findall(r"^## (\w+)\n(.+?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S))
EXAMPLES = [pytest.param(block, id=str(block)) for block in blocks(PAGE) if block.kind == "python"]


def test_every_module_has_a_section() -> None:
    assert sorted(SECTIONS) == MODULES


@pytest.mark.parametrize("name", MODULES)
def test_a_section_has_an_example_and_the_names_of_its_module(name: str) -> None:
    section = SECTIONS[name]
    assert "```python\n" in section
    assert f"hookmq_toolkit.{name} import" in section
    shown = set(re.findall(rf"^::: hookmq_toolkit\.{name}\.(\w+)$", section, re.M))
    module = import_module(f"hookmq_toolkit.{name}")
    assert {one for one in shown if not hasattr(module, one)} == set()
    assert _defined(Path(module.__file__ or "")) - shown == set()


def _defined(path: Path) -> set[str]:
    """Return the public functions and classes that a module defines, unless its `__all__` omits them."""
    tree = ast.parse(path.read_text())
    found = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }
    exported = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return found & set(exported[0]) if exported else found


def test_the_testing_page_lists_the_public_names() -> None:
    text = (ROOT / "docs" / "reference" / "testing.md").read_text()
    shown = re.findall(r"^::: ([\w.]+)\.(\w+)$", text, re.M)
    assert sorted(name for _, name in shown) == sorted(hookmq_testing.__all__)
    for module, name in shown:
        assert getattr(import_module(module), name) is getattr(hookmq_testing, name)


PUBLIC = re.findall(
    r"^\| \[`(hookmq\.\w+)`\]", (ROOT / "docs" / "reference" / "plugin-api.md").read_text(), re.M
)


def test_the_plugin_page_lists_every_public_module() -> None:
    found = {f"hookmq.{path.stem}" for path in (ROOT / "core" / "hookmq").glob("*_api.py")}
    assert set(PUBLIC) == {"hookmq.plugin", "hookmq.build", *found}


def test_the_plugin_page_describes_every_public_name_once() -> None:
    text = (ROOT / "docs" / "reference" / "plugin-api.md").read_text()
    lines = re.findall(r"^::: ([\w.]+)\.(\w+)$", text, re.M)
    assert len(set(lines)) == len(lines)
    described = [getattr(import_module(module), name) for module, name in lines]
    for module in PUBLIC:
        for name in import_module(module).__all__:
            value = getattr(import_module(module), name)
            found = [line for line, one in zip(lines, described, strict=True) if one is value]
            assert name in [one for _, one in found], f"{module}.{name} is not described"
    assert {(module, name) for module, name in lines} <= {
        (module, name) for module in PUBLIC for name in import_module(module).__all__
    }


@pytest.mark.parametrize("block", EXAMPLES)
def test_an_example_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("shown")
    monkeypatch.setitem(sys.modules, "shown", module)
    exec(compile(block.text, str(block), "exec"), module.__dict__)
