"""The sending half of a client: session state, packet ids and ordered acknowledgements."""

from collections import deque
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Packet, Pingreq, Puback, Pubcomp, Publish
from hookmq.mqtt.reason_codes import PacketType
from hookmq_testing.decoder import Decoder

from simulator.clock import Clock
from simulator.journal import Journals
from simulator.ledger import Ledger
from simulator.network import Link
from simulator.records import Life, Sent, Sub
from simulator.wills import Wills

PUBLISHED: Final = 0
RELEASED: Final = 1


class World(Protocol):
    """The parts of the world that a client uses."""

    clock: Clock
    ledger: Ledger
    wills: Wills
    journals: Journals
    calm: bool

    def dial(self, client: Any, random: Random) -> Link:
        """Open a connection."""

    def complain(self, invariant: str, text: str) -> None:
        """Report that an invariant was violated."""

    def resumed(self, client_id: str) -> bool:
        """Return whether the broker resumed the session of the client's last connection. MQTT 3.1 does not
        report this.
        """

    def asked(self, client_id: str, packet: Publish) -> None:
        """Check that plugins were asked about this delivery."""

    def mix(self, data: bytes) -> None:
        """Add bytes to the hash of the trace."""

    def heard(self, who: str, direction: str, packet: Packet) -> None:
        """Add a packet to the trace."""


class Peer:
    """A client that cannot receive. `Hearing` adds packet processing, and `Client` adds actions."""

    def __init__(
        self,
        world: World,
        number: int,
        version: int,
        seed: int,
        ack_delay: float,
        aliases: int,
        server_expiry: float,
        tainted: bool,
    ) -> None:
        self.world = world
        self.number = number
        self.client_id = f"client{number}"
        self.version = version
        self.random = Random(seed)
        self.ack_delay = ack_delay
        self.aliases = aliases
        self.server_expiry = server_expiry
        self.tainted = tainted
        """Whether other clients use its client id. If so, nothing is guaranteed to it."""
        self.online = False
        """Whether it wants to be connected."""
        self.link: Link | None = None
        self.open = False
        self.life: Life | None = None
        self.wanted: tuple[Any, ...] = (True, 0, None, 65535, 0, False)
        self.clean = True
        self.forgetting = False
        """Whether the client needs a new session and does not know yet that it has one.

        It needs one after it asked for a clean start or connected as another owner. Until it knows, it keeps asking for
        a clean start.
        """
        self.owners: set[bool] = set()
        """The possible owners of the session, as values of `vouched`, since the client last knew the owner."""
        self.asked_at = 0.0
        self.suspects: list[Link] = []
        """Connections on which CONNECT was sent and no CONNACK arrived.

        `heard_at` is the time at which the last CONNACK arrived, on any connection.
        """
        self.heard_at = 0.0
        self.usurped = False
        """Whether an abandoned connection attempt of this client took over from the last accepted connection."""
        self.outbox: dict[int, tuple[Sent, Publish, int]] = {}
        self.backlog: deque[tuple[Sent, Publish]] = deque()
        self.received: dict[int, int] = {}
        """The QoS 2 messages between PUBLISH and PUBREL, by packet id."""
        self.on_link: dict[int, int] = {}
        """Packet ids that arrived on this connection and are not completely acknowledged."""
        self.requests: dict[int, list[Sub]] = {}
        self.departures: dict[int, list[Sub]] = {}
        self.authenticating = False
        """Whether a reauthentication that the client started is still in progress."""
        self.muted = False
        self.retrying = False
        self.pings = 0
        self._decoder = Decoder(version, server=False)
        self._out: list[bytes] = []
        self._acks: deque[Packet] = deque()
        self._acking = False
        self._last_id = 0
        self._names: dict[int, str] = {}
        self._given: dict[str, int] = {}
        self._alias_maximum = 0
        self._window = 65535
        self._greeted = False

    @property
    def vouched(self) -> bool:
        """Return whether the client uses an authentication method.

        If so, a different plugin authenticates the client, and the session has a different owner.
        """
        return self.version == 5 and bool(self.wanted[5])

    def _gone(self) -> None:
        self.link = None
        self.open = False
        self._greeted = False
        self._names = {}
        self._given = {}
        self._out = []
        self._acks.clear()
        self.on_link = {}
        self.authenticating = False
        self.requests = {}
        self.departures = {}

    def _complain(self, invariant: str, text: str) -> None:
        if not self.tainted:
            self.world.complain(invariant, text)

    def _send_acks(self) -> None:
        """Acknowledge received packets in order, after a delay."""
        if self.muted or self._acking or not self._acks:
            return
        if self.ack_delay and not self.world.calm:
            self._acking = True
            self.world.clock.after(self.random.random() * self.ack_delay, self._acks_are_due)
        else:
            self._ack_all()

    def _acks_are_due(self) -> None:
        self._acking = False
        if not self.muted:
            self._ack_all()
            self._flush()

    def _ack_all(self) -> None:
        while self._acks:
            packet = self._acks.popleft()
            if isinstance(packet, Puback | Pubcomp):
                self.on_link.pop(packet.packet_id, None)
            self._send(packet)

    def _send_backlog(self) -> None:
        while self.backlog and self.open and len(self.outbox) < min(self._window, 10):
            sent, packet = self.backlog.popleft()
            number = self._next_id()
            self.world.ledger.sending(sent, self.world.clock.now)
            self.outbox[number] = (sent, packet, PUBLISHED)
            self._send(self._aliased(numbered(packet, number)))

    def _aliased(self, packet: Publish) -> Publish:
        if not self._alias_maximum or not self.aliases or self.version < 5:
            return packet
        alias = self._given.get(packet.topic)
        if alias is None:
            if len(self._given) >= self._alias_maximum:
                return packet
            alias = self._given[packet.topic] = len(self._given) + 1
            name = packet.topic
        else:
            name = ""
        properties = packet.properties.replace(topic_alias=alias)
        return Publish(
            name,
            packet.payload,
            packet.qos,
            packet.retain,
            packet.dup,
            packet.packet_id,
            properties,
        )

    def _next_id(self) -> int:
        while True:
            self._last_id = self._last_id % 65535 + 1
            number = self._last_id
            if (
                number not in self.outbox
                and number not in self.requests
                and number not in self.departures
            ):
                return number

    def _ping(self, link: Link) -> None:
        if link is self.link and self.open:
            self._send(Pingreq())
            self._flush()
            self.world.clock.after(self.wanted[4] * 0.7, partial(self._ping, link))

    def _send(self, packet: Packet) -> None:
        link = self.link
        if link is None:
            return
        self.world.heard(self.client_id, "->", packet)
        data = encode(packet, self.version)
        if self.random.random() < 0.3:
            self._flush()
            link.send(data, PacketType[type(packet).__name__.upper()])
        else:
            self._out.append(data)

    def _flush(self) -> None:
        if self._out and self.link is not None:
            data = b"".join(self._out)
            self._out.clear()
            self.link.send(data)


def numbered(packet: Publish, number: int) -> Publish:
    return Publish(
        packet.topic, packet.payload, packet.qos, packet.retain, False, number, packet.properties
    )
