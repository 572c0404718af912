"""The life cycle of a session: created, detached from its connection, expired or ended.

connection ends -> expiry 0: the session ends at once
                -> expiry > 0: the session remains; its will is published after the delay, and it ends after the expiry
If the session ends first, its will is published then. If the client returns first, the will is not published
[MQTT-3.1.2-8, 3.1.3-9].
"""

from collections.abc import Iterable
from functools import partial
from math import inf

from hookmq.broker.cluster_delivery import hand_on
from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.delivery.shared import give_back
from hookmq.broker.delivery.transmit import release_publisher
from hookmq.broker.sessions.session_record import record
from hookmq.broker.sessions.subscriptions import leave, unsubscribe
from hookmq.broker.sessions.wills import publish_will
from hookmq.broker.state import BrokerState
from hookmq.model.client import ClientInfo
from hookmq.model.events import Direction, DropReason, SessionEvent
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.inflight import Delivery
from hookmq.session.session import QUEUEING, Session
from hookmq.storage.records import DropSession, PutSession, SessionRecord


def create(state: BrokerState, client: ClientInfo) -> Session:
    """Create an empty session for `client`."""
    session = Session(client)
    state.sessions[client.client_id] = session
    state.session_index.add(session)
    state.metrics.sessions_created += 1
    return session


def account_connect(state: BrokerState, session: Session) -> None:
    """Count the bytes of CONNECT that the session holds."""
    size = len(session.client_id) + len(session.client.username or "")
    if session.will is not None:
        message = session.will.message
        size += len(message.topic) + len(message.payload) + message.properties.extent()
    state.session_bytes += size - session.own_bytes
    session.own_bytes = size


def detach(state: BrokerState, session: Session, will: bool) -> None:
    """Detach the session from its connection, which has ended. `will` is true if its will should be published."""
    session.connection = None
    session.generation += 1
    session.state = QUEUEING
    session.out = []
    session.resend = None
    now = state.runtime.time()
    session.ended_at = now
    for group in session.groups:
        leave(state, group, session)
    _drop_qos0(state, session)
    if not will:
        session.will = None
    if not session.expiry:
        end_session(state, session, SessionEvent.ENDED)
        return
    return_shared(state, session)
    for delivery in deliveries(session):
        release_publisher(state, delivery)
    if session.will is not None:
        delay = min(session.will.delay, state.settings.session.max_will_delay, session.expiry)
        if delay <= 0:
            publish_will(state, session)
        else:
            session.will_at = now + delay
            schedule_will(state, session, delay)
    schedule_end(state, session, session.expiry)
    state.committer.add(record(session))  # kept [MQTT-3.1.2-23, 4.1.0-1] [MQTT311-3.1.2-4, 4.1.0-1]
    state.writes.schedule()


def schedule_will(state: BrokerState, session: Session, delay: float) -> None:
    """Publish the session's will in `delay` seconds."""
    session.will_due = state.deadlines.after(delay, partial(publish_will, state, session))


def schedule_end(state: BrokerState, session: Session, delay: float) -> None:
    """Let the session expire in `delay` seconds, unless it never expires."""
    if session.expiry != inf:
        end = partial(end_session, state, session, SessionEvent.EXPIRED)
        session.expiry_due = state.deadlines.after(delay, end)


def cancel_end(session: Session) -> None:
    """Undo `schedule_end`."""
    if session.expiry_due is not None:
        session.expiry_due.cancel()
        session.expiry_due = None


def deliveries(session: Session) -> list[Delivery]:
    """Return the QoS 1 and 2 deliveries that are in flight or waiting in memory."""
    return [*session.inflight.values(), *(session.queue or ())]


def _drop_qos0(state: BrokerState, session: Session) -> None:
    for delivery in session.queue_qos0 or ():
        session.queued_bytes -= delivery.weight
        state.queued_bytes -= delivery.weight
        message = delivery.outgoing.message
        state.dropped(message, session.client, DropReason.CLIENT_LEFT, Direction.OUT)
    session.queue_qos0 = None


def return_shared(state: BrokerState, session: Session) -> None:
    """Return unacknowledged messages to their shared subscriptions."""
    if not session.groups:
        return
    kept = give_back(state, session, list(session.inflight.values()))
    session.inflight = {delivery.packet_id: delivery for delivery in kept}
    redistribute(state, tuple(session.groups))
    if state.cluster is not None:
        for group in session.groups:
            # Later: while a dead node's sessions are adopted, the cluster still counts their members as that node's.
            state.runtime.call_soon(partial(state.guarded, partial(hand_on, state, group)))


def redistribute(state: BrokerState, groups: Iterable[SharedSubscription]) -> None:
    """Let members with room take the messages that were returned to `groups`."""
    for group in groups:
        if group.queued:
            for member in list(group.online):
                drain_queue(state, member)


