"""Retained messages, found by topic or filter (MQTT 5.0 sections 3.3.1.3 and 4.7).

The messages are in a tree. It has a node wherever a topic ends or paths split, and the levels in between belong to the
next node. There are therefore at most two nodes per topic, however many levels it has.

A search may pause for any length of time while messages are added and removed. The search stores one position per node on
its path. It never copies the remaining nodes, and does not keep removed nodes alive. This works for two reasons:

- The children of a node are numbered in the order in which they were added, and a position is such a number.
- A node always represents the path that ends at it. If a path is split, the upper part becomes a new node. If a node
  is left with one child and no message, the child replaces it, and the node keeps a pointer to the child.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, Generic, TypeVar, cast

from hookmq.mqtt.topics import has_wildcard

V = TypeVar("V")

PACE: Final = 64
"""Default number of nodes that a search visits between two possible pauses."""

_DICT_FROM: Final = 5
"""Nodes with at least this many children look them up in a dict. Most have fewer, and search them one by one."""

_CLOSE_UP_FROM: Final = 32
"""Removed children stay in a list until there are this many and they make up at least half of the list."""

_LONG: Final = 7
"""A name counts as one more visited node for every 2 ** 7 characters, because levels are compared one by one."""


class _Node(Generic[V]):
    """A node of the tree, `depth` levels below the root.

    `name` is the path below the parent, with one or more levels, and `first` is its first level. `born` numbers the
    children of one parent in the order in which they were added. `topic` is None if no message is retained here;
    otherwise, the topic has had a message continuously since `since`. A removed node has no message, and `alive` is
    False. A pointer's `parent` is the node it points to, which has the same depth.
    """

    __slots__ = (
        "alive", "born", "children", "depth", "first", "name", "parent", "since", "topic", "value",
    )  # fmt: skip

    def __init__(
        self, first: str, name: str, parent: "_Node[V] | None", depth: int, born: int
    ) -> None:
        self.first = first
        self.name = name
        self.parent = parent
        self.depth = depth
        self.born = born
        self.alive = True
        self.since = 0
        self.topic: str | None = None
        self.value: V | None = None
        self.children: _Children[V] | None = None


class _Children(Generic[V]):
    """The children of a node. `order` lists them by increasing `born`. Removed children stay in the list until it is
    compacted.

    `moves` counts how often positions in the list have changed.
    """

    __slots__ = ("by_name", "gone", "moves", "order")

    def __init__(self) -> None:
        self.order: list[_Node[V]] = []
        self.by_name: dict[str, _Node[V]] | None = None
        self.gone = 0
        self.moves = 0

    def find(self, first: str) -> _Node[V] | None:
        if self.by_name is not None:
            return self.by_name.get(first)
        for node in self.order:
            if node.alive and node.first == first:
                return node
        return None

    def add(self, node: _Node[V]) -> None:
        self.order.append(node)
        if self.by_name is not None:
            self.by_name[node.first] = node
        elif len(self.order) >= _DICT_FROM:
            self.by_name = {child.first: child for child in self.order if child.alive}

    def replace(self, node: _Node[V], other: _Node[V]) -> None:
        """Replace `node` with `other`, whose `born` and `first` are the same."""
        self.order[bisect_left(self.order, node.born, key=_born)] = other
        if self.by_name is not None:
            self.by_name[node.first] = other

    def remove(self, node: _Node[V]) -> bool:
        """Remove `node`. Return True if there are no children left."""
        node.alive = False
        self.gone += 1
        if self.by_name is not None:
            del self.by_name[node.first]
        if self.gone == len(self.order):
            return True
        if self.gone >= _CLOSE_UP_FROM and self.gone * 2 >= len(self.order):
            self.order = [child for child in self.order if child.alive]
            self.gone = 0
            self.moves += 1
        return False

    def only(self) -> _Node[V] | None:
        """Return the only child, or None if there are several."""
        if len(self.order) - self.gone > 1:
            return None
        for node in self.order:
            if node.alive:
                return node
        return None

    def point(self, pointer: _Node[V]) -> None:
        """Replace the children of a removed node with a pointer to the node where searches continue."""
        self.order = [pointer]
        self.by_name = None
        self.gone = 0
        self.moves += 1


class _Position(Generic[V]):
    """A search's position among the children of `node`."""

    __slots__ = ("at", "last", "moves", "node")

    def __init__(self, node: _Node[V]) -> None:
        self.node = node
        self.at = 0
        self.last = 0
        self.moves = 0 if node.children is None else node.children.moves

    def step(self, start: int) -> _Node[V] | None:
        """Return the next child, which may already have been removed. Return None after the last child whose `born` is at
        most `start`.
        """
        children = self.node.children
        if children is None:
            return None
        if self.moves != children.moves:
            self.moves = children.moves
            self.at = bisect_right(children.order, self.last, key=_born)
        if self.at >= len(children.order):
            return None
        child = children.order[self.at]
        if child.born > start:
            return None  # all that follow are newer too
        self.at += 1
        self.last = child.born
        return child


