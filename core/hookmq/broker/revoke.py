"""Rights that may have changed: subscriptions, live and stored, are asked about again, and those denied are taken away.

Until a plugin has answered, the session's messages wait. Work is done in slices, so that a change that concerns everybody
stalls nobody.
"""

from collections import deque
from functools import partial

from hookmq.broker.authorizer import authorize
from hookmq.broker.core import Core
from hookmq.broker.deliver import pump
from hookmq.broker.queue import covered, unqueue
from hookmq.broker.send import finish, settle, settle_state
from hookmq.broker.sessions import record, subscribe, unsubscribe
from hookmq.hooks.chains import overlaps
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.qos import Delivery
from hookmq.reason import ReasonCode
from hookmq.session import Session
from hookmq.store import PutSubscription
from hookmq.topics import parse_share
from hookmq.types import Action, Direction, DropReason, Subscription

SLICE = 200
"""Subscriptions asked about in one turn."""
_Chosen = deque[tuple[Session, Subscription]]


def revoke(core: Core, client_id: str | None, filter: str | None) -> None:
    """Ask again about the subscriptions of `client_id` (None: of everybody) that `filter` overlaps (None: about all)."""
    core.publishers.changed(client_id)
    chosen: _Chosen = deque()
    if client_id is None:
        sessions = list(core.sessions.values())
    else:
        one = core.sessions.get(client_id)
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
            settle_state(session)
    _ask_slice(core, chosen)


def _ask_slice(core: Core, chosen: _Chosen) -> None:
    for _ in range(min(SLICE, len(chosen))):
        session, subscription = chosen.popleft()
        if session.subscriptions.get(subscription.filter) is subscription:
            _ask(core, session, subscription)
        else:
            _decided(core, session)
    if chosen:
        core.runtime.call_soon(partial(_ask_slice, core, chosen))
    core.schedule()


def _decided(core: Core, session: Session) -> None:
    session.paused -= 1
    if not session.paused:
        settle_state(session)
        pump(core, session)
        core.schedule()


def _ask(core: Core, session: Session, subscription: Subscription) -> None:
    client = session.client

    def answered(verdict: Allow | Deny, by: str) -> None:
        stands = session.subscriptions.get(subscription.filter) is subscription
        if stands and isinstance(verdict, Deny):
            if verdict.decided:
                _take_away(core, session, subscription, verdict, by)
            else:
                _stop(core, session, subscription, verdict, by)
        elif stands and isinstance(verdict, Allow) and verdict.max_qos is not None:
            _lower(core, session, subscription, verdict.max_qos)
        _decided(core, session)

    authorize(
        core,
        client,
        core.chains(client.listener),
        None,
        Action.SUBSCRIBE,
        subscription.topic_filter,
        subscription.qos,
        False,
        None,
        subscription,
        answered,
    )


def _lower(core: Core, session: Session, subscription: Subscription, qos: int) -> None:
    """The right stands, but for less: what is published from now on is delivered at the lower QoS."""
    if qos < subscription.qos:
        lowered = subscription.replace(qos=qos)
        subscribe(core, session, lowered)
        if session.durable:
            core.committer.add(PutSubscription(session.client_id, lowered))


def _stop(core: Core, session: Session, subscription: Subscription, verdict: Deny, by: str) -> None:
    """Nobody could decide: the client gets no further message until somebody can, which is asked when it comes back. What
    it has is not taken away for a plugin's illness."""
    core.denied(session.client, Action.SUBSCRIBE, subscription.filter, verdict.code, by)
    if session.connection is not None:
        session.connection.disconnect(verdict.code, "rights could not be decided")


def _take_away(
    core: Core, session: Session, subscription: Subscription, verdict: Deny, by: str
) -> None:
    client = session.client
    core.denied(client, Action.SUBSCRIBE, subscription.filter, verdict.code, by)
    unsubscribe(core, session, subscription)
    core.observe("on_unsubscribed", client, subscription)
    if session.queue:
        session.queue = deque(d for d in session.queue if _still_wanted(core, session, d, by, True))
    if session.queue_qos0:
        kept = deque(d for d in session.queue_qos0 if _still_wanted(core, session, d, by, False))
        session.queue_qos0 = kept or None
    if session.stored or session.inflight:
        if session.revoked is None:
            session.revoked = set()
        session.revoked.add(subscription.filter)
        if session.recorded:
            core.committer.add(record(session))
    connection = session.connection
    if connection is not None and core.settings.broker.on_revoke == "disconnect":
        connection.disconnect(ReasonCode.NOT_AUTHORIZED, "subscription revoked")
    drop_revoked(core, session, session.inflight if session.connection is None else None)


def drop_revoked(core: Core, session: Session, sent: dict[int, Delivery] | None = None) -> None:
    """Drop what was `sent` on an earlier connection, was not acknowledged, and belongs to a subscription that was taken
    away: it would be sent again [MQTT-4.4.0-1]. None: what this connection has still to send again. What had its PUBREC
    is finished."""
    unsent = session.resend if sent is None else sent.values()
    for delivery in list(unsent or ()):
        if (
            delivery.released
            or not session.revoked
            or delivery.subscription.filter not in session.revoked
            or covered(session, delivery)
        ):
            continue
        del session.inflight[delivery.packet_id]
        if session.resend is not None:
            session.resend = deque(d for d in session.resend if d is not delivery)
        if core.committer.take_back(delivery):
            settle(core, delivery)
        else:
            finish(core, session, delivery)
        message = delivery.outgoing.message
        core.dropped(message, session.client, DropReason.REVOKED, Direction.OUT)


def _still_wanted(core: Core, session: Session, delivery: Delivery, by: str, counted: bool) -> bool:
    """Whether a waiting message belongs to a subscription that stands; it is dropped if not."""
    if covered(session, delivery):
        return True
    unqueue(core, session, delivery, counted)
    finish(core, session, delivery)
    message = delivery.outgoing.message
    core.dropped(message, session.client, DropReason.REVOKED, Direction.OUT, by)
    return False
