"""Update the API pages in docs/reference: a table after each group of names, for readers of the repository.

python tools/api_list.py

On the site, signatures and docstrings replace the lines that start with ``:::``. Elsewhere, those lines show nothing.
The tables are made by parsing the source, without importing it.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = tuple(
    ROOT / "docs" / "reference" / name for name in ("plugin-api.md", "testing.md", "toolkit.md")
)
SOURCES: Final = {
    "hookmq": ROOT / "core", "hookmq_testing": ROOT / "testing", "hookmq_toolkit": ROOT / "toolkit",
}  # fmt: skip
"""The folder that contains each top-level package."""
START: Final = "<!-- site only\n"
STOP: Final = "-->\n"
_GROUP: Final = re.compile(
    rf"(?:{re.escape(START)})?((?:^::: [\w.]+\n)+)(?:{re.escape(STOP)})?"
    r"(?:\n<!-- repository only -->\n\| name \|.*?<!-- end -->\n)?",
    re.M | re.S,
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Described(NamedTuple):
    """A public name, with its signature, the first sentence of its docstring, and its public members."""

    call: str
    summary: str
    members: tuple[str, ...]


def updated(page: str) -> str:
    """Return the page with a current table after each group of ``:::`` lines."""
    return _GROUP.sub(_with_table, page)


def _with_table(group: re.Match[str]) -> str:
    rows = "".join(_row(describe(name)) for name in re.findall(r"^::: (.+)$", group[1], re.M))
    table = f"| name | meaning |\n|---|---|\n{rows}"
    return f"{START}{group[1]}{STOP}\n<!-- repository only -->\n{table}<!-- end -->\n"


def _row(one: Described) -> str:
    members = f" Members: {', '.join(f'`{name}`' for name in one.members)}." if one.members else ""
    text = one.summary.replace("``", "`") + members
    return f"| `{_cell(one.call)}` | {_cell(text)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def describe(dotted: str) -> Described:
    """Describe a name such as ``hookmq.plugin.Plugin``, based on the source. Raises LookupError if there is no such
    name.
    """
    module, _, name = dotted.rpartition(".")
    node, text = _definition(module, name)
    summary = _first_sentence(text)
    if isinstance(node, ast.ClassDef):
        return Described(name + _fields(node), summary, tuple(_members(node)))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return Described(name + _arguments(node.args), summary, ())
    return Described(name, summary, ())


def _definition(module: str, name: str) -> tuple[Definition | None, str]:
    """Return the definition of a class or function (None for any other name) and its docstring."""
    body = _tree(module).body
    for index, node in enumerate(body):
        if isinstance(node, Definition) and node.name == name:
            return node, ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in [one.id for one in targets if isinstance(one, ast.Name)]:
                return None, _constant_text(body[index + 1 : index + 2])
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith("hookmq"):
                    return _definition(node.module, alias.name)
    raise LookupError(f"{module} does not define {name}")


def _constant_text(after: list[ast.stmt]) -> str:
    """Return a constant's docstring, which is the string that follows it."""
    match after:
        case [ast.Expr(ast.Constant(str() as text))]:
            return text
    return ""


@cache
def _tree(module: str) -> ast.Module:
    parts = module.split(".")
    path = SOURCES[parts[0]].joinpath(*parts)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf-8"))


def _first_sentence(text: str) -> str:
    first = " ".join(text.split("\n\n")[0].split())
    end = re.search(r"(?<![.]\w)[.:](?= [A-Z`]|$)", first)
    return first[: end.start()] + "." if end else first


def _arguments(arguments: ast.arguments, skip: int = 0) -> str:
    """Return the names and defaults of parameters, without types."""
    shown = ast.parse(f"def f({ast.unparse(arguments)}): ...").body[0]
    assert isinstance(shown, ast.FunctionDef)
    for one in ast.walk(shown.args):
        if isinstance(one, ast.arg):
            one.annotation = None
    del shown.args.args[:skip]
    return f"({ast.unparse(shown.args)})"


def _fields(node: ast.ClassDef) -> str:
    """Return a class's arguments: those of ``__init__``, or its fields. Return '' if users do not create objects of the
    class.
    """
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__" and "Protocol" not in bases:
            return _arguments(one.args, 1)
    decorators = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
    if "dataclass" not in decorators and "NamedTuple" not in bases:
        return ""
    parts = [
        f"{one.target.id}=..." if one.value is not None else one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and "ClassVar" not in ast.unparse(one.annotation)
    ]
    return f"({', '.join(parts)})"


def _members(node: ast.ClassDef) -> list[str]:
    """Return the public methods and properties of a class, or the members of an enumeration."""
    if any("Enum" in ast.unparse(base) or "Flag" in ast.unparse(base) for base in node.bases):
        return [
            target.id
            for one in node.body
            if isinstance(one, ast.Assign)
            for target in one.targets
            if isinstance(target, ast.Name) and not target.id.startswith("_")
        ]
    named = [one.name for one in node.body if isinstance(one, Definition)]
    return list(dict.fromkeys(name for name in named if not name.startswith("_")))


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(updated(page.read_text("utf-8")), "utf-8")
