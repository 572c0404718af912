"""SUBSCRIBE and UNSUBSCRIBE, the retained messages that follow, and subscriptions taken away again.

A SUBSCRIBE is handled filter after filter, as if each came alone [MQTT-3.8.4-5] [MQTT311-3.8.4-4]; SUBACK leaves after
the commit of all, before the retained messages that they cause.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from hookmq.broker.authorizer import Decisions, asked, authorize
from hookmq.broker.core import Core
from hookmq.broker.deliver import WAITING, Found, pump
from hookmq.broker.expiries import Kept
from hookmq.broker.link import Link
from hookmq.broker.sessions import subscribe, unsubscribe
from hookmq.broker.sources import may_be_sent
from hookmq.codec import (
    Packet,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    encode,
    encode_varint,
)
from hookmq.errors import ProtocolError
from hookmq.hooks.chains import narrow
from hookmq.hooks.meter import Over
from hookmq.hooks.run import run_transform
from hookmq.hooks.verdicts import Allow, Deny, Drop
from hookmq.qos import Acknowledgement
from hookmq.reason import PacketType, ReasonCode, clamp
from hookmq.retained import PACE
from hookmq.runtime import Cancel
from hookmq.session import Session
from hookmq.store import PutSubscription
from hookmq.topics import SHARE_PREFIX, has_wildcard, parse_share, validate_filter
from hookmq.types import Action, Message, Subscription

_ASKED: Final = 32
"""Retained messages about whose publishers a plugin is asked at a time, for one subscription."""
_SLICE: Final = 512
"""Steps (`Core.work`) of one SUBSCRIBE in one turn."""


class Subscribing:
    """One SUBSCRIBE on its way through its filters."""

    __slots__ = (
        "cancelled",
        "codes",
        "connection",
        "packet",
        "reason",
        "retained",
        "session",
        "step",
    )

    def __init__(self, connection: Link, session: Session, packet: Subscribe) -> None:
        self.connection = connection
        self.session = session
        self.packet = packet
        self.codes: list[int] = []
        self.retained: list[Subscription] = []
        self.reason = ""
        self.step: Cancel | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """The client left."""
        self.cancelled = True
        step, self.step = self.step, None
        if step is not None:
            step()

    def run(self) -> None:
        """Go on with the next filter for as long as answers come at once, a slice of them a turn."""
        requests = self.packet.requests
        core = self.connection.core
        enough = core.work + _SLICE
        while len(self.codes) < len(requests):
            before = len(self.codes)
            if core.work > enough:
                if not self.connection.waiting:
                    self.connection.wait(self.cancel)
                core.runtime.call_soon(partial(core.guarded, self._go_on))
                return
            self._request(requests[before])
            if self.cancelled:
                return
            if len(self.codes) == before:
                # Undecided yet: `_next` goes on when the answer is there.
                if not self.connection.waiting:
                    self.connection.wait(self.cancel)
                return
        self._answer()

    def _go_on(self) -> None:
        if not self.cancelled:
            self.run()

    def _next(self, code: int) -> None:
        """The verdict on the filter in hand."""
        late = self.step is not None
        self.step = None
        if self.cancelled:
            return
        self.codes.append(code)
        if late:
            self.run()

    def _request(self, request: SubscribeRequest) -> None:
        connection = self.connection
        core = connection.core
        client = connection.client
        assert client is not None
        limits = core.settings.broker
        mount = client.scope.mount_point
        core.work += 4 + (len(request.filter) >> 5)
        try:
            validate_filter(request.filter, limits.max_topic_levels)
            share, topic_filter = parse_share(request.filter)
            if mount:
                validate_filter(mount + topic_filter, limits.max_topic_levels)
        except ProtocolError as error:
            # [MQTT-4.7.1-1, 4.7.1-2, 4.8.2-1, 4.8.2-2]: refused; 3.x has but one code for it
            self._fail(error.code, error.detail)
            return
        identifiers = self.packet.properties.subscription_identifier
        unavailable = _unavailable(connection, request.filter)
        if unavailable is not None:
            self._fail(unavailable)  # [MQTT311-3.8.3-2]
            return
        session = self.session
        if (
            len(session.subscriptions) >= session.max_subscriptions
            and request.filter not in session.subscriptions
        ):
            self._fail(ReasonCode.QUOTA_EXCEEDED, "too many subscriptions")
            return
        size = len(request.filter)
        if (
            session.filter_bytes + size > core.settings.session.subscription_bytes
            or core.session_bytes + size > limits.max_session_bytes
        ) and request.filter not in session.subscriptions:
            self._fail(ReasonCode.QUOTA_EXCEEDED, "too many bytes of topic filters")
            return
        if connection.meter is not None:
            over = connection.meter.subscribe(mount + topic_filter)
            if over is not None:
                self._over(request, over)
                return
        bridge = connection.bridge
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

    def _authorize(self, subscription: Subscription, then: Callable[[Subscription], None]) -> None:
        connection = self.connection
        client = connection.client
        assert client is not None
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

        step = authorize(
            connection.core,
            client,
            connection.chains,
            connection.decisions,
            Action.SUBSCRIBE,
            subscription.topic_filter,
            subscription.qos,
            False,
            None,
            subscription,
            decided,
        )
        if step is not None:
            self.step = step

    def _transform(self, subscription: Subscription) -> None:
        connection = self.connection
        calls = connection.chains.on_subscribe
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
            limits = connection.core.settings.broker
            try:
                validate_filter(result.topic_filter, limits.max_topic_levels)
            except ProtocolError as error:
                denied = Deny(error.code, error.detail, decided=False)
                self._deny(subscription.filter, denied, by)
                return
            # What UNSUBSCRIBE must name stays the client's own text.
            made = result.replace(filter=subscription.filter)
            if asked(made) == asked(subscription):
                self._add(made)
            else:
                # The plugin moved it: it must be allowed where it goes, not only where it came from.
                self._authorize(made, self._add)

        step = run_transform(
            connection.core.runtime, calls, connection.client, subscription, changed
        )
        if step is not None:
            self.step = step

    def _over(self, request: SubscribeRequest, over: Over) -> None:
        verdict = over.verdict
        if not isinstance(verdict, Deny):
            verdict = Deny(ReasonCode.QUOTA_EXCEEDED)
        self._deny(request.filter, verdict, over.limit)

    def _deny(self, filter: str, verdict: Deny, by: str) -> None:
        connection = self.connection
        client = connection.client
        assert client is not None
        core = connection.core
        core.denied(client, Action.SUBSCRIBE, filter, verdict.code, by)
        if verdict.disconnect:
            self.cancelled = True
            connection.disconnect(verdict.code, verdict.reason or "")
            return
        if connection.version == 3 and not verdict.decided:
            # SUBACK of 3.1 could only say that it was granted, and the client would never ask again.
            self.cancelled = True
            connection.disconnect(verdict.code, "could not be decided")
            return
        self._fail(verdict.code, verdict.reason or "")

    def _fail(self, code: ReasonCode, reason: str = "") -> None:
        if reason and not self.reason:
            self.reason = reason
        connection = self.connection
        if connection.version == 5:
            self._next(clamp(PacketType.SUBACK, code))
        elif connection.version == 3:
            # 3.1 knows no failure code: as fielded, the QoS asked for is granted and nothing delivered.
            self._next(self.packet.requests[len(self.codes)].qos)
        else:
            self._next(ReasonCode.UNSPECIFIED_ERROR)  # [MQTT311-3.9.3-2]

    def _add(self, subscription: Subscription) -> None:
        core = self.connection.core
        session = self.session
        if session.revoked:
            session.revoked.discard(subscription.filter)
        known = subscribe(core, session, subscription)
        if session.durable:
            core.committer.add(PutSubscription(session.client_id, subscription))
        handling = subscription.retain_handling
        if subscription.share is None and (handling == 0 or (handling == 1 and known is None)):
            # [MQTT-3.3.1-9 to 11, 3.8.4-4] [MQTT311-3.3.1-6, 3.8.4-3]; shared subscriptions get none
            self.retained.append(subscription)
        core.observe("on_subscribed", session.client, subscription, ReasonCode(subscription.qos))
        self._next(subscription.qos)

    def _answer(self) -> None:
        connection = self.connection
        core = connection.core
        # [MQTT-2.2.1-6, 3.8.4-2, 3.8.4-6, 3.8.4-7, 3.9.3-1] [MQTT311-2.3.1-7, 3.8.4-2, 3.8.4-5, 3.9.3-1]
        packet = Suback(self.packet.packet_id, tuple(self.codes))
        data = encode(packet, connection.version)
        # [MQTT-3.1.2-29]
        if connection.version == 5 and self.reason and connection.problem_information:
            worded = encode(
                replace(packet, properties=packet.properties.replace(reason_string=self.reason)), 5
            )
            if len(worded) <= connection.max_packet_size:  # [MQTT-3.9.2-1, 3.9.2-2]
                data = worded
        answer = Acknowledgement(connection.release, data)
        if self.session.durable:
            answer.hold()
            core.committer.then(answer.met)
            core.schedule()
        if self.retained:
            answer.then = self._send_retained
        connection.answer(answer)
        if self.session.groups:
            pump(core, self.session)  # messages may wait for a member with room
        if connection.waiting:
            connection.go_on()

    def _send_retained(self) -> None:
        session = self.session
        if session.connection is not self.connection:
            return
        send_retained(self.connection.core, session, self.retained)


def send_retained(core: Core, session: Session, subscriptions: list[Subscription]) -> None:
    """Have the retained messages of `subscriptions` sent as there is room."""
    backlog = session.backlog
    if backlog is None:
        backlog = session.backlog = {}
    for subscription in subscriptions:
        # One that was replaced gets no more, and a client may replace it as often as it likes without reading.
        backlog.pop(subscription.filter, None)
        backlog[subscription.filter] = _retained(core, session, subscription)
    pump(core, session)
    core.schedule()


def _retained(core: Core, session: Session, subscription: Subscription) -> Iterator[Found | None]:
    """The retained messages for one subscription, and None after every `PACE` others that it looked at."""
    now = core.runtime.time()
    passed = 0
    asked: deque[Kept] = deque()
    for found in core.retained.scan(subscription.topic_filter):
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
            allowed = may_be_sent(core, kept, session)
            if allowed is None:
                asked.append(kept)
                if len(asked) >= _ASKED:
                    yield from _answered(core, session, subscription, asked, _ASKED - 1)
                continue
            if allowed:
                yield kept, subscription
                continue
        passed += 1
        if passed == PACE:
            passed = 0
            yield None
    yield from _answered(core, session, subscription, asked, 0)


def _answered(
    core: Core, session: Session, subscription: Subscription, asked: deque[Kept], most: int
) -> Iterator[Found | None]:
    """The messages about which `authorize` was asked and said yes, until `most` have no answer yet."""
    while len(asked) > most:
        if session.subscriptions.get(subscription.filter) is not subscription:
            return
        kept = asked[0]
        # One that was replaced meanwhile has come as a live message.
        allowed = core.retained.get(kept.message.topic) is kept and may_be_sent(core, kept, session)
        if allowed is None:
            yield WAITING
            continue
        asked.popleft()
        if allowed:
            yield kept, subscription


def _unavailable(connection: Link, filter: str) -> ReasonCode | None:
    """Why a filter cannot be subscribed to here, whoever asks."""
    limits = connection.offered
    if not limits.shared_available and filter.startswith(SHARE_PREFIX):
        return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if not limits.wildcard_available and has_wildcard(filter):
        return ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
    return None


def _check_available(connection: Link, packet: Subscribe) -> None:
    """CONNACK told what is not available: to ask for it is a Protocol Error (sections 3.2.2.3.11 to 3.2.2.3.13)."""
    limits = connection.offered
    identifiers = packet.properties.subscription_identifier
    if identifiers and not limits.subscription_identifiers_available:
        raise ProtocolError(
            ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, "subscription identifier"
        )
    for request in packet.requests:
        code = _unavailable(connection, request.filter)
        if code is not None:
            raise ProtocolError(code, request.filter)


def _check_not_empty(filters: tuple[str, ...]) -> None:
    if "" in filters:
        # [MQTT-4.7.3-1] [MQTT311-4.7.3-1]
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "topic filter is empty")


def _check_answer(connection: Link, count: int) -> None:
    """SUBACK and UNSUBACK cannot be sent where the client takes no packet of that size [MQTT-3.1.2-24]; better to say so
    before anything is done. `count` is that of the reason codes."""
    size = 3 + count  # the packet id and a property section of length 0
    if 1 + len(encode_varint(size)) + size > connection.max_packet_size:
        raise ProtocolError(
            ReasonCode.PACKET_TOO_LARGE, f"the answer to {count} filters is above its maximum"
        )


def on_subscribe(connection: Link, packet: Packet) -> None:
    """SUBSCRIBE [MQTT-3.8.4-1] [MQTT311-3.8.4-1]."""
    assert isinstance(packet, Subscribe)
    session = connection.session
    assert session is not None
    _check_not_empty(tuple(request.filter for request in packet.requests))
    if connection.version == 5:
        _check_available(connection, packet)
        _check_answer(connection, len(packet.requests))
    Subscribing(connection, session, packet).run()


def on_unsubscribe(connection: Link, packet: Packet) -> None:
    """UNSUBSCRIBE: by the filter's text, character for character [MQTT-3.10.4-1, 3.10.4-4, 3.10.4-5]
    [MQTT311-3.10.4-1, 3.10.4-4, 3.10.4-5]. UNSUBACK never has a Reason String or User Properties that might make it too
    large [MQTT-3.11.2-1, 3.11.2-2]."""
    assert isinstance(packet, Unsubscribe)
    session = connection.session
    assert session is not None
    core = connection.core
    _check_not_empty(packet.filters)
    if connection.version == 5:
        _check_answer(connection, len(packet.filters))
    codes = []
    added = core.committer.added
    for text in packet.filters:  # [MQTT-3.10.4-6, 3.11.3-1] [MQTT311-3.10.4-6]
        known = session.subscriptions.get(text)
        if known is None:
            codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
            continue
        unsubscribe(core, session, known)
        core.observe("on_unsubscribed", session.client, known)
        codes.append(ReasonCode.SUCCESS)
    answer = Acknowledgement(
        connection.release, encode(Unsuback(packet.packet_id, tuple(codes)), connection.version)
    )
    if core.committer.added != added:
        answer.hold()
        core.committer.then(answer.met)
        core.schedule()
    connection.answer(answer)
