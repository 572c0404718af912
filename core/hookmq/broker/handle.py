"""What a plugin may do to the broker: its own handle, so that what it publishes bears its name."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

from hookmq.broker.authorizer import authorize
from hookmq.broker.core import Core
from hookmq.broker.ingest import SYSTEM, Ingest, Outcome
from hookmq.broker.revoke import revoke
from hookmq.broker.sessions import cancel_will
from hookmq.errors import PluginError, ProtocolError
from hookmq.hooks.depth import DEPTH, at_depth
from hookmq.hooks.entry import PluginInstance
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.metrics import Metrics
from hookmq.properties import EMPTY, In, Properties
from hookmq.reason import ReasonCode
from hookmq.runtime import Promise, Runtime
from hookmq.session import Session
from hookmq.topics import parse_share, validate_filter, validate_topic
from hookmq.types import Action, ClientInfo, Direction, DropReason, Message, Subscription


def _give(result: Promise, matched: int) -> None:
    if not result.done():  # else nobody waits any more
        result.set_result(matched)


class Handle:
    """See `hookmq.hooks.specs.BrokerHandle`. Any thread may call it: what returns nothing is handed to the event loop,
    what returns something of the broker's state raises PluginError there."""

    __slots__ = ("_core", "_instance", "_plugin")

    def __init__(self, core: Core, instance: PluginInstance) -> None:
        self._core = core
        self._instance = instance
        self._plugin = instance.id

    @property
    def metrics(self) -> Metrics:
        """The broker's counters; to be read."""
        return self._core.metrics

    @property
    def runtime(self) -> Runtime:
        """Timers, coroutines and threads of the broker. Raises PluginError in a thread."""
        self._only_on_loop("runtime")
        return self._core.runtime

    def _only_on_loop(self, name: str) -> None:
        """Raise PluginError in a thread, for what cannot be answered there."""
        if not self._core.runtime.on_loop():
            raise PluginError(
                self._plugin,
                f"broker.{name} is for the event loop, and this is a thread: make the hook `async def`",
            )

    def _on_loop(self, call: Callable[[], None]) -> None:
        """Make `call` now, or have the loop make it if this is a thread. It stays in the caller's depth."""
        runtime = self._core.runtime
        if runtime.on_loop():
            call()
            return
        handed = partial(self._core.guarded, partial(at_depth, DEPTH.get(), call))
        try:
            runtime.call_threadsafe(handed)
        except RuntimeError as error:
            raise PluginError(self._plugin, "the broker has ended") from error

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
    ) -> None:
        """Publish with the origin ``plugin:ID``, in a later turn. Raises PluginError for a topic or QoS that MQTT does
        not know; what other plugins refuse is counted, logged and told to `on_dropped`."""
        message = self._message(topic, payload, qos, retain, properties)
        self._on_loop(partial(self._send, message, None))

    def publish_and_wait(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
    ) -> Awaitable[int]:
        """Publish; awaiting the result tells how many matched, once the message is committed, or raises PluginError when
        it was refused. It is sent whether awaited or not."""
        self._only_on_loop("publish_and_wait()")
        result = self._core.runtime.promise()
        self._send(self._message(topic, payload, qos, retain, properties), result)
        return result

    def authorize(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None = None
    ) -> Awaitable[Allow | Deny]:
        """Ask every plugin whether `client` may do that, in a later turn."""
        self._only_on_loop("authorize()")
        core = self._core
        for name, given, kind in (
            ("client", client, ClientInfo), ("topic", topic, str), ("message", message, Message | None),
        ):  # fmt: skip
            if not isinstance(given, kind):
                raise PluginError(self._plugin, f"cannot ask: {name} is {type(given).__name__}")
        subscription: Subscription | None = None
        if action is Action.SUBSCRIBE:
            subscription, topic = self._asked_filter(topic)
            message = None
        elif action in (Action.PUBLISH, Action.WILL):
            self._check_topic(topic, "ask")
            if message is None:
                origin = "will" if action is Action.WILL else "client"
                now = core.runtime.time()
                message = Message(
                    topic, b"", sender=client.client_id, origin=origin, received_at=now
                )
            elif message.topic != topic:
                message = message.replace(topic=topic)
        else:
            raise PluginError(
                self._plugin, f"cannot ask: {action!r} is not PUBLISH, SUBSCRIBE or WILL"
            )
        result = core.runtime.promise()
        depth = DEPTH.get() + 1
        if depth > core.settings.broker.publish_depth:
            result.set_exception(PluginError(self._plugin, "plugins ask in a loop"))
            return result

        def decided(verdict: Allow | Deny, by: str) -> None:
            if result.done():
                return  # nobody waits any more
            highest = verdict.max_qos if isinstance(verdict, Allow) else None
            if message is not None and highest is not None and highest < message.qos:
                verdict = Deny(reason=f"QoS above {highest} is not allowed here")
            result.set_result(verdict)

        def begin() -> None:
            if message is not None and topic.startswith(SYSTEM):
                decided(Deny(reason="topics below $SYS are the broker's own"), "")
                return
            chains = core.chains(client.listener)
            at_depth(
                depth, authorize, core, client, chains, None, action, topic,
                message.qos if message is not None else 0,
                message.retain if message is not None else False,
                message, subscription, decided,
            )  # fmt: skip

        core.runtime.call_soon(begin)
        return result

    def _asked_filter(self, filter: str) -> tuple[Subscription, str]:
        """A subscription to `filter`, and what of it plugins are asked about."""
        try:
            validate_filter(filter, self._core.settings.broker.max_topic_levels)
            share, inner = parse_share(filter)
        except ProtocolError as error:
            raise PluginError(self._plugin, f"cannot ask: {error.detail}") from error
        return Subscription(filter, inner, share=share), inner

    def _check_topic(self, topic: str, what: str) -> None:
        try:
            validate_topic(topic, self._core.settings.broker.max_topic_levels)
        except ProtocolError as error:
            raise PluginError(self._plugin, f"cannot {what}: {error.detail}") from error

    def _message(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties
    ) -> Message:
        core = self._core
        # What is of another type compiled code would refuse in the later turn, where no plugin hears of it.
        for name, given, kind in (
            ("topic", topic, str), ("QoS", qos, int), ("payload", payload, bytes), ("retain", retain, bool),
            ("properties", properties, Properties),
        ):  # fmt: skip
            if not isinstance(given, kind):
                raise PluginError(
                    self._plugin,
                    f"cannot publish: {name} is {type(given).__name__}, not {kind.__name__}",
                )
        self._check_topic(topic, "publish")
        if qos not in (0, 1, 2):
            raise PluginError(self._plugin, f"cannot publish: QoS {qos!r}")
        now = core.runtime.time()
        interval = properties.message_expiry_interval
        return Message(
            topic,
            payload,
            qos,
            retain,
            properties.only(In.WILL) if properties is not EMPTY else EMPTY,
            None,
            "plugin:" + self._plugin,
            now,
            None if interval is None else now + interval,
        )

    def _send(self, message: Message, result: Promise | None) -> None:
        core = self._core
        depth = DEPTH.get() + 1
        if depth > core.settings.broker.publish_depth:
            # A message that answers a message that answers a message: a loop between plugins ends here.
            core.dropped(message, None, DropReason.DEPTH, Direction.IN, self._plugin)
            core.runtime.log(
                "warning", "publish.too_deep", plugin=self._plugin, topic=message.topic
            )
            if result is not None:
                result.set_exception(PluginError(self._plugin, "plugins answer in a loop"))
            return

        def done(outcome: Outcome) -> None:
            if outcome.matched < 0:
                core.runtime.log(
                    "warning",
                    "publish.refused",
                    plugin=self._plugin,
                    topic=message.topic,
                    code=f"0x{outcome.code:02X}",
                )
            if result is None or result.done():
                return
            if outcome.matched < 0:
                result.set_exception(PluginError(self._plugin, f"refused: {outcome.code.text}"))
            elif outcome.relies:
                core.committer.then(partial(_give, result, outcome.matched))
            else:
                result.set_result(outcome.matched)

        def begin() -> None:
            token = DEPTH.set(depth)
            try:
                Ingest(core, core.chains(""), message, done, skip=self._plugin).run()
            finally:
                DEPTH.reset(token)
            core.schedule()

        core.runtime.call_soon(begin)

    def emit(self, event: str, client: ClientInfo | None = None, /, **fields: object) -> None:
        """Tell the observers of `on_event`; raises PluginError for a name without a dot."""
        if "." not in event.strip("."):
            raise PluginError(self._plugin, f"an event's name has a dot in it: {event!r} has not")
        if "on_event" in self._core.observed:
            self._on_loop(partial(self._emit, event, client, MappingProxyType(fields)))

    def _emit(self, event: str, client: ClientInfo | None, fields: Mapping[str, object]) -> None:
        core = self._core
        depth = DEPTH.get() + 1
        if depth > core.settings.broker.publish_depth:
            # An event that answers an event that answers an event: a loop between observers ends here.
            core.runtime.log("warning", "event.too_deep", plugin=self._plugin, event=event)
            return
        token = DEPTH.set(depth)
        try:
            core.observe("on_event", client, event, fields, self._plugin)
        finally:
            DEPTH.reset(token)

    def invalidate_authz(self, client_id: str | None = None, filter: str | None = None) -> None:
        """Forget what `authorize` answered, for one client or all, and ask again about the subscriptions that `filter`
        overlaps, or all: in slices, live and stored ones. What plugins want to be asked about (`authorize_actions`) is
        looked at again as well."""
        if filter is not None:
            validate_filter(filter)
        self._on_loop(partial(self._invalidate_authz, client_id, filter))

    def _invalidate_authz(self, client_id: str | None, filter: str | None) -> None:
        core = self._core
        if core.hooks.asks_anew():
            core.router.clear_cache()
            for session in core.sessions.values():
                if session.connection is not None:
                    session.connection.rechain()
        revoke(core, client_id, filter)

    def invalidate_routes(self) -> None:
        """Ask the journals again which topics they want."""
        self._on_loop(self._core.router.clear_cache)

    def disconnect(
        self,
        client_id: str,
        code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION,
        reason: str = "",
        drop_will: bool = False,
    ) -> bool:
        """End a client's connection; False when it is not connected."""
        self._only_on_loop("disconnect()")
        session = self._core.sessions.get(client_id)
        if session is None or session.connection is None:
            return False
        if drop_will:
            cancel_will(session)
        session.connection.disconnect(code, reason)
        return True

    def client(self, client_id: str) -> ClientInfo | None:
        """A connected client."""
        self._only_on_loop("client()")
        session = self._core.sessions.get(client_id)
        return session.client if session is not None and session.connection is not None else None

    def clients(self) -> list[ClientInfo]:
        """All connected clients."""
        self._only_on_loop("clients()")
        sessions: list[Session] = list(self._core.sessions.values())
        return [session.client for session in sessions if session.connection is not None]

    def retained(self, filter: str) -> list[Message]:
        """The retained messages that match."""
        self._only_on_loop("retained()")
        validate_filter(filter)
        now = self._core.runtime.time()
        found = (outgoing.message for _, outgoing in self._core.retained.match(filter))
        return [m for m in found if m.expires_at is None or m.expires_at > now]

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log as this plugin."""
        self._core.runtime.log(level, event, plugin=self._plugin, **fields)

    def now(self) -> float:
        """Monotonic seconds."""
        return self._core.runtime.now()

    def time(self) -> float:
        """Epoch seconds."""
        return self._core.runtime.time()
