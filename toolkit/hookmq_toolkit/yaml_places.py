"""Read YAML files and keep the position of each value in the text.

Use this for files of rules or users that a plugin reads itself. Each mistake can be reported with its line and column,
and a single value can be replaced without touching the rest of the text. A plugin's configuration does not need this,
because the broker reads it.

- Scalars follow the core schema of YAML 1.2, as in the broker's configuration: ``yes``, ``on`` and ``1:30`` are text.
- Anchors, aliases, tags, a second document and repeated keys are refused.
- The depth and number of values are limited. The caller limits the size of the text.

`parse` may run in a thread alongside the event loop. It builds the values from the parser's events one by one, so that
other threads can run in between.
"""

from collections.abc import Iterator
from typing import Any, Final

import yaml
from hookmq.config_api import scalar
from hookmq.plugin import ConfigError

MAX_DEPTH: Final = 16
"""Levels of nested lists and mappings that `parse` accepts by default."""
MAX_NODES: Final = 2_000_000
"""Values, including keys, that `parse` accepts by default."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Node:
    """A value and its position: a mapping, a list or a scalar.

    Lines and columns count from 1. `start` and `end` are offsets in the text. The `end` of a list or mapping without
    brackets may be past its content: use `content_end` instead.
    """

    __slots__ = (
        "column",
        "end",
        "flow",
        "items",
        "key",
        "line",
        "mapping",
        "plain",
        "start",
        "text",
    )

    def __init__(self, event: Any) -> None:
        mark = event.start_mark
        self.line: int = mark.line + 1
        self.column: int = mark.column + 1
        self.start: int = mark.index
        self.end: int = event.end_mark.index
        self.key: Node | None = None
        """This value's key; None outside a mapping."""
        self.mapping: dict[str, Node] | None = None
        """A mapping's values by the text of their keys, in file order; None for other nodes."""
        self.items: list[Node] | None = None
        """A list's values; None for other nodes."""
        self.text: str | None = None
        """A scalar's text, without quotes; None for other nodes."""
        self.plain = False
        """True if this is an unquoted scalar that is not a block (``|``, ``>``)."""
        self.flow = False
        """True if this is a list or mapping in brackets."""

    @property
    def value(self) -> Any:
        """The value as a Python object: None, bool, int, float, str, list or dict. Floats may be infinite."""
        if self.mapping is not None:
            return {key: node.value for key, node in self.mapping.items()}
        if self.items is not None:
            return [node.value for node in self.items]
        text = self.text
        assert text is not None  # a node is one of the three
        return scalar(text) if self.plain else text

    @property
    def content_end(self) -> int:
        """The offset just past the last scalar or bracket in this value."""
        node = self
        while not node.flow:
            if node.mapping:
                node = node.mapping[next(reversed(node.mapping))]
            elif node.items:
                node = node.items[-1]
            else:
                break
        return node.end

    def error(self, message: str, source: str, hint: str = "") -> ConfigError:
        """Return a ConfigError that points to this value. `source` names the file."""
        return ConfigError(message, source=source, line=self.line, column=self.column, hint=hint)


def parse(
    text: str, source: str, max_depth: int = MAX_DEPTH, max_nodes: int = MAX_NODES
) -> Node | None:
    """Return the document in `text`, or None if it contains only comments.

    Raises ConfigError with `source`, line and column. The message may quote keys but not values.
    """
    try:
        return _build(yaml.parse(text, Loader=_LOADER), source, max_depth, max_nodes)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ": ".join(part for part in (error.context, error.problem) if part)
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise ConfigError(f"not YAML: {what}", source=source, line=line, column=column) from None
    except yaml.YAMLError:
        raise ConfigError("not YAML: invalid characters", source=source) from None


def _build(events: Iterator[Any], source: str, max_depth: int, max_nodes: int) -> Node | None:
    root: Node | None = None
    stack: list[Node] = []
    keys: list[Node | None] = []  # for each open collection, the key that waits for its value
    count = 0
    for event in events:
        kind = type(event)
        if kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            stack.pop().end = event.end_mark.index
            keys.pop()
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        node = _node(event, kind, source)
        count += 1
        if count > max_nodes:
            raise node.error(f"more than {max_nodes} values", source)
        if stack:
            _put(stack[-1], keys, node, source)
        elif root is not None:
            raise node.error("a second document starts here", source)
        else:
            root = node
        if node.text is None:
            if len(stack) >= max_depth:
                raise node.error(f"nested more than {max_depth} deep", source)
            stack.append(node)
            keys.append(None)
    return root


def _node(event: Any, kind: type, source: str) -> Node:
    node = Node(event)
    if kind is yaml.AliasEvent or event.anchor is not None:
        raise node.error("anchors and aliases are not accepted", source)
    if event.tag not in (None, "!"):
        raise node.error("tags are not accepted", source)
    if kind is yaml.ScalarEvent:
        node.text = event.value
        node.plain = not event.style
    elif kind is yaml.MappingStartEvent:
        node.mapping, node.flow = {}, bool(event.flow_style)
    else:
        node.items, node.flow = [], bool(event.flow_style)
    return node


def _put(parent: Node, keys: list[Node | None], node: Node, source: str) -> None:
    if parent.items is not None:
        parent.items.append(node)
        return
    assert parent.mapping is not None
    key = keys[-1]
    if key is not None:
        assert key.text is not None
        node.key = key
        parent.mapping[key.text] = node
        keys[-1] = None
        return
    if node.text is None:
        raise node.error("a key must be a word", source)
    before = parent.mapping.get(node.text)
    if before is not None and before.key is not None:
        hint = f"first in line {before.key.line}"
        raise node.error(f"the key {node.text!r} is given twice", source, hint)
    keys[-1] = node
