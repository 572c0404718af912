"""Add a user property to every incoming message: a plugin that transforms."""

from dataclasses import dataclass

from hookmq.plugin import ConfigError, Message, Plugin, hookimpl, setting


@dataclass(frozen=True)
class StampConfig:
    """The property to add."""

    name: str = setting("via", "name of the user property")
    value: str = setting("hookmq", "value of the user property")

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name: expected a name")


class StampPlugin(Plugin):
    """A plugin that stamps messages. MQTT 3 subscribers do not see the stamp, since MQTT 3 has no user properties."""

    Config = StampConfig
    config: StampConfig

    @hookimpl
    def on_publish(self, message: Message) -> Message:
        """Append the property to the publisher's own user properties."""
        stamped = (*message.user_property, (self.config.name, self.config.value))
        return message.replace(properties=message.properties.replace(user_property=stamped))
