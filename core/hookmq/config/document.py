"""YAML text to values that know where they stand.

YAML 1.2's core schema decides what a plain word is: ``true``, ``false``, ``null`` and numbers; ``yes``, ``on``,
``1:30`` and dates are text. Anchors and aliases are read, tags are not. Size, depth and the nodes that aliases unfold
to are bounded.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from hookmq.config.problems import Path, Place, Problems
from hookmq.errors import ConfigError

MAX_BYTES: Final = 4 << 20
MAX_DEPTH: Final = 64
MAX_NODES: Final = 200_000

MAX_DIGITS: Final = 40
"""Longer numbers are text: Python's conversions have bounds of their own, and raise beyond them."""

_INTEGER = re.compile(r"[-+]?[0-9]+")
_HEX_OR_OCTAL = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_WORDS: Final[dict[str, bool | None]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Node:
    """A value and its place. `value` is None, bool, int, float, str, a list of nodes or a dict of nodes; a dict's `keys`
    say where each key stands. `text` is set where a scalar came without YAML's quotes to tell text from numbers (the
    environment, `-o`, a file): then the type that is wanted decides. `secret` is never shown; `origin` names the
    indirection it came by."""

    value: Any
    place: Place
    keys: dict[str, Place] = field(default_factory=dict)
    text: str | None = None
    secret: bool = False
    origin: str = ""

    def at(self, path: Path) -> "Node":
        """The node that `path` leads to, or the last one on the way that exists."""
        node = self
        for part in path:
            value = node.value
            if isinstance(value, dict) and part in value:
                node = value[part]
                continue
            if isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value):
                node = value[part]
                continue
            break
        return node


def scalar(text: str) -> None | bool | int | float | str:
    """What a plain YAML 1.2 scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= MAX_DIGITS:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _HEX_OR_OCTAL.fullmatch(text):
            return int(text, 0)
    elif text.lstrip("+-").isdecimal():
        return text
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITY.fullmatch(text):
        return -math.inf if text[0] == "-" else math.inf
    return text


def loose(text: str, source: str) -> Node:
    """A scalar from where nothing tells text from numbers."""
    return Node(scalar(text), Place(source), text=text)


def decode(data: bytes, source: str) -> str:
    """The text of a configuration file. Raises ConfigError where it is too large or no UTF-8."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES} bytes", source=source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise ConfigError("not UTF-8 text", source=source, line=line, column=column) from None


def parse(text: str, source: str, problems: Problems | None = None) -> Node:
    """The one document in `text`; nothing at all is an empty mapping. Raises ConfigError, but for what goes to `problems`
    when it is given: a second document and keys given twice."""
    found = Problems() if problems is None else problems
    documents = parse_all(text, source, found)
    if len(documents) > 1:
        hint = "a configuration is one YAML document"
        found.add(documents[1].place, (), "a second document begins here", hint)
    if problems is None:
        found.check()
    return documents[0] if documents else Node({}, Place(source, 1, 1))


def parse_all(text: str, source: str, problems: Problems) -> list[Node]:
    """Every document in `text`; keys given twice go to `problems`. Raises ConfigError for what is no YAML and beyond the
    limits."""
    try:
        # before anything is composed: the composer recurses, the parser does not
        _measure(text, source)
        return [
            _Reader(source, problems).node(root, (), 0)
            for root in yaml.compose_all(text, Loader=_LOADER)
            if root is not None
        ]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ": ".join(part for part in (error.context, error.problem) if part)
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        if mark and _is_tab(text, mark.line, mark.column):
            raise ConfigError(
                "found a tab where YAML wants spaces",
                source=source,
                line=line,
                column=column,
                hint="indent with spaces",
            ) from None
        raise ConfigError(
            f"not YAML: {what}",
            source=source,
            line=line,
            column=column,
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {str(error).splitlines()[0]}", source=source) from None


def _is_tab(text: str, line: int, column: int) -> bool:
    lines = text.split("\n")
    return line < len(lines) and lines[line][column : column + 1] == "\t"


def _measure(text: str, source: str) -> None:
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_LOADER):
        problem = ""
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            tag = getattr(event, "tag", None)
            if nodes > MAX_NODES:
                problem = f"more than {MAX_NODES} values"
            elif tag not in (None, "!"):
                problem = f"the tag {tag} is not accepted"
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                problem = f"nested more than {MAX_DEPTH} deep"
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if problem:
            raise _error(_place(event, source), problem)


def _place(marked: Any, source: str) -> Place:
    mark = marked.start_mark
    return Place(source, mark.line + 1, mark.column + 1)


def _error(place: Place, message: str) -> ConfigError:
    return ConfigError(message, source=place.source, line=place.line, column=place.column)


class _Reader:
    """Turns composed nodes into ours, unfolding aliases within the bounds."""

    __slots__ = ("_count", "_problems", "_source")

    def __init__(self, source: str, problems: Problems) -> None:
        self._source = source
        self._problems = problems
        self._count = 0

    def node(self, raw: yaml.Node, path: Path, depth: int) -> Node:
        place = _place(raw, self._source)
        self._count += 1
        if self._count > MAX_NODES:
            raise _error(place, f"aliases unfold to more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise _error(place, f"nested more than {MAX_DEPTH} deep")
        if isinstance(raw, yaml.ScalarNode):
            return Node(raw.value if raw.style else scalar(raw.value), place)
        if isinstance(raw, yaml.SequenceNode):
            items = [
                self.node(item, (*path, index), depth + 1) for index, item in enumerate(raw.value)
            ]
            return Node(items, place)
        values: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        for key, value in raw.value:
            at = _place(key, self._source)
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(at, path, "a key must be a word, not a list or a mapping")
                continue
            name = key.value
            if name in values:
                hint = f"first in line {keys[name].line}"
                self._problems.add(at, path, f"the key {name!r} is given twice", hint)
                continue
            keys[name] = at
            values[name] = self.node(value, (*path, name), depth + 1)
        return Node(values, place, keys)


def settled(node: Node, nodes: Mapping[Path, Node], path: Path = ()) -> Node:
    """A copy of `node` in which what `nodes` has for a path stands in for what was there: the resolved indirections."""
    node = nodes.get(path, node)
    if isinstance(node.value, dict):
        entries = {key: settled(child, nodes, (*path, key)) for key, child in node.value.items()}
        return replace(node, value=entries)
    if isinstance(node.value, list):
        items = [settled(child, nodes, (*path, i)) for i, child in enumerate(node.value)]
        return replace(node, value=items)
    return node


def walk(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every node with its path, parents first."""
    yield path, node
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from walk(child, (*path, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from walk(child, (*path, index))
