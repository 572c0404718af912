"""A session's life: created, resumed, left by its connection, expired; and the will that may follow.

connection ends -> expiry 0: the session ends at once
                -> expiry > 0: kept; will due after its delay, session due after its expiry, whichever is first
the will is published at the earlier of the two, unless the client returns before [MQTT-3.1.2-8, 3.1.3-9]
"""

from collections.abc import Iterable
from functools import partial
from math import inf

from hookmq.broker.core import Core
from hookmq.broker.deliver import pump
from hookmq.broker.groups import Group
from hookmq.broker.send import settle
from hookmq.broker.shared import give_back
from hookmq.broker.wills import DueWill
from hookmq.session import BEHIND, Session
from hookmq.store import (
    Dequeue,
    DropSession,
    DropSubscription,
    PutSession,
    SessionRecord,
    group_owner,
)
from hookmq.types import (
    ClientInfo,
    Direction,
    DropReason,
    SessionEvent,
    Subscription,
    Will,
)


def create(core: Core, client: ClientInfo) -> Session:
    """A new, empty session for `client`."""
    session = Session(client)
    core.sessions[client.client_id] = session
    core.metrics.sessions_created += 1
    return session


def record(session: Session) -> PutSession:
    """Return the session as the store keeps it."""
    return PutSession(
        SessionRecord(
            session.client.record(),
            session.expiry,
            {
                "queue_messages": session.queue_messages,
                "max_subscriptions": session.max_subscriptions,
            },
            session.ended_at,
            session.will or session.firing,
            session.will_at,
            tuple(sorted(session.revoked)) if session.revoked else (),
        )
    )


def bytes_of(client: ClientInfo, will: Will | None) -> int:
    """Return the bytes that a session holds of its client's CONNECT."""
    size = len(client.client_id) + len(client.username or "")
    if will is not None:
        message = will.message
        size += len(message.topic) + len(message.payload) + message.properties.extent()
    return size


def weigh(core: Core, session: Session) -> None:
    """Count what the session holds of its client's CONNECT."""
    size = bytes_of(session.client, session.will)
    core.session_bytes += size - session.own_bytes
    session.own_bytes = size


def leave(core: Core, session: Session, will: bool) -> None:
    """The session's connection has ended; `will` tells whether its will is to be published."""
    session.connection = None
    session.epoch += 1
    session.state = BEHIND
    session.out = []
    session.resend = None
    now = core.runtime.time()
    session.ended_at = now
    for group in session.groups:
        group.leave(session)
    if session.queue_qos0:
        _forget_qos0(core, session)
    if not will:
        session.will = None
    if not session.expiry:
        end(core, session, SessionEvent.ENDED)
        return
    return_shared(core, session)
    for delivery in session.inflight.values():
        settle(core, delivery)
    for delivery in session.queue or ():
        settle(core, delivery)
    if session.will is not None:
        delay = min(session.will.delay, core.settings.session.max_will_delay, session.expiry)
        if delay <= 0:
            publish_will(core, session)
        else:
            session.will_at = now + delay
            session.will_due = core.deadlines.after(delay, partial(publish_will, core, session))
    if session.expiry != inf:
        session.expiry_due = core.deadlines.after(
            session.expiry, partial(end, core, session, SessionEvent.EXPIRED)
        )
    core.committer.add(record(session))  # kept [MQTT-3.1.2-23, 4.1.0-1] [MQTT311-3.1.2-4, 4.1.0-1]
    core.schedule()


def _forget_qos0(core: Core, session: Session) -> None:
    for delivery in session.queue_qos0 or ():
        session.queued_bytes -= delivery.weight
        core.queued_bytes -= delivery.weight
        message = delivery.outgoing.message
        core.dropped(message, session.client, DropReason.CLIENT_LEFT, Direction.OUT)
    session.queue_qos0 = None


def return_shared(core: Core, session: Session) -> None:
    """Messages of shared subscriptions that were not acknowledged go back to their groups."""
    if not session.groups:
        return
    kept = give_back(core, session, list(session.inflight.values()))
    session.inflight = {delivery.packet_id: delivery for delivery in kept}
    hand_out_waiting(core, tuple(session.groups))


