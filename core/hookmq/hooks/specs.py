"""Define every hook: its name, arguments and rules. To add a hook, change only this module.

An implementation may take fewer arguments than its specification, in any order. Adding an argument therefore does not
break existing plugins. `broker` is the plugin's own `BrokerHandle`. Arguments have no defaults because pluggy 1.6 and
1.7 treat defaults differently.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar

import pluggy

from hookmq.hooks.clients import ClientHandle, ClientRequest
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.hooks.plugin_state import PluginState
from hookmq.hooks.rate_limit import RateLimiter
from hookmq.hooks.registries import CommandGroup, HttpRouter, ListenerRegistry
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Handled
from hookmq.model.client import ClientInfo
from hookmq.model.events import Action, DisconnectReason, Dropped, SessionEvent
from hookmq.model.message import Message
from hookmq.model.metrics import Metrics
from hookmq.model.reload_report import ReloadReport
from hookmq.model.runtime import Runtime
from hookmq.model.settings import Settings
from hookmq.model.snapshots import (
    InflightMessage,
    ListenerSnapshot,
    Page,
    QueuedMessage,
    SessionSnapshot,
    SharedGroup,
    SubscriptionSnapshot,
)
from hookmq.model.subscription import Subscription
from hookmq.mqtt.packets import Auth, Connect
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.protocols import Journal, Store

PROJECT: Final = "hookmq"
HOOK_API: Final = "1.0"
"""Version of the hook contract. Additions increase the minor part; breaking changes increase the major part."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class BrokerHandle(Protocol):
    """The `broker` argument of a hook: the operations a plugin can request. Each plugin has its own handle.

    Hooks that run in a thread may also use it: observers without ``async``, and plugins with ``blocking = True``. In a
    thread, calls to `publish`, `emit`, `invalidate_authz` and `invalidate_routes` are passed to the event loop in order.
    `log`, `now`, `time` and `metrics` work from any thread. All other members need the broker's state and raise
    PluginError in a thread: write a hook that needs them as ``async def``.
    """

    @property
    def metrics(self) -> Metrics:
        """The broker's counters, which are read-only for plugins."""

    @property
    def runtime(self) -> Runtime:
        """Timers, coroutines and threads for a plugin's own work. Raises PluginError in a thread.

        Get it in `on_startup`. Your own threads can then use its `call_threadsafe` to run code on the event loop.
        """

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
        *,
        as_client: ClientInfo | None = None,
        volatile: bool = False,
    ) -> None:
        """Publish a message with the origin ``plugin:ID``. Returns at once.

        The message passes through every hook except `authorize` and this plugin's own `on_publish`. A refusal is
        counted, logged and reported to `on_dropped`. Raises PluginError for an invalid topic or QoS.

        With `as_client`, the message is published in the name of that client, which may be offline. `authorize` is then
        called, all hooks see this client, and `Message.sender` is its client id. `topic` includes the client's mount
        point. The client's rate limit does not apply.

        With `retain` and `volatile`, the message is retained without a record in the store. After a restart, neither
        this message nor the message that it replaced exists. Use this for values that are published repeatedly, such as
        statistics. Without `retain`, `volatile` has no effect.
        """

    def publish_and_wait(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
        *,
        as_client: ClientInfo | None = None,
        volatile: bool = False,
    ) -> Awaitable[int]:
        """Publish like `publish`, wait for the commit, and return the number of matching subscriptions and journals.

        Raises PluginError if the message was refused, or if called in a thread.
        """

    def connect(self, request: ClientRequest) -> Awaitable[ClientHandle]:
        """Connect a plugin client: a client of the broker without a socket, for a device that does not speak MQTT.

        All plugins, including this one, decide on it as on any other client, with `on_connect`, `authorize` and the
        other hooks. Awaiting raises ConnectRefused with the reason code if the client is not accepted. Raises
        PluginError for an invalid request, if the plugin has been disabled or shut down, or if called in a thread.
        """

    def authorize(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None = None
    ) -> Awaitable[Allow | Deny]:
        """Ask all plugins, including this one, whether `client` may perform `action` on `topic`.

        `publish` itself calls `authorize` only with `as_client`. If all plugins abstain, ``authz.default`` decides.

        `action` is PUBLISH, SUBSCRIBE or WILL. For SUBSCRIBE, `topic` is a filter and may start with ``$share/``.
        Plugins see `message` with its topic set to `topic`. If you pass None, they see an empty QoS 0 message. The
        client may be offline.

        The result is a Deny if the QoS exceeds `Allow.max_qos`, or for topics below ``$SYS/``. If a plugin fails, it is
        a Deny with ``decided=False``. The result is neither cached nor reported to `on_denied`. Raises PluginError for
        other actions, for an invalid topic, or if called in a thread.
        """

    def emit(self, event: str, client: ClientInfo | None = None, /, **fields: object) -> None:
        """Report one of this plugin's events to `on_event` observers. Returns at once. Cheap if there are no observers.

        `event` is a dotted name that starts with the plugin's entry point, such as ``ratelimit.banned``. `fields` are
        JSON values without payloads or secrets. Raises PluginError for a name without a dot, or one that starts with
        ``broker.``: these are the broker's own events.
        """

    def invalidate_authz(self, client_id: str | None = None, filter: str | None = None) -> None:
        """Discard cached authorization decisions for one client or all, and authorize existing subscriptions again.

        If `filter` is given, only subscriptions that overlap it are checked. This also rereads every plugin's
        `Plugin.authorize_actions`.
        """

    def invalidate_routes(self) -> None:
        """Ask every journal again which topics it wants. See `hookmq.storage.protocols.Journal.wants`."""

    def disconnect(
        self,
        client_id: str,
        code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION,
        reason: str = "",
        drop_will: bool = False,
    ) -> bool:
        """Disconnect a client. Return False if it is offline. Raises PluginError in a thread.

        Like every other call that changes the broker, this is logged and reported to `on_event` with this plugin's id,
        here as ``broker.disconnected``.
        """

    def end_session(self, client_id: str, reason: str = "") -> bool:
        """End a client's session at once, regardless of its expiry. Return False if the client has no session.

        The session ends in a later turn, so that nothing changes during the hook that calls this. An online client is
        disconnected with the code ADMINISTRATIVE_ACTION and `reason`. The will is published, and the session's
        subscriptions and messages are dropped. Reported as ``broker.session_ended``. Raises PluginError in a thread.
        """

    def subscribe(
        self,
        client_id: str,
        filter: str,
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int | None = None,
        authorize: bool = False,
    ) -> Awaitable[ReasonCode]:
        """Subscribe a client, online or offline. The result is the granted QoS, or a code of 0x80 or above.

        `filter` is written as the client would send it. The broker adds the mount point of the client's listener, and
        the client can unsubscribe with `filter`. The subscription passes through the same checks, limits and hooks as a
        SUBSCRIBE, except the client's rate limit and this plugin's own `on_subscribe`. `authorize` is called only if
        you pass ``authorize=True``. Retained messages are sent as after a SUBSCRIBE. An offline client gets them when
        it returns, unless the broker restarts before that.

        The result arrives after the commit; the subscription is made even if nothing awaits it. Reported as
        ``broker.subscribed`` or ``broker.subscribe_refused``. Raises PluginError for an invalid argument or in a
        thread. Awaiting raises PluginError if the client has no session.
        """

    def unsubscribe(self, client_id: str, filter: str) -> Awaitable[bool]:
        """Remove a client's subscription, online or offline. `filter` is compared character by character.

        The result arrives after the commit, and is False if there is no such subscription. Messages that are already
        queued are still delivered. Reported as ``broker.unsubscribed``. Raises PluginError in a thread.
        """

    def purge_queue(self, client_id: str) -> Awaitable[int]:
        """Drop every message that waits for a client, in memory and in the store. The result is the number of dropped
        messages.

        Messages in flight are not affected. Messages that arrive during the purge are kept. The work is sliced; until
        it ends, nothing is sent from this queue. Each message is dropped with the reason ``plugin`` and this plugin's
        id. The result arrives after the commit. Reported as ``broker.queue_purged``. Raises PluginError in a thread.
        """

    def clear_retained(self, filter: str) -> Awaitable[int]:
        """Clear every retained message that `filter` matches. The result is the number of cleared messages.

        Subscribers are not sent anything; `on_retained` is called for each topic. The work is sliced. As for
        subscriptions, ``#`` does not match topics that start with ``$``. The result arrives after the commit. Reported
        as ``broker.retained_cleared``. Raises PluginError for an invalid filter or in a thread.
        """

    def client(self, client_id: str) -> ClientInfo | None:
        """Return an online client, or None if it is offline. Raises PluginError in a thread."""

    def session(self, client_id: str) -> SessionSnapshot | None:
        """Return the session of a client, online or offline, or None. Raises PluginError in a thread."""

    def sessions(
        self,
        cursor: str = "",
        limit: int = 100,
        *,
        client_id: str = "",
        username: str = "",
        listener: str = "",
        connected: bool | None = None,
    ) -> Page[SessionSnapshot]:
        """Return a page of the sessions, oldest first.

        To get the next page, pass ``page.cursor`` with the same other arguments. The cursor is empty after the last
        page. A session that exists from the first page to the last is returned exactly once. A session that begins or
        ends in between may be missing.

        `client_id` and `username` are prefixes, `listener` is a name, and `connected` selects online or offline
        sessions. One call examines at most 1000 sessions. A page may therefore be short, or empty, although more
        sessions follow.

        Raises PluginError for a `limit` outside 1 to 1000. Also raises PluginError for a cursor that is malformed, that
        was created before the broker's start, or that belongs to another call or other arguments. The same applies to
        all calls below that return a page. They also raise PluginError in a thread.
        """

    def subscriptions(
        self, cursor: str = "", limit: int = 100, *, client_id: str = "", filter: str = ""
    ) -> Page[SubscriptionSnapshot]:
        """Return a page of the subscriptions, session by session. A subscription that exists from the first page to the
        last is returned exactly once.

        `client_id` selects one session. `filter` selects the subscriptions that overlap it. If `filter` is a topic,
        these are the subscriptions that match the topic. ``$share/NAME/FILTER`` selects among the subscriptions with
        this share name. One call examines at most 1000 sessions and subscriptions; it may exceed this limit by the
        filters of one session. Raises PluginError for an invalid `filter`, and for a cursor of a session that has
        ended.
        """

    def queue(
        self, client_id: str, cursor: str = "", limit: int = 100
    ) -> Awaitable[Page[QueuedMessage]]:
        """Return a page of a session's queue, beginning with the next message to send. The queue does not change.

        Messages that are not in memory are read from the store, once everything before this call is committed. A page
        of such messages contains at most 4 MiB, unless its first message is larger. QoS 0 messages for a slow client
        are not included. A message may have expired. The page is empty if there is no session. Awaiting raises
        PluginError if the store fails. The call raises PluginError for a cursor of a session that has ended.
        """

    def inflight(self, client_id: str, cursor: str = "", limit: int = 100) -> Page[InflightMessage]:
        """Return a page of the messages in flight to a client, sorted by packet id.

        The page is empty if there is no session. Raises PluginError for a cursor of a session that has ended.
        """

    def retained(self, filter: str = "#", cursor: str = "", limit: int = 100) -> Page[Message]:
        """Return a page of the retained messages that match `filter`, in no particular order.

        A topic that has a message from the first page to the last is returned exactly once, with its current message.
        ``#`` excludes topics that start with ``$``.

        Each cursor can be used once. A plugin can have 32 open searches: a further search ends the least recently used
        one, whose cursor is then stale. Raises PluginError for a stale cursor and for an invalid `filter`.
        """

    def shared_groups(self, cursor: str = "", limit: int = 100) -> Page[SharedGroup]:
        """Return a page of the shared subscriptions. A shared subscription that exists from the first page to the last
        is returned exactly once. To list its members, call `subscriptions` with its filter.
        """

    def listeners(self) -> tuple[ListenerSnapshot, ...]:
        """Return all listeners, in the order of the configuration. An in-memory broker has none. Raises PluginError in
        a thread.
        """

    def counters(self) -> Mapping[str, float]:
        """Return the core's metrics by name, as the exporter shows them, without the prefix ``hookmq_``.

        Labels are part of the name: ``messages_dropped_total{direction="out",reason="queue_full"}``. The metrics of
        plugins and ``hookmq_build_info`` are not included. This takes about a millisecond. Raises PluginError in a
        thread.
        """

    @property
    def state(self) -> PluginState:
        """This plugin's durable keys and values. They are loaded before `on_startup` is called."""

    def set_timer(self, key: str, at: float, data: bytes = b"") -> Awaitable[None]:
        """Call this plugin's `on_timer` with `key` and `data` at `at`, in epoch seconds. The awaitable completes after
        the commit.

        The timer is stored like `state`, with the same limits. It replaces any timer with this key. If it becomes due
        while the broker is down, `on_timer` is called after `on_ready`. A hook may set its own key again. Raises
        PluginError if an argument is invalid, if the plugin has no `on_timer`, or if called in a thread.
        """

    def cancel_timer(self, key: str) -> Awaitable[bool]:
        """Delete a timer. After the commit, the awaitable returns whether the timer existed. A running call is not
        stopped, but it is not repeated if it fails. Raises PluginError in a thread.
        """

    def reload(self) -> Awaitable[ReloadReport]:
        """Reread the configuration file and apply it, like SIGHUP. The result lists the changes, and the changes that
        need a restart.

        If the new configuration cannot be used, nothing changes, and awaiting raises PluginError with the reason.
        Awaiting also raises PluginError if there is no configuration file, or while the broker starts or stops. A
        reload may replace the plugin that requested it. Do not await it in `on_startup`, `on_ready`, `on_reload` or
        `on_shutdown`: the reload waits for these hooks. Reported as ``broker.reload_applied`` or
        ``broker.reload_refused``. Raises PluginError in a thread.
        """

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log `event` with this plugin's id. See `Plugin.log`."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def time(self) -> float:
        """Return the current time in epoch seconds."""


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
    - `outcomes`: the names of the counters for the hook's results.
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
        """The arguments that the core passes to a chain: all except `broker`."""
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
    """The signatures of all hooks, in the order of the manual."""

    @_hook(HookKind.DECIDE, 5.0, ("accept", "deny", "abstain"), ("deny",))
    def on_connect(
        self, client: ClientInfo, connect: Connect, broker: BrokerHandle
    ) -> Accept | Deny | None:
        """Decide whether a client may connect. Called once, after a valid CONNECT and before CONNACK."""

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
        """Change or drop a message that is about to be sent to a subscriber. Must be synchronous."""

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
        """Open connections and start work. Called before any listener opens."""

    @_lifecycle()
    def on_ready(self, broker: BrokerHandle) -> None:
        """Called when all listeners are open: once for each plugin object, at startup or after the reload that created
        it."""

    @_lifecycle()
    def on_timer(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        """Called when a timer of this plugin is due, or as soon as possible after that. The timer is gone once the hook
        has returned. If the hook fails, it is called again later. See `BrokerHandle.set_timer`."""

    @_lifecycle()
    def on_reload(self, old: Settings, new: Settings) -> None:
        """Called after a reload that kept this plugin object."""

    @_lifecycle()
    def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """Close everything within `deadline` seconds. Called when the broker stops or a reload removes the plugin."""

    @_provide()
    def provide_store(self, config: Settings, broker: BrokerHandle) -> Store | None:
        """Return the store for sessions and retained messages, or None."""

    @_provide()
    def provide_journal(
        self, config: Settings, broker: BrokerHandle
    ) -> Journal | tuple[Journal, ...] | None:
        """Return one or more journals that must store a message before it is acknowledged, or None."""

    @_provide()
    def provide_rate_limiter(self, client: ClientInfo, broker: BrokerHandle) -> RateLimiter | None:
        """Return an accepted client's rate limiter, or None. See `hookmq.hooks.rate_limit`."""

    @_register()
    def register_listeners(self, registry: ListenerRegistry) -> None:
        """Add listener types."""

    @_register()
    def register_http(self, router: HttpRouter) -> None:
        """Add routes to listeners of type http."""

    @_register()
    def register_cli(self, group: CommandGroup) -> None:
        """Add commands to ``hookmq``. Must be a staticmethod or classmethod: it is called on the class."""

    @_register()
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add metrics to the exporter."""


SPECS: Final[Mapping[str, HookSpec]] = _specs
"""Every hook by name, in the order of the manual."""
OBSERVERS: Final = frozenset(name for name, spec in SPECS.items() if spec.kind is HookKind.OBSERVE)
"""The names of the observer hooks."""
