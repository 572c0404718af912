"""The clients of a simulated run. Each has a durable session, and keeps a list of the messages that it sent or
received."""

from typing import Any

from cluster_world import ClusterWorld
from hookmq.mqtt.packets import Connack, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from hookmq_testing import MemoryClient

EXPIRY = 100_000


class Client:
    """A client that resumes its session at any node. `lost` says that a node did not know the session."""

    def __init__(self, world: ClusterWorld, client_id: str) -> None:
        self.world = world
        self.client_id = client_id
        self.lost = False
        self._known = False
        self._read = 0
        self._connection: MemoryClient | None = None

    @property
    def online(self) -> bool:
        """Whether the client has read a CONNACK on a connection that is open."""
        client = self._connection
        return client is not None and self._read > 0 and not client.wire.closed

    def connect(self, node: str) -> None:
        """Connect to `node` instead. It may refuse the client, or answer later."""
        self.drop()
        self._read = 0
        options: dict[str, Any] = {"session_expiry_interval": EXPIRY, "clean_start": False}
        self._connection = self.world.connect(node, self.client_id, expect=None, **options)
        self.take()

    def drop(self) -> None:
        """Lose the connection."""
        if self._connection is not None and not self._connection.wire.closed:
            self._connection.drop()
        self.take()  # packets may arrive until the connection ends
        self._connection = None

    def take(self) -> None:
        """Take up the packets that have arrived."""
        if self._connection is not None:
            packets = self._connection.received[self._read :]
            self._read += len(packets)
            for packet in packets:
                if isinstance(packet, Connack):
                    self._answered(packet)
                else:
                    self.took(packet)

    def _answered(self, connack: Connack) -> None:
        if connack.code == 0 and self._connection is not None:
            self.lost = self.lost or (self._known and not connack.session_present)
            self._known = True
            self.resumed(self._connection)

    def resumed(self, client: MemoryClient) -> None:
        """Go on with the session."""

    def took(self, packet: Packet) -> None:
        """Take up one packet."""


class Publisher(Client):
    """A client that publishes numbers to a topic of its own. `acknowledged` has those that the broker answers for."""

    def __init__(self, world: ClusterWorld, client_id: str, qos: int) -> None:
        super().__init__(world, client_id)
        self.qos = qos
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.open: dict[int, bool] = {}
        """The numbers in flight, and whether their PUBREC has come."""

    def publish(self) -> None:
        """Publish the next number."""
        if self.online and self._connection is not None:
            self.sent += 1
            self.open[self.sent] = False
            self._connection.send(self._packet(self.sent, False))

    def resumed(self, client: MemoryClient) -> None:
        for number, recorded in list(self.open.items()):
            client.send(Pubrel(number) if recorded else self._packet(number, True))

    def took(self, packet: Packet) -> None:
        if isinstance(packet, Puback | Pubrec) and packet.packet_id in self.open:
            self.acknowledged.add(packet.packet_id)
            self.open[packet.packet_id] = True
        if isinstance(packet, Puback | Pubcomp):
            self.open.pop(packet.packet_id, None)

    def _packet(self, number: int, dup: bool) -> Publish:
        payload = f"{self.client_id} {number}".encode()
        return Publish(f"t/{self.client_id}", payload, self.qos, False, dup, number)


class Subscriber(Client):
    """A client that subscribes to everything at QoS 2. `messages` has each number by publisher, as it arrived."""

    def __init__(self, world: ClusterWorld, client_id: str) -> None:
        super().__init__(world, client_id)
        self.messages: dict[str, list[int]] = {}
        self._unreleased: set[int] = set()

    def subscribe(self) -> None:
        """Subscribe, and wait for the SUBACK."""
        assert self._connection is not None
        self._connection.subscribe("t/#", 2)

    def took(self, packet: Packet) -> None:
        if isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
        if isinstance(packet, Publish):
            if packet.qos == 2 and packet.packet_id in self._unreleased:
                return
            if packet.qos == 2:
                self._unreleased.add(packet.packet_id)
            publisher, number = packet.payload.decode().split()
            self.messages.setdefault(publisher, []).append(int(number))
