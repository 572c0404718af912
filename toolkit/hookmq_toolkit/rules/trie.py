"""A trie of rules, keyed by the levels of their filters, and the functions that search it."""

import re
from collections.abc import Mapping
from typing import Final

from hookmq_toolkit.rules.rule import is_variable

_usable: Final = re.compile(r"[^+#/\0]+").fullmatch


class Node:
    """One or more filter levels: the level that leads to this node, followed by the levels in `tail`.

    Nodes exist only where filters end or diverge, so each rule needs at most two nodes, no matter how deep its filter
    is.

    `here` holds the rules that end at this node, `rest` the rules that end with ``#`` below it, both by rank. `least`
    is the lowest rank at this node and below, so that a search can skip nodes whose rules cannot decide.

    `merged` lists the nodes that were merged into this one (see `overlaps`). Their children are merged on demand;
    `opened` is False until then.
    """

    __slots__ = (
        "children",
        "here",
        "least",
        "merged",
        "opened",
        "plus",
        "rest",
        "tail",
        "variables",
    )

    def __init__(self, least: int, tail: list[str]) -> None:
        self.tail = tail
        self.children: dict[str, Node] | None = None
        self.plus: Node | None = None
        self.variables: dict[str, Node] | None = None
        self.here: list[Entry] | None = None
        self.rest: list[Entry] | None = None
        self.least = least
        self.merged: list[Node] | None = None
        self.opened = True

    def below(self, level: str) -> "Node | None":
        """Return the child for a filter's level `level`."""
        if level == "+":
            return self.plus
        found = self.variables if is_variable(level) else self.children
        return None if found is None else found.get(level)

    def attach(self, level: str, child: "Node") -> None:
        """Add `child` for `level`."""
        if level == "+":
            self.plus = child
        elif is_variable(level):
            if self.variables is None:
                self.variables = {}
            self.variables[level] = child
        else:
            if self.children is None:
                self.children = {}
            self.children[level] = child

    def lower(self, names: list[str]) -> "Node":
        """Return a copy of this node whose tail is `names`."""
        made = Node(self.least, names)
        made.children = self.children
        made.plus = self.plus
        made.variables = self.variables
        made.here = self.here
        made.rest = self.rest
        return made

    def part(self, common: int) -> None:
        """Keep `common` levels of the tail and move the rest to a new child."""
        names = self.tail
        lower = self.lower(names[common + 1 :])
        self.children = self.variables = self.plus = self.here = self.rest = None
        self.tail = names[:common]
        self.attach(names[common], lower)


class Entry:
    """A rule's conditions and rank, as stored at its node."""

    __slots__ = ("allow", "qos", "rank", "retain")

    def __init__(self, rank: int, allow: bool, qos: int, retain: bool | None) -> None:
        self.rank = rank
        self.allow = allow
        self.qos = qos
        self.retain = retain


NOTHING: Final = Node(1 << 62, [])
"""An empty trie, shared by all `Rules` that need one."""


def plant(root: Node, levels: list[str], entry: Entry) -> None:
    """Add an entry at the end of its filter. Entries must be added in rank order."""
    node = root
    rest = levels[-1] == "#"
    rank = entry.rank
    node.least = min(node.least, rank)
    names = levels[:-1] if rest else levels
    variable = any(is_variable(name) for name in names)
    depth = 0
    while depth < len(names):
        child = node.below(names[depth])
        if child is None:
            child = Node(rank, names[depth + 1 :])
            node.attach(names[depth], child)
            node = child
            break
        node = child
        depth += 1
        for common, name in enumerate(node.tail):
            if depth == len(names) or names[depth] != name:
                node.part(common)
                break
            depth += 1
    leaf = node.rest if rest else node.here
    if leaf is None:
        leaf = []
        if rest:
            node.rest = leaf
        else:
            node.here = leaf
    for other in leaf:
        # A rule that follows an unconditional rule never decides. The exception is a deny with a variable: the
        # preceding allow does not apply if the variable has no usable value.
        whole = other.qos == 2 and other.retain is None
        if whole and (not other.allow or entry.allow or not variable):
            return
    leaf.append(entry)


def opened_end(levels: list[str]) -> tuple[list[str], bool]:
    """Return the levels of a filter that are compared for containment, and whether the filter also covers all levels
    below.
    """
    if levels[-1] != "#":
        return levels, False
    have = levels[:-1]
    if not have or have == [""]:
        have.append("+")
    return have, True


def _pick(leaf: list[Entry], qos: int, retain: bool, deny_only: bool, best: int) -> int:
    for entry in leaf:
        if entry.rank >= best:
            return best
        if (
            qos <= entry.qos
            and (entry.retain is None or entry.retain == retain)
            and not (deny_only and entry.allow)
        ):
            return entry.rank
    return best


def walk(
    root: Node,
    levels: list[str],
    open_end: bool,
    qos: int,
    retain: bool,
    values: Mapping[str, str],
    best: int,
) -> int:
    """Return the lowest rank below `best` of any entry whose filter contains or matches `levels`. Return `best` if there
    is no such entry.
    """
    dollar = levels[0].startswith("$")
    last = len(levels)
    nodes: list[tuple[Node, bool, int]] = [(root, False, 0)]
    while nodes:
        node, deny_only, depth = nodes.pop()
        if node.least >= best:
            continue
        if node.tail:
            along = _along(node.tail, levels, depth, values)
            if along == _APART:
                continue
            deny_only = deny_only or along == _UNKNOWN
            depth += len(node.tail)
        wild = depth > 0 or not dollar  # [MQTT-4.7.2-1]: no leading wildcard matches "$..."
        if node.rest is not None and wild:
            best = _pick(node.rest, qos, retain, deny_only, best)
        if depth == last:
            if node.here is not None and not open_end:
                best = _pick(node.here, qos, retain, deny_only, best)
            continue
        level = levels[depth]
        if node.children is not None:
            child = node.children.get(level)
            if child is not None:
                nodes.append((child, deny_only, depth + 1))
        if node.plus is not None and wild:
            nodes.append((node.plus, deny_only, depth + 1))
        if node.variables is not None:
            for name, child in node.variables.items():
                value = value_of(values, name, depth)
                if value is None:
                    nodes.append((child, True, depth + 1))
                elif value == level:
                    nodes.append((child, deny_only, depth + 1))
    return best


_APART: Final = 0
_ALIKE: Final = 1
_UNKNOWN: Final = 2


def _along(tail: list[str], levels: list[str], depth: int, values: Mapping[str, str]) -> int:
    """Compare `tail` with `levels` from `depth` on. Return `_UNKNOWN` if a variable in `tail` has no value."""
    if depth + len(tail) > len(levels):
        return _APART
    found = _ALIKE
    for name in tail:
        if name != "+":
            if is_variable(name):
                value = value_of(values, name, depth)
                if value is None:
                    found = _UNKNOWN
                elif value != levels[depth]:
                    return _APART
            elif name != levels[depth]:
                return _APART
        depth += 1
    return found


def value_of(values: Mapping[str, str], name: str, depth: int) -> str | None:
    """Return a variable's value. Return None if it has no value, or a value that cannot be a level at `depth`."""
    value = values.get(name)
    if value is None or _usable(value) is None or (not depth and value.startswith("$")):
        return None
    return value
