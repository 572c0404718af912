"""The way to one client: what is sent to it, how long it may be silent, and the end, which comes once.

Nothing is received here: `Link` adds what the client says and what waits for it, `Connection` the bytes.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from hookmq.broker.core import Core
from hookmq.codec import Connack, Disconnect, Packet, encode
from hookmq.errors import ProtocolError
from hookmq.hooks.chains import Chains
from hookmq.properties import EMPTY, Properties
from hookmq.reason import PacketType, ReasonCode, clamp, v3_connack
from hookmq.runtime import Wire
from hookmq.session import ConnectionView, Session
from hookmq.types import Action, ClientInfo, DisconnectReason, EndedBy, Peer, Scope

LARGEST_PACKET: Final = 268435460
"""Bytes of the largest packet that MQTT knows."""


class Phase(IntEnum):
    """Where a connection stands."""

    NEW = 0
    DECIDING = 1
    CHALLENGED = 2
    OPEN = 3
    CLOSED = 4


class Channel(ConnectionView):
    """See the module's text."""

    __slots__ = (
        "chains", "client", "core", "due", "goodbye", "keep_alive", "on_end", "peer", "phase", "reading", "scope", "seen",
        "session", "version",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        wire: Wire,
        peer: Peer,
        scope: Scope,
        on_end: Callable[["Channel", DisconnectReason], None],
    ) -> None:
        self.core = core
        self.wire = wire
        self.peer = peer
        self.scope = scope
        self.on_end = on_end
        """Told once, when the connection has ended: sessions and wills are its caller's business."""
        self.use_chains(core.chains(scope.name))
        self.phase = Phase.NEW
        self.version = 0
        self.client: ClientInfo | None = None
        self.session: Session | None = None
        self.max_packet_size = LARGEST_PACKET
        self.problem_information = True
        self.goodbye = False
        """Whether the client said that it leaves: it sends nothing more [MQTT-3.14.4-1] [MQTT311-3.14.4-2]."""
        self.reading = True
        """Whether bytes of the client are taken in; see `Link.stop_reading`."""
        self.keep_alive = 0.0
        self.seen = core.runtime.now()
        self.due = core.deadlines.after(scope.connect_timeout, self.overdue)

    @property
    def accepted(self) -> bool:
        """Whether the client was let in."""
        return self.phase is Phase.OPEN

    def use_chains(self, chains: Chains) -> None:
        """Go by these hook chains from now on."""
        self.chains = chains
        self.delivers = bool(chains.on_deliver or chains.authorize[Action.DELIVER])
        """Whether a plugin has a say in each delivery to this client."""

    def rechain(self) -> None:
        """Look its hook chains up again."""
        chains = self.core.chains(self.scope.name)
        if chains is not self.chains:
            self.use_chains(chains)

    def send(self, data: bytes) -> None:
        """Put bytes into this turn's write, whatever the client's quota [MQTT-3.3.4-10, 4.9.0-3]."""
        session = self.session
        if session is not None and self.carries(session):
            session.out.append(data)
            self.core.mark(session)
        elif self.phase is not Phase.CLOSED:
            self.core.metrics.bytes_sent += len(data)
            self.wire.write(data)

    def carries(self, session: Session) -> bool:
        """Whether it is still this connection that `session` sends through."""
        return session.connection is self

    def send_packet(self, packet: Packet) -> None:
        """Encode and send."""
        self.send(encode(packet, self.version))

    def flush(self) -> None:
        """Write now what this turn has for the client: nothing may follow a DISCONNECT [MQTT-3.14.4-1]."""
        session = self.session
        if session is not None and session.out and self.carries(session):
            self.core.write(session)

    def fail(self, error: ProtocolError) -> None:
        """The client broke the protocol [MQTT-4.13.1-1] [MQTT311-4.8.0-1]: say so if it may be said, and close."""
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
        """End a connection that was not accepted: CONNACK if the version has a word for it [MQTT-3.1.4-1, 3.1.4-2],
        silence before CONNECT [MQTT-3.1.0-1] and for a malformed CONNECT of 3.x [MQTT311-3.1.4-1].

        Log ``connect.refused`` and tell `on_auth_failed`, unless the caller has `told` of it already. A malformed
        packet is logged as ``protocol.error``."""
        if self.phase is Phase.CLOSED:
            return
        self.core.metrics.connections_refused += 1
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
            # [MQTT311-3.1.2-2]: an unknown version is told; an unknown protocol name (version 0) is not MQTT
            self.wire.write(encode(Connack(v3_connack(code)), version))
        # [MQTT-3.2.2-7] [MQTT311-3.2.2-5]
        self.end(DisconnectReason(code, EndedBy.SERVER, error=reason))

    def _tell_refused(self, code: ReasonCode, reason: str) -> None:
        client = self.client
        if client is None:
            return
        self.core.runtime.log(
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
        self.core.observe("on_auth_failed", client, code, reason)

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

    def end(self, reason: DisconnectReason) -> None:
        """The end, once: let go of everything that waits, close the transport, hand over to `on_end`."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self.due.cancel()
        self._let_go()
        self.goodbye = reason.by is EndedBy.CLIENT
        self.wire.close()
        self.on_end(self, reason)

    def _let_go(self) -> None:
        """Stop what waits; part of the end."""

    def overdue(self) -> None:
        """By now the client must have said CONNECT, and whoever decides must have decided. Of one that got in meanwhile
        the keep alive is looked at from now on."""
        if self.phase is Phase.OPEN:
            self._check_keep_alive()
        elif self.phase in (Phase.DECIDING, Phase.CHALLENGED):
            self.refuse(ReasonCode.SERVER_UNAVAILABLE, "took too long to connect")
        # [MQTT-3.14.0-1]: nothing is said to who has not said CONNECT
        elif self.phase is Phase.NEW:
            self.end(
                DisconnectReason(
                    ReasonCode.KEEP_ALIVE_TIMEOUT, EndedBy.SERVER, error="no CONNECT in time"
                )
            )

    def watch_keep_alive(self) -> None:
        """Expect a packet within one and a half times the keep alive, from now on [MQTT-3.1.2-22] [MQTT311-3.1.2-24]."""
        silence = self.keep_alive * 1.5
        if silence and self.due.call is not None and self.due.when <= self.seen + silence:
            # The deadline for getting in comes before, and looks: who leaves soon needs no other.
            return
        self.due.cancel()
        if silence:
            self.due = self.core.deadlines.after(silence, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        if self.phase is not Phase.OPEN:
            return
        silent = self.core.runtime.now() - self.seen
        left = self.keep_alive * 1.5 - silent
        if left > 0 or not self.reading:
            # Reading stopped on our account: the client's packets cannot be seen, so that silence means nothing.
            again = max(left, 0.01 if self.reading else 1.0)
            self.due = self.core.deadlines.after(again, self._check_keep_alive)
            return
        self.core.metrics.keep_alive_timeouts += 1
        self.disconnect(
            ReasonCode.KEEP_ALIVE_TIMEOUT, "no packet within keep alive", by=EndedBy.NETWORK
        )
