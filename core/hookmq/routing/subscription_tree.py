"""Subscriptions by filter, and a cache of the routes compiled from them.

Filters without wildcards are in one dict by topic. The others are in a trie, so a lookup visits only nodes that can
match. The trie has a node wherever a filter ends or paths split: at most two per filter, however many levels it has. The
tree's owner compiles a route from a topic's matches. Routes are cached until a subscription that could affect the topic
changes.

Connections also keep the routes of topics that they publish to. They must check `valid` before each use: the tree sets
it to False when it drops the route.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import MAX_LEVELS, has_wildcard, matches


class Route(Protocol):
    """A cached route. `valid` starts as True; the tree sets it to False at most once."""

    valid: bool


S = TypeVar("S")
V = TypeVar("V")
R = TypeVar("R", bound=Route)

LONG_TOPIC: Final = 1024
"""Topics with more characters are not cached. A cache limits only the number of its entries, and a topic may have
65,535 bytes."""

FEW: Final = 256
"""A changed filter is compared with each cached route if there are at most this many. If there are more, all routes are
dropped.

Each route is dropped once, so the amortized cost of a wildcard subscription is constant.
"""


class _Node(Generic[S, V]):
    """A node of the trie for filters with wildcards. It represents one level, which is its key in the parent, followed by
    the levels in `tail`.

    `here` is the leaf for the filter that ends at this node. `rest` is the leaf for the filter that ends with ``#``
    directly below it. A leaf is one entry, or a dict of entries by subscriber: most filters have one subscriber, and a
    dict takes four times the space. The child for ``+`` is `plus`, which is not in `children`.
    """

    __slots__ = ("children", "here", "plus", "rest", "tail")

    def __init__(self, tail: str = "") -> None:
        self.tail = tail
        self.children: dict[str, _Node[S, V]] | None = None
        self.plus: _Node[S, V] | None = None
        self.here: tuple[S, str, V] | dict[S, tuple[S, str, V]] | None = None
        self.rest: tuple[S, str, V] | dict[S, tuple[S, str, V]] | None = None

    def below(self, level: str) -> "_Node[S, V] | None":
        """Return the child for a filter's `level`."""
        if level == "+":
            return self.plus
        return None if self.children is None else self.children.get(level)

    def attach(self, level: str, child: "_Node[S, V]") -> None:
        """Make `child` the child for `level`."""
        if level == "+":
            self.plus = child
        elif self.children is None:
            self.children = {level: child}
        else:
            self.children[level] = child

    def detach(self, level: str) -> None:
        """Remove the child for `level`."""
        if level == "+":
            self.plus = None
        elif self.children is not None:
            del self.children[level]
            if not self.children:
                self.children = None

    def part(self, names: list[str], common: int) -> None:
        """Split the tail, whose levels are `names`, after the first `common` levels. Move the levels after that to a new
        child.
        """
        lower: _Node[S, V] = _Node("".join([f"/{name}" for name in names[common + 1 :]]))
        lower.children, self.children = self.children, None
        lower.plus, self.plus = self.plus, None
        lower.here, self.here = self.here, None
        lower.rest, self.rest = self.rest, None
        self.tail = "/".join(names[:common])
        self.attach(names[common], lower)

    def join(self) -> None:
        """Merge this node with its only child, unless there are several children or a filter ends here."""
        if self.here is not None or self.rest is not None:
            return
        level = "+"
        child = self.plus
        if self.children is not None:
            if child is not None or len(self.children) > 1:
                return
            level, child = next(iter(self.children.items()))
        if child is not None:
            self.tail += f"/{level}{child.tail}"
            self.children = child.children
            self.plus = child.plus
            self.here = child.here
            self.rest = child.rest


