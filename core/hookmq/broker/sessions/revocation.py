"""Revocation: ask plugins again about subscriptions whose permissions may have changed, and remove those that are
denied.

This covers online and offline sessions. A session's messages wait until the plugins have decided. The work is sliced,
so that a change for all clients does not stall the event loop.
"""

from collections import deque
from functools import partial

from hookmq.broker.delivery.completion import complete
from hookmq.broker.delivery.deliver import unpause
from hookmq.broker.delivery.queue import account_dequeued, has_subscription_for
from hookmq.broker.delivery.transmit import release_publisher, update_write_state
from hookmq.broker.publish.authorize import authorize
from hookmq.broker.sessions.session_record import record
from hookmq.broker.sessions.subscriptions import subscribe, unsubscribe
from hookmq.broker.state import BrokerState
from hookmq.hooks.chain import overlaps
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.events import Action, Direction, DropReason
from hookmq.model.subscription import Subscription
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import parse_share
from hookmq.session.inflight import Delivery
from hookmq.session.session import Session
from hookmq.storage.records import PutSubscription

SLICE = 200
"""Subscriptions to ask about in one turn."""
_Chosen = deque[tuple[Session, Subscription]]


def revoke(state: BrokerState, client_id: str | None, filter: str | None) -> None:
    """Ask plugins again about the subscriptions of `client_id` that overlap with `filter`. None means all clients, or all
    filters.
    """
    state.publishers.changed(client_id)
    chosen: _Chosen = deque()
    if client_id is None:
        sessions = list(state.sessions.values())
    else:
        one = state.sessions.get(client_id)
        sessions = [] if one is None else [one]
    wanted = None if filter is None else parse_share(filter)[1]
    for session in sessions:
        if session.connection is not None:
            session.connection.forget_decisions()
        for subscription in session.subscriptions.values():
            if wanted is None or overlaps(wanted, subscription.topic_filter):
                session.paused += 1
                chosen.append((session, subscription))
        if session.paused:
            update_write_state(session)
    _ask_slice(state, chosen)


def _ask_slice(state: BrokerState, chosen: _Chosen) -> None:
    for _ in range(min(SLICE, len(chosen))):
        session, subscription = chosen.popleft()
        if session.subscriptions.get(subscription.filter) is subscription:
            _ask(state, session, subscription)
        else:
            unpause(state, session)
    if chosen:
        state.runtime.call_soon(partial(_ask_slice, state, chosen))
    state.writes.schedule()


def _ask(state: BrokerState, session: Session, subscription: Subscription) -> None:
    client = session.client

    def answered(verdict: Allow | Deny, by: str) -> None:
        if session.subscriptions.get(subscription.filter) is subscription:
            if isinstance(verdict, Deny):
                _deny(state, session, subscription, verdict, by)
            elif verdict.max_qos is not None and verdict.max_qos < subscription.qos:
                # Messages published from now on are delivered at the lower QoS.
                lowered = subscription.replace(qos=verdict.max_qos)
                subscribe(state, session, lowered)
                if session.durable:
                    state.committer.add(PutSubscription(session.client_id, lowered))
        unpause(state, session)

    topic_filter, qos = subscription.topic_filter, subscription.qos
    authorize(
        state, client, state.chains(client.listener), None,
        Action.SUBSCRIBE, topic_filter, qos, False, None, subscription, answered,
    )  # fmt: skip


def _deny(
    state: BrokerState, session: Session, subscription: Subscription, verdict: Deny, by: str
) -> None:
    """Remove a denied subscription. If a plugin failed, disconnect the client instead; plugins are asked about its
    subscriptions when it returns."""
    client = session.client
    connection = session.connection
    state.denied(client, Action.SUBSCRIBE, subscription.filter, verdict.code, by)
    if not verdict.decided:
        if connection is not None:
            connection.disconnect(verdict.code, "permissions could not be decided")
        return
    unsubscribe(state, session, subscription)
    state.observe("on_unsubscribed", client, subscription)
    if session.queue:
        kept = deque(d for d in session.queue if _keep(state, session, d, by, True))
        session.queue = kept
    if session.queue_qos0:
        kept = deque(d for d in session.queue_qos0 if _keep(state, session, d, by, False))
        session.queue_qos0 = kept or None
    if session.stored or session.inflight:
        if session.revoked is None:
            session.revoked = set()
        session.revoked.add(subscription.filter)
        if session.recorded:
            state.committer.add(record(session))
    connection = session.connection
    if connection is not None and state.settings.broker.on_revoke == "disconnect":
        connection.disconnect(ReasonCode.NOT_AUTHORIZED, "subscription revoked")
    drop_revoked(state, session, session.inflight if session.connection is None else None)


def drop_revoked(
    state: BrokerState, session: Session, sent: dict[int, Delivery] | None = None
) -> None:
    """Drop unacknowledged messages of revoked subscriptions that would be resent [MQTT-4.4.0-1].

    `sent` holds deliveries from an earlier connection; None means the deliveries that this connection has yet to resend.
    After PUBREC, a delivery is kept until it is complete.
    """
    unsent = session.resend if sent is None else sent.values()
    for delivery in list(unsent or ()):
        if (
            delivery.released
            or not session.revoked
            or delivery.subscription.filter not in session.revoked
            or has_subscription_for(session, delivery)
        ):
            continue
        del session.inflight[delivery.packet_id]
        if session.resend is not None:
            session.resend = deque(d for d in session.resend if d is not delivery)
        if state.committer.take_back(delivery):
            release_publisher(state, delivery)
        else:
            complete(state, session, delivery)
        message = delivery.outgoing.message
        state.dropped(message, session.client, DropReason.REVOKED, Direction.OUT)


def _keep(state: BrokerState, session: Session, delivery: Delivery, by: str, counted: bool) -> bool:
    """Return whether a waiting message still has a subscription. Drop the message if not."""
    if has_subscription_for(session, delivery):
        return True
    account_dequeued(state, session, delivery, counted)
    complete(state, session, delivery)
    message = delivery.outgoing.message
    state.dropped(message, session.client, DropReason.REVOKED, Direction.OUT, by)
    return False
