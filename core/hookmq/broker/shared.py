"""Messages of shared subscriptions: handed to a member with room, kept by the group until there is one, given back when a
member leaves.
"""

from typing import Final

from hookmq.broker.core import Core
from hookmq.broker.groups import Group
from hookmq.broker.queue import wait_qos0
from hookmq.broker.routes import GROUP_STEPS
from hookmq.broker.send import finish, first_in_line, has_room, identifiers_of, start, take_number
from hookmq.qos import (
    Delivery,
    Outgoing,
)
from hookmq.session import Session
from hookmq.store import Dequeue, Enqueue
from hookmq.types import Direction, DropReason, Subscription

ENTRY: Final = 160
"""Bytes that a message takes in a group's queue besides itself: it may wait in thousands of groups."""


def offer_group(core: Core, group: Group, outgoing: Outgoing) -> None:
    """Hand a message to one member of `group`: one that is online and has room, else it waits in the group's queue."""
    message = outgoing.message
    core.work += GROUP_STEPS + (len(group.online) >> 4)
    if not group.members:  # all left while the message was on its way
        core.dropped(message, None, DropReason.SESSION_ENDED, Direction.OUT, group.owner)
        return
    if not group.queued or message.qos == 0:
        for session in group.candidates(message, core.runtime.random):
            connection = session.connection
            subscription = group.members[session]
            qos = min(message.qos, subscription.qos)  # [MQTT-4.8.2-3]
            if connection is None or not connection.writable or session.paused:
                continue
            if connection.pace is not None and not connection.may_send():
                continue
            if qos and not (has_room(session) and first_in_line(session)):
                continue
            if group.strategy == "sticky":
                group.sticky = session
            _deliver_shared(core, group, session, subscription, outgoing, qos)
            return
    if message.qos == 0 or group.qos == 0:
        # QoS 0 waits for nobody: it goes into the queue of a slow member, if there is one.
        for session in group.online:
            subscription = group.members[session]
            identifiers = identifiers_of(subscription)
            wait_qos0(core, session, Delivery(outgoing, 0, False, identifiers, subscription))
            return
        core.dropped(message, None, DropReason.OFFLINE_QOS0, Direction.OUT, group.owner)
        return
    _wait_in_group(core, group, outgoing)


def _deliver_shared(
    core: Core,
    group: Group,
    session: Session,
    subscription: Subscription,
    outgoing: Outgoing,
    qos: int,
) -> None:
    retain = subscription.retain_as_published and outgoing.message.retain
    identifiers = identifiers_of(subscription)  # [MQTT-3.3.4-5]: a copy of its own
    delivery = Delivery(outgoing, qos, retain, identifiers, subscription, group)
    if qos and session.durable and core.recording:
        take_number(session, delivery)
    start(core, session, delivery, stored=False)


def _wait_in_group(core: Core, group: Group, outgoing: Outgoing, front: bool = False) -> None:
    limits = core.settings.session
    payer = group.payer
    size = outgoing.size + ENTRY
    while not front:
        queued = group.queued if payer is None else payer.shared_queued
        waiting = group.queued_bytes if payer is None else payer.shared_bytes
        if queued >= limits.queue_messages:
            reason = DropReason.QUEUE_FULL
        elif (
            waiting + size > limits.queue_bytes
            or core.queued_bytes + size > core.settings.broker.max_queue_bytes
        ):
            reason = DropReason.QUEUE_BYTES
        else:
            break
        if limits.queue_drop == "oldest" and group.queue:
            oldest = group.queue.popleft()
            left_group(core, group, oldest)
            core.dropped(oldest.outgoing.message, None, reason, Direction.OUT, group.owner)
            continue
        core.dropped(outgoing.message, None, reason, Direction.OUT, group.owner)
        return
    delivery = Delivery(
        outgoing, min(outgoing.message.qos, group.qos), False, (), _OF_A_GROUP, group
    )
    delivery.weight = size
    group.waits(size)
    core.queued_bytes += size
    if core.recording and group.durable:
        if front:
            # Before everything else that waits: the sequence runs downwards there.
            delivery.seq = group.first_seq = group.first_seq - 1
        else:
            group.last_seq += 1
            delivery.seq = group.last_seq
        entry = Enqueue(group.owner, delivery.seq, core.keep(outgoing), delivery.qos, size)
        core.committer.add(entry)
        core.schedule()
    if front:
        group.queue.appendleft(delivery)
    else:
        group.queue.append(delivery)


_OF_A_GROUP: Final = Subscription("", "")
"""Stands in for the subscription of a message whose receiver is not known yet."""


def left_group(core: Core, group: Group, delivery: Delivery) -> None:
    group.gone(delivery.weight)
    core.queued_bytes -= delivery.weight
    if delivery.seq:
        core.committer.add(Dequeue(group.owner, delivery.seq))
        core.schedule()


def take_from_groups(core: Core, session: Session) -> int:
    """Let a member with room take one message that waits for its group; its size, 0 when none waits."""
    core.work += len(session.groups) >> 4
    for group in session.groups:
        if not group.queue:
            continue
        waiting = group.queue.popleft()
        subscription = group.members[session]
        qos = min(waiting.outgoing.message.qos, subscription.qos)
        # The entry in the member's queue is recorded before the group's own goes: the message is never without owner.
        outgoing = waiting.outgoing if waiting.seq else waiting.outgoing.anew()
        _deliver_shared(core, group, session, subscription, outgoing, qos)
        left_group(core, group, waiting)
        size: int = outgoing.size
        return size
    return 0


def give_back(core: Core, session: Session, deliveries: list[Delivery]) -> list[Delivery]:
    """Return to their groups what `session` had of them: unsent messages and unacknowledged QoS 1, to be taken by another
    member. What stays the session's own is returned: QoS 2 that was started, and everything not shared."""
    own: list[Delivery] = []
    back: list[tuple[Group, Delivery]] = []
    for delivery in deliveries:
        group = delivery.group
        started = delivery.packet_id != 0
        if not isinstance(group, Group) or (started and delivery.qos == 2) or not group.members:
            own.append(delivery)
        else:
            back.append((group, delivery))
    for group, delivery in reversed(back):
        delivery.packet_id = 0
        if delivery.original is not None:
            # Another member's copy is not made of what a plugin made for this one.
            outgoing = Outgoing(delivery.original)
        else:
            outgoing = delivery.outgoing if delivery.seq else delivery.outgoing.anew()
        _wait_in_group(core, group, outgoing, front=True)
        finish(core, session, delivery)
    return own
