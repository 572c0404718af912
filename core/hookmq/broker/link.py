"""One client's connection, above its bytes: its phase, what it waits for, its answers in order, its end.

    NEW --CONNECT--> DECIDING --accepted--> OPEN --> CLOSED
                        |  ^
            AUTH 0x18   v  |  AUTH
                     CHALLENGED

Waiting holds PUBLISH, not the socket: while a decision is pending, packets that could overtake it are held in order and
in bounds; acknowledgements and PINGREQ are handled all the same. Only when the bound is reached does reading stop, for a
time.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from hookmq.aliases import Aliases
from hookmq.broker.authorizer import Decisions
from hookmq.broker.channel import Channel, Phase
from hookmq.broker.core import Core
from hookmq.broker.deadlines import Deadline
from hookmq.broker.deliver import pump
from hookmq.broker.routes import Permit, Route
from hookmq.broker.send import settle_state
from hookmq.codec import (
    Packet,
    decode,
)
from hookmq.codec.header import legal_headers, refuse_header
from hookmq.errors import ProtocolError
from hookmq.hooks.meter import Meter, Pace
from hookmq.properties import Properties
from hookmq.qos import (
    Acknowledgement,
)
from hookmq.reason import PacketType, ReasonCode
from hookmq.router import LONG_TOPIC
from hookmq.runtime import Cancel, Wire
from hookmq.session import BEHIND
from hookmq.types import (
    DisconnectReason,
    EndedBy,
    Peer,
    Scope,
)

Handler = Callable[["Link", Packet], None]


Table = Mapping[tuple[Phase, PacketType], Handler]
"""What a packet does in a phase. A pair that is not there is a protocol error."""


class Link(Channel):
    """One client's connection above its bytes; see the module's text. `Connection` adds those."""

    __slots__ = (
        "answers", "assigned_id", "authentication_data", "bridge", "carried", "connect", "credential_due", "decision",
        "decisions", "epoch", "excess", "gone", "held", "held_bytes", "hold_due", "inbound_aliases", "legal", "limits",
        "max_expiry", "memo", "meter", "offered", "opening", "paced", "parked", "partial", "re_authenticating",
        "re_authentication", "receive_maximum", "rest", "rest_at", "sections", "size", "table", "unacknowledged",
        "waiting", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        wire: Wire,
        peer: Peer,
        scope: Scope,
        table: Table,
        on_end: Callable[[Channel, DisconnectReason], None],
    ) -> None:
        super().__init__(core, wire, peer, scope, on_end)
        self.table = table
        self.meter: Meter | None = None
        """How much it may publish and subscribe; None for no limit."""
        self.pace: Pace | None = None
        """How fast messages may leave for it; None for no limit."""
        self.paced: Cancel | None = None
        """Stops waiting for `pace`; None where nothing waits for it."""
        self.size = 0
        """The Remaining Length of the packet in hand."""
        self.limits = core.limits
        self.offered = core.settings.broker
        """What CONNACK promised: it holds for the connection, whatever a reload changes."""
        self.legal = legal_headers(0, True)
        self.epoch = 0
        self.connect: Packet | None = None
        self.assigned_id = False
        self.bridge = False
        """A 3.x bridge: its subscriptions are no-local and keep RETAIN."""
        self.partial: bytearray | None = None
        self.wanted = 0
        """The size of the partial packet; 0 while its header is not whole."""
        self.rest: bytes | None = None
        self.rest_at = 0
        """Where in `rest`, bytes that came and wait for a later turn, the next packet begins."""
        self.memo: dict[bytes, Permit] = NO_MEMO
        self.decisions: Decisions | None = None
        self.decision: Cancel | None = None
        """Stops what `waiting` waits for."""
        self.authentication_data: bytes | None = None
        """The last word of an authentication exchange, for CONNACK."""
        self.re_authenticating = False
        self.re_authentication: Cancel | None = None
        self.credential_due: Deadline | None = None
        self.waiting = False
        self.held: deque[tuple[int, bytes]] | None = None
        self.held_bytes = 0
        self.parked: set[int] | None = None
        """Ids of its QoS 2 publishes that wait for room in a journal; None until any publish had to."""
        self.hold_due: Deadline | None = None
        self.writable = True
        self.excess = 0
        """Bytes the client sent while it did not read."""
        self.answers: deque[Acknowledgement] | None = None
        self.unacknowledged = 0
        """QoS 1 publishes of the client whose PUBACK has not left."""
        self.receive_maximum = 65535
        self.opening = False
        """Whether it has a session whose messages wait for its CONNACK."""
        self.carried = 0
        """QoS 2 publishes unfinished from an earlier connection: they do not count against this one's maximum."""
        self.max_expiry = 0.0
        """Longest session expiry that is granted to this client, at CONNECT and at DISCONNECT."""
        self.inbound_aliases: dict[int, str] | None = None
        self.sections: dict[bytes, Properties] | None = None
        """Property sections of publishes, by their bytes."""
        self.aliases: Aliases | None = None
        self.alias_maximum = 0
        self.gone: DisconnectReason | None = None
        """How the transport ended, while what the client sent before its DISCONNECT is still being decided."""

    def _dispatch(self, header: int, body: bytes) -> None:
        handler = self.table.get((self.phase, _TYPES[header >> 4]))
        if handler is None:
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR,
                f"{_TYPES[header >> 4].name} is not legal now ({self.phase.name})",
            )
        packet = decode(header, body, self.version, self.limits)
        self.size = len(body)
        handler(self, packet)

    def remember(
        self, topic: bytes, header: int, route: Route, simple: bool, kept: bool = False
    ) -> None:
        """Let the next PUBLISH with these topic bytes and this first byte take the fast path."""
        core = self.core
        memo = self.memo
        if self.phase is not Phase.OPEN or len(topic) > LONG_TOPIC:
            return
        if topic not in memo:
            if len(memo) >= core.settings.broker.authz_cache:
                if not memo:
                    return
                del memo[next(iter(memo))]
            elif core.remembered >= core.settings.broker.authz_cache_total:
                return
            else:
                core.remembered += 1
        if memo is NO_MEMO:
            memo = self.memo = {}
        charge = self.meter.charge(route.topic) if self.meter is not None else None
        memo[topic] = Permit(header, route, self.version == 5, simple, charge, kept)

    def use_meter(self, meter: Meter | None) -> None:
        """Be measured by `meter` from now on. A PUBLISH that waits goes on when the meter before lets it."""
        self.meter = meter
        self.pace = meter.pace if meter is not None else None
        paced, self.paced = self.paced, None
        if paced is not None:
            paced()
            self._go_on_sending()

    def may_send(self) -> bool:
        """Whether its meter lets one message more leave now; else its messages wait in the session's queue until it
        does."""
        pace = self.pace
        if pace is None or pace.ready():
            return True
        session = self.session
        if self.paced is None and session is not None:
            session.paused += 1
            settle_state(session)
            self.paced = pace.wait(partial(self.core.guarded, self._go_on_sending))
        return False

    def _go_on_sending(self) -> None:
        self.paced = None
        session = self.session
        if session is None:
            return
        session.paused -= 1
        if not session.paused:
            settle_state(session)
            pump(self.core, session)
            self.core.schedule()

    def forget_decisions(self) -> None:
        """Ask again before anything that was remembered as allowed or denied."""
        if self.memo:
            self.core.remembered -= len(self.memo)
            self.memo.clear()  # the dict itself: the packets of this turn are read with it in hand
            self.memo = NO_MEMO
        if self.decisions is not None:
            self.core.remembered -= self.decisions.forget()
            self.decisions = None

    def wait(self, cancel: Cancel | None) -> None:
        """Hold what comes until `go_on`; `cancel` stops what is waited for when the client leaves."""
        self.waiting = True
        self.decision = cancel

    def _hold(self, header: int, body: bytes) -> None:
        held = self.held
        if held is None:
            held = self.held = deque()
        held.append((header, body))
        self.hold_bytes(len(body) + _HELD)

    def hold_bytes(self, size: int) -> None:
        """Count bytes that are held for the client, and stop reading if they are too many."""
        self.held_bytes += size
        if self.held_bytes > self._may_hold():
            self.stop_reading()

    def _may_hold(self) -> int:
        """Bytes of packets that may be held now; less of a client that was not accepted yet."""
        most = self.core.settings.broker.hold_bytes
        return most if self.phase is Phase.OPEN else min(most, self.scope.connect_bytes)

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
        if self.held_bytes > self._may_hold() or self.excess or self._owes_much():
            return
        self.reading = True
        if self.hold_due is not None:
            self.hold_due.cancel()
            self.hold_due = None
        self.seen = self.core.runtime.now()
        self._read_on()

    def _read_on(self) -> None:
        """Take bytes again."""
        self.wire.resume_reading()

    def _owes_much(self) -> bool:
        """Whether more answers wait, for a commit say, than a client has use for."""
        most = self.receive_maximum + _ANSWERS
        return self.unacknowledged > most or (self.answers is not None and len(self.answers) > most)

    def _held_too_long(self) -> None:
        self.hold_due = None
        self.disconnect(ReasonCode.SERVER_BUSY, "waited too long")

    def go_on(self) -> None:
        """What was waited for is there: handle what was held, in order, until something waits again or it is enough for
        one turn."""
        self.waiting = False
        self.decision = None
        held = self.held
        core = self.core
        enough = core.work + _HELD_WORK
        try:
            while held and not self.waiting and self.phase is not Phase.CLOSED:
                if core.work > enough:
                    self.wait(None)
                    core.runtime.call_soon(self._go_on_again)
                    return
                core.work += 1
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

    def answer(self, acknowledgement: Acknowledgement) -> None:
        """Send `acknowledgement` when its conditions are met and the answers before it have left: acknowledgements keep
        the order of what they acknowledge [MQTT-4.6.0-2, 4.6.0-3]."""
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
        """Have the newest answer that waits say `data` as well, the answer to so many publishes that waits for the commit
        that collects and for nothing else, if it waits for that one too: so a burst costs one answer. False if it must
        wait by itself."""
        answers = self.answers
        if not answers:
            return False
        last = answers[-1]
        if last.then is not None or len(last.data) >= _JOINED:
            return False
        if not self.core.committer.still_last(last.met):
            return False
        last.data += data
        last.publishes += publishes
        self.unacknowledged += publishes
        if self._owes_much():
            self.stop_reading()
        return True

    def release(self) -> None:
        """Send the answers that are ready, from the first on."""
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
            self.core.guarded(partial(pump, self.core, session))
            self.core.schedule()
        self.go_on_reading()

    def closed(self, error: str = "") -> None:
        """The transport has ended, by whatever cause."""
        if self.phase is Phase.CLOSED:
            return
        self.gone = DisconnectReason(ReasonCode.UNSPECIFIED_ERROR, EndedBy.NETWORK, error=error)
        if self.rest is not None and self.reading:
            self.excess = 0  # nothing waits for it to read any more
            return  # what it sent before its end is still being read, a slice a turn
        self._lost()

    def _lost(self) -> None:
        """End with the transport, now that all that came is read."""
        assert self.gone is not None
        if self.phase is Phase.OPEN and self.held and self.held[-1][0] == _DISCONNECT:
            # It said goodbye, behind something that a plugin still decides: what it sent before is done first. More
            # is not to come, so that silence is no fault.
            self.due.cancel()
            self.writable = False
            return
        self.core.guarded(partial(self.end, self.gone))

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
        if self.paced is not None:
            self.paced()
            self.paced = None
            if self.session is not None:
                self.session.paused -= 1
        self.meter = self.pace = None
        self.waiting = False
        self.held = None
        self.partial = None
        self.rest = None
        self.forget_decisions()
        self.answers = None
        if self.parked is not None:
            self.core.parking.leave(self)
        session = self.session
        if self.opening and session is not None:
            self.opening = False
            session.paused -= 1
            # It is kept once the connection is accepted [MQTT-3.1.2-7], and it never was.
            session.will = None


NO_MEMO: Final[dict[bytes, Permit]] = {}


_DISCONNECT: Final = 0xE0
_HELD_WORK: Final = 256
"""Steps (`Core.work`) that packets which were held may cause in one turn."""
_HELD: Final = 64
"""Bytes that holding a packet takes besides its body: two bytes on the wire must not count as two."""
_JOINED: Final = 1024
"""Bytes of answers above which the next one is not joined to them."""
_ANSWERS: Final = 1024
"""Answers that may wait besides those to publishes."""


_TYPES: Final = (PacketType.CONNECT, *PacketType)
"""Packet types by number; the reserved 0 never gets here."""
