"""A connection's bytes: packets found in them, handled or held, and the hot path.

The first part of `_read` is the hot path: a PUBLISH whose topic bytes this connection sent before, with the same first
byte, needs no decision any more (`Permit`). At QoS 0 it goes to plain receivers with one dict lookup, as the bytes that
came in; `express` has the rest. Acknowledgements in their short form are settled there too.
"""

from typing import Final

from hookmq.broker.channel import Phase
from hookmq.broker.deliver import pump
from hookmq.broker.express import pass_on, pass_other, queue_one, read_section
from hookmq.broker.link import Link
from hookmq.broker.routes import Permit
from hookmq.broker.send import acknowledged, received
from hookmq.codec import (
    frame,
)
from hookmq.codec.header import refuse_header
from hookmq.errors import ProtocolError
from hookmq.properties import EMPTY, Properties
from hookmq.qos import (
    PACKET_IDS,
    PUBCOMP,
    PUBREL,
    VOLATILE_1,
    VOLATILE_2,
    VOLATILE_RELEASED,
    Outgoing,
)
from hookmq.reason import PacketType, ReasonCode
from hookmq.session import CLEAN, DIRTY

# A module's own constants are found at once where it is compiled, and those of others only by name.
_EMPTY: Final = EMPTY
_PASS_WHILE_WAITING: Final = frozenset(
    (
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.PINGREQ,
    )
)


_READ_BYTES: Final = 65536
_READ_WORK: Final = 256
_READ_DELIVERED: Final = 32768
"""What one connection's bytes may cause in one turn: bytes read, steps of `Core.work`, packets handed on as they came.
The rest waits for the next turn, so that no client holds up the others."""
_RUN_DELIVERED: Final = 104_000
"""Packets that a run of messages may hand on, at most, between which nothing is counted."""


