"""A plugin client's connection, which passes packets as objects instead of bytes over a socket.

    publish, subscribe -> `pending` -> the handler of each packet type -> reason codes -> `results`
    deliveries -> `inbox` -> `on_message`, or `PluginClient.messages`

Packets from the plugin wait in `pending` until the next turn, so that no hook is called recursively. `plugin_mailbox`
implements the other direction.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from hookmq.broker.batch_forwarding import forward_run
from hookmq.broker.connection import ClientConnection, Table
from hookmq.broker.connection_state import Phase
from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.fast_path import forward_raw
from hookmq.broker.plain_receivers import forward_payload, forward_unencoded, packet_start
from hookmq.broker.plugin_batch import EACH, Batch, BatchPart, Calls
from hookmq.broker.plugin_mailbox import Done, PluginMailbox
from hookmq.broker.publish.fan_out import publish
from hookmq.broker.state import BrokerState
from hookmq.hooks.instance import KeptState
from hookmq.hooks.recursion import DEPTH
from hookmq.hooks.verdicts import Accept
from hookmq.model.client import Peer, Scope
from hookmq.model.events import DisconnectReason, EndedBy
from hookmq.model.message import make_message
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import (
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    new_publish,
)
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import PacketType, ReasonCode, clamp
from hookmq.routing.route import CachedPublish
from hookmq.session.inflight import Acknowledgement
from hookmq.session.session import Session
from hookmq.storage.records import DropReceived

# Compiled code reads a module's own constants directly, and imported ones by name.
_DEPTH: Final = DEPTH
_EMPTY: Final = EMPTY
_OPEN: Final = Phase.OPEN
_READ_WORK: Final = 256
"""Maximum number of steps (`BrokerState.work`) that the client's packets may cause in one turn."""
_PUBACK: Final = PacketType.PUBACK
_SUCCESS: Final = ReasonCode.SUCCESS
_NO_MATCH: Final = ReasonCode.NO_MATCHING_SUBSCRIBERS


Publishing = tuple[str, bytes, int, bool, Properties, Done | None, int]
"""A waiting PUBLISH: topic, payload, QoS, RETAIN, properties, the function to call with the reason code, and
recursion depth.
"""


Pending = Publishing | Calls | Batch | Subscribe | Unsubscribe | Disconnect


