"""Publishers and consumers of queues in a simulated world. They reconnect whenever a connection ends."""

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Final, Protocol

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from hookmq.mqtt.properties import Properties
from hookmq_testing.decoder import Decoder

from simulator.clock import Clock
from simulator.network import Endpoint, Link
from simulator.queue_ledger import Delivered, QueueLedger

AGAIN: Final = 0.3
"""How long a client waits before it reconnects or resubscribes, in seconds."""


class World(Protocol):
    """The parts of the world that these clients use."""

    clock: Clock
    calm: bool

    def dial(self, client: Endpoint, random: Random) -> Link:
        """Open a connection."""

    def complain(self, invariant: str, text: str) -> None:
        """Report a violated invariant."""

    def heard(self, who: str, direction: str, packet: Packet) -> None:
        """Add a packet to the trace."""


class QueueClient:
    """An MQTT 5 client without a session. Subclasses handle what it receives."""

    def __init__(
        self, world: World, ledger: QueueLedger, name: str, seed: int, window: int
    ) -> None:
        self.world = world
        self.ledger = ledger
        self.name = name
        self.window = window
        self.random = Random(seed)
        self.online = False
        self.open = False
        self.allowed = 0
        """The broker's Receive Maximum."""
        self.link: Link | None = None
        self._decoder = Decoder(5, server=False)
        self._number = 0

    def connect(self) -> None:
        """Connect, if there is no connection."""
        self.online = True
        if self.link is None:
            self._decoder = Decoder(5, server=False)
            self.link = self.world.dial(self, self.random)
            properties = Properties(receive_maximum=self.window)
            self.send(Connect(self.name, 5, True, 0, properties=properties))

    def leave(self, lost: bool) -> None:
        """End the connection and do not reconnect. If `lost`, data on its way to the broker is lost."""
        self.online = False
        if self.link is not None:
            self.link.cut(lost)
            self._gone()

    def took(self, link: Link, data: bytes) -> None:
        """Process bytes from the broker."""
        for packet in self._decoder.feed(data):
            if link is not self.link:
                return
            self.world.heard(self.name, "<-", packet)
            if isinstance(packet, Connack):
                self.open = not packet.code
                if self.open:
                    self.allowed = packet.properties.receive_maximum or 65535
                    self.opened()
            else:
                self.received(packet, link)

    def ended(self, link: Link) -> None:
        """Reconnect, unless the client has left."""
        if link is self.link:
            self._gone()
            self.world.clock.after(AGAIN, self._return)

    def _return(self) -> None:
        if self.online:
            self.connect()

    def _gone(self) -> None:
        self.link = None
        self.open = False
        self.closed()

    def send(self, *packets: Packet) -> None:
        """Send packets in one segment."""
        if self.link is not None:
            for packet in packets:
                self.world.heard(self.name, "->", packet)
            self.link.send(b"".join(encode(packet, 5) for packet in packets))

    def next_id(self) -> int:
        """Return the next packet id."""
        self._number = self._number % 65535 + 1
        return self._number

    def opened(self) -> None:
        """Start working now that the broker has accepted the connection."""

    def received(self, packet: Packet, link: Link) -> None:
        """Handle a packet."""

    def closed(self) -> None:
        """Forget the connection's state."""


class Feeder(QueueClient):
    """A publisher that never resends. A message without PUBACK therefore may or may not be in the queue."""

    def __init__(self, world: World, ledger: QueueLedger, seed: int) -> None:
        super().__init__(world, ledger, "feeder", seed, 20)
        self._pending: dict[int, int] = {}

    def publish(self, topic: str, count: int) -> None:
        """While connected, publish as many messages at QoS 1 as the broker allows."""
        if self.open:
            made = []
            for _ in range(min(count, self.allowed - len(self._pending))):
                number = self.ledger.write(topic)
                packet_id = self.next_id()
                self._pending[packet_id] = number
                made.append(Publish(topic, b"q%d" % number, 1, False, False, packet_id))
            self.send(*made)

    def received(self, packet: Packet, link: Link) -> None:
        """Record which messages were accepted."""
        if isinstance(packet, Puback):
            number = self._pending.pop(packet.packet_id)
            if packet.code < 0x80:
                self.ledger.accepted(number)

    def closed(self) -> None:
        """Forget the messages without PUBACK."""
        self._pending.clear()


class Worker(QueueClient):
    """A consumer. It acknowledges a message after a while, or sometimes only once the world is calm."""

    def __init__(
        self, world: World, ledger: QueueLedger, name: str, seed: int, window: int, filter: str, hold: float
    ) -> None:  # fmt: skip
        super().__init__(world, ledger, name, seed, window)
        self.filter = filter
        self.hold = hold
        self.alone = False
        """Whether it is the only consumer of its group, which then gets new messages in order."""
        self._unacked: dict[int, Delivered] = {}
        """The deliveries of this connection that the consumer has not acknowledged, by packet id."""
        self._pings: list[list[Delivered]] = []
        self._newest: dict[str, int] = {}

    def opened(self) -> None:
        """Subscribe."""
        if self.open:
            self.send(Subscribe(self.next_id(), (SubscribeRequest(self.filter, 1),)))

    def received(self, packet: Packet, link: Link) -> None:
        """Take messages, and record which acknowledgements the broker has processed."""
        if isinstance(packet, Suback):
            if packet.codes[0] >= 0x80:
                self.world.clock.after(AGAIN, self.opened)
        elif isinstance(packet, Pingresp):
            for one in self._pings.pop(0):
                self.ledger.confirmed(one, link.written_at)
        elif isinstance(packet, Publish):
            self._take(packet, link)

    def _take(self, packet: Publish, link: Link) -> None:
        delivered = Delivered.of(packet)
        self.ledger.delivered(delivered, self.name, link.written_at)
        if delivered.times == 1 and self.alone:
            newest = self._newest.get(delivered.queue, -1)
            if delivered.offset < newest:
                self.world.complain("queue order", f"{self.name}: {delivered} after {newest}")
            self._newest[delivered.queue] = delivered.offset
        self._unacked[packet.packet_id] = delivered
        if len(self._unacked) > self.window:
            self.world.complain("queue limits", f"{self.name} has {len(self._unacked)} messages")
        if self.world.calm or self.random.random() >= self.hold:
            delay = 0.0 if self.world.calm else self.random.choice((0.0, 0.0, 0.3))
            again = partial(self._acknowledge, link, (packet.packet_id,))
            self.world.clock.after(delay, again)

    def _acknowledge(self, link: Link, numbers: Iterable[int]) -> None:
        done = []
        for number in numbers:
            if link is self.link and number in self._unacked:
                done.append(self._unacked.pop(number))
                self.ledger.acknowledged(done[-1])
                self.send(Puback(number))
        if done:
            self.send(Pingreq())
            self._pings.append(done)

    def calm(self) -> None:
        """Acknowledge everything."""
        if self.link is not None:
            self._acknowledge(self.link, list(self._unacked))

    def closed(self) -> None:
        """Forget the connection's state."""
        self._unacked.clear()
        self._pings.clear()
        self._newest.clear()
