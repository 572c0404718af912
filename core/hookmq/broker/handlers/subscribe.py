"""Handle SUBSCRIBE and UNSUBSCRIBE, and send retained messages after SUBACK.

The filters of a SUBSCRIBE are handled one after the other, as if each had its own packet [MQTT-3.8.4-5]
[MQTT311-3.8.4-4]. SUBACK is sent once all of them are committed, before any retained message.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from hookmq.broker.connection import ClientConnection
from hookmq.broker.delivery.deliver import WAITING, Found, drain_queue
from hookmq.broker.handlers.established import session_of
from hookmq.broker.publish.authorize import Decisions, asked, authorize
from hookmq.broker.retained_expiry import Kept
from hookmq.broker.sessions.subscriptions import subscribe, unsubscribe
from hookmq.broker.sources import may_be_sent
from hookmq.broker.state import BrokerState
from hookmq.hooks.call import run_transform
from hookmq.hooks.chain import narrow
from hookmq.hooks.verdicts import Allow, Deny, Drop
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.model.runtime import Cancel
from hookmq.model.subscription import Subscription
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import Packet, Suback, Subscribe, SubscribeRequest, Unsuback, Unsubscribe
from hookmq.mqtt.primitives import encode_varint
from hookmq.mqtt.reason_codes import PacketType, ReasonCode, clamp
from hookmq.mqtt.topics import SHARE_PREFIX, has_wildcard, parse_share, validate_filter
from hookmq.routing.retained_index import PACE
from hookmq.session.inflight import Acknowledgement
from hookmq.session.session import Session
from hookmq.storage.records import PutSubscription

_ASKED: Final = 32
"""How many retained messages of one subscription may await a plugin's decision on their publishers at a time."""
_SLICE: Final = 512
"""Steps (`BrokerState.work`) that one SUBSCRIBE may take in one turn."""


