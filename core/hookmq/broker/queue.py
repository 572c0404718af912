"""What waits for a client: bounds and drop policy, and the queue's pages in the store."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from hookmq.broker.committer import entry_of
from hookmq.broker.core import Core
from hookmq.broker.send import finish, settle, take_number
from hookmq.qos import (
    Delivery,
    Outgoing,
)
from hookmq.reason import ReasonCode
from hookmq.session import BEHIND, Session
from hookmq.store import Enqueue, Queued, StoreFailed
from hookmq.topics import matches
from hookmq.types import Direction, DropReason, Message, Subscription

LEAST_PAGE: Final = 65536
"""Bytes of a page of whoever is connected when `broker.queue_memory` is used up: it must come on all the same."""


def enqueue(core: Core, session: Session, delivery: Delivery) -> None:
    """Put a QoS 1 or 2 message (QoS 0 where configured) at the end of the session's queue, within its bounds
    [MQTT311-3.1.2-5]."""
    core.work += 1
    if not _admit(core, session, delivery, session.queued, qos0=False):
        return
    recorded = session.durable and core.recording
    if recorded:
        take_number(session, delivery)
        core.committer.add(entry_of(session.owner, delivery, core.keep(delivery.outgoing)))
    session.queued += 1
    session.queued_bytes += delivery.weight
    core.queued_bytes += delivery.weight
    queue = session.queue
    if queue is None:
        queue = session.queue = deque()
    size = delivery.weight
    if recorded and (
        session.stored
        or len(queue) >= core.settings.session.queue_page
        or core.loaded_bytes + size > core.settings.broker.queue_memory
    ):
        # Only the head of a long queue is in memory; this entry is read again when its turn comes.
        session.stored += 1
        settle(core, delivery)
        return
    queue.append(delivery)
    core.loaded_bytes += size
    session.loaded_seq = delivery.seq


def _admit(core: Core, session: Session, delivery: Delivery, waiting: int, qos0: bool) -> bool:
    """Whether the bounds let one more message wait where `waiting` do; drops as the policy says. `qos0`: it is to wait
    with those of QoS 0 of a slow client, else in the queue, where QoS 0 may stand as well."""
    limits = core.settings.session
    size = delivery.weight
    while True:
        if waiting >= session.queue_messages:
            reason = DropReason.QUEUE_FULL
        elif (
            session.queued_bytes + size > limits.queue_bytes
            or core.queued_bytes + size > core.settings.broker.max_queue_bytes
        ):
            reason = DropReason.QUEUE_BYTES
        else:
            return True
        if limits.queue_drop == "oldest" and _drop_oldest(core, session, qos0, reason):
            waiting -= 1
            continue
        core.dropped(delivery.outgoing.message, session.client, reason, Direction.OUT)
        settle(core, delivery)
        connection = session.connection
        if limits.queue_drop == "disconnect" and connection is not None:
            # Later: this may publish a will to others that are slow as well, and theirs, down a chain of any length.
            leave = partial(
                connection.disconnect, ReasonCode.QUOTA_EXCEEDED, "too many messages wait"
            )
            core.runtime.call_soon(partial(core.guarded, leave))
        return False


def _drop_oldest(core: Core, session: Session, qos0: bool, reason: DropReason) -> bool:
    queue = session.queue_qos0 if qos0 and session.queue_qos0 else session.queue
    if not queue:
        return False
    oldest = queue.popleft()
    unqueue(core, session, oldest, counted=queue is session.queue)
    finish(core, session, oldest)
    core.dropped(oldest.outgoing.message, session.client, reason, Direction.OUT)
    if not session.queue:
        load_page(core, session, _stay)
    return True


def unqueue(core: Core, session: Session, delivery: Delivery, counted: bool) -> None:
    """Count a delivery no longer that was waiting in memory: in `session.queue` if `counted`, else in `queue_qos0`."""
    if counted:
        session.queued -= 1
        core.loaded_bytes -= delivery.weight
    session.queued_bytes -= delivery.weight
    core.queued_bytes -= delivery.weight


def load_page(core: Core, session: Session, then: Callable[[Core, Session], None]) -> None:
    """Read the next page of a durable queue into memory; where that takes time, `then` is called when it came."""
    if session.reading or not session.stored:
        if session.reading and then is not _stay:
            session.on_page = then
        return
    session.reading = True
    session.on_page = None
    last_seq, busy = session.last_seq, core.committer.busy

    def loaded(page: list[Queued] | StoreFailed) -> None:
        if isinstance(page, StoreFailed):  # `reading` stays: nobody asks again
            core.committer.fail(page.reason)
            return
        session.reading = False
        if core.sessions.get(session.client_id) is not session:
            return
        queue = session.queue
        if queue is None:
            queue = session.queue = deque()
        shared: dict[int, Outgoing] = {}
        for entry, message in page:
            session.loaded_seq = entry.seq
            delivery = restore(core, session, entry, message, shared)
            core.loaded_bytes += delivery.weight
            if (
                session.revoked
                and entry.filter in session.revoked
                and not covered(session, delivery)
            ):
                unqueue(core, session, delivery, counted=True)
                finish(core, session, delivery)
                core.dropped(message, session.client, DropReason.REVOKED, Direction.OUT)
                continue
            queue.append(delivery)
        session.stored -= min(session.stored, len(page))
        if not page:
            if not busy and session.last_seq == last_seq:
                session.stored = 0
                return
            # What was queued when the page was asked for was not in the store yet, or came since: look again when it is.
            again = session.on_page or then
            core.committer.then(partial(_look_again, core, session, again), cut=False)
            core.schedule()
        elif not synchronous:
            # For whoever is connected now: a client that came back, or had room, meanwhile found the reading under way.
            (session.on_page or then)(core, session)
            core.schedule()

    limits = core.settings.session
    room = core.settings.broker.queue_memory - core.loaded_bytes
    synchronous = True
    core.store.read(
        session.owner,
        session.loaded_seq,
        limits.queue_page,
        min(limits.queue_bytes, max(room, LEAST_PAGE)),
        loaded,
    )
    synchronous = False


def _look_again(core: Core, session: Session, then: Callable[[Core, Session], None]) -> None:
    if core.sessions.get(session.client_id) is session:
        then(core, session)
        core.schedule()


def covered(session: Session, delivery: Delivery) -> bool:
    """Whether a waiting message belongs to a subscription that stands: its own, or another that matches as well."""
    if delivery.subscription.filter in session.subscriptions:
        return True
    topic = delivery.outgoing.message.topic
    for other in session.subscriptions.values():
        if other.share is None and matches(other.topic_filter, topic):
            delivery.subscription = other
            return True
    return False


def _stay(core: Core, session: Session) -> None:
    """Nothing follows the page: whoever sends next finds it."""


def restore(
    core: Core, session: Session, entry: Enqueue, message: Message, shared: dict[int, Outgoing]
) -> Delivery:
    """A delivery from its queue entry."""
    outgoing = shared.get(entry.message_id)
    if outgoing is None:
        outgoing = shared[entry.message_id] = Outgoing(message, entry.message_id)
    delivery = Delivery(
        outgoing,
        entry.qos,
        entry.retain,
        entry.identifiers,
        session.subscriptions.get(entry.filter)
        or Subscription(entry.filter, entry.filter, entry.qos),
        None,
        entry.seq,
    )
    if entry.group:
        delivery.group = next((g for g in session.groups if g.owner == entry.group), None)
    delivery.weight = entry.size
    delivery.packet_id = entry.packet_id
    delivery.released = entry.released
    return delivery


def wait_qos0(core: Core, session: Session, delivery: Delivery) -> None:
    """Keep a QoS 0 message for a client that is connected but slow, within the bounds."""
    core.work += 1
    queue = session.queue_qos0
    if queue is None:
        queue = session.queue_qos0 = deque()
    if not _admit(core, session, delivery, len(queue), qos0=True):
        return
    queue.append(delivery)
    session.state = BEHIND
    session.queued_bytes += delivery.weight
    core.queued_bytes += delivery.weight
