"""Compile filters that select the events, and the fields of events, that a plugin instance sends."""

import difflib
import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from hookmq.mqtt_api import compile_filter, contains, validate_filter
from hookmq.plugin import ConfigError, ProtocolError
from hookmq_toolkit.conditions import Condition

from hookmq_webhook.catalog import CATALOG, OTHER, PAYLOAD
from hookmq_webhook.config import FilterConfig
from hookmq_webhook.envelope import fields_of
from hookmq_webhook.events import Event
from hookmq_webhook.payloads import payload_value

Test = Callable[[str], object]
_SUBSCRIPTIONS: Final = frozenset({"subscription.created", "subscription.removed"})
_OURS: Final = frozenset(name.partition(".")[0] for name in CATALOG) - {"ratelimit"}
_FIELDS: Final = frozenset(
    field.name for kind in (*CATALOG.values(), OTHER) for field in (*kind.fields, *PAYLOAD)
)
_ALL: Final = 1 << 64


def select(patterns: Iterable[str]) -> frozenset[str]:
    """Return the event types of the catalog that match `patterns`, such as ``client.*``.

    A pattern that starts with ``-`` excludes types. Patterns that may match other plugins' events are returned
    unchanged. Raises ConfigError for a pattern that matches nothing.
    """
    given = list(patterns)
    named = [one for one in given if not one.startswith("-")] or ["*"]
    found: set[str] = set()
    for pattern in named:
        matched = _known(pattern)
        found |= matched or {pattern}
        if pattern == "*":
            found.add(pattern)
    for pattern in given:
        if pattern.startswith("-"):
            found -= _known(pattern[1:]) or {pattern[1:]}
            if not _known(pattern[1:]):
                found.add(pattern)
    if not any(not name.startswith("-") for name in found):
        raise ConfigError("events: all types are excluded")
    return frozenset(found)


class Filters:
    """Compiled filters. `types` come from `select`. Raises ConfigError for an invalid topic filter.

    An event passes if its type, topic and client pass, and if it meets all conditions. Topic filters do not apply to
    events without a topic. Client filters do not apply to event types without a client. A condition does not apply to
    event types that lack its field. A subscription passes if its filter and one of `topics` can match the same topic.
    With `sample` below 1, only that share of events passes, and the selection is always the same.
    """

    def __init__(self, config: FilterConfig, types: frozenset[str]) -> None:
        self.types = types
        others = sorted(types - CATALOG.keys())
        self._others = _globs([one for one in others if not one.startswith("-")])
        self._not_others = _globs([one[1:] for one in others if one.startswith("-")])
        self._topic_filters = config.topics
        self._topics = _topics("topics", config.topics)
        self._not_topics = _topics("exclude_topics", config.exclude_topics)
        self._not_topic_filters = config.exclude_topics
        self._clients = _globs(config.clients)
        self._not_clients = _globs(config.exclude_clients)
        self._listeners = frozenset(config.listeners)
        self._when = tuple(_condition(text) for text in config.when)
        self._below = int(config.sample * float(_ALL))
        self._sample_by = config.sample_by

    def topic(self, topic: str) -> bool:
        """Return whether events about `topic` pass the topic filters."""
        if self._not_topics and any(match(topic) for match in self._not_topics):
            return False
        return not self._topics or any(match(topic) for match in self._topics)

    def type(self, type: str) -> bool:
        """Return whether events of this type are selected."""
        if type in self.types:
            return True
        if type in CATALOG or self._others is None or not self._others(type):
            return False
        return self._not_others is None or not self._not_others(type)

    def event(self, event: Event) -> bool:
        """Return whether `event` passes all filters."""
        if not self.type(event.type):
            return False
        topic = event.topic
        if topic is not None:
            if event.type in _SUBSCRIPTIONS:
                if not self._subscription(topic):
                    return False
            elif not self.topic(topic):
                return False
        if CATALOG.get(event.type, OTHER).client and not self._client(event):
            return False
        if self._when and not self._meets(event):
            return False
        return self._below >= _ALL or self._place(event) < self._below

    def _meets(self, event: Event) -> bool:
        """Return whether `event` meets all conditions on fields that its type has."""
        values: dict[str, Any] = {}
        for condition in self._when:
            root = condition.root
            if not _has(event, root):
                continue
            if root not in values:
                if root == "payload":
                    values[root] = payload_value(event)
                else:
                    values = {root: None, **fields_of(event), **values}
            if not condition.holds(values[root]):
                return False
        return True

    def _subscription(self, filter: str) -> bool:
        if any(contains(one, filter) for one in self._not_topic_filters):
            return False
        filters = self._topic_filters
        return not filters or any(overlap(one, filter) for one in filters)

    def _client(self, event: Event) -> bool:
        client = event.client
        if client is None:
            if self._clients is not None and event.type in CATALOG:
                return False
        else:
            if self._clients is not None and not self._clients(client):
                return False
            if self._not_clients is not None and self._not_clients(client):
                return False
        if not self._listeners or event.listener in self._listeners:
            return True
        # If a publisher is offline, its listener is unknown. An extra event is better than a lost event.
        return not event.listener and event.data.get("origin") in (None, "client", "will")

    def _place(self, event: Event) -> int:
        """Return a number from 0 to 2**64 - 1 to compare with `sample`. The number is always the same for the same
        event."""
        by = self._sample_by
        if by == "client" and event.client is not None:
            text = event.client
        elif by == "topic" and event.topic is not None:
            text = event.topic
        else:
            text = f"{event.type}\0{event.client}\0{event.topic}\0{event.time!r}"
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8)
        return int.from_bytes(digest.digest(), "big")