def hand_out_waiting(core: Core, groups: Iterable[Group]) -> None:
    """Let the members with room take what came back to their groups."""
    for group in groups:
        if group.queued:
            for member in list(group.online):
                pump(core, member)


def expired(core: Core, session: Session) -> bool:
    """Whether a session's time is over, judged at its client's return rather than by whoever sweeps
    [MQTT-4.1.0-2]."""
    ended = session.ended_at
    return ended is not None and ended + session.expiry <= core.runtime.time()


def end(core: Core, session: Session, event: SessionEvent) -> None:
    """End a session: its will is due now at the latest, its subscriptions and messages go [MQTT-3.1.2-8, 4.1.0-2].
    What it retained stays [MQTT311-3.1.2-7]."""
    if core.sessions.get(session.client_id) is session:
        del core.sessions[session.client_id]
    if session.expiry_due is not None:
        session.expiry_due.cancel()
        session.expiry_due = None
    if session.queue_qos0:
        _forget_qos0(core, session)
    groups = tuple(session.groups)
    shared = (
        [d for d in session.inflight.values() if d.group is not None] if session.inflight else None
    )
    if shared:
        # Also of groups that it has left: it can finish nothing any more.
        left = dict.fromkeys(d.group for d in shared if isinstance(d.group, Group))
        groups += tuple(group for group in left if group not in groups)
        returned = set(shared) - set(give_back(core, session, shared))
        session.inflight = {n: d for n, d in session.inflight.items() if d not in returned}
    if session.subscriptions:
        for subscription in list(session.subscriptions.values()):
            unsubscribe(core, session, subscription, record_it=False)
    if session.inflight or session.queue:
        for delivery in [*session.inflight.values(), *(session.queue or ())]:
            settle(core, delivery)
    count = len(session.inflight) + session.queued
    if count:
        core.metrics.count_drop(DropReason.SESSION_ENDED, Direction.OUT, count)
        if "on_dropped" in core.observed:
            _tell_dropped(core, session)
    core.session_bytes -= session.own_bytes
    session.own_bytes = 0
    core.queued_bytes -= session.queued_bytes
    if session.queue:
        core.loaded_bytes -= sum(delivery.weight for delivery in session.queue)
    session.queue = None
    session.backlog = None
    session.inflight = {}
    session.received = None
    session.queued = session.queued_bytes = session.stored = 0
    if session.recorded:
        if core.ended_meanwhile is not None:
            core.ended_meanwhile.add(session.client_id)
        core.committer.add(DropSession(session.client_id))
        core.ending[session.client_id] = core.ending.get(session.client_id, 0) + 1
        core.committer.then(partial(_ended, core, session.client_id), cut=False)
        core.schedule()
    if event is SessionEvent.EXPIRED:
        core.metrics.sessions_expired += 1
    if "on_session" in core.observed:
        core.observe("on_session", session.client, event)
    if groups:
        hand_out_waiting(core, groups)
    publish_will(core, session)
    if session.firing is not None and session.recorded:
        # A plugin has still to decide, and the session's record goes with this batch. [MQTT-3.1.2-8]: a crash until then
        # must not lose the will.
        session.lingering = True
        now = core.runtime.time()
        core.committer.add(
            PutSession(SessionRecord(session.client.record(), 0.0, {}, now, session.firing, now))
        )
        core.schedule()


def _ended(core: Core, client_id: str) -> None:
    """The end of a session of this client is on record."""
    left = core.ending.pop(client_id) - 1
    if left:
        core.ending[client_id] = left


def _tell_dropped(core: Core, session: Session) -> None:
    for delivery in [*session.inflight.values(), *(session.queue or ())]:
        message = delivery.outgoing.message
        if message.topic:
            # Counted by the caller, all at once.
            core.metrics.count_drop(DropReason.SESSION_ENDED, Direction.OUT, -1)
            core.dropped(message, session.client, DropReason.SESSION_ENDED, Direction.OUT)


