"""Implement the `sparkplug` plugin, which fulfills the duties of a Sparkplug aware broker.

Source: Eclipse Sparkplug 3.0.0, section 10.1.4, on Sparkplug aware brokers. The names in the comments are the
specification's requirement ids.
"""

from dataclasses import dataclass
from typing import Final

from hookmq.plugin import (
    Action,
    BrokerHandle,
    ClientInfo,
    ConfigError,
    Context,
    Deny,
    Message,
    MetricRegistry,
    Plugin,
    PluginError,
    ReasonCode,
    hookimpl,
    setting,
)

from hookmq_sparkplug.payload import with_timestamp

CERTIFICATES: Final = "$sparkplug/certificates/"
_LEVELS: Final = {"NBIRTH": 4, "DBIRTH": 5}
"""The number of topic levels of each kind of birth certificate."""


@dataclass(frozen=True)
class SparkplugConfig:
    """Settings of `use: sparkplug`."""

    namespace: str = setting("spBv1.0", "first level of Sparkplug topics", nonempty=True)
    stamp_deaths: bool = setting(
        True, "whether the timestamp of an NDEATH will becomes the time of its publication"
    )

    def __post_init__(self) -> None:
        if not self.namespace or any(sign in self.namespace for sign in "/+#$\0"):
            raise ConfigError(f"namespace: expected one topic level, found {self.namespace!r}")


class SparkplugPlugin(Plugin):
    """A plugin that publishes birth certificates as retained messages, and sets the timestamps of death certificates.

    List this plugin after plugins that refuse messages in `on_publish`. Otherwise, it also publishes birth certificates
    that are refused later.
    """

    Config = SparkplugConfig
    config: SparkplugConfig

    def __init__(self, config: SparkplugConfig, context: Context) -> None:
        super().__init__(config, context)
        self.births = 0
        self.deaths = 0
        self._prefix = config.namespace + "/"

    @hookimpl
    def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Deny | None:
        """Publish a copy of each birth certificate below ``$sparkplug/certificates/``. Refuse messages that clients
        publish there.
        """
        topic = message.topic
        if topic.startswith(self._prefix):
            levels = topic.split("/")
            if len(levels) > 3 and len(levels) == _LEVELS.get(levels[2]):
                # conformance-mqtt-aware-nbirth-mqtt-topic, -nbirth-mqtt-retain, and the same for DBIRTH
                try:
                    broker.publish(CERTIFICATES + topic, message.payload, message.qos, retain=True)
                except PluginError as error:  # the certificate's topic is too long
                    return Deny(ReasonCode.TOPIC_NAME_INVALID, str(error))
                self.births += 1
        elif topic.startswith(CERTIFICATES):  # other plugins publish without a client
            return Deny(ReasonCode.NOT_AUTHORIZED, "only the broker publishes certificates")
        return None

    @hookimpl
    def authorize(self, action: Action, topic: str) -> Deny | None:
        """Deny clients' messages on certificate topics, even if another plugin rewrote the topic. Leave other topics
        to other plugins.
        """
        if action is not Action.SUBSCRIBE and topic.startswith(CERTIFICATES):
            return Deny(ReasonCode.NOT_AUTHORIZED, "only the broker publishes certificates")
        return None

    @hookimpl
    def on_will(
        self, client: ClientInfo, message: Message, broker: BrokerHandle
    ) -> Message | Deny | None:
        """Set the timestamp of an NDEATH certificate (conformance-mqtt-aware-ndeath-timestamp)."""
        if message.topic.startswith(CERTIFICATES):
            return Deny(ReasonCode.NOT_AUTHORIZED, "only the broker publishes certificates")
        if not self.config.stamp_deaths:
            return None
        levels = message.topic.split("/")
        if len(levels) != 4 or levels[0] != self.config.namespace or levels[2] != "NDEATH":
            return None
        stamped = with_timestamp(message.payload, broker.time())
        if stamped is None:
            return None
        self.deaths += 1
        return message.replace(payload=stamped)

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics that count certificates."""
        registry.counter(
            "sparkplug_births_total", "Birth certificates published as retained messages.",
            lambda: self.births,
        )  # fmt: skip
        registry.counter(
            "sparkplug_deaths_total", "NDEATH wills whose timestamp was set.", lambda: self.deaths
        )