def _born(node: _Node[V]) -> int:
    return node.born


def _target(node: _Node[V]) -> _Node[V]:
    """Return the node or, if it is a pointer, the node that it points to."""
    parent = node.parent
    while parent is not None and parent.depth == node.depth:
        node = parent
        parent = node.parent
    return node


def _levels(node: _Node[V], depth: int) -> list[str]:
    """Return the levels of the node's path that follow the first `depth` levels.

    The parent may be above or below that depth if the tree has changed since the search began.
    """
    names = node.name.split("/")
    above = node.depth - len(names)
    while above > depth:
        parent = node.parent
        assert parent is not None
        node = parent
        more = node.name.split("/")
        above -= len(more)
        names = more + names
    return names[depth - above :] if above < depth else names


def _fits(levels: list[str], node: _Node[V], depth: int) -> bool:
    """Return whether a filter's levels, without ``#``, match the node's path after the first `depth` levels. Only levels
    that exist in both are compared.
    """
    last = min(node.depth, len(levels))
    if last - depth == 1 and node.first is node.name:
        level = levels[depth]
        return level == "+" or level == node.name
    if last > depth:
        names = _levels(node, depth)
        for at in range(depth, last):
            level = levels[at]
            if level != "+" and level != names[at - depth]:
                return False
    return True


