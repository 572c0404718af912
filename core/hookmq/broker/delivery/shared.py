"""Messages of shared subscriptions: send each to a member with room, or queue it until a member has room. A member that
leaves returns its unacknowledged messages.
"""

from typing import Final

from hookmq.broker.delivery.completion import complete
from hookmq.broker.delivery.queue import wait_qos0
from hookmq.broker.delivery.transmit import (
    assign_sequence,
    first_in_line,
    has_room,
    identifiers_of,
    transmit,
)
from hookmq.broker.state import BrokerState
from hookmq.model.events import Direction, DropReason
from hookmq.model.subscription import Subscription
from hookmq.routing.route import GROUP_STEPS
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.inflight import Delivery, Outgoing
from hookmq.session.session import Session
from hookmq.storage.records import Dequeue, Enqueue

ENTRY: Final = 160
"""Overhead in bytes to count for a group's queue entry, on top of its message. One message may wait in thousands of
groups."""
_ANY_MEMBER: Final = Subscription("", "")
"""The subscription of a message whose recipient has not been chosen yet."""


def offer_group(state: BrokerState, group: SharedSubscription, outgoing: Outgoing) -> None:
    """Send a message to one member of `group` that is online and has room. If there is no such member, queue or drop
    the message."""
    message = outgoing.message
    state.work += GROUP_STEPS + (len(group.online) >> 4)
    if not group.members:  # all members left before the message arrived
        state.dropped(message, None, DropReason.SESSION_ENDED, Direction.OUT, group.owner)
        return
    if not group.queued or message.qos == 0:
        for session in group.candidates(message, state.runtime.random):
            connection = session.connection
            subscription = group.members[session]
            qos = min(message.qos, subscription.qos)  # [MQTT-4.8.2-3]
            if connection is None or not connection.writable or session.paused:
                continue
            if connection.delivery_limit is not None and not connection.may_send():
                continue
            if qos and not (has_room(session) and first_in_line(session)):
                continue
            if group.strategy == "sticky":
                group.sticky = session
            _deliver_shared(state, group, session, subscription, outgoing, qos)
            return
    if message.qos and group.qos:
        _enqueue_shared(state, group, outgoing)
        return
    # QoS 0 is not queued for the group, only for a slow member.
    for session in group.online:
        subscription = group.members[session]
        identifiers = identifiers_of(subscription)
        wait_qos0(state, session, Delivery(outgoing, 0, False, identifiers, subscription))
        return
    state.dropped(message, None, DropReason.OFFLINE_QOS0, Direction.OUT, group.owner)


def _deliver_shared(
    state: BrokerState,
    group: SharedSubscription,
    session: Session,
    subscription: Subscription,
    outgoing: Outgoing,
    qos: int,
) -> None:
    retain = subscription.retain_as_published and outgoing.message.retain
    identifiers = identifiers_of(subscription)  # [MQTT-3.3.4-5]: a separate copy
    delivery = Delivery(outgoing, qos, retain, identifiers, subscription, group)
    if qos and session.durable and state.recording:
        assign_sequence(session, delivery)
    transmit(state, session, delivery, stored=False)


def _enqueue_shared(
    state: BrokerState, group: SharedSubscription, outgoing: Outgoing, front: bool = False
) -> None:
    """Queue a message for any member. A returned message is put at the `front`, even if the queue
    is full.
    """
    size = outgoing.size + ENTRY
    if not front and not _admit(state, group, outgoing, size):
        return
    qos = min(outgoing.message.qos, group.qos)
    delivery = Delivery(outgoing, qos, False, (), _ANY_MEMBER, group)
    delivery.weight = size
    group.waits(size)
    state.queued_bytes += size
    if state.recording and group.durable:
        if front:
            # Entries in front of the queue get descending sequence numbers.
            delivery.seq = group.first_seq = group.first_seq - 1
        else:
            group.last_seq += 1
            delivery.seq = group.last_seq
        entry = Enqueue(group.owner, delivery.seq, state.keep(outgoing), delivery.qos, size)
        state.committer.add(entry)
        state.writes.schedule()
    if front:
        group.queue.appendleft(delivery)
    else:
        group.queue.append(delivery)


def _admit(state: BrokerState, group: SharedSubscription, outgoing: Outgoing, size: int) -> bool:
    """Make room for `outgoing` according to the queue's drop policy.

    Return False if there is no room and `outgoing` was dropped.
    """
    limits = state.settings.session
    payer = group.payer
    while True:
        queued = group.queued if payer is None else payer.shared_queued
        waiting = group.queued_bytes if payer is None else payer.shared_bytes
        if queued >= limits.queue_messages:
            reason = DropReason.QUEUE_FULL
        elif (
            waiting + size > limits.queue_bytes
            or state.queued_bytes + size > state.settings.broker.max_queue_bytes
        ):
            reason = DropReason.QUEUE_BYTES
        else:
            return True
        if limits.queue_drop != "oldest" or not group.queue:
            state.dropped(outgoing.message, None, reason, Direction.OUT, group.owner)
            return False
        oldest = group.queue.popleft()
        dequeue_shared(state, group, oldest)
        state.dropped(oldest.outgoing.message, None, reason, Direction.OUT, group.owner)


def dequeue_shared(state: BrokerState, group: SharedSubscription, delivery: Delivery) -> None:
    """Stop counting a delivery that has left the group's queue, and record its removal."""
    group.gone(delivery.weight)
    state.queued_bytes -= delivery.weight
    if delivery.seq:
        state.committer.add(Dequeue(group.owner, delivery.seq))
        state.writes.schedule()


def take_from_groups(state: BrokerState, session: Session) -> int:
    """Send one message that is waiting in any of the session's groups to `session`, which has room. Return its size, or
    0 if none is waiting.
    """
    state.work += len(session.groups) >> 4
    for group in session.groups:
        if not group.queue:
            continue
        waiting = group.queue.popleft()
        subscription = group.members[session]
        qos = min(waiting.outgoing.message.qos, subscription.qos)
        # The member's queue entry is recorded before the group's is dropped: the message always has an owner.
        outgoing = waiting.outgoing if waiting.seq else waiting.outgoing.without_id()
        _deliver_shared(state, group, session, subscription, outgoing, qos)
        dequeue_shared(state, group, waiting)
        size: int = outgoing.size
        return size
    return 0


def give_back(state: BrokerState, session: Session, deliveries: list[Delivery]) -> list[Delivery]:
    """Give unsent messages and unacknowledged QoS 1 messages back to their groups, for other members. Return the
    deliveries that `session` keeps: QoS 2 deliveries that have started, and everything that is not shared.
    """
    own: list[Delivery] = []
    back: list[tuple[SharedSubscription, Delivery]] = []
    for delivery in deliveries:
        group = delivery.group
        started = delivery.packet_id != 0
        if (
            not isinstance(group, SharedSubscription)
            or (started and delivery.qos == 2)
            or not group.members
        ):
            own.append(delivery)
        else:
            back.append((group, delivery))
    for group, delivery in reversed(back):
        delivery.packet_id = 0
        if delivery.original is not None:
            # A plugin changed the message for this member only.
            outgoing = Outgoing(delivery.original)
        else:
            outgoing = delivery.outgoing if delivery.seq else delivery.outgoing.without_id()
        _enqueue_shared(state, group, outgoing, front=True)
        complete(state, session, delivery)
    return own
