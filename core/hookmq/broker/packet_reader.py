"""Read a connection's bytes: find the packets and forward those that the fast path allows.

The first part of `_read` is the fast path for PUBLISH. It applies if the connection has sent the same first byte and
topic before, so that authorization and route are cached (`CachedPublish`). At QoS 0 one dict lookup finds the plain
receivers, which get the received bytes unchanged. `fast_path` handles the other cases. Short acknowledgements are
handled here too.
"""

from typing import Final

from hookmq.broker.client_relay import ClientRelay
from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.broker.delivery.completion import acknowledged, record_pubrec
from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.fast_path import FORWARDED, REFUSED, forward, read_section
from hookmq.broker.plain_receivers import deliver_to_one, forward_to_others, hand_over_run
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import frame, refuse_header
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.routing.route import CachedPublish
from hookmq.session.inflight import (
    PACKET_IDS,
    PUBCOMP,
    PUBREL,
    VOLATILE_1,
    VOLATILE_2,
    VOLATILE_RELEASED,
    Outgoing,
)
from hookmq.session.session import IDLE, PENDING

# Compiled code reads a module's own constants directly, and imported ones by name.
_EMPTY: Final = EMPTY
_READ_BYTES: Final = 65536
_READ_WORK: Final = 256
_READ_DELIVERED: Final = 32768
"""The maximum amount of work that one connection's bytes may cause per turn, counted in bytes read, steps of
`BrokerState.work` and packets forwarded as received. The rest waits for the next turn, so that no client holds up the
others.
"""
_RUN_DELIVERED: Final = 104_000
"""How many packets a run of identical messages may forward before they count as work."""