class PluginConnection(PluginMailbox):
    """A plugin client's connection."""

    __slots__ = (
        "admitted", "calls", "last_number", "leaving", "on_accepted", "owed", "pending", "pending_bytes", "present",
    )  # fmt: skip

    def __init__(
        self,
        state: BrokerState,
        plugin: str,
        owner: KeptState,
        peer: Peer,
        scope: Scope,
        table: Table,
        on_end: Callable[[ClientConnection, DisconnectReason], None],
    ) -> None:
        super().__init__(state, plugin, owner, peer, scope, table, on_end)
        self.admitted: Accept | None = None
        """The verdict with which the plugin itself accepts the client; None if `on_connect` decides."""
        self.present = False
        """The Session Present flag of CONNACK."""
        self.pending: deque[Pending] = deque()
        """The client's packets that are waiting for the next turn, for a decision, or for Receive Maximum."""
        self.calls: Calls | None = None
        """The last of the pending packets if more messages may be added to it, otherwise None."""
        self.pending_bytes = 0
        self.owed: dict[int, Done | None] = {}
        """The callback that gets the reason code of each packet in progress, by packet id. None if nothing awaits
        the code."""
        self.last_number = 0
        self.on_accepted: Callable[[], None] | None = None
        self.leaving = False
        """Whether the client has asked to be disconnected."""

    # --- what the plugin calls -------------------------------------------------------------------------------------

    def start(self, packet: Connect) -> None:
        """Handle the client's CONNECT."""
        if self.phase is not Phase.NEW:
            return
        try:
            self.table[Phase.NEW, PacketType.CONNECT](self, packet)
        except ProtocolError as error:
            self.fail(error)
        except Exception as error:
            self.internal_error(error)

    def add(self, one: Pending) -> None:
        """Queue `one` for the next turn, after the pending packets."""
        self.calls = None
        self.pending.append(one)

    def number(self, done: Done | None) -> int:
        """Return a free packet id. `done` will be called with the reason code for this id."""
        received = self.session.received if self.session is not None else None
        number = self.last_number
        while True:
            number = number + 1 if number < 65535 else 1
            if number not in self.owed and (received is None or number not in received):
                break
        self.last_number = number
        self.owed[number] = done
        return number

    def own_admission(self) -> tuple[Accept, str] | None:
        """Return the plugin's own verdict on its client, if any, and the plugin's id."""
        return None if self.admitted is None else (self.admitted, self.plugin)

    # --- called by the broker -------------------------------------------------------------------------------------

    def opened(self, present: bool) -> None:
        """Notify the plugin that its client was accepted."""
        self.present = present
        session = self.session
        if session is not None and session.received:
            # QoS 2 publishes that an earlier connection of the session left unfinished: nobody will release them.
            if session.durable and self.state.recording:
                for number in session.received:
                    self.state.committer.add(DropReceived(session.client_id, number))
            session.received.clear()
        self.carried = 0
        if self.on_accepted is not None:
            self.on_accepted()

    def put_reply(self, packet: Suback | Unsuback, reason: str, answer: Acknowledgement) -> None:
        """Make `answer` pass the reason code to the plugin, before any messages that follow SUBACK."""
        then = answer.then

        def settle() -> None:
            self._settle(packet.packet_id, ReasonCode(packet.codes[0]))
            if then is not None:
                then()

        answer.then = settle

    def acknowledge(
        self,
        packet: Publish,
        code: ReasonCode,
        reason: str,
        relies: bool,
        acknowledgement: Acknowledgement | None,
    ) -> None:
        """Pass the reason code of a publish to the plugin, at the point where PUBACK or PUBREC would be sent."""
        qos = packet.qos
        code = clamp(_PUBACK, code)
        if qos == 0:
            self._settle(packet.packet_id, code)
            return
        if acknowledgement is None:
            acknowledgement = Acknowledgement(self.release)
        acknowledgement.publishes = int(qos == 1)
        acknowledgement.then = partial(self._answered, packet.packet_id, qos, code)
        if relies:
            acknowledgement.add_condition()
            self.state.committer.after_commit(acknowledgement.met)
        self.answer(acknowledgement)

    def release(self) -> None:
        """Pass on the reason codes that are ready. Then continue with the packets that were waiting because of Receive
        Maximum.
        """
        super().release()
        if self.pending:
            self.schedule()

    def go_on(self) -> None:
        """Continue with the packets that were waiting for a decision."""
        self.waiting = False
        self.decision = None
        self.go_on_reading()
        if self.pending:
            self.schedule()

    def read_on(self) -> None:
        """Continue with the client's pending packets."""
        self.schedule()

    def closed(self, error: str = "") -> None:
        """End the connection as if the network had failed. If the client is disconnecting, handle its earlier packets
        first.
        """
        if not self.leaving:
            super().closed(error)

    def end(self, reason: DisconnectReason) -> None:
        """End the connection, once, and notify the plugin in the next turn."""
        if self.phase is Phase.CLOSED:
            return
        normal = reason.by is EndedBy.CLIENT and reason.code is ReasonCode.SUCCESS
        session = self.session
        mine = session is not None and session.connection is self
        will = mine and session is not None and session.will is not None and not normal
        super().end(reason)
        self.over = DisconnectReason(reason.code, reason.by, will, reason.error)
        self.lost = [done for done in self.owed.values() if done is not None]
        for one in self.pending:
            if isinstance(one, tuple):
                if one[5] is not None:
                    self.lost.append(one[5])
            elif isinstance(one, Calls):
                self.lost.extend(one.done.values())
            elif isinstance(one, Batch):
                one.abandon()
        self.pending.clear()
        self.calls = None
        self.owed.clear()
        if reason.by is EndedBy.CLIENT:
            self.inbox.clear()
            self.arrived.clear()
        self.schedule()

    # --- one turn --------------------------------------------------------------------------------------------------

    def take_turn(self) -> None:
        self.scheduled = False
        while self.pending and self._may_read():
            first = self.pending[0]
            depth = 1
            if isinstance(first, tuple):
                fields: tuple[Any, ...] = (
                    first  # compiled code would unpack `Publishing` for one field
                )
                depth = fields[6]
            elif isinstance(first, (Batch, Calls)):
                depth = first.depth
            token = _DEPTH.set(depth)  # like `at_depth`, which would be another call
            more = False
            try:
                more = self._guarded_read(depth)
            finally:
                _DEPTH.reset(token)
            if not more:
                break
        if self.results or self.lost:
            self.call_back()
        if self.arrived or self.inbox:
            self.hand_out()
        if self.freed:
            self.freed = False
            session = self.session
            if session is not None and self.phase is Phase.OPEN:
                self.state.guarded(partial(drain_queue, self.state, session))
                self.state.writes.schedule()
        if self.over is not None and not self.scheduled:
            self.say_over(self.over)

    def _may_read(self) -> bool:
        return self.phase is _OPEN and self.reading and not self.waiting

    def _guarded_read(self, depth: int) -> bool:
        try:
            return self._read(depth)
        except ProtocolError as error:
            self.fail(error)
        except Exception as error:
            self.internal_error(error)
        finally:
            self.state.arrived = 0.0
        return False

    def _read(self, depth: int) -> bool:
        """Handle pending packets while their recursion depth is `depth`. Return whether packets of another depth
        follow.
        """
        state = self.state
        pending = self.pending
        enough = state.work + _READ_WORK
        state.writes.schedule()
        while pending and self._may_read():
            if state.work > enough:
                self.schedule()
                return False
            one = pending[0]
            if isinstance(one, Calls):
                if one.depth != depth:
                    return True
                if not self._take_calls(one, enough):
                    return False
                if pending and pending[0] is one:  # a hook may have ended the client
                    pending.popleft()
                    if self.calls is one:
                        self.calls = None
                continue
            if isinstance(one, Batch):
                if one.depth != depth:
                    return True
                if not self._take_batch(one, enough):
                    return False
                if pending and pending[0] is one:  # a hook may have ended the client
                    pending.popleft()
                    self.pending_bytes -= one.size
                continue
            state.work += 1
            if not isinstance(one, tuple):
                pending.popleft()
                self.pending_bytes -= EACH
                self._take_request(one)
                continue
            topic, payload, qos, retain, properties, done, its_depth = one
            if its_depth != depth:
                return True
            if qos and self._window_is_full():
                return False  # `release` continues
            pending.popleft()
            self.pending_bytes -= len(topic) + len(payload) + EACH
            self._publish_one(topic, payload, qos, retain, properties, done)
        return False

    def _publish_one(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties,
        done: Done | None,
    ) -> None:
        try:
            forwarded = self._forward(topic, payload, qos, retain, properties, done)
        except Exception:
            self.number(done)  # so that the end of the connection reaches the plugin
            raise
        if not forwarded:
            self._take_publish(topic, payload, qos, retain, properties, done)

    def _take_calls(self, calls: Calls, enough: int) -> bool:
        """Publish the messages of `calls`, as `_take_batch` does. Return whether all of them have been passed on."""
        state = self.state
        payloads = calls.payloads
        qos = calls.qos
        while calls.at < len(payloads):
            if not self._may_read():
                return False
            if state.work > enough:
                self.schedule()
                return False
            at = calls.at
            cached = self._cached(calls.topic, qos)
            if cached is not None:
                code = _SUCCESS if cached.route.matched else _NO_MATCH
                end = self._forward_run(cached, payloads, at, enough)
                size = 0
                for index in range(at, end):
                    size += len(payloads[index])
                self.pending_bytes -= size + calls.each * (end - at)
                if calls.done:
                    while calls.at < end:
                        done = calls.take()
                        if done is not None:
                            self.results.append((done, code))
                calls.at = end
                continue
            if qos and self._window_is_full():
                return False  # `release` continues
            payload = payloads[at]
            self.pending_bytes -= len(payload) + calls.each
            state.work += 1
            self._publish_one(calls.topic, payload, qos, False, _EMPTY, calls.take())
        return True

    def _cached(self, topic: str, qos: int) -> CachedPublish | None:
        """Return the cached route if messages without RETAIN and properties need no decision, `Message` or record."""
        cached = self.memo.get(topic)
        if (
            cached is not None
            and cached.raw_forwardable
            and cached.header == 0x30 | qos << 1
            and not cached.told
            and cached.publish_limit is None
            and cached.route.valid
            and not cached.route.bounded
            and not (qos and self.answers)
            and self.shortcuts
        ):
            return cached
        return None

    def _forward_run(
        self, cached: CachedPublish, payloads: list[bytes], at: int, enough: int
    ) -> int:
        """Forward messages from index `at` on. Return the index of the first message that was not forwarded."""
        if len(payloads) - at > 1:
            return forward_run(self, cached, payloads, at, enough)
        session = self.session
        assert session is not None
        state = self.state
        qos = cached.header >> 1 & 3
        state.work += 1
        state.metrics.messages_received += 1
        state.metrics.received_qos_sum += qos
        if qos:
            self._forward_encoded(cached, session, payloads[at], qos)
        else:
            forward_payload(self, session, cached, payloads[at])
        return at + 1

    def _take_batch(self, batch: Batch, enough: int) -> bool:
        """Publish the messages of `batch`, until `BrokerState.work` exceeds `enough` or a message must wait. Return
        whether all of them have been passed on.
        """
        state = self.state
        while batch.run < len(batch.runs):
            if not self._may_read():
                return False
            if state.work > enough:
                self.schedule()
                return False
            run = batch.runs[batch.run]
            at = batch.at
            if at == len(run.payloads):
                batch.next()
                continue
            qos = run.qos
            cached = None
            if not run.retain and run.properties is _EMPTY:
                cached = self._cached(run.topic, qos)
            if cached is not None:
                matched = cached.route.matched
                end = self._forward_run(cached, run.payloads, at, enough)
                first = batch.first
                batch.settle(first + at, first + end, _SUCCESS if matched else _NO_MATCH)
                if end == len(run.payloads):
                    batch.next()
                else:
                    batch.at = end
                continue
            if qos and self._window_is_full():
                return False  # `release` continues
            batch.at = at + 1
            state.work += 1
            part = BatchPart(batch, batch.first + at)
            self._publish_one(run.topic, run.payloads[at], qos, run.retain, run.properties, part)
        batch.finish()
        return True

    def _window_is_full(self) -> bool:
        received = self.session.received if self.session is not None else None
        return self.unacknowledged + (len(received) if received else 0) >= self.receive_maximum

    def _take_request(self, packet: Subscribe | Unsubscribe | Disconnect) -> None:
        if isinstance(packet, Disconnect):
            kind = PacketType.DISCONNECT
        else:
            kind = PacketType.SUBSCRIBE if isinstance(packet, Subscribe) else PacketType.UNSUBSCRIBE
        self.table[Phase.OPEN, kind](self, packet)

    def _take_publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties,
        done: Done | None,
    ) -> None:
        number = self.number(done)
        # The Remaining Length, for rate limits by bytes; properties count roughly.
        self.size = len(topic.encode()) + len(payload) + (5 if qos else 3)
        if properties is not _EMPTY:
            self.size += properties.extent()
        packet = new_publish(topic, payload, qos, retain, False, number, properties)
        self.table[Phase.OPEN, PacketType.PUBLISH](self, packet)

    def _forward(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties,
        done: Done | None,
    ) -> bool:
        """Publish a message whose authorization and route are cached. Return False if the handler must process it."""
        cached = self.memo.get(topic)
        if (
            cached is None
            or not cached.route.valid
            or cached.header != 0x30 | qos << 1
            or qos == 2
            or retain
            or properties is not _EMPTY
            or not self.shortcuts
        ):
            return False
        state = self.state
        route = cached.route
        if route.bounded and state.parking.without_room(route.bounded):
            return False
        if route.large and state.collecting is not None:
            return False
        if cached.publish_limit is not None and not cached.publish_limit.take(
            len(topic.encode()) + len(payload) + (5 if qos else 3)
        ):
            return False
        session = self.session
        assert session is not None
        state.metrics.messages_received += 1
        state.metrics.received_qos_sum += qos
        if cached.raw_forwardable and not cached.told and not (qos and self.answers):
            if qos:
                self._forward_encoded(cached, session, payload, qos)
            else:
                forward_payload(self, session, cached, payload)
            if done is not None:
                code = ReasonCode.SUCCESS if route.matched else ReasonCode.NO_MATCHING_SUBSCRIBERS
                self.results.append((done, code))
            return True
        message = make_message(
            topic, payload, qos, False, _EMPTY, session.client_id, "client", state.arrival(), None,
        )  # fmt: skip
        committer = state.committer
        added = committer.added
        acknowledgement = Acknowledgement(self.release, b"", 1) if qos else None
        matched = publish(state, route, message, session, acknowledgement, session.client, None)
        code = ReasonCode.SUCCESS if matched else ReasonCode.NO_MATCHING_SUBSCRIBERS
        if acknowledgement is not None:
            if committer.added != added:
                acknowledgement.add_condition()
                committer.after_commit(acknowledgement.met)
            if acknowledgement.left or self.answers:
                acknowledgement.then = partial(self._settle, self.number(done), code)
                self.answer(acknowledgement)
                return True
        if done is not None:
            self.results.append((done, code))
        return True

    def _forward_encoded(
        self, cached: CachedPublish, session: Session, payload: bytes, qos: int
    ) -> None:
        """Publish a QoS 1 or 2 message that no plugin sees and that needs no record. All receivers share its encoding."""
        route = cached.route
        if not route.plain5 and not route.plain3:
            forward_unencoded(self, route, payload, qos)
            return
        five = bool(route.plain5)
        first = packet_start(cached, len(payload), five)
        data = first + payload
        size = len(data)
        start = len(first)
        stop = start - (3 if five else 2)
        forward_raw(self, session, cached, data, 0, stop, start, size, qos, _EMPTY, None, five)
        self.state.writes.share(size)

    def _answered(self, number: int, qos: int, code: ReasonCode) -> None:
        """Complete a publish. Release the packet id of a QoS 2 publish first, as PUBREL does."""
        session = self.session
        if qos == 2 and code < 0x80 and session is not None and session.received is not None:
            session.received.discard(number)
            if session.durable and self.state.recording:
                self.state.committer.add(DropReceived(session.client_id, number))
                answer = Acknowledgement(self.release)
                answer.then = partial(self._settle, number, code)
                answer.add_condition()
                self.state.committer.after_commit(answer.met)
                self.state.writes.schedule()
                self.answer(answer)
                return
        self._settle(number, code)

    def _settle(self, number: int, code: ReasonCode) -> None:
        done = self.owed.pop(number, None)
        if done is not None:
            self.results.append((done, code))
            self.schedule()
