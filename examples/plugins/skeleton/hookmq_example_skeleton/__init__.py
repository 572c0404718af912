"""What this plugin is for, in a sentence."""

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
    """The plugin's ``config:``. A field without a default must be given; `hookmq check` names what is wrong, with its
    line. The help stands in `hookmq config schema`."""

    forbidden: str = field(metadata={"help": "topic filter that nobody may publish to"})
    reason: str = setting("not here", "what a client is told")

    def __post_init__(self) -> None:
        if not self.forbidden:
            raise ConfigError("forbidden: expected a topic filter")


class SkeletonPlugin(Plugin):
    """One object of this class is made for each entry under ``plugins:`` that uses it.

    Hooks are methods marked ``@hookimpl``; take the arguments you need by their names and leave out the others. None is
    "no opinion". A plain ``def`` must not block: make it ``async def``, or set ``blocking = True``.
    """

    Config = SkeletonConfig
    config: SkeletonConfig

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Open files and connections here, not in the constructor: `hookmq check` constructs plugins too."""
        broker.log("info", "skeleton.started", forbidden=self.config.forbidden)

    @hookimpl
    def on_publish(self, client: ClientInfo | None, message: Message) -> Deny | None:
        """Refuse what is forbidden; let everything else pass as it is."""
        if client is not None and self.matches(self.config.forbidden, message.topic):
            return Deny(reason=self.config.reason)
        return None