def expired(state: BrokerState, session: Session) -> bool:
    """Return whether the session has expired. The timer may be late, so check the clock when a client returns
    [MQTT-4.1.0-2]."""
    ended = session.ended_at
    return ended is not None and ended + session.expiry <= state.runtime.time()


def end_session(state: BrokerState, session: Session, event: SessionEvent) -> None:
    """End a session: publish its will, and remove its subscriptions and messages [MQTT-3.1.2-8, 4.1.0-2]. Its
    retained messages are kept [MQTT311-3.1.2-7].
    """
    if state.sessions.get(session.client_id) is session:
        del state.sessions[session.client_id]
        state.session_index.remove(session)
    cancel_end(session)
    _drop_qos0(state, session)
    groups = _return_all_shared(state, session)
    if session.subscriptions:
        for subscription in list(session.subscriptions.values()):
            unsubscribe(state, session, subscription, record_it=False)
    _drop_messages(state, session)
    if session.recorded:
        if state.ended_meanwhile is not None:
            state.ended_meanwhile.add(session.client_id)
        state.committer.add(DropSession(session.client_id))
        state.ending[session.client_id] = state.ending.get(session.client_id, 0) + 1
        state.committer.after_commit(
            partial(_end_recorded, state, session.client_id), may_split=False
        )
        state.writes.schedule()
    if event is SessionEvent.EXPIRED:
        state.metrics.sessions_expired += 1
    if "on_session" in state.observed:
        state.observe("on_session", session.client, event)
    if groups:
        redistribute(state, groups)
    publish_will(state, session)
    if session.firing is not None and session.recorded:
        # A plugin has yet to decide, and this batch drops the session's record. A crash must not lose the will
        # [MQTT-3.1.2-8].
        session.lingering = True
        now = state.runtime.time()
        state.committer.add(
            PutSession(SessionRecord(session.client.record(), 0.0, {}, now, session.firing, now))
        )
        state.writes.schedule()


def terminate(state: BrokerState, session: Session, reason: str) -> None:
    """Disconnect the session's client, publish its will, and end the session before it expires."""
    if session.connection is not None:
        session.connection.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, reason)
    if state.sessions.get(session.client_id) is session:  # else it ended with its connection
        end_session(state, session, SessionEvent.ENDED)
    state.writes.schedule()


def _return_all_shared(state: BrokerState, session: Session) -> tuple[SharedSubscription, ...]:
    """Give an ending session's shared messages back to their groups, including groups that it has left. The session can
    no longer complete deliveries. Return the groups that may have received messages.
    """
    groups = tuple(session.groups)
    shared = [d for d in session.inflight.values() if d.group is not None]
    if shared:
        left = dict.fromkeys(d.group for d in shared if isinstance(d.group, SharedSubscription))
        groups += tuple(group for group in left if group not in groups)
        returned = set(shared) - set(give_back(state, session, shared))
        session.inflight = {n: d for n, d in session.inflight.items() if d not in returned}
    return groups


def _drop_messages(state: BrokerState, session: Session) -> None:
    """Drop all messages in flight to or queued for an ending session."""
    waiting = deliveries(session)
    for delivery in waiting:
        release_publisher(state, delivery)
    count = len(session.inflight) + session.queued
    if count:
        state.metrics.count_drop(DropReason.SESSION_ENDED, Direction.OUT, count)
        if "on_dropped" in state.observed:
            for delivery in waiting:
                message = delivery.outgoing.message
                if message.topic:
                    # `dropped` counts it again.
                    state.metrics.count_drop(DropReason.SESSION_ENDED, Direction.OUT, -1)
                    state.dropped(message, session.client, DropReason.SESSION_ENDED, Direction.OUT)
    clear_messages(state, session)


def clear_messages(state: BrokerState, session: Session) -> None:
    """Forget all messages of a session, without recording it."""
    state.session_bytes -= session.own_bytes
    session.own_bytes = 0
    state.queued_bytes -= session.queued_bytes
    if session.queue:
        state.loaded_bytes -= sum(delivery.weight for delivery in session.queue)
    session.queue = None
    session.backlog = None
    session.inflight = {}
    session.received = None
    session.queued = session.queued_bytes = session.stored = 0
    waiting, session.on_page = session.on_page, None
    if waiting is not None:  # no page will arrive
        state.runtime.call_soon(partial(state.guarded, partial(waiting, state, session)))


def _end_recorded(state: BrokerState, client_id: str) -> None:
    """Stop counting one ended session of this client, because its end has been committed."""
    left = state.ending.pop(client_id) - 1
    if left:
        state.ending[client_id] = left