class Subscribing:
    """A SUBSCRIBE in progress: which of its filters are done."""

    __slots__ = (
        "cancelled", "client", "codes", "connection", "packet", "reason", "retained", "session", "state", "step",
    )  # fmt: skip

    def __init__(self, connection: ClientConnection, session: Session, packet: Subscribe) -> None:
        self.connection = connection
        self.session = session
        self.client = session.client
        self.state = connection.state
        self.packet = packet
        self.codes: list[int] = []
        self.retained: list[Subscription] = []
        self.reason = ""
        self.step: Cancel | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Stop, because the client has disconnected."""
        self.cancelled = True
        step, self.step = self.step, None
        if step is not None:
            step()

    def run(self) -> None:
        """Handle filters until one must wait for a plugin, or the turn's slice is used up."""
        requests = self.packet.requests
        enough = self.state.work + _SLICE
        while len(self.codes) < len(requests):
            if self.state.work > enough:
                self._wait()
                self.state.runtime.call_soon(partial(self.state.guarded, self._continue))
                return
            before = len(self.codes)
            self._request(requests[before])
            if self.cancelled:
                return
            if len(self.codes) == before:
                self._wait()  # until the plugin decides; that calls `_next`
                return
        self._answer()

    def _wait(self) -> None:
        if not self.connection.waiting:
            self.connection.wait(self.cancel)

    def _continue(self) -> None:
        if not self.cancelled:
            self.run()

    def _next(self, code: int) -> None:
        """Add the current filter's reason code. Continue with `run` if the code was decided later."""
        late = self.step is not None
        self.step = None
        if self.cancelled:
            return
        self.codes.append(code)
        if late:
            self.run()

    def _request(self, request: SubscribeRequest) -> None:
        connection = self.connection
        mount = self.client.scope.mount_point
        limits = self.state.settings.broker
        self.state.work += 4 + (len(request.filter) >> 5)
        try:
            validate_filter(request.filter, limits.max_topic_levels)
            share, topic_filter = parse_share(request.filter)
            if mount:
                validate_filter(mount + topic_filter, limits.max_topic_levels)
        except ProtocolError as error:
            # [MQTT-4.7.1-1, 4.7.1-2, 4.8.2-1, 4.8.2-2]
            self._fail(error.code, error.detail)
            return
        unavailable = _unavailable(connection, request.filter)
        if unavailable is not None:
            self._fail(unavailable)  # [MQTT311-3.8.3-2]
            return
        excess = self._excess(request.filter)
        if excess:
            self._fail(ReasonCode.QUOTA_EXCEEDED, excess)
            return
        if connection.rate_limiter is not None:
            over = connection.rate_limiter.subscribe(mount + topic_filter)
            if over is not None:
                verdict = over.verdict
                if not isinstance(verdict, Deny):
                    verdict = Deny(ReasonCode.QUOTA_EXCEEDED)
                self._deny(request.filter, verdict, over.limit)
                return
        bridge = connection.bridge
        identifiers = self.packet.properties.subscription_identifier
        subscription = Subscription(
            request.filter,
            mount + topic_filter,
            min(request.qos, limits.max_qos),  # [MQTT-3.2.2-10]
            request.no_local or bridge,
            request.retain_as_published or bridge,
            request.retain_handling,
            identifiers[0] if identifiers else None,
            share,
        )
        self._authorize(subscription, self._transform)

    def _excess(self, filter: str) -> str:
        """Return the limit that a new subscription exceeds, or ''."""
        session = self.session
        if filter in session.subscriptions:
            return ""
        if len(session.subscriptions) >= session.max_subscriptions:
            return "too many subscriptions"
        size = len(filter)
        settings = self.state.settings
        if (
            session.filter_bytes + size > settings.session.subscription_bytes
            or self.state.session_bytes + size > settings.broker.max_session_bytes
        ):
            return "too many bytes of topic filters"
        return ""

    def _authorize(self, subscription: Subscription, then: Callable[[Subscription], None]) -> None:
        connection = self.connection
        if connection.decisions is None:
            connection.decisions = Decisions()

        def decided(verdict: Allow | Deny, by: str) -> None:
            if self.cancelled:
                return
            if isinstance(verdict, Deny):
                self._deny(subscription.filter, verdict, by)
                return
            granted = subscription
            if verdict.max_qos is not None and verdict.max_qos < granted.qos:
                granted = granted.replace(qos=verdict.max_qos)
            then(granted)

        topic_filter, qos = subscription.topic_filter, subscription.qos
        step = authorize(
            self.state, self.client, connection.chains, connection.decisions,
            Action.SUBSCRIBE, topic_filter, qos, False, None, subscription, decided,
        )  # fmt: skip
        if step is not None:
            self.step = step

    def _transform(self, subscription: Subscription) -> None:
        calls = self.connection.chains.on_subscribe
        if calls:
            calls = narrow(calls, subscription.topic_filter)
        if not calls:
            self._add(subscription)
            return

        def changed(result: Message | Subscription | Deny | Drop, by: str) -> None:
            if self.cancelled:
                return
            if isinstance(result, Deny):
                self._deny(subscription.filter, result, by)
                return
            assert isinstance(result, Subscription)
            try:
                validate_filter(result.topic_filter, self.state.settings.broker.max_topic_levels)
            except ProtocolError as error:
                denied = Deny(error.code, error.detail, decided=False)
                self._deny(subscription.filter, denied, by)
                return
            # Keep the filter that the client sent: it will unsubscribe with it.
            made = result.replace(filter=subscription.filter)
            if asked(made) == asked(subscription):
                self._add(made)
            else:
                # The plugin changed the topic filter, so the new one must be allowed too.
                self._authorize(made, self._add)

        runtime = self.state.runtime
        step = run_transform(runtime, calls, self.client, subscription, changed)
        if step is not None:
            self.step = step

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
            self._next(clamp(PacketType.SUBACK, code))
        elif version == 3:
            # MQTT 3.1 has no failure code. Like other brokers, grant the QoS and deliver nothing.
            self._next(self.packet.requests[len(self.codes)].qos)
        else:
            self._next(ReasonCode.UNSPECIFIED_ERROR)  # [MQTT311-3.9.3-2]

    def _add(self, subscription: Subscription) -> None:
        state = self.state
        session = self.session
        if session.revoked:
            session.revoked.discard(subscription.filter)
        known = subscribe(state, session, subscription)
        if session.durable:
            state.committer.add(PutSubscription(session.client_id, subscription))
        handling = subscription.retain_handling
        if subscription.share is None and (handling == 0 or (handling == 1 and known is None)):
            # [MQTT-3.3.1-9 to 11, 3.8.4-4] [MQTT311-3.3.1-6, 3.8.4-3]
            self.retained.append(subscription)
        state.observe("on_subscribed", session.client, subscription, ReasonCode(subscription.qos))
        self._next(subscription.qos)

    def _answer(self) -> None:
        connection = self.connection
        # [MQTT-2.2.1-6, 3.8.4-2, 3.8.4-6, 3.8.4-7, 3.9.3-1] [MQTT311-2.3.1-7, 3.8.4-2, 3.8.4-5, 3.9.3-1]
        packet = Suback(self.packet.packet_id, tuple(self.codes))
        data = encode(packet, connection.version)
        # [MQTT-3.1.2-29]
        if connection.version == 5 and self.reason and connection.problem_information:
            properties = packet.properties.replace(reason_string=self.reason)
            with_reason = encode(replace(packet, properties=properties), 5)
            if len(with_reason) <= connection.max_packet_size:  # [MQTT-3.9.2-1, 3.9.2-2]
                data = with_reason
        answer = Acknowledgement(connection.release, data)
        if self.retained:
            answer.then = self._send_retained
        _send_answer(connection, answer, self.session.durable)
        if self.session.groups:
            drain_queue(self.state, self.session)  # messages may wait for a member with room
        if connection.waiting:
            connection.go_on()

    def _send_retained(self) -> None:
        if self.session.connection is self.connection:
            send_retained(self.state, self.session, self.retained)


