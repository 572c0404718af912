"""Describe in one sentence what this plugin does."""

from dataclasses import dataclass, field

from hookmq.plugin import (
    BrokerHandle,
    ClientInfo,
    ConfigError,
    Deny,
    Message,
    Plugin,
    hookimpl,
    setting,
)


@dataclass(frozen=True)
class SkeletonConfig:
    """The plugin's ``config:``.

    A field without a default is required. `hookmq check` reports mistakes with their line numbers, and `hookmq config
    schema` shows the help texts.
    """

    forbidden: str = field(metadata={"help": "topic filter that clients may not publish to"})
    reason: str = setting("not here", "Reason String that the client gets")

    def __post_init__(self) -> None:
        if not self.forbidden:
            raise ConfigError("forbidden: expected a topic filter")


class SkeletonPlugin(Plugin):
    """A plugin that denies publishing to forbidden topics.

    Each entry under ``plugins:`` that uses this class gets its own object. Hooks are methods marked
    ``@hookimpl``. Declare only the arguments that you need, by name. Return None to abstain. A
    plain ``def`` must not block: make it ``async def``, or set ``blocking = True``.
    """

    Config = SkeletonConfig
    config: SkeletonConfig

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Open files and connections here, not in `__init__`: `hookmq check` creates plugins too."""
        broker.log("info", "skeleton.started", forbidden=self.config.forbidden)

    @hookimpl
    def on_publish(self, client: ClientInfo | None, message: Message) -> Deny | None:
        """Deny messages to forbidden topics, and abstain on all others."""
        if client is not None and self.matches(self.config.forbidden, message.topic):
            return Deny(reason=self.config.reason)
        return None
