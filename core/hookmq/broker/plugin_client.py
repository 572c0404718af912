"""The handle of a plugin client. It checks the plugin's arguments, as the decoder checks bytes from other clients."""

from collections.abc import Awaitable, Callable
from inspect import CO_COROUTINE, iscoroutinefunction
from typing import Any, Final, cast

from hookmq.broker.connection_state import Phase
from hookmq.broker.plugin_batch import EACH, Batch, Calls
from hookmq.broker.plugin_connection import PluginConnection
from hookmq.broker.plugin_delivery import PluginDelivery
from hookmq.broker.plugin_mailbox import Done, Waiting
from hookmq.hooks.recursion import DEPTH
from hookmq.model.client import ClientInfo
from hookmq.model.errors import PluginError
from hookmq.model.events import Direction, DisconnectReason, DropReason
from hookmq.mqtt.encoder import publish_size
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import Disconnect, Subscribe, SubscribeRequest, Unsubscribe
from hookmq.mqtt.primitives import Reader, decode_utf8
from hookmq.mqtt.properties import EMPTY, In, Properties
from hookmq.mqtt.property_section import check_response_topic, encode_section, read_properties
from hookmq.mqtt.reason_codes import CLIENT_DISCONNECT, ReasonCode
from hookmq.mqtt.topics import validate_topic

# Compiled code reads a module's own constants directly, and imported ones by name.
_DEPTH: Final = DEPTH
_EMPTY: Final = EMPTY
_OPEN: Final = Phase.OPEN
_SUCCESS: Final = ReasonCode.SUCCESS
_ONE_CALLBACK: Final = "on_message and on_messages exclude each other"
_HEADER: Final = 16
"""An upper bound on the size in bytes of a PUBLISH, excluding its properties, topic and payload."""


