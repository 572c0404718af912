"""The clients of a simulated run. They answer every packet at once, and keep the data for the checks."""

from collections.abc import Callable
from typing import Final

from hookmq.model.client import Peer, Scope
from hookmq.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    WillFields,
)
from hookmq.mqtt.properties import Properties
from hookmq_testing import MemoryClient

from cluster_simulator.world import World

FOREVER: Final = 1_000_000
"""A session expiry in seconds that no run reaches."""
IN_FLIGHT: Final = 15
"""The most messages that a publisher sends without an acknowledgement."""
_PEER: Final = Peer("192.0.2.1", 40000, "memory")


class Connection(MemoryClient):
    """One connection of a client. `took` is called with each packet, `ended` when the connection ends."""

    def __init__(
        self,
        world: World,
        node: str,
        connect: Connect,
        took: Callable[["Connection", Packet], None],
        ended: Callable[["Connection"], None],
    ) -> None:
        self.node = node
        self.clock_of_node = world.clocks[node]
        self.opened = False
        """Whether CONNACK has arrived."""
        self.dropped = False
        """Whether the client has given the connection up."""
        self._handle = took
        self._tell = ended
        self._handled = 0
        super().__init__(world.nodes[node], connect, scope=Scope(), peer=_PEER)
        world.nodes[node].clients.append(self)
        self.send_connect()

    @property
    def open(self) -> bool:
        """Whether the client may use the connection."""
        return self.opened and not self.dropped and not self.wire.closed

    def give_up(self) -> None:
        """Lose the network. Packets that arrive later have no effect."""
        self.dropped = True
        self.auto_ack = False
        self.wire.lose("lost")

    def _took(self, data: bytes) -> None:
        if not self.dropped:
            super()._took(data)
            for packet in self.received[self._handled :]:
                self._handled += 1
                self.opened = self.opened or (isinstance(packet, Connack) and packet.code == 0)
                self._handle(self, packet)

    def _ended(self) -> None:
        if not self.dropped:
            self._tell(self)


class Client:
    """A client that resumes its session at any node.

    `expiry` is its session expiry in seconds; with 0, each connection is a new session. `lost` says that a node did not
    know the session, although it cannot have expired.
    """

    def __init__(self, world: World, client_id: str, expiry: int = FOREVER) -> None:
        self.world = world
        self.client_id = client_id
        self.expiry = expiry
        self.lost = False
        self.connection: Connection | None = None
        self.former: list[Connection] = []
        """Connections that another one took over."""
        self._known = False

    @property
    def online(self) -> bool:
        """Whether the client has an open connection."""
        return self.connection is not None and self.connection.open

    @property
    def waits(self) -> bool:
        """Whether the client waits for a CONNACK."""
        connection = self.connection
        return connection is not None and not (connection.opened or connection.wire.closed)

    def connect(self, node: str) -> None:
        """Connect to `node`. An open connection elsewhere is taken over. The node may refuse the client."""
        former = self.connection
        if former is not None:
            former.auto_ack = False
            self.former.append(former)
        packet = Connect(
            self.client_id, 5, not self.expiry, 0, None, None, self.will(), False,
            Properties(session_expiry_interval=self.expiry),
        )  # fmt: skip
        self.connection = Connection(self.world, node, packet, self._received, self._closed)

    def drop(self) -> None:
        """Lose the connection, and all former ones."""
        for former in self.former:
            if not former.dropped:
                former.give_up()
        self.former.clear()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.give_up()
            self.ended(connection)

    def send(self, *packets: Packet) -> None:
        """Send packets on the open connection."""
        assert self.connection is not None
        self.connection.send(*packets)

    def _received(self, connection: Connection, packet: Packet) -> None:
        if connection is not self.connection:
            return
        if isinstance(packet, Connack):
            if packet.code == 0:
                self.lost = self.lost or (
                    self._known and not packet.session_present and self.expiry == FOREVER
                )
                self._known = True
                self.resumed(packet.session_present)
        else:
            self.took(packet)

    def _closed(self, connection: Connection) -> None:
        if connection is self.connection:
            self.ended(connection)

    def will(self) -> WillFields | None:
        """Return the will of the next connection."""
        return None

    def resumed(self, present: bool) -> None:
        """Go on with the session. `present` says whether the node had it."""

    def took(self, packet: Packet) -> None:
        """Take up one packet."""

    def ended(self, connection: Connection) -> None:
        """The current connection has ended."""


