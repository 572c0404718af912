"""A session's queue: its bounds, its drop policy and its pages in the store."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from hookmq.broker.delivery.completion import complete
from hookmq.broker.delivery.transmit import assign_sequence, release_publisher
from hookmq.broker.state import BrokerState
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import matches
from hookmq.session.inflight import Delivery, Outgoing
from hookmq.session.session import QUEUEING, Session
from hookmq.storage.group_commit import entry_of
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import Enqueue, Queued, session_owner

LEAST_PAGE: Final = 65536
"""Page size in bytes once `broker.queue_memory` is used up, because a connected client must still get its messages."""


def enqueue(state: BrokerState, session: Session, delivery: Delivery) -> None:
    """Append a QoS 1 or 2 message (or QoS 0, if so configured) to the session's queue, within its bounds
    [MQTT311-3.1.2-5].
    """
    state.work += 1
    if not _admit(state, session, delivery, session.queued, qos0=False):
        return
    recorded = session.durable and state.recording
    if recorded:
        assign_sequence(session, delivery)
        owner = session_owner(session.client_id)
        state.committer.add(entry_of(owner, delivery, state.keep(delivery.outgoing)))
    else:
        session.last_seq += 1
        delivery.position = session.last_seq
    session.queued += 1
    session.queued_bytes += delivery.weight
    state.queued_bytes += delivery.weight
    queue = session.queue
    if queue is None:
        queue = session.queue = deque()
    size = delivery.weight
    if recorded and (
        session.stored
        or len(queue) >= state.queue_limits.queue_page
        or state.loaded_bytes + size > state.queue_limits.queue_memory
    ):
        # Only the head of a long queue is in memory. This entry is read from the store when it is needed.
        session.stored += 1
        release_publisher(state, delivery)
        return
    queue.append(delivery)
    state.loaded_bytes += size
    session.loaded_seq = delivery.seq


def _admit(
    state: BrokerState, session: Session, delivery: Delivery, waiting: int, qos0: bool
) -> bool:
    """Return whether one more message may wait, in addition to `waiting` others. If there is no room,
    apply the drop policy. If `qos0` is true, the message waits among a slow client's QoS 0 messages,
    otherwise in the queue.
    """
    limits = state.queue_limits
    size = delivery.weight
    while True:
        if waiting >= session.queue_messages:
            reason = DropReason.QUEUE_FULL
        elif (
            session.queued_bytes + size > limits.queue_bytes
            or state.queued_bytes + size > limits.max_queue_bytes
        ):
            reason = DropReason.QUEUE_BYTES
        else:
            return True
        if limits.queue_drop == "oldest" and _drop_oldest(state, session, qos0, reason):
            waiting -= 1
            continue
        state.dropped(delivery.outgoing.message, session.client, reason, Direction.OUT)
        release_publisher(state, delivery)
        connection = session.connection
        if limits.queue_drop == "disconnect" and connection is not None:
            # Disconnect in a later turn: this may publish a will, which may disconnect other slow clients, and so on.
            leave = partial(
                connection.disconnect, ReasonCode.QUOTA_EXCEEDED, "too many messages wait"
            )
            state.runtime.call_soon(partial(state.guarded, leave))
        return False


def _drop_oldest(state: BrokerState, session: Session, qos0: bool, reason: DropReason) -> bool:
    queue = session.queue_qos0 if qos0 and session.queue_qos0 else session.queue
    if not queue:
        return False
    oldest = queue.popleft()
    account_dequeued(state, session, oldest, counted=queue is session.queue)
    complete(state, session, oldest)
    state.dropped(oldest.outgoing.message, session.client, reason, Direction.OUT)
    if not session.queue:
        load_page(state, session, _no_op)
    return True


def account_dequeued(
    state: BrokerState, session: Session, delivery: Delivery, counted: bool
) -> None:
    """Stop counting a delivery that waited in memory. The delivery was in `session.queue` if `counted`, otherwise in
    `queue_qos0`."""
    if counted:
        session.queued -= 1
        state.loaded_bytes -= delivery.weight
    session.queued_bytes -= delivery.weight
    state.queued_bytes -= delivery.weight


def load_page(
    state: BrokerState, session: Session, then: Callable[[BrokerState, Session], None]
) -> None:
    """Read the next page of a durable queue into memory. If that takes time, call `then` when the page is loaded."""
    if session.loading or not session.stored:
        if session.loading and then is not _no_op:
            session.on_page = then
        return
    session.loading = True
    session.on_page = None
    last_seq, busy = session.last_seq, state.committer.busy

    def loaded(page: list[Queued] | StoreFailed) -> None:
        if isinstance(page, StoreFailed):  # `loading` remains set, so nothing reads again
            state.committer.fail(page.reason)
            return
        session.loading = False
        if state.sessions.get(session.client_id) is not session:
            return
        queue = session.queue
        if queue is None:
            queue = session.queue = deque()
        shared: dict[int, Outgoing] = {}
        for entry, message in page:
            session.loaded_seq = entry.seq
            delivery = restore(state, session, entry, message, shared)
            state.loaded_bytes += delivery.weight
            if (
                session.revoked
                and entry.filter in session.revoked
                and not has_subscription_for(session, delivery)
            ):
                account_dequeued(state, session, delivery, counted=True)
                complete(state, session, delivery)
                state.dropped(message, session.client, DropReason.REVOKED, Direction.OUT)
                continue
            queue.append(delivery)
        session.stored -= min(session.stored, len(page))
        if not page:
            if not busy and session.last_seq == last_seq:
                session.stored = 0
                return
            # Entries newer than the request were not in the store yet. Read again when they are.
            again = session.on_page or then
            state.committer.after_commit(
                partial(_look_again, state, session, again), may_split=False
            )
            state.writes.schedule()
        elif not synchronous:
            # The client may have returned, or found room, while the page was read.
            _call_on_page(state, session, then)
            state.writes.schedule()

    limits = state.settings.session
    room = state.settings.broker.queue_memory - state.loaded_bytes
    synchronous = True
    state.store.read(
        session.owner,
        session.loaded_seq,
        limits.queue_page,
        min(limits.queue_bytes, max(room, LEAST_PAGE)),
        loaded,
    )
    synchronous = False


def _look_again(
    state: BrokerState, session: Session, then: Callable[[BrokerState, Session], None]
) -> None:
    if state.sessions.get(session.client_id) is session:
        _call_on_page(state, session, then)
        state.writes.schedule()


def _call_on_page(
    state: BrokerState, session: Session, then: Callable[[BrokerState, Session], None]
) -> None:
    """Call the function waiting for the page: `Session.on_page`, or `then` if it is not set."""
    waiting, session.on_page = session.on_page or then, None
    waiting(state, session)


def has_subscription_for(session: Session, delivery: Delivery) -> bool:
    """Return whether a waiting message still has a subscription: the original one, or another that matches."""
    if delivery.subscription.filter in session.subscriptions:
        return True
    topic = delivery.outgoing.message.topic
    for other in session.subscriptions.values():
        if other.share is None and matches(other.topic_filter, topic):
            delivery.subscription = other
            return True
    return False


def _no_op(state: BrokerState, session: Session) -> None:
    """Do nothing when a page is loaded. The next attempt to send will find the page."""


def restore(
    state: BrokerState,
    session: Session,
    entry: Enqueue,
    message: Message,
    shared: dict[int, Outgoing],
) -> Delivery:
    """Return the delivery that a queue entry describes."""
    outgoing = shared.get(entry.message_ref)
    if outgoing is None:
        outgoing = shared[entry.message_ref] = Outgoing(message, entry.message_ref)
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


def wait_qos0(state: BrokerState, session: Session, delivery: Delivery) -> None:
    """Queue a QoS 0 message for a slow connected client, within the bounds."""
    state.work += 1
    queue = session.queue_qos0
    if queue is None:
        queue = session.queue_qos0 = deque()
    if not _admit(state, session, delivery, len(queue), qos0=True):
        return
    queue.append(delivery)
    session.state = QUEUEING
    session.queued_bytes += delivery.weight
    state.queued_bytes += delivery.weight
