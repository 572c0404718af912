"""Which events an instance tells: by type, topic, client and listener; and how many of them."""

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase, translate

from hookmq.errors import ProtocolError
from hookmq.plugin import ConfigError
from hookmq.topics import compile_filter, validate_filter

from hookmq_webhook.catalog import CATALOG
from hookmq_webhook.config import FilterConfig
from hookmq_webhook.events import Event

_OURS = frozenset(name.partition(".")[0] for name in CATALOG)


def select(patterns: Iterable[str]) -> frozenset[str]:
    """The types that `patterns` such as ``client.*`` name: those of the catalog, and as they are those that other plugins
    may tell. Raises ConfigError for one that names none."""
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in CATALOG if fnmatchcase(name, pattern)}
        if not matched and (pattern.partition(".")[0] in _OURS or "." not in pattern.strip(".")):
            raise ConfigError(
                f"events: no event is named {pattern!r}", hint="known: " + ", ".join(CATALOG)
            )
        found |= matched or {pattern}
        if pattern == "*":
            found.add(pattern)
    return frozenset(found)


class Filters:
    """Compiled once. Raises ConfigError for a topic filter that is none."""

    def __init__(self, config: FilterConfig, types: frozenset[str]) -> None:
        self.types = types
        self._others = _globs(sorted(types - CATALOG.keys()))
        self._topics = _topics("topics", config.topics)
        self._not_topics = _topics("exclude_topics", config.exclude_topics)
        self._clients = _globs(config.clients)
        self._not_clients = _globs(config.exclude_clients)
        self._listeners = frozenset(config.listeners)
        self._sample = config.sample

    def topic(self, topic: str) -> bool:
        """Whether events about this topic are wanted."""
        if any(match(topic) for match in self._not_topics):
            return False
        return not self._topics or any(match(topic) for match in self._topics)

    def type(self, type: str) -> bool:
        """Whether events of this type are wanted."""
        if type in self.types:
            return True
        return self._others is not None and self._others.match(type) is not None

    def event(self, event: Event, random: Callable[[], float]) -> bool:
        """Whether this one is; `random` gives numbers in [0, 1)."""
        if not self.type(event.type):
            return False
        if event.topic is not None and not self.topic(event.topic):
            return False
        client = event.client
        if client is not None:
            if self._not_clients is not None and self._not_clients.match(client):
                return False
            if self._clients is not None and not self._clients.match(client):
                return False
            if self._listeners and event.listener not in self._listeners:
                return False
        return self._sample >= 1.0 or random() < self._sample


def _topics(where: str, filters: tuple[str, ...]) -> list[Callable[[str], bool]]:
    made = []
    for filter in filters:
        try:
            validate_filter(filter)
        except ProtocolError as error:
            raise ConfigError(f"filters.{where}: {filter!r}: {error.detail}") from error
        made.append(compile_filter(filter))
    return made


def _globs(patterns: Iterable[str]) -> "re.Pattern[str] | None":
    made = [translate(pattern) for pattern in patterns]
    return re.compile("|".join(made)) if made else None
