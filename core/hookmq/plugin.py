"""The names that plugins import: the base class, and the types in hook signatures.

The whole module is public and stays compatible within a major version of `HOOK_API`. So do the
modules for special tasks: `hookmq.mqtt_api`, `hookmq.storage_api`, `hookmq.server_api`,
`hookmq.config_api` and `hookmq.cli_api`. Import nothing else from the core.

A plugin is a class, registered as an entry point in the ``hookmq.plugins`` group. The broker
creates one object for each configuration entry. Hooks are methods marked ``@hookimpl``.
`hookmq.hooks.specs` defines their names and arguments; a method may leave out arguments.

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

from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.clients import ClientHandle, ClientRequest, Delivery
from hookmq.hooks.direct_deliveries import DirectDeliveries
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.hooks.plugin_state import PluginState
from hookmq.hooks.rate_limit import DeliveryLimit, LimitExceeded, PublishLimit, RateLimiter
from hookmq.hooks.registries import HttpRouter, ListenerRegistry, WorkerPlan, WorkerRegistry
from hookmq.hooks.specs import HOOK_API, OBSERVERS, hookimpl
from hookmq.hooks.traces import Trace, TraceEvent, TraceKind, TraceRequest
from hookmq.hooks.verdicts import (
    Accept,
    Allow,
    Challenge,
    Deny,
    Drop,
    Handled,
    Limits,
    PluginDecision,
)
from hookmq.model.client import Certificate, ClientInfo, ClientRecord, Peer, Scope
from hookmq.model.drain import DrainRequest, DrainStatus
from hookmq.model.errors import (
    BindError,
    ConfigError,
    ConnectRefused,
    PluginError,
    PublishRefused,
    StaleCursor,
    StoreError,
)
from hookmq.model.events import (
    Action,
    DeliveryEnd,
    Direction,
    DisconnectReason,
    Dropped,
    DropReason,
    EndedBy,
    SessionEvent,
)
from hookmq.model.histogram import Exemplar, Histogram
from hookmq.model.log_events import LOG_LEVELS, LogEvent, LogFollower, LogLevel, LogLevels
from hookmq.model.message import Message, Will
from hookmq.model.metrics import Metrics
from hookmq.model.reload_report import ConfigCheck, ConfigMistake, ReloadReport, SettingChange
from hookmq.model.runtime import Cancel, Done, Promise, Runtime, Timer
from hookmq.model.settings import (
    AuthSettings,
    AuthzSettings,
    BrokerSettings,
    Seconds,
    SessionSettings,
    Settings,
    Size,
    setting,
)
from hookmq.model.snapshots import (
    HookSnapshot,
    InflightMessage,
    ListenerSnapshot,
    Page,
    PluginSnapshot,
    QueuedMessage,
    SessionSnapshot,
    SharedGroup,
    SubscriptionSnapshot,
)
from hookmq.model.subscription import Subscription
from hookmq.mqtt import topics
from hookmq.mqtt.errors import HookMQError, ProtocolError
from hookmq.mqtt.packets import Auth, Connect, WillFields
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.protocols import Journal, Store

Log = Callable[..., None]
"""``log(level, event, **fields)``: see `hookmq.model.runtime.Runtime.log`."""


def no_log(level: str, event: str, /, **fields: object) -> None:
    """Discard a log event."""


@dataclass(frozen=True, slots=True)
class Context:
    """A plugin's plugin id, entry point (`use`), distribution version and log."""

    id: str = "plugin"
    use: str = ""
    version: str = ""
    log: Log = no_log


@dataclass(frozen=True, slots=True)
class Admission:
    """The clients that the plugin accepts in `on_connect` and `on_auth`. ``hookmq check`` uses this for its warnings.

    - `who`: a description of the accepted clients, such as ``users of users.yaml``; empty for none.
    - `others`: what happens to other clients. ``left``: other plugins and ``auth.default`` decide. ``refused``: all
      are refused. ``some``: some are refused.
    - `anybody`: whether the plugin accepts clients without credentials.
    - `to_share`: the settings to change so that other plugins can decide on other clients.
    """

    who: str = ""
    others: Literal["left", "some", "refused"] = "left"
    anybody: bool = False
    to_share: str = ""


