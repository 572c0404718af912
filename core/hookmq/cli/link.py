"""One MQTT connection for `pub`, `sub` and `rr`: paho-mqtt in a thread of its own, its callbacks as a queue of events.

The main thread reads files and prints, and stays open to Ctrl-C; paho's thread answers PINGREQ and reconnects meanwhile.
"""

import logging
import os
import queue
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from hookmq.cli.formats import Received, harmless
from hookmq.cli.options import Property, Target
from hookmq.errors import HookMQError

PACKETS: Final = {
    "connect": PacketTypes.CONNECT,
    "publish": PacketTypes.PUBLISH,
    "subscribe": PacketTypes.SUBSCRIBE,
    "unsubscribe": PacketTypes.UNSUBSCRIBE,
    "disconnect": PacketTypes.DISCONNECT,
    "will": PacketTypes.WILLMESSAGE,
}


_TLS_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


class LinkError(HookMQError):
    """The broker could not be reached, refused the client or closed the connection."""


@dataclass(frozen=True, slots=True)
class Event:
    """What paho told: `kind` is connected, refused, lost, message, published, subscribed or unsubscribed."""

    kind: str
    mid: int = 0
    codes: tuple[int, ...] = ()
    reason: str = ""
    message: Received | None = None


def properties_for(packet: str, properties: Sequence[Property]) -> Properties | None:
    """paho's properties of one packet, None where none was given."""
    chosen = [(name, value) for where, name, value in properties if where == packet]
    if not chosen:
        return None
    result = Properties(PACKETS[packet])  # type: ignore[no-untyped-call]
    for name, value in chosen:
        setattr(result, name, value)
    return result


