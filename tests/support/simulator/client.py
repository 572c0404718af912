"""A correct MQTT client of version 3, 4 or 5. It keeps its own session state and retransmits after a reconnect."""

from typing import Any

from hookmq.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
    WillFields,
)
from hookmq.mqtt.properties import Properties
from hookmq_testing.decoder import Decoder

from simulator.client_assertions import METHOD, Hearing
from simulator.network import Link
from simulator.records import Sub


class Client(Hearing):
    """A correct client. Its public methods, such as `connect` and `publish`, are the steps of a plan."""

    # --- steps -------------------------------------------------------------------------------------------------------

    def connect(self, wanted: tuple[Any, ...]) -> None:
        """Connect with these options. If the client is already connected, the new connection takes over."""
        self.wanted = wanted
        self.online = True
        five = self.version == 5
        if self.forgetting and not five:
            self.wanted = (*wanted[:1], 0, *wanted[2:])
        self.clean = self.forgetting or (wanted[0] if five else not wanted[1])
        self._dial()

    def publish(self, topic: str, qos: int, retain: bool, size: int, expiry: int) -> None:
        """Publish now, or as soon as the window has room. QoS 0 messages never wait."""
        if self.version < 5:
            expiry = 0
            if topic.startswith(("deny/", "boom/")):
                qos = 0  # a denied message may close the connection, and resending it would close it again
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
        """Send SUBSCRIBE if connected."""
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
            if sub.shared and not life.expiry_min:
                self.world.ledger.fleeting.add(text)
            subs.append(sub)
            asked.append(SubscribeRequest(text, qos, no_local, as_published, handling))
        if not asked:
            return
        number = self._next_id()
        self.requests[number] = subs
        self._send(Subscribe(number, tuple(asked)))
        self._flush()

    def unsubscribe(self, text: str) -> None:
        """Send UNSUBSCRIBE if connected."""
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
        """Send DISCONNECT.

        `how` is ``normal``, ``will`` (send the will; 5.0 only) or ``expiry`` (change the session expiry; 5.0 only).
        """
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
        """Cut the network connection."""
        if self.link is not None:
            self.link.cut(lost or not self.open)
            self._gone()
            self._retry()

    def dark(self, seconds: float) -> None:
        """Cut the network connection in such a way that the broker notices only after `seconds`."""
        if self.link is not None:
            self.link.go_dark(seconds)
            self._gone()
            self._retry()

    def drop(self) -> None:
        """Close the connection without DISCONNECT."""
        if self.link is not None:
            self.link.cut()
            self._gone()

    def stall(self) -> None:
        """Stop reading."""
        if self.link is not None:
            self.link.stall()

    def unstall(self) -> None:
        """Continue reading."""
        if self.link is not None:
            self.link.unstall()

    def mute(self, muted: bool) -> None:
        """Stop or resume sending acknowledgements."""
        self.muted = muted
        if not muted:
            self._send_acks()
            self._flush()

    def re_authenticate(self) -> None:
        """Send AUTH if reauthentication is possible."""
        if self.open and self.wanted[5] and self.version == 5 and not self.authenticating:
            self.authenticating = True
            self._send(
                Auth(0x19, Properties(authentication_method=METHOD, authentication_data=b"0"))
            )
            self._flush()

    # --- connecting --------------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        if self.link is not None:
            # A second connection takes over; nothing sent on the first one is read any more.
            if not self.open:
                # Otherwise, a late CONNECT could take over from a newer one, and nobody would know which one won.
                self.link.cut()
            elif self.random.random() < 0.3:
                self.link.hang_up()
            else:
                self.link.abandon(5.0)
        self._gone()
        link = self.link = self.world.dial(self, self.random)
        self._decoder = Decoder(self.version, server=False)
        _, expiry, will, window, keep_alive, _ = self.wanted
        self.clean = self.clean or self.forgetting
        self.forgetting = self.clean or not self.owners <= {self.vouched}
        self.owners.add(self.vouched)
        self.asked_at = self.world.clock.now
        properties = Properties()
        fields = None
        five = self.version == 5
        asked = float(expiry if five else (self.server_expiry if expiry else 0))
        if will is not None:
            fields = self._will(link, will, asked)
        self.world.wills.returning(self.number, link, self.forgetting)
        if five:
            properties = Properties(
                session_expiry_interval=expiry or None,
                receive_maximum=window if window < 65535 else None,
                topic_alias_maximum=self.aliases or None,
                authentication_method=METHOD if self.vouched else None,
            )
        life = self.life
        self.suspects.append(link)
        if life is not None:
            life.links.append(link)
            if len(life.links) > 2:  # the broker may have read the previous attempt
                life.expiry_min = min(life.expiry_min, life.asked)
                life.expiry_max = max(life.expiry_max, life.asked)
            life.asked = min(asked, self.server_expiry)
        self._send(
            Connect(
                self.client_id,
                self.version,
                self.clean,
                keep_alive,
                None,
                None,
                fields,
                False,
                properties,
            )
        )
        self._flush()

    def _will(self, link: Link, will: tuple[int, int], asked: float) -> WillFields:
        qos, delay = will
        if self.version < 5:
            delay = 0
        sent, payload = self.world.ledger.write(self.number, f"w/{self.number}", qos, origin="will")
        sent.first_sent = self.world.clock.now
        sent.trusted = not self.tainted
        expiry = min(asked, self.server_expiry)
        if not self.tainted:
            self.world.wills.carried(self.number, link, sent, delay, expiry)
        properties = Properties(will_delay_interval=delay or None)
        return WillFields(sent.topic, payload, qos, False, properties)

    def ended(self, link: Link) -> None:
        """Clean up after the connection has closed."""
        if link is self.link:
            self._gone()
            self._retry()

    def _retry(self) -> None:
        if self.online and not self.retrying:
            self.retrying = True
            self.world.clock.after(0.05 + self.random.random() * 0.5, self._again)

    def _again(self) -> None:
        self.retrying = False
        if self.online and self.link is None:
            self._dial()
