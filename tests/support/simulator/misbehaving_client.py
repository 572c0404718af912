"""Clients that violate the protocol: any packet in any phase, invalid bytes, wrong packet ids and client ids, floods,
and abrupt disconnects.

The broker owes these clients nothing. Their messages are in the ledger, because other clients may receive them.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, Protocol

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
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import PacketType
from hookmq_testing.decoder import Decoder

from simulator.client_assertions import METHOD
from simulator.clock import Clock
from simulator.ledger import Ledger
from simulator.network import Endpoint, Link

PUBLISHER: Final = 1000
"""Publisher numbers from this one on belong to misbehaving clients."""


class World(Protocol):
    """The parts of the world that a misbehaving client uses."""

    clock: Clock
    ledger: Ledger
    victim: str

    def dial(self, client: Endpoint, random: Random) -> Link:
        """Open a connection."""


class Rude:
    """A client that violates the protocol once, on a single connection."""

    def __init__(self, world: World, name: str, kind: str, number: int, version: int) -> None:
        self.world = world
        self.name = name
        self.kind = kind
        self.number = number
        self.version = version
        self.random = Random(number)
        self.publisher = PUBLISHER + int(name[4:])
        self.link = world.dial(self, self.random)
        self._decoder = Decoder(version, server=False)
        self._then: Callable[[], None] | None = None
        self._hold = False

    def start(self) -> None:
        """Perform the violation."""
        _ACTS[self.kind](self)

    def took(self, link: Link, data: bytes) -> None:
        """Process bytes from the broker. Misbehaving clients read only to track their phase."""
        for packet in self._decoder.feed(data):
            if isinstance(packet, Connack | Auth) and self._then is not None:
                then, self._then = self._then, None
                then()
            elif isinstance(packet, Publish) and packet.qos and not self._hold:
                # It behaves well most of the time. Otherwise, nothing would progress.
                if self.random.random() < 0.8:
                    self._send((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
            elif isinstance(packet, Pubrel) and self.random.random() < 0.8:
                self._send(Pubcomp(packet.packet_id))
            elif isinstance(packet, Pubrec) and self.random.random() < 0.8:
                self._send(Pubrel(packet.packet_id))

    def ended(self, link: Link) -> None:
        """Clean up after the connection has closed."""

    # --- packets -----------------------------------------------------------------------------------------------------

    def _connect(
        self,
        then: Callable[[], None] | None,
        client_id: str | None = None,
        username: str | None = None,
        method: str | None = None,
        clean: bool = True,
        expiry: int = 0,
    ) -> None:
        self._then = then
        properties = Properties()
        if self.version == 5:
            properties = Properties(
                session_expiry_interval=expiry or None, authentication_method=method
            )
        else:
            clean = clean and not expiry
        name = self.name if client_id is None else client_id
        self._send(Connect(name, self.version, clean, 0, username, None, None, False, properties))

    def _send(self, packet: Packet) -> None:
        try:
            data = encode(packet, self.version)
        except ValueError:
            data = encode(packet, 5)
        self.link.send(data, _kind(packet))

    def _message(self, topic: str, qos: int, number: int, size: int = 10) -> Publish:
        sent, payload = self.world.ledger.write(self.publisher, topic, qos, size=size)
        sent.trusted = False
        self.world.ledger.sending(sent, self.world.clock.now)
        return Publish(topic, payload, qos, False, False, number if qos else 0)

    def _any_packet(self, kind: PacketType) -> Packet:
        number = self.random.randrange(1, 5)
        five = self.version == 5
        method = (
            Properties(authentication_method=METHOD, authentication_data=b"x")
            if five
            else Properties()
        )
        code = self.random.choice((0x18, 0x19))
        made: dict[PacketType, Callable[[], Packet]] = {
            PacketType.CONNECT: lambda: Connect(self.name, self.version, True, 0),
            PacketType.CONNACK: lambda: Connack(0),
            PacketType.PUBLISH: lambda: self._message("t/0", self.random.randrange(3), number),
            PacketType.PUBACK: lambda: Puback(number),
            PacketType.PUBREC: lambda: Pubrec(number, self.random.choice((0, 0x80)) if five else 0),
            PacketType.PUBREL: lambda: Pubrel(number),
            PacketType.PUBCOMP: lambda: Pubcomp(number),
            PacketType.SUBSCRIBE: lambda: Subscribe(number, (SubscribeRequest("t/#", 1),)),
            PacketType.SUBACK: lambda: Suback(number, (0,)),
            PacketType.UNSUBSCRIBE: lambda: Unsubscribe(number, ("t/#",)),
            PacketType.UNSUBACK: lambda: Unsuback(number, (0,) if five else ()),
            PacketType.PINGREQ: Pingreq,
            PacketType.PINGRESP: Pingresp,
            PacketType.DISCONNECT: lambda: Disconnect(self.random.choice((0, 4)) if five else 0),
            PacketType.AUTH: lambda: Auth(code, method),
        }
        return made[kind]()

    # --- actions -----------------------------------------------------------------------------------------------------

    def cell(self) -> None:
        """Send a packet of a certain type in a certain phase of the connection."""
        kind = tuple(PacketType)[self.number % 15]
        phase = self.number // 15
        say = partial(self._say, kind)
        if phase == 0:
            say()
        elif phase == 1:
            # Deciding: a slow plugin, or the commit of a session that is to be kept.
            self._connect(None, username="slow", clean=False, expiry=5)
            self.world.clock.at(self.world.clock.now, say)
            for wait in (0.004, 0.02, 0.1):
                self.world.clock.after(wait, say)
        elif phase == 2:
            self.version = 5
            self._decoder = Decoder(5, server=False)
            self._connect(say, method=METHOD)
        elif phase == 3:
            self._connect(say)
        else:
            self._connect(self._fall_silent)
            self.world.clock.after(0.0, say)

    def _fall_silent(self) -> None:
        self._send(Disconnect())
        for wait in (0.0, 0.0, 0.001, 0.001):
            kind = tuple(PacketType)[self.number % 15]
            self.world.clock.after(wait, partial(self._say, kind))

    def _say(self, kind: PacketType) -> None:
        if kind is PacketType.AUTH:
            self.version = 5
        self._send(self._any_packet(kind))

    def garbage(self) -> None:
        """Send random bytes."""
        data = self.random.randbytes(self.random.randrange(1, 60))
        if self.random.random() < 0.5:
            self.link.send(data)
        else:
            self._connect(lambda: self.link.send(data))

    def mutate(self) -> None:
        """Send packets with one byte changed."""

        def say() -> None:
            for _ in range(3):
                kind = self.random.choice(tuple(PacketType))
                version = 5 if kind is PacketType.AUTH else self.version
                packet = self._any_packet(kind)
                if isinstance(packet, Publish):
                    # A changed payload must not reach a client that would look it up in the ledger.
                    packet = Publish("xx/0", b"?", packet.qos, False, False, packet.packet_id)
                data = bytearray(encode(packet, version))
                data[self.random.randrange(len(data))] = self.random.randrange(256)
                self.link.send(bytes(data))

        if self.random.random() < 0.3:
            say()
        else:
            self._connect(say)

    def acks(self) -> None:
        """Acknowledge messages that were never received."""

        def say() -> None:
            self._send(Subscribe(9, (SubscribeRequest("t/#", 2),)))
            for _ in range(12):
                kind: Callable[[int], Packet] = self.random.choice(
                    (Puback, Pubrec, Pubrel, Pubcomp)
                )
                self._send(kind(self.random.randrange(1, 6)))

        self._connect(say, expiry=self.random.choice((0, 5)))

    def ids(self) -> None:
        """Use one packet id for many messages."""

        def say() -> None:
            for _ in range(8):
                self._send(
                    self._message("t/0", self.random.choice((1, 2, 2)), self.random.randrange(1, 3))
                )
                if self.random.random() < 0.3:
                    self._send(Pubrel(self.random.randrange(1, 3)))

        self._connect(say, expiry=self.random.choice((0, 5)))

    def steal(self) -> None:
        """Connect with the id of another client."""

        def say() -> None:
            self._send(Subscribe(9, (SubscribeRequest("t/#", 1),)))
            self._send(self._message("t/1", 1, 3))

        clean = self.random.random() < 0.3
        self._connect(say, client_id=self.world.victim or None, clean=clean, expiry=5)

    def flood(self) -> None:
        """Exceed every limit of the broker."""

        def say() -> None:
            for number in range(1, self.random.choice((30, 80))):
                self._send(self._message("t/1", self.random.choice((0, 0, 1, 2)), number))

        self._connect(say)

    def vanish(self) -> None:
        """Subscribe to everything and disconnect."""

        def say() -> None:
            self._hold = True
            self._send(
                Subscribe(9, (SubscribeRequest("#", 2), SubscribeRequest("$share/z/s/0", 0)))
            )
            self.world.clock.after(self.random.random(), lambda: self.link.go_dark(3.0))

        self._connect(say, expiry=5)

    def slow(self) -> None:
        """Subscribe to everything and read nothing for a while."""

        def say() -> None:
            self._send(Subscribe(9, (SubscribeRequest("#", self.random.randrange(3)),)))
            self.link.stall()
            for _ in range(20):
                self._send(Pingreq())
            self.world.clock.after(self.random.random() * 3.0, self.link.unstall)

        self._connect(say)

    def bye(self) -> None:
        """Connect and disconnect correctly, so that no session is left."""

        def say() -> None:
            self._send(Disconnect())
            self.link.hang_up()

        self._connect(say)

    def huge(self) -> None:
        """Send the start of a packet that is never completed."""

        def say() -> None:
            self.link.send(b"\x30\xff\xff\x03\x00\x03t/0")
            self.world.clock.after(1.0, self.link.hang_up)

        if self.random.random() < 0.5:
            say()
        else:
            self._connect(say)


def _kind(packet: Packet) -> PacketType:
    return PacketType[type(packet).__name__.upper()]


_ACTS: Final[dict[str, Callable[[Rude], None]]] = {
    "cell": Rude.cell, "garbage": Rude.garbage, "mutate": Rude.mutate, "acks": Rude.acks, "ids": Rude.ids,
    "steal": Rude.steal, "flood": Rude.flood, "vanish": Rude.vanish, "slow": Rude.slow, "huge": Rude.huge,
    "bye": Rude.bye,
}  # fmt: skip
