"""The topic aliases that the broker gives to one client: a property of one connection and one hop."""

from collections import OrderedDict
from typing import Final

_SEEN: Final = 1024
"""Topics without an alias that are remembered as seen, at most."""


class Aliases:
    """Up to `maximum` aliases. While some are free, a topic gets one with its first message. When all are taken, a topic
    that is seen again gets the one used least recently: topics that come once take nothing away.

    Packets must leave in the order in which their aliases were asked for.
    """

    __slots__ = ("_free", "_given", "_maximum", "_seen")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._given: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._free: list[int] = []
        self._seen: dict[int, None] = {}  # hashes: topics may be long, and a collision does no harm

    def name(self, topic: str) -> tuple[int, str]:
        """Return the alias and the topic name to send for `topic`; alias 0 is none [MQTT-3.1.2-26, 3.3.2-8, 3.3.2-11]."""
        given = self._given
        alias = given.get(topic, 0)
        if alias:
            given.move_to_end(topic)
            return alias, ""
        if self._free:
            alias = self._free.pop()
        elif len(given) < self._maximum:
            alias = len(given) + 1
        elif self._seen_before(topic):
            _, alias = given.popitem(False)
        else:
            return 0, topic
        given[topic] = alias
        return alias, topic

    def _seen_before(self, topic: str) -> bool:
        seen = self._seen
        mark = hash(topic)
        if mark in seen:
            del seen[mark]
            return True
        if len(seen) >= min(4 * self._maximum, _SEEN):
            del seen[next(iter(seen))]
        seen[mark] = None
        return False

    def take_back(self, topic: str) -> None:
        """A packet that names `topic` was made and is not sent: the client may not know the topic's alias."""
        alias = self._given.pop(topic, 0)
        if alias:
            self._free.append(alias)
