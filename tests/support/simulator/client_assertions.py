"""How a correct client processes the broker's packets, and the errors that it detects in these packets."""

from collections.abc import Callable
from functools import partial
from typing import Final

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
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode

from simulator.client_state import RELEASED, Peer
from simulator.network import Link
from simulator.records import Life, Sent

FAULTS: Final = frozenset((0x81, 0x82, 0x90, 0x93, 0x94, 0x95))
"""Reason codes that a broker must not send to a client that did nothing wrong."""
METHOD: Final = "SIM"
"""The authentication method used in the simulator."""


class Hearing(Peer):
    """A client that receives and checks packets."""

    def took(self, link: Link, data: bytes) -> None:
        """Process bytes from the broker."""
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
            return  # the broker closes the connection
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
        if not life.expiry_min:
            self.world.ledger.fleeting.update(sub.text for sub in life.subs if sub.shared)
        self.heard_at = self.world.clock.now
        self.usurped = False
        self.suspects = [
            one for one in self.suspects if one is not link and one.broker_ended_at is None
        ]
        if self.suspects:
            self.world.wills.doubt(link)
        else:
            self.owners = {self.vouched}
        self.world.wills.confirmed(self.number, link, present, self.asked_at, self.world.clock.now)
        if self.version == 5:
            # A session with expiry 0 always starts new, so resuming it is the same as a clean start.
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
        life = self.life
        anew = self.clean or (life is not None and life.vouched is not self.vouched)
        legal = self.world.ledger.present(
            life, anew, self.asked_at, now, self.suspects[:-1], self.heard_at
        )
        if self.usurped:
            legal = "either"
        if (present and legal == "no") or (not present and legal == "yes"):
            said = "is" if present else "is not"
            self._complain("7 present", f"{self.client_id}: the session {said} there")
        if (
            present
            and life is not None
            and ((legal == "either" and len(self.suspects) > 1) or life.vouched is not self.vouched)
        ):
            self._doubt(life)
        return present

    def _doubt(self, life: Life) -> None:
        """Withdraw the guarantees that depend on the session.

        An unanswered connection attempt may have found the session expired and started a new one. The client cannot know
        whether it did.
        """
        for sub in life.subs:
            sub.certain_until = sub.certain_from = -1.0
        for sent, _, _ in self.outbox.values():
            sent.trusted = False
        now = self.world.clock.now
        other = Life(self.number, self.client_id, self.version, self.vouched, now, life.link)
        other.subs = life.subs
        self.life = other
        self.received = {}

    def _begin(self, link: Link) -> Life:
        now = self.world.clock.now
        life = self.life = Life(self.number, self.client_id, self.version, self.vouched, now, link)
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
            self._complain(
                "ids", f"{self.client_id}: id {number} is in use for #{known}, came with #{name}"
            )
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
                self._complain(
                    "ids", f"{self.client_id}: QoS 2 id {number} of #{held} came with #{name}"
                )
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
        self._acked(entry[0], packet.code)
        self._send_backlog()

    def _acked(self, sent: Sent, code: int) -> None:
        self.world.ledger.acked(sent, code, self.world.clock.now)
        self.world.journals.acked(sent, code)

    def _on_pubrec(self, packet: Packet) -> None:
        assert isinstance(packet, Pubrec)
        number = packet.packet_id
        entry = self.outbox.get(number)
        if entry is None or entry[1].qos != 2:
            self._complain("wire", f"{self.client_id}: {packet} for nothing")
            return
        self._acked(entry[0], packet.code)
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
                if (
                    other.text == sub.text
                    and other.possible_until is None
                    and other.possible_from < sub.possible_from
                ):
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
            self._complain(
                "wire",
                f"{self.client_id}: DISCONNECT 0x{packet.code:02X} {packet.properties.reason_string}",
            )
        # The broker read this client's earlier CONNECT after this one. Its effect on the session is unknown.
        self.usurped = packet.code == ReasonCode.SESSION_TAKEN_OVER

    def _on_auth(self, packet: Packet) -> None:
        assert isinstance(packet, Auth)
        if packet.code == 0:
            self.authenticating = False
        elif packet.code == 0x18:
            data = packet.properties.authentication_data
            self._send(
                Auth(0x18, Properties(authentication_method=METHOD, authentication_data=data))
            )

    def _on_pingresp(self, packet: Packet) -> None:
        self.pings -= 1

    def _unexpected(self, packet: Packet) -> None:
        self._complain("wire", f"{self.client_id}: {packet} is not for a client")


def _again_as(packet: Publish, number: int) -> Publish:
    return Publish(
        packet.topic, packet.payload, packet.qos, packet.retain, True, number, packet.properties
    )


_HANDLERS: Final[dict[type, Callable[[Hearing, Packet], None]]] = {
    Connack: Hearing._on_connack, Publish: Hearing._on_publish, Puback: Hearing._on_puback, Pubrec: Hearing._on_pubrec,
    Pubrel: Hearing._on_pubrel, Pubcomp: Hearing._on_pubcomp, Suback: Hearing._on_suback,
    Unsuback: Hearing._on_unsuback, Disconnect: Hearing._on_disconnect, Auth: Hearing._on_auth,
    Pingresp: Hearing._on_pingresp, Connect: Hearing._unexpected, Subscribe: Hearing._unexpected,
    Unsubscribe: Hearing._unexpected, Pingreq: Hearing._unexpected,
}  # fmt: skip
