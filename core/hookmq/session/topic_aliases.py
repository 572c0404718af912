"""Topic aliases for messages that the broker sends on one connection."""

from collections import OrderedDict
from typing import Final

_SEEN: Final = 1024
"""Maximum number of remembered topics without an alias."""


class TopicAliases:
    """Up to `maximum` aliases.

    While aliases are free, each new topic gets one. After that, a topic that occurs again takes the least recently used
    alias. Topics that occur only once get no alias. Packets must be sent in the order in which `name` was called.
    """

    __slots__ = ("_free", "_given", "_maximum", "_seen")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._given: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._free: list[int] = []
        self._seen: dict[int, None] = {}  # hashes: topics may be long, and collisions are harmless

    def name(self, topic: str) -> tuple[int, str]:
        """Return (alias, topic) to send for `topic`. An alias of 0 means none [MQTT-3.1.2-26, 3.3.2-8, 3.3.2-11]."""
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
        """Forget the alias for `topic`, because the packet that sets it was not sent."""
        alias = self._given.pop(topic, 0)
        if alias:
            self._free.append(alias)
