"""The `sys_topics` plugin, which publishes the broker's statistics as retained messages below ``$SYS``."""

from dataclasses import dataclass
from typing import Final

from hookmq.plugin import (
    BrokerHandle,
    ConfigError,
    Context,
    Plugin,
    PluginError,
    Seconds,
    Timer,
    hookimpl,
    setting,
)
from importlib_metadata import version

from hookmq_sys_topics.values import Values

PREFIX: Final = "$SYS/broker/"


@dataclass(frozen=True)
class SysTopicsConfig:
    """Settings of `use: sys_topics`."""

    interval: Seconds = setting(10.0, "time between two updates", minimum=1, maximum=86400)

    def __post_init__(self) -> None:
        if not self.interval > 0:
            raise ConfigError(f"interval: expected a time above 0, found {self.interval!r}")


class SysTopicsPlugin(Plugin):
    """A plugin that publishes changed values once per `interval`. The messages are retained in memory only.

    Clients cannot publish below ``$SYS``: the broker itself refuses this. Access rules decide who
    may subscribe.
    """

    Config = SysTopicsConfig
    config: SysTopicsConfig
    per_node = "all nodes publish their own values on the same topics"

    def __init__(self, config: SysTopicsConfig, context: Context) -> None:
        super().__init__(config, context)
        self._published: dict[str, str] = {}
        self._too_long: set[str] = set()
        """Topics that have more levels than the broker allows."""
        self._timer: Timer | None = None

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Start measuring."""
        self._broker = broker
        self._values = Values(broker.now())

    @hookimpl
    async def on_ready(self, broker: BrokerHandle) -> None:
        """Publish the first values now, and changed values at regular intervals."""
        self._send("version", f"hookmq version {version('hookmq')}")
        self._publish()
        if self._too_long:
            needed = max(topic.count("/") for topic in self._too_long)
            broker.log(
                "warning", "sys_topics.left_out",
                topics=len(self._too_long), needed=needed, setting="broker.max_topic_levels",
                hint="raise broker.max_topic_levels, or remove `use: sys_topics`",
            )  # fmt: skip

    @hookimpl
    async def on_shutdown(self) -> None:
        """Stop publishing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _publish(self) -> None:
        broker = self._broker
        for topic, text in self._values.update(broker.counters(), broker.now()):
            if self._published.get(topic) != text:
                self._published[topic] = text
                self._send(topic, text)
        self._timer = broker.runtime.call_later(self.config.interval, self._publish)

    def _send(self, name: str, text: str) -> None:
        topic = PREFIX + name
        if topic in self._too_long:
            return
        try:
            self._broker.publish(topic, text.encode(), 0, True, volatile=True)
        except PluginError:  # broker.max_topic_levels; nothing else is wrong with these topics
            self._too_long.add(topic)
