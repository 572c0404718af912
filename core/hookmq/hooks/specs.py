"""Define every hook: its name, arguments and rules. To add a hook, change only this module.

An implementation may take fewer arguments than its specification, in any order. Adding an argument therefore does not
break existing plugins. `broker` is the plugin's own `BrokerHandle`. Arguments have no defaults because pluggy 1.6 and
1.7 treat defaults differently.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, Literal, TypeVar

import pluggy

from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.hooks.rate_limit import RateLimiter
from hookmq.hooks.registries import HttpRouter, ListenerRegistry, WorkerRegistry
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Handled
from hookmq.model.client import ClientInfo
from hookmq.model.events import Action, DisconnectReason, Dropped, SessionEvent
from hookmq.model.message import Message
from hookmq.model.settings import Settings
from hookmq.model.subscription import Subscription
from hookmq.mqtt.packets import Auth, Connect
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.cluster import Cluster
from hookmq.storage.protocols import Journal, Store

PROJECT: Final = "hookmq"
HOOK_API: Final = "1.0"
"""Version of the hook contract. Additions increase the minor part; breaking changes increase the major part."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method as the implementation of the hook with the same name."""


class HookKind(StrEnum):
    """How the broker uses a hook's return values."""

    DECIDE = "decide"
    TRANSFORM = "transform"
    OBSERVE = "observe"
    LIFECYCLE = "lifecycle"
    PROVIDE = "provide"
    REGISTER = "register"


OnError = Literal["deny", "pass", "drop"]
Narrowed = Literal["", "topic", "filter"]

QUEUE: Final = 10_000
"""Default size of an observer's queue, in events."""


@dataclass(frozen=True, slots=True)
class HookSpec:
    """The rules of one hook.

    - `timeout`: default timeout in seconds for asynchronous calls; None if implementations must be synchronous.
    - `on_error`: the values that the configuration may set, the default first; empty if there is no choice.
    - `topic`: whether configured `filters` narrow the hook by its topic, by its filter, or not at all.
    - `hot`: whether only one call in 64 is timed. For other hooks, every call is timed.
    - `outcomes`: names of the counters for the hook's results.
    - `queue`: the default size of an observer's queue, in events.
    """

    name: str
    kind: HookKind
    arguments: tuple[str, ...]
    timeout: float | None
    on_error: tuple[OnError, ...]
    topic: Narrowed
    hot: bool
    outcomes: tuple[str, ...]
    queue: int

    @property
    def given(self) -> tuple[str, ...]:
        """The arguments that the core passes to a chain: all of the hook's arguments except `broker`."""
        return tuple(name for name in self.arguments if name != "broker")

    @property
    def signature(self) -> str:
        """``name(argument, argument)``, as in the headings of the manual."""
        return f"{self.name}({', '.join(self.arguments)})"


F = TypeVar("F", bound=Callable[..., Any])
_specs: dict[str, HookSpec] = {}


def _hook(
    kind: HookKind,
    timeout: float | None = None,
    outcomes: tuple[str, ...] = ("ok",),
    on_error: tuple[OnError, ...] = (),
    topic: Narrowed = "",
    hot: bool = False,
) -> Callable[[F], F]:
    """Mark a method of `Specs` and add its rules to `SPECS`."""

    def mark(function: F) -> F:
        name, arguments = function.__name__, tuple(inspect.signature(function).parameters)[1:]
        failures = ("error",) if timeout is None else ("error", "timeout")
        queue = QUEUE if kind is HookKind.OBSERVE else 0
        _specs[name] = HookSpec(
            name, kind, arguments, timeout, on_error, topic, hot, (*outcomes, *failures), queue
        )
        return hookspec(function)

    return mark


_transform = partial(_hook, HookKind.TRANSFORM)
_observe = partial(_hook, HookKind.OBSERVE, 30.0)
_lifecycle = partial(_hook, HookKind.LIFECYCLE, 30.0)
_provide = partial(_hook, HookKind.PROVIDE)
_register = partial(_hook, HookKind.REGISTER)