class Connection(Link):
    """See the module's text. The shell calls `feed`, `closed`, `pause_writing` and `resume_writing`."""

    __slots__ = ()

    def feed(self, data: bytes) -> None:
        """Take in bytes of the client. Never raises: a fault of the client ends the connection, a fault of ours is logged
        and ends it too [MQTT311-4.8.0-2]."""
        if self.phase is Phase.CLOSED:
            return
        self.core.metrics.bytes_received += len(data)
        rest = self.rest
        if rest is not None:
            # It came although reading had stopped, as from a transport that had decrypted it by then.
            self.rest = rest[self.rest_at :] + data
            self.rest_at = 0
            return
        self._take_in(data, 0)

    def _take_in(self, data: bytes, pos: int) -> None:
        # Not in `_read_rest`, which looks at `rest` again: mypy believes that no call sets it, and so does mypyc.
        self.rest = None
        try:
            if self.partial is not None:
                whole = self._complete(data)
                if whole is None:
                    return
                data = whole
            self._read(data, pos)
        except ProtocolError as error:
            self.fail(error)
        except Exception as error:
            self._internal(error)

    def _read_on(self) -> None:
        """Take bytes again: first those that had come already when reading stopped, and the wire's only when these are
        used up, or each time that one packet's room is there a whole read would come on top."""
        if self.rest is None:
            self.wire.resume_reading()
        else:
            self.core.runtime.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        rest = self.rest
        if rest is None or not self.reading:
            return
        self._take_in(rest, self.rest_at)
        if self.rest is not None or self.phase is Phase.CLOSED:
            return
        if self.gone is not None:
            self._lost()
        elif self.reading:
            self.wire.resume_reading()

    def _rest_later(self, data: bytes, pos: int) -> None:
        """Read on from `pos` in the next turn: others have their turn first."""
        self.rest = data
        self.rest_at = pos
        self.wire.pause_reading()
        self.core.runtime.call_soon(self._read_rest)

    def _complete(self, data: bytes) -> bytes | None:
        """Join `data` to the partial packet; None while that is still not whole."""
        kept = self.partial
        assert kept is not None
        kept += data
        size = len(kept)
        if size < self.wanted:
            self._check_budget(size)
            return None
        self.partial = None
        return bytes(kept)

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

    def _read(self, data: bytes, pos: int) -> None:
        core = self.core
        metrics = core.metrics
        end = len(data)
        first = pos
        last = end - 1
        if last - pos > _READ_BYTES:
            last = pos + _READ_BYTES
        enough = core.work + _READ_WORK
        packets = messages = delivered = 0
        ways = core.shortcuts
        hot = ways and self.phase is Phase.OPEN and not self.waiting and self.held is None
        five = self.version == 5
        memo = self.memo
        session = self.session
        most = self.limits.max_packet_size
        if self.phase is Phase.NEW:
            most = min(most, self.scope.connect_bytes)
        freed = False
        # From its topic on, where `reach` is not 0: the beginning of the last PUBLISH, the second of its kind in a row.
        known = b""
        reach = 0
        prior: Permit | None = None
        properties: Properties | None = _EMPTY
        behind: Outgoing | None = None
        behind_at = -1
        try:
            while pos < last:
                header = data[pos]
                body = pos + 2
                size = data[pos + 1]
                if size < 128:
                    after = body + size
                else:
                    high = data[body] if body < end else 0
                    if 0 < high < 128:
                        # Two bytes, as nearly all others have, found without a call.
                        body += 1
                        after = body + (size & 127 | high << 7)
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
                        if (
                            reach
                            and header == 0x30
                            and data[body : (start := body + reach)] == known
                            and memo
                        ):
                            # The third of a run and later: topic and properties are as before, rights (`memo`) not lost.
                            permit = prior
                        else:
                            reach = 0
                            name = body + 2
                            stop = name + (data[body] << 8 | data[body + 1])
                            permit = memo.get(data[name:stop])
                        if permit is not None and permit.header == header and permit.route.valid:
                            if not reach:
                                start = stop if header == 0x30 else stop + 2
                                properties = _EMPTY
                                if five:
                                    if start < after and not data[start]:
                                        start += 1
                                    else:
                                        section = permit.section
                                        past = start + len(section)
                                        if section and data[start:past] == section:
                                            properties = permit.properties
                                            start = past
                                        else:
                                            properties = read_section(
                                                self, permit, data, start, after
                                            )
                                            if properties is not None:
                                                start += 1 + data[start]
                            if (
                                start <= after
                                and properties is not None
                                and (permit.charge is None or permit.charge.take(after - body))
                            ):
                                if header == 0x30 and permit.simple:
                                    # Equal bytes for all of this version: no DUP, no RETAIN, properties that belong to
                                    # the message; and Remaining Length is minimal, else `frame` had refused it.
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
                                            if behind_at != pos:
                                                behind_at = pos
                                                behind = None
                                            behind = queue_one(
                                                self, receiver, permit.route, data[start:after], properties, behind,
                                            )  # fmt: skip
                                            delivered -= 1
                                            reach = 0  # this costs more: it is counted
                                    delivered += len(same)
                                    if not reach:
                                        if delivered > _READ_DELIVERED or core.work > enough:
                                            last = pos
                                        if permit.other:
                                            pass_other(
                                                self,
                                                permit,
                                                data[start:after],
                                                data[stop:start],
                                                properties,
                                            )
                                        elif permit is prior:
                                            # The ends of the slice are looked for between messages that do not run:
                                            # the run is bounded as if all its payloads were empty.
                                            if len(same) * (last - pos) <= _RUN_DELIVERED * (
                                                start - pos
                                            ):
                                                reach = start - body
                                                known = data[body:start]
                                        else:
                                            prior = permit
                                    messages += 1
                                    pos = after
                                    continue
                                if pass_on(self, permit, data, pos, stop, start, after, properties):
                                    messages += 1
                                    pos = after
                                    if core.work > enough:
                                        last = pos
                                    continue
                    elif size == 2 and session is not None:
                        number = data[body] << 8 | data[body + 1]
                        if header == 0x40:
                            delivery = session.inflight.get(number)
                            if delivery is VOLATILE_1:
                                del session.inflight[number]
                                freed = True
                                pos = after
                                continue
                            if delivery is not None and delivery.qos == 1:
                                acknowledged(core, session, number, 0)
                                freed = True
                                pos = after
                                continue
                        elif header == 0x50:
                            if session.inflight.get(number) is VOLATILE_2:
                                session.inflight[number] = VOLATILE_RELEASED
                                out = session.out
                                out.append(PUBREL)
                                out.append(PACKET_IDS[number])
                                core.mark(session)
                                pos = after
                                continue
                            if received(core, session, number):
                                pos = after
                                continue
                        elif kind == 0x60:
                            taken = session.received
                            if (
                                header == 0x62
                                and taken is not None
                                and number in taken
                                and not (session.durable and core.recording)
                                and not self.answers
                            ):
                                taken.remove(number)
                                out = session.out
                                out.append(PUBCOMP)
                                out.append(PACKET_IDS[number])
                                core.mark(session)
                                pos = after
                                continue
                        elif header == 0x70 and session.inflight.get(number) is VOLATILE_RELEASED:
                            del session.inflight[number]
                            freed = True
                            pos = after
                            continue
                core.work += 1
                self._take(header, data[body:after])
                pos = after
                # It may have lost every right and got others: a run begins anew.
                reach = 0
                prior = None
                if not self.reading and pos < end and self.phase is not Phase.CLOSED:
                    # What came with it waits as it came: taken apart it would take many times the room.
                    self.rest = data[pos:end]
                    self.rest_at = 0
                    return
                if core.work > enough:
                    last = pos
                most = self.limits.max_packet_size
                if self.phase is Phase.CLOSED:
                    return
                hot = ways and self.phase is Phase.OPEN and not self.waiting and self.held is None
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
                if messages:
                    core.share(pos - first)
        if (
            freed
            and session is not None
            and (session.queued or session.resend or session.backlog or session.groups)
        ):
            pump(core, session)
        if not self.writable and self.gone is None:
            # Who does not read is not read from for ever: else the answers pile up without bound.
            self.excess += pos - first
            if self.excess > core.write_room:
                self.stop_reading()
        if pos < end:
            if pos >= last and end - pos > 1:
                self._rest_later(data, pos)
            else:
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
