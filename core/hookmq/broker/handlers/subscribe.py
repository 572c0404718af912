"""Handle SUBSCRIBE and UNSUBSCRIBE, and send retained messages after SUBACK.

The filters of a SUBSCRIBE are handled one after the other, as if each had its own packet [MQTT-3.8.4-5]
[MQTT311-3.8.4-4]. SUBACK is sent once all of them are committed, before any retained message.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from hookmq.broker.connection import ClientConnection
from hookmq.broker.delivery.deliver import WAITING, Found, drain_queue
from hookmq.broker.handlers.established import session_of
from hookmq.broker.handlers.subscription_pipeline import SubscriptionPipeline, check, unavailable
from hookmq.broker.retained_expiry import Kept
from hookmq.broker.sessions.subscriptions import remove
from hookmq.broker.sources import may_be_sent
from hookmq.broker.state import BrokerState
from hookmq.hooks.verdicts import Deny
from hookmq.model.events import Action
from hookmq.model.subscription import Subscription
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import Packet, Suback, Subscribe, SubscribeRequest, Unsuback, Unsubscribe
from hookmq.mqtt.primitives import encode_varint
from hookmq.mqtt.reason_codes import PacketType, ReasonCode, clamp
from hookmq.routing.retained_index import PACE
from hookmq.session.inflight import Acknowledgement
from hookmq.session.session import Session

_ASKED: Final = 32
"""How many retained messages per subscription may wait at the same time for a plugin's decision about their publishers.
"""
_SLICE: Final = 512
"""Steps (`BrokerState.work`) that one SUBSCRIBE may take in one turn."""


class Subscribing:
    """The progress of one SUBSCRIBE through its filters."""

    __slots__ = (
        "cancelled", "client", "codes", "connection", "packet", "pipeline", "reason", "retained", "session", "state",
    )  # fmt: skip

    def __init__(self, connection: ClientConnection, session: Session, packet: Subscribe) -> None:
        self.connection = connection
        self.session = session
        self.client = session.client
        self.state = connection.state
        self.packet = packet
        self.pipeline = SubscriptionPipeline(connection.state, session, connection)
        self.codes: list[int] = []
        self.retained: list[Subscription] = []
        self.reason = ""
        self.cancelled = False

    def cancel(self) -> None:
        """Stop, because the client has disconnected."""
        self.cancelled = True
        self.pipeline.cancel()

    def run(self) -> None:
        """Handle filters until one must wait for a plugin, or the turn's slice is used up."""
        requests = self.packet.requests
        enough = self.state.work + _SLICE
        while len(self.codes) < len(requests):
            if self.state.work > enough:
                self._wait()
                self.state.runtime.call_soon(self._continue)
                return
            before = len(self.codes)
            self._request(requests[before])
            if self.cancelled:
                return
            if len(self.codes) == before:
                self._wait()  # until the plugin decides; that calls `_decided`
                return
        self._answer()

    def _wait(self) -> None:
        if not self.connection.waiting:
            self.connection.wait(self.cancel)

    def _continue(self) -> None:
        if self.cancelled:
            return
        try:
            self.run()
        except Exception as error:
            self.connection.internal_error(error)

    def _request(self, request: SubscribeRequest) -> None:
        connection = self.connection
        state = self.state
        state.work += 4 + (len(request.filter) >> 5)
        properties = self.packet.properties
        identifiers = properties.subscription_identifier
        identifier = identifiers[0] if identifiers else None
        wanted = check(
            state,
            self.session,
            connection.offered,
            request,
            identifier,
            connection.bridge,
            properties.user_property or (),
        )
        if isinstance(wanted, Deny):
            self._fail(wanted.code, wanted.reason or "")
            return
        if connection.rate_limiter is not None:
            over = connection.rate_limiter.subscribe(wanted.topic_filter)
            if over is not None:
                verdict = over.verdict
                if not isinstance(verdict, Deny):
                    verdict = Deny(ReasonCode.QUOTA_EXCEEDED)
                self._deny(request.filter, verdict, over.limit)
                return
        self.pipeline.run(wanted, self._decided)

    def _decided(self, result: Subscription | Deny, by: str, late: bool) -> None:
        """Record the current filter's result. If plugins decided later, continue with `run`."""
        if isinstance(result, Deny):
            self._deny(self.packet.requests[len(self.codes)].filter, result, by)
        else:
            if self.pipeline.sends_retained:
                self.retained.append(result)
            self.codes.append(result.qos)
        if late:
            self._continue()

    def _deny(self, filter: str, verdict: Deny, by: str) -> None:
        self.state.denied(self.client, Action.SUBSCRIBE, filter, verdict.code, by)
        if verdict.disconnect:
            self._disconnect(verdict.code, verdict.reason or "")
        elif self.connection.version == 3 and not verdict.decided:
            # An MQTT 3.1 SUBACK can only grant, and the client would never subscribe again.
            self._disconnect(verdict.code, "could not be decided")
        else:
            self._fail(verdict.code, verdict.reason or "")

    def _disconnect(self, code: ReasonCode, reason: str) -> None:
        self.cancelled = True
        self.connection.disconnect(code, reason)

    def _fail(self, code: ReasonCode, reason: str = "") -> None:
        if reason and not self.reason:
            self.reason = reason
        version = self.connection.version
        if version == 5:
            self.codes.append(clamp(PacketType.SUBACK, code))
        elif version == 3:
            # MQTT 3.1 has no failure code. Like other brokers, grant the QoS and deliver nothing.
            self.codes.append(self.packet.requests[len(self.codes)].qos)
        else:
            self.codes.append(ReasonCode.UNSPECIFIED_ERROR)  # [MQTT311-3.9.3-2]

    def _answer(self) -> None:
        connection = self.connection
        # [MQTT-2.2.1-6, 3.8.4-2, 3.8.4-6, 3.8.4-7, 3.9.3-1] [MQTT311-2.3.1-7, 3.8.4-2, 3.8.4-5, 3.9.3-1]
        answer = Acknowledgement(connection.release)
        if self.retained:
            answer.then = self._send_retained
        connection.put_reply(Suback(self.packet.packet_id, tuple(self.codes)), self.reason, answer)
        cluster = self.state.cluster
        if cluster is not None and not cluster.settled(answer.met):
            answer.add_condition()
        _send_answer(connection, answer, self.session.durable)
        if self.session.groups:
            drain_queue(self.state, self.session)  # messages may wait for a member with room
        if connection.waiting:
            connection.go_on()

    def _send_retained(self) -> None:
        if self.session.connection is self.connection:
            send_retained(self.state, self.session, self.retained)


