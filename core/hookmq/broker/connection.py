"""A connection's bytes: packets found in them, handled or held, and the hot path.

The first part of `_read` is the hot path: a PUBLISH whose topic bytes this connection sent before, with the same first
byte and without properties, goes to its receivers with one dict lookup, as the bytes that came in. Acknowledgements of
deliveries that need no record are settled there too.
"""

from typing import Final

from hookmq.broker.deliver import offer, pump
from hookmq.broker.link import Link, Permit, Phase
from hookmq.broker.routes import Route
from hookmq.codec import (
    encode_publish_parts,
    frame,
)
from hookmq.codec.header import refuse_header
from hookmq.errors import ProtocolError
from hookmq.properties import EMPTY
from hookmq.qos import (
    PACKET_IDS,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    VOLATILE_1,
    VOLATILE_2,
    VOLATILE_RELEASED,
    Outgoing,
)
from hookmq.reason import PacketType, ReasonCode
from hookmq.session import BEHIND, CLEAN, DIRTY, Session
from hookmq.types import (
    Direction,
    DropReason,
    Message,
)

_PASS_WHILE_WAITING: Final = frozenset(
    (
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.PINGREQ,
    )
)


class Connection(Link):
    """See the module's text. The shell calls `feed`, `closed`, `pause_writing` and `resume_writing`."""

    __slots__ = ()

    def feed(self, data: bytes) -> None:
        """Take in bytes of the client. Never raises: a fault of the client ends the connection, a fault of ours is logged
        and ends it too [MQTT311-4.8.0-2]."""
        if self.phase is Phase.CLOSED:
            return
        self.core.metrics.bytes_received += len(data)
        try:
            if self.partial is not None:
                whole = self._complete(data)
                if whole is None:
                    return
                data = whole
            self._read(data)
        except ProtocolError as error:
            self.fail(error)
        except Exception as error:
            self._internal(error)

    def _complete(self, data: bytes) -> bytes | None:
        """Join `data` to the partial packet; None while that is still not whole."""
        partial = self.partial
        assert partial is not None
        partial += data
        size = len(partial)
        if size < self.wanted:
            self._check_budget(size)
            return None
        self.partial = None
        return bytes(partial)

    def _check_budget(self, size: int) -> None:
        """Before a client is accepted it may send `connect_bytes`: more is refused before CONNECT is whole, and not read
        while its decision is pending."""
        if self.phase is Phase.OPEN or size + self.held_bytes <= self.scope.connect_bytes:
            return
        if self.phase is not Phase.DECIDING:
            raise ProtocolError(
                ReasonCode.PACKET_TOO_LARGE, "too large before CONNECT was accepted"
            )
        self.stop_reading()

    def _read(self, data: bytes) -> None:
        core = self.core
        metrics = core.metrics
        end = len(data)
        pos = 0
        packets = messages = delivered = 0
        hot = self.phase is Phase.OPEN and not self.waiting and self.held is None
        five = self.version == 5
        memo = self.memo
        session = self.session
        most = self.limits.max_packet_size
        if self.phase is Phase.NEW:
            most = min(most, self.scope.connect_bytes)
        freed = False
        try:
            while end - pos >= 2:
                header = data[pos]
                body = pos + 2
                size = data[pos + 1]
                if size < 128:
                    after = body + size
                else:
                    framed = frame(data, pos)
                    if framed is None:
                        break
                    body, after = framed
                    if after - pos > most:  # [MQTT-3.2.2-15]: before the body is kept
                        raise ProtocolError(
                            ReasonCode.PACKET_TOO_LARGE, f"packet of {after - pos} bytes"
                        )
                if after > end:
                    break
                packets += 1
                if hot:
                    kind = header & 0xF0
                    if kind == 0x30 and body + 2 < after:
                        name = body + 2
                        stop = name + (data[body] << 8 | data[body + 1])
                        permit = memo.get(data[name:stop])
                        if permit is not None and permit.header == header and permit.route.valid:
                            qos = header >> 1
                            if qos == 24:  # 0x30: QoS 0
                                # Equal bytes for all of this version: no DUP, RETAIN or properties, and Remaining Length
                                # is minimal, else `frame` had refused it.
                                if (not five and stop <= after) or (
                                    five and stop < after and not data[stop]
                                ):
                                    same = permit.same
                                    packet = data[pos:after]
                                    for receiver in same:
                                        state = receiver.state
                                        if state == DIRTY:
                                            receiver.out.append(packet)
                                        elif state == CLEAN:
                                            receiver.state = DIRTY
                                            core.dirty.append(receiver)
                                            receiver.out.append(packet)
                                        else:
                                            self._queue_one(
                                                receiver, permit.route, data, stop + five, after, 0
                                            )
                                            delivered -= 1
                                    delivered += len(same)
                                    if permit.other:
                                        self._pass_other(permit, data, stop + five, after)
                                    messages += 1
                                    pos = after
                                    continue
                            elif (
                                stop + 2 + five <= after
                                and (not five or not data[stop + 2])
                                and self._pass_acknowledged(
                                    permit, data, pos, stop, after, qos - 24
                                )
                            ):
                                messages += 1
                                pos = after
                                continue
                    elif size == 2 and session is not None:
                        number = data[body] << 8 | data[body + 1]
                        if header == 0x40:
                            if session.inflight.get(number) is VOLATILE_1:
                                del session.inflight[number]
                                freed = True
                                pos = after
                                continue
                        elif kind == 0x50:
                            if header == 0x50 and session.inflight.get(number) is VOLATILE_2:
                                session.inflight[number] = VOLATILE_RELEASED
                                session.out += (PUBREL, PACKET_IDS[number])
                                core.mark(session)
                                pos = after
                                continue
                        elif kind == 0x60:
                            taken = session.received
                            if (
                                header == 0x62
                                and taken is not None
                                and number in taken
                                and not session.durable
                                and not self.answers
                            ):
                                taken.remove(number)
                                session.out += (PUBCOMP, PACKET_IDS[number])
                                core.mark(session)
                                pos = after
                                continue
                        elif header == 0x70 and session.inflight.get(number) is VOLATILE_RELEASED:
                            del session.inflight[number]
                            freed = True
                            pos = after
                            continue
                self._take(header, data[body:after])
                pos = after
                most = self.limits.max_packet_size
                if self.phase is Phase.CLOSED:
                    return
                hot = self.phase is Phase.OPEN and not self.waiting and self.held is None
                five = self.version == 5
                memo = self.memo
                session = self.session
        finally:
            # Also when a packet was malformed or said goodbye: what came before it is passed on and counted.
            if packets:
                self.seen = core.runtime.now()
                metrics.packets_received += packets
                metrics.messages_received += messages
                metrics.messages_delivered += delivered
                if core.dirty and not core.scheduled:
                    core.schedule()
        if (
            freed
            and session is not None
            and (session.queued or session.resend or session.backlog or session.groups)
        ):
            pump(core, session)
        if not self.writable:
            # Who does not read is not read from for ever: else the answers pile up without bound.
            self.excess += end
            if self.excess > core.settings.broker.max_write_buffer:
                self.stop_reading()
        if pos < end:
            self._keep(data, pos, end)

    def _keep(self, data: bytes, pos: int, end: int) -> None:
        """Keep the packet that is not whole; refuse it now if its header is wrong or it would be too large."""
        header = data[pos]
        if not self.legal[header]:
            raise refuse_header(header, self.version, True)
        framed = frame(data, pos)
        size = framed[1] - pos if framed is not None else 0
        if size > self.limits.max_packet_size:  # [MQTT-3.2.2-15]: before its body is kept
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"packet of {size} bytes")
        self._check_budget(max(size, end - pos))
        self.wanted = size
        self.partial = bytearray(data[pos:end])

    def _take(self, header: int, body: bytes) -> None:
        """Handle one packet, or hold it while something waits before it."""
        if self.phase is Phase.CLOSED:
            return
        if not self.legal[header]:
            # [MQTT-2.1.3-1, 3.1.0-1, 3.1.0-2] and the packets only a server sends
            raise refuse_header(header, self.version, True)
        if (self.waiting or self.held is not None) and (
            self.phase is not Phase.OPEN or header >> 4 not in _PASS_WHILE_WAITING
        ):
            self._hold(header, body)
            return
        self._dispatch(header, body)

    def _message(self, route: Route, data: bytes, start: int, after: int, qos: int) -> Outgoing:
        client = self.client
        assert client is not None
        now = self.core.runtime.time()
        payload = data[start:after]
        return Outgoing(
            Message(route.topic, payload, qos, False, EMPTY, client.client_id, "client", now)
        )

    def _queue_one(
        self, receiver: Session, route: Route, data: bytes, start: int, after: int, qos: int
    ) -> None:
        """One plain receiver of a QoS 0 message is away or slow: its copy goes the long way."""
        core = self.core
        if (
            receiver.connection is None
            and not core.settings.session.queue_qos0
            and "on_dropped" not in core.observed
        ):
            core.metrics.count_drop(DropReason.OFFLINE_QOS0, Direction.OUT)
            return
        for target in route.targets:
            if target.session is receiver:
                outgoing = self._message(route, data, start, after, qos)
                offer(core, receiver, outgoing, 0, False, (), target.subscription)
                return

    def _pass_other(self, permit: Permit, data: bytes, start: int, after: int) -> None:
        """QoS 0 to the plain receivers of the other protocol version: one encoding for all of them."""
        core = self.core
        five = self.version == 5
        head, tail = encode_publish_parts(
            permit.route.topic.encode(), data[start:after], 0, False, False, None if five else b"\0"
        )
        packet = head + tail
        for receiver in permit.other:
            if receiver.state == BEHIND:
                self._queue_one(receiver, permit.route, data, start, after, 0)
                continue
            core.mark(receiver)
            receiver.out.append(packet)
            core.metrics.messages_delivered += 1

    def _pass_acknowledged(
        self, permit: Permit, data: bytes, pos: int, stop: int, after: int, qos: int
    ) -> bool:
        """A QoS 1 or 2 PUBLISH to plain receivers whose sessions end with their connections: no record, no commit. False
        if it must go the long way after all."""
        core = self.core
        session = self.session
        assert session is not None
        number = data[stop] << 8 | data[stop + 1]
        if not number or self.answers:
            return False
        taken = session.received
        if taken is not None and (
            len(taken) >= self.receive_maximum + self.carried or (qos == 2 and number in taken)
        ):
            return False
        if qos == 2:
            if taken is None:
                taken = session.received = set()
            taken.add(number)
        five = self.version == 5
        start = stop + 3 if five else stop + 2
        route = permit.route
        same_head = data[pos:stop]
        same_tail = data[stop + 2 : after]
        lower: bytes | None = None
        zero: bytes | None = None
        outgoing: Outgoing | None = None
        delivered = 0
        for target in route.targets:
            receiver = target.session
            granted = target.qos
            if granted > qos:
                granted = qos
            if (
                receiver.state == BEHIND
                or receiver.kind != (5 if five else 3)
                or (granted and (receiver.queued or len(receiver.inflight) >= receiver.window))
            ):
                if outgoing is None:
                    outgoing = self._message(route, data, start, after, qos)
                offer(core, receiver, outgoing, granted, False, (), target.subscription)
                continue
            out = receiver.out
            if granted == 0:
                if zero is None:
                    zero = b"".join(
                        encode_publish_parts(
                            route.topic.encode(),
                            data[start:after],
                            0,
                            False,
                            False,
                            b"\0" if five else None,
                        )
                    )
                out.append(zero)
            else:
                last = receiver.last_packet_id + 1
                if last > 65535:
                    last = 1
                inflight = receiver.inflight
                while last in inflight:
                    last = last + 1 if last < 65535 else 1
                receiver.last_packet_id = last
                if granted == qos:
                    out += (same_head, PACKET_IDS[last], same_tail)
                else:
                    if lower is None:
                        lower = b"\x32" + same_head[1:]
                    out += (lower, PACKET_IDS[last], same_tail)
                inflight[last] = VOLATILE_1 if granted == 1 else VOLATILE_2
            delivered += 1
            if receiver.state == CLEAN:
                receiver.state = DIRTY
                core.dirty.append(receiver)
        core.metrics.messages_delivered += delivered
        if five and not route.matched:
            code = bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,))
            session.out += (b"\x40\x03" if qos == 1 else b"\x50\x03", PACKET_IDS[number], code)
        else:
            session.out += (PUBACK if qos == 1 else PUBREC, PACKET_IDS[number])
        if session.state == CLEAN:
            session.state = DIRTY
            core.dirty.append(session)
        elif session.state == BEHIND:
            core.dirty.append(session)
        return True
