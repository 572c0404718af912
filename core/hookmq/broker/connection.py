"""One client's connection at the packet level: its phase, the packets sent to it, and its end.

    NEW --CONNECT--> DECIDING --accepted--> OPEN --> CLOSED
                        |  ^
            AUTH 0x18   v  |  AUTH
                     CHALLENGED

While a plugin decides, the broker keeps reading the socket. Packets that could overtake the decision are held in order,
within bounds. Acknowledgements and PINGREQ are still handled. Reading stops only when the bound is reached, and only
for a limited time.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial
from math import inf
from typing import Final

from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.delivery.transmit import update_write_state
from hookmq.broker.publish.authorize import Decisions
from hookmq.broker.state import BrokerState
from hookmq.broker.timers import Deadline
from hookmq.hooks.chain import Chains, narrow
from hookmq.hooks.inline import inline_calls
from hookmq.hooks.rate_limit import DeliveryLimit, RateLimiter
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.events import Action, DisconnectReason, EndedBy
from hookmq.model.message import Message
from hookmq.model.runtime import Cancel, Wire
from hookmq.mqtt.decoder import decode, decode_publish
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import legal_headers, refuse_header
from hookmq.mqtt.packet_limits import LARGEST_PACKET
from hookmq.mqtt.packets import (
    Connack,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Unsuback,
)
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import PacketType, ReasonCode, clamp, v3_connack
from hookmq.routing.route import CachedPublish, Route
from hookmq.routing.subscription_tree import LONG_TOPIC
from hookmq.session.inflight import PACKET_IDS, PUBACK, PUBREC, Acknowledgement
from hookmq.session.session import QUEUEING, ConnectionView, Session
from hookmq.session.topic_aliases import TopicAliases


class Phase(IntEnum):
    """The phase of a connection."""

    NEW = 0
    DECIDING = 1
    CHALLENGED = 2
    OPEN = 3
    CLOSED = 4


Handler = Callable[["ClientConnection", Packet], None]


Table = Mapping[tuple[Phase, PacketType], Handler]
"""Handlers by phase and packet type. A missing pair is a protocol error."""


class ClientConnection(ConnectionView):
    """One client's connection at the packet level; see the module docstring. `PacketReader` adds the byte level.

    It is one long class on purpose. Compiled code reads a class's attributes by position, and every additional object
    per connection costs memory for each idle client.
    """

    __slots__ = (
        "answers",
        "assigned_id",
        "authentication_data",
        "bridge",
        "carried",
        "chains",
        "client",
        "connect",
        "credential_due",
        "decision",
        "decisions",
        "delivery_wait",
        "due",
        "excess",
        "generation",
        "gone",
        "goodbye",
        "held",
        "held_bytes",
        "hold_due",
        "inbound_aliases",
        "keep_alive",
        "legal",
        "limits",
        "max_expiry",
        "memo",
        "offered",
        "on_end",
        "opening",
        "parked",
        "partial",
        "peer",
        "phase",
        "rate_limiter",
        "re_authenticating",
        "re_authentication",
        "reading",
        "receive_maximum",
        "rest",
        "rest_at",
        "scope",
        "sections",
        "seen",
        "session",
        "size",
        "state",
        "table",
        "unacknowledged",
        "version",
        "waiting",
        "wanted",
    )  # fmt: skip

    def __init__(
        self,
        state: BrokerState,
        wire: Wire,
        peer: Peer,
        scope: Scope,
        table: Table,
        on_end: Callable[["ClientConnection", DisconnectReason], None],
    ) -> None:
        # Long on purpose: it documents every field.
        self.state = state
        self.wire = wire
        self.peer = peer
        self.scope = scope
        self.on_end = on_end
        """Called once, when the connection has ended. The broker then handles its session and will."""
        self.use_chains(state.chains(scope.name))
        self.phase = Phase.NEW
        self.version = 0
        self.client: ClientInfo | None = None
        self.session: Session | None = None
        self.max_packet_size = LARGEST_PACKET
        self.problem_information = True
        self.goodbye = False
        """Whether the client sent DISCONNECT: nothing may follow it [MQTT-3.14.4-1] [MQTT311-3.14.4-2]."""
        self.in_process = False
        self.reading = True
        """Whether bytes from the client are read; see `stop_reading`."""
        self.keep_alive = 0.0
        self.seen = state.runtime.now()
        self.due = state.deadlines.after(scope.connect_timeout, self.overdue)
        self.table = table
        self.rate_limiter: RateLimiter | None = None
        """The limit on publishes and subscriptions; None for no limit."""
        self.delivery_limit: DeliveryLimit | None = None
        """The limit on deliveries; None for no limit."""
        self.delivery_wait: Cancel | None = None
        """Stops waiting for `delivery_limit`; None if nothing waits."""
        self.size = 0
        """The Remaining Length of the current packet."""
        self.limits = state.limits
        self.offered = state.settings.broker
        """The limits that CONNACK announced. They hold for the connection, even after a reload."""
        self.legal = legal_headers(0, True)
        self.generation = 0
        self.connect: Packet | None = None
        self.assigned_id = False
        self.bridge = False
        """Whether the client is a 3.x bridge: its subscriptions are no-local and keep RETAIN."""
        self.partial: bytearray | None = None
        self.wanted = 0
        """The size of the partial packet; 0 until its header is complete."""
        self.rest: bytes | None = None
        self.rest_at = 0
        """The start of the next packet in `rest`, the bytes received for a later turn."""
        self.memo: dict[bytes | str, CachedPublish] = NO_MEMO
        """The topics that may take the fast path: as bytes, or as text for a plugin's client."""
        self.decisions: Decisions | None = None
        self.decision: Cancel | None = None
        """Cancels the decision for which `waiting` is set."""
        self.authentication_data: bytes | None = None
        """The last data of an authentication exchange, for CONNACK."""
        self.re_authenticating = False
        self.re_authentication: Cancel | None = None
        self.credential_due: Deadline | None = None
        self.waiting = False
        self.held: deque[tuple[int, bytes]] | None = None
        self.held_bytes = 0
        self.parked: set[int] | None = None
        """Packet ids of the client's QoS 2 publishes that wait for room in a journal; None if none has ever waited."""
        self.hold_due: Deadline | None = None
        self.writable = True
        self.excess = 0
        """Bytes the client sent while it was not reading."""
        self.answers: deque[Acknowledgement] | None = None
        self.unacknowledged = 0
        """The client's QoS 1 publishes that have no PUBACK yet."""
        self.receive_maximum = 65535
        self.opening = False
        """Whether the session's messages wait for CONNACK to be sent."""
        self.carried = 0
        """QoS 2 publishes that an earlier connection left unfinished. They do not count towards Receive Maximum."""
        self.max_expiry = 0.0
        """The longest session expiry granted to this client, in seconds."""
        self.inbound_aliases: dict[int, str] | None = None
        self.sections: dict[bytes, Properties] | None = None
        """Decoded property sections of PUBLISH packets, by their bytes."""
        self.aliases: TopicAliases | None = None
        self.alias_maximum = 0
        self.gone: DisconnectReason | None = None
        """How the transport ended, if packets received before its end still await a decision."""

    @property
    def accepted(self) -> bool:
        """Whether the client was accepted."""
        return self.phase is Phase.OPEN

    def use_chains(self, chains: Chains) -> None:
        """Use these hook chains from now on."""
        self.chains = chains
        self.delivers = bool(chains.on_deliver or chains.authorize[Action.DELIVER])
        """Whether a plugin decides on each delivery to this client."""

    def rechain(self) -> None:
        """Look up the listener's hook chains again."""
        chains = self.state.chains(self.scope.name)
        if chains is not self.chains:
            self.use_chains(chains)

    def send(self, data: bytes) -> None:
        """Append bytes to this turn's write, regardless of the client's quota [MQTT-3.3.4-10, 4.9.0-3]."""
        session = self.session
        if session is not None and session.connection is self:
            session.out.append(data)
            self.state.writes.mark(session)
        elif self.phase is not Phase.CLOSED:
            self.state.metrics.bytes_sent += len(data)
            self.wire.write(data)

    def send_packet(self, packet: Packet) -> None:
        """Encode `packet` and send it."""
        self.send(encode(packet, self.version))

    def opened(self, present: bool) -> None:
        """Do the work after CONNACK that depends on the kind of connection. `present` is the Session Present flag."""

    def put_reply(self, packet: Suback | Unsuback, reason: str, answer: Acknowledgement) -> None:
        """Make `answer` send `packet`, with `reason` as its Reason String if the client wants one and it fits."""
        answer.data = encode(packet, self.version)
        # [MQTT-3.1.2-29]
        if self.version == 5 and reason and self.problem_information:
            properties = packet.properties.replace(reason_string=reason)
            with_reason = encode(replace(packet, properties=properties), 5)
            if len(with_reason) <= self.max_packet_size:  # [MQTT-3.9.2-1, 3.9.2-2]
                answer.data = with_reason

    def flush(self) -> None:
        """Write this turn's bytes now: nothing may follow a DISCONNECT [MQTT-3.14.4-1]."""
        session = self.session
        if session is not None and session.out and session.connection is self:
            self.state.writes.write(session)

    def fail(self, error: ProtocolError) -> None:
        """End the connection of a client that broke the protocol. Report the error if the phase allows it
        [MQTT-4.13.1-1] [MQTT311-4.8.0-1]."""
        self.state.metrics.protocol_errors += 1
        client = self.client
        self.state.runtime.log(
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
        self.state.runtime.log(
            "error",
            "internal.error",
            peer=str(self.peer),
            error=repr(error),
            traceback=error,
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
        told: bool = False,
    ) -> None:
        """End a connection that was not accepted.

        Send CONNACK if the version has a code for it [MQTT-3.1.4-1, 3.1.4-2]. Send nothing before CONNECT
        [MQTT-3.1.0-1], nor after a malformed 3.x CONNECT [MQTT311-3.1.4-1].

        Log ``connect.refused`` and call `on_auth_failed`, unless the caller has already done both (`told`). A malformed
        packet is logged as ``protocol.error``.
        """
        if self.phase is Phase.CLOSED:
            return
        self.state.metrics.connections_refused += 1
        if not told and not malformed:
            self._tell_refused(code, reason)
        version = version or self.version
        if version == 5:
            legal = clamp(PacketType.CONNACK, code)
            if reason:
                properties = properties.replace(reason_string=reason)
            data = encode(Connack(legal, False, properties), 5)  # [MQTT-3.2.2-6]
            if len(data) > self.max_packet_size:
                data = encode(Connack(legal), 5)  # [MQTT-3.2.2-19, 3.2.2-20]
            if len(data) <= self.max_packet_size:  # [MQTT-3.1.2-24]
                self.wire.write(data)
        elif version and (not malformed or code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION):
            # [MQTT311-3.1.2-2]: reply to an unknown version. An unknown protocol name (version 0) is not MQTT.
            self.wire.write(encode(Connack(v3_connack(code)), version))
        # [MQTT-3.2.2-7] [MQTT311-3.2.2-5]
        self.end(DisconnectReason(code, EndedBy.SERVER, error=reason))

    def _tell_refused(self, code: ReasonCode, reason: str) -> None:
        client = self.client
        if client is None:
            return
        self.state.runtime.log(
            "info",
            "connect.refused",
            client_id=client.client_id,
            username=client.username,
            peer=str(self.peer),
            listener=self.scope.name,
            version=client.version,
            code=f"0x{code:02X}",
            reason=reason,
        )
        self.state.observe("on_auth_failed", client, code, reason)

    def disconnect(
        self, code: ReasonCode, reason: str = "", reference: str = "", by: EndedBy = EndedBy.SERVER
    ) -> None:
        """End an open connection: send DISCONNECT with the reason to MQTT 5, then close [MQTT-3.14.4-2, 4.13.2-1]."""
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

    def end(self, reason: DisconnectReason) -> None:
        """End the connection, once: release everything that waits, close the transport and call `on_end`."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self.due.cancel()
        self._let_go()
        self.goodbye = reason.by is EndedBy.CLIENT
        self.wire.close()
        self.on_end(self, reason)

    def overdue(self) -> None:
        """End a connection if CONNECT or the plugins' decision is late. If the connection is open by now, check its
        keep alive instead."""
        if self.phase is Phase.OPEN:
            self._check_keep_alive()
        elif self.phase in (Phase.DECIDING, Phase.CHALLENGED):
            self.refuse(ReasonCode.SERVER_UNAVAILABLE, "took too long to connect")
        # [MQTT-3.14.0-1]: nothing is sent to a client that has not sent CONNECT
        elif self.phase is Phase.NEW:
            self.end(
                DisconnectReason(
                    ReasonCode.KEEP_ALIVE_TIMEOUT, EndedBy.SERVER, error="no CONNECT in time"
                )
            )

    def watch_keep_alive(self) -> None:
        """Expect a packet within one and a half times the keep alive [MQTT-3.1.2-22] [MQTT311-3.1.2-24]."""
        silence = self.keep_alive * 1.5
        if silence and self.due.call is not None and self.due.when <= self.seen + silence:
            # The handshake deadline is due first and checks the keep alive. A client that disconnects early then needs
            # no second timer.
            return
        self.due.cancel()
        if silence:
            self.due = self.state.deadlines.after(silence, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        if self.phase is not Phase.OPEN:
            return
        silent = self.state.runtime.now() - self.seen
        left = self.keep_alive * 1.5 - silent
        if left > 0 or not self.reading:
            # The broker has stopped reading, so silence does not prove that the client is gone.
            again = max(left, 0.01 if self.reading else 1.0)
            self.due = self.state.deadlines.after(again, self._check_keep_alive)
            return
        self.state.metrics.keep_alive_timeouts += 1
        self.disconnect(
            ReasonCode.KEEP_ALIVE_TIMEOUT, "no packet within keep alive", by=EndedBy.NETWORK
        )

    def take(self, header: int, body: bytes) -> None:
        """Handle one packet, or hold it while a decision is pending."""
        if self.phase is Phase.CLOSED:
            return
        if not self.legal[header]:
            # [MQTT-2.1.3-1, 3.1.0-1, 3.1.0-2]; packets that only a server sends are refused too
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
        if header >> 4 == _PUBLISH:
            packet: Packet = decode_publish(header, body, self.version, self.limits)
        else:
            packet = decode(header, body, self.version, self.limits)
        self.size = len(body)
        handler(self, packet)

    def remember(self, packet: Publish, message: Message, route: Route) -> None:
        """Let the next PUBLISH like `packet` take the fast path along `route`. Every plugin that decided on this packet
        permitted it without a time limit, and none changed it."""
        state = self.state
        session = self.session
        topic = message.topic
        qos = packet.qos
        if session is None or self.phase is not Phase.OPEN or not route.valid:
            return
        if packet.retain or packet.dup or topic != packet.topic or len(topic) > LONG_TOPIC:
            return
        if packet.properties is not EMPTY and packet.properties.topic_alias is not None:
            return
        chain = self.chains.authorize[Action.PUBLISH]
        if chain and narrow(chain, topic):
            if self.decisions is None:
                return
            known = self.decisions.get((Action.PUBLISH, topic, qos, False))
            if known is None or known[2] != inf:
                return
        calls = self.chains.on_publish
        if calls:
            applying = inline_calls(calls, topic)
            if applying is None or (applying and self.in_process):
                return  # the shortcut of a plugin client calls no hooks
            calls = applying
        told = "on_published" in state.observed and state.hooks.observers.wants(
            "on_published", self.scope.name, topic
        )
        raw = topic not in state.fan_outs
        durable = False
        if qos == 0:
            raw = raw and route.simple
        else:
            raw = raw and state.settings.session.inflight_overflow == "pending"
            durable = raw and route.single_durable and qos == 1 and state.recording
            raw = raw and route.volatile and not (qos == 2 and session.durable)
        key: bytes | str = topic if self.in_process else topic.encode()
        if len(key) <= LONG_TOPIC and self._make_room_to_remember(key):
            publish_limit = (
                self.rate_limiter.publish_limit(route.topic)
                if self.rate_limiter is not None
                else None
            )
            self.memo[key] = CachedPublish(
                0x30 | qos << 1, route, self.version == 5, raw, publish_limit, durable, calls, told
            )

    def _make_room_to_remember(self, topic: bytes | str) -> bool:
        """Return whether one more fast path may be remembered, after dropping this connection's oldest one if
        needed."""
        state = self.state
        memo = self.memo
        if topic not in memo:
            if len(memo) >= state.settings.broker.authz_cache:
                if not memo:
                    return False
                del memo[next(iter(memo))]
            elif state.remembered >= state.settings.broker.authz_cache_total:
                return False
            else:
                state.remembered += 1
        if memo is NO_MEMO:
            self.memo = {}
        return True

    def use_rate_limiter(self, rate_limiter: RateLimiter | None) -> None:
        """Use `rate_limiter` as the rate limit from now on. A PUBLISH that already waits still waits for the previous
        rate limit."""
        self.rate_limiter = rate_limiter
        self.delivery_limit = rate_limiter.delivery_limit if rate_limiter is not None else None
        delivery_wait, self.delivery_wait = self.delivery_wait, None
        if delivery_wait is not None:
            delivery_wait()
            self._go_on_sending()

    def may_send(self) -> bool:
        """Return whether the rate limit permits one more message now. If not, drain the queue once the rate limit
        permits it.
        """
        delivery_limit = self.delivery_limit
        if delivery_limit is None or delivery_limit.ready():
            return True
        session = self.session
        if self.delivery_wait is None and session is not None:
            session.paused += 1
            update_write_state(session)
            self.delivery_wait = delivery_limit.wait(
                partial(self.state.guarded, self._go_on_sending)
            )
        return False

    def _go_on_sending(self) -> None:
        self.delivery_wait = None
        session = self.session
        if session is None:
            return
        session.paused -= 1
        if not session.paused:
            update_write_state(session)
            drain_queue(self.state, session)
            self.state.writes.schedule()

    def forget_decisions(self) -> None:
        """Forget all remembered decisions, so that plugins are asked again."""
        if self.memo:
            self.state.remembered -= len(self.memo)
            self.memo.clear()  # Clear the dict in place: `_read` holds a reference to it for this turn.
            self.memo = NO_MEMO
        if self.decisions is not None:
            self.state.remembered -= self.decisions.forget()
            self.decisions = None
        self.sections = None  # a reload may check what the fast path took unchecked

    def wait(self, cancel: Cancel | None) -> None:
        """Hold packets until `go_on` is called. `cancel` cancels the decision if the client disconnects."""
        self.waiting = True
        self.decision = cancel

    def _hold(self, header: int, body: bytes) -> None:
        held = self.held
        if held is None:
            held = self.held = deque()
        held.append((header, body))
        self.count_held(len(body) + _HELD)

    def count_held(self, size: int) -> None:
        """Count bytes that are held for the client, and stop reading if there are too many."""
        self.held_bytes += size
        if self.held_bytes > self._may_hold():
            self.stop_reading()

    def _may_hold(self) -> int:
        """Return how many bytes may be held now; fewer before the client is accepted."""
        most = self.state.settings.broker.max_held_inbound_bytes
        return most if self.phase is Phase.OPEN else min(most, self.scope.connect_bytes)

    def stop_reading(self) -> None:
        """Read no more bytes for now. Meanwhile the broker cannot notice PINGREQ or a closed connection, so a deadline
        limits the pause."""
        if self.reading and self.phase is not Phase.CLOSED:
            self.reading = False
            self.wire.pause_reading()
            self.hold_due = self.state.deadlines.after(
                self.state.settings.broker.hold_timeout, self._held_too_long
            )

    def go_on_reading(self) -> None:
        """Resume reading, unless held packets or a slow client still prevent it."""
        if self.reading or self.phase is Phase.CLOSED:
            return
        if self.held_bytes > self._may_hold() or self.excess or self._owes_much():
            return
        self.reading = True
        if self.hold_due is not None:
            self.hold_due.cancel()
            self.hold_due = None
        self.seen = self.state.runtime.now()
        self._read_on()

    def _read_on(self) -> None:
        """Resume reading bytes."""
        self.wire.resume_reading()

    def _owes_much(self) -> bool:
        """Whether more acknowledgements are pending than a client can expect."""
        most = self.receive_maximum + _ANSWERS
        return self.unacknowledged > most or (self.answers is not None and len(self.answers) > most)

    def _held_too_long(self) -> None:
        self.hold_due = None
        self.disconnect(ReasonCode.SERVER_BUSY, "waited too long")

    def go_on(self) -> None:
        """Handle the held packets in order, until one needs a decision or the turn's share of work is used up."""
        self.waiting = False
        self.decision = None
        held = self.held
        state = self.state
        enough = state.work + _HELD_WORK
        try:
            while held and not self.waiting and self.phase is not Phase.CLOSED:
                if state.work > enough:
                    self.wait(None)
                    state.runtime.call_soon(self._go_on_again)
                    return
                state.work += 1
                header, body = held.popleft()
                self.held_bytes -= len(body) + _HELD
                if not self.legal[header]:
                    raise refuse_header(header, self.version, True)
                self._dispatch(header, body)
        except ProtocolError as error:
            self.fail(error)
        except Exception as error:
            self._internal(error)
        if not held:
            self.held = None
            if self.gone is not None and not self.waiting and self.rest is None:
                self.end(self.gone)
        self.go_on_reading()

    def _go_on_again(self) -> None:
        if self.waiting and self.phase is not Phase.CLOSED:
            self.go_on()

    def acknowledge(
        self,
        packet: Publish,
        code: ReasonCode,
        reason: str,
        relies: bool,
        acknowledgement: Acknowledgement | None,
    ) -> None:
        """Acknowledge `packet` with PUBACK or PUBREC; send nothing for QoS 0.

        Sending waits for the conditions of `acknowledgement`, and for the commit if `relies` is true.
        """
        qos = packet.qos
        if qos == 0:
            return
        if self.version < 5 or (code is ReasonCode.SUCCESS and not reason):
            # [MQTT-2.2.1-5] [MQTT311-2.3.1-6]
            data = (PUBACK if qos == 1 else PUBREC) + PACKET_IDS[packet.packet_id]
        else:
            code = clamp(PacketType.PUBACK if qos == 1 else PacketType.PUBREC, code)
            if not self.problem_information:  # [MQTT-3.1.2-29]
                reason = ""
            make = Puback if qos == 1 else Pubrec
            data = encode(make(packet.packet_id, code, Properties(reason_string=reason or None)), 5)
            if len(data) > self.max_packet_size:  # [MQTT-3.4.2-2, 3.4.2-3, 3.5.2-2, 3.5.2-3]
                data = encode(make(packet.packet_id, code), 5)
        if acknowledgement is None:
            acknowledgement = Acknowledgement(self.release)
        acknowledgement.data = data
        acknowledgement.publishes = int(qos == 1)
        if relies:  # [MQTT-4.3.2-4, 4.3.3-8] [MQTT311-4.3.2-2]
            acknowledgement.hold()
            self.state.committer.after_commit(acknowledgement.met)
        self.answer(acknowledgement)

    def answer(self, acknowledgement: Acknowledgement) -> None:
        """Send `acknowledgement` when its conditions are met and all earlier ones are sent. Acknowledgements keep the
        order of the packets they acknowledge [MQTT-4.6.0-2, 4.6.0-3]."""
        answers = self.answers
        if not answers and acknowledgement.left == 0:
            self.send(acknowledgement.data)
            if acknowledgement.then is not None:
                acknowledgement.then()
            return
        if answers is None:
            answers = self.answers = deque()
        answers.append(acknowledgement)
        self.unacknowledged += acknowledgement.publishes
        if self._owes_much():
            self.stop_reading()

    def join(self, data: bytes, publishes: int) -> bool:
        """Append `data`, which acknowledges `publishes` publishes, to the last pending acknowledgement if both wait for
        the same commit. A burst then needs only one write. Return False if `data` must wait separately."""
        answers = self.answers
        if not answers:
            return False
        last = answers[-1]
        if last.then is not None or len(last.data) >= _JOINED:
            return False
        if not self.state.committer.still_last(last.met):
            return False
        last.data += data
        last.publishes += publishes
        self.unacknowledged += publishes
        if self._owes_much():
            self.stop_reading()
        return True

    def release(self) -> None:
        """Send the acknowledgements that are ready, in order."""
        answers = self.answers
        while answers and answers[0].left == 0:
            ready = answers.popleft()
            self.unacknowledged -= ready.publishes
            if self.phase is Phase.OPEN:
                self.send(ready.data)
                if ready.then is not None:
                    ready.then()
        if not answers:
            self.answers = None
        if not self.reading:
            self.go_on_reading()

    def pause_writing(self) -> None:
        """Queue messages from now on: the client reads too slowly."""
        self.writable = False
        session = self.session
        if session is not None and session.connection is self:
            session.state = QUEUEING

    def resume_writing(self) -> None:
        """Send messages again: the client has caught up."""
        self.writable = True
        self.excess = 0
        session = self.session
        if session is not None and session.connection is self:
            update_write_state(session)
            self.state.guarded(partial(drain_queue, self.state, session))
            self.state.writes.schedule()
        self.go_on_reading()

    def closed(self, error: str = "") -> None:
        """Clean up after the transport has closed, whatever the cause."""
        if self.phase is Phase.CLOSED:
            return
        self.gone = DisconnectReason(ReasonCode.UNSPECIFIED_ERROR, EndedBy.NETWORK, error=error)
        if self.rest is not None and self.reading:
            self.excess = 0  # the client's reading no longer matters
            return  # bytes sent before the end are still read, a slice per turn
        self._lost()

    def _lost(self) -> None:
        """End the connection after its transport, now that all received bytes are read."""
        assert self.gone is not None
        if self.phase is Phase.OPEN and self.held and self.held[-1][0] == _DISCONNECT:
            # The client sent DISCONNECT after a packet on which a plugin has yet to decide. Handle the packets before
            # it first. The client may be silent meanwhile.
            self.due.cancel()
            self.writable = False
            return
        self.state.guarded(partial(self.end, self.gone))

    def _let_go(self) -> None:
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
        if self.delivery_wait is not None:
            self.delivery_wait()
            self.delivery_wait = None
            if self.session is not None:
                self.session.paused -= 1
        self.rate_limiter = self.delivery_limit = None
        self.waiting = False
        self.held = None
        self.partial = None
        self.rest = None
        self.forget_decisions()
        self.answers = None
        if self.parked is not None:
            self.state.parking.leave(self)
        session = self.session
        if self.opening and session is not None:
            self.opening = False
            session.paused -= 1
            # A will is stored once the connection is accepted [MQTT-3.1.2-7]. This one never was.
            session.will = None


NO_MEMO: Final[dict[bytes | str, CachedPublish]] = {}


_PASS_WHILE_WAITING: Final = frozenset(
    (
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.PINGREQ,
    )
)
_DISCONNECT: Final = 0xE0
_PUBLISH: Final = 3
_HELD_WORK: Final = 256
"""Steps (`BrokerState.work`) that held packets may cause in one turn."""
_HELD: Final = 64
"""Bytes that a held packet counts in addition to its body: the objects around it take memory too."""
_JOINED: Final = 1024
"""Bytes of joined acknowledgements from which the next one is sent separately."""
_ANSWERS: Final = 1024
"""Acknowledgements that may wait in addition to Receive Maximum, such as those of subscriptions."""


_TYPES: Final = (PacketType.CONNECT, *PacketType)
"""Packet types by number; the reserved number 0 is rejected earlier."""
