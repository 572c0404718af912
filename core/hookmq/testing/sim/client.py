"""A correct MQTT client of version 3, 4 or 5: its own session state, retransmission after reconnect, and eyes for whatever
the broker does wrong on the wire.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from hookmq.codec import (
    Auth,
    Connack,
    Connect,
    Decoder,
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
    WillFields,
    encode,
)
from hookmq.properties import Properties
from hookmq.reason import PacketType
from hookmq.testing.sim.clock import Clock
from hookmq.testing.sim.ledger import Ledger, Life, Sent, Sub
from hookmq.testing.sim.network import Link
from hookmq.testing.sim.wills import Wills

PUBLISHED: Final = 0
RELEASED: Final = 1
FAULTS: Final = frozenset((0x81, 0x82, 0x90, 0x93, 0x94, 0x95))
"""What a broker may not say to a client that did nothing wrong."""
METHOD: Final = "SIM"


class World(Protocol):
    """The world as a client knows it."""

    clock: Clock
    ledger: Ledger
    wills: Wills
    calm: bool

    def dial(self, client: Any, random: Random) -> Link:
        """A new connection."""

    def complain(self, invariant: str, text: str) -> None:
        """An invariant does not hold."""

    def resumed(self, client_id: str) -> bool:
        """Whether the broker resumed the session of who connected last by this id: 3.1 does not tell."""

    def asked(self, client_id: str, packet: Publish) -> None:
        """Plugins must have been asked about this delivery."""

    def mix(self, data: bytes) -> None:
        """Take bytes into the trace."""

    def heard(self, who: str, direction: str, packet: Packet) -> None:
        """For the trace."""


class Client:
    """See the module's text. `connect`, `publish` and so on are the steps of a plan."""

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
        """Whether others use its client id: then nothing is promised to it."""
        self.online = False
        """Whether it wants to be connected."""
        self.link: Link | None = None
        self.open = False
        self.life: Life | None = None
        self.wanted: tuple[Any, ...] = (True, 0, None, 65535, 0, False)
        self.clean = True
        self.forgetting = False
        """Whether it asked for a clean start and does not know yet that it got one: it asks until it does."""
        self.asked_at = 0.0
        self.outbox: dict[int, tuple[Sent, Publish, int]] = {}
        self.backlog: deque[tuple[Sent, Publish]] = deque()
        self.received: dict[int, int] = {}
        """QoS 2 ids between PUBLISH and PUBREL, and the message each stands for."""
        self.on_link: dict[int, int] = {}
        """Ids that came on this connection and are not acknowledged for good."""
        self.requests: dict[int, list[Sub]] = {}
        self.departures: dict[int, list[Sub]] = {}
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

    # --- steps -------------------------------------------------------------------------------------------------------

    def connect(self, wanted: tuple[Any, ...]) -> None:
        """Connect with these options, taking over from the own connection if there is one."""
        self.wanted = wanted
        self.online = True
        five = self.version == 5
        if self.forgetting and not five:
            self.wanted = (*wanted[:1], 0, *wanted[2:])
        self.clean = self.forgetting or (wanted[0] if five else not wanted[1])
        self._dial()

    def publish(self, topic: str, qos: int, retain: bool, size: int, expiry: int) -> None:
        """Publish now, or when the window has room; QoS 0 is not kept for later."""
        if self.version < 5:
            expiry = 0
            if topic.startswith(("deny/", "boom/")):
                qos = 0  # it may cost the connection, and would do so again and again
        if not qos and not self.open:
            return
        sent, payload = self.world.ledger.write(self.number, topic, qos, retain, size, expiry)
        sent.trusted = not self.tainted
        properties = Properties(message_expiry_interval=expiry or None)
        packet = Publish(topic, payload, qos, retain, False, 0, properties)
        if qos:
            self.backlog.append((sent, packet))
            self._send_backlog()
        else:
            self.world.ledger.sending(sent, self.world.clock.now)
            self._send(self._aliased(packet))
        self._flush()

    def subscribe(self, requests: tuple[tuple[str, int, bool, bool, int], ...]) -> None:
        """SUBSCRIBE, if it is connected."""
        life = self.life
        if not self.open or life is None:
            return
        now = self.world.clock.now
        five = self.version == 5
        subs = []
        asked = []
        for text, qos, no_local, as_published, handling in requests:
            if self.tainted and text.startswith("$share"):
                continue
            if not five:
                no_local, as_published, handling = False, False, 0
            for known in life.subs:
                if known.text == text and known.certain_until is None:
                    known.certain_until = now
            sub = Sub(text, no_local, as_published, now)
            life.subs.append(sub)
            if sub.shared and not qos:
                self.world.ledger.lossy.add(text)
            subs.append(sub)
            asked.append(SubscribeRequest(text, qos, no_local, as_published, handling))
        if not asked:
            return
        number = self._next_id()
        self.requests[number] = subs
        self._send(Subscribe(number, tuple(asked)))
        self._flush()

    def unsubscribe(self, text: str) -> None:
        """UNSUBSCRIBE, if it is connected."""
        life = self.life
        if not self.open or life is None:
            return
        number = self._next_id()
        gone = [sub for sub in life.subs if sub.text == text and sub.possible_until is None]
        for sub in gone:
            if sub.certain_until is None:
                sub.certain_until = self.world.clock.now
        self.departures[number] = gone
        self._send(Unsubscribe(number, (text,)))
        self._flush()

    def leave(self, how: str) -> None:
        """DISCONNECT: ``normal``, with the ``will`` (5.0), or with another session ``expiry`` (5.0)."""
        self.online = False
        link, life = self.link, self.life
        if link is None or not self.open or life is None:
            self.drop()
            return
        packet = Disconnect()
        if self.version == 5 and how == "will":
            packet = Disconnect(0x04)
        elif self.version == 5 and how == "expiry" and life.expiry_min > 0:
            packet = Disconnect(0, Properties(session_expiry_interval=5))
            life.expiry_min = min(life.expiry_min, 5.0)
            life.expiry_max = max(life.expiry_max, 5.0)
        if packet.code == 0:
            self.world.wills.goodbye(link)
        self._send(packet)
        self._flush()
        link.hang_up()
        self._gone()

    def cut(self, lost: bool) -> None:
        """The network fails."""
        if self.link is not None:
            self.link.cut(lost or not self.open)
            self._gone()
            self._retry()

    def dark(self, seconds: float) -> None:
        """The network fails, and the broker learns it later."""
        if self.link is not None:
            self.link.go_dark(seconds)
            self._gone()
            self._retry()

    def drop(self) -> None:
        """Be offline, without a word."""
        if self.link is not None:
            self.link.cut()
            self._gone()

    def stall(self) -> None:
        """Read no more."""
        if self.link is not None:
            self.link.stall()

    def unstall(self) -> None:
        """Read on."""
        if self.link is not None:
            self.link.unstall()

    def mute(self, muted: bool) -> None:
        """Acknowledge no more, or again."""
        self.muted = muted
        if not muted:
            self._send_acks()
            self._flush()

    def re_authenticate(self) -> None:
        """AUTH, where that is possible."""
        if self.open and self.wanted[5] and self.version == 5:
            self._send(Auth(0x19, Properties(authentication_method=METHOD, authentication_data=b"0")))
            self._flush()

    # --- connecting --------------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        if self.link is not None:
            # A second connection takes over; what is said on the first one is heard no more.
            if not self.open:
                # Else a CONNECT that is late takes over from a newer one, and nobody knows what came of which.
                self.link.cut()
            elif self.random.random() < 0.3:
                self.link.hang_up()
            else:
                self.link.abandon(5.0)
        self._gone()
        link = self.link = self.world.dial(self, self.random)
        self._decoder = Decoder(self.version, server=False)
        _, expiry, will, window, keep_alive, authenticates = self.wanted
        self.forgetting = self.clean
        self.asked_at = self.world.clock.now
        properties = Properties()
        fields = None
        five = self.version == 5
        asked = float(expiry if five else (self.server_expiry if expiry else 0))
        if will is not None:
            fields = self._will(link, will, asked)
        self.world.wills.returning(self.number, link, self.clean)
        if five:
            properties = Properties(
                session_expiry_interval=expiry or None,
                receive_maximum=window if window < 65535 else None,
                topic_alias_maximum=self.aliases or None,
                authentication_method=METHOD if authenticates else None,
            )
        life = self.life
        if life is not None:
            life.links.append(link)
            life.expiry_min = min(life.expiry_min, asked, self.server_expiry)
            life.expiry_max = max(life.expiry_max, min(asked, self.server_expiry))
        self._send(
            Connect(
                self.client_id, self.version, self.clean, keep_alive, None, None, fields, False, properties
            )
        )
        self._flush()

    def _will(self, link: Link, will: tuple[int, int], asked: float) -> WillFields:
        qos, delay = will
        if self.version < 5:
            delay = 0
        sent, payload = self.world.ledger.write(
            self.number, f"w/{self.number}", qos, origin="will"
        )
        sent.first_sent = self.world.clock.now
        sent.trusted = not self.tainted
        expiry = min(asked, self.server_expiry)
        if not self.tainted:
            self.world.wills.carried(self.number, link, sent, delay, expiry)
        properties = Properties(will_delay_interval=delay or None)
        return WillFields(sent.topic, payload, qos, False, properties)

    def _gone(self) -> None:
        self.link = None
        self.open = False
        self._greeted = False
        self._names = {}
        self._given = {}
        self._out = []
        self._acks.clear()
        self.on_link = {}
        self.requests = {}
        self.departures = {}

    def ended(self, link: Link) -> None:
        """The connection is no more."""
        if link is self.link:
            self._gone()
            self._retry()

    def _complain(self, invariant: str, text: str) -> None:
        if not self.tainted:
            self.world.complain(invariant, text)

    def _retry(self) -> None:
        if self.online and not self.retrying:
            self.retrying = True
            self.world.clock.after(0.05 + self.random.random() * 0.5, self._again)

    def _again(self) -> None:
        self.retrying = False
        if self.online and self.link is None:
            self._dial()

    # --- what comes --------------------------------------------------------------------------------------------------

    def took(self, link: Link, data: bytes) -> None:
        """Bytes of the broker."""
        self.world.mix(data)
        if link is not self.link:
            return
        packets = self._decoder.feed(data)
        for packet in packets:
            self.world.heard(self.client_id, "<-", packet)
            if not self._greeted and not isinstance(packet, Connack | Auth):
                self._complain("wire", f"{self.client_id}: {packet} before CONNACK")
                return
            _HANDLERS[type(packet)](self, packet)
            if self.link is not link:
                return
        if self._decoder.error is not None:
            self._complain("wire", f"{self.client_id}: {self._decoder.error}")
            return
        self._flush()

    def _on_connack(self, packet: Packet) -> None:
        assert isinstance(packet, Connack)
        if self._greeted:
            self._complain("wire", f"{self.client_id}: a second CONNACK")
        if packet.code:
            if packet.code in FAULTS:
                self._complain("wire", f"{self.client_id}: refused with 0x{packet.code:02X}")
            return  # it is closed on us
        self._greeted = self.open = True
        self.forgetting = False
        link = self.link
        assert link is not None
        present = self._is_present(packet)
        life = self.life
        if life is None or not present:
            life = self._begin(link)
        properties = packet.properties
        granted = properties.session_expiry_interval
        asked = self.wanted[1]
        if self.version < 5:
            asked = self.server_expiry if asked else 0
        life.link, life.links = link, [link]
        life.expiry_min = life.expiry_max = float(asked if granted is None else granted)
        life.restarted_at = -1.0
        self.world.wills.confirmed(
            self.number, link, present, self.asked_at, self.world.clock.now
        )
        if self.version == 5:
            # A session of no length is begun anew each time; asking for it again is as good.
            self.clean = not self.wanted[1] and self.random.random() < 0.5
            self._alias_maximum = properties.topic_alias_maximum or 0
            self._window = properties.receive_maximum or 65535
        for number, (sent, publish, stage) in list(self.outbox.items()):
            if stage == RELEASED:
                self._send(Pubrel(number))
            else:
                self.world.ledger.sending(sent, self.world.clock.now)
                self._send(_again_as(publish, number))
        self._send_backlog()
        if self.wanted[4]:
            self.pings += 1
            self.world.clock.after(self.wanted[4] * 0.7, partial(self._ping, link))

    def _is_present(self, packet: Connack) -> bool:
        present = packet.session_present
        if self.version == 3:
            if present:
                self._complain("7 present", f"{self.client_id}: 3.1 has no such flag")
            present = self.world.resumed(self.client_id)
        now = self.world.clock.now
        legal = self.world.ledger.present(self.life, self.clean, self.asked_at, now)
        if (present and legal == "no") or (not present and legal == "yes"):
            said = "is" if present else "is not"
            self._complain("7 present", f"{self.client_id}: the session {said} there")
        if present and legal == "either" and self.life is not None and len(self.life.links) > 2:
            self._doubt(self.life)
        return present

    def _doubt(self, life: Life) -> None:
        """An attempt of which nothing was heard may have found the old session expired and begun another: no client can
        know, and so nothing that hangs on it is promised."""
        for sub in life.subs:
            sub.certain_until = sub.certain_from = -1.0
        for sent, _, _ in self.outbox.values():
            sent.trusted = False

    def _begin(self, link: Link) -> Life:
        now = self.world.clock.now
        life = self.life = Life(self.number, self.client_id, self.version, now, link)
        self.outbox = {}
        self.received = {}
        return life

    def _on_publish(self, packet: Packet) -> None:
        assert isinstance(packet, Publish)
        topic = self._topic(packet)
        life, link = self.life, self.link
        assert life is not None
        assert link is not None
        world = self.world
        if not packet.qos:
            self._deliver(life, link, packet, topic)
            return
        number = packet.packet_id
        sent = world.ledger.find(packet.payload)
        name = sent.uid if sent is not None else -1
        known = self.on_link.get(number)
        if known is not None and (known != name or self.version == 5 or not packet.dup):
            self._complain("ids", f"{self.client_id}: id {number} is in use for #{known}, came with #{name}")
        self.on_link[number] = name
        if len(self.on_link) > self.wanted[3] and self.version == 5:
            self._complain("window", f"{self.client_id}: {len(self.on_link)} in flight")
        if packet.qos == 1:
            self._deliver(life, link, packet, topic)
            self._acks.append(Puback(number))
        else:
            held = self.received.get(number)
            if held is None:
                self.received[number] = name
                self._deliver(life, link, packet, topic)
            elif held != name:
                self._complain("ids", f"{self.client_id}: QoS 2 id {number} of #{held} came with #{name}")
            self._acks.append(Pubrec(number))
        self._send_acks()

    def _topic(self, packet: Publish) -> str:
        alias = packet.properties.topic_alias
        if alias is None:
            return packet.topic
        if not 0 < alias <= self.aliases:
            self._complain("wire", f"{self.client_id}: alias {alias} of {self.aliases}")
        if packet.topic:
            self._names[alias] = packet.topic
        elif alias not in self._names:
            self._complain("wire", f"{self.client_id}: alias {alias} stands for nothing")
        return self._names.get(alias, "")

    def _deliver(self, life: Life, link: Link, packet: Publish, topic: str) -> None:
        if self.tainted:
            return
        self.world.ledger.delivery(life, link, packet, topic, self.world.clock.now)
        self.world.asked(self.client_id, packet)
        if topic.startswith("w/"):
            self.world.wills.fired(packet.payload, link.written_at)

    def _on_puback(self, packet: Packet) -> None:
        assert isinstance(packet, Puback)
        entry = self.outbox.get(packet.packet_id)
        if entry is None or entry[1].qos != 1:
            self._complain("wire", f"{self.client_id}: {packet} for nothing")
            return
        del self.outbox[packet.packet_id]
        self.world.ledger.acked(entry[0], packet.code, self.world.clock.now)
        self._send_backlog()

    def _on_pubrec(self, packet: Packet) -> None:
        assert isinstance(packet, Pubrec)
        number = packet.packet_id
        entry = self.outbox.get(number)
        if entry is None or entry[1].qos != 2:
            self._complain("wire", f"{self.client_id}: {packet} for nothing")
            return
        self.world.ledger.acked(entry[0], packet.code, self.world.clock.now)
        if packet.code >= 0x80:
            del self.outbox[number]
            self._send_backlog()
            return
        self.outbox[number] = (entry[0], entry[1], RELEASED)
        self._send(Pubrel(number))

    def _on_pubrel(self, packet: Packet) -> None:
        assert isinstance(packet, Pubrel)
        self.received.pop(packet.packet_id, None)
        self._acks.append(Pubcomp(packet.packet_id))
        self._send_acks()

    def _on_pubcomp(self, packet: Packet) -> None:
        assert isinstance(packet, Pubcomp)
        entry = self.outbox.pop(packet.packet_id, None)
        if entry is None or entry[2] != RELEASED:
            self._complain("wire", f"{self.client_id}: {packet} for nothing")
        self._send_backlog()

    def _on_suback(self, packet: Packet) -> None:
        assert isinstance(packet, Suback)
        subs = self.requests.pop(packet.packet_id, None)
        if subs is None or len(subs) != len(packet.codes):
            self._complain("wire", f"{self.client_id}: {packet} for nothing")
            return
        now = self.world.clock.now
        life = self.life
        assert life is not None
        for sub, code in zip(subs, packet.codes, strict=True):
            if code >= 0x80:
                continue
            sub.qos = code
            sub.certain_from = now
            for other in life.subs:
                if other.text == sub.text and other is not sub and other.possible_until is None:
                    if other.possible_from < sub.possible_from:
                        other.possible_until = now

    def _on_unsuback(self, packet: Packet) -> None:
        assert isinstance(packet, Unsuback)
        subs = self.departures.pop(packet.packet_id, None)
        if subs is None:
            self._complain("wire", f"{self.client_id}: {packet} for nothing")
            return
        for sub in subs:
            if sub.possible_until is None:
                sub.possible_until = self.world.clock.now

    def _on_disconnect(self, packet: Packet) -> None:
        assert isinstance(packet, Disconnect)
        if packet.code in FAULTS:
            self._complain("wire", f"{self.client_id}: DISCONNECT 0x{packet.code:02X} {packet.properties.reason_string}")

    def _on_auth(self, packet: Packet) -> None:
        assert isinstance(packet, Auth)
        if packet.code == 0x18:
            data = packet.properties.authentication_data
            self._send(
                Auth(0x18, Properties(authentication_method=METHOD, authentication_data=data))
            )

    def _on_pingresp(self, packet: Packet) -> None:
        self.pings -= 1

    def _unexpected(self, packet: Packet) -> None:
        self._complain("wire", f"{self.client_id}: {packet} is not for a client")

    # --- what goes ---------------------------------------------------------------------------------------------------

    def _send_acks(self) -> None:
        """Acknowledge what came, in its order, after a while."""
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
            self._send(self._aliased(_numbered(packet, number)))

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
            name, packet.payload, packet.qos, packet.retain, packet.dup, packet.packet_id, properties
        )

    def _next_id(self) -> int:
        while True:
            self._last_id = self._last_id % 65535 + 1
            number = self._last_id
            if number not in self.outbox and number not in self.requests and number not in self.departures:
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


def _numbered(packet: Publish, number: int) -> Publish:
    return Publish(
        packet.topic, packet.payload, packet.qos, packet.retain, False, number, packet.properties
    )


def _again_as(packet: Publish, number: int) -> Publish:
    return Publish(
        packet.topic, packet.payload, packet.qos, packet.retain, True, number, packet.properties
    )


_HANDLERS: Final[dict[type, Callable[[Client, Packet], None]]] = {
    Connack: Client._on_connack, Publish: Client._on_publish, Puback: Client._on_puback, Pubrec: Client._on_pubrec,
    Pubrel: Client._on_pubrel, Pubcomp: Client._on_pubcomp, Suback: Client._on_suback, Unsuback: Client._on_unsuback,
    Disconnect: Client._on_disconnect, Auth: Client._on_auth, Pingresp: Client._on_pingresp, Connect: Client._unexpected,
    Subscribe: Client._unexpected, Unsubscribe: Client._unexpected, Pingreq: Client._unexpected,
}  # fmt: skip
