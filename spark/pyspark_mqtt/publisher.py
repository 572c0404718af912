"""One MQTT connection that publishes messages and tracks acknowledgements, without Spark.

paho-mqtt implements the protocol: it reconnects, and resends messages that were not acknowledged. This module adds what
paho does not provide: negative acknowledgements, the server's receive maximum, disconnects after which a retry is
pointless, and a limit on messages in flight.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspark_mqtt.client import tls
from pyspark_mqtt.errors import MqttError, UnreachableError
from pyspark_mqtt.options import BROKER_PORTS, Options, secret

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties

_PASSING = {0x80, 0x83, 0x88, 0x89, 0x8B, 0x8D, 0x96, 0x98, 0x9F, 0xA0}
"""Reason codes of CONNACK and DISCONNECT after which a new connection may succeed, because the server is busy or
restarting."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish. The properties need MQTT 5; with 3.1.1 they are omitted."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Publisher:
    """A connection to the broker, used as a context manager. ``publish`` blocks while maxInflight messages are in
    flight."""

    def __init__(self, options: Options, client_id: str) -> None:
        self.options = options
        self.client_id = client_id
        self._url = options.url("brokerUrl")
        self._v5 = options.text("mqttVersion") == "5"
        self._patience = options.number("publishTimeoutMs") / 1000
        self._window = options.number("maxInflight")
        self._changed = threading.Condition()
        self._connected = False
        self._sent = self._acknowledged = 0
        self._fault: str | None = None
        self._passing = "it did not answer"
        self._refused: tuple[int, str] | None = None
        self._topics: dict[int, str] = {}
        self._client: Client

    @property
    def address(self) -> str:
        """Return the broker's address for use in messages."""
        return f"{self._url.scheme}://{self._url.netloc}"

    def __enter__(self) -> Publisher:
        """Connect. Raises MqttError if the broker refuses the connection, or does not respond within
        publishTimeoutMs."""
        self._client = self._prepare()
        self._dial()
        self._client.loop_start()
        try:
            self._wait(lambda: self._connected)
        except BaseException:
            self._client.loop_stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, message: Message) -> None:
        """Publish a message. Raises MqttError if it cannot be sent, or if an earlier message was refused."""
        self._wait(lambda: self._sent - self._acknowledged < self._window)
        self._sent += 1
        try:
            info = self._client.publish(
                message.topic,
                message.payload,
                message.qos,
                message.retain,
                self._properties(message),
            )
        except ValueError as error:
            raise MqttError(
                f"A message to topic {message.topic!r} cannot be sent: {error}."
            ) from None
        self._topics[info.mid] = message.topic

    def finish(self) -> None:
        """Wait until every message has been acknowledged. Raises MqttError if one is refused or is not acknowledged
        in time."""
        self._wait(lambda: self._acknowledged == self._sent)

    def _wait(self, done: Any) -> None:
        """Wait until ``done()`` is true. Each acknowledgement restarts the timeout."""
        with self._changed:
            while True:
                if self._fault is not None:
                    raise MqttError(f"{self.address} refused the connection: {self._fault}.")
                if self._refused is not None:
                    mid, reason = self._refused
                    raise MqttError(
                        f"{self.address} refused a message to topic {self._topics.get(mid, '')!r}: {reason}. "
                        "It is not in the broker; what is before it in this task is."
                    )
                if done():
                    return
                before = (self._acknowledged, self._connected)
                if not self._changed.wait(self._patience) and before == (
                    self._acknowledged,
                    self._connected,
                ):
                    left = self._sent - self._acknowledged
                    raise MqttError(
                        f"{self.address} acknowledged nothing for publishTimeoutMs, {self._patience:g} s, while "
                        f"{left} messages waited: {self._passing}."
                    )

    def _prepare(self) -> Client:
        try:
            from paho.mqtt import client as paho
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError as error:
            raise MqttError(
                f"Writing needs paho-mqtt >= 2.1 on every node, and it is not on {socket.gethostname()} ({error}): "
                'pip install "paho-mqtt>=2.1".'
            ) from None
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            self.client_id,
            clean_session=None if self._v5 else False,
            protocol=paho.MQTTv5 if self._v5 else paho.MQTTv311,
            transport="websockets" if self._url.scheme in ("ws", "wss") else "tcp",
        )
        if self._url.scheme in ("ws", "wss"):
            client.ws_set_options(self._url.path or "/mqtt")
        if self._url.scheme in ("mqtts", "ssl", "wss"):
            client.tls_set_context(tls(self.options))
        username, password = self.options.text("username"), secret(self.options, "password")
        if username or password:
            client.username_pw_set(username or None, password or None)
        client.max_inflight_messages_set(
            0
        )  # This class's window and the server's receive maximum limit them instead.
        client.reconnect_delay_set(1, 2)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        return client

    def _dial(self) -> None:
        """Open the first connection. Wait up to publishTimeoutMs for a broker that is restarting."""
        from paho.mqtt.client import MQTT_CLEAN_START_FIRST_ONLY

        options: dict[str, Any] = {}
        if self._v5:
            # After a lost connection, unacknowledged messages are resent in the same session.
            options["clean_start"] = MQTT_CLEAN_START_FIRST_ONLY
            options["properties"] = self._connect_properties()
        self._client.connect_timeout = self.options.number("connectionTimeoutMs") / 1000
        port = self._url.port or BROKER_PORTS[self._url.scheme] or 0
        until = time.monotonic() + self._patience
        while True:
            try:
                self._client.connect(
                    self._url.hostname or "", port, self.options.number("keepAlive"), **options
                )
                return
            except ssl.SSLCertVerificationError as error:
                raise MqttError(
                    f"The certificate of {self.address} is not trusted ({error.verify_message}): give its "
                    "authority with caFile, on every node."
                ) from None
            except (OSError, ValueError) as error:
                if time.monotonic() >= until:
                    raise UnreachableError(
                        f"{self.address} cannot be reached ({error}), tried for publishTimeoutMs, "
                        f"{self._patience:g} s: is the broker running, and is brokerUrl right?"
                    ) from None
            with self._changed:
                self._changed.wait(min(1.0, self._patience))

    def _connect_properties(self) -> Properties:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = max(1, round(self._patience))
        return properties

    def _properties(self, message: Message) -> Properties | None:
        if not self._v5:
            return None
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.PUBLISH)
        if message.headers:
            properties.UserProperty = list(message.headers)
        if message.content_type is not None:
            properties.ContentType = message.content_type
        if message.response_topic is not None:
            properties.ResponseTopic = message.response_topic
        if message.correlation_data is not None:
            properties.CorrelationData = message.correlation_data
        return properties

    # Callbacks, which run in paho's thread

    def _on_connect(
        self, _client: Any, _data: Any, _flags: Any, reason: Any, properties: Any
    ) -> None:
        with self._changed:
            if reason.is_failure:
                self._lost(reason)
            else:
                self._connected = True
                most = getattr(properties, "ReceiveMaximum", None)
                self._window = min(self.options.number("maxInflight"), most or 65_535)
            self._changed.notify_all()

    def _on_disconnect(
        self, _client: Any, _data: Any, flags: Any, reason: Any, _properties: Any
    ) -> None:
        with self._changed:
            self._connected = False
            if flags.is_disconnect_packet_from_server:
                self._lost(reason)
            else:
                self._passing = f"the connection was lost ({reason})"
            self._changed.notify_all()

    def _on_publish(
        self, _client: Any, _data: Any, mid: int, reason: Any, _properties: Any
    ) -> None:
        with self._changed:
            if reason.is_failure:
                if self._refused is None:
                    self._refused = (mid, str(reason))
            else:
                self._acknowledged += 1
            self._changed.notify_all()

    def _lost(self, reason: Any) -> None:
        if reason.value in _PASSING:
            self._passing = str(reason)
        else:
            self._fault = str(reason)
            if reason.value in (0x86, 0x87):
                self._fault += " (username, password)"
