"""Chains: the implementations of each hook as tuples of functions, in configuration order.

Each `Chains` serves one listener and leaves out plugins narrowed to other listeners. Topic filters narrow calls
further: `narrow` leaves out calls that do not apply to a topic. The functions in `call` check this again, so passing
a whole chain is always correct.

For subscriptions, a call applies if the filters overlap. A plugin narrowed to ``alarms/#`` therefore also decides on
``#``. It can deny that subscription, but its Allow counts only if its own filters contain the whole subscription.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from hookmq.hooks.stats import HookStats
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.mqtt.topics import compile_filter, contains, parse_share

Narrowing = Callable[[str], bool]


@dataclass(slots=True, eq=False, repr=False)
class HookImplementation:
    """One plugin's implementation of one hook."""

    plugin_id: str
    hook: str
    function: Callable[..., Any]
    """Takes all arguments of the hook except `broker`, in the specification's order."""
    _: KW_ONLY
    stats: HookStats
    direct: Callable[[Message], Any] | None = None
    """The plugin's own method if it takes only the message, otherwise None. Calling it directly avoids `function`,
    which would only drop the other arguments."""
    is_async: bool = False
    blocking: bool = False
    timeout: float = 30.0
    """Timeout in seconds for awaited calls and calls in a thread."""
    on_error: str = "deny"
    topic: Narrowing | None = None
    """Whether the call applies to a topic (for subscriptions, a filter). None if it applies to all."""
    grants: Narrowing | None = None
    """Whether the plugin's Allow counts for a filter. None if it always counts."""
    sync_only: bool = False
    """Whether returning an awaitable is an error."""
    cacheable: bool = True
    """Whether `authorize` verdicts may be cached."""

    def __repr__(self) -> str:
        return f"<Call {self.hook} of {self.plugin_id!r}>"


Calls = tuple[HookImplementation, ...]


@dataclass(slots=True, eq=False, kw_only=True)
class Chains:
    """The chains of one listener."""

    on_connect: Calls = ()
    on_auth: Calls = ()
    authorize: Mapping[Action, Calls] = field(default_factory=lambda: dict.fromkeys(Action, ()))
    on_publish: Calls = ()
    on_subscribe: Calls = ()
    on_deliver: Calls = ()
    on_will: Calls = ()
    provide_rate_limiter: Calls = ()
    hides_username: tuple[Callable[[str], bool], ...] = ()
    """Functions that return whether a user name is a secret."""


EMPTY_CHAINS: Final = Chains()
"""The chains of a broker without plugins."""
_WILDCARDS = frozenset("+#")


def narrow(calls: Calls, topic: str) -> Calls:
    """Return the calls that apply to `topic` (for subscriptions, a filter), or `calls` itself if all apply."""
    for call in calls:
        wanted = call.topic
        if wanted is not None and not wanted(topic):
            return tuple(c for c in calls if c.topic is None or c.topic(topic))
    return calls


def cacheable(calls: Calls) -> bool:
    """Return whether decisions made by `calls` may be cached."""
    for call in calls:  # noqa: SIM110 - a generator is slower
        if not call.cacheable:
            return False
    return True


def any_matches(filters: Iterable[str]) -> Narrowing:
    """Return a function that checks whether any of `filters` matches a given topic."""
    tests = tuple(map(compile_filter, filters))
    if len(tests) == 1:
        return tests[0]

    def any_of(topic: str) -> bool:
        return any(test(topic) for test in tests)

    return any_of


def any_overlaps(filters: Iterable[str]) -> Narrowing:
    """Return a function that checks whether any of `filters` overlaps a given filter."""
    return _any_filter(overlaps, tuple(filters))


def any_contains(filters: Iterable[str]) -> Narrowing:
    """Return a function that checks whether any of `filters` contains a given filter."""
    return _any_filter(contains, tuple(filters))


def _any_filter(related: Callable[[str, str], bool], mine: tuple[str, ...]) -> Narrowing:
    def any_of(filter: str) -> bool:
        other = parse_share(filter)[1]
        return any(related(one, other) for one in mine)

    return any_of


def overlaps(first: str, second: str) -> bool:
    """Return whether some topic matches both filters. Neither filter may start with ``$share/``."""
    left, right = first.split("/"), second.split("/")
    # A leading wildcard does not match topics that start with "$" [MQTT-4.7.2-1].
    if right[0].startswith("$") and left[0] in _WILDCARDS:
        return False
    if left[0].startswith("$") and right[0] in _WILDCARDS:
        return False
    for one, other in zip(left, right, strict=False):
        if one == "#" or other == "#":
            return True
        if one != other and one != "+" and other != "+":
            return False
    # "a/#" also matches "a".
    shorter, longer = sorted((left, right), key=len)
    return len(longer) == len(shorter) or longer[len(shorter) :] == ["#"]