class Publisher(Client):
    """A client that publishes numbers to a topic of its own.

    With `keys`, the messages are retained, and their topics are r/0, r/1 and so on. Other clients may use them too.
    """

    def __init__(
        self, world: World, client_id: str, qos: int, keys: int = 0, clear: bool = False
    ) -> None:
        super().__init__(world, client_id)
        self.qos = qos
        self.keys = keys
        self.clear = clear
        """Whether each third message clears its topic."""
        self.sent = 0
        self.final = 0
        """The last number that was sent before all faults ended."""
        self.acknowledged: set[int] = set()
        self.open: dict[int, bool] = {}
        """The numbers in flight, and whether their PUBREC has come."""

    def publish(self) -> bool:
        """Publish the next number, if that is possible."""
        if not self.online or len(self.open) >= IN_FLIGHT:
            return False
        self.sent += 1
        if self.qos:
            self.open[self.sent] = False
        self.send(self.packet(self.sent, False))
        return True

    def packet(self, number: int, dup: bool) -> Publish:
        """Return the message with a number."""
        payload = f"{self.client_id} {number}".encode()
        topic = f"t/{self.client_id}"
        if self.keys:
            topic = self.topic(number)
            payload = b"" if self.clear and number % 3 == 0 else payload
        return Publish(topic, payload, self.qos, bool(self.keys), dup, number if self.qos else 0)

    def topic(self, number: int) -> str:
        """Return the topic of a retained message."""
        return f"r/{number % self.keys}"

    def resumed(self, present: bool) -> None:
        for number, recorded in list(self.open.items()):
            self.send(Pubrel(number) if recorded else self.packet(number, True))

    def took(self, packet: Packet) -> None:
        if isinstance(packet, Puback | Pubrec) and packet.packet_id in self.open:
            self.acknowledged.add(packet.packet_id)
            self.open[packet.packet_id] = True
        if isinstance(packet, Puback | Pubcomp):
            self.open.pop(packet.packet_id, None)


class Subscriber(Client):
    """A client that subscribes to one filter.

    `messages` has each number by publisher, as it arrived, for the present session. `since` has the numbers that
    each publisher had sent when SUBACK arrived; later ones must arrive.
    """

    def __init__(
        self,
        world: World,
        client_id: str,
        publishers: list[Publisher],
        topic_filter: str = "t/#",
        qos: int = 2,
        expiry: int = FOREVER,
    ) -> None:
        super().__init__(world, client_id, expiry)
        self.topic_filter = topic_filter
        self.qos = qos
        self.messages: dict[str, list[int]] = {}
        self.ever: dict[str, list[int]] = {}
        """The same for all sessions."""
        self.since: dict[str, int] | None = None
        self.since_time = 0.0
        self.subscribed: Callable[[], None] = _nothing
        """Called when SUBACK arrives."""
        self._publishers = publishers
        self._unreleased: set[int] = set()

    def resumed(self, present: bool) -> None:
        if not present:
            self.messages = {}
            self.since = None
            self._unreleased.clear()
        if self.since is None and self.connection is not None:
            self.connection.send_subscribe(self.topic_filter, self.qos)

    def took(self, packet: Packet) -> None:
        if isinstance(packet, Suback) and self.since is None:
            self.since = {one.client_id: one.sent for one in self._publishers}
            self.since_time = self.world.clock.now()
            self.subscribed()
        elif isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
        elif isinstance(packet, Publish):
            if packet.qos == 2:
                if packet.packet_id in self._unreleased:
                    return
                self._unreleased.add(packet.packet_id)
            self.message(packet)

    def message(self, packet: Publish) -> None:
        """Take up one message."""
        publisher, number = packet.payload.decode().split()
        for messages in (self.messages, self.ever):
            messages.setdefault(publisher, []).append(int(number))


def goodbye() -> Disconnect:
    """Return the packet that ends a connection without its will."""
    return Disconnect(0, Properties())


def _nothing() -> None:
    """Do nothing."""
