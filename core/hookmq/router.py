"""Who gets a message: subscriptions by topic filter, and a cache of the routes compiled from them.

Filters without wildcards live in one dict by topic. The others live in a trie with one node per level, so that a match
visits what could match and nothing else, however many subscriptions there are. What a topic's matches amount to is
compiled once by the owner and cached until a subscription that could concern the topic changes.

Others may keep a route outside the cache (a connection remembers the routes of the topics it publishes to): they must
look at `Route.valid` before each use. The router clears it whenever it drops the route, for whatever reason.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from hookmq.errors import ProtocolError
from hookmq.reason import ReasonCode
from hookmq.topics import MAX_LEVELS, has_wildcard, matches


class Route(Protocol):
    """What the router caches for a topic. `valid` starts true and is cleared, once, by the router."""

    valid: bool


S = TypeVar("S")
V = TypeVar("V")
R = TypeVar("R", bound=Route)

LONG_TOPIC: Final = 1024
"""Characters of a topic above which nothing is remembered about it: caches are bounded by entries, and a topic may have
65,535 bytes."""

FEW: Final = 256
"""Up to so many cached routes are matched one by one against a changed filter; more are dropped unseen. Each route is
dropped once, so a wildcard subscription costs constant time, amortised, whatever is cached."""


class _Node(Generic[S, V]):
    """One level of the filters that hold a wildcard.

    `here` is the leaf of the filter that ends at this node, `rest` that of the filter that ends with ``#`` below it. A
    leaf is one entry, or a dict of entries by subscriber once there are two: most filters have one subscriber, and a
    dict takes four times the space of what it would hold. `children` has no ``+``: that child is `plus`.
    """

    __slots__ = ("children", "here", "plus", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node[S, V]] | None = None
        self.plus: _Node[S, V] | None = None
        self.here: tuple[S, str, V] | dict[S, tuple[S, str, V]] | None = None
        self.rest: tuple[S, str, V] | dict[S, tuple[S, str, V]] | None = None


class Router(Generic[S, V, R]):
    """Subscriptions of subscribers `S` with values `V`, and routes `R` compiled from them.

    Filters and topics are valid and bear no ``$share/NAME/``. Nothing here blocks, awaits or recurses.

    `compile` gets a topic and its matches and returns a new route each time; it must not call the router. `cache_size`
    bounds the routes held; 0 holds none. `max_levels` is the deepest filter accepted.
    """

    __slots__ = (
        "_cache_size",
        "_compile",
        "_count",
        "_dollar",
        "_exact",
        "_max_levels",
        "_plain",
        "_plain_count",
        "_root",
        "_routes",
        "evicted",
        "hits",
        "invalidated",
        "misses",
    )

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
        # The cached topics by first level, those that begin with "$" apart: no wildcard first level concerns them.
        self._plain: dict[str, set[str]] = {}
        self._plain_count = 0
        self._dollar: dict[str, set[str]] = {}
        self.hits = 0
        self.misses = 0
        self.invalidated = 0
        self.evicted = 0

    def __len__(self) -> int:
        """How many subscriptions are held: pairs of filter and subscriber."""
        return self._count

    # -- subscriptions

    def subscribe(self, filter: str, subscriber: S, value: V) -> V | None:
        """Hold `value` for (`filter`, `subscriber`); return the value it replaces [MQTT-3.8.4-3], else None.

        Raises ProtocolError with TOPIC_FILTER_INVALID if the filter has more than `max_levels` levels.
        """
        if filter.count("/") >= self._max_levels:
            raise ProtocolError(
                ReasonCode.TOPIC_FILTER_INVALID,
                f"topic filter has more than {self._max_levels} levels",
            )
        entry = (subscriber, filter, value)
        old: tuple[S, str, V] | None
        if not has_wildcard(filter):
            leaf = self._exact.get(filter)
            if leaf is None:  # as most of those that come at a start
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
        """Forget (`filter`, `subscriber`) and return its value; None if it was not held. The filter is compared as
        text [MQTT-3.10.4-1]."""
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
        """The node where a wildcard filter ends, made if need be, and whether it ends there with ``#``."""
        levels = filter.split("/")
        rest = levels[-1] == "#"
        if rest:
            levels.pop()
        node = self._root
        for level in levels:
            if level == "+":
                if node.plus is None:
                    node.plus = _Node()
                node = node.plus
                continue
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        return node, rest

    def _remove(self, filter: str, subscriber: S) -> tuple[S, str, V] | None:
        """Take an entry out of the trie, and every node that is empty thereafter."""
        levels = filter.split("/")
        rest = levels[-1] == "#"
        if rest:
            levels.pop()
        node: _Node[S, V] | None = self._root
        path: list[_Node[S, V]] = [self._root]
        for level in levels:
            last = path[-1]
            if level == "+":
                node = last.plus
            else:
                node = None if last.children is None else last.children.get(level)
            if node is None:
                return None
            path.append(node)
        end = path.pop()
        leaf = end.rest if rest else end.here
        old = _find(leaf, subscriber)
        if leaf is None or old is None:
            return None
        if rest:
            end.rest = _without(leaf, subscriber)
        else:
            end.here = _without(leaf, subscriber)
        while (
            path and end.here is None and end.rest is None and end.plus is None and not end.children
        ):
            end = path.pop()
            level = levels[len(path)]
            if level == "+":
                end.plus = None
            elif end.children is not None:
                del end.children[level]
                if not end.children:
                    end.children = None
        return old

    # -- matching

    def match(self, topic: str) -> list[tuple[S, str, V]]:
        """Every (subscriber, filter, value) whose filter matches `topic`, in no order that may be relied on. A
        subscriber with overlapping filters occurs once for each."""
        found: list[tuple[S, str, V]] = []
        leaf = self._exact.get(topic)
        if leaf is not None:
            _gather(leaf, found)
        root = self._root
        levels = topic.split("/")
        nodes: list[_Node[S, V]] = []
        if root.children is not None:
            child = root.children.get(levels[0])
            if child is not None:
                nodes.append(child)
        if not topic.startswith("$"):  # [MQTT-4.7.2-1] [MQTT311-4.7.2-1]
            if root.plus is not None:
                nodes.append(root.plus)
            if root.rest is not None:
                _gather(root.rest, found)
        for index in range(1, len(levels)):
            if not nodes:
                return found
            level = levels[index]
            below: list[_Node[S, V]] = []
            for node in nodes:
                if node.rest is not None:
                    _gather(node.rest, found)
                children = node.children
                if children is not None:
                    child = children.get(level)
                    if child is not None:
                        below.append(child)
                if node.plus is not None:
                    below.append(node.plus)
            nodes = below
        for node in nodes:
            if node.here is not None:
                _gather(node.here, found)
            if node.rest is not None:  # "sport/#" matches "sport" too
                _gather(node.rest, found)
        return found

    def lookup(self, topic: str) -> R:
        """The route of `topic`, whose filters match it [MQTT-3.3.2-3] [MQTT311-3.3.2-3]: the cached one, or a new one
        from `compile`, whose exceptions pass through."""
        route = self._routes.get(topic)
        if route is not None:
            self.hits += 1
            return route
        self.misses += 1
        route = self._compile(topic, self.match(topic))
        if self._cache_size <= 0 or len(topic) > LONG_TOPIC:
            route.valid = False  # not held, so nothing would ever clear it
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
        """Drop every cached route that `filter` could match, and possibly more (see `FEW`)."""
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
        """Drop every cached route; counted as invalidated."""
        self.invalidated += len(self._routes)
        for route in self._routes.values():
            route.valid = False
        self._routes.clear()
        self._plain.clear()
        self._plain_count = 0
        self._dollar.clear()

    def _evict(self) -> None:
        """Drop the routes that were cached first, a 64th of the cache at a time: a dict finds its first key by walking
        over the deleted ones, so taking them one by one would be slow."""
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


def _matching(filter: str, topics: set[str]) -> list[str]:
    """Those of `topics` that a wildcard `filter` matches. Most fall to their first characters: compiling the filter
    would cost more than it saves on so few."""
    plus = filter.find("+")
    prefix = filter[:plus] if plus >= 0 else filter[: max(0, len(filter) - 2)]
    return [topic for topic in topics if topic.startswith(prefix) and matches(filter, topic)]


# A leaf is None, one entry, or a dict of two entries or more by subscriber.


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
    """The leaf less the entry of `subscriber`, which it holds."""
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
