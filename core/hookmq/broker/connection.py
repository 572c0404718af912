"""One client's connection: bytes in, packets to the table of handlers, answers out in order. No I/O of its own.

    NEW --CONNECT--> DECIDING --accepted--> OPEN --> CLOSED
                        |  ^
            AUTH 0x18   v  |  AUTH
                     CHALLENGED

Waiting holds PUBLISH, not the socket: while a decision is pending, packets that could overtake it are held in order
and in bounds; acknowledgements and PINGREQ are handled all the same. Only when the bound is reached does reading stop,
for a time.

The first part of `_read` is the hot path: a PUBLISH whose topic bytes this connection sent before, with the same first
byte and without properties, goes to its receivers with one dict lookup, as the bytes that came in.
"""

from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from hookmq.broker.authorizer import Decisions
from hookmq.broker.core import Core
from hookmq.broker.deadlines import Deadline
from hookmq.broker.deliver import offer, pump, settle_state
from hookmq.broker.routes import Route
from hookmq.codec import (
    Connack,
    Disconnect,
    Packet,
    decode,
    encode,
    encode_publish_parts,
    frame,
)
from hookmq.codec.header import legal_headers, refuse_header
from hookmq.errors import ProtocolError
from hookmq.hooks.chains import Chains
from hookmq.properties import EMPTY, Properties
from hookmq.qos import (
    PACKET_IDS,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    VOLATILE_1,
    VOLATILE_2,
    VOLATILE_RELEASED,
    Acknowledgement,
    Outgoing,
)
from hookmq.reason import PacketType, ReasonCode, clamp, v3_connack
from hookmq.runtime import Cancel, Wire
from hookmq.session import BEHIND, CLEAN, DIRTY, Session
from hookmq.types import (
    ClientInfo,
    Direction,
    DisconnectReason,
    DropReason,
    EndedBy,
    Message,
    Peer,
    Scope,
)


class Phase(IntEnum):
    """Where a connection stands."""

    NEW = 0
    DECIDING = 1
    CHALLENGED = 2
    OPEN = 3
    CLOSED = 4


Handler = Callable[["Connection", Packet], None]
Table = Mapping[tuple[Phase, PacketType], Handler]
"""What a packet does in a phase. A pair that is not there is a protocol error."""

_PASS_WHILE_WAITING: Final = frozenset(
    (
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.PINGREQ,
    )
)


class Permit:
    """What this connection needs to know to pass on a PUBLISH like one it sent before: the first byte it holds for, the
    route, and whom the same bytes serve."""

    __slots__ = ("header", "other", "route", "same")

    def __init__(self, header: int, route: Route, five: bool) -> None:
        self.header = header
        self.route = route
        self.same = route.plain5 if five else route.plain3
        self.other = route.plain3 if five else route.plain5


