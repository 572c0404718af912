"""Rename topics that cross a bridge, as the `topic` lines of mosquitto's bridges do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hookmq.mqtt_api import compile_filter, parse_share, validate_filter
from hookmq.plugin import ConfigError, setting


@dataclass(frozen=True)
class MqttRule:
    """A line ``topic PATTERN out|in QOS LOCAL_PREFIX REMOTE_PREFIX``.

    A local topic consists of `local_prefix` and a topic that matches `pattern`. On the remote broker, it begins with
    `remote_prefix` instead. If `pattern` is empty, the prefixes are the full names of a single topic.
    """

    pattern: str = setting(
        "#", "topic filter without the prefixes; empty if the prefixes are topics"
    )
    qos: Literal[0, 1, 2] = setting(1, "QoS between the brokers")
    local_prefix: str = setting("", "beginning of the topic at this broker")
    remote_prefix: str = setting("", "beginning of the topic at the remote broker")

    def __post_init__(self) -> None:
        for key in ("local_prefix", "remote_prefix"):
            value = getattr(self, key)
            if "+" in value or "#" in value:
                raise ConfigError(f"{key}: {value!r} contains a wildcard")
            try:
                validate_filter(value + self.pattern)
            except Exception as error:
                raise ConfigError(
                    f"{key}: {value + self.pattern!r} is not a topic filter: {error}"
                ) from None
            if parse_share(value + self.pattern)[0] is not None and key == "local_prefix":
                raise ConfigError("pattern: a bridge cannot use a shared subscription here")

    @property
    def local_filter(self) -> str:
        """The filter that matches the topics on this broker."""
        return self.local_prefix + self.pattern

    @property
    def remote_filter(self) -> str:
        """The filter that matches the topics on the remote broker."""
        return self.remote_prefix + self.pattern


class TopicMap:
    """Finds the first rule that matches a topic, and the topic's name on the other side. Caches up to 10,000 results."""

    def __init__(self, rules: Sequence[MqttRule], to_remote: bool) -> None:
        self._rules: list[tuple[Callable[[str], bool], int, str, int]] = []
        for one in rules:
            source = one.local_filter if to_remote else one.remote_filter
            old, new = one.local_prefix, one.remote_prefix
            if not to_remote:
                old, new = new, old
            self._rules.append((compile_filter(source), len(old), new, one.qos))
        self._known: dict[str, tuple[str, int] | None] = {}

    def find(self, topic: str) -> tuple[str, int] | None:
        """Return the topic's name on the other side and the QoS, or None if no rule matches."""
        try:
            return self._known[topic]
        except KeyError:
            pass
        found = None
        for matches, cut, prefix, qos in self._rules:
            if matches(topic):
                found = (prefix + topic[cut:], qos)
                break
        if len(self._known) >= 10_000:
            self._known.clear()
        self._known[topic] = found
        return found
