"""Clients of MQTT 3.1.1 and 5.0 that keep their sessions over any number of connections.

The clients implement session resumption explicitly. They resend unacknowledged PUBLISH packets with DUP, and PUBREL
after a PUBREC, in their original order [MQTT-4.4.0-1]. They accept the packet id of a QoS 2 message again only after
its PUBREL [MQTT-4.3.3-10]. If the broker has lost a session, the client counts that and starts a new one. Its
unfinished messages then count neither as acknowledged nor as lost.
"""

import asyncio

import mqttbytes as m

from killing.ledger import Counts, Ledger, Seen, Stream

EXPIRY = 86400
OK = 0x80
"""Reason codes from here on are errors."""
GONE = 0x92
"""Packet Identifier not found: the broker received the PUBREL before the crash."""
SHUTTING_DOWN = 0x8B
"""Server shutting down: sent by a broker whose storage writer was killed just before it."""
UNAVAILABLE = (0x88, 3)
"""The same in CONNACK, for MQTT 5.0 and 3.1.1."""
Will = tuple[str, bytes, int, int]
"""Topic, payload, QoS and delay in seconds."""


class Client(asyncio.Protocol):
    """A client with a persistent session or, if `clean`, without one."""

    def __init__(self, ledger: Ledger, name: str, level: int = 5, clean: bool = False) -> None:
        self.ledger = ledger
        self.name = name
        self.level = level
        self.clean = clean
        self.known = False
        """Whether a broker said that it has our session: CONNACK came."""
        self.connected = False
        """From CONNACK to the end of the connection."""
        self._transport: asyncio.Transport | None = None
        self._in = bytearray()
        self._out: list[bytes] = []
        self._answers: dict[tuple[int, int], asyncio.Future[bytes]] = {}
        self._received: set[int] = set()
        """QoS 2 packet ids that came and were not released."""
        self._number = 40_000
        """For SUBSCRIBE; publishers stay below."""

    @property
    def counts(self) -> Counts:
        """Return the counts of the run."""
        return self.ledger.counts

    # connecting

    async def connect(self, port: int, will: Will | None = None) -> bool:
        """Connect. Return False if the broker is killed meanwhile and CONNACK does not arrive."""
        assert self._transport is None
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, "127.0.0.1", port)
        except OSError:
            return False
        properties = b""
        if self.level == 5 and not self.clean:
            properties = m.session_expiry(EXPIRY)
        delay = m.will_delay(will[3]) if will and self.level == 5 else b""
        waiting = self._wait(2, 0)
        self._write(
            m.connect(
                self.name,
                level=self.level,
                clean=self.clean,
                properties=properties,
                will=will[:2] if will else None,
                will_qos=will[2] if will else 0,
                will_properties=delay,
            )
        )
        self._flush()
        if await _answer(waiting) is None or not self.connected:
            await self.ended()
            return False
        return True

    def _connack(self, body: bytes) -> None:
        if body[1]:
            self._refused("CONNACK", body[1])
            self.abort()
            return
        self.connected = True
        present = bool(body[0] & 1)
        if self.known and not self.clean:
            self.counts.returns += 1
            if not present:
                self.counts.sessions_lost += 1
        self.known = True
        if not present:
            self._received.clear()
            self.forget()
        self.resume()

    def resume(self) -> None:
        """Resume messages in flight after CONNACK."""

    def forget(self) -> None:
        """Forget the session, because the broker has none."""

    def abort(self) -> None:
        """Close the connection without DISCONNECT."""
        if self._transport is not None:
            self._transport.abort()

    def disconnect(self) -> None:
        """Send DISCONNECT and close the connection."""
        if self._transport is not None:
            if self.connected:
                self._write(m.disconnect())
                self._flush()
            self._transport.close()

    async def ended(self, seconds: float = 30) -> None:
        """Wait until the connection is closed."""
        assert await self.ledger.until(lambda: self._transport is None, seconds), self.name

    async def subscribe(self, *filters: str, qos: int = 2) -> bool:
        """Subscribe. Return whether SUBACK arrived."""
        self._number += 1
        number = self._number
        waiting = self._wait(9, number)
        requests = [(name, qos) for name in filters]
        self._write(m.subscribe(number, *requests, level=self.level))
        self._flush()
        body = await _answer(waiting)
        if body is None:
            return False
        codes = body[-len(filters) :]
        if any(code >= OK for code in codes):
            self._refused("SUBACK", max(codes))
            return False
        return True

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport. Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Reset the connection's state. Called by asyncio."""
        self._transport = None
        self.connected = False
        self._in.clear()
        self._out.clear()
        answers, self._answers = self._answers, {}
        for one in answers.values():
            if not one.done():
                one.cancel()
        self.ledger.changed()

    def data_received(self, data: bytes) -> None:
        """Process received bytes. Called by asyncio."""
        self._in += data
        for first, body in m.take(self._in):
            self._packet(first, body)
        self._flush()
        self.ledger.changed()

    def _packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == 3:
            self._publish(first, body)
            return
        number = int.from_bytes(body[:2], "big")
        if kind == 6:
            self._received.discard(number)
            self._write(m._acknowledgement(0x70, number, None, b""))
        elif kind in (4, 5, 7):
            code = body[2] if self.level == 5 and len(body) > 2 else 0
            self.acknowledged(kind, number, code)
        elif kind == 2:
            self._connack(body)
            self._tell(2, 0, body)
        elif kind == 9:
            self._tell(kind, number, body)
        elif kind == 14:
            self._refused("DISCONNECT", body[0] if body else 0)

    def _publish(self, first: int, body: bytes) -> None:
        qos = first >> 1 & 3
        size = int.from_bytes(body[:2], "big")
        topic = body[2 : 2 + size].decode()
        pos = 2 + size
        new = True
        if qos:
            number = int.from_bytes(body[pos : pos + 2], "big")
            pos += 2
            if qos == 1:
                self._write(b"\x40\x02" + number.to_bytes(2, "big"))
            else:
                new = number not in self._received
                self._received.add(number)
                self._write(b"\x50\x02" + number.to_bytes(2, "big"))
        if self.level == 5:
            # Properties of less than 128 bytes: none of these clients asks for more.
            pos += 1 + body[pos]
        if new:
            self.message(topic, body[pos:], bool(first & 1))

    def _write(self, data: bytes) -> None:
        self._out.append(data)

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _wait(self, kind: int, number: int) -> "asyncio.Future[bytes]":
        made: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._transport is None:
            made.cancel()
        else:
            self._answers[kind, number] = made
        return made

    def _tell(self, kind: int, number: int, body: bytes) -> None:
        waiting = self._answers.pop((kind, number), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(body)

    def _refused(self, packet: str, code: int) -> None:
        if code == SHUTTING_DOWN or (
            self.ledger.dying and packet == "CONNACK" and code in UNAVAILABLE
        ):
            return
        self.counts.refused += 1
        if len(self.ledger.refusals) < 20:
            self.ledger.refusals.append(f"{self.name}: {packet} 0x{code:02X}")

    # what becomes of it

    def message(self, topic: str, payload: bytes, retain: bool) -> None:
        """Handle a message."""

    def acknowledged(self, kind: int, number: int, code: int) -> None:
        """Handle a PUBACK, PUBREC or PUBCOMP."""


async def _answer(waiting: "asyncio.Future[bytes]") -> bytes | None:
    done, _ = await asyncio.wait([waiting], timeout=60)
    assert done, "no answer within 60 s"
    return None if waiting.cancelled() else waiting.result()


class Publisher(Client):
    """A client that publishes on its streams in turn: up to `allowed` messages, with at most `window` unacknowledged."""

    def __init__(
        self, ledger: Ledger, name: str, streams: list[Stream], level: int, window: int = 20
    ) -> None:
        super().__init__(ledger, name, level)
        self.streams = streams
        self.window = window
        self.allowed = 0
        self.sent = 0
        self._inflight: dict[int, tuple[Stream, int, bool]] = {}
        """By packet id, in the order of sending: stream, number, and whether PUBREC came."""

    @property
    def idle(self) -> bool:
        """Return whether all allowed messages are sent and acknowledged."""
        return self.sent >= self.allowed and not self._inflight

    def allow(self, count: int) -> None:
        """Allow the client to send `count` more messages."""
        self.allowed += count
        if self.connected:
            self._fill()
            self._flush()

    def resume(self) -> None:
        """Resend messages in flight after CONNACK."""
        for number, (stream, index, released) in self._inflight.items():
            if released:
                self._write(m._acknowledgement(0x62, number, None, b""))
            else:
                self._send(stream, index, number, dup=True)
        self._fill()

    def forget(self) -> None:
        """Forget the messages in flight."""
        self._inflight.clear()

    def _fill(self) -> None:
        while len(self._inflight) < self.window and self.sent < self.allowed:
            stream = self.streams[self.sent % len(self.streams)]
            self.sent += 1
            number = self.sent % 30_000 + 1
            index = stream.next()
            self.counts.published += 1
            self._inflight[number] = stream, index, False
            self._send(stream, index, number, dup=False)

    def _send(self, stream: Stream, index: int, number: int, dup: bool) -> None:
        self._write(
            m.publish(
                stream.topic,
                stream.body(index),
                stream.qos,
                number,
                level=self.level,
                retain=stream.retained,
                dup=dup,
            )
        )

    def acknowledged(self, kind: int, number: int, code: int) -> None:
        """Handle a PUBACK, PUBREC or PUBCOMP."""
        found = self._inflight.get(number)
        if found is None:
            return  # of a session that is gone
        stream, index, released = found
        if code >= OK and code != GONE:
            self._refused("PUBACK" if kind == 4 else "PUBREC", code)
            del self._inflight[number]
        elif kind == 5:
            self._inflight[number] = stream, index, True
            self._write(m._acknowledgement(0x62, number, None, b""))
        elif released or kind == 4:
            del self._inflight[number]
            stream.acknowledge(index)
            self.counts.acknowledged += 1
        self._fill()


class Subscriber(Client):
    """A client that records the messages of some streams, and wills."""

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
        """Connect and subscribe. From then on, every message sent on `streams` is due."""
        if not await self.come(port):
            return False
        self.seen = {stream.topic: Seen(stream) for stream in streams}
        return True

    async def come(self, port: int) -> bool:
        """Reconnect. Subscribe again if the broker has lost the session. Messages that were due remain due."""
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
        """Return the number of acknowledged messages and due wills that did not arrive."""
        lost = self.lost()
        if "w/#" in self.filters:
            wills = (topic for topic, due in self.ledger.wills.items() if due)
            lost += sum(1 for topic in wills if topic not in self.wills)
        return lost

    def lost(self) -> int:
        """Return the number of acknowledged messages that did not arrive."""
        return sum(seen.lost() for seen in self.seen.values())


class Checker(Client):
    """A client that reads retained messages."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(ledger, name, 5, clean=True)
        self.found: dict[str, int] = {}
        """By topic, the number of the retained message; -1 when it is none that was sent."""

    def message(self, topic: str, payload: bytes, retain: bool) -> None:
        """Record the number of a retained message."""
        if retain:
            number = number_of(self.ledger.streams.get(topic), payload)
            self.found[topic] = number or -1


def number_of(stream: Stream | None, payload: bytes) -> int:
    """Return the number of a stream's message, or 0 if no such message was sent."""
    if stream is None or (stream.retained and not payload):
        return 0
    try:
        number = int(payload[: payload.index(b" ")])
    except ValueError:
        return 0
    if not 0 < number <= stream.sent or payload != stream.body(number):
        return 0
    return number
