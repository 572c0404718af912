"""Parse YAML text into values with locations.

Plain scalars follow the core schema of YAML 1.2: ``true``, ``false``, ``null`` and numbers have types, but ``yes``,
``on``, ``1:30`` and dates are text. Anchors and aliases are supported; tags are refused. Size, depth and alias expansion
are limited.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from hookmq.config.diagnostics import ConfigProblems, KeyPath, SourcePlace
from hookmq.model.errors import ConfigError

MAX_BYTES: Final = 4 << 20
MAX_DEPTH: Final = 64
MAX_NODES: Final = 200_000

MAX_DIGITS: Final = 40
"""Numbers with more digits remain text, because Python limits the length of numbers that it converts."""

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
class YamlNode:
    """A value and its location.

    `value` is None, a bool, int, float or str, or a list or dict of nodes. For a dict, `keys` holds the locations of
    the keys. For a scalar from outside YAML (the environment, `-o`, a file), `text` is set, and the expected type
    decides how to read it. A `secret` is never shown. `origin` names the indirection that provided the value.
    """

    value: Any
    place: SourcePlace
    keys: dict[str, SourcePlace] = field(default_factory=dict)
    text: str | None = None
    secret: bool = False
    origin: str = ""

    def at(self, path: KeyPath) -> "YamlNode":
        """Return the node at `path`. If it does not exist, return its deepest existing ancestor."""
        node = self
        for part in path:
            value = node.value
            listed = isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value)
            if not listed and not (isinstance(value, dict) and part in value):
                break
            node = value[part]
        return node


def scalar(text: str) -> None | bool | int | float | str:
    """Return the value of a plain YAML 1.2 scalar."""
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


def loose(text: str, source: str) -> YamlNode:
    """Return a node for a scalar from outside YAML, which has no quotes to distinguish text from numbers."""
    return YamlNode(scalar(text), SourcePlace(source), text=text)


def decode(data: bytes, source: str) -> str:
    """Decode a configuration file. Raises ConfigError if it is too large or not UTF-8."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES} bytes", source=source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise ConfigError("not UTF-8 text", source=source, line=line, column=column) from None


def parse(text: str, source: str, problems: ConfigProblems | None = None) -> YamlNode:
    """Parse the single document in `text`. Empty text is an empty mapping. Raises ConfigError.

    If `problems` is given, a second document and duplicate keys are recorded there instead.
    """
    found = ConfigProblems() if problems is None else problems
    documents = parse_all(text, source, found)
    if len(documents) > 1:
        hint = "a configuration is one YAML document"
        found.add(documents[1].place, (), "a second document starts here", hint)
    if problems is None:
        found.check()
    return documents[0] if documents else YamlNode({}, SourcePlace(source, 1, 1))


def parse_all(text: str, source: str, problems: ConfigProblems) -> list[YamlNode]:
    """Parse all documents in `text`, and record duplicate keys in `problems`. Raises ConfigError for text that is not
    YAML or exceeds a limit."""
    try:
        # measure before composing the text: the composer recurses, but the parser does not
        _measure(text, source)
        return [
            _Reader(source, problems).node(root, (), 0)
            for root in yaml.compose_all(text, Loader=_LOADER)
            if root is not None
        ]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ": ".join(part for part in (error.context, error.problem) if part)
        message, hint = f"not YAML: {what}", ""
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        # YAML recognizes more kinds of line ends than we do, so this line number may not exist
        lines = text.split("\n")
        if mark and mark.line < len(lines) and lines[mark.line][mark.column :].startswith("\t"):
            message, hint = "found a tab in the indentation", "indent with spaces"
        raise ConfigError(message, source=source, line=line, column=column, hint=hint) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {str(error).splitlines()[0]}", source=source) from None


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
                problem = f"the tag {tag} is not supported"
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                problem = f"nested deeper than {MAX_DEPTH} levels"
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if problem:
            raise _error(_place(event, source), problem)


def _place(marked: Any, source: str) -> SourcePlace:
    mark = marked.start_mark
    return SourcePlace(source, mark.line + 1, mark.column + 1)


def _error(place: SourcePlace, message: str) -> ConfigError:
    return ConfigError(message, source=place.source, line=place.line, column=place.column)


class _Reader:
    """Converts composed YAML nodes to `YamlNode`, and expands aliases within the limits."""

    __slots__ = ("_count", "_problems", "_source")

    def __init__(self, source: str, problems: ConfigProblems) -> None:
        self._source = source
        self._problems = problems
        self._count = 0

    def node(self, raw: yaml.Node, path: KeyPath, depth: int) -> YamlNode:
        place = _place(raw, self._source)
        self._count += 1
        if self._count > MAX_NODES:
            raise _error(place, f"aliases expand to more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise _error(place, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(raw, yaml.ScalarNode):
            return YamlNode(raw.value if raw.style else scalar(raw.value), place)
        if isinstance(raw, yaml.SequenceNode):
            items = [
                self.node(item, (*path, index), depth + 1) for index, item in enumerate(raw.value)
            ]
            return YamlNode(items, place)
        values: dict[str, YamlNode] = {}
        keys: dict[str, SourcePlace] = {}
        for key, value in raw.value:
            at = _place(key, self._source)
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(at, path, "a key must be a word, not a list or a mapping")
                continue
            name = key.value
            if name in values:
                hint = f"the first is in line {keys[name].line}"
                self._problems.add(at, path, f"duplicate key {name!r}", hint)
                continue
            keys[name] = at
            values[name] = self.node(value, (*path, name), depth + 1)
        return YamlNode(values, place, keys)


def settled(node: YamlNode, nodes: Mapping[KeyPath, YamlNode], path: KeyPath = ()) -> YamlNode:
    """Return a copy of `node` with its indirections resolved: each node in `nodes` replaces the node at the same path."""
    node = nodes.get(path, node)
    if isinstance(node.value, dict):
        entries = {key: settled(child, nodes, (*path, key)) for key, child in node.value.items()}
        return replace(node, value=entries)
    if isinstance(node.value, list):
        items = [settled(child, nodes, (*path, i)) for i, child in enumerate(node.value)]
        return replace(node, value=items)
    return node
