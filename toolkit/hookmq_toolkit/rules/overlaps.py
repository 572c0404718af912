"""Find the first rule of a trie that overlaps a filter."""

from collections.abc import Mapping

from hookmq_toolkit.rules.rule import is_variable
from hookmq_toolkit.rules.trie import Entry, Node, value_of


class Overlaps:
    """Finds rules whose filter overlaps a given filter. The rules have no conditions, so the first
    rule at a leaf decides.

    A ``+`` in the given filter overlaps every child of a node. Visiting 10,000 children would take milliseconds for
    every such filter that a client sends. A node's children are therefore merged into one node, as deep as needed, and
    the merged node is cached. `_room` limits the size of the cache, which is emptied when it is full.
    """

    __slots__ = ("_any", "_limit", "_room", "_whole", "root")

    def __init__(self, root: Node, count: int) -> None:
        self.root = root
        self._any: dict[Node, Node | None] = {}
        self._limit = 4096 + 16 * count
        self._room = self._limit
        self._whole: int = _least(root)

    def forget(self) -> None:
        """Empty the cache of merged nodes."""
        self._any.clear()
        self._room = self._limit

    def first(self, levels: list[str], open_end: bool, values: Mapping[str, str], best: int) -> int:
        """Return the lowest rank below `best` of any rule that overlaps `levels`, or `best` if there is no such rule."""
        dollar = levels[0].startswith("$")
        last = len(levels) - 1 if open_end else len(levels)
        nodes = [(self.root, 0)]  # node, and how many levels of its tail were compared
        depth = 0
        while nodes:
            below: list[tuple[Node, int]] = []
            wild = depth > 0 or not dollar  # [MQTT-4.7.2-1]: no leading wildcard overlaps "$..."
            for node, at in nodes:
                if node.least >= best:
                    continue
                ended = at == len(node.tail)
                if ended and node.rest is not None and wild:
                    best = min(best, node.rest[0].rank)
                if depth == last:
                    if open_end:
                        best = min(best, node.least if depth else self._whole)
                    elif ended and node.here is not None:
                        best = min(best, node.here[0].rank)
                    continue
                level = levels[depth]
                if not ended:
                    if level == "+" or _overlap(node.tail[at], level, values, depth):
                        below.append((node, at + 1))
                    continue
                if level == "+":
                    child = self._every(node)
                    if child is not None:
                        below.append((child, 0))
                    continue
                if not node.opened:
                    self._open(node)
                if node.children is not None:
                    child = node.children.get(level)
                    if child is not None:
                        below.append((child, 0))
                if node.plus is not None and wild:
                    below.append((node.plus, 0))
                if node.variables is not None:
                    for name, child in node.variables.items():
                        value = value_of(values, name, depth)
                        if value is None or value == level:
                            below.append((child, 0))
            nodes = below
            depth += 1
        return best

    def _every(self, node: Node) -> Node | None:
        """Return the children of `node` merged into one node, or None if it has no children."""
        if node in self._any:
            return self._any[node]
        if not node.opened:
            self._open(node)
        parts = []
        for name, child in (node.children or {}).items():
            if node is not self.root or not name.startswith("$"):  # [MQTT-4.7.2-1]
                parts.append(child)
        if node.plus is not None:
            parts.append(node.plus)
        parts.extend((node.variables or {}).values())
        if self._room < 0:
            self.forget()
        found = self._any[node] = self._merge(parts) if parts else None
        return found

    def _merge(self, parts: list[Node]) -> Node:
        if len(parts) == 1:
            return parts[0]
        made = Node(min([part.least for part in parts]), [])
        made.opened = False
        made.merged = []
        here: list[Entry] | None = None
        rest: list[Entry] | None = None
        for part in parts:
            # Keep only nodes of the original trie, so that `_open` need not open merged nodes first.
            if part.merged is None:
                made.merged.append(part)
            else:
                made.merged.extend(part.merged)
            if part.tail:
                continue
            if part.here is not None and (here is None or part.here[0].rank < here[0].rank):
                here = part.here
            if part.rest is not None and (rest is None or part.rest[0].rank < rest[0].rank):
                rest = part.rest
        made.here = here
        made.rest = rest
        self._room -= len(made.merged)
        return made

    def _open(self, node: Node) -> None:
        """Merge, by level name, the children of all nodes that were merged into `node`."""
        node.opened = True
        children: dict[str, list[Node]] = {}
        variables: dict[str, list[Node]] = {}
        plus: list[Node] = []
        for one in node.merged or ():
            if one.tail:
                name = one.tail[0]
                lower = one.lower(one.tail[1:])
                self._room -= 1 + len(lower.tail) // 16
                if name == "+":
                    plus.append(lower)
                elif is_variable(name):
                    variables.setdefault(name, []).append(lower)
                else:
                    children.setdefault(name, []).append(lower)
                continue
            for name, child in (one.children or {}).items():
                children.setdefault(name, []).append(child)
            for name, child in (one.variables or {}).items():
                variables.setdefault(name, []).append(child)
            if one.plus is not None:
                plus.append(one.plus)
        if children:
            node.children = {name: self._merge(parts) for name, parts in children.items()}
        if variables:
            node.variables = {name: self._merge(parts) for name, parts in variables.items()}
        if plus:
            node.plus = self._merge(plus)
        self._room -= len(children)


def _overlap(name: str, level: str, values: Mapping[str, str], depth: int) -> bool:
    """Return whether a rule's level, other than its first, overlaps a level that is not a wildcard."""
    if name == "+":
        return True
    if is_variable(name):
        value = value_of(values, name, depth)
        return value is None or value == level
    return name == level


def _least(root: Node) -> int:
    """Return the lowest rank of a rule that ``#`` overlaps."""
    least = 1 << 62
    if root.rest is not None:
        least = root.rest[0].rank
    for name, child in (root.children or {}).items():
        if not name.startswith("$"):  # [MQTT-4.7.2-1]
            least = min(least, child.least)
    if root.plus is not None:
        least = min(least, root.plus.least)
    for child in (root.variables or {}).values():
        least = min(least, child.least)
    return least
