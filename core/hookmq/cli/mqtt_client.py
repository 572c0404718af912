"""The MQTT client for `pub`, `sub` and `rr`: paho-mqtt in its own thread, which queues an event for each callback.

The main thread reads files, prints, and reacts to Ctrl-C. paho's thread keeps the connection alive and reconnects.
"""

import logging
import os
import queue
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from hookmq.cli.formats import ReceivedMessage, harmless
from hookmq.cli.options import ConnectTarget, Property
from hookmq.mqtt.errors import HookMQError

_TLS_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


class MqttClientError(HookMQError):
    """Raised if the broker cannot be reached, refuses the client, or closes the connection."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """One callback from paho. `kind` is connected, refused, lost, message, published, subscribed or unsubscribed."""

    kind: str
    mid: int = 0
    codes: tuple[int, ...] = ()
    reason: str = ""
    message: ReceivedMessage | None = None
    connection: int = 0
    """The number of the connection that received the message."""


def new_properties(packet: str) -> Properties:
    """Return empty paho properties for `packet`, such as ``publish`` or ``will``."""
    kind = PacketTypes.WILLMESSAGE if packet == "will" else getattr(PacketTypes, packet.upper())
    return Properties(kind)  # type: ignore[no-untyped-call]


def properties_for(packet: str, properties: Sequence[Property]) -> Properties | None:
    """Return the paho properties that the options set for one packet, or None if they set none."""
    chosen = [(name, value) for where, name, value in properties if where == packet]
    if not chosen:
        return None
    result = new_properties(packet)
    for name, value in chosen:
        setattr(result, name, value)
    return result


class MqttClient:
    """One connection to `target`. `events` has paho's callbacks in order.

    With `manual_ack`, call `acknowledge` for each message. Otherwise, paho acknowledges a message when it arrives.
    """

    def __init__(self, target: ConnectTarget, manual_ack: bool = False) -> None:
        self.target = target
        self.events: queue.SimpleQueue[ClientEvent] = queue.SimpleQueue()
        self._five = target.version == 5
        self._connection = 0
        client = self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            target.client_id,
            clean_session=None if self._five else target.clean_start,
            protocol=MQTTProtocolVersion(target.version),
            transport="unix" if target.unix else "websockets" if target.websocket else "tcp",
            manual_ack=manual_ack,
        )
        if target.username is not None or target.password is not None:
            client.username_pw_set(target.username or "", target.password)
        if target.tls:
            self._set_tls()
        if target.max_inflight is not None:
            client.max_inflight_messages_set(target.max_inflight)
        if target.nodelay:
            client.on_socket_open = _set_nodelay
        if target.websocket:
            client.ws_set_options(target.path)
        if target.will is not None:
            client.will_set(*target.will, self._properties("will"))
        client.reconnect_delay_set(1, 30)
        if target.debug:
            logger = logging.getLogger("hookmq.cli.mqtt_client")
            logger.setLevel(logging.DEBUG)
            logger.propagate = False
            logger.handlers = [logging.StreamHandler(sys.stderr)]
            client.enable_logger(logger)
        self._set_callbacks()

    def _properties(self, packet: str) -> Properties | None:
        return properties_for(packet, self.target.properties)

    def _set_callbacks(self) -> None:
        client, put = self.client, self.events.put

        def connected(_c: Any, _u: Any, _f: Any, code: ReasonCode, _p: Any) -> None:
            # paho maps MQTT 3 return codes to MQTT 5 reason codes
            reason = str(code) if code.is_failure else ""
            put(
                ClientEvent("refused" if code.is_failure else "connected", 0, (code.value,), reason)
            )

        def acknowledged(kind: str) -> Callable[..., None]:
            def report(_c: Any, _u: Any, mid: int, codes: Any, properties: Any) -> None:
                if isinstance(codes, list):
                    put(ClientEvent(kind, mid, tuple(c.value for c in codes), _text(properties)))
                else:
                    put(ClientEvent(kind, mid, (codes.value,), _reason(codes, properties)))

            return report

        client.on_connect = connected

        def lost(
            _c: Any, _u: Any, _f: Any, code: ReasonCode, properties: Properties | None
        ) -> None:
            self._connection += 1
            put(ClientEvent("lost", 0, (code.value,), _reason(code, properties)))

        client.on_disconnect = lost
        client.on_message = lambda _c, _u, m: put(
            ClientEvent(
                "message",
                message=ReceivedMessage(
                    m.topic, bytes(m.payload), m.qos, m.retain, m.mid, m.properties
                ),
                connection=self._connection,
            )
        )
        client.on_publish = acknowledged("published")
        client.on_subscribe = acknowledged("subscribed")
        client.on_unsubscribe = acknowledged("unsubscribed")

    def _set_tls(self) -> None:
        target = self.target
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = _TLS_VERSIONS[target.tls_version or "tlsv1.2"]
            if target.ca or target.ca_folder:
                context.load_verify_locations(target.ca, target.ca_folder)
            else:
                context.load_default_certs()
            if target.certificate:
                context.load_cert_chain(target.certificate, target.key)
            if target.ciphers:
                context.set_ciphers(target.ciphers)
            if target.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self.client.tls_set_context(context)
            self.client.tls_insecure_set(target.insecure)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise MqttClientError(f"TLS: {error}") from None

    def open(self, timeout: float = 30.0) -> None:
        """Connect and wait for the CONNACK. Raises MqttClientError."""
        target = self.target
        if target.unix is not None and not os.path.exists(target.unix):
            raise MqttClientError(f"cannot connect to {target.address}: No such file or directory")
        options: dict[str, Any] = {}
        if self._five:
            properties = self._properties("connect")
            if target.session_expiry is not None:
                properties = properties or new_properties("connect")
                properties.SessionExpiryInterval = target.session_expiry
            options = {"clean_start": target.clean_start, "properties": properties}
        try:
            self.client.connect(
                target.unix or target.host, target.port, target.keep_alive, target.bind, **options
            )
        except (OSError, ValueError, paho.WebsocketConnectionError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise MqttClientError(f"cannot connect to {target.address}: {why}") from None
        self.client.loop_start()
        event = self.next(timeout)
        if event is None:
            raise MqttClientError(f"{target.address} did not answer within {timeout:g} s")
        if event.kind == "lost":
            wanted = "a client certificate" if target.tls else "TLS or WebSocket"
            raise MqttClientError(
                f"{target.address} closed the connection without an answer to CONNECT (does it require {wanted}?)"
            )
        if event.kind != "connected":
            raise MqttClientError(f"{target.address} refused the connection: {event.reason}")

    def next(self, timeout: float | None = None) -> ClientEvent | None:
        """Wait for the next event and return it, or return None after `timeout` seconds. Without a
        timeout, wait forever.
        """
        try:
            return self.events.get(timeout=timeout)
        except queue.Empty:
            return None

    def subscribe(self, filters: Sequence[str], qos: int, **options: Any) -> list[int]:
        """Send a SUBSCRIBE for each filter, with the MQTT 5 subscription `options`. Return the packet ids. Raises
        MqttClientError."""
        mids = []
        for filter in filters:
            try:
                if self._five:
                    chosen = SubscribeOptions(qos, **options)
                    properties = self._properties("subscribe")
                    code, mid = self.client.subscribe(filter, options=chosen, properties=properties)
                else:
                    code, mid = self.client.subscribe(filter, qos)
            except ValueError as error:
                raise MqttClientError(f"subscribe to {filter!r}: {error}") from None
            _check(code, "subscribe")
            mids.append(mid or 0)
        return mids

    def unsubscribe(self, filters: Sequence[str]) -> list[int]:
        """Send an UNSUBSCRIBE for each filter and return the packet ids. Raises MqttClientError."""
        properties = self._properties("unsubscribe") if self._five else None
        mids = []
        for filter in filters:
            code, mid = self.client.unsubscribe(filter, properties)
            _check(code, "unsubscribe")
            mids.append(mid or 0)
        return mids

    def publish(
        self,
        topic: str,
        payload: bytes | None,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Send a PUBLISH and return its packet id. Raises MqttClientError."""
        try:
            info = self.client.publish(topic, payload, qos, retain, properties)
        except ValueError as error:
            raise MqttClientError(f"publish to {topic!r}: {error}") from None
        if info.rc != MQTTErrorCode.MQTT_ERR_NO_CONN:
            _check(info.rc, "publish")
        return info.mid

    def acknowledge(self, event: ClientEvent) -> None:
        """Send PUBACK or PUBCOMP for the message of `event`, unless its connection has ended. In that case, the packet id
        is no longer valid, and the broker delivers the message again.
        """
        message = event.message
        if message is not None and message.qos and event.connection == self._connection:
            self.client.ack(message.mid, message.qos)

    def close(self) -> None:
        """Send DISCONNECT and stop paho's thread."""
        self.client.disconnect(properties=self._properties("disconnect") if self._five else None)
        self.client.loop_stop()


@contextmanager
def opened(target: ConnectTarget, manual_ack: bool = False) -> Iterator[MqttClient]:
    """Open a connection for the duration of a `with` block. Raises MqttClientError."""
    client = MqttClient(target, manual_ack)
    try:
        client.open()
        yield client
    finally:
        client.close()


class Deadline:
    """A point in time, `seconds` from now. If `seconds` is None, the deadline never comes."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the remaining seconds, at least 0, or None if there is no deadline."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def _set_nodelay(client: paho.Client, data: Any, connection: Any) -> None:
    # Use a duplicate: paho's WebSocket has no setsockopt, and the option applies to the connection anyway.
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _check(code: MQTTErrorCode, what: str) -> None:
    if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
        raise MqttClientError(f"{what}: {paho.error_string(code)}")


def _text(properties: Properties | None) -> str:
    return harmless(str(getattr(properties, "ReasonString", "") or ""))


def _reason(code: ReasonCode, properties: Properties | None) -> str:
    text = _text(properties)
    return f"{code} ({text})" if text else str(code)
