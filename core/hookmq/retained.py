"""Retained messages by topic, found by topic or by filter (MQTT 5.0 sections 3.3.1.3 and 4.7).

A tree with one node per level. A search may stand still anywhere, for as long as it likes, while messages come and go:
it keeps one place per level, not copies of what it has still to visit, and does not keep alive what is deleted meanwhile.
That works because a node's children are listed in the order they came and are numbered: a place is a number.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, Generic, TypeVar, cast

from hookmq.topics import has_wildcard

V = TypeVar("V")

_DICT_FROM: Final = 5
"""So many children get a dict by name; fewer are looked through one by one: most nodes have one child."""

_CLOSE_UP_FROM: Final = 32
"""Removed children are cleared out of a list when there are so many of them and they are half of it."""


class _Node(Generic[V]):
    """One level of a topic, `born` when the index's clock stood at that number.

    `topic` is None where nothing is retained, else there has been a value without a break since `since`. A node with
    neither a value nor children is removed: it has `alive` False, and a search that holds it finds nothing in it.
    """

    __slots__ = ("alive", "born", "children", "name", "parent", "since", "topic", "value")

    def __init__(self, name: str, parent: "_Node[V] | None", born: int) -> None:
        self.name = name
        self.parent = parent
        self.born = born
        self.alive = True
        self.since = 0
        self.topic: str | None = None
        self.value: V | None = None
        self.children: _Children[V] | None = None


class _Children(Generic[V]):
    """The children of a node. `order` lists them by rising `born`, removed ones included until it is closed up;
    `moves` counts how often that happened, since places in the list are then no longer what they were."""

    __slots__ = ("by_name", "gone", "moves", "order")

    def __init__(self) -> None:
        self.order: list[_Node[V]] = []
        self.by_name: dict[str, _Node[V]] | None = None
        self.gone = 0
        self.moves = 0

    def find(self, name: str) -> _Node[V] | None:
        if self.by_name is not None:
            return self.by_name.get(name)
        for node in self.order:
            if node.alive and node.name == name:
                return node
        return None

    def add(self, node: _Node[V]) -> None:
        self.order.append(node)
        if self.by_name is not None:
            self.by_name[node.name] = node
        elif len(self.order) >= _DICT_FROM:
            self.by_name = {child.name: child for child in self.order if child.alive}

    def remove(self, node: _Node[V]) -> bool:
        """Take `node` out; True if none is left."""
        node.alive = False
        self.gone += 1
        if self.by_name is not None:
            del self.by_name[node.name]
        if self.gone == len(self.order):
            return True
        if self.gone >= _CLOSE_UP_FROM and self.gone * 2 >= len(self.order):
            self.order = [child for child in self.order if child.alive]
            self.gone = 0
            self.moves += 1
        return False


class _Place(Generic[V]):
    """How far a search has come among the children of `node`; `done` levels of the filter fit each of them."""

    __slots__ = ("at", "done", "last", "moves", "node")

    def __init__(self, node: _Node[V], done: int) -> None:
        self.node = node
        self.done = done
        self.at = 0
        self.last = 0
        self.moves = 0 if node.children is None else node.children.moves

    def step(self, start: int) -> _Node[V] | None:
        """The next child, removed or not; None after the last that was born by `start`."""
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
            return None  # so are all that follow
        self.at += 1
        self.last = child.born
        return child


def _born(node: _Node[V]) -> int:
    return node.born


class RetainedIndex(Generic[V]):
    """At most one value per topic. Topics and filters are valid, filters bear no ``$share/NAME/``; values are never
    looked into. Nothing here blocks, awaits or recurses."""

    __slots__ = ("_clock", "_nodes", "_root")

    def __init__(self) -> None:
        self._nodes: dict[str, _Node[V]] = {}
        self._root: _Node[V] = _Node("", None, 0)
        self._clock = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, topic: object) -> bool:
        return topic in self._nodes

    def get(self, topic: str) -> V | None:
        """The value of `topic`, None if there is none."""
        node = self._nodes.get(topic)
        return None if node is None else node.value

    def set(self, topic: str, value: V) -> V | None:
        """Make `value` the one of `topic`; return the one it replaces [MQTT-3.3.1-5], None if there was none."""
        node = self._nodes.get(topic)
        if node is not None:
            old = node.value
            node.value = value
            return old
        clock = self._clock = self._clock + 1
        node = self._root
        for name in topic.split("/"):
            children = node.children
            # As `find` and `add`: a start may bring a million topics, and this is most of what each costs.
            if children is None:
                children = node.children = _Children()
                child = _Node(name, node, clock)
                children.order.append(child)
                node = child
                continue
            by_name = children.by_name
            found = children.find(name) if by_name is None else by_name.get(name)
            if found is None:
                found = _Node(name, node, clock)
                children.add(found)
            node = found
        node.topic = topic
        node.value = value
        node.since = self._clock
        self._nodes[topic] = node
        return None

    def delete(self, topic: str) -> V | None:
        """Remove and return the value of `topic` [MQTT-3.3.1-6], None if there was none."""
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
        return old

    def match(self, filter: str) -> Iterator[tuple[str, V]]:
        """The (topic, value) pairs that `filter` matches, in no order that may be relied on; the ``$`` rule holds
        [MQTT-4.7.2-1].

        The index may change between steps. Handed out is every topic that had a value when this was called and has had
        one ever since, with the value of the moment; none that was deleted, even if it was set again; none twice. One
        step may pass over any number of topics that do not match: see `scan`.
        """
        return cast("Iterator[tuple[str, V]]", self._scan(filter, self._clock, 0))

    def scan(self, filter: str, pace: int = 1024) -> Iterator[tuple[str, V] | None]:
        """As `match`, but with a None after every `pace` nodes visited, so that the caller can turn to something else:
        ``+/x`` over a million topics that end otherwise takes long and finds nothing."""
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
        places: list[_Place[V]] = []
        node: _Node[V] | None = root
        done = 0
        visited = 0
        while node is not None:
            # Down along literal levels, to a match or to a node all of whose children are to be visited. A node removed
            # while this stood still has neither topic nor children.
            while node is not None:
                if done == depth:
                    if node.topic is not None and node.since <= start:
                        yield node.topic, cast("V", node.value)
                    if deep and node.children is not None:
                        places.append(_Place(node, depth))
                    break
                level = levels[done]
                done += 1
                if level == "+":
                    places.append(_Place(node, done))
                    break
                node = None if node.children is None else node.children.find(level)
            node = None
            while places and node is None:
                place = places[-1]
                child = place.step(start)
                if child is None:
                    places.pop()
                    continue
                visited += 1
                if visited == pace:
                    visited = 0
                    yield None
                if place.node is root and child.name.startswith("$"):  # [MQTT-4.7.2-1]
                    continue
                node = child
                done = place.done