def _condition(text: str) -> Condition:
    made = Condition(text, "filters.when")
    known = _FIELDS - {"payload_base64", "payload_format", "payload_size", "left_out"}
    if made.root not in known:
        raise ConfigError(
            f"filters.when: {text!r}: no event has a field {made.root!r}",
            hint=_near(made.root, known),
        )
    return made


def _has(event: Event, field: str) -> bool:
    """Return whether events of this type can have a field, even if this event lacks it."""
    kind = CATALOG.get(event.type)
    if kind is None:
        return field in fields_of(event)
    if field == "payload":
        return kind.payload
    return any(one.name == field for one in kind.fields)


def keep_fields(names: Collection[str]) -> Callable[[str], bool] | None:
    """Return a function that selects the fields to send, or None to send all fields.

    The function accepts the fields in `names`. If all names start with ``-``, it accepts all other fields. Raises
    ConfigError for a field that no event has.
    """
    if not names:
        return None
    without = [name[1:] for name in names if name.startswith("-")]
    if without and len(without) != len(names):
        raise ConfigError("filters.fields: expected all names with a - in front, or none")
    chosen = frozenset(without or names)
    for name in sorted(chosen - _FIELDS):
        raise ConfigError(
            f"filters.fields: no event has a field {name!r}", hint=_near(name, _FIELDS)
        )
    if "payload" in chosen:
        chosen |= {"payload_base64"}
    if without:
        return lambda name: name not in chosen
    return lambda name: name in chosen


def overlap(first: str, second: str) -> bool:
    """Return whether any topic matches both filters."""
    one, other = first.split("/"), second.split("/")
    if (one[0] in ("+", "#") and other[0].startswith("$")) or (
        other[0] in ("+", "#") and one[0].startswith("$")
    ):
        return False
    for index in range(max(len(one), len(other))):
        mine = one[index] if index < len(one) else None
        theirs = other[index] if index < len(other) else None
        if mine == "#" or theirs == "#":
            return True  # "a/#" also matches "a", so "#" may match no level at all
        if mine is None or theirs is None:
            return False
        if mine != theirs and "+" not in (mine, theirs):
            return False
    return True


def _known(pattern: str) -> frozenset[str]:
    """Return the event types of the catalog that match `pattern`.

    The set is empty if `pattern` may match another plugin's events. Raises ConfigError if `pattern` matches no event.
    """
    test = _globs([pattern])
    assert test is not None
    found = frozenset(name for name in CATALOG if test(name))
    family, dot, _ = pattern.strip(".").partition(".")
    # "messages.*" is more likely a typo than another plugin's event.
    if not found and (not dot or difflib.get_close_matches(family, _OURS, 1, 0.85)):
        raise ConfigError(f"events: no event matches {pattern!r}", hint=_near(pattern, CATALOG))
    return found


def _topics(where: str, filters: Iterable[str]) -> list[Callable[[str], bool]]:
    made = []
    for filter in filters:
        try:
            validate_filter(filter)
        except ProtocolError as error:
            raise ConfigError(f"filters.{where}: {filter!r}: {error.detail}") from error
        if filter.startswith("$share/"):
            raise ConfigError(f"filters.{where}: {filter!r}: $share/NAME/ is not allowed")
        made.append(compile_filter(filter))
    return made


def _globs(patterns: Collection[str]) -> Test | None:
    """Return a function that tests whether a text matches any of `patterns`, or None if there are none."""
    if not patterns:
        return None
    exact = frozenset(one for one in patterns if "*" not in one and "?" not in one)
    others = [_glob(one) for one in patterns if one not in exact]
    if not others:
        return exact.__contains__
    fullmatch = re.compile("|".join(others), re.DOTALL).fullmatch
    return lambda text: text in exact or fullmatch(text) is not None


def _glob(pattern: str) -> str:
    """Return `pattern` as a regular expression. ``*`` matches any text, and ``?`` one character.

    Atomic groups prevent backtracking.
    """
    first, *rest = (
        "".join("." if one == "?" else re.escape(one) for one in piece)
        for piece in re.sub(r"\*+", "*", pattern).split("*")
    )
    if not rest:
        return first
    return first + "".join(f"(?>.*?{piece})" for piece in rest[:-1]) + ".*" + rest[-1]


def _near(name: str, known: Collection[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f"did you mean {found[0]!r}?" if found else "known: " + ", ".join(sorted(known))