def publish_will(core: Core, session: Session) -> None:
    """Publish the session's will, if it still has one: once, through the one pipeline, as its owner
    [MQTT-3.1.2-10, 3.1.2-8] [MQTT311-3.1.2-8, 3.1.2-10]."""
    will, session.will = session.will, None
    session.will_at = None
    if session.will_due is not None:
        session.will_due.cancel()
        session.will_due = None
    if will is None:  # [MQTT311-3.1.2-12]
        return
    core.metrics.wills_published += 1
    now = core.runtime.time()
    interval = will.message.properties.message_expiry_interval
    message = will.message.replace(
        received_at=now, expires_at=None if interval is None else now + interval
    )
    session.firing = will
    # Neither names the other: compiled, that is a cycle, and the will stays until the collector comes.
    DueWill(core, session, message, partial(_forget_will, core, session)).ask()


def _forget_will(core: Core, session: Session) -> None:
    """Take the will off the record, in one batch with its message: a crash publishes the will or keeps it, never both
    or neither."""
    session.firing = None
    if not session.recorded:
        return
    known = core.sessions.get(session.client_id)
    if known is session:
        core.committer.add(record(session))
    elif session.lingering:
        session.lingering = False
        if known is None or not known.recorded:
            core.committer.add(DropSession(session.client_id))


def cancel_will(session: Session) -> None:
    """The client is back in time, or took its will back [MQTT-3.1.3-9, 3.14.4-3]."""
    session.will = None
    session.will_at = None
    if session.will_due is not None:
        session.will_due.cancel()
        session.will_due = None


def set_will(session: Session, will: Will | None) -> None:
    """Keep the will of a new connection [MQTT-3.1.2-7]."""
    cancel_will(session)
    session.will = will


# --- subscriptions ------------------------------------------------------------------------------------------------------


def subscribe(core: Core, session: Session, subscription: Subscription) -> Subscription | None:
    """Add or replace a subscription [MQTT-3.8.4-3]; returns the one it replaces."""
    known = session.subscriptions.get(subscription.filter)
    if known is not None and (
        known.topic_filter != subscription.topic_filter or known.share != subscription.share
    ):
        unsubscribe(core, session, known, record_it=False)
    if subscription.filter not in session.subscriptions:
        session.filter_bytes += len(subscription.filter)
        core.session_bytes += len(subscription.filter)
    session.subscriptions[subscription.filter] = subscription
    if subscription.share is None:
        core.router.subscribe(subscription.topic_filter, session, subscription)
        return known
    key = (subscription.share, subscription.topic_filter)
    group = core.groups.get(key)
    if group is None:
        strategy = core.settings.broker.shared_groups.get(
            subscription.share, core.settings.broker.shared_strategy
        )
        group = core.groups[key] = Group(*key, group_owner(*key), strategy)
        core.router.subscribe(subscription.topic_filter, group, subscription)
    group.admit(session, subscription)
    session.groups[group] = None
    if session.connection is not None:
        group.enter(session)
    return known


def unsubscribe(
    core: Core, session: Session, subscription: Subscription, record_it: bool = True
) -> None:
    """Remove a subscription: nothing new is queued for it; what was started is finished [MQTT-3.10.4-2, 3.10.4-3]
    [MQTT311-3.10.4-2, 3.10.4-3]."""
    if session.subscriptions.pop(subscription.filter, None) is not None:
        session.filter_bytes -= len(subscription.filter)
        core.session_bytes -= len(subscription.filter)
    if record_it and session.durable:
        core.committer.add(DropSubscription(session.client_id, subscription.filter))
        core.schedule()
    if subscription.share is None:
        core.router.unsubscribe(subscription.topic_filter, session)
        return
    key = (subscription.share, subscription.topic_filter)
    group = core.groups.get(key)
    if group is None:
        return
    group.expel(session)
    session.groups.pop(group, None)
    if group.members:
        return
    core.router.unsubscribe(group.topic_filter, group)
    del core.groups[key]
    forsake(core, group)


def forsake(core: Core, group: Group) -> None:
    """The last member of a group is gone: nobody will ever take what waits for it."""
    while group.queue:
        waiting = group.queue.popleft()
        core.queued_bytes -= waiting.weight
        group.gone(waiting.weight)
        message = waiting.outgoing.message
        core.dropped(message, None, DropReason.SESSION_ENDED, Direction.OUT, group.owner)
        if waiting.seq:
            core.committer.add(Dequeue(group.owner, waiting.seq))
            core.schedule()