class Connection:
    """See the module's text. The shell calls `feed`, `closed`, `pause_writing` and `resume_writing`; the handlers of the
    table use the rest."""

    __slots__ = (
        "alias_maximum", "aliases", "answers", "assigned_id", "bridge", "carried", "chains", "client", "connect",
        "core", "credential_due", "decision", "decisions", "due", "epoch", "excess", "gone", "held", "held_bytes",
        "hold_due", "inbound_aliases", "keep_alive", "legal", "limits", "max_packet_size", "memo", "on_end",
        "partial", "peer", "phase", "problem_information", "re_authenticating", "re_authentication", "reading",
        "receive_maximum", "scope", "seen", "session", "table", "unacknowledged", "version", "waiting", "wanted",
        "wire", "writable",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        wire: Wire,
        peer: Peer,
        scope: Scope,
        table: Table,
        on_end: Callable[["Connection", DisconnectReason], None],
    ) -> None:
        self.core = core
        self.wire = wire
        self.peer = peer
        self.scope = scope
        self.table = table
        self.on_end = on_end
        """Told once, when the connection has ended: sessions and wills are its caller's business."""
        self.chains: Chains = core.chains(scope.name)
        self.limits = core.limits
        self.phase = Phase.NEW
        self.version = 0
        self.legal = legal_headers(0, True)
        self.client: ClientInfo | None = None
        self.session: Session | None = None
        self.epoch = 0
        self.connect: Packet | None = None
        self.assigned_id = False
        self.bridge = False
        """A 3.x bridge: its subscriptions are no-local and keep RETAIN."""
        self.keep_alive = 0.0
        self.seen = core.runtime.now()
        self.due = core.deadlines.after(scope.connect_timeout, self._connect_timeout)
        self.partial: bytearray | None = None
        self.wanted = 0
        """The size of the partial packet; 0 while its header is not whole."""
        self.memo: dict[bytes, Permit] = _NO_MEMO
        self.decisions: Decisions | None = None
        self.decision: Cancel | None = None
        """Stops what `waiting` waits for."""
        self.re_authenticating = False
        self.re_authentication: Cancel | None = None
        self.credential_due: Deadline | None = None
        self.waiting = False
        self.held: deque[tuple[int, bytes]] | None = None
        self.held_bytes = 0
        self.hold_due: Deadline | None = None
        self.reading = True
        self.writable = True
        self.excess = 0
        """Bytes the client sent while it did not read."""
        self.answers: deque[Acknowledgement] | None = None
        self.unacknowledged = 0
        """QoS 1 publishes of the client whose PUBACK has not left."""
        self.receive_maximum = 65535
        self.carried = 0
        """QoS 2 publishes unfinished from an earlier connection: they do not count against this one's maximum."""
        self.max_packet_size = 268435460
        self.problem_information = True
        self.inbound_aliases: dict[int, str] | None = None
        self.aliases: dict[str, int] | None = None
        self.alias_maximum = 0
        self.gone: DisconnectReason | None = None
        """How the transport ended, while what the client sent before its DISCONNECT is still being decided."""

    # --- bytes in --------------------------------------------------------------------------------------------------

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
                            # Equal bytes for all of this version: no DUP, RETAIN or properties, and Remaining Length is
                            # minimal, else `frame` had refused it.
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
                            and self._pass_acknowledged(permit, data, pos, stop, after, qos - 24)
                        ):
                            messages += 1
                            pos = after
                            continue
                elif size == 2 and session is not None:
                    number = data[body] << 8 | data[body + 1]
                    if kind == 0x40:
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
        if not self.legal[header]:
            # [MQTT-2.1.3-1, 3.1.0-1, 3.1.0-2] and the packets only a server sends
            raise refuse_header(header, self.version, True)
        if (self.waiting or self.held is not None) and (
            self.phase is not Phase.OPEN or header >> 4 not in _PASS_WHILE_WAITING
        ):
            self._hold(header, body)
            return
        self._dispatch(header, body)

    def _dispatch(self, header: int, body: bytes) -> None:
        handler = self.table.get((self.phase, _TYPES[header >> 4]))
        if handler is None:
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR,
                f"{_TYPES[header >> 4].name} is not legal now ({self.phase.name})",
            )
        packet = decode(header, body, self.version, self.limits)
        handler(self, packet)

    # --- the hot path's own helpers --------------------------------------------------------------------------------

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
        if qos == 2:
            taken = session.received
            if taken is None:
                taken = session.received = set()
            if (
                number in taken
                or len(taken) + self.unacknowledged >= self.receive_maximum + self.carried
            ):
                return False
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

    def remember(self, topic: bytes, header: int, route: Route) -> None:
        """Let the next PUBLISH with these topic bytes and this first byte take the fast path."""
        core = self.core
        memo = self.memo
        limit = core.settings.broker.authz_cache
        if len(memo) >= limit:
            if not memo:
                return
            del memo[next(iter(memo))]
        elif topic not in memo:
            if core.remembered >= core.settings.broker.authz_cache_total:
                return
            core.remembered += 1
        if memo is _NO_MEMO:
            memo = self.memo = {}
        memo[topic] = Permit(header, route, self.version == 5)

    def forget_decisions(self) -> None:
        """Ask again before anything that was remembered as allowed or denied."""
        self.core.remembered -= len(self.memo)
        self.memo = _NO_MEMO
        if self.decisions is not None:
            self.core.remembered -= len(self.decisions)
            self.decisions = None

    # --- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, cancel: Cancel | None) -> None:
        """Hold what comes until `go_on`; `cancel` stops what is waited for when the client leaves."""
        self.waiting = True
        self.decision = cancel

    def _hold(self, header: int, body: bytes) -> None:
        held = self.held
        if held is None:
            held = self.held = deque()
        held.append((header, body))
        self.held_bytes += len(body) + 2
        if self.held_bytes > self.core.settings.broker.hold_bytes:
            self.stop_reading()

    def stop_reading(self) -> None:
        """Take no more bytes for now. A stopped connection sends no keep-alive that we would see, and does not tell that
        its peer left; so a deadline bounds it."""
        if self.reading and self.phase is not Phase.CLOSED:
            self.reading = False
            self.wire.pause_reading()
            self.hold_due = self.core.deadlines.after(
                self.core.settings.broker.hold_timeout, self._held_too_long
            )

    def go_on_reading(self) -> None:
        """Undo `stop_reading` when neither what is held nor a slow peer stands against it."""
        if self.reading or self.phase is Phase.CLOSED:
            return
        if self.held_bytes > self.core.settings.broker.hold_bytes or self.excess:
            return
        self.reading = True
        if self.hold_due is not None:
            self.hold_due.cancel()
            self.hold_due = None
        self.seen = self.core.runtime.now()
        self.wire.resume_reading()

    def _held_too_long(self) -> None:
        self.hold_due = None
        self.disconnect(ReasonCode.SERVER_BUSY, "waited too long")

    def go_on(self) -> None:
        """What was waited for is there: handle what was held, in order, until something waits again."""
        self.waiting = False
        self.decision = None
        held = self.held
        try:
            while held and not self.waiting and self.phase is not Phase.CLOSED:
                header, body = held.popleft()
                self.held_bytes -= len(body) + 2
                if not self.legal[header]:
                    raise refuse_header(header, self.version, True)
                self._dispatch(header, body)
        except ProtocolError as error:
            self.fail(error)
        except Exception as error:
            self._internal(error)
        if not held:
            self.held = None
            if self.gone is not None and not self.waiting:
                self.end(self.gone)
        self.go_on_reading()

    # --- answers ---------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Put bytes into this turn's write."""
        session = self.session
        if session is not None and session.connection is self:
            session.out.append(data)
            self.core.mark(session)
        elif self.phase is not Phase.CLOSED:
            self.core.metrics.bytes_sent += len(data)
            self.wire.write(data)

    def send_packet(self, packet: Packet) -> None:
        """Encode and send."""
        self.send(encode(packet, self.version))

    def answer(self, acknowledgement: Acknowledgement) -> None:
        """Send `acknowledgement` when its conditions are met and the answers before it have left: acknowledgements keep
        the order of what they acknowledge [MQTT-4.6.0-2, 4.6.0-3]."""
        answers = self.answers
        if not answers and acknowledgement.left == 0:
            self.send(acknowledgement.data)
            return
        if answers is None:
            answers = self.answers = deque()
        answers.append(acknowledgement)
        if acknowledgement.publish:
            self.unacknowledged += 1

    def release(self) -> None:
        """Send the answers that are ready, from the first on."""
        answers = self.answers
        while answers and answers[0].left == 0:
            ready = answers.popleft()
            if ready.publish:
                self.unacknowledged -= 1
            if self.phase is Phase.OPEN:
                self.send(ready.data)
        if not answers:
            self.answers = None

    # --- the client's transport ------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client reads too slowly: what is not urgent waits in its queue."""
        self.writable = False
        session = self.session
        if session is not None and session.connection is self:
            session.state = BEHIND

    def resume_writing(self) -> None:
        """The client caught up."""
        self.writable = True
        self.excess = 0
        session = self.session
        if session is not None and session.connection is self:
            settle_state(session)
            pump(self.core, session)
            self.core.schedule()
        self.go_on_reading()

    # --- the end ---------------------------------------------------------------------------------------------------

    def fail(self, error: ProtocolError) -> None:
        """The client broke the protocol [MQTT-4.13.1-1]: say so if it may be said, and close."""
        self.core.metrics.protocol_errors += 1
        client = self.client
        self.core.runtime.log(
            "info",
            "protocol.error",
            client_id=client.client_id if client is not None else None,
            peer=str(self.peer),
            code=f"0x{error.code:02X}",
            detail=error.detail,
        )
        if self.phase is Phase.OPEN:
            self.disconnect(error.code, error.detail)
        else:
            self.refuse(
                error.code, error.detail, getattr(error, "version", self.version), malformed=True
            )

    def _internal(self, error: Exception) -> None:
        self.core.runtime.log(
            "error",
            "internal.error",
            peer=str(self.peer),
            error=repr(error),
            traceback=error.__traceback__,
        )
        if self.phase is Phase.OPEN:
            self.disconnect(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "internal error")
        else:
            self.end(
                DisconnectReason(
                    ReasonCode.UNSPECIFIED_ERROR, EndedBy.SERVER, error="internal error"
                )
            )

    def refuse(
        self,
        code: ReasonCode,
        reason: str = "",
        version: int = 0,
        properties: Properties = EMPTY,
        malformed: bool = False,
    ) -> None:
        """End a connection that was not accepted: CONNACK where the version has a word for it [MQTT-3.1.4-1, 3.1.4-2],
        silence before CONNECT [MQTT-3.1.0-1] and for a malformed CONNECT of 3.x [MQTT311-3.1.4-1]."""
        if self.phase is Phase.CLOSED:
            return
        self.core.metrics.connections_refused += 1
        version = version or self.version
        if version == 5:
            legal = clamp(PacketType.CONNACK, code)
            if reason:
                properties = properties.replace(reason_string=reason)
            data = encode(Connack(legal, False, properties), 5)  # [MQTT-3.2.2-6]
            if len(data) > self.max_packet_size:
                data = encode(Connack(legal), 5)  # [MQTT-3.2.2-19, 3.2.2-20]
            self.wire.write(data)
        elif code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION and self.phase is Phase.NEW:
            self.wire.write(b"\x20\x02\x00\x01")  # [MQTT311-3.1.2-2]
        elif version and not malformed:
            self.wire.write(encode(Connack(v3_connack(code)), version))
        self.end(DisconnectReason(code, EndedBy.SERVER, error=reason))

    def disconnect(
        self, code: ReasonCode, reason: str = "", reference: str = "", by: EndedBy = EndedBy.SERVER
    ) -> None:
        """End an open connection: DISCONNECT with the reason to MQTT 5, then close [MQTT-3.14.4-2, 4.13.2-1]."""
        if self.phase is Phase.CLOSED:
            return
        if self.phase is not Phase.OPEN:  # [MQTT-3.14.0-1]
            self.refuse(code, reason)
            return
        if self.version == 5:
            legal = clamp(PacketType.DISCONNECT, code)
            given: dict[str, str] = {}
            if reason:
                given["reason_string"] = reason
            if reference:
                given["server_reference"] = reference
            data = encode(Disconnect(legal, Properties(**given)), 5)
            if len(data) > self.max_packet_size:
                data = encode(Disconnect(legal), 5)  # [MQTT-3.14.2-3, 3.14.2-4]
            self.flush()
            if len(data) <= self.max_packet_size:
                self.wire.write(data)
        else:
            self.flush()
        self.end(DisconnectReason(code, by, error=reason))

    def flush(self) -> None:
        """Write now what this turn has for the client: nothing may follow a DISCONNECT [MQTT-3.14.4-1]."""
        session = self.session
        if session is not None and session.connection is self and session.out:
            data = b"".join(session.out)
            session.out.clear()
            self.core.metrics.bytes_sent += len(data)
            self.wire.write(data)

    def closed(self, error: str = "") -> None:
        """The transport has ended, by whatever cause."""
        if self.phase is Phase.CLOSED:
            return
        self.gone = DisconnectReason(ReasonCode.UNSPECIFIED_ERROR, EndedBy.NETWORK, error=error)
        if self.phase is Phase.OPEN and self.held and self.held[-1][0] == _DISCONNECT:
            # It said goodbye, behind something that a plugin still decides: what it sent before is done first.
            self.writable = False
            return
        self.end(self.gone)

    def end(self, reason: DisconnectReason) -> None:
        """The end, once: stop everything that waits, close the transport, hand over to `on_end`."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self.due.cancel()
        if self.hold_due is not None:
            self.hold_due.cancel()
            self.hold_due = None
        if self.credential_due is not None:
            self.credential_due.cancel()
            self.credential_due = None
        for stop in (self.decision, self.re_authentication):
            if stop is not None:
                stop()
        self.decision = self.re_authentication = None
        self.waiting = False
        self.held = None
        self.partial = None
        self.forget_decisions()
        self.answers = None
        self.wire.close()
        self.on_end(self, reason)

    def _connect_timeout(self) -> None:
        # [MQTT-3.14.0-1]: nothing is said to who has not said CONNECT
        if self.phase is Phase.NEW:
            self.end(
                DisconnectReason(
                    ReasonCode.KEEP_ALIVE_TIMEOUT, EndedBy.SERVER, error="no CONNECT in time"
                )
            )

    def watch_keep_alive(self) -> None:
        """Expect a packet within one and a half times the keep alive, from now on [MQTT-3.1.2-22] [MQTT311-3.1.2-24]."""
        self.due.cancel()
        if self.keep_alive:
            self.due = self.core.deadlines.after(self.keep_alive * 1.5, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        if self.phase is not Phase.OPEN:
            return
        silent = self.core.runtime.now() - self.seen
        left = self.keep_alive * 1.5 - silent
        if left > 0 or not self.reading:
            # Reading stopped on our account: the client's packets cannot be seen, so that silence means nothing.
            self.due = self.core.deadlines.after(max(left, 1.0), self._check_keep_alive)
            return
        self.core.metrics.keep_alive_timeouts += 1
        self.disconnect(
            ReasonCode.KEEP_ALIVE_TIMEOUT, "no packet within keep alive", by=EndedBy.NETWORK
        )


_NO_MEMO: Final[dict[bytes, Permit]] = {}
_DISCONNECT: Final = 0xE0
_TYPES: Final = (PacketType.CONNECT, *PacketType)
"""Packet types by number; the reserved 0 never gets here."""
