"""An in-memory client. A test drives it and checks the packets that it receives."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn, Protocol, TypeVar

from hookmq.broker import Broker, PacketReader
from hookmq.model.client import Peer, Scope
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    WillFields,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import PacketType

from hookmq_testing.decoder import Decoder
from hookmq_testing.packets import (
    Filters,
    TopicAliases,
    answer_to,
    make_properties,
    make_subscribe,
    show,
    show_code,
)
from hookmq_testing.wire import HIGH_WATER, Clock, MemoryWire

P = TypeVar("P")

KINDS: dict[PacketType, type] = {
    PacketType.CONNECT: Connect, PacketType.CONNACK: Connack, PacketType.PUBLISH: Publish, PacketType.PUBACK: Puback,
    PacketType.PUBREC: Pubrec, PacketType.PUBREL: Pubrel, PacketType.PUBCOMP: Pubcomp,
    PacketType.SUBSCRIBE: Subscribe, PacketType.SUBACK: Suback, PacketType.UNSUBSCRIBE: Unsubscribe,
    PacketType.UNSUBACK: Unsuback, PacketType.PINGREQ: Pingreq, PacketType.PINGRESP: Pingresp,
    PacketType.DISCONNECT: Disconnect, PacketType.AUTH: Auth,
}  # fmt: skip


def will(
    topic: str,
    payload: bytes = b"",
    qos: int = 0,
    retain: bool = False,
    delay: int | None = None,
    **properties: Any,
) -> WillFields:
    """Return a will for `Harness.connect`. `delay` is the Will Delay Interval in seconds, and `properties` are MQTT 5
    will properties."""
    return WillFields(
        topic, payload, qos, retain, Properties(will_delay_interval=delay, **properties)
    )


class BrokerHost(Protocol):
    """The part of a `Harness` that its clients use."""

    @property
    def broker(self) -> Broker: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def logs(self) -> list[tuple[str, str, dict[str, object]]]: ...

    def settle(self) -> None:
        """Let the broker finish its work."""


class MemoryClient:
    """One client and its connection. `Harness.connect` and `Harness.open` create it.

    Every call first lets the broker finish its work (`Harness.settle`). `received` holds all packets in order, and
    `raw_received` their bytes. `unread` holds the packets that no `expect` has taken yet. An `expect` takes the first
    unread packet of its kind. If there is none, it raises AssertionError and shows the packets that arrived.

    With `auto_ack`, the client responds to PUBLISH, PUBREC and PUBREL at once, and the PUBREL and PUBCOMP of deliveries
    are not added to `unread`. Acknowledgements of its own publishes (PUBACK, PUBREC, PUBCOMP) are added, and
    ``publish(..., expect=0)`` takes them.
    """

    def __init__(
        self,
        harness: BrokerHost,
        connect: Connect,
        *,
        scope: Scope,
        peer: Peer,
        auto_ack: bool = True,
        high_water: int = HIGH_WATER,
    ) -> None:
        self.harness = harness
        self.connect = connect
        """The CONNECT packet that the client sends. `reconnect` changes it."""
        self.scope = scope
        self.peer = peer
        self.auto_ack = auto_ack
        self.high_water = high_water
        self.received: list[Packet] = []
        self.unread: deque[Packet] = deque()
        self.raw_received = b""
        self.connack: Connack | None = None
        """The last CONNACK received, or None."""
        self.wire: MemoryWire
        self.connection: PacketReader
        """The broker's end of the connection."""
        self._decoder: Decoder
        self._aliases = TopicAliases()
        self._packet_id = 0
        self._open()

    def _open(self) -> None:
        self._decoder = Decoder(self.connect.version, server=False)
        self._aliases = TopicAliases()
        self.unread.clear()
        self.raw_received = b""
        wire = MemoryWire(self.harness.clock, self._took, self._ended, self.high_water)
        self.wire = wire
        # A connection above the limits is closed at once, so `wire` must be set first.
        wire.connection = self.connection = self.harness.broker.accept(wire, self.peer, self.scope)

    # state ---------------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The client id that the client sent, or the one that the broker assigned."""
        assigned = self.connack.properties.assigned_client_identifier if self.connack else None
        return assigned or self.connect.client_id

    @property
    def version(self) -> int:
        """The protocol level: 3, 4 or 5."""
        return self.connect.version

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        self.harness.settle()
        return self.wire.closed

    @property
    def session_present(self) -> bool:
        """The Session Present flag of the last CONNACK."""
        return self.connack is not None and self.connack.session_present

    @property
    def messages(self) -> list[Publish]:
        """All PUBLISH packets received, with topic aliases resolved."""
        self.harness.settle()
        return [packet for packet in self.received if isinstance(packet, Publish)]

    # sending -------------------------------------------------------------------------------------------------------

    def raw(self, data: bytes) -> None:
        """Send bytes as one segment."""
        self.wire.send(data)
        self.harness.settle()

    def send(self, *packets: Packet) -> None:
        """Send packets in one segment."""
        self.raw(b"".join(encode(packet, self.version) for packet in packets))

    def send_connect(self) -> None:
        """Send CONNECT, as `Harness.connect` does."""
        self.send(self.connect)

    def next_packet_id(self) -> int:
        """Return an unused packet id."""
        self._packet_id = self._packet_id % 65535 + 1
        return self._packet_id

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        *,
        dup: bool = False,
        packet_id: int | None = None,
        expect: int | None = None,
        **properties: Any,
    ) -> int:
        """Publish a message and return its packet id, which is 0 for QoS 0.

        With `expect`, take the final acknowledgement (PUBACK, a failed PUBREC, or PUBCOMP) and check that it has this
        reason code.
        """
        if packet_id is None:
            packet_id = self.next_packet_id() if qos else 0
        self.send(Publish(topic, payload, qos, retain, dup, packet_id, Properties(**properties)))
        if expect is not None and qos == 1:
            self._code(self.expect(Puback), expect)
        elif expect is not None and qos == 2:
            answer = self.expect(Pubrec)
            if answer.code >= 0x80:
                self._code(answer, expect)
            else:
                if not self.auto_ack:
                    self.send(Pubrel(packet_id))
                self._code(self.expect(Pubcomp), expect if answer.code != expect else 0)
        return packet_id

    def send_subscribe(self, filters: Filters, qos: int = 0, **options: Any) -> int:
        """Send SUBSCRIBE without waiting for SUBACK. Return the packet id.

        Each filter is a string, a pair (filter, QoS) or a `SubscribeRequest`. The options are `no_local`,
        `retain_as_published`, `retain_handling`, the subscription `identifier`, and properties.
        """
        packet_id = self.next_packet_id()
        self.send(make_subscribe(packet_id, filters, qos, **options))
        return packet_id

    def subscribe(self, filters: Filters, qos: int = 0, **options: Any) -> Suback:
        """Subscribe and return the SUBACK, without checking its reason codes.

        The arguments are those of `send_subscribe`.
        """
        packet_id = self.send_subscribe(filters, qos, **options)
        answer = self.expect(Suback)
        if answer.packet_id != packet_id:
            self._fail(f"expected SUBACK {packet_id}, got {show(answer)}")
        return answer

    def send_unsubscribe(self, filters: str | Iterable[str], **properties: Any) -> int:
        """Send UNSUBSCRIBE without waiting for UNSUBACK. Return the packet id."""
        packet_id = self.next_packet_id()
        chosen = (filters,) if isinstance(filters, str) else tuple(filters)
        self.send(Unsubscribe(packet_id, chosen, Properties(**properties)))
        return packet_id

    def unsubscribe(self, filters: str | Iterable[str], **properties: Any) -> Unsuback:
        """Unsubscribe and return the UNSUBACK, without checking its reason codes."""
        packet_id = self.send_unsubscribe(filters, **properties)
        answer = self.expect(Unsuback)
        if answer.packet_id != packet_id:
            self._fail(f"expected UNSUBACK {packet_id}, got {show(answer)}")
        return answer

    def ping(self) -> None:
        """Send PINGREQ and receive PINGRESP."""
        self.send(Pingreq())
        self.expect(Pingresp)

    def ack(self, message: Publish, code: int = 0, **properties: Any) -> None:
        """Acknowledge a PUBLISH with PUBACK or PUBREC. Use `send` for PUBREL and PUBCOMP."""
        given = Properties(**properties)
        if message.qos == 1:
            self.send(Puback(message.packet_id, code, given))
        elif message.qos == 2:
            self.send(Pubrec(message.packet_id, code, given))

    def disconnect(self, code: int = 0, **properties: Any) -> None:
        """Send DISCONNECT and close the connection."""
        self.send(Disconnect(code, Properties(**properties)))
        self.wire.lose()
        self.harness.settle()

    def drop(self, error: str = "connection reset") -> None:
        """Drop the connection without sending DISCONNECT."""
        self.wire.lose(error)
        self.harness.settle()

    def reconnect(self, expect: int | None = 0, **changes: Any) -> "MemoryClient":
        """Connect again, dropping any open connection first. Return this client.

        Clean Start is False, so the session is resumed. `changes` are arguments of `Harness.connect`; all others remain
        unchanged. `unread` is cleared, but `received` is not.
        """
        if not self.wire.closed:
            self.drop()
        changes.setdefault("clean_start", False)
        self.scope = changes.pop("scope", None) or self.scope
        self.peer = changes.pop("peer", None) or self.peer
        self.auto_ack = changes.pop("auto_ack", self.auto_ack)
        names = Connect.__slots__
        fields = {name: changes.pop(name) for name in names if name in changes}
        given = fields.pop("properties", self.connect.properties)
        self.connect = replace(self.connect, properties=make_properties(given, changes), **fields)
        self._open()
        self.handshake(expect)
        return self

    def handshake(self, expect: int | None = 0) -> None:
        """Send CONNECT and check the code of the CONNACK. If `expect` is None, leave the response unread."""
        self.connack = None
        self.send_connect()
        if expect is None:
            return
        connack = self.expect(Connack)
        self._code(connack, expect)
        if expect and not self.closed:
            self._fail("refused, but the connection is still open")

    def pause(self) -> None:
        """Stop reading. The broker's output accumulates on its side."""
        self.wire.block()

    def resume(self) -> None:
        """Resume reading."""
        self.wire.unblock()
        self.harness.settle()

    # receiving -----------------------------------------------------------------------------------------------------

    def _took(self, data: bytes) -> None:
        self.raw_received += data
        if self._decoder.error is not None:
            return  # an error was already raised
        answers = []
        for packet in self._decoder.feed(data):
            if isinstance(packet, Connack):
                self.connack = packet
            elif isinstance(packet, Publish):
                packet = self._aliases.resolve(packet)
            self.received.append(packet)
            answer = answer_to(packet) if self.auto_ack else None
            if answer is not None:
                answers.append(encode(answer, self.version))
            if not (self.auto_ack and isinstance(packet, Pubrel)):
                self.unread.append(packet)
        if answers:
            self.wire.send(b"".join(answers))
        if self._decoder.error is not None:
            raise AssertionError(f"the broker violated MQTT: {self._decoder.error}: {data!r}")

    def _ended(self) -> None:
        pass

    # assertions ----------------------------------------------------------------------------------------------------

    def expect(self, kind: type[P] | PacketType) -> P:
        """Take and return the first unread packet of type `kind`."""
        self.harness.settle()
        wanted = KINDS[kind] if isinstance(kind, PacketType) else kind
        for index, packet in enumerate(self.unread):
            if isinstance(packet, wanted):
                del self.unread[index]
                found: Any = packet
                return found  # type: ignore[no-any-return]
        self._fail(f"expected {wanted.__name__.upper()}")

    def next(self) -> Packet:
        """Take and return the first unread packet of any type."""
        self.harness.settle()
        if not self.unread:
            self._fail("expected a packet")
        return self.unread.popleft()

    def expect_message(
        self,
        topic: str | None = None,
        payload: bytes | None = None,
        qos: int | None = None,
        retain: bool | None = None,
        dup: bool | None = None,
    ) -> Publish:
        """Take the first unread PUBLISH and check that it has the given values. Topic aliases are resolved."""
        message = self.expect(Publish)
        wanted = {"topic": topic, "payload": payload, "qos": qos, "retain": retain, "dup": dup}
        for name, value in wanted.items():
            if value is not None and getattr(message, name) != value:
                self._fail(f"expected PUBLISH with {name} {value!r}, got {show(message)}")
        return message

    def expect_nothing(self) -> None:
        """Check that no packet is unread and that the connection is open."""
        self.harness.settle()
        if self.unread:
            self._fail("expected nothing")
        if self.wire.closed:
            self._fail("expected an open connection")

    def expect_disconnect(self, code: int | None = None) -> Disconnect | None:
        """Check that the broker closed the connection. In MQTT 5, take its DISCONNECT, check its `code` and return the
        packet."""
        self.harness.settle()
        packet = None
        if self.version == 5:
            packet = self.expect(Disconnect)
            if code is not None:
                self._code(packet, code)
        elif any(isinstance(one, Disconnect) for one in self.unread):
            self._fail("expected no DISCONNECT: only clients send it in MQTT 3.x")
        if not self.wire.closed:
            self._fail("expected a closed connection")
        return packet

    def expect_closed(self) -> None:
        """Check that the connection is closed and that no packet is unread."""
        self.harness.settle()
        if self.unread:
            self._fail("expected a closed connection without packets")
        if not self.wire.closed:
            self._fail("expected a closed connection")

    def _code(self, packet: Any, code: int) -> None:
        if packet.code != code:
            self._fail(
                f"expected code {show_code(code)}, got {show_code(packet.code)} in {show(packet)}"
            )

    def _fail(self, wanted: str) -> NoReturn:
        lines = [f"{self.connect.client_id!r} (v{self.version}): {wanted}"]
        lines.append("connection: " + ("closed" if self.wire.closed else "open"))
        lines += [f"unread: {show(packet)}" for packet in self.unread] or ["unread: nothing"]
        lines += [f"received: {show(packet)}" for packet in self.received[-10:]]
        lines += [f"log: {event} {fields}" for _, event, fields in self.harness.logs[-5:]]
        raise AssertionError("\n".join(lines))

    def __repr__(self) -> str:
        return f"<MemoryClient {self.client_id!r} v{self.version}>"
