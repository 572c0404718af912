"""YAML text to values that know where they stand.

Read from the parser's events, without recursion and without unfolding anything: anchors, aliases and tags are refused,
depth and size are bounded. All scalars are text here; what a place wants of them is its own affair.
"""

from typing import Any, Final

import yaml
from hookmq.plugin import ConfigError

MAX_DEPTH: Final = 16
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Place = tuple[int, int]
"""(line, column), from 1."""


class Node:
    """A value and its place: text, a list of nodes, or a dict of nodes whose `keys` say where each key stands. `plain` is
    text without quotes."""

    __slots__ = ("keys", "place", "plain", "value")

    def __init__(
        self, value: "str | list[Node] | dict[str, Node]", place: Place, plain: bool
    ) -> None:
        self.value = value
        self.place = place
        self.plain = plain
        self.keys: dict[str, Place] = {}


def parse(text: str, source: str) -> Node:
    """The one document in `text`. Raises ConfigError with `source`, line and column."""
    try:
        return _build(text, source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ": ".join(part for part in (error.context, error.problem) if part)
        place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise wrong(f"not YAML: {what}", source, place) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {str(error).splitlines()[0]}", source=source) from None


def wrong(message: str, source: str, place: Place, hint: str = "") -> ConfigError:
    """What is wrong, and where."""
    return ConfigError(message, source=source, line=place[0], column=place[1], hint=hint)


def _build(text: str, source: str) -> Node:
    root: Node | None = None
    stack: list[Node] = []
    keys: list[
        tuple[str, Place] | None
    ] = []  # per open collection: the key that waits for its value
    event: Any
    for event in yaml.parse(text, Loader=_LOADER):
        kind = type(event)
        if kind is yaml.ScalarEvent:
            plain = event.style is None or event.style == ""
            node = Node(event.value, _place(event), plain)
        elif kind is yaml.MappingStartEvent:
            node = Node({}, _place(event), False)
        elif kind is yaml.SequenceStartEvent:
            node = Node([], _place(event), False)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            stack.pop()
            keys.pop()
            continue
        elif kind is yaml.AliasEvent:
            raise wrong("anchors and aliases are not read here", source, _place(event))
        elif kind is yaml.DocumentStartEvent and root is not None:
            raise wrong("a second document begins here", source, _place(event))
        else:
            continue
        if event.anchor is not None or (event.tag is not None and event.tag != "!"):
            raise wrong("anchors and tags are not read here", source, _place(event))
        if not stack:
            root = node
        else:
            _put(stack[-1], keys, node, source)
        if kind is not yaml.ScalarEvent:
            if len(stack) >= MAX_DEPTH:
                raise wrong(f"nested deeper than {MAX_DEPTH}", source, node.place)
            stack.append(node)
            keys.append(None)
    if root is None:
        raise wrong("the file is empty", source, (1, 1))
    return root


def _put(parent: Node, keys: list[tuple[str, Place] | None], node: Node, source: str) -> None:
    value = parent.value
    if isinstance(value, list):
        value.append(node)
        return
    assert isinstance(value, dict)
    waiting = keys[-1]
    if waiting is None:
        if not isinstance(node.value, str):
            raise wrong("a key is a word", source, node.place)
        if node.value in value:
            raise wrong(f"{node.value!r} is given twice", source, node.place)
        keys[-1] = (node.value, node.place)
        return
    name, place = waiting
    value[name] = node
    parent.keys[name] = place
    keys[-1] = None


def _place(event: Any) -> Place:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1
