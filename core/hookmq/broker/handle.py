"""What a plugin may do to the broker: its own handle, so that what it publishes bears its name."""

from collections.abc import Awaitable
from functools import partial
from types import MappingProxyType

from hookmq.broker.core import Core
from hookmq.broker.ingest import Ingest, Outcome
from hookmq.broker.revoke import revoke
from hookmq.broker.sessions import cancel_will
from hookmq.errors import PluginError, ProtocolError
from hookmq.hooks.depth import DEPTH
from hookmq.hooks.entry import PluginInstance
from hookmq.metrics import Metrics
from hookmq.properties import EMPTY, In, Properties
from hookmq.reason import ReasonCode
from hookmq.runtime import Promise, Runtime
from hookmq.session import Session
from hookmq.topics import validate_filter, validate_topic
from hookmq.types import ClientInfo, Direction, DropReason, Message


def _give(result: Promise, matched: int) -> None:
    if not result.done():  # else nobody waits any more
        result.set_result(matched)


class Handle:
    """See `hookmq.hooks.specs.BrokerHandle`. All calls are made on the loop's thread."""

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
        """Timers, coroutines and threads of the broker."""
        return self._core.runtime

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
        self._send(self._message(topic, payload, qos, retain, properties), None)

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
        result = self._core.runtime.promise()
        self._send(self._message(topic, payload, qos, retain, properties), result)
        return result

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
        try:
            validate_topic(topic, core.settings.broker.max_topic_levels)
        except ProtocolError as error:
            raise PluginError(self._plugin, f"cannot publish: {error.detail}") from error
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
        core = self._core
        if "on_event" not in core.observed:
            return
        depth = DEPTH.get() + 1
        if depth > core.settings.broker.publish_depth:
            # An event that answers an event that answers an event: a loop between observers ends here.
            core.runtime.log("warning", "event.too_deep", plugin=self._plugin, event=event)
            return
        token = DEPTH.set(depth)
        try:
            core.observe("on_event", client, event, MappingProxyType(fields), self._plugin)
        finally:
            DEPTH.reset(token)

    def invalidate_authz(self, client_id: str | None = None, filter: str | None = None) -> None:
        """Forget what `authorize` answered, for one client or all, and ask again about the subscriptions that `filter`
        overlaps, or all: in slices, live and stored ones. What plugins want to be asked about (`authorize_actions`) is
        looked at again as well."""
        if filter is not None:
            validate_filter(filter)
        core = self._core
        if core.hooks.asks_anew():
            core.router.clear_cache()
            for session in core.sessions.values():
                if session.connection is not None:
                    session.connection.rechain()
        revoke(core, client_id, filter)

    def invalidate_routes(self) -> None:
        """Ask the journals again which topics they want."""
        self._core.router.clear_cache()

    def disconnect(
        self,
        client_id: str,
        code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION,
        reason: str = "",
        drop_will: bool = False,
    ) -> bool:
        """End a client's connection; False when it is not connected."""
        session = self._core.sessions.get(client_id)
        if session is None or session.connection is None:
            return False
        if drop_will:
            cancel_will(session)
        session.connection.disconnect(code, reason)
        return True

    def client(self, client_id: str) -> ClientInfo | None:
        """A connected client."""
        session = self._core.sessions.get(client_id)
        return session.client if session is not None and session.connection is not None else None

    def clients(self) -> list[ClientInfo]:
        """All connected clients."""
        sessions: list[Session] = list(self._core.sessions.values())
        return [session.client for session in sessions if session.connection is not None]

    def retained(self, filter: str) -> list[Message]:
        """The retained messages that match."""
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