class Link:
    """A connection to `target`. `events` come in the order in which paho told them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        five = target.version == 5
        client = self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            target.client_id,
            clean_session=None if five else target.clean_start,
            protocol=MQTTProtocolVersion(target.version),
            transport="unix" if target.unix else "websockets" if target.websocket else "tcp",
        )
        if target.username is not None or target.password is not None:
            client.username_pw_set(target.username or "", target.password)
        if target.tls:
            self._set_tls()
        if target.max_inflight is not None:
            client.max_inflight_messages_set(target.max_inflight)
        if target.nodelay:
            client.on_socket_open = _send_at_once
        if target.websocket:
            client.ws_set_options(target.path)
        if target.will is not None:
            will = target.will
            extra = properties_for("will", target.properties)
            client.will_set(will.topic, will.payload, will.qos, will.retain, extra)
        client.reconnect_delay_set(1, 30)
        if target.debug:
            logger = logging.getLogger("hookmq.cli.link")
            logger.setLevel(logging.DEBUG)
            logger.propagate = False
            logger.handlers = [logging.StreamHandler(sys.stderr)]
            client.enable_logger(logger)
        put = self.events.put
        client.on_connect = lambda _c, _u, _f, code, _p: put(self._answered(code))
        client.on_disconnect = lambda _c, _u, _f, code, properties: put(
            Event("lost", codes=(code.value,), reason=_reason(code, properties))
        )
        client.on_message = lambda _c, _u, message: put(
            Event("message", message=_received(message))
        )
        client.on_publish = lambda _c, _u, mid, code, properties: put(
            Event("published", mid, (code.value,), _reason(code, properties))
        )
        client.on_subscribe = lambda _c, _u, mid, codes, properties: put(
            Event("subscribed", mid, tuple(c.value for c in codes), _text(properties))
        )
        client.on_unsubscribe = lambda _c, _u, mid, codes, properties: put(
            Event("unsubscribed", mid, tuple(c.value for c in codes), _text(properties))
        )

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
            raise LinkError(f"TLS: {error}") from None

    def _answered(self, code: ReasonCode) -> Event:
        # paho maps 3.x return codes onto MQTT 5 reason codes
        if not code.is_failure:
            return Event("connected", codes=(code.value,))
        return Event("refused", codes=(code.value,), reason=str(code))

    def open(self, timeout: float = 30.0) -> None:
        """Connect and wait for the CONNACK. Raises LinkError."""
        target = self.target
        host = target.unix or target.host
        if target.unix is not None and not os.path.exists(target.unix):
            raise LinkError(f"cannot connect to {target.address}: No such file or directory")
        properties = properties_for("connect", target.properties)
        if target.session_expiry is not None:
            properties = properties or Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = target.session_expiry
        try:
            if target.version == 5:
                self.client.connect(
                    host,
                    target.port,
                    target.keep_alive,
                    target.bind,
                    clean_start=target.clean_start,
                    properties=properties,
                )
            else:
                self.client.connect(host, target.port, target.keep_alive, target.bind)
        except (OSError, ValueError, paho.WebsocketConnectionError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise LinkError(f"cannot connect to {target.address}: {why}") from None
        self.client.loop_start()
        event = self.next(timeout)
        if event is None:
            raise LinkError(f"{target.address} did not answer within {timeout:g} s")
        if event.kind == "lost":
            guess = (
                "does it want a client certificate?"
                if target.tls
                else "does it want TLS or WebSocket?"
            )
            raise LinkError(
                f"{target.address} closed the connection without an answer to CONNECT ({guess})"
            )
        if event.kind != "connected":
            raise LinkError(f"{target.address} refused the connection: {event.reason}")

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event; None when none came within `timeout` seconds. None waits for ever."""
        try:
            return self.events.get(timeout=timeout)
        except queue.Empty:
            return None

    def subscribe(self, filters: Sequence[str], qos: int, **options: Any) -> list[int]:
        """Send one SUBSCRIBE per filter; their packet ids. `options` are those of MQTT 5. Raises LinkError."""
        five = self.target.version == 5
        properties = properties_for("subscribe", self.target.properties) if five else None
        mids = []
        for filter in filters:
            try:
                if five:
                    chosen = SubscribeOptions(qos, **options)
                    code, mid = self.client.subscribe(filter, options=chosen, properties=properties)
                else:
                    code, mid = self.client.subscribe(filter, qos)
            except ValueError as error:
                raise LinkError(f"subscribe to {filter!r}: {error}") from None
            _check(code, "subscribe")
            mids.append(mid or 0)
        return mids

    def unsubscribe(self, filters: Sequence[str]) -> list[int]:
        """Send one UNSUBSCRIBE per filter; their packet ids. Raises LinkError."""
        five = self.target.version == 5
        properties = properties_for("unsubscribe", self.target.properties) if five else None
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
        """Send PUBLISH; its packet id. Raises LinkError."""
        try:
            info = self.client.publish(topic, payload, qos, retain, properties)
        except ValueError as error:
            raise LinkError(f"publish to {topic!r}: {error}") from None
        if info.rc not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN):
            _check(info.rc, "publish")
        return info.mid

    def close(self) -> None:
        """Send DISCONNECT and end paho's thread."""
        if self.target.version == 5:
            self.client.disconnect(properties=properties_for("disconnect", self.target.properties))
        else:
            self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def opened(target: Target) -> Iterator[Link]:
    """A link that is open inside the block. Raises LinkError."""
    link = Link(target)
    try:
        link.open()
        yield link
    finally:
        link.close()


class Deadline:
    """How long is left of a time span; None never ends."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds left, at least 0; None without an end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self._end is not None and time.monotonic() >= self._end


def _send_at_once(client: paho.Client, data: Any, connection: Any) -> None:
    # A duplicate, as paho's WebSocket has no setsockopt; the option is that of the connection.
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _received(message: paho.MQTTMessage) -> Received:
    return Received(
        message.topic,
        bytes(message.payload),
        message.qos,
        message.retain,
        message.mid,
        message.properties,
    )


def _check(code: MQTTErrorCode, what: str) -> None:
    if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
        raise LinkError(f"{what}: {paho.error_string(code)}")


def _text(properties: Properties | None) -> str:
    return harmless(str(getattr(properties, "ReasonString", "") or ""))


def _reason(code: ReasonCode, properties: Properties | None) -> str:
    text = _text(properties)
    return f"{code} ({text})" if text else str(code)