class Messages:
    """An iterator over a plugin client's messages; see `hookmq.hooks.clients.ClientHandle.messages`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: PluginConnection) -> None:
        self._connection = connection

    def __aiter__(self) -> "Messages":
        return self

    async def __anext__(self) -> PluginDelivery:
        connection = self._connection
        connection.only_on_loop("messages()")
        while not connection.inbox or connection.stopped:
            if connection.over is not None:
                raise StopAsyncIteration
            if connection.reader is None or connection.reader.done():
                connection.reader = connection.state.runtime.promise()
            await connection.reader
        return connection.next()


def _not_callable(name: str, given: object) -> str:
    return f"{name} is {type(given).__name__}, not a function"


class PluginClient:
    """A plugin's client; see `hookmq.hooks.clients.ClientHandle`.

    Arguments are declared as `Any`, so that an argument of the wrong type raises PluginError. Compiled code would
    otherwise raise TypeError first.
    """

    __slots__ = ("_checked", "_connection", "_section")

    def __init__(self, connection: PluginConnection) -> None:
        self._connection = connection
        self._checked: Properties = _EMPTY
        """The most recently checked properties. A plugin often publishes with the same properties again."""
        self._section = 0

    @property
    def client_id(self) -> str:
        """The client id."""
        return self.info.client_id

    @property
    def session_present(self) -> bool:
        """Whether the client resumed a session."""
        return self._connection.present

    @property
    def connected(self) -> bool:
        """Whether the client is still connected."""
        return self._connection.phase is Phase.OPEN and not self._connection.leaving

    @property
    def info(self) -> ClientInfo:
        """The client as hooks see it."""
        client = self._connection.client
        assert client is not None
        return client

    @property
    def on_message(self) -> Callable[[Any], None] | None:
        """The function called with each message."""
        return self._connection.on_message

    @on_message.setter
    def on_message(self, call: Any) -> None:
        connection = self._connection
        connection.only_on_loop("on_message")
        if iscoroutinefunction(call):
            raise connection.error("on_message must not be `async def`: use messages() instead")
        if call is not None and not callable(call):
            raise connection.error(_not_callable("on_message", call))
        if call is not None and connection.on_messages is not None:
            raise connection.error(_ONE_CALLBACK)
        connection.on_message = call
        connection.schedule()

    @property
    def on_messages(self) -> Callable[[list[Any]], None] | None:
        """The function that is called with all messages of a turn."""
        return self._connection.on_messages

    @on_messages.setter
    def on_messages(self, call: Any) -> None:
        connection = self._connection
        connection.only_on_loop("on_messages")
        if iscoroutinefunction(call):
            raise connection.error("on_messages must not be `async def`: use messages() instead")
        if call is not None and not callable(call):
            raise connection.error(_not_callable("on_messages", call))
        if call is not None and connection.on_message is not None:
            raise connection.error(_ONE_CALLBACK)
        connection.on_messages = call
        connection.schedule()

    @property
    def on_end(self) -> Callable[[DisconnectReason], None] | None:
        """The function called when the client's connection has ended."""
        return self._connection.on_over

    @on_end.setter
    def on_end(self, call: Any) -> None:
        connection = self._connection
        connection.only_on_loop("on_end")
        if iscoroutinefunction(call):
            raise connection.error("on_end must not be `async def`")
        if call is not None and not callable(call):
            raise connection.error(_not_callable("on_end", call))
        connection.on_over = call
        if connection.over is not None:
            connection.schedule()

    def publish(
        self, topic: Any, payload: Any, qos: Any = 0, retain: Any = False, properties: Any = EMPTY
    ) -> Awaitable[ReasonCode]:
        """Publish a message and return an awaitable for the reason code of its acknowledgement."""
        promise = self._open("publish()").state.runtime.promise()
        self._publish(topic, payload, qos, retain, properties, Waiting(promise))
        return promise

    def publish_later(
        self,
        topic: Any,
        payload: Any,
        qos: Any = 0,
        retain: Any = False,
        properties: Any = EMPTY,
        done: Any = None,
    ) -> None:
        """Publish a message. `done` is called with the reason code of the acknowledgement."""
        connection = self._open("publish_later()")
        if done is None:
            # Inlined from `_publish`: a call would cost a tenth of what the message costs.
            calls = connection.calls
            if (
                calls is not None
                and (topic is calls.topic or (type(topic) is str and topic == calls.topic))
                and qos is calls.given_qos
                and type(payload) is bytes
                and len(payload) <= calls.room
                and retain is False
                and properties is _EMPTY
                and _DEPTH.get() + 1 == calls.depth
                and connection.pending_bytes + len(payload) + calls.each <= calls.most
            ):
                connection.pending_bytes += len(payload) + calls.each
                calls.payloads.append(payload)
                return
        else:
            if not callable(done):
                raise connection.error(f"cannot publish: {_not_callable('done', done)}")
            code = getattr(
                done, "__code__", None
            )  # `iscoroutinefunction` would cost more per message
            if code is not None and code.co_flags & CO_COROUTINE:
                raise connection.error("cannot publish: done must not be `async def`")
        self._publish(topic, payload, qos, retain, properties, done)

    def _publish(
        self, topic: Any, payload: Any, qos: Any, retain: Any, properties: Any, done: Done | None
    ) -> None:
        connection = self._connection
        if not self._is_known(topic, payload, qos, retain, properties):
            properties = self._check(topic, payload, qos, retain, properties)
        calls = connection.calls
        size = len(payload) + len(topic) + EACH
        settings = connection.state.settings.broker
        if connection.pending and connection.pending_bytes + size > settings.max_held_inbound_bytes:
            raise connection.error(
                f"the client {self.client_id!r} has {connection.pending_bytes} bytes that wait to be published: "
                "await what it has published, or wait for its `done`"
            )
        depth = _DEPTH.get() + 1
        if depth > settings.publish_depth:
            raise self._too_deep()
        connection.pending_bytes += size
        if not connection.scheduled:
            connection.schedule()
        if retain or properties is not _EMPTY:
            connection.add((topic, payload, qos, retain, properties, done, depth))
            return
        if calls is None or calls.topic != topic or calls.qos != qos or calls.depth != depth:
            last = connection.pending[-1] if connection.pending else None
            if (
                not isinstance(last, tuple)
                or last[0] != topic
                or last[2] != qos
                or last[6] != depth
                or last[3]
                or last[4] is not _EMPTY
            ):
                connection.add((topic, payload, qos, False, _EMPTY, done, depth))
                return
            # From the second message on, messages with one topic are collected.
            room = connection.limits.max_packet_size - 4 * len(topic) - _HEADER
            calls = Calls(topic, qos, depth, room, settings.max_held_inbound_bytes)
            calls.add(last[1], last[5])
            connection.pending[-1] = calls
            connection.calls = calls
        calls.add(payload, done)

    def publish_many(self, messages: Any) -> Awaitable[list[ReasonCode]]:
        """Publish messages in order and return an awaitable for their reason codes."""
        connection = self._open("publish_many()")
        batch = Batch(connection.state.runtime.promise(), self._depth())
        payloads: list[bytes] = []
        topic: object = None
        name = ""
        qos: object = None
        room = each = size = 0
        try:
            iterator = iter(messages)
        except TypeError:
            raise connection.error(
                f"cannot publish: the messages are {type(messages).__name__}, not iterable"
            ) from None
        for item in iterator:
            if type(item) is not tuple or not 2 <= len(item) <= 5:
                raise self._wrong(len(batch), "expected a tuple of 2 to 5 items")
            fields: tuple[Any, ...] = item
            payload = fields[1]
            given = len(fields)
            if (
                (fields[0] is not topic and (type(fields[0]) is not str or fields[0] != name))
                or type(payload) is not bytes
                or len(payload) > room
                or (fields[2] if given > 2 else 0) is not qos
                or given > 3
            ):
                topic, qos = fields[0], fields[2] if given > 2 else 0
                retain = fields[3] if given > 3 else False
                properties = fields[4] if given > 4 else _EMPTY
                if not self._is_known(topic, payload, qos, retain, properties):
                    try:
                        properties = self._check(topic, payload, qos, retain, properties)
                    except PluginError as error:
                        raise self._wrong(len(batch), error.message) from None
                name = cast(str, topic)
                payloads = batch.add(name, cast(int, qos), retain, properties)
                room = connection.limits.max_packet_size - 4 * len(cast(str, topic)) - _HEADER
                each = len(cast(str, topic)) + EACH
                if given > 3:
                    topic, room = None, -1  # the next message begins another run
            size += len(payload) + each
            payloads.append(payload)
        if (
            (connection.pending or len(batch) > 1)
            and connection.pending_bytes + size
            > connection.state.settings.broker.max_held_inbound_bytes
        ):
            raise connection.error(
                f"{connection.pending_bytes + size} bytes would wait to be published, more than "
                "broker.max_held_inbound_bytes: publish fewer at once, or await earlier ones"
            )
        self._open("publish_many()")  # the iterable may have ended the client
        batch.close(size)
        connection.pending_bytes += size
        connection.add(batch)
        connection.schedule()
        return batch.promise

    def subscribe(
        self,
        filter: Any,
        qos: Any = 0,
        *,
        no_local: Any = False,
        retain_as_published: Any = False,
        retain_handling: Any = 0,
        identifier: Any = None,
    ) -> Awaitable[ReasonCode]:
        """Subscribe and return an awaitable for the reason code in SUBACK."""
        connection = self._open("subscribe()")
        self._check_type("subscribe", "the filter", filter, str)
        self._check_range("subscribe", "the QoS", qos, 2)
        self._check_range("subscribe", "retain_handling", retain_handling, 2)
        given = EMPTY
        if identifier is not None:
            self._check_range("subscribe", "the identifier", identifier, 268435455, 1)
            if not connection.offered.subscription_identifiers_available:
                raise connection.error(
                    "cannot subscribe: the broker has no subscription identifiers"
                )
            given = Properties(subscription_identifier=(identifier,))
        request = SubscribeRequest(
            filter, qos, bool(no_local), bool(retain_as_published), retain_handling
        )
        return self._request("subscribe", filter, request, given)

    def unsubscribe(self, filter: Any) -> Awaitable[ReasonCode]:
        """Unsubscribe and return an awaitable for the reason code in UNSUBACK."""
        self._open("unsubscribe()")
        self._check_type("unsubscribe", "the filter", filter, str)
        return self._request("unsubscribe", filter, None, EMPTY)

    def _request(
        self, what: str, filter: str, request: SubscribeRequest | None, given: Properties
    ) -> Awaitable[ReasonCode]:
        connection = self._connection
        limits = connection.limits
        try:
            text = decode_utf8(filter.encode(), "the filter", limits.strict_text)
        except (ProtocolError, UnicodeEncodeError) as error:
            raise connection.error(f"cannot {what}: {error}") from None
        if not 0 < len(text.encode()) <= 65535:
            raise connection.error(f"cannot {what}: the filter needs 1 to 65,535 bytes")
        if len(connection.owed) >= 60000:
            raise connection.error(f"cannot {what}: too many requests wait for an answer")
        promise = connection.state.runtime.promise()
        number = connection.number(Waiting(promise))
        connection.pending_bytes += EACH
        if request is None:
            connection.add(Unsubscribe(number, (filter,)))
        else:
            connection.add(Subscribe(number, (request,), given))
        connection.schedule()
        return promise

    def messages(self) -> Messages:
        """Return an iterator over the messages."""
        connection = self._connection
        connection.only_on_loop("messages()")
        if connection.on_message is not None or connection.on_messages is not None:
            raise connection.error("messages() and on_message or on_messages exclude each other")
        return Messages(connection)

    def acknowledge_many(self, deliveries: Any, code: Any = _SUCCESS) -> None:
        """Acknowledge messages of this client."""
        connection = self._connection
        connection.only_on_loop("acknowledge_many()")
        if not isinstance(code, ReasonCode):
            raise connection.error(
                f"cannot acknowledge: the code is {type(code).__name__}, not ReasonCode"
            )
        try:
            given = list(deliveries)
        except TypeError:
            raise connection.error(
                f"cannot acknowledge: the deliveries are {type(deliveries).__name__}, not iterable"
            ) from None
        mine: list[PluginDelivery] = []
        for index, one in enumerate(given):
            if not isinstance(one, PluginDelivery) or one.mailbox is not connection:
                raise connection.error(
                    f"cannot acknowledge: deliveries[{index}] was not delivered to the client "
                    f"{self.client_id!r}; no message was acknowledged"
                )
            if one.qos:
                mine.append(one)
        for one in mine:
            one.settle(code)

    def pause(self) -> None:
        """Receive no messages until `resume` is called."""
        self._connection.only_on_loop("pause()")
        self._connection.set_stopped(True)

    def resume(self) -> None:
        """Receive messages again."""
        self._connection.only_on_loop("resume()")
        self._connection.set_stopped(False)

    def disconnect(
        self, code: Any = _SUCCESS, *, will: Any = False, session_expiry: Any = None
    ) -> None:
        """Disconnect after all messages published earlier have been sent."""
        connection = self._connection
        connection.only_on_loop("disconnect()")
        if connection.phase is not Phase.OPEN or connection.leaving:
            return
        if not isinstance(code, int) or code not in CLIENT_DISCONNECT:
            raise connection.error(f"cannot disconnect: a client may not send the code {code!r}")
        if will and code == _SUCCESS:
            code = ReasonCode.DISCONNECT_WITH_WILL
        given = EMPTY
        if session_expiry is not None:
            self._check_range("disconnect", "session_expiry", session_expiry, 0xFFFFFFFF)
            session = connection.session
            if session_expiry and session is not None and not session.expiry:
                raise connection.error("cannot disconnect: session_expiry was 0 in connect()")
            given = Properties(session_expiry_interval=session_expiry)
        connection.pending_bytes += EACH
        connection.leaving = True
        connection.add(Disconnect(int(code), given))
        connection.schedule()

    # --- checks ----------------------------------------------------------------------------------------------------

    def _open(self, name: str) -> PluginConnection:
        """Return the connection. Raise PluginError if the client has ended, or if called in a thread."""
        connection = self._connection
        if not connection.state.runtime.on_loop():
            connection.only_on_loop(name)
        if connection.phase is not _OPEN or connection.leaving:
            raise connection.ended()
        return connection

    def _depth(self) -> int:
        """Return the recursion depth of a message that is published now. Raise PluginError if it is too deep."""
        depth = _DEPTH.get() + 1
        if depth > self._connection.state.settings.broker.publish_depth:
            raise self._too_deep()
        return depth

    def _too_deep(self) -> PluginError:
        # This limit ends loops of plugins that respond to each other's messages.
        connection = self._connection
        connection.state.dropped(
            None, connection.client, DropReason.DEPTH, Direction.IN, connection.plugin
        )
        return connection.error("plugins publish in response to each other in a loop")

    def _wrong(self, index: int, text: str) -> PluginError:
        """Return the error for an invalid message of a batch."""
        return self._connection.error(f"messages[{index}]: {text}; no message was published")

    def _is_known(self, topic: Any, payload: Any, qos: Any, retain: Any, properties: Any) -> bool:
        """Return whether a message needs no check, because one with its topic was published recently."""
        connection = self._connection
        return (
            type(topic) is str
            and topic in connection.memo
            and type(payload) is bytes
            and len(payload) + 4 * len(topic) + _HEADER <= connection.limits.max_packet_size
            and type(qos) is int
            and (qos == 0 or (qos == 1 and connection.offered.max_qos > 0))
            and retain is False
            and properties is _EMPTY
        )

    def _check_type(self, what: str, name: str, given: object, kind: type) -> None:
        if not isinstance(given, kind):
            raise self._connection.error(
                f"cannot {what}: {name} is {type(given).__name__}, not {kind.__name__}"
            )

    def _check_range(self, what: str, name: str, given: Any, most: int, least: int = 0) -> None:
        self._check_type(what, name, given, int)
        if isinstance(given, bool):
            raise self._connection.error(f"cannot {what}: {name} is bool, not int")
        if not least <= given <= most:
            raise self._connection.error(
                f"cannot {what}: {name} is {given!r}, not {least} to {most}"
            )

    def _check(
        self, topic: Any, payload: Any, qos: Any, retain: Any, properties: Any
    ) -> Properties:
        """Check a message as the decoder checks a PUBLISH. Return its properties, without those that apply only to a
        single connection.
        """
        connection = self._connection
        for name, given, kind in (
            ("the topic", topic, str), ("the payload", payload, bytes), ("retain", retain, bool),
            ("properties", properties, Properties),
        ):  # fmt: skip
            self._check_type("publish", name, given, kind)
        offered = connection.offered
        self._check_range("publish", "the QoS", qos, offered.max_qos)
        if retain and not offered.retain_available:
            raise connection.error("cannot publish: the broker has no retained messages")
        limits = connection.limits
        levels = connection.state.settings.broker.max_topic_levels
        try:
            validate_topic(topic, levels)
            decode_utf8(topic.encode(), "the topic", limits.strict_text)
            if connection.scope.mount_point:
                validate_topic(connection.scope.mount_point + topic, levels)
            if properties is _EMPTY:
                section = 1
            elif properties is self._checked:
                section = self._section
            else:
                kept = properties.only(In.WILL)
                raw = encode_section(kept, In.PUBLISH)
                reader = Reader(raw, 0, limits.strict_text)
                check_response_topic(
                    read_properties(reader, In.PUBLISH, limits.max_user_properties)
                )
                properties = self._checked = kept
                section = self._section = len(raw)
        except (ProtocolError, ValueError, TypeError, AttributeError) as error:
            raise connection.error(f"cannot publish: {error}") from None
        size = publish_size(len(topic.encode()), len(payload), qos, section)
        if size > limits.max_packet_size:
            raise connection.error(
                f"cannot publish: the packet of {size} bytes exceeds {limits.max_packet_size}"
            )
        checked: Properties = properties
        return checked