def send_retained(state: BrokerState, session: Session, subscriptions: list[Subscription]) -> None:
    """Start sending the retained messages for `subscriptions`, while the client has room."""
    backlog = session.backlog
    if backlog is None:
        backlog = session.backlog = {}
    for subscription in subscriptions:
        # A replaced subscription gets no more messages: a client may replace it any number of times without reading.
        backlog.pop(subscription.filter, None)
        backlog[subscription.filter] = _retained(state, session, subscription)
    drain_queue(state, session)
    state.writes.schedule()


def _retained(
    state: BrokerState, session: Session, subscription: Subscription
) -> Iterator[Found | None]:
    """Yield the retained messages for one subscription. Yield None after every `PACE` skipped messages."""
    now = state.runtime.time()
    passed = 0
    asked: deque[Kept] = deque()
    for found in state.retained.scan(subscription.topic_filter):
        if session.subscriptions.get(subscription.filter) is not subscription:
            return
        if found is None:
            yield None
            continue
        kept = found[1]
        message = kept.message
        if (message.expires_at is None or message.expires_at > now) and not (
            subscription.no_local and message.sender == session.client_id  # [MQTT-3.8.3-3]
        ):
            allowed = may_be_sent(state, kept, session)
            if allowed is None:
                asked.append(kept)
                if len(asked) >= _ASKED:
                    yield from _answered(state, session, subscription, asked, _ASKED - 1)
                continue
            if allowed:
                yield kept, subscription
                continue
        passed += 1
        if passed == PACE:
            passed = 0
            yield None
    yield from _answered(state, session, subscription, asked, 0)


