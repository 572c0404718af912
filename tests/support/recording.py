"""A paho-mqtt client whose callbacks put events into queues, so that tests can read these events in order."""

import queue
import ssl
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

WAIT = 60.0
V31, V311, V5 = (
    MQTTProtocolVersion.MQTTv31,
    MQTTProtocolVersion.MQTTv311,
    MQTTProtocolVersion.MQTTv5,
)


def properties(packet: int, **values: Any) -> Properties:
    """Return paho's properties object for a packet type (`PacketTypes`). The keywords are paho's property names."""
    made = Properties(packet)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Client:
    """A client that records everything it receives. Used as a context manager, it disconnects on exit if still
    connected.
    """

    def __init__(
        self,
        port: int,
        client_id: str = "",
        version: MQTTProtocolVersion = V311,
        *,
        clean: bool = True,
        expiry: int | None = None,
        will: tuple[str, bytes, int, bool] | None = None,
        tls: ssl.SSLContext | None = None,
        path: str | None = None,
        host: str = "127.0.0.1",
        keep_alive: int = 60,
        username: str | None = None,
        password: str | None = None,
        aliases: int | None = None,
    ) -> None:
        self.aliases = aliases
        self.version = version
        self.port, self.host, self.keep_alive = port, host, keep_alive
        self.clean = clean
        self.expiry = expiry
        five = version == V5
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if five else clean,
            protocol=version,
            transport="websockets" if path else "tcp",
            reconnect_on_failure=False,
        )
        if path:
            self.paho.ws_set_options(path)
        if tls is not None:
            self.paho.tls_set_context(tls)
        if username is not None:
            self.paho.username_pw_set(username, password)
        if will is not None:
            self.paho.will_set(*will)
        self.connack: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()
        self.connack_properties: Properties | None = None
        self.subacks: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self.unsubacks: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self.pubacks: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self.ends: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.messages: queue.SimpleQueue[paho.MQTTMessage] = queue.SimpleQueue()
        self.paho.on_connect = self._on_connect
        self.paho.on_subscribe = lambda c, u, mid, codes, p: self.subacks.put(
            [r.value for r in codes]
        )
        self.paho.on_unsubscribe = lambda c, u, mid, codes, p: self.unsubacks.put(
            [r.value for r in codes]
        )
        self.paho.on_publish = lambda c, u, mid, code, p: self.pubacks.put((mid, code.value))
        self.ended = False
        """Whether the connection has ended. After the broker's DISCONNECT, paho may still report that it is connected."""
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_message = lambda c, u, message: self.messages.put(message)

    def _on_connect(
        self, client: Any, userdata: Any, flags: Any, code: Any, given: Properties | None
    ) -> None:
        self.connack_properties = given
        self.connack.put((code.value, bool(flags.session_present)))

    def _on_disconnect(
        self, client: Any, userdata: Any, flags: Any, code: Any, given: Properties | None
    ) -> None:
        self.ended = True
        self.ends.put(code.value)

    def connect(self) -> tuple[int, bool]:
        """Connect and wait for CONNACK. Return its reason code and its Session Present flag."""
        self.ended = False
        if self.version == V5:
            wanted = {"SessionExpiryInterval": self.expiry, "TopicAliasMaximum": self.aliases}
            values = {name: value for name, value in wanted.items() if value is not None}
            given = properties(PacketTypes.CONNECT, **values) if values else None
            self.paho.connect(
                self.host, self.port, self.keep_alive, clean_start=self.clean, properties=given
            )
        else:
            self.paho.connect(self.host, self.port, self.keep_alive)
        self.paho.loop_start()
        return self.connack.get(timeout=WAIT)

    def disconnect(self) -> None:
        """Send DISCONNECT and wait until the connection has ended."""
        if self.paho.is_connected() and not self.ended:
            self.paho.disconnect()
            self.ends.get(timeout=WAIT)
        self.paho.loop_stop()

    def cut(self) -> None:
        """Break the connection, as a network failure would."""
        sock: Any = self.paho.socket()
        assert sock is not None
        sock.shutdown(2)
        self.ends.get(timeout=WAIT)
        self.paho.loop_stop()

    def __enter__(self) -> Self:
        code, _ = self.connect()
        assert code == 0, f"refused with {code:#04x}"
        return self

    def __exit__(self, *raised: object) -> None:
        self.disconnect()

    def subscribe(self, filter: str, qos: int = 0, **options: Any) -> int:
        """Subscribe and wait. Return the reason code of SUBACK. `options` are MQTT 5 options, named as in paho."""
        if self.version == V5:
            self.paho.subscribe(filter, options=SubscribeOptions(qos, **options))
        else:
            self.paho.subscribe(filter, qos)
        [code] = self.subacks.get(timeout=WAIT)
        return code

    def unsubscribe(self, filter: str) -> list[int]:
        """Unsubscribe and wait. Return the reason codes of UNSUBACK, or an empty list in MQTT 3."""
        self.paho.unsubscribe(filter)
        return self.unsubacks.get(timeout=WAIT)

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **given: Any
    ) -> int:
        """Publish, and wait for the acknowledgement or, at QoS 0, for the write. Return the reason code.

        `given` are properties.
        """
        mid = self.post(topic, payload, qos, retain, **given)
        told, code = self.pubacks.get(timeout=WAIT)
        assert told == mid
        return code

    def post(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **given: Any
    ) -> int:
        """Publish without waiting. Return paho's id of the message."""
        made = properties(PacketTypes.PUBLISH, **given) if given else None
        info = self.paho.publish(topic, payload, qos, retain, made)
        assert info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS
        return info.mid

    def message(self) -> paho.MQTTMessage:
        """Wait for the next message and return it."""
        return self.messages.get(timeout=WAIT)

    def payloads(self, count: int) -> list[bytes]:
        """Wait for the next `count` messages and return their payloads."""
        return [bytes(self.message().payload) for _ in range(count)]

    def until(self, marker: str) -> list[paho.MQTTMessage]:
        """Return all messages that arrive before the next one whose topic is `marker`."""
        before: list[paho.MQTTMessage] = []
        while (message := self.message()).topic != marker:
            before.append(message)
        return before
