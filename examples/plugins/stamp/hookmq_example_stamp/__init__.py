"""Adds a user property to every message that comes in: a plugin that transforms."""

from dataclasses import dataclass

from hookmq.plugin import ConfigError, Message, Plugin, hookimpl, setting


@dataclass(frozen=True)
class StampConfig:
    """The property."""

    name: str = setting("via", "name of the user property")
    value: str = setting("hookmq", "value of the user property")

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name: a property without a name says nothing")


class StampPlugin(Plugin):
    """MQTT 5 subscribers see the property; those of MQTT 3 get the message without properties, as always."""

    Config = StampConfig
    config: StampConfig

    @hookimpl
    def on_publish(self, message: Message) -> Message:
        """Add the property behind those of the publisher, whose order stays."""
        stamped = (*message.user_property, (self.config.name, self.config.value))
        return message.replace(properties=message.properties.replace(user_property=stamped))
