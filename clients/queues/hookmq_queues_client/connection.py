"""One MQTT 5 connection: paho-mqtt, driven by asyncio without a thread of its own.

A connection is used once. After it has ended, a packet identifier may refer to another message on the next connection, so
each message is acknowledged only on the connection that delivered it.
"""

import asyncio
import contextlib
import ssl
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from hookmq_queues_client.errors import ConnectionLost, ConnectionRefused, refused
from hookmq_queues_client.options import Options

UserProperties = Sequence[tuple[str, str]]
MAX_PENDING: Final = 1000
"""Maximum number of publishes per connection that may be waiting for PUBACK."""
_HEADER: Final = 65_536
"""Above this many bytes, the size of a message's topic and properties is computed exactly."""
_CHECK: Final = 1.0
"""Seconds between two checks of the keep alive."""
_UNSPECIFIED: Final = 0x80
"""The code that paho gives when the connection ends without a DISCONNECT."""


class Connection:
    """One connection. `on_message` is called with each message, which must then be acknowledged with `ack`."""

    def __init__(
        self,
        options: Options,
        client_id: str,
        receive_maximum: int = 1,
        on_message: Callable[[paho.MQTTMessage], None] | None = None,
    ) -> None:
        self._options = options
        self._receive_maximum = receive_maximum
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        """A future that is done when the connection has ended. Its result is the reason."""
        self.takes_more = True
        """Whether settling a message explicitly may make room for another."""
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[tuple[int, str]]] = {}
        self._room = asyncio.Semaphore(MAX_PENDING)
        self._largest = 0xFFFFFFFF
        """Maximum size of a packet, as the broker announced it."""
        self._check: asyncio.TimerHandle | None = None
        self._writing = False
        client = self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False, manual_ack=True,
        )  # fmt: skip
        client.max_inflight_messages_set(0)  # `_room` limits them
        client.connect_timeout = options.timeout
        if options.username is not None:
            client.username_pw_set(options.username, options.password)
        if options.tls is not None:
            client.tls_set_context(options.tls)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = client.on_unsubscribe = self._on_answer
        if on_message is not None:
            client.on_message = lambda _c, _u, message: on_message(message)

    @property
    def is_open(self) -> bool:
        """Return whether requests can be sent."""
        return self._connected.done() and not self.ended.done()

    async def open(self) -> None:
        """Connect. Raises an OSError such as ssl.SSLError or TimeoutError if the broker cannot be reached,
        ConnectionRefused if it refuses the client, and ConnectionLost if it closes the connection.
        """
        options, client = self._options, self._client
        properties = _properties(PacketTypes.CONNECT)
        properties.ReceiveMaximum = self._receive_maximum
        connecting = self._loop.run_in_executor(
            None, lambda: client.connect(
                options.host, options.port, options.keepalive, clean_start=True, properties=properties
            ),
        )  # fmt: skip
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(self._abandon)
            raise
        except OSError as error:
            traceback.clear_frames(error.__traceback__)  # they keep paho's socket open
            raise
        try:
            self._attach()
            async with asyncio.timeout(options.timeout):
                await self._connected
        except BaseException:
            self._drop()
            raise

    async def publish(self, topic: str, payload: bytes, properties: Properties) -> None:
        """Publish at QoS 1, and return after PUBACK. Raises Refused or ConnectionLost."""
        await self._room.acquire()
        request = f"accept a message to {topic}"
        size = len(payload) + _HEADER
        if size > self._largest:
            packed: bytes = properties.pack()  # type: ignore[no-untyped-call]
            size = 9 + len(topic.encode()) + len(packed) + len(payload)
        if size > self._largest:
            self._room.release()
            reason = f"the packet has {size} bytes, and the broker accepts at most {self._largest}"
            raise refused(request, 0x95, reason)
        if not self.is_open:
            raise self._lost("it is closed")
        try:
            info = self._client.publish(topic, payload, 1, properties=properties)
        except ValueError:  # such as for a topic that is too long
            self._room.release()
            raise
        await self._answer(request, info.rc, info.mid)

    async def subscribe(self, filter: str, user_properties: UserProperties = ()) -> None:
        """Subscribe with QoS 1. Raises Refused or ConnectionLost."""
        properties = _properties(PacketTypes.SUBSCRIBE)
        if user_properties:
            properties.UserProperty = list(user_properties)
        rc, mid = self._client.subscribe([(filter, SubscribeOptions(1))], properties=properties)
        await self._answer(f"subscribe to {filter}", rc, mid)

    async def unsubscribe(self, filter: str) -> None:
        """Unsubscribe. Raises Refused or ConnectionLost."""
        rc, mid = self._client.unsubscribe(filter)
        await self._answer(f"unsubscribe from {filter}", rc, mid)

    def ack(self, packet_id: int) -> bool:
        """Send PUBACK. Return False if the connection has ended."""
        return self.is_open and self._client.ack(packet_id, 1) == MQTTErrorCode.MQTT_ERR_SUCCESS

    async def close(self) -> None:
        """Send all pending data, then DISCONNECT, and close the connection. Return at once if it has already ended."""
        if self.is_open and self._client.disconnect() == MQTTErrorCode.MQTT_ERR_SUCCESS:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.timeout):
                    await asyncio.shield(self.ended)
        self._drop()

    # answers ---------------------------------------------------------------------------------------------------------

    async def _answer(self, request: str, rc: int, mid: int | None) -> None:
        """Wait for the acknowledgement of a packet. Raises Refused or ConnectionLost."""
        if rc != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise self._lost(paho.error_string(MQTTErrorCode(rc)))
        answer: asyncio.Future[tuple[int, str]] = self._loop.create_future()
        self._answers[mid] = answer
        code, reason = await answer
        if code >= 0x80:
            raise refused(request, code, reason)

    def _lost(self, why: str) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self._options.address} ended: {why}")

    def _on_publish(self, _c: Any, _u: Any, mid: int, code: ReasonCode, properties: Any) -> None:
        self._room.release()
        self._on_answer(_c, _u, mid, [code], properties)

    def _on_answer(self, _c: Any, _u: Any, mid: int, codes: Any, properties: Any) -> None:
        answer = self._answers.pop(mid, None)
        if answer is not None and not answer.done():
            answer.set_result((codes[0].value if codes else 0, _reason(properties)))

    def _on_connect(self, _c: Any, _u: Any, _f: Any, code: ReasonCode, properties: Any) -> None:
        if self._connected.done():
            return
        if code.is_failure:
            error = ConnectionRefused(
                "accept the client", code.value, _reason(properties) or str(code)
            )
            self._connected.set_exception(error)
            return
        self._room = asyncio.Semaphore(
            min(MAX_PENDING, getattr(properties, "ReceiveMaximum", 65535))
        )
        self._largest = getattr(properties, "MaximumPacketSize", self._largest)
        self._connected.set_result(None)

    def _on_disconnect(
        self, _c: Any, _u: Any, flags: paho.DisconnectFlags, code: ReasonCode, properties: Any
    ) -> None:
        told = flags.is_disconnect_packet_from_server or code.value != _UNSPECIFIED
        self._end(_reason(properties) or (str(code) if told else "connection lost"))

    def _end(self, why: str) -> None:
        if self.ended.done():
            return
        self.ended.set_result(why)
        waiting: list[asyncio.Future[Any]] = [self._connected, *self._answers.values()]
        self._answers.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(self._lost(why))
                future.exception()  # retrieve the exception, because nothing may await the future
        # Wake up the calls that wait for room. They will find the connection closed.
        for _ in range(MAX_PENDING):
            self._room.release()

    # the socket ------------------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        client = self._client
        sock = client.socket()
        if sock is None:
            raise self._lost("it is closed")
        raw = sock.fileno()
        client.on_socket_register_write = self._write_soon
        client.on_socket_close = lambda *_: self._detach(raw)
        self._loop.add_reader(raw, self._read)
        self._write()
        self._check = self._loop.call_later(_CHECK, self._misc)

    def _read(self) -> None:
        client = self._client
        try:
            client.loop_read()
            # TLS may have decrypted more than one packet, which the selector does not see.
            while isinstance(sock := client.socket(), ssl.SSLSocket) and sock.pending():
                client.loop_read()
        except Exception as error:  # a malformed packet; paho has many errors for it
            self._drop(f"a packet could not be read: {error!r}")

    def _write_soon(self, *_: Any) -> None:
        self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._client.loop_write()
        sock = self._client.socket()
        wanted = sock is not None and self._client.want_write()
        if sock is None or wanted == self._writing:
            return
        self._writing = wanted
        if wanted:
            self._loop.add_writer(sock.fileno(), self._write)
        else:
            self._loop.remove_writer(sock.fileno())

    def _misc(self) -> None:
        self._check = self._loop.call_later(_CHECK, self._misc)
        self._client.loop_misc()

    def _detach(self, raw: int) -> None:
        self._loop.remove_reader(raw)
        self._loop.remove_writer(raw)
        if self._check is not None:
            self._check.cancel()

    def _drop(self, why: str = "closed") -> None:
        """Close the socket without DISCONNECT."""
        sock = self._client.socket()
        # paho would call it again, when the number may mean another socket.
        self._client.on_socket_close = None
        if sock is not None and sock.fileno() >= 0:
            self._detach(sock.fileno())
            sock.close()
        self._end(why)

    def _abandon(self, connecting: "asyncio.Future[Any]") -> None:
        """Close a socket that was opened for a caller that has stopped waiting."""
        if not connecting.cancelled() and connecting.exception() is None:
            self._drop()


def publish_properties(user_properties: UserProperties, expiry: int | None = None) -> Properties:
    """Return the properties of a PUBLISH that expires after `expiry` seconds. Raises ValueError for strings that MQTT
    cannot carry, because the broker would close the connection.
    """
    for pair in user_properties:
        for text in pair:
            why = _fault(text)
            if why:
                raise ValueError(f"the user property {pair[0][:64]!r} {why}")
    properties = _properties(PacketTypes.PUBLISH)
    if user_properties:
        properties.UserProperty = list(user_properties)
    if expiry is not None:
        properties.MessageExpiryInterval = expiry
    return properties


def _fault(text: object) -> str:
    if not isinstance(text, str):
        return f"is not a text: {text!r:.64}"
    if "\0" in text:
        return "contains U+0000"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "contains a surrogate"
    return "is longer than 65535 bytes" if size > 65_535 else ""


def _properties(packet: int) -> Properties:
    return Properties(packet)  # type: ignore[no-untyped-call]


def _reason(properties: Properties | None) -> str:
    return str(getattr(properties, "ReasonString", "")) if properties is not None else ""