def _answered(
    state: BrokerState, session: Session, subscription: Subscription, asked: deque[Kept], most: int
) -> Iterator[Found | None]:
    """Yield the messages that `authorize` allowed. Stop once no more than `most` messages in `asked` await a
    decision."""
    while len(asked) > most:
        if session.subscriptions.get(subscription.filter) is not subscription:
            return
        kept = asked[0]
        # If a message was replaced meanwhile, the subscriber got the new one when it was published.
        current = state.retained.get(kept.message.topic) is kept
        allowed = current and may_be_sent(state, kept, session)
        if allowed is None:
            yield WAITING
            continue
        asked.popleft()
        if allowed:
            yield kept, subscription


def _check_available(connection: ClientConnection, packet: Subscribe) -> None:
    """Raise ProtocolError if an MQTT 5 client uses a feature that CONNACK declared unavailable (sections 3.2.2.3.11 to
    13)."""
    identifiers = packet.properties.subscription_identifier
    if identifiers and not connection.offered.subscription_identifiers_available:
        raise ProtocolError(
            ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, "subscription identifier"
        )
    for request in packet.requests:
        code = unavailable(connection.offered, request.filter)
        if code is not None:
            raise ProtocolError(code, request.filter)


def _check_filters(connection: ClientConnection, filters: tuple[str, ...]) -> None:
    """Raise ProtocolError if a filter is empty, or if there are so many filters that their acknowledgement would exceed
    the client's Maximum Packet Size.
    """
    if "" in filters:
        # [MQTT-4.7.3-1] [MQTT311-4.7.3-1]
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "topic filter is empty")
    if connection.version == 5:
        size = 3 + len(filters)  # the packet id, an empty property section and the reason codes
        if 1 + len(encode_varint(size)) + size > connection.max_packet_size:  # [MQTT-3.1.2-24]
            raise ProtocolError(
                ReasonCode.PACKET_TOO_LARGE,
                f"the answer to {len(filters)} filters exceeds Maximum Packet Size",
            )


def _send_answer(connection: ClientConnection, answer: Acknowledgement, after_commit: bool) -> None:
    """Send SUBACK or UNSUBACK. With `after_commit`, wait for the commit first."""
    if after_commit:
        answer.add_condition()
        connection.state.committer.after_commit(answer.met)
        connection.state.writes.schedule()
    connection.answer(answer)


def on_subscribe(connection: ClientConnection, packet: Packet) -> None:
    """Handle SUBSCRIBE [MQTT-3.8.4-1] [MQTT311-3.8.4-1]."""
    assert isinstance(packet, Subscribe)
    _check_filters(connection, tuple(request.filter for request in packet.requests))
    if connection.version == 5:
        _check_available(connection, packet)
    Subscribing(connection, session_of(connection), packet).run()


def on_unsubscribe(connection: ClientConnection, packet: Packet) -> None:
    """Handle UNSUBSCRIBE. Filters are compared character by character [MQTT-3.10.4-1, 3.10.4-4, 3.10.4-5]
    [MQTT311-3.10.4-1, 3.10.4-4, 3.10.4-5]. UNSUBACK never has a Reason String or User Properties, which might make it too
    large [MQTT-3.11.2-1, 3.11.2-2]."""
    assert isinstance(packet, Unsubscribe)
    session = session_of(connection)
    state = connection.state
    _check_filters(connection, packet.filters)
    codes = []
    added = state.committer.added
    for text in packet.filters:  # [MQTT-3.10.4-6, 3.11.3-1] [MQTT311-3.10.4-6]
        known = remove(state, session, text)
        codes.append(ReasonCode.SUCCESS if known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
    answer = Acknowledgement(connection.release)
    connection.put_reply(Unsuback(packet.packet_id, tuple(codes)), "", answer)
    _send_answer(connection, answer, state.committer.added != added)
