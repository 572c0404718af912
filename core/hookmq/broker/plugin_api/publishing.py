"""Calls that plugins use to publish messages."""

from collections.abc import Awaitable
from functools import partial

from hookmq.broker.handlers.session_owner import same_owner
from hookmq.broker.plugin_api.base import HandleBase
from hookmq.broker.publish.decision import PublishDecision
from hookmq.broker.publish.pipeline import PublishPipeline, PublishResult
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.hooks.verdicts import Deny, Drop, Handled
from hookmq.model.client import ClientInfo
from hookmq.model.errors import PluginError, PublishRefused
from hookmq.model.events import Action, Direction, DropReason
from hookmq.model.message import Message
from hookmq.model.runtime import Promise
from hookmq.mqtt.encoder import publish_size
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.primitives import Reader
from hookmq.mqtt.properties import EMPTY, In, Properties
from hookmq.mqtt.property_section import check_response_topic, encode_section, read_properties
from hookmq.session.session import Session


class Publishing(HandleBase):
    """The methods of a plugin's handle that publish messages."""

    __slots__ = ()

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
        transformed: bool = False,
    ) -> None:
        """Publish with the origin ``plugin:ID``, in a later turn. A refused message is counted, logged and reported to
        `on_dropped`. Raises PluginError for an invalid argument."""
        message = self._message(topic, payload, qos, retain, properties, as_client, volatile)
        self._check_types("publish", ("transformed", transformed, bool))
        self._on_loop(partial(self._send, message, as_client, volatile, transformed, None))

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
        transformed: bool = False,
    ) -> Awaitable[int]:
        """Publish, and return an awaitable that completes with the number of recipients once the message is committed.
        The message is sent even if nothing awaits it. Awaiting raises PluginError if the message was refused.
        """
        self._only_on_loop("publish_and_wait()")
        message = self._message(topic, payload, qos, retain, properties, as_client, volatile)
        self._check_types("publish", ("transformed", transformed, bool))
        result = self._promise()
        self._send(message, as_client, volatile, transformed, result)
        return result

    def transform(
        self, client: ClientInfo | None, message: Message, action: Action = Action.PUBLISH
    ) -> Awaitable[Message | Deny | Drop | Handled]:
        """Ask the other plugins, in a later turn, what would happen to `message` if `client` published it. Publish
        nothing."""
        self._only_on_loop("transform()")
        self._check_types(
            "transform", ("client", client, ClientInfo | None), ("message", message, Message)
        )
        if action not in (Action.PUBLISH, Action.WILL):
            raise self._refusal("transform", f"{action!r} is not PUBLISH or WILL")
        if action is Action.WILL and client is None:
            raise self._refusal("transform", "a will needs a client")
        self._check_topic(message.topic, "transform")
        state = self._state
        result = self._promise()
        depth = DEPTH.get() + 1
        if depth > state.settings.broker.publish_depth:
            self._fail(result, PluginError(self._plugin, "plugins ask in a loop"))
            return result

        def done(outcome: PublishResult) -> None:
            state.guarded(partial(self._settling, result, give))

        def give() -> None:
            self._give(result, decision.verdict)

        def begin() -> None:
            at_depth(depth, decision.start)

        decision = PublishDecision(
            state,
            state.chains("" if client is None else client.listener),
            message,
            done,
            client=client,
            action=action,
            skip=self._plugin,
        )
        state.runtime.call_soon(partial(state.guarded, partial(self._settling, result, begin)))
        return result

    def _message(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties,
        client: ClientInfo | None,
        volatile: bool,
    ) -> Message:
        state = self._state
        self._check_types(
            "publish",
            ("topic", topic, str), ("QoS", qos, int), ("payload", payload, bytes), ("retain", retain, bool),
            ("properties", properties, Properties), ("as_client", client, ClientInfo | None),
            ("volatile", volatile, bool),
        )  # fmt: skip
        self._check_topic(topic, "publish")
        if qos not in (0, 1, 2):
            raise self._refusal("publish", f"QoS {qos!r}")
        section = 1
        if properties is not EMPTY:
            properties = properties.only(In.WILL)
            try:
                # Otherwise an invalid value would fail in a later turn, for each subscriber.
                raw = encode_section(properties, In.WILL)
                reader = Reader(raw)
                most = state.limits.max_user_properties
                check_response_topic(read_properties(reader, In.WILL, most))
            except (ProtocolError, ValueError, TypeError, AttributeError) as error:
                raise self._refusal("publish", f"a property is invalid: {error}") from error
            section = len(raw)
        size = publish_size(len(topic.encode()), len(payload), qos, section)
        # Not the limit of new connections: a plugin may pass on what a client was allowed to send before a reload.
        if size > state.largest_packet:
            raise self._refusal(
                "publish",
                f"the packet of {size} bytes exceeds broker.max_packet_size, {state.largest_packet}",
            )
        now = state.runtime.time()
        interval = properties.message_expiry_interval
        return Message(
            topic, payload, qos, retain, properties, None if client is None else client.client_id,
            "plugin:" + self._plugin, now, None if interval is None else now + interval,
        )  # fmt: skip

    def _send(
        self,
        message: Message,
        client: ClientInfo | None,
        volatile: bool,
        transformed: bool,
        result: Promise | None,
    ) -> None:
        state = self._state
        depth = DEPTH.get() + 1
        if depth > state.settings.broker.publish_depth:
            # This limit ends loops of plugins that respond to each other's messages.
            state.dropped(message, client, DropReason.DEPTH, Direction.IN, self._plugin)
            self.log("warning", "publish.too_deep", topic=message.topic)
            if result is not None:
                self._fail(result, PluginError(self._plugin, "plugins answer in a loop"))
            return

        def done(outcome: PublishResult) -> None:
            if outcome.matched < 0:
                code = f"0x{outcome.code:02X}"
                self.log("warning", "publish.refused", topic=message.topic, code=code)
            if result is None:
                return
            if outcome.matched < 0:
                self._fail(result, PublishRefused(self._plugin, outcome.code))
            elif outcome.relies:
                self._after_commit(result, outcome.matched)
            else:
                self._give(result, outcome.matched)

        def begin() -> None:
            run = PublishPipeline(
                state, state.chains("" if client is None else client.listener), message, done, client=client,
                sender=None if client is None else self._session_of(client), skip=self._plugin,
            )  # fmt: skip
            run.volatile = volatile
            at_depth(depth, run.start_decided if transformed else run.start)
            state.writes.schedule()

        call = begin if result is None else partial(self._settling, result, begin)
        state.runtime.call_soon(partial(state.guarded, call))

    def _session_of(self, client: ClientInfo) -> Session | None:
        """Return the session of `client`, unless another client has taken it over."""
        session = self._state.sessions.get(client.client_id)
        if session is None or not same_owner(self._state, session.client, client):
            return None
        return session