def send_retained(state: BrokerState, session: Session, subscriptions: list[Subscription]) -> None:
    """Start sending the retained messages of `subscriptions`, as far as the client has room."""
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
    """Yield the retained messages for one subscription, and None after every `PACE` skipped messages."""
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
    """Yield the messages that `authorize` allowed, until at most `most` of `asked` await a decision."""
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


def _unavailable(connection: ClientConnection, filter: str) -> ReasonCode | None:
    """Return the reason code if no client may subscribe to such a filter, else None."""
    limits = connection.offered
    if not limits.shared_available and filter.startswith(SHARE_PREFIX):
        return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if not limits.wildcard_available and has_wildcard(filter):
        return ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
    return None


def _check_available(connection: ClientConnection, packet: Subscribe) -> None:
    """Raise ProtocolError if an MQTT 5 client uses a feature that CONNACK declared unavailable (sections 3.2.2.3.11 to
    13)."""
    identifiers = packet.properties.subscription_identifier
    if identifiers and not connection.offered.subscription_identifiers_available:
        raise ProtocolError(
            ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, "subscription identifier"
        )
    for request in packet.requests:
        code = _unavailable(connection, request.filter)
        if code is not None:
            raise ProtocolError(code, request.filter)


def _check_filters(connection: ClientConnection, filters: tuple[str, ...]) -> None:
    """Raise ProtocolError if a filter is empty, or if the acknowledgement of so many filters is too large for the
    client."""
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
    """Send SUBACK or UNSUBACK; with `after_commit`, wait for the commit first."""
    if after_commit:
        answer.hold()
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
        known = session.subscriptions.get(text)
        if known is None:
            codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
            continue
        unsubscribe(state, session, known)
        state.observe("on_unsubscribed", session.client, known)
        codes.append(ReasonCode.SUCCESS)
    data = encode(Unsuback(packet.packet_id, tuple(codes)), connection.version)
    changed = state.committer.added != added
    _send_answer(connection, Acknowledgement(connection.release, data), changed)