class SubscriptionTree(Generic[S, V, R]):
    """Subscriptions of subscribers `S` with values `V`, and routes `R` compiled from them.

    Filters and topics must be valid and without ``$share/NAME/``. No method blocks or recurses. `compile` receives a
    topic and its matches, returns a new route, and must not call the tree. `cache_size` limits the cached routes; 0
    disables the cache. `max_levels` limits the slashes in a filter.
    """

    __slots__ = (
        "_cache_size", "_compile", "_count", "_dollar", "_exact", "_long", "_long_topic", "_max_levels",
        "_plain", "_plain_count", "_root", "_routes", "evicted", "hits", "invalidated", "misses",
    )  # fmt: skip

    def __init__(
        self,
        compile: Callable[[str, list[tuple[S, str, V]]], R],
        cache_size: int = 65_536,
        max_levels: int = MAX_LEVELS,
    ) -> None:
        self._compile = compile
        self._cache_size = cache_size
        self._max_levels = max_levels
        self._exact: dict[str, tuple[S, str, V] | dict[S, tuple[S, str, V]]] = {}
        self._root: _Node[S, V] = _Node()
        self._count = 0
        self._routes: dict[str, R] = {}
        # The cached topics by first level. Those that start with "$" are separate: leading wildcards never match them.
        self._plain: dict[str, set[str]] = {}
        self._plain_count = 0
        self._dollar: dict[str, set[str]] = {}
        # The newest topic above `LONG_TOPIC` and its route, until any filter changes. A client can repeat such a topic
        # with an alias of a few bytes.
        self._long_topic = ""
        self._long: R | None = None
        self.hits = 0
        self.misses = 0
        self.invalidated = 0
        self.evicted = 0

    def __len__(self) -> int:
        """Return the number of subscriptions, which are pairs of filter and subscriber."""
        return self._count

    # -- subscriptions

    def subscribe(self, filter: str, subscriber: S, value: V) -> V | None:
        """Set the value of (`filter`, `subscriber`). Return the value that it replaces [MQTT-3.8.4-3], or None.

        Raises ProtocolError with TOPIC_FILTER_INVALID if the filter has more than `max_levels` slashes.
        """
        if filter.count("/") > self._max_levels:
            raise ProtocolError(
                ReasonCode.TOPIC_FILTER_INVALID,
                f"topic filter has more than {self._max_levels} slashes",
            )
        entry = (subscriber, filter, value)
        old: tuple[S, str, V] | None
        if not has_wildcard(filter):
            leaf = self._exact.get(filter)
            if leaf is None:  # the usual case at a start
                self._exact[filter] = entry
                self.invalidate(filter)
                self._count += 1
                return None
            old = _find(leaf, subscriber)
            self._exact[filter] = _put(leaf, entry)
        else:
            node, rest = self._grow(filter)
            if rest:
                old = _find(node.rest, subscriber)
                node.rest = _put(node.rest, entry)
            else:
                old = _find(node.here, subscriber)
                node.here = _put(node.here, entry)
        self.invalidate(filter)
        if old is None:
            self._count += 1
            return None
        return old[2]

    def unsubscribe(self, filter: str, subscriber: S) -> V | None:
        """Remove (`filter`, `subscriber`) and return its value, or None. Filters are compared as text
        [MQTT-3.10.4-1]."""
        old: tuple[S, str, V] | None
        if not has_wildcard(filter):
            leaf = self._exact.get(filter)
            old = _find(leaf, subscriber)
            if leaf is None or old is None:
                return None
            left = _without(leaf, subscriber)
            if left is None:
                del self._exact[filter]
            else:
                self._exact[filter] = left
        else:
            old = self._remove(filter, subscriber)
            if old is None:
                return None
        self._count -= 1
        self.invalidate(filter)
        return old[2]

    def _grow(self, filter: str) -> tuple[_Node[S, V], bool]:
        """Return the node where a wildcard filter ends, and whether it ends with ``#``. Creates missing nodes."""
        levels = filter.split("/")
        rest = levels[-1] == "#"
        if rest:
            levels.pop()
        node = self._root
        at = 0
        while at < len(levels):
            level = levels[at]
            at += 1
            child = node.below(level)
            if child is None:
                child = _Node("".join([f"/{below}" for below in levels[at:]]))
                node.attach(level, child)
                return child, rest
            if child.tail:
                names = child.tail.split("/")
                common = 1
                while common < len(names) and at < len(levels) and names[common] == levels[at]:
                    common += 1
                    at += 1
                if common < len(names):
                    child.part(names, common)
            node = child
        return node, rest

    def _remove(self, filter: str, subscriber: S) -> tuple[S, str, V] | None:
        """Remove an entry from the trie, and the nodes that are no longer needed."""
        levels = filter.split("/")
        rest = levels[-1] == "#"
        if rest:
            levels.pop()
        node = parent = self._root
        at = found = 0
        while at < len(levels):
            child = node.below(levels[at])
            if child is None:
                return None
            parent, node = node, child
            found = at
            at += 1
            if child.tail:
                names = child.tail.split("/")
                if levels[at : at + len(names) - 1] != names[1:]:
                    return None
                at += len(names) - 1
        leaf = node.rest if rest else node.here
        old = _find(leaf, subscriber)
        if leaf is None or old is None:
            return None
        if rest:
            node.rest = _without(leaf, subscriber)
        else:
            node.here = _without(leaf, subscriber)
        root = self._root
        if node is root or node.here is not None or node.rest is not None:
            return old
        if node.plus is None and node.children is None:
            parent.detach(levels[found])
            node = parent
        if node is not root:
            node.join()
        return old

    # -- matching

    def match(self, topic: str) -> list[tuple[S, str, V]]:
        """Return (subscriber, filter, value) for every filter that matches `topic`, in any order.

        A subscriber with overlapping filters occurs once for each.
        """
        found: list[tuple[S, str, V]] = []
        leaf = self._exact.get(topic)
        if leaf is not None:
            _gather(leaf, found)
        levels = topic.split("/")
        last = len(levels)
        node: _Node[S, V] | None = self._root
        at = 0  # levels passed on the way to the node, without its tail
        # If a topic matches both a name and "+", the latter waits here.
        nodes: list[_Node[S, V]] = []
        places: list[int] = []
        if topic[:1] == "$":  # [MQTT-4.7.2-1] [MQTT311-4.7.2-1]
            node = self._root.below(levels[0])
            at = 1
        while True:
            while node is not None:
                tail = node.tail
                if tail:
                    if at < last and tail == "/" + levels[at]:
                        at += 1  # nearly every tail is one level
                    else:
                        at = _along(tail, levels, at)
                        if at < 0:
                            break
                if node.rest is not None:  # "sport/#" matches "sport" too
                    _gather(node.rest, found)
                if at == last:
                    if node.here is not None:
                        _gather(node.here, found)
                    break
                plus = node.plus
                children = node.children
                if children is None:
                    node = plus
                    at += 1
                else:
                    node = children.get(levels[at])
                    at += 1
                    if plus is not None:
                        if node is None:
                            node = plus
                        else:
                            nodes.append(plus)
                            places.append(at)
            if not nodes:
                return found
            node = nodes.pop()
            at = places.pop()

    def lookup(self, topic: str) -> R:
        """Return the cached route for `topic`, or a new route from `compile` [MQTT-3.3.2-3], [MQTT311-3.3.2-3].

        Exceptions raised by `compile` propagate.
        """
        route = self._routes.get(topic)
        if route is not None:
            self.hits += 1
            return route
        if self._long is not None and topic == self._long_topic:
            self.hits += 1
            return self._long
        self.misses += 1
        route = self._compile(topic, self.match(topic))
        if self._cache_size <= 0:
            route.valid = False  # not cached, so nothing would ever clear it
            return route
        if len(topic) > LONG_TOPIC:
            route.valid = False  # only the next lookup may use it
            self._long_topic = topic
            self._long = route
            return route
        if len(self._routes) >= self._cache_size:
            self._evict()
        self._routes[topic] = route
        first = topic.partition("/")[0]
        parts = self._plain
        if topic.startswith("$"):
            parts = self._dollar
        else:
            self._plain_count += 1
        part = parts.get(first)
        if part is None:
            parts[first] = {topic}
        else:
            part.add(topic)
        return route

    # -- the cache

    def invalidate(self, filter: str) -> None:
        """Drop every cached route that `filter` could match, and possibly more: see `FEW`."""
        self._forget_long()
        if not self._routes:
            return
        if not has_wildcard(filter):
            if filter in self._routes:
                self._drop(filter)
                self.invalidated += 1
            return
        first = filter.partition("/")[0]
        doomed: list[str] = []
        if first != "+" and first != "#":
            part = (self._dollar if filter.startswith("$") else self._plain).get(first)
            if part is None:
                return
            doomed = list(part) if len(part) > FEW else _matching(filter, part)
        elif self._plain_count > FEW:
            for part in self._plain.values():
                doomed.extend(part)
        else:
            for part in self._plain.values():
                doomed.extend(_matching(filter, part))
        for topic in doomed:
            self._drop(topic)
        self.invalidated += len(doomed)

    def clear_cache(self) -> None:
        """Drop every cached route."""
        self._forget_long()
        self.invalidated += len(self._routes)
        for route in self._routes.values():
            route.valid = False
        self._routes.clear()
        self._plain.clear()
        self._plain_count = 0
        self._dollar.clear()

    def _forget_long(self) -> None:
        if self._long is not None:
            self._long = None
            self._long_topic = ""

    def _evict(self) -> None:
        """Drop the oldest 64th of the cached routes.

        Finding a dict's first key means skipping deleted ones, so dropping routes one at a time would be slow.
        """
        oldest = list(islice(self._routes, max(1, self._cache_size // 64)))
        for topic in oldest:
            self._drop(topic)
        self.evicted += len(oldest)

    def _drop(self, topic: str) -> None:
        self._routes.pop(topic).valid = False
        first = topic.partition("/")[0]
        parts = self._plain
        if topic.startswith("$"):
            parts = self._dollar
        else:
            self._plain_count -= 1
        part = parts[first]
        part.discard(topic)
        if not part:
            del parts[first]


def _along(tail: str, levels: list[str], at: int) -> int:
    """Compare `tail` with a topic's `levels` from position `at` on. Return the position after the
    match, or -1 if they differ.
    """
    end = at + tail.count("/")
    if end > len(levels):
        return -1
    passed = levels[at:end]
    if "+" not in tail:
        return end if "/".join(passed) == tail[1:] else -1
    for name, level in zip(tail[1:].split("/"), passed, strict=True):
        if name != "+" and name != level:
            return -1
    return end


def _matching(filter: str, topics: set[str]) -> list[str]:
    """Return the `topics` that a wildcard `filter` matches.

    Most topics are ruled out by their prefix. For so few topics, compiling the filter would take longer than comparing
    them.
    """
    plus = filter.find("+")
    prefix = filter[:plus] if plus >= 0 else filter[: max(0, len(filter) - 2)]
    return [topic for topic in topics if topic.startswith(prefix) and matches(filter, topic)]


# A leaf is None, one entry, or a dict of two or more entries by subscriber.


def _find(
    leaf: tuple[S, str, V] | dict[S, tuple[S, str, V]] | None, subscriber: S
) -> tuple[S, str, V] | None:
    if isinstance(leaf, dict):
        return leaf.get(subscriber)
    if leaf is not None and leaf[0] == subscriber:
        return leaf
    return None


def _put(
    leaf: tuple[S, str, V] | dict[S, tuple[S, str, V]] | None, entry: tuple[S, str, V]
) -> tuple[S, str, V] | dict[S, tuple[S, str, V]]:
    if isinstance(leaf, dict):
        leaf[entry[0]] = entry
        return leaf
    if leaf is None or leaf[0] == entry[0]:
        return entry
    return {leaf[0]: leaf, entry[0]: entry}


def _without(
    leaf: tuple[S, str, V] | dict[S, tuple[S, str, V]], subscriber: S
) -> tuple[S, str, V] | dict[S, tuple[S, str, V]] | None:
    """Return the leaf without the subscriber's entry."""
    if not isinstance(leaf, dict):
        return None
    del leaf[subscriber]
    if len(leaf) > 1:
        return leaf
    for entry in leaf.values():
        return entry
    return None


def _gather(
    leaf: tuple[S, str, V] | dict[S, tuple[S, str, V]], found: list[tuple[S, str, V]]
) -> None:
    if isinstance(leaf, dict):
        found.extend(leaf.values())
    else:
        found.append(leaf)
