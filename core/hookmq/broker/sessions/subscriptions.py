"""Add, replace and remove a session's subscriptions, including shared ones."""

from hookmq.broker.delivery.shared import dequeue_shared
from hookmq.broker.state import BrokerState
from hookmq.model.events import Direction, DropReason
from hookmq.model.subscription import Subscription
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.session import Session
from hookmq.storage.records import DropSubscription, group_owner


def subscribe(
    state: BrokerState, session: Session, subscription: Subscription
) -> Subscription | None:
    """Add or replace a subscription [MQTT-3.8.4-3]. Return the replaced subscription, or None."""
    known = session.subscriptions.get(subscription.filter)
    if known is not None and (
        known.topic_filter != subscription.topic_filter or known.share != subscription.share
    ):
        unsubscribe(state, session, known, record_it=False)
    if subscription.filter not in session.subscriptions:
        session.filter_bytes += len(subscription.filter)
        state.session_bytes += len(subscription.filter)
    session.subscriptions[subscription.filter] = subscription
    if state.cluster is not None:
        state.cluster.subscribed(session.client_id, session.durable, subscription, True)
    if subscription.share is None:
        state.router.subscribe(subscription.topic_filter, session, subscription)
        return known
    key = (subscription.share, subscription.topic_filter)
    group = state.groups.get(key)
    if group is None:
        settings = state.settings.broker
        strategy = settings.shared_groups.get(subscription.share, settings.shared_strategy)
        group = state.groups[key] = SharedSubscription(*key, group_owner(*key), strategy)
        state.group_index.add(group)
        state.router.subscribe(subscription.topic_filter, group, subscription)
    group.admit(session, subscription)
    session.groups[group] = None
    if session.connection is not None:
        enter(state, group, session)
    return known


def unsubscribe(
    state: BrokerState,
    session: Session,
    subscription: Subscription,
    record_it: bool = True,
    keep_queue: bool = False,
) -> None:
    """Remove a subscription. New messages are no longer queued for it, and started deliveries are completed
    [MQTT-3.10.4-2, 3.10.4-3] [MQTT311-3.10.4-2, 3.10.4-3]. If `keep_queue` is true, the queue of a shared subscription
    without members waits for new ones."""
    if session.subscriptions.pop(subscription.filter, None) is not None:
        if state.cluster is not None:
            state.cluster.subscribed(session.client_id, session.durable, subscription, False)
        session.filter_bytes -= len(subscription.filter)
        state.session_bytes -= len(subscription.filter)
    if record_it and session.durable:
        state.committer.add(DropSubscription(session.client_id, subscription.filter))
        state.writes.schedule()
    if subscription.share is None:
        state.router.unsubscribe(subscription.topic_filter, session)
        return
    key = (subscription.share, subscription.topic_filter)
    group = state.groups.get(key)
    if group is None:
        return
    group.expel(session)
    _tell_online(state, group)
    session.groups.pop(group, None)
    if not group.members and not (keep_queue and group.queue):
        state.router.unsubscribe(group.topic_filter, group)
        del state.groups[key]
        state.group_index.remove(group)
        drop_orphaned(state, group)


def enter(state: BrokerState, group: SharedSubscription, session: Session) -> None:
    """Count a member of `group` as online."""
    group.enter(session)
    _tell_online(state, group)


def leave(state: BrokerState, group: SharedSubscription, session: Session) -> None:
    """Count a member of `group` as offline."""
    group.leave(session)
    _tell_online(state, group)


def _tell_online(state: BrokerState, group: SharedSubscription) -> None:
    if state.cluster is not None:
        state.cluster.online(group.owner, len(group.online))


def remove(state: BrokerState, session: Session, filter: str) -> bool:
    """Remove the subscription with this filter, and notify observers. Return False if there is none. Filters are compared
    character by character."""
    known = session.subscriptions.get(filter)
    if known is None:
        return False
    unsubscribe(state, session, known)
    state.observe("on_unsubscribed", session.client, known)
    return True


def drop_orphaned(state: BrokerState, group: SharedSubscription) -> None:
    """Drop the queue of a shared subscription that has no members left."""
    while group.queue:
        delivery = group.queue.popleft()
        dequeue_shared(state, group, delivery)
        message = delivery.outgoing.message
        state.dropped(message, None, DropReason.SESSION_ENDED, Direction.OUT, group.owner)
