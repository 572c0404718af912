"""A trie of rules by the levels of their filters, and the way down it."""

import re
from collections.abc import Mapping
from typing import Final

from hookmq.rules.rule import is_variable

_usable: Final = re.compile(r"[^+#/\0]+").fullmatch


class Node:
    """One level of the rules' filters. `here` holds the rules that end at this node, `rest` those that end with ``#``
    below it, by rank. `least` is the lowest rank here and below, so that a walk passes by what comes too late anyway.

    `merged` are the nodes that this one stands for, where it stands for several (`hookmq.rules.overlaps`): what is below
    them is looked for when `opened` is found False."""

    __slots__ = ("children", "here", "least", "merged", "opened", "plus", "rest", "variables")

    def __init__(self, least: int) -> None:
        self.children: dict[str, Node] | None = None
        self.plus: Node | None = None
        self.variables: dict[str, Node] | None = None
        self.here: list[Entry] | None = None
        self.rest: list[Entry] | None = None
        self.least = least
        self.merged: list[Node] | None = None
        self.opened = True


class Entry:
    """A rule at its node: when it applies and its rank."""

    __slots__ = ("allow", "qos", "rank", "retain")

    def __init__(self, rank: int, allow: bool, qos: int, retain: bool | None) -> None:
        self.rank = rank
        self.allow = allow
        self.qos = qos
        self.retain = retain


NOTHING: Final = Node(1 << 62)
"""The trie of no rules; many small `Rules` share it."""


def plant(root: Node, levels: list[str], entry: Entry) -> None:
    """Put an entry where its filter ends. Entries come in the order of their ranks."""
    node = root
    rest = levels[-1] == "#"
    variable = False
    rank = entry.rank
    node.least = min(node.least, rank)
    for level in levels[:-1] if rest else levels:
        if level == "+":
            if node.plus is None:
                node.plus = Node(rank)
            node = node.plus
        elif is_variable(level):
            variable = True
            if node.variables is None:
                node.variables = {}
            node = node.variables.setdefault(level, Node(rank))
        else:
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = Node(rank)
            node = child
    leaf = node.rest if rest else node.here
    if leaf is None:
        leaf = []
        if rest:
            node.rest = leaf
        else:
            node.here = leaf
    for other in leaf:
        # What comes after a rule without conditions never decides, but for a deny behind a variable: that allow does
        # not apply where the variable has no usable value.
        whole = other.qos == 2 and other.retain is None
        if whole and (not other.allow or entry.allow or not variable):
            return
    leaf.append(entry)


def opened_end(levels: list[str]) -> tuple[list[str], bool]:
    """A filter's levels as containment sees them, and whether it goes on below them (see `hookmq.topics.contains`)."""
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
    """The lowest rank below `best` of an entry whose filter contains `levels` (a topic: matches it), else `best`."""
    dollar = levels[0].startswith("$")
    last = len(levels)
    nodes: list[tuple[Node, bool]] = [(root, False)]
    depth = 0
    while nodes:
        below: list[tuple[Node, bool]] = []
        wild = depth > 0 or not dollar  # [MQTT-4.7.2-1]: no leading wildcard matches "$..."
        for node, deny_only in nodes:
            if node.least >= best:
                continue
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
                    below.append((child, deny_only))
            if node.plus is not None and wild:
                below.append((node.plus, deny_only))
            if node.variables is not None:
                for name, child in node.variables.items():
                    value = value_of(values, name, depth)
                    if value is None:
                        below.append((child, True))
                    elif value == level:
                        below.append((child, deny_only))
        nodes = below
        depth += 1
    return best


def value_of(values: Mapping[str, str], name: str, depth: int) -> str | None:
    """A variable's value, None if it has none that can be one level here."""
    value = values.get(name)
    if value is None or _usable(value) is None or (not depth and value.startswith("$")):
        return None
    return value