class RetainedIndex(Generic[V]):
    """An index with at most one value per topic.

    Topics and filters must be valid, and filters must not contain ``$share/NAME/``. No method blocks or recurses.
    """

    __slots__ = ("_clock", "_nodes", "_root")

    def __init__(self) -> None:
        self._nodes: dict[str, _Node[V]] = {}
        self._root: _Node[V] = _Node("", "", None, 0, 0)
        self._clock = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, topic: object) -> bool:
        return topic in self._nodes

    def get(self, topic: str) -> V | None:
        """Return the value for `topic`, or None."""
        node = self._nodes.get(topic)
        return None if node is None else node.value

    def set(self, topic: str, value: V) -> V | None:
        """Set the value of `topic`. Return the value that it replaces [MQTT-3.3.1-5], or None."""
        node = self._nodes.get(topic)
        if node is not None:
            old = node.value
            node.value = value
            return old
        clock = self._clock = self._clock + 1
        node = self._grow(topic)
        node.topic = topic
        node.value = value
        node.since = clock
        self._nodes[topic] = node
        return None

    def _grow(self, topic: str) -> _Node[V]:
        """Return the node for `topic`. Creates missing nodes. With a million topics, most of the broker's startup time
        is spent here."""
        levels = topic.split("/")
        depth = len(levels)
        node = self._root
        at = 0
        while at < depth:
            first = levels[at]
            children = node.children
            if children is None:
                children = node.children = _Children()
                child = None
            else:
                child = children.find(first)
            if child is None:
                name = first if at + 1 == depth else "/".join(levels[at:])
                child = _Node(first, name, node, depth, self._clock)
                children.add(child)
                return child
            if child.depth > at + 1:
                names = child.name.split("/")
                common = 1
                while (
                    common < len(names)
                    and at + common < depth
                    and names[common] == levels[at + common]
                ):
                    common += 1
                if common < len(names):
                    child = _part(children, child, names, common)
            node = child
            at = node.depth
        return node

    def delete(self, topic: str) -> V | None:
        """Remove and return the value of `topic` [MQTT-3.3.1-6], or None."""
        node = self._nodes.pop(topic, None)
        if node is None:
            return None
        old = node.value
        node.topic = None
        node.value = None
        empty = node
        while empty.topic is None and empty.children is None:
            parent = empty.parent
            if parent is None or parent.children is None:
                break
            if parent.children.remove(empty):
                parent.children = None
            empty = parent
        if empty.topic is None and empty.children is not None and empty.depth:
            only = empty.children.only()
            if only is not None:
                _join(empty, empty.children, only)
        return old

    def match(self, filter: str) -> Iterator[tuple[str, V]]:
        """Yield (topic, value) for each topic that `filter` matches, in any order. The ``$`` rule applies [MQTT-4.7.2-1].

        The index may change between steps. The result contains every topic that has had a value since the call, with its
        current value. It does not contain topics deleted since the call, even if they were set again, and it contains no
        topic twice. One step may skip any number of topics; see `scan`.
        """
        return cast("Iterator[tuple[str, V]]", self._scan(filter, self._clock, 0))

    def scan(self, filter: str, pace: int = PACE) -> Iterator[tuple[str, V] | None]:
        """Iterate like `match`, but also yield None after every `pace` visited nodes, so that the caller can pause.

        A filter such as ``+/x`` may visit a million topics and match none.
        """
        return self._scan(filter, self._clock, pace)

    def _scan(self, filter: str, start: int, pace: int) -> Iterator[tuple[str, V] | None]:
        if not has_wildcard(filter):
            exact = self._nodes.get(filter)
            if exact is not None and exact.since <= start:
                yield filter, cast("V", exact.value)
            return
        levels = filter.split("/")
        deep = levels[-1] == "#"
        if deep:
            levels.pop()
        depth = len(levels)
        root = self._root
        positions: list[_Position[V]] = []
        node: _Node[V] | None = root
        visited = 0
        while node is not None:
            # Go down literal levels, to a match or to a node whose children must all be visited. A node that was removed
            # during a pause has no topic, and no children except perhaps a pointer.
            while node is not None:
                if node.depth >= depth:
                    if node.topic is not None and node.since <= start:
                        yield node.topic, cast("V", node.value)
                    if deep and node.children is not None:
                        positions.append(_Position(node))
                    break
                level = levels[node.depth]
                if level == "+":
                    positions.append(_Position(node))
                    break
                child = None if node.children is None else node.children.find(level)
                if child is not None:
                    child = _target(child)
                    if (child.depth > depth and not deep) or not _fits(levels, child, node.depth):
                        child = None
                node = child
            node = None
            while positions and node is None:
                if visited >= pace > 0:
                    visited = 0
                    yield None
                position = positions[-1]
                child = position.step(start)
                if child is None:
                    positions.pop()
                    continue
                visited += 1 + (len(child.name) >> _LONG)
                if position.node is root and child.first.startswith("$"):  # [MQTT-4.7.2-1]
                    continue
                child = _target(child)
                if (child.depth <= depth or deep) and _fits(levels, child, position.node.depth):
                    node = child


def _part(children: _Children[V], child: _Node[V], names: list[str], common: int) -> _Node[V]:
    """Split the path to `child`, whose levels are `names`, after the first `common` levels. Return the node inserted
    there."""
    parent = child.parent
    assert parent is not None
    name = child.first if common == 1 else "/".join(names[:common])
    upper: _Node[V] = _Node(child.first, name, parent, parent.depth + common, child.born)
    children.replace(child, upper)
    child.parent = upper
    child.first = names[common]
    child.name = child.first if common + 1 == len(names) else "/".join(names[common:])
    below: _Children[V] = _Children()
    below.order.append(child)
    upper.children = below
    return upper


def _join(node: _Node[V], children: _Children[V], only: _Node[V]) -> None:
    """Replace `node`, at which paths no longer split, with its `only` child."""
    parent = node.parent
    assert parent is not None
    assert parent.children is not None
    pointer: _Node[V] = _Node(only.first, only.name, only, only.depth, only.born)
    only.name = f"{node.name}/{only.name}"
    only.first = node.first
    only.parent = parent
    only.born = node.born
    parent.children.replace(node, only)
    node.alive = False
    children.point(pointer)