class Plugin:
    """The base class of every plugin.

    ``hookmq check`` also constructs plugins, so `__init__` must not open files or connections, or start work. Do that
    in `on_startup`.
    """

    Config: ClassVar[Any] = None
    """The type of the plugin's ``config:``: a dataclass, or a class with pydantic's `model_validate` and
    `model_json_schema`. None if the plugin has no settings."""

    requires_api: ClassVar[str] = ">=1.0,<2"
    """The versions of `HOOK_API` that this class works with."""

    blocking: ClassVar[bool] = False
    """True if hooks that are not ``async def`` may block. These hooks then run in a thread, except `on_deliver`, which
    such a plugin cannot implement."""

    timeouts: Mapping[str, float] = MappingProxyType({})
    """Timeouts in seconds, by hook name. Timeouts in the configuration take precedence. Hooks not listed keep their
    default. May be set in `__init__`."""

    idle_hooks: frozenset[str] = frozenset()
    """Hooks that the class implements but this object does not need. The broker does not call them. Set this in
    `__init__`."""

    offered_services: Mapping[str, object] = MappingProxyType({})
    """Objects that other plugins may use, keyed by purpose: ``{"accounts": self.manager}``. Others find them with
    `BrokerHandle.services`, so that plugins need not import each other. Set this in `__init__`."""

    authorize_actions: ClassVar[frozenset[Action]] = frozenset(
        {Action.PUBLISH, Action.SUBSCRIBE, Action.WILL}
    )
    """The actions that `authorize` is called for. Add `Action.DELIVER` to authorize each delivery of a message. This
    may be a property, because it is read when plugins are loaded and again at each `BrokerHandle.invalidate_authz`."""

    authorize_cached: ClassVar[bool] = True
    """False if `authorize` may return different results, including None, for messages on the same topic. The broker
    then does not cache decisions that involve this plugin."""

    def __init__(self, config: Any, context: Context) -> None:
        self.config = config
        self.context = context

    @property
    def admission(self) -> Admission | None:
        """The clients that this plugin accepts with its configuration, or None if unknown. The method must not block.
        It is used only if the plugin implements `on_connect` or `on_auth`.
        """
        return None

    @property
    def id(self) -> str:
        """The plugin id, which is also the key for the plugin's own data in `ClientInfo.state`."""
        return self.context.id

    @property
    def notes(self) -> Sequence[str]:
        """Warnings about this object's configuration: one sentence each, without secrets. ``hookmq check`` and the log
        show them. They do not prevent the broker from starting.
        """
        return ()

    def check_together(self, plugins: Sequence["Plugin"]) -> None:
        """Raise ConfigError if this plugin cannot run together with others in `plugins`, which are all plugins of the
        configuration. Called when a configuration is checked, at the start and at each reload.
        """

    def reconfigure(self, config: Any) -> Callable[[], None] | None:
        """Prepare to continue with `config` after a reload. Return a function that applies it, or None.

        The broker calls the function once the whole configuration is valid. The function sets `self.config` and must
        not fail. Until then, change nothing, except that `idle_hooks` and `timeouts` may be widened to suit both
        configurations. Raise ConfigError if `config` is invalid or needs a restart; the whole reload is then refused.

        If you return None, the broker creates a new object instead. It cannot do so for plugins that provide a store
        or a journal.
        """
        return None

    def hides_username(self, username: str) -> bool:
        """Return whether a CONNECT's user name is a secret, such as a token. An exception counts as True.

        If True, `ClientInfo.username` is None for other plugins and in the log, even if an earlier plugin refuses the
        client.
        """
        return False

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log `event`, a dotted name, with the plugin id. Any thread may call this.

        `level` is debug, info, warning or error. Never put payloads or secrets into `fields`.
        """
        self.context.log(level, event, plugin=self.context.id, **fields)

    @staticmethod
    def matches(filter: str, topic: str) -> bool:
        """Return whether a valid filter matches a valid topic."""
        return topics.matches(filter, topic)

    @staticmethod
    def contains(outer: str, inner: str) -> bool:
        """Return whether the filter `outer` matches every topic that the filter `inner` matches. Use this to authorize
        SUBSCRIBE."""
        return topics.contains(outer, inner)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.context.id!r}>"


__all__ = [
    "EMPTY",
    "HOOK_API",
    "LOG_LEVELS",
    "OBSERVERS",
    "Accept",
    "Action",
    "Admission",
    "Allow",
    "Auth",
    "AuthSettings",
    "AuthzSettings",
    "BindError",
    "BrokerHandle",
    "BrokerSettings",
    "Cancel",
    "Certificate",
    "Challenge",
    "ClientHandle",
    "ClientInfo",
    "ClientRecord",
    "ClientRequest",
    "ConfigCheck",
    "ConfigError",
    "ConfigMistake",
    "Connect",
    "ConnectRefused",
    "Context",
    "Delivery",
    "DeliveryEnd",
    "DeliveryLimit",
    "Deny",
    "DirectDeliveries",
    "Direction",
    "DisconnectReason",
    "Done",
    "DrainRequest",
    "DrainStatus",
    "Drop",
    "DropReason",
    "Dropped",
    "EndedBy",
    "Exemplar",
    "Handled",
    "Histogram",
    "HookMQError",
    "HookSnapshot",
    "HttpRouter",
    "InflightMessage",
    "Journal",
    "LimitExceeded",
    "Limits",
    "ListenerRegistry",
    "ListenerSnapshot",
    "Log",
    "LogEvent",
    "LogFollower",
    "LogLevel",
    "LogLevels",
    "Message",
    "MetricRegistry",
    "Metrics",
    "Page",
    "Peer",
    "Plugin",
    "PluginDecision",
    "PluginError",
    "PluginSnapshot",
    "PluginState",
    "Promise",
    "Properties",
    "ProtocolError",
    "PublishLimit",
    "PublishRefused",
    "QueuedMessage",
    "RateLimiter",
    "ReasonCode",
    "ReloadReport",
    "Runtime",
    "Scope",
    "Seconds",
    "SessionEvent",
    "SessionSettings",
    "SessionSnapshot",
    "SettingChange",
    "Settings",
    "SharedGroup",
    "Size",
    "StaleCursor",
    "Store",
    "StoreError",
    "Subscription",
    "SubscriptionSnapshot",
    "Timer",
    "Trace",
    "TraceEvent",
    "TraceKind",
    "TraceRequest",
    "Will",
    "WillFields",
    "WorkerPlan",
    "WorkerRegistry",
    "hookimpl",
    "no_log",
    "setting",
]  # fmt: skip