class PacketReader(ClientConnection):
    """Reads a connection's packets. The server calls `feed`, `closed`, `pause_writing` and `resume_writing`."""

    __slots__ = ()

    def feed(self, data: bytes) -> None:
        """Read bytes from the client. Never raises an exception. A client error ends the connection. An internal error
        does too, and is logged [MQTT311-4.8.0-2].
        """
        if self.phase is Phase.CLOSED:
            return
        self.traffic.bytes_received += len(data)
        writes = self.state.writes
        if writes.sampling:
            writes.begin_sample()
        rest = self.rest
        if rest is not None:
            if self.relay is not None:
                self._pass_on(self.relay, data)
                return
            # The transport delivered bytes after reading stopped, as TLS may.
            self.rest = rest[self.rest_at :] + data
            self.rest_at = 0
            return
        self._take_in(data, 0)

    def _pass_on(self, relay: ClientRelay, data: bytes) -> None:
        try:
            relay.feed(data)
        except Exception as error:
            self.internal_error(error)

    def _take_in(self, data: bytes, pos: int) -> None:
        # Do not inline this in `_read_rest`, which tests `rest` again: mypy and mypyc assume that no call sets it.
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
            self.internal_error(error)

    def read_on(self) -> None:
        """Resume reading. Process buffered bytes before reading the socket; otherwise each resume adds a full chunk
        to the backlog."""
        if self.rest is None:
            self.wire.resume_reading()
        else:
            self.state.runtime.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        rest = self.rest
        if rest is None or not self.reading or self.relay is not None:
            return
        self._take_in(rest, self.rest_at)
        if self.rest is not None or self.phase is Phase.CLOSED:
            return
        if self.gone is not None:
            self._lost()
        elif self.reading:
            self.wire.resume_reading()

    def _rest_later(self, data: bytes, pos: int) -> None:
        """Continue from `pos` in the next turn, after the other connections."""
        self.rest = data
        self.rest_at = pos
        self.wire.pause_reading()
        self.state.runtime.call_soon(self._read_rest)

    def _complete(self, data: bytes) -> bytes | None:
        """Append `data` to the partial packet. Return the packet, or None if it is still incomplete."""
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
        """Enforce `connect_bytes`, the limit on what a client may send before it is accepted. Until CONNECT is complete,
        refuse any excess. While a decision is pending, leave the excess unread.
        """
        if self.phase is Phase.OPEN or size + self.held_bytes <= self.scope.connect_bytes:
            return
        if self.phase is not Phase.DECIDING:
            raise ProtocolError(
                ReasonCode.PACKET_TOO_LARGE, "too large before CONNECT was accepted"
            )
        self.stop_reading()

    def _read(self, data: bytes, pos: int) -> None:
        # Long on purpose: the fast path for PUBLISH and acknowledgements is inline. A call per packet, or attributes
        # instead of local names, would slow down every message.
        state = self.state
        metrics = state.metrics
        end = len(data)
        first = pos
        last = end - 1
        if last - pos > _READ_BYTES:
            last = pos + _READ_BYTES
        enough = state.work + _READ_WORK
        packets = messages = delivered = 0
        # Packets by type and QoS are derived from these in the `finally` block: most packets are counted only once.
        handled = releases = received = completes = levels = 0
        ways = self.shortcuts
        hot = ways and self.phase is Phase.OPEN and not self.waiting and self.held is None
        five = self.version == 5
        memo = self.memo
        session = self.session
        most = self.limits.max_packet_size
        if self.phase is Phase.NEW:
            most = min(most, self.scope.connect_bytes)
            if self.relay is not None:
                self.relay.keep(data, pos)
        freed = False
        continued = False
        # A run is a series of messages with equal topic and properties. `known` holds the shared bytes and `reach`
        # their length, 0 if there is no run. `named` is the length of the topic plus its length field.
        known = b""
        reach = named = 0
        prior: CachedPublish | None = None
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
                        # Nearly all other packets have two length bytes: decode these without a call.
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
                            # From the third message of a run on, topic and properties are equal and permissions
                            # (`memo`) still hold.
                            cached = prior
                        else:
                            reach = 0
                            name = body + 2
                            stop = name + (data[body] << 8 | data[body + 1])
                            cached = memo.get(data[name:stop])
                        if cached is not None and cached.header == header and cached.route.valid:
                            if not reach:
                                start = stop if header == 0x30 else stop + 2
                                properties = _EMPTY
                                if five:
                                    if start < after and not data[start]:
                                        start += 1
                                    else:
                                        section = cached.section
                                        past = start + len(section)
                                        if section and data[start:past] == section:
                                            properties = cached.properties
                                            start = past
                                        else:
                                            properties = read_section(
                                                self, cached, data, start, after
                                            )
                                            if properties is not None:
                                                start += 1 + data[start]
                            if (
                                start <= after
                                and properties is not None
                                and (
                                    cached.publish_limit is None
                                    or cached.publish_limit.take(after - body)
                                )
                            ):
                                if header == 0x30 and cached.raw_forwardable:
                                    # All receivers of this version get equal bytes: no DUP, no RETAIN, no properties
                                    # for one hop only. `frame` has refused a Remaining Length that is not minimal.
                                    same = cached.same_version
                                    packet = data[pos:after]
                                    for receiver in same:
                                        write_state = receiver.state
                                        if write_state == PENDING:
                                            receiver.out.append(packet)
                                        elif write_state == IDLE:
                                            receiver.state = PENDING
                                            state.writes.dirty.append(receiver)
                                            receiver.out.append(packet)
                                        else:
                                            if behind_at != pos:
                                                behind_at = pos
                                                behind = None
                                            behind = deliver_to_one(
                                                self, receiver, cached.route, data[start:after], properties, behind,
                                            )  # fmt: skip
                                            delivered -= 1
                                            reach = 0  # more expensive, so count it
                                    delivered += len(same)
                                    for remote in cached.remotes:
                                        assert session is not None
                                        remote.add(session.client_id, five, packet)
                                    if not reach:
                                        if delivered > _READ_DELIVERED or state.work > enough:
                                            last = pos
                                        if cached.others:
                                            forward_to_others(
                                                self, cached, data[start:after], properties
                                            )
                                            if cached is not prior:
                                                prior = cached
                                            elif not (same or cached.told or cached.other_version):
                                                run = hand_over_run(
                                                    self, cached, data, pos, start, after, last, enough, properties
                                                )  # fmt: skip
                                                packets += run
                                                messages += run
                                                after += run * (after - pos)
                                        elif cached is prior:
                                            # The slice limit is checked between runs: a run's length is limited as if
                                            # its payloads were empty. Messages for observers are counted one by one.
                                            if not cached.told and len(same) * (
                                                last - pos
                                            ) <= _RUN_DELIVERED * (start - pos):
                                                reach = start - body
                                                known = data[body:start]
                                        else:
                                            prior = cached
                                        if cached.told:
                                            assert session is not None
                                            state.work += 1
                                            state.writes.later.append(
                                                (session.client, cached.route, data[start:after], 0, properties, None)
                                            )  # fmt: skip
                                    messages += 1
                                    pos = after
                                    continue
                                if reach:
                                    stop = body + named
                                way = forward(
                                    self, cached, data, pos, stop, start, after, properties
                                )
                                if way == FORWARDED:
                                    if header == 0x30 and not reach:
                                        if cached is prior:
                                            reach = start - body
                                            known = data[body:start]
                                            named = stop - body
                                        else:
                                            prior = cached
                                    levels += header & 6
                                    messages += 1
                                    pos = after
                                    if state.work > enough:
                                        last = pos
                                    continue
                                continued = way != REFUSED
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
                                acknowledged(state, session, number, 0)
                                freed = True
                                pos = after
                                continue
                        elif header == 0x50:
                            if session.inflight.get(number) is VOLATILE_2:
                                received += 1
                                session.inflight[number] = VOLATILE_RELEASED
                                out = session.out
                                out.append(PUBREL)
                                out.append(PACKET_IDS[number])
                                state.writes.mark(session)
                                pos = after
                                continue
                            if record_pubrec(state, session, number):
                                received += 1
                                pos = after
                                continue
                        elif kind == 0x60:
                            taken = session.received
                            if (
                                header == 0x62
                                and taken is not None
                                and number in taken
                                and not (session.durable and state.recording)
                                and not self.answers
                            ):
                                releases += 1
                                taken.remove(number)
                                out = session.out
                                out.append(PUBCOMP)
                                out.append(PACKET_IDS[number])
                                state.writes.mark(session)
                                pos = after
                                continue
                        elif header == 0x70 and session.inflight.get(number) is VOLATILE_RELEASED:
                            completes += 1
                            del session.inflight[number]
                            freed = True
                            pos = after
                            continue
                if continued:
                    continued = False
                    levels += header & 6
                    messages += 1
                else:
                    handled += 1
                    state.work += 1
                    self.take(header, data[body:after])
                pos = after
                # The handler may have changed permissions: start a new run.
                reach = 0
                prior = None
                if not self.reading and pos < end and self.phase is not Phase.CLOSED:
                    # Keep the remaining bytes as received: as separate packets they would take many times the memory.
                    self.rest = data[pos:end]
                    self.rest_at = 0
                    return
                if state.work > enough:
                    last = pos
                most = self.limits.max_packet_size
                if self.phase is Phase.CLOSED or self.rest is not None:
                    return  # in the latter case, `relay` has the remaining bytes
                hot = ways and self.phase is Phase.OPEN and not self.waiting and self.held is None
                five = self.version == 5
                memo = self.memo
                session = self.session
        finally:
            # Even after a malformed packet or DISCONNECT, count and write the packets before it.
            if packets:
                self.seen = state.runtime.now()
                state.arrived = 0.0
                metrics.packets_received += packets
                metrics.messages_received += messages
                metrics.messages_delivered += delivered
                if packets != handled:
                    types = metrics.received_types
                    types[3] += messages
                    types[4] += packets - messages - handled - received - releases - completes
                    if received or releases or completes:
                        types[5] += received
                        types[6] += releases
                        types[7] += completes
                    metrics.received_qos_sum += levels >> 1
                if (state.writes.dirty or state.writes.later) and not state.writes.scheduled:
                    state.writes.schedule()
                if messages:
                    state.writes.share(pos - first)
        if (
            freed
            and session is not None
            and (session.queued or session.resend or session.backlog or session.groups)
        ):
            drain_queue(state, session)
        if not self.writable and self.gone is None:
            # Limit how much is read from a client that does not read: its acknowledgements would pile up.
            self.excess += pos - first
            if self.excess > state.writes.room:
                self.stop_reading()
        if pos < end:
            if pos >= last and end - pos > 1:
                self._rest_later(data, pos)
            else:
                self._keep(data, pos, end)

    def _keep(self, data: bytes, pos: int, end: int) -> None:
        """Keep an incomplete packet. Refuse it at once if its header is wrong or the packet would be too large."""
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