class Specs:
    """The signatures of all hooks, in the manual's order."""

    @_hook(HookKind.DECIDE, 5.0, ("accept", "deny", "abstain"), ("deny",))
    def on_connect(
        self, client: ClientInfo, connect: Connect, broker: BrokerHandle
    ) -> Accept | Deny | None:
        """Decide whether a client may connect. The hook is called once, after a valid CONNECT and before CONNACK."""

    @_hook(HookKind.DECIDE, 5.0, ("accept", "challenge", "deny", "abstain"), ("deny",))
    def on_auth(
        self, client: ClientInfo, auth: Auth, broker: BrokerHandle
    ) -> Challenge | Accept | Deny | None:
        """Take one step of enhanced authentication or re-authentication. Abstain if the plugin does not support the
        method."""

    @_hook(HookKind.DECIDE, 0.25, ("allow", "deny", "abstain"), ("deny",), "topic", hot=True)
    def authorize(
        self,
        client: ClientInfo,
        action: Action,
        topic: str,
        message: Message | None,
        subscription: Subscription | None,
        broker: BrokerHandle,
    ) -> Allow | Deny | None:
        """Decide whether a client may perform `action` on `topic`.

        For SUBSCRIBE, `topic` is the filter without ``$share/NAME/``; the name is in `subscription.share`. `message` is
        None for SUBSCRIBE. `subscription` is None for PUBLISH and WILL.
        """

    @_transform(
        1.0, ("replace", "drop", "handled", "deny", "abstain"), ("deny", "pass"), "topic", hot=True
    )
    def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Message | Drop | Handled | Deny | None:
        """Change, drop, take over or deny an incoming message. `client` is None if the broker or a plugin publishes."""

    @_transform(1.0, ("replace", "deny", "abstain"), ("deny",), "filter")
    def on_subscribe(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> Subscription | Deny | None:
        """Change or deny a subscription before it is made."""

    @_transform(None, ("replace", "drop", "deny", "abstain"), ("pass", "drop"), "topic", hot=True)
    def on_deliver(
        self, client: ClientInfo, message: Message, subscription: Subscription
    ) -> Message | Drop | None:
        """Change or drop a message that is about to be sent to a subscriber. The implementation must be synchronous."""

    @_transform(1.0, ("replace", "drop", "handled", "deny", "abstain"), ("deny",), "topic")
    def on_will(
        self, client: ClientInfo, message: Message, broker: BrokerHandle
    ) -> Message | Drop | Handled | Deny | None:
        """Change, drop, take over or deny a will that is about to be published."""

    @_observe()
    def on_session(self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle) -> None:
        """Observe a session that was created, resumed, taken over, expired or ended."""

    @_observe(topic="filter")
    def on_subscribed(
        self, client: ClientInfo, subscription: Subscription, code: ReasonCode, broker: BrokerHandle
    ) -> None:
        """Observe a subscription that was granted. `code` is the granted QoS, 0 to 2."""

    @_observe(topic="filter")
    def on_unsubscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """Observe the end of a subscription."""

    @_observe(topic="topic", hot=True)
    def on_published(
        self, client: ClientInfo | None, message: Message, matched: int, broker: BrokerHandle
    ) -> None:
        """Observe a message that was accepted and routed to `matched` subscriptions."""

    @_observe(topic="topic", hot=True)
    def on_delivered(
        self, client: ClientInfo, message: Message, qos: int, broker: BrokerHandle
    ) -> None:
        """Observe a completed delivery: written at QoS 0, or acknowledged at QoS 1 and 2.

        `qos` is the delivery's QoS; `message.qos` is the publisher's QoS.
        """

    @_observe(topic="topic")
    def on_dropped(
        self, client: ClientInfo | None, message: Message, why: Dropped, broker: BrokerHandle
    ) -> None:
        """Observe a dropped message. `why` has the reason and the direction."""

    @_observe(topic="topic")
    def on_retained(self, topic: str, message: Message | None, broker: BrokerHandle) -> None:
        """Observe a change to a retained message. `message` is None if it was cleared."""

    @_observe()
    def on_auth_failed(
        self, client: ClientInfo, code: ReasonCode, reason: str, broker: BrokerHandle
    ) -> None:
        """Observe a refusal at CONNECT or re-authentication, by a plugin, a setting or a limit.

        Connections above ``broker.max_connections`` are reported at most once a second, with an empty `client.client_id`
        and `client.version` 0.
        """

    @_observe(topic="topic")
    def on_denied(
        self,
        client: ClientInfo | None,
        action: Action,
        topic: str,
        code: ReasonCode,
        rule: str,
        broker: BrokerHandle,
    ) -> None:
        """Observe a denied action.

        `rule` names the plugin or setting that denied it, such as ``jwt`` or ``default``. If the verdict has a
        `Deny.rule`, it is appended, as in ``acl: acl.yaml:12``.
        """

    @_observe()
    def on_disconnect(
        self, client: ClientInfo, reason: DisconnectReason, broker: BrokerHandle
    ) -> None:
        """Observe the end of an accepted client's connection."""

    @_observe()
    def on_event(
        self,
        client: ClientInfo | None,
        event: str,
        fields: Mapping[str, object],
        plugin: str,
        broker: BrokerHandle,
    ) -> None:
        """Observe an event reported with `BrokerHandle.emit`. `plugin` is the id of the plugin that reported it."""

    @_lifecycle()
    def on_startup(self, broker: BrokerHandle) -> None:
        """Open connections and start work. The hook is called before any listener opens."""

    @_lifecycle()
    def on_ready(self, broker: BrokerHandle) -> None:
        """Called when all listeners are open: once for each plugin object, at startup or after the reload that created
        it."""

    @_lifecycle()
    def on_timer(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        """Called when a timer of this plugin is due, or as soon as possible after that. The timer is deleted once the
        hook has returned. If the hook fails, it is called again later. See `BrokerHandle.set_timer`.
        """

    @_lifecycle()
    def on_reload(self, old: Settings, new: Settings) -> None:
        """Called after a reload that kept this plugin object."""

    @_lifecycle()
    def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """Close everything within `deadline` seconds. The hook is called when the broker stops or a reload removes the
        plugin.
        """

    @_provide()
    def provide_store(self, config: Settings, broker: BrokerHandle) -> Store | None:
        """Return the store for sessions and retained messages, or None."""

    @_provide()
    def provide_journal(
        self, config: Settings, broker: BrokerHandle
    ) -> Journal | tuple[Journal, ...] | None:
        """Return one or more journals that must store a message before it is acknowledged, or None."""

    @_provide()
    def provide_cluster(self, config: Settings, broker: BrokerHandle) -> Cluster | None:
        """Return the object that joins this broker with other brokers, or None. See `hookmq.storage.cluster`."""

    @_provide()
    def provide_rate_limiter(self, client: ClientInfo, broker: BrokerHandle) -> RateLimiter | None:
        """Return an accepted client's rate limiter, or None. See `hookmq.hooks.rate_limit`."""

    @_register()
    def register_workers(self, registry: WorkerRegistry) -> None:
        """Run the broker as several processes behind the same listeners."""

    @_register()
    def register_listeners(self, registry: ListenerRegistry) -> None:
        """Add listener types."""

    @_register()
    def register_http(self, router: HttpRouter) -> None:
        """Add routes to listeners of type http."""

    @_register()
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add metrics to the exporter."""


SPECS: Final[Mapping[str, HookSpec]] = _specs
"""Every hook by name, in the manual's order."""
OBSERVERS: Final = frozenset(name for name, spec in SPECS.items() if spec.kind is HookKind.OBSERVE)
"""The names of the observer hooks."""
