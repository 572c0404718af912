"""Chains: the implementations of each hook, folded into tuples of plain functions in the order of the configuration.

One `Chains` serves one listener, plugins narrowed to others left out. A call may further be narrowed by topic filter:
`narrow` leaves out those that have nothing to do with a topic, once per topic where the caller remembers the outcome. The
functions of `run` look at the topic as well, so that giving them a whole chain is always right.

What is narrowed to ``alarms/#`` is asked about a subscription to ``#`` too, since it covers alarms: for subscriptions the
question is whether the filters overlap. But it cannot grant what lies outside of its filters: its Allow counts for a
subscription only if that lies wholly within.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from hookmq.hooks.stats import Stats
from hookmq.topics import compile_filter, contains, parse_share
from hookmq.types import Action

Narrowing = Callable[[str], bool]


class Call:
    """One plugin's implementation of one hook.

    `function` takes the hook's arguments less `broker`, in the order of the specification, all of them; what the
    implementation leaves out is left out, and the plugin's own handle put in. `timeout` is in seconds and binds answers
    that are awaited and threads. `topic` says whether the call has to do with a topic (for subscriptions: a filter), None
    for every; `grants` whether its Allow counts for a filter. `sync_only` forbids awaiting; `cacheable` is False where
    `authorize` must be asked every time.
    """

    __slots__ = (
        "blocking", "cacheable", "function", "grants", "hook", "is_async", "on_error", "plugin_id", "stats",
        "sync_only", "timeout", "topic",
    )  # fmt: skip

    def __init__(
        self,
        plugin_id: str,
        hook: str,
        function: Callable[..., Any],
        *,
        is_async: bool = False,
        blocking: bool = False,
        timeout: float = 30.0,
        on_error: str = "deny",
        topic: Narrowing | None = None,
        grants: Narrowing | None = None,
        sync_only: bool = False,
        cacheable: bool = True,
        stats: Stats | None = None,
    ) -> None:
        self.plugin_id = plugin_id
        self.hook = hook
        self.function = function
        self.is_async = is_async
        self.blocking = blocking
        self.timeout = timeout
        self.on_error = on_error
        self.topic = topic
        self.grants = grants
        self.sync_only = sync_only
        self.cacheable = cacheable
        self.stats = stats or Stats(plugin_id, hook)

    def __repr__(self) -> str:
        return f"<Call {self.hook} of {self.plugin_id!r}>"


Calls = tuple[Call, ...]


class Chains:
    """The chains of one listener. `authorize` has one chain per action; `hides_username` are the questions whether a user
    name is a secret."""

    __slots__ = (
        "authorize", "hides_username", "on_auth", "on_connect", "on_deliver", "on_publish", "on_subscribe",
        "on_will", "provide_meter",
    )  # fmt: skip

    def __init__(
        self,
        *,
        on_connect: Calls = (),
        on_auth: Calls = (),
        authorize: Mapping[Action, Calls] | None = None,
        on_publish: Calls = (),
        on_subscribe: Calls = (),
        on_deliver: Calls = (),
        on_will: Calls = (),
        provide_meter: Calls = (),
        hides_username: Iterable[Callable[[str], bool]] = (),
    ) -> None:
        self.on_connect = on_connect
        self.on_auth = on_auth
        self.authorize: Mapping[Action, Calls] = {a: (authorize or {}).get(a, ()) for a in Action}
        self.on_publish = on_publish
        self.on_subscribe = on_subscribe
        self.on_deliver = on_deliver
        self.on_will = on_will
        self.provide_meter = provide_meter
        self.hides_username = tuple(hides_username)


EMPTY_CHAINS: Final = Chains()
"""The chains where there are no plugins."""
_WILDCARDS = frozenset("+#")


def narrow(calls: Calls, topic: str) -> Calls:
    """The calls that have to do with `topic` (for subscriptions: a topic filter); `calls` itself if all do."""
    for call in calls:
        wanted = call.topic
        if wanted is not None and not wanted(topic):
            return tuple(c for c in calls if c.topic is None or c.topic(topic))
    return calls


def cacheable(calls: Calls) -> bool:
    """Whether what `calls` decide may be remembered, a Deny included."""
    for call in calls:  # noqa: SIM110 - a generator costs more than it
        if not call.cacheable:
            return False
    return True


def any_matches(filters: Iterable[str]) -> Narrowing:
    """Whether one of `filters` matches a topic."""
    tests = tuple(map(compile_filter, filters))
    if len(tests) == 1:
        return tests[0]

    def any_of(topic: str) -> bool:
        return any(test(topic) for test in tests)

    return any_of


def any_overlaps(filters: Iterable[str]) -> Narrowing:
    """Whether one of `filters` has a topic in common with a filter."""
    mine = tuple(filters)

    def any_of(filter: str) -> bool:
        other = parse_share(filter)[1]
        return any(overlaps(one, other) for one in mine)

    return any_of


def any_contains(filters: Iterable[str]) -> Narrowing:
    """Whether one of `filters` covers a whole filter."""
    mine = tuple(filters)

    def any_of(filter: str) -> bool:
        other = parse_share(filter)[1]
        return any(contains(one, other) for one in mine)

    return any_of


def overlaps(first: str, second: str) -> bool:
    """True if some topic is matched by both filters; neither begins with ``$share/``."""
    left, right = first.split("/"), second.split("/")
    # A leading wildcard never matches a topic that begins with "$" [MQTT-4.7.2-1].
    if right[0].startswith("$") and left[0] in _WILDCARDS:
        return False
    if left[0].startswith("$") and right[0] in _WILDCARDS:
        return False
    for one, other in zip(left, right, strict=False):
        if one == "#" or other == "#":
            return True
        if one != other and one != "+" and other != "+":
            return False
    # "a/#" matches "a" itself as well.
    if len(left) == len(right):
        return True
    longer = left if len(left) > len(right) else right
    shorter = min(len(left), len(right))
    return len(longer) == shorter + 1 and longer[shorter] == "#"
