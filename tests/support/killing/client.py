"""Clients of MQTT 3.1.1 and 5.0 that keep their sessions over any number of connections.

`AsyncioClient` resumes a session as the standard requires. If the broker has lost a session, a client in this module
counts the loss and starts a new session. The old session's in-flight messages then count as neither acknowledged nor
lost.
"""

from dataclasses import replace

from hookmq.mqtt.packets import Connack, Disconnect, Packet, Puback, Publish
from hookmq_testing import AsyncioClient, will

from killing.ledger import Counts, Ledger, Seen, Stream

EXPIRY = 86400
OK = 0x80
"""Reason codes of at least this value are errors."""
GONE = 0x92
"""Packet Identifier not found: the broker received the PUBREL before the crash."""
SHUTTING_DOWN = 0x8B
"""Server shutting down: sent by a broker whose storage writer was killed shortly before the broker."""
UNAVAILABLE = (0x88, 3)
"""The CONNACK codes of a broker that is shutting down, for MQTT 5.0 and 3.1.1."""
Will = tuple[str, bytes, int, int]
"""A will's topic, payload, QoS and delay in seconds."""


class Client:
    """A client with a durable session, or without one if `clean` is set."""

    def __init__(
        self, ledger: Ledger, name: str, level: int = 5, clean: bool = False, window: int = 65535
    ) -> None:
        self.ledger = ledger
        self.name = name
        self.clean = clean
        self.known = False
        """Whether a broker has accepted the client before, and has its session."""
        self.mqtt = AsyncioClient(
            name,
            level,
            clean,
            session_expiry_interval=EXPIRY if level == 5 and not clean else None,
            max_inflight=window,
            on_packet=self._packet,
            on_message=self._message,
            on_acknowledged=self.acknowledged,
            on_closed=ledger.changed,
        )

    @property
    def counts(self) -> Counts:
        """Return the counts of the run."""
        return self.ledger.counts

    @property
    def connected(self) -> bool:
        """Return whether the broker has accepted the connection and the connection is still open."""
        return self.mqtt.connected

    async def connect(self, port: int, last: Will | None = None) -> bool:
        """Connect. Return False if the broker is killed before its CONNACK arrives."""
        made = None
        if last is not None:
            topic, payload, qos, delay = last
            made = will(topic, payload, qos, delay=delay if self.mqtt.version == 5 else None)
        self.mqtt.connect_packet = replace(self.mqtt.connect_packet, will=made)
        try:
            await self.mqtt.connect(port, expect=None)
        except ConnectionError:
            await self.ended()
        return self.connected

    def abort(self) -> None:
        """Close the connection without DISCONNECT."""
        self.mqtt.drop()

    def disconnect(self) -> None:
        """Send DISCONNECT and close the connection."""
        self.mqtt.disconnect()

    async def ended(self, seconds: float = 30) -> None:
        """Wait until the connection is closed. Raise the error that closed it, if any."""
        assert await self.ledger.until(lambda: self.mqtt.closed, seconds), self.name
        if self.mqtt.error is not None:
            raise self.mqtt.error

    async def subscribe(self, *filters: str, qos: int = 2) -> bool:
        """Subscribe. Return whether SUBACK arrived."""
        try:
            codes = (await self.mqtt.subscribe(filters, qos)).codes
        except ConnectionError:
            return False
        if any(code >= OK for code in codes):
            self._refused("SUBACK", max(codes))
            return False
        return True

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._connack(packet)
        elif isinstance(packet, Disconnect):
            self._refused("DISCONNECT", packet.code)
        self.ledger.changed()

    def _connack(self, packet: Connack) -> None:
        if packet.code:
            self._refused("CONNACK", packet.code)
            return
        if self.known and not self.clean:
            self.counts.returns += 1
            if not packet.session_present:
                self.counts.sessions_lost += 1
        self.known = True
        if not packet.session_present:
            self.forget()

    def _message(self, packet: Publish) -> None:
        self.message(packet.topic, packet.payload, packet.retain)

    def _refused(self, packet: str, code: int) -> None:
        if code == SHUTTING_DOWN or (
            self.ledger.dying and packet == "CONNACK" and code in UNAVAILABLE
        ):
            return
        self.counts.refused += 1
        if len(self.ledger.refusals) < 20:
            self.ledger.refusals.append(f"{self.name}: {packet} 0x{code:02X}")

    def forget(self) -> None:
        """Discard the session state, because the broker no longer has the session."""

    def message(self, topic: str, payload: bytes, retain: bool) -> None:
        """Handle a message."""

    def acknowledged(self, message: Publish, answer: Packet) -> None:
        """Handle the final acknowledgement of a message."""


