"""Every hook: its name, its arguments and its rules. The one place where a hook is added.

An implementation may take fewer of the arguments than its specification, in any order, so that adding an argument breaks
no plugin. `broker` is the plugin's own handle on the broker. No argument has a default (pluggy 1.6 and 1.7 differ there).
"""

import inspect
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol

import pluggy

from hookmq.codec.packets import Auth, Connect
from hookmq.hooks.meter import Meter
from hookmq.hooks.registries import CommandGroup, HttpRouter, ListenerRegistry
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop
from hookmq.metric_registry import MetricRegistry
from hookmq.metrics import Metrics
from hookmq.properties import EMPTY, Properties
from hookmq.reason import ReasonCode
from hookmq.runtime import Runtime
from hookmq.settings import Settings
from hookmq.store import Journal, Store
from hookmq.types import (
    Action,
    ClientInfo,
    DisconnectReason,
    Dropped,
    Message,
    SessionEvent,
    Subscription,
)

PROJECT: Final = "hookmq"
HOOK_API: Final = "1.0"
"""The version of this contract: the minor part grows with every addition, the major part with every break."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class BrokerHandle(Protocol):
    """The `broker` argument: what a plugin may do to the broker that runs it. Each plugin has its own handle.

    Any thread may use it, and so may hooks that run in one: observers without ``async`` and plugins with
    ``blocking = True``. There `publish`, `emit`, `invalidate_authz` and `invalidate_routes` are handed to the event loop,
    and calls of one thread keep their order. `log`, `now`, `time` and reading `metrics` work as they are. The others need
    the broker's state: in a thread they raise PluginError. Make a hook that needs them ``async def``.
    """

    @property
    def metrics(self) -> Metrics:
        """The broker's counters; to be read."""

    @property
    def runtime(self) -> Runtime:
        """Timers, coroutines and threads of the broker, for plugins that do work of their own. Raises PluginError in a
        thread; fetch it in `on_startup`. Its `call_threadsafe` is the way back from a thread of your own."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
    ) -> None:
        """Publish with the origin ``plugin:ID``. It goes the way of every message, but past this plugin's own
        `on_publish`. Returns at once; what is refused is counted, logged and told to `on_dropped`. Raises PluginError
        for a topic or QoS that MQTT does not know."""

    def publish_and_wait(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
    ) -> Awaitable[int]:
        """Publish, wait until the message is committed, and tell how many subscriptions and journals matched. Raises
        PluginError when it was refused, and in a thread."""

    def authorize(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None = None
    ) -> Awaitable[Allow | Deny]:
        """Ask `authorize` of every plugin, this one's own included, whether `client` may do `action` to `topic`; if none
        answers, ``authz.default`` does. Ask before you publish for a client: `publish` itself asks nobody.

        `action` is PUBLISH, SUBSCRIBE or WILL; `topic` is a topic filter for SUBSCRIBE, which may begin with ``$share/``.
        Plugins see `message` with `topic` as its topic, or an empty one of QoS 0 if you give none. A QoS above the
        verdict's `max_qos` is a Deny, and so is a topic below ``$SYS/``. A plugin that fails is a Deny with
        ``decided=False``. The client may have left: plugins judge it by `client`. Nothing is remembered or told to
        `on_denied`. Raises PluginError for another action, for a topic that MQTT does not know, and in a thread.
        """

    def emit(self, event: str, client: ClientInfo | None = None, /, **fields: object) -> None:
        """Tell the observers of `on_event`, this plugin's own included, that something happened which only this plugin
        knows. `event` is a dotted name that begins with the plugin's entry point, as in ``ratelimit.banned``; `fields`
        are values that JSON has, no payloads and no secrets. Returns at once; costs nothing where nobody observes. Raises
        PluginError for a name without a dot."""

    def invalidate_authz(self, client_id: str | None = None, filter: str | None = None) -> None:
        """Forget what `authorize` answered, for one client or all, and ask again about the subscriptions that `filter`
        overlaps, or all. Every plugin's `authorize_actions` are looked at again as well."""

    def invalidate_routes(self) -> None:
        """Ask every journal again which topics it wants (`hookmq.store.Journal.wants`)."""

    def disconnect(
        self,
        client_id: str,
        code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION,
        reason: str = "",
        drop_will: bool = False,
    ) -> bool:
        """End a client's connection; False when it is not connected. Raises PluginError in a thread."""

    def client(self, client_id: str) -> ClientInfo | None:
        """A connected client; None when it is not connected. Raises PluginError in a thread."""

    def clients(self) -> list[ClientInfo]:
        """All connected clients, copied: do not do this per message. Raises PluginError in a thread."""

    def retained(self, filter: str) -> list[Message]:
        """The retained messages that match. Raises PluginError in a thread."""

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log as this plugin."""

    def now(self) -> float:
        """Monotonic seconds."""

    def time(self) -> float:
        """Epoch seconds."""


class Specs:
    """The signatures, for pluggy and for the manual."""

    # decide ------------------------------------------------------------------------------------------------------

    @hookspec
    def on_connect(
        self, client: ClientInfo, connect: Connect, broker: BrokerHandle
    ) -> Accept | Deny | None:
        """May this client connect? Asked once, after CONNECT was found valid and before CONNACK."""

    @hookspec
    def on_auth(
        self, client: ClientInfo, auth: Auth, broker: BrokerHandle
    ) -> Challenge | Accept | Deny | None:
        """One step of enhanced authentication or re-authentication; None where the method is not this plugin's."""

    @hookspec
    def authorize(
        self,
        client: ClientInfo,
        action: Action,
        topic: str,
        message: Message | None,
        subscription: Subscription | None,
        broker: BrokerHandle,
    ) -> Allow | Deny | None:
        """May this client do that? `topic` is the topic filter when `action` is SUBSCRIBE, without ``$share/NAME/``: that
        is `subscription.share`. `message` is None for SUBSCRIBE, `subscription` for PUBLISH and WILL."""

    # transform ---------------------------------------------------------------------------------------------------

    @hookspec
    def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Message | Drop | Deny | None:
        """A message comes in. `client` is None when the broker or a plugin publishes."""

    @hookspec
    def on_subscribe(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> Subscription | Deny | None:
        """A subscription is about to be made."""

    @hookspec
    def on_deliver(
        self, client: ClientInfo, message: Message, subscription: Subscription
    ) -> Message | Drop | None:
        """A message leaves a session's queue for the wire."""

    @hookspec
    def on_will(
        self, client: ClientInfo, message: Message, broker: BrokerHandle
    ) -> Message | Drop | Deny | None:
        """A will is about to be published."""

    # observe -----------------------------------------------------------------------------------------------------

    @hookspec
    def on_session(self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle) -> None:
        """A session was created, resumed, taken over, expired or ended."""

    @hookspec
    def on_subscribed(
        self, client: ClientInfo, subscription: Subscription, code: ReasonCode, broker: BrokerHandle
    ) -> None:
        """A subscription was granted with `code` (QoS 0 to 2)."""

    @hookspec
    def on_unsubscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """A subscription ended."""

    @hookspec
    def on_published(
        self, client: ClientInfo | None, message: Message, matched: int, broker: BrokerHandle
    ) -> None:
        """A message was accepted and routed to `matched` subscriptions."""

    @hookspec
    def on_delivered(
        self, client: ClientInfo, message: Message, qos: int, broker: BrokerHandle
    ) -> None:
        """A message reached its subscriber: written (QoS 0) or acknowledged (QoS 1 and 2); `qos` is that of the delivery,
        `message.qos` the publisher's."""

    @hookspec
    def on_dropped(
        self, client: ClientInfo | None, message: Message, why: Dropped, broker: BrokerHandle
    ) -> None:
        """A message went no further."""

    @hookspec
    def on_retained(self, topic: str, message: Message | None, broker: BrokerHandle) -> None:
        """A retained message was set, or cleared (None)."""

    @hookspec
    def on_auth_failed(
        self, client: ClientInfo, code: ReasonCode, reason: str, broker: BrokerHandle
    ) -> None:
        """A client was refused at CONNECT or at re-authentication, by a plugin, a setting or a limit.

        A connection over ``broker.max_connections`` is told too, at most once a second: `client.client_id` is then
        empty and `client.version` 0."""

    @hookspec
    def on_denied(
        self,
        client: ClientInfo | None,
        action: Action,
        topic: str,
        code: ReasonCode,
        rule: str,
        broker: BrokerHandle,
    ) -> None:
        """An action was refused; `rule` names the plugin or the setting that did: ``default``, ``jwt``, or with the
        plugin's own rule (`Deny.rule`) ``acl: acl.yaml:12``."""

    @hookspec
    def on_disconnect(
        self, client: ClientInfo, reason: DisconnectReason, broker: BrokerHandle
    ) -> None:
        """An accepted client's connection ended."""

    @hookspec
    def on_event(
        self,
        client: ClientInfo | None,
        event: str,
        fields: Mapping[str, object],
        plugin: str,
        broker: BrokerHandle,
    ) -> None:
        """The plugin with the id `plugin` tells what only it knows (`BrokerHandle.emit`)."""

    # lifecycle ---------------------------------------------------------------------------------------------------

    @hookspec
    def on_startup(self, broker: BrokerHandle) -> None:
        """Before any listener opens."""

    @hookspec
    def on_ready(self, broker: BrokerHandle) -> None:
        """All listeners are open. Called once for each plugin object: at the start, or after the reload that made it."""

    @hookspec
    def on_reload(self, old: Settings, new: Settings) -> None:
        """The configuration was reloaded and this plugin stays."""

    @hookspec
    def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """The broker stops, or this plugin is removed; it has `deadline` seconds."""

    # provide -----------------------------------------------------------------------------------------------------

    @hookspec
    def provide_store(self, config: Settings, broker: BrokerHandle) -> Store | None:
        """The store of sessions and retained messages, or None."""

    @hookspec
    def provide_journal(
        self, config: Settings, broker: BrokerHandle
    ) -> Journal | tuple[Journal, ...] | None:
        """A journal that must hold a message before it is acknowledged, or a tuple of them, or None."""

    @hookspec
    def provide_meter(self, client: ClientInfo, broker: BrokerHandle) -> Meter | None:
        """What a client that is let in is measured by (`hookmq.hooks.meter`), or None."""

    # register ----------------------------------------------------------------------------------------------------

    @hookspec
    def register_listeners(self, registry: ListenerRegistry) -> None:
        """Add types of listeners."""

    @hookspec
    def register_http(self, router: HttpRouter) -> None:
        """Add routes to the listeners of type http."""

    @hookspec
    def register_cli(self, group: CommandGroup) -> None:
        """Add commands to ``hookmq``. A staticmethod or classmethod: it is called on the class."""

    @hookspec
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add metrics to the exporter."""


class Kind(StrEnum):
    """What becomes of a hook's answers."""

    DECIDE = "decide"
    TRANSFORM = "transform"
    OBSERVE = "observe"
    LIFECYCLE = "lifecycle"
    PROVIDE = "provide"
    REGISTER = "register"


OnError = Literal["deny", "pass", "drop"]


@dataclass(frozen=True, slots=True)
class Spec:
    """The rules of one hook.

    `timeout` is the default for asynchronous implementations, in seconds; None means that none may be asynchronous.
    `on_error` holds what may be chosen for failures, the default first; empty where there is no choice to speak of.
    `topic` says which argument topic filters narrow by: a topic, a topic filter, or nothing. `hot` hooks have one call in
    64 timed, others every call. `queue` is the default bound of an observer's queue.
    """

    name: str
    kind: Kind
    arguments: tuple[str, ...]
    timeout: float | None
    on_error: tuple[OnError, ...] = ()
    topic: Literal["", "topic", "filter"] = ""
    hot: bool = False
    outcomes: tuple[str, ...] = ("ok", "error", "timeout")
    queue: int = 0

    @property
    def given(self) -> tuple[str, ...]:
        """The arguments without `broker`, as the core gives them to a chain."""
        return tuple(name for name in self.arguments if name != "broker")

    @property
    def signature(self) -> str:
        """``name(argument, argument)``, as the manual's headings have it."""
        return f"{self.name}({', '.join(self.arguments)})"


QUEUE: Final = 10_000
"""Events that wait for one observer, unless the configuration says otherwise."""

_FAILED = ("error", "timeout")
_VERDICTS = {
    "on_connect": ("accept", "deny", "abstain", *_FAILED),
    "on_auth": ("accept", "challenge", "deny", "abstain", *_FAILED),
    "authorize": ("allow", "deny", "abstain", *_FAILED),
    "on_publish": ("replace", "drop", "deny", "abstain", *_FAILED),
    "on_subscribe": ("replace", "deny", "abstain", *_FAILED),
    "on_deliver": ("replace", "drop", "deny", "abstain", "error"),
    "on_will": ("replace", "drop", "deny", "abstain", *_FAILED),
}
_FILTERED: dict[str, Literal["topic", "filter"]] = {
    "authorize": "topic",
    "on_publish": "topic",
    "on_subscribe": "filter",
    "on_deliver": "topic",
    "on_will": "topic",
    "on_subscribed": "filter",
    "on_unsubscribed": "filter",
    "on_published": "topic",
    "on_delivered": "topic",
    "on_dropped": "topic",
    "on_retained": "topic",
    "on_denied": "topic",
}
_KINDS: dict[str, tuple[Kind, float | None, tuple[OnError, ...]]] = {
    "on_connect": (Kind.DECIDE, 5.0, ("deny",)),
    "on_auth": (Kind.DECIDE, 5.0, ("deny",)),
    "authorize": (Kind.DECIDE, 0.25, ("deny",)),
    "on_publish": (Kind.TRANSFORM, 1.0, ("deny", "pass")),
    "on_subscribe": (Kind.TRANSFORM, 1.0, ("deny",)),
    "on_deliver": (Kind.TRANSFORM, None, ("pass", "drop")),
    "on_will": (Kind.TRANSFORM, 1.0, ("deny",)),
    "on_session": (Kind.OBSERVE, 30.0, ()),
    "on_subscribed": (Kind.OBSERVE, 30.0, ()),
    "on_unsubscribed": (Kind.OBSERVE, 30.0, ()),
    "on_published": (Kind.OBSERVE, 30.0, ()),
    "on_delivered": (Kind.OBSERVE, 30.0, ()),
    "on_dropped": (Kind.OBSERVE, 30.0, ()),
    "on_retained": (Kind.OBSERVE, 30.0, ()),
    "on_auth_failed": (Kind.OBSERVE, 30.0, ()),
    "on_denied": (Kind.OBSERVE, 30.0, ()),
    "on_disconnect": (Kind.OBSERVE, 30.0, ()),
    "on_event": (Kind.OBSERVE, 30.0, ()),
    "on_startup": (Kind.LIFECYCLE, 30.0, ()),
    "on_ready": (Kind.LIFECYCLE, 30.0, ()),
    "on_reload": (Kind.LIFECYCLE, 30.0, ()),
    "on_shutdown": (Kind.LIFECYCLE, 30.0, ()),
    "provide_store": (Kind.PROVIDE, None, ()),
    "provide_journal": (Kind.PROVIDE, None, ()),
    "provide_meter": (Kind.PROVIDE, None, ()),
    "register_listeners": (Kind.REGISTER, None, ()),
    "register_http": (Kind.REGISTER, None, ()),
    "register_cli": (Kind.REGISTER, None, ()),
    "register_metrics": (Kind.REGISTER, None, ()),
}
_HOT = frozenset({"authorize", "on_publish", "on_deliver", "on_published", "on_delivered"})
_SYNC_OUTCOMES = ("ok", "error")


def _spec(name: str) -> Spec:
    kind, timeout, on_error = _KINDS[name]
    signature = inspect.signature(getattr(Specs, name))
    default = ("ok", *_FAILED) if timeout is not None else _SYNC_OUTCOMES
    return Spec(
        name,
        kind,
        tuple(signature.parameters)[1:],
        timeout,
        on_error,
        _FILTERED.get(name, ""),
        name in _HOT,
        _VERDICTS.get(name, default),
        QUEUE if kind is Kind.OBSERVE else 0,
    )


SPECS: Final[Mapping[str, Spec]] = {name: _spec(name) for name in _KINDS}
"""Every hook by its name, in the manual's order."""
OBSERVERS: Final = frozenset(name for name, spec in SPECS.items() if spec.kind is Kind.OBSERVE)
"""The names of the observer hooks."""
