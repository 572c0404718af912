"""A publisher that either keeps its window full or sends messages when they are due."""

import time
from typing import Final

from hookmq.mqtt_api import Packet, Puback, Pubcomp, Pubrec, encode_properties, encode_publish_parts

from hookmq_bench.connection import Connection, Turn, reason_of
from hookmq_bench.plan import STAMP, Plan
from hookmq_bench.tally import Tally

UNBOUNDED: Final = 10_000
"""Maximum number of messages written in one turn if there is no window."""
BURST: Final = 1 << 20
"""Maximum number of payload bytes written in one turn. The transport can pause the publisher only after the turn."""
_PUBREL: Final = b"\x62\x02"


class Publisher(Connection):
    """A connection that publishes.

    A message is outstanding until it is acknowledged and the condition `waits` is met. That condition is "arrival" at
    its subscribers, a later "pong", or nothing. At a fixed rate, the owner calls `due` for each message. Otherwise, the
    publisher keeps sending while `running` is set.
    """

    def __init__(
        self, turn: Turn, plan: Plan, number: int, tally: Tally, offset: int, waits: str = ""
    ) -> None:
        super().__init__(turn, plan.target.version)
        self.number = number
        self.tally = tally
        self.running = False
        self.sent = 0
        self.quota = 0
        """Maximum number of messages to send, or 0 for no limit."""
        self.unacked: dict[int, int] = {}
        self.arrivals = 0
        self._copies = max(1, plan.copies)
        self._waits = waits
        self._ponged = 0
        self._offset = offset
        self._backlog: list[int] = []
        self._fixed_rate = plan.rate > 0
        self._key = plan.key(number)
        self._qos = plan.qos
        self._id = 0
        self._filler = plan.payload
        section = encode_properties(plan.properties_of("publish")) if self.version == 5 else None
        self._head, _ = encode_publish_parts(
            plan.topic_of(number).encode(), bytes(plan.size), plan.qos, plan.retain, False, section
        )
        self._section = section or b""
        self.window = plan.window
        self._burst = max(1, min(UNBOUNDED, BURST // plan.size))

    def limit(self, receive_maximum: int) -> None:
        """Keep the window within the broker's Receive Maximum [MQTT-3.3.4-9]."""
        if self._qos:
            self.window = min(self.window or 65_535, receive_maximum)

    @property
    def outstanding(self) -> int:
        """The number of outstanding messages."""
        waiting = len(self.unacked)
        if self._waits == "arrival":
            return max(waiting, self.sent - self.arrivals // self._copies)
        if self._waits == "pong":
            return max(waiting, self.sent - self._ponged)
        return waiting

    @property
    def backlog(self) -> int:
        """The number of messages that are due but have not been written yet."""
        return len(self._backlog)

    def arrived(self, deliveries: int) -> None:
        """Record that subscribers received some of this publisher's messages."""
        self.arrivals += deliveries
        self.turns.mark(self)

    def forgive(self) -> None:
        """Stop waiting for outstanding messages to arrive."""
        self.arrivals = self.sent * self._copies
        self._ponged = self.sent
        self.turns.mark(self)

    def pong(self, mark: int) -> None:
        """Record that the broker has read all messages up to `mark`."""
        if mark > self._ponged:
            self._ponged = mark
            self.turns.mark(self)

    def due(self, time: int) -> None:
        """Queue a message that is due at the stamp time `time`."""
        self._backlog.append(time)
        self.turns.mark(self)

    def turn(self) -> None:
        """Write every message that may be sent now."""
        self.pump()
        self.flush()

    def pump(self) -> None:
        """Put as many messages into `out` as the window allows."""
        if self.paused or self.closed:
            return
        window = self.window
        room = window - self.outstanding if window else self._burst
        if self.quota:
            room = min(room, self.quota - self.sent)
        if self._fixed_rate:
            if room > 0 and self._backlog:
                room = min(room, self._burst)
                dues = self._backlog[:room]
                del self._backlog[:room]
                self._send(dues)
                if self._backlog:
                    self.turns.mark(self)
            return
        # Wait until a quarter of the window is free: a few large writes cost less than many small ones.
        if self.running and room > 0 and (room >= window >> 2 or room == self.quota - self.sent):
            now = time.monotonic_ns() + self._offset
            self._send([now] * min(room, self._burst))
            if room > self._burst:
                self.turns.mark(self)

    def _send(self, dues: list[int]) -> None:
        number, key, head, filler = self.sent, self._key, self._head, self._filler
        out, pack, section = self.out, STAMP.pack, self._section
        if self._qos:
            unacked, packet_id = self.unacked, self._id
            for due in dues:
                packet_id = packet_id % 65_535 + 1
                while packet_id in unacked:
                    packet_id = packet_id % 65_535 + 1
                unacked[packet_id] = due
                out += (
                    head, packet_id.to_bytes(2, "big"), section, pack(key, number, due), filler
                )  # fmt: skip
                number += 1
            self._id = packet_id
        else:
            head += section
            for due in dues:
                out += (head, pack(key, number, due), filler)
                number += 1
        self.sent = number
        self.tally.sent += len(dues)
        if self._waits == "pong" and not self._pings:
            self.ping(number)

    def scan(self, data: bytes) -> int:
        """Process packets as `Connection.scan` does. Nearly all packets are short acknowledgements, which are parsed in
        place.
        """
        now = time.monotonic_ns() + self._offset
        tally, unacked, out = self.tally, self.unacked, self.out
        since, latency = tally.since, tally.acknowledged
        final = 0x40 if self._qos == 1 else 0x70
        pos, end = 0, len(data)
        times = acked = 0
        last_due = -1
        while pos + 4 <= end and data[pos + 1] == 2:
            header = data[pos]
            if header == final:
                due = unacked.pop(data[pos + 2] << 8 | data[pos + 3], 0)
                if not due:
                    tally.stray_acks += 1
                elif due == last_due:
                    times += 1
                else:
                    if times and last_due >= since:
                        latency.add(now - last_due, times)
                    last_due, times = due, 1
                acked += 1
            elif header == 0x50:
                out.append(_PUBREL + data[pos + 2 : pos + 4])
            else:
                break
            pos += 4
        if times and last_due >= since:
            latency.add(now - last_due, times)
        if acked:
            tally.acked += acked
            tally.latest = now
        if pos < end:
            pos += super().scan(data[pos:] if pos else data)
        self.turns.mark(self)
        return pos

    def other(self, packet: Packet) -> None:
        """Process acknowledgements that contain a reason code."""
        if not isinstance(packet, Puback | Pubrec | Pubcomp):
            return
        tally = self.tally
        if packet.packet_id not in self.unacked:
            tally.stray_acks += 1
            return
        if isinstance(packet, Pubrec) and packet.code < 0x80:
            self.out.append(_PUBREL + packet.packet_id.to_bytes(2, "big"))
            return
        del self.unacked[packet.packet_id]
        tally.acked += 1
        if packet.code >= 0x10:
            self.arrivals += self._copies  # this message will never arrive
        if packet.code >= 0x80:
            tally.refused[reason_of(packet.code, packet.properties, 5)] += 1
        elif packet.code == 0x10:
            tally.unmatched += 1
