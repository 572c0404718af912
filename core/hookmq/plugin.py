"""What authors of plugins import. Everything here is public and kept compatible within one major version of `HOOK_API`.

A plugin is a class, registered as an entry point of the group ``hookmq.plugins``; the configuration makes one object of
it per entry. Its hooks are methods marked with ``@hookimpl``, named and with arguments as in `hookmq.hooks.specs`;
arguments that it has no use for it leaves out.

    class HelloPlugin(Plugin):
        Config = Config

        @hookimpl
        def on_publish(self, client, message):
            if self.matches(self.config.forbidden, message.topic):
                return Deny(reason="not here")
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from hookmq import topics
from hookmq.codec.packets import Auth, Connect
from hookmq.errors import ConfigError, PluginError
from hookmq.hooks.meter import Charge, Meter, Over, Pace
from hookmq.hooks.registries import CommandGroup, HttpRouter, ListenerRegistry
from hookmq.hooks.specs import HOOK_API, BrokerHandle, hookimpl
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Limits
from hookmq.metric_registry import MetricRegistry
from hookmq.properties import EMPTY, Properties
from hookmq.reason import ReasonCode
from hookmq.rules import Rule, Rules, rule_values, rules_from_lists
from hookmq.settings import Seconds, Settings, Size, setting
from hookmq.types import (
    Action,
    ClientInfo,
    Direction,
    DisconnectReason,
    Dropped,
    DropReason,
    EndedBy,
    Message,
    Peer,
    SessionEvent,
    Subscription,
    Will,
)

Log = Callable[..., None]
"""``log(level, event, **fields)``, as `hookmq.runtime.Runtime.log`."""


def no_log(level: str, event: str, /, **fields: object) -> None:
    """A `Log` that forgets."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a plugin is told of itself: its id in the configuration, the entry point it was made of, its distribution's
    version, and where to log."""

    id: str = "plugin"
    use: str = ""
    version: str = ""
    log: Log = no_log


@dataclass(frozen=True, slots=True)
class Admission:
    """Who comes in by a plugin's `on_connect` and `on_auth`, for ``hookmq check`` and its warnings.

    `who` names the clients that it accepts, such as ``users of users.yaml``; empty if it accepts none. `others` says what
    becomes of all other clients: ``left`` to other plugins and ``auth.default``, ``refused``, or ``some`` are refused.
    `anybody` is True if clients without any credential are accepted. `to_share` names the settings that leave other
    clients to other plugins.
    """

    who: str = ""
    others: Literal["left", "some", "refused"] = "left"
    anybody: bool = False
    to_share: str = ""


class Plugin:
    """The base of every plugin.

    It is constructed when the configuration is loaded, also by ``hookmq check``, and so must not open, connect or start
    anything there: that is for `on_startup`.
    """

    Config: ClassVar[Any] = None
    """A dataclass, or a class with pydantic's `model_validate` and `model_json_schema`, that the ``config:`` of an entry
    is bound to; None for a plugin that has nothing to configure."""

    requires_api: ClassVar[str] = ">=1.0,<2"
    """Versions of `HOOK_API` that this class can work with."""

    blocking: ClassVar[bool] = False
    """True if hooks that are not ``async def`` may block: they then run in a thread. Not for `on_deliver`."""

    timeouts: Mapping[str, float] = MappingProxyType({})
    """Seconds that hooks of this plugin may be awaited, by hook, where the configuration says nothing; the hook's own
    default otherwise. May be set in `__init__`: what asks a service needs as long as it is configured to ask."""

    idle_hooks: frozenset[str] = frozenset()
    """Hooks that this object, as it is configured, has no use for, though its class implements them: they are not called
    and cost nothing. To be set in `__init__`."""

    authorize_actions: ClassVar[frozenset[Action]] = frozenset(
        {Action.PUBLISH, Action.SUBSCRIBE, Action.WILL}
    )
    """The actions that `authorize` is called for. Add `Action.DELIVER` to be asked about each subscriber of a message. It
    may be a property: what it says is looked at when plugins are loaded and at each `BrokerHandle.invalidate_authz`."""

    authorize_cached: ClassVar[bool] = True
    """False if an answer of `authorize`, None included, may differ for the next message of the same topic: then no
    decision that this plugin took part in is remembered."""

    def __init__(self, config: Any, context: Context) -> None:
        self.config = config
        self.context = context

    @property
    def admission(self) -> Admission | None:
        """Who comes in by this plugin, as it is configured; None if it does not tell. Only asked of plugins that
        implement `on_connect` or `on_auth`. Must not block."""
        return None

    @property
    def id(self) -> str:
        """The plugin's id in the configuration: the key of its scratch space in `ClientInfo.state`."""
        return self.context.id

    @property
    def notes(self) -> Sequence[str]:
        """What may not be meant in this object's configuration, a sentence each, without secrets. ``hookmq check`` and
        the log say it; the broker starts all the same."""
        return ()

    def reconfigure(self, config: Any) -> Callable[[], None] | None:
        """Another configuration for this plugin, on reload. None: an object is made anew with it, which is impossible for
        one that provides a store or a journal. Else what makes this object go on with `config`; it is called when all of
        the new configuration has been found good, must not fail, and sets `self.config`. Until then nothing may change,
        but `idle_hooks` and `timeouts` may be widened here so that they suit both. Raises ConfigError for what is wrong
        or needs a restart: then the reload is refused as a whole."""
        return None

    def hides_username(self, username: str) -> bool:
        """Whether the user name of a CONNECT is a secret, a token say, and not a name. Then `ClientInfo.username` is None
        until this plugin says otherwise: neither the log nor other plugins see it, also where one that comes before
        refuses the client. What is raised counts as yes."""
        return False

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log `event` (a dotted name) with the plugin's id; `level` is debug, info, warning or error. Never put payloads
        or secrets into `fields`."""
        self.context.log(level, event, plugin=self.context.id, **fields)

    @staticmethod
    def matches(filter: str, topic: str) -> bool:
        """Whether a topic filter matches a topic."""
        return topics.matches(filter, topic)

    @staticmethod
    def contains(outer: str, inner: str) -> bool:
        """Whether `outer` matches every topic that the filter `inner` matches: the question to ask about SUBSCRIBE."""
        return topics.contains(outer, inner)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.context.id!r}>"


__all__ = [
    "EMPTY", "HOOK_API", "Accept", "Action", "Admission", "Allow", "Auth", "BrokerHandle", "Challenge", "Charge",
    "ClientInfo", "CommandGroup", "ConfigError", "Connect", "Context", "Deny", "Direction", "DisconnectReason", "Drop",
    "DropReason", "Dropped", "EndedBy", "HttpRouter", "Limits", "ListenerRegistry", "Message", "Meter",
    "MetricRegistry", "Over", "Pace", "Peer", "Plugin", "PluginError", "Properties", "ReasonCode", "Rule", "Rules",
    "Seconds", "SessionEvent", "Settings", "Size", "Subscription", "Will", "hookimpl", "rule_values",
    "rules_from_lists", "setting",
]  # fmt: skip
