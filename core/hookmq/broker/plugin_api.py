"""The broker as plugins see it. Each plugin has its own handle, which sets the origin of the plugin's messages."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

from hookmq.broker.publish.authorize import authorize
from hookmq.broker.publish.pipeline import SYSTEM, PublishPipeline, PublishResult
from hookmq.broker.sessions.revocation import revoke
from hookmq.broker.sessions.wills import cancel_will
from hookmq.broker.state import BrokerState
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.client import ClientInfo
from hookmq.model.errors import PluginError
from hookmq.model.events import Action, Direction, DropReason
from hookmq.model.message import Message
from hookmq.model.metrics import Metrics
from hookmq.model.runtime import Promise, Runtime
from hookmq.model.subscription import Subscription
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.properties import EMPTY, In, Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import parse_share, validate_filter, validate_topic
from hookmq.session.session import Session


def _give(result: Promise, matched: int) -> None:
    if not result.done():  # else the caller has stopped waiting
        result.set_result(matched)


class PluginBroker:
    """One plugin's handle; see `hookmq.hooks.specs.BrokerHandle`. In other threads, calls without a result are passed
    to the event loop, and calls that need the broker's state raise PluginError."""

    __slots__ = ("_plugin", "_state")

    def __init__(self, state: BrokerState, instance: PluginInstance) -> None:
        self._state = state
        self._plugin = instance.id

    @property
    def metrics(self) -> Metrics:
        """Return the broker's counters, for reading only."""
        return self._state.metrics

    @property
    def runtime(self) -> Runtime:
        """Return the broker's timers, coroutines and threads. Raises PluginError outside the event loop's thread."""
        self._only_on_loop("runtime")
        return self._state.runtime

    def _only_on_loop(self, name: str) -> None:
        """Raise PluginError if this is not the event loop's thread."""
        if not self._state.runtime.on_loop():
            raise PluginError(
                self._plugin,
                f"broker.{name} is for the event loop, and this is a thread: make the hook `async def`",
            )

    def _on_loop(self, call: Callable[[], None]) -> None:
        """Run `call` now, or pass it to the event loop from another thread. Keep the caller's recursion depth."""
        runtime = self._state.runtime
        if runtime.on_loop():
            call()
            return
        handed = partial(self._state.guarded, partial(at_depth, DEPTH.get(), call))
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
        """Publish with the origin ``plugin:ID``, in a later turn. A refused message is counted, logged and reported to
        `on_dropped`. Raises PluginError for an invalid argument."""
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
        """Publish, and return an awaitable for the number of recipients once the message is committed. The message is
        sent even if nothing awaits it. Awaiting raises PluginError if the message was refused."""
        self._only_on_loop("publish_and_wait()")
        result = self._state.runtime.promise()
        self._send(self._message(topic, payload, qos, retain, properties), result)
        return result

    def authorize(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None = None
    ) -> Awaitable[Allow | Deny]:
        """Ask every plugin whether `client` may do `action` to `topic`, in a later turn."""
        self._only_on_loop("authorize()")
        state = self._state
        for name, given, kind in (
            ("client", client, ClientInfo), ("topic", topic, str), ("message", message, Message | None),
        ):  # fmt: skip
            if not isinstance(given, kind):
                raise PluginError(
                    self._plugin, f"cannot authorize: {name} is {type(given).__name__}"
                )
        subscription: Subscription | None = None
        if action is Action.SUBSCRIBE:
            subscription, topic = self._asked_filter(topic)
            message = None
        elif action in (Action.PUBLISH, Action.WILL):
            self._check_topic(topic, "authorize")
            if message is None:
                origin = "will" if action is Action.WILL else "client"
                now = state.runtime.time()
                message = Message(
                    topic, b"", sender=client.client_id, origin=origin, received_at=now
                )
            elif message.topic != topic:
                message = message.replace(topic=topic)
        else:
            raise PluginError(
                self._plugin, f"cannot authorize: {action!r} is not PUBLISH, SUBSCRIBE or WILL"
            )
        result = state.runtime.promise()
        depth = DEPTH.get() + 1
        if depth > state.settings.broker.publish_depth:
            result.set_exception(PluginError(self._plugin, "plugins ask in a loop"))
            return result

        def decided(verdict: Allow | Deny, by: str) -> None:
            if result.done():
                return  # the caller has stopped waiting
            highest = verdict.max_qos if isinstance(verdict, Allow) else None
            if message is not None and highest is not None and highest < message.qos:
                verdict = Deny(reason=f"QoS above {highest} is not allowed here")
            result.set_result(verdict)

        def begin() -> None:
            if message is not None and topic.startswith(SYSTEM):
                decided(Deny(reason="topics below $SYS are reserved for the broker"), "")
                return
            chains = state.chains(client.listener)
            qos, retain = (message.qos, message.retain) if message is not None else (0, False)
            at_depth(
                depth, authorize, state, client, chains, None, action, topic, qos, retain, message,
                subscription, decided,
            )  # fmt: skip

        state.runtime.call_soon(begin)
        return result

    def _asked_filter(self, filter: str) -> tuple[Subscription, str]:
        """Return a subscription to `filter`, and the topic filter on which plugins decide."""
        try:
            validate_filter(filter, self._state.settings.broker.max_topic_levels)
            share, inner = parse_share(filter)
        except ProtocolError as error:
            raise PluginError(self._plugin, f"cannot authorize: {error.detail}") from error
        return Subscription(filter, inner, share=share), inner

    def _check_topic(self, topic: str, what: str) -> None:
        try:
            validate_topic(topic, self._state.settings.broker.max_topic_levels)
        except ProtocolError as error:
            raise PluginError(self._plugin, f"cannot {what}: {error.detail}") from error

    def _message(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties
    ) -> Message:
        state = self._state
        # Compiled code would raise an error for a wrong type only in a later turn, which the plugin would not see.
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
        now = state.runtime.time()
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
        state = self._state
        depth = DEPTH.get() + 1
        if depth > state.settings.broker.publish_depth:
            # This limit ends loops of plugins that respond to each other's messages.
            state.dropped(message, None, DropReason.DEPTH, Direction.IN, self._plugin)
            self.log("warning", "publish.too_deep", topic=message.topic)
            if result is not None:
                result.set_exception(PluginError(self._plugin, "plugins answer in a loop"))
            return

        def done(outcome: PublishResult) -> None:
            if outcome.matched < 0:
                code = f"0x{outcome.code:02X}"
                self.log("warning", "publish.refused", topic=message.topic, code=code)
            if result is None or result.done():
                return
            if outcome.matched < 0:
                result.set_exception(PluginError(self._plugin, f"refused: {outcome.code.text}"))
            elif outcome.relies:
                state.committer.after_commit(partial(_give, result, outcome.matched))
            else:
                result.set_result(outcome.matched)

        def begin() -> None:
            run = PublishPipeline(state, state.chains(""), message, done, skip=self._plugin)
            at_depth(depth, run.start)
            state.writes.schedule()

        state.runtime.call_soon(begin)

    def emit(self, event: str, client: ClientInfo | None = None, /, **fields: object) -> None:
        """Notify the observers of `on_event`. Raises PluginError if the name has no dot."""
        if "." not in event.strip("."):
            raise PluginError(self._plugin, f"invalid event name {event!r}: it must contain a dot")
        if "on_event" in self._state.observed:
            self._on_loop(partial(self._emit, event, client, MappingProxyType(fields)))

    def _emit(self, event: str, client: ClientInfo | None, fields: Mapping[str, object]) -> None:
        state = self._state
        depth = DEPTH.get() + 1
        if depth > state.settings.broker.publish_depth:
            # This limit ends loops of observers that respond to each other's events.
            state.runtime.log("warning", "event.too_deep", plugin=self._plugin, event=event)
            return
        at_depth(depth, state.observe, "on_event", client, event, fields, self._plugin)

    def invalidate_authz(self, client_id: str | None = None, filter: str | None = None) -> None:
        """Discard cached `authorize` verdicts for one client or all clients. Ask again, in slices, about all
        subscriptions or those that overlap with `filter`. Also reread every plugin's `authorize_actions`."""
        if filter is not None:
            validate_filter(filter)
        self._on_loop(partial(self._invalidate_authz, client_id, filter))

    def _invalidate_authz(self, client_id: str | None, filter: str | None) -> None:
        state = self._state
        if state.hooks.asks_anew():
            state.router.clear_cache()
            for session in state.sessions.values():
                if session.connection is not None:
                    session.connection.rechain()
        revoke(state, client_id, filter)

    def invalidate_routes(self) -> None:
        """Ask every journal again which topics it wants."""
        self._on_loop(self._state.router.clear_cache)

    def disconnect(
        self,
        client_id: str,
        code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION,
        reason: str = "",
        drop_will: bool = False,
    ) -> bool:
        """End a client's connection. Return False if it is not connected."""
        self._only_on_loop("disconnect()")
        session = self._state.sessions.get(client_id)
        if session is None or session.connection is None:
            return False
        if drop_will:
            cancel_will(session)
        session.connection.disconnect(code, reason)
        return True

    def client(self, client_id: str) -> ClientInfo | None:
        """Return a connected client, or None."""
        self._only_on_loop("client()")
        session = self._state.sessions.get(client_id)
        return session.client if session is not None and session.connection is not None else None

    def clients(self) -> list[ClientInfo]:
        """Return all connected clients."""
        self._only_on_loop("clients()")
        sessions: list[Session] = list(self._state.sessions.values())
        return [session.client for session in sessions if session.connection is not None]

    def retained(self, filter: str) -> list[Message]:
        """Return the retained messages that match `filter`."""
        self._only_on_loop("retained()")
        validate_filter(filter)
        now = self._state.runtime.time()
        found = (outgoing.message for _, outgoing in self._state.retained.match(filter))
        return [m for m in found if m.expires_at is None or m.expires_at > now]

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log an event with the plugin's id."""
        self._state.runtime.log(level, event, plugin=self._plugin, **fields)

    def now(self) -> float:
        """Return monotonic seconds."""
        return self._state.runtime.now()

    def time(self) -> float:
        """Return epoch seconds."""
        return self._state.runtime.time()
