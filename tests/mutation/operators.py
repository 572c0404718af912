"""Mutants and where to plant them: small wrong changes to one expression or statement of a module."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

_COMPARE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_DROPPED: Final = (ast.Assign, ast.AugAssign, ast.Expr, ast.Delete, ast.Raise)
_QUIET: Final = (
    "malformed",
    "protocol_error",
    "TypeVar",
    "reader.finish",
    "Reader(body).finish",
    "_codes",
)
_NAMES: Final = ("__slots__", "__all__")
_COMMENT: Final = re.compile(r"\s+#.*$")
_LONGEST_TEXT: Final = 8
"""Longer strings are considered prose and are not changed."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the text from `start` to `stop` (offsets in the source) becomes `new`.

    `scope` is the qualified name of the enclosing function or class, or empty at module level. Lines count from 1.
    """

    module: str
    scope: str
    first_line: int
    last_line: int
    start: int
    stop: int
    old: str
    new: str
    line: str
    at_import: bool
    nth: int = 1
    """The position among mutants with otherwise identical keys, counted from 1."""

    def key(self) -> tuple[str, ...]:
        """Return the key in the list of equivalent mutants: the function and its code, without line numbers and
        comments.
        """
        code = _COMMENT.sub("", self.line).strip()
        return (self.module, self.scope, code, self.old, self.new, str(self.nth))

    def apply(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.stop :]


def mutants(module: str, source: str) -> list[Mutant]:
    """Return every mutant of `source`, in source order and without duplicates."""
    maker = _Maker(module, source)
    maker.block(ast.parse(source).body, "", True)
    made = sorted(maker.found.values(), key=lambda m: (m.start, m.stop, m.new))
    seen: Counter[tuple[str, ...]] = Counter()
    for place, mutant in enumerate(made):
        seen[mutant.key()] += 1
        made[place] = replace(mutant, nth=seen[mutant.key()])
    return [mutant for mutant in made if _compiles(mutant.apply(source))]


def _compiles(source: str) -> bool:
    """Return whether the source compiles. It does not compile if a `nonlocal` has lost its
    assignment.
    """
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


class _Maker:
    def __init__(self, module: str, source: str) -> None:
        self.module = module
        self.source = source
        self.lines = source.splitlines()
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: dict[tuple[int, int, str], Mutant] = {}
        self.scope = ""
        self.at_import = True

    def _offset(self, line: int, column: int) -> int:
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return self.starts[line - 1] + len(text.encode()[:column].decode())

    def _add(self, node: ast.expr | ast.stmt, new: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._offset(node.lineno, node.col_offset)
        stop = self._offset(node.end_lineno, node.end_col_offset)
        old = " ".join(self.source[start:stop].split())
        if old != new:
            self.found[start, stop, new] = Mutant(
                self.module, self.scope, node.lineno, node.end_lineno, start, stop, old, new,
                self.lines[node.lineno - 1].strip(), self.at_import,
            )  # fmt: skip

    def block(self, body: list[ast.stmt], scope: str, at_import: bool) -> None:
        for statement in body:
            self.scope, self.at_import = scope, at_import
            self._statement(statement, scope, at_import)

    def _statement(self, node: ast.stmt, scope: str, at_import: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{node.name}" if scope else node.name
            if isinstance(node, ast.ClassDef):
                self.block(node.body, inner, at_import)
                return
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                self.scope, self.at_import = inner, True
                if default is not None:
                    self._expression(default)
            self.block(node.body, f"{inner}", False)
            return
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert):
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _NAMES:
            return
        if not at_import:
            self._whole(node)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "targets", "target") and not isinstance(node, ast.For):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.expr):
                    self.scope, self.at_import = scope, at_import
                    self._expression(child, quiet=isinstance(node, ast.Raise))
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    self.block(child.body, scope, at_import)
                elif isinstance(child, ast.stmt):
                    self.block([child], scope, at_import)

    def _whole(self, node: ast.stmt) -> None:
        """Add the mutants that change a whole statement."""
        match node:
            case ast.Return(value=None):
                self._add(node, "pass")
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
                self._add(node, "return None")
            case ast.Break():
                self._add(node, "continue")
            case ast.Continue():
                self._add(node, "break")
            case ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
                other = ast.AugAssign(node.target, _ARITHMETIC[type(op)](), node.value)
                self._add(node, ast.unparse(other))
        if isinstance(node, _DROPPED):
            self._add(node, "pass")
        if isinstance(node, ast.If | ast.While):
            self._add(node.test, f"(not ({ast.unparse(node.test)}))")

    def _expression(self, node: ast.expr, quiet: bool = False) -> None:
        """Add the mutants of an expression. `quiet` means that the expression belongs to an error message or is the
        name of a type.
        """
        if isinstance(node, ast.JoinedStr | ast.Lambda):
            return
        for new in _variants(node, quiet):
            self._add(node, new)
        quiet = quiet or (isinstance(node, ast.Call) and ast.unparse(node.func) in _QUIET)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child, quiet)
            elif isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    self._expression(part, quiet)
            elif isinstance(child, ast.keyword):
                self._expression(child.value, quiet)


def _variants(node: ast.expr, quiet: bool) -> Iterator[str]:
    match node:
        case ast.Constant(value=bool() as truth):
            yield str(not truth)
        case ast.Constant(value=int() as number):
            yield f"({number + 1})"
            if number:
                yield f"({number - 1})"
        case ast.Constant(value=str() as text):
            if not quiet and len(text) <= _LONGEST_TEXT and " " not in text:
                yield repr(text + "x")
        case ast.Constant(value=bytes() as octets):
            yield repr(octets + b"x")
        case ast.Compare(left=left, ops=ops, comparators=right):
            for place, op in enumerate(ops):
                changed = [*ops[:place], _COMPARE[type(op)](), *ops[place + 1 :]]
                yield f"({ast.unparse(ast.Compare(left, changed, right))})"
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(other, values))})"
            for place in range(len(values)):
                fewer = [*values[:place], *values[place + 1 :]]
                less = fewer[0] if len(fewer) == 1 else ast.BoolOp(op, fewer)
                yield f"({ast.unparse(less)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield f"({ast.unparse(ast.BinOp(left, _ARITHMETIC[type(op)](), right))})"
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield f"({ast.unparse(ast.IfExp(test, orelse, body))})"