class Publisher(Client):
    """A client that publishes to its streams in turn. It sends up to `allowed` messages, with at most `window`
    unacknowledged at a time.
    """

    def __init__(
        self, ledger: Ledger, name: str, streams: list[Stream], level: int, window: int = 20
    ) -> None:
        super().__init__(ledger, name, level, window=window)
        self.streams = streams
        self.window = window
        self.allowed = 0
        self.sent = 0
        self._unfinished: dict[int, tuple[Stream, int]] = {}
        """The stream and number of each message in flight, by packet id."""

    @property
    def idle(self) -> bool:
        """Return whether all allowed messages are sent and acknowledged."""
        return self.sent >= self.allowed and not self._unfinished

    async def connect(self, port: int, last: Will | None = None) -> bool:
        """Connect, resend the in-flight messages, and continue publishing."""
        connected = await super().connect(port, last)
        self._fill()
        return connected

    def allow(self, count: int) -> None:
        """Allow the client to send `count` more messages."""
        self.allowed += count
        self._fill()

    def forget(self) -> None:
        """Discard the in-flight messages."""
        self._unfinished.clear()

    def _fill(self) -> None:
        while self.connected and len(self._unfinished) < self.window and self.sent < self.allowed:
            stream = self.streams[self.sent % len(self.streams)]
            self.sent += 1
            index = stream.next()
            self.counts.published += 1
            self._unfinished[self.send(stream, index)] = stream, index

    def send(self, stream: Stream, index: int) -> int:
        """Send a message from a stream and return its packet id."""
        return self.mqtt.send_publish(
            stream.target, stream.body(index), stream.qos, stream.retained
        )

    def acknowledged(self, message: Publish, answer: Packet) -> None:
        """Record the final acknowledgement of a message."""
        stream, index = self._unfinished.pop(message.packet_id)
        code = getattr(answer, "code", 0)
        if code >= OK and code != GONE:
            self._refused("PUBACK" if isinstance(answer, Puback) else "PUBREC", code)
        else:
            stream.acknowledge(index)
            self.counts.acknowledged += 1
        self._fill()


class Subscriber(Client):
    """A client that records wills and the messages of some streams."""

    def __init__(self, ledger: Ledger, name: str, level: int, filters: tuple[str, ...]) -> None:
        super().__init__(ledger, name, level)
        self.filters = filters
        self.seen: dict[str, Seen] = {}
        self.wills: dict[str, int] = {}
        self.got = 0
        self.subscribed = False

    def forget(self) -> None:
        """Mark the client as not subscribed, because the broker has no session for it."""
        self.subscribed = False

    async def join(self, port: int, streams: list[Stream]) -> bool:
        """Connect and subscribe. From then on, every message sent on `streams` must arrive."""
        if not await self.come(port):
            return False
        self.seen = {stream.topic: Seen(stream) for stream in streams}
        return True

    async def come(self, port: int) -> bool:
        """Reconnect. If the broker has lost the session, subscribe again, but still expect the messages that it should
        have delivered.
        """
        if not await self.connect(port):
            return False
        self.subscribed = self.subscribed or await self.subscribe(*self.filters)
        return self.subscribed

    def message(self, topic: str, payload: bytes, retain: bool) -> None:
        """Record a message or will."""
        self.got += 1
        if topic.startswith("w/"):
            self.wills[topic] = self.wills.get(topic, 0) + 1
            return
        seen = self.seen.get(topic)
        number = number_of(self.ledger.streams.get(topic), payload)
        if not number:
            self.counts.corrupt += 1
        elif seen is not None:
            seen.take(number)

    def owed(self) -> int:
        """Return how many acknowledged messages and due wills did not arrive."""
        lost = self.lost()
        if "w/#" in self.filters:
            wills = (topic for topic, due in self.ledger.wills.items() if due)
            lost += sum(1 for topic in wills if topic not in self.wills)
        return lost

    def lost(self) -> int:
        """Return how many acknowledged messages did not arrive."""
        return sum(seen.lost() for seen in self.seen.values())


class Checker(Client):
    """A client that reads retained messages."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(ledger, name, 5, clean=True)
        self.found: dict[str, int] = {}
        """The number of the retained message by topic, or -1 if no such message was sent."""

    def message(self, topic: str, payload: bytes, retain: bool) -> None:
        """Record the number of a retained message."""
        if retain:
            number = number_of(self.ledger.streams.get(topic), payload)
            self.found[topic] = number or -1


def number_of(stream: Stream | None, payload: bytes) -> int:
    """Return the number of a message in a stream, or 0 if no such message was sent."""
    if stream is None or (stream.retained and not payload):
        return 0
    try:
        number = int(payload[: payload.index(b" ")])
    except ValueError:
        return 0
    if not 0 < number <= stream.sent or payload != stream.body(number):
        return 0
    return number
