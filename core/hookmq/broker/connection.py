"""One client's connection at the packet level: its phase, the packets sent to it, and its end.

    NEW --CONNECT--> DECIDING --accepted--> OPEN --> CLOSED
                        |  ^
            AUTH 0x18   v  |  AUTH
                     CHALLENGED

    DECIDING --another node of the cluster has the session--> RELAYED --> CLOSED

While a plugin decides, the broker keeps reading the socket. Packets that could overtake the decision are held in order,
within bounds. Acknowledgements and PINGREQ are still handled. Reading stops only when the bound is reached, and only
for a limited time.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from hookmq.broker.connection_state import ConnectionState, Phase
from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.delivery.delivery_pause import pause_sending
from hookmq.broker.delivery.transmit import update_write_state
from hookmq.broker.replies import (
    encode_acknowledgement,
    encode_disconnect,
    encode_refusal,
    encode_subscription_reply,
)
from hookmq.broker.state import BrokerState
from hookmq.hooks.verdicts import Accept
from hookmq.model.client import Peer, Scope
from hookmq.model.events import DisconnectReason, EndedBy
from hookmq.model.runtime import Wire
from hookmq.mqtt.decoder import decode, decode_publish
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import refuse_header
from hookmq.mqtt.packets import Packet, Publish, Suback, Unsuback
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import PacketType, ReasonCode
from hookmq.session.inflight import PACKET_IDS, PUBACK, PUBREC, Acknowledgement
from hookmq.session.session import QUEUEING

Handler = Callable[["ClientConnection", Packet], None]
Table = Mapping[tuple[Phase, PacketType], Handler]
"""Handlers by phase and packet type. A missing pair is a protocol error."""


class ClientConnection(ConnectionState):
    """One client's connection at the packet level; see the module docstring. `PacketReader` adds the byte level.

    The fields are in `ConnectionState`.
    """

    __slots__ = ("on_end", "table")

    def __init__(
        self,
        state: BrokerState,
        wire: Wire,
        peer: Peer,
        scope: Scope,
        table: Table,
        on_end: Callable[["ClientConnection", DisconnectReason], None],
    ) -> None:
        super().__init__(state, wire, peer, scope)
        self.table = table
        self.on_end = on_end
        """Called once, when the connection has ended. The broker then handles its session and will."""
        self.due = state.deadlines.after(scope.connect_timeout, self.overdue)

    def own_admission(self) -> tuple[Accept, str] | None:
        """Return the verdict that admits the connection, and the id of the plugin that opened it. Return None if
        `on_connect` decides.
        """
        return None

    def send(self, data: bytes) -> None:
        """Append bytes to this turn's write, regardless of the client's quota [MQTT-3.3.4-10, 4.9.0-3]."""
        kind = data[0]
        if (
            kind < 0x40 or kind >= 0x80
        ):  # counting each acknowledgement of a message would cost too much
            self.state.metrics.sent_types[kind >> 4] += 1
        session = self.session
        if session is not None and session.connection is self:
            session.out.append(data)
            self.state.writes.mark(session)
        elif self.phase is not Phase.CLOSED:
            self.traffic.bytes_sent += len(data)
            self.wire.write(data)

    def send_packet(self, packet: Packet) -> None:
        """Encode `packet` and send it."""
        self.send(encode(packet, self.version))

    def opened(self, present: bool) -> None:
        """Finish opening the connection, after CONNACK. `present` is the Session Present flag. Plugin clients override
        this."""

    def put_reply(self, packet: Suback | Unsuback, reason: str, answer: Acknowledgement) -> None:
        """Make `answer` send `packet`, with `reason` as its Reason String if the client wants one and it fits."""
        answer.data = encode_subscription_reply(
            packet, self.version, reason, self.problem_information, self.max_packet_size
        )

    def flush(self) -> None:
        """Write this turn's bytes now, since nothing may follow a DISCONNECT [MQTT-3.14.4-1]."""
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
        fields: dict[str, object] = {
            "peer": str(self.peer),
            "code": int(error.code),
            "detail": error.detail,
        }
        self.state.report("broker.protocol_error", self.scope.name, client, fields)
        if self.phase is Phase.OPEN:
            self.disconnect(error.code, error.detail)
        else:
            self.refuse(
                error.code, error.detail, getattr(error, "version", self.version), malformed=True
            )

    def internal_error(self, error: Exception) -> None:
        """Log an internal error and end the connection, because the client's request will not be
        answered.
        """
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
        if self.relay is not None and self.relay.answered:
            # The client has received an unknown part of another node's packets: no packet can follow.
            self.end(DisconnectReason(code, EndedBy.SERVER, error=reason))
            return
        self.state.metrics.connections_refused += 1
        if not told and not malformed:
            self._tell_refused(code, reason)
        limit = self.max_packet_size
        data = encode_refusal(version or self.version, code, reason, properties, malformed, limit)
        if data:
            self.state.metrics.sent_types[data[0] >> 4] += 1
            self.wire.write(data)
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
        """End an open connection. Send DISCONNECT with the reason to an MQTT 5 client, then close the connection
        [MQTT-3.14.4-2, 4.13.2-1].
        """
        if self.phase is Phase.CLOSED:
            return
        if self.phase is not Phase.OPEN:  # [MQTT-3.14.0-1]
            self.refuse(code, reason)
            return
        if self.version == 5:
            data = encode_disconnect(code, reason, reference, self.max_packet_size)
            self.flush()
            if data:
                self.state.metrics.sent_types[data[0] >> 4] += 1
                self.wire.write(data)
        else:
            self.flush()
        self.end(DisconnectReason(code, by, error=reason))

    def end(self, reason: DisconnectReason) -> None:
        """End the connection, once: release everything that is waiting, close the transport and call `on_end`. Further
        calls do nothing."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self.due.cancel()
        self.let_go()
        self.goodbye = reason.by is EndedBy.CLIENT
        self.wire.close()
        self.on_end(self, reason)

    def overdue(self) -> None:
        """End a connection if CONNECT, the plugins' decision or another node's answer is late. If the connection is open
        by now, check its keep alive instead."""
        if self.phase is Phase.OPEN:
            self._check_keep_alive()
        elif self.phase in (Phase.DECIDING, Phase.CHALLENGED, Phase.RELAYED):
            self.refuse(ReasonCode.SERVER_UNAVAILABLE, "took too long to connect")
        # [MQTT-3.14.0-1]: nothing is sent to a client that has not sent CONNECT
        elif self.phase is Phase.NEW:
            late = ReasonCode.KEEP_ALIVE_TIMEOUT
            self.end(DisconnectReason(late, EndedBy.SERVER, error="no CONNECT in time"))

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
        self.state.metrics.received_types[header >> 4] += 1
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

    def may_send(self) -> bool:
        """Return whether the rate limit permits one more message now. If not, drain the queue once the rate limit
        permits it.
        """
        delivery_limit = self.delivery_limit
        if delivery_limit is None or delivery_limit.ready():
            return True
        pause_sending(self)
        return False

    def _hold(self, header: int, body: bytes) -> None:
        held = self.held
        if held is None:
            held = self.held = deque()
        held.append((header, body))
        self.count_held(len(body) + _HELD)

    def count_held(self, size: int) -> None:
        """Count `size` more bytes held for the client. If too many are held, stop reading."""
        self.held_bytes += size
        if self.held_bytes > self._may_hold():
            self.stop_reading()

    def _may_hold(self) -> int:
        """Return how many bytes may be held now. The limit is lower until the client is accepted."""
        most = self.state.settings.broker.max_held_inbound_bytes
        return most if self.phase is Phase.OPEN else min(most, self.scope.connect_bytes)

    def stop_reading(self) -> None:
        """Stop reading bytes for now. In the meantime, the broker cannot notice PINGREQ or a closed
        connection, so a deadline limits the pause.
        """
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
        if self.held_bytes > self._may_hold() or self.excess or self.owes_much():
            return
        self.reading = True
        if self.hold_due is not None:
            self.hold_due.cancel()
            self.hold_due = None
        self.seen = self.state.runtime.now()
        self.read_on()

    def read_on(self) -> None:
        """Start reading bytes again."""
        self.wire.resume_reading()

    def owes_much(self) -> bool:
        """Return whether more acknowledgements are pending than a correct client could cause."""
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
            self.internal_error(error)
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
            wanted = self.problem_information
            data = encode_acknowledgement(packet, code, reason, wanted, self.max_packet_size)
        if acknowledgement is None:
            acknowledgement = Acknowledgement(self.release)
        acknowledgement.data = data
        acknowledgement.publishes = int(qos == 1)
        if relies:  # [MQTT-4.3.2-4, 4.3.3-8] [MQTT311-4.3.2-2]
            acknowledgement.add_condition()
            self.state.committer.after_commit(acknowledgement.met, True, acknowledgement)
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
        if self.owes_much():
            self.stop_reading()

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
        """Queue messages from now on, because the client is reading too slowly."""
        self.writable = False
        session = self.session
        if session is not None and session.connection is self:
            session.state = QUEUEING
        if self.relay is not None:
            self.relay.pause_writing()

    def resume_writing(self) -> None:
        """Send messages again, because the client has caught up."""
        self.writable = True
        self.excess = 0
        session = self.session
        if session is not None and session.connection is self:
            update_write_state(session)
            self.state.guarded(partial(drain_queue, self.state, session))
            self.state.writes.schedule()
        if self.relay is not None:
            self.relay.resume_writing()
        self.go_on_reading()

    def closed(self, error: str = "") -> None:
        """Clean up after the transport has closed for any reason."""
        if self.phase is Phase.CLOSED:
            return
        self.gone = DisconnectReason(ReasonCode.UNSPECIFIED_ERROR, EndedBy.NETWORK, error=error)
        if self.rest is not None and self.reading and self.phase is not Phase.RELAYED:
            self.excess = 0  # the client's reading no longer matters
            return  # bytes sent before the end are still read, a slice per turn
        self._lost()

    def _lost(self) -> None:
        """End the connection after its transport has closed and all received bytes have been read."""
        assert self.gone is not None
        if self.phase is Phase.OPEN and self.held and self.held[-1][0] == _DISCONNECT:
            # The client sent DISCONNECT after a packet on which a plugin has yet to decide. Handle the packets before
            # it first. The client may be silent meanwhile.
            self.due.cancel()
            self.writable = False
            return
        self.state.guarded(partial(self.end, self.gone))


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
"""Maximum number of steps (`BrokerState.work`) that held packets may cause in one turn."""
_HELD: Final = 64
"""Overhead in bytes to count for each held packet, because its Python objects take memory too."""
_ANSWERS: Final = 1024
"""How many acknowledgements may be pending beyond Receive Maximum, such as those of subscriptions."""


_TYPES: Final = (PacketType.CONNECT, *PacketType)
"""Packet types by number; the reserved number 0 is rejected earlier."""
