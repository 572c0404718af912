"""Deliver a message to one session: send it if the client has room, otherwise queue it or drop it. Drain the queue when
there is room again."""

from functools import partial
from typing import Final

from hookmq.broker.delivery.queue import account_dequeued, enqueue, load_page, wait_qos0
from hookmq.broker.delivery.shared import take_from_groups
from hookmq.broker.delivery.transmit import (
    assign_sequence,
    has_room,
    identifiers_of,
    retransmit,
    transmit,
    update_write_state,
)
from hookmq.broker.state import BrokerState
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.session.inflight import Acknowledgement, Delivery, Outgoing
from hookmq.session.session import Session


def deliver(
    state: BrokerState,
    session: Session,
    outgoing: Outgoing,
    qos: int,
    retain: bool,
    identifiers: tuple[int, ...],
    subscription: Subscription,
    waiter: Acknowledgement | None = None,
) -> None:
    """Deliver a message to `session`. Send it if the client has room. Otherwise queue it within the session's bounds,
    or drop it.
    """
    delivery = Delivery(outgoing, qos, retain, identifiers, subscription)
    if qos == 0:
        _deliver_qos0(state, session, delivery)
        return
    connection = session.connection
    if connection is None:
        enqueue(state, session, delivery)
        return
    if waiter is not None:
        waiter.add_condition()
        delivery.waiter = waiter
    if not session.queued and not session.resend and has_room(session):
        if session.durable and state.recording:
            assign_sequence(session, delivery)
        transmit(state, session, delivery, stored=False)
        return
    enqueue(state, session, delivery)
    connection = session.connection  # a full queue may have ended it
    if connection is not None and connection.delivery_limit is not None:
        connection.may_send()


def _deliver_qos0(state: BrokerState, session: Session, delivery: Delivery) -> None:
    connection = session.connection
    if connection is None:
        if state.settings.session.queue_qos0 and session.durable:
            enqueue(state, session, delivery)
        else:
            message = delivery.outgoing.message
            state.dropped(message, session.client, DropReason.OFFLINE_QOS0, Direction.OUT)
        return
    if session.queued and session.durable and state.settings.session.queue_qos0:
        # QoS 0 messages may have been queued while the client was offline: do not overtake them [MQTT-4.6.0-5].
        enqueue(state, session, delivery)
        return
    delivery_limit = connection.delivery_limit
    if delivery_limit is not None and delivery_limit.drops and not delivery_limit.ready():
        message = delivery.outgoing.message
        state.dropped(
            message,
            session.client,
            DropReason.RATE_LIMITED,
            Direction.OUT,
            delivery_limit.dropped(),
        )
        return
    if (
        connection.writable
        and not session.queue_qos0
        and not session.paused
        and (delivery_limit is None or connection.may_send())
    ):
        transmit(state, session, delivery, stored=False)
        return
    wait_qos0(state, session, delivery)


def drain_queue(state: BrokerState, session: Session) -> None:
    """Send waiting messages while the client has room: first those to resend, then QoS 0, then the queue."""
    connection = session.connection
    if connection is None:
        return
    # Do not send everything in one turn: other clients need their share, and this one may not be reading.
    if session.drained_in != state.writes.turn:
        session.drained_in = state.writes.turn
        session.drained = 0
    room = state.writes.room - session.drained
    most = state.work + DRAINED
    resend = session.resend
    while resend and room > 0 and state.work < most and connection.writable and has_room(session):
        # [MQTT311-4.4.0-1, 4.6.0-6]
        delivery = resend.popleft()
        room -= delivery.outgoing.size
        retransmit(state, session, delivery)
    if resend is not None and not resend:
        session.resend = resend = None
    waiting = session.queue_qos0
    while (
        waiting
        and room > 0
        and state.work < most
        and connection.writable
        and not session.paused
        and (connection.delivery_limit is None or connection.may_send())
    ):
        delivery = waiting.popleft()
        room -= delivery.outgoing.size
        account_dequeued(state, session, delivery, counted=False)
        transmit(state, session, delivery, stored=False)
    if waiting is not None and not waiting:
        session.queue_qos0 = None
    queue = session.queue
    nothing = False
    while not resend and room > 0 and state.work < most and has_room(session):
        if queue:
            delivery = queue.popleft()
            room -= delivery.outgoing.size
            account_dequeued(state, session, delivery, counted=True)
            transmit(state, session, delivery, stored=True)
            connection = session.connection
            if connection is None:
                return
            continue
        if session.stored:
            before = session.stored
            load_page(state, session, drain_queue)
            queue = session.queue
            if queue or session.stored < before:  # a page may hold only revoked messages
                continue
            break
        size = take_from_groups(state, session)
        if not size:
            # The search found nothing in thousands of shared subscriptions: do not repeat it.
            nothing = True
            break
        room -= size
    session.drained = state.writes.room - room
    if room <= 0 or (state.work >= most and not nothing):
        _resume(state, session)
    elif session.backlog and not queue and not session.stored:
        send_retained(state, session)
    if connection.delivery_limit is not None and (
        session.queued or session.resend or session.backlog or any(g.queue for g in session.groups)
    ):
        connection.may_send()
    update_write_state(session)


def pause(session: Session) -> None:
    """Hold the session's messages until a matching call to `unpause`."""
    session.paused += 1
    update_write_state(session)


def unpause(state: BrokerState, session: Session) -> None:
    """Undo one `pause`. After the last one, send the waiting messages."""
    session.paused -= 1
    if not session.paused:
        update_write_state(session)
        drain_queue(state, session)
        state.writes.schedule()


Found = tuple[Outgoing, Subscription]
_NOTHING: Final = Outgoing(Message("", b""))
WAITING: Final[Found] = (_NOTHING, Subscription("", ""))
"""The result of a retained-message search that is waiting for a plugin."""
DRAINED: Final = 256
"""The number of steps (`BrokerState.work`) that one call to `drain_queue` may take."""
RETAINED_SLICE: Final = 256
"""How many retained messages to examine per turn for one session, so that large results do not stall other clients."""
_SKIPPED: Final = 8
"""The number of retained messages that an empty search step counts as, because it takes as long as examining them."""


def send_retained(state: BrokerState, session: Session) -> None:
    """Send retained messages to new subscriptions a slice at a time, while there is room [MQTT-3.3.1-9]
    [MQTT311-3.3.1-8]. RETAIN is set regardless of the subscription's options."""
    backlog = session.backlog
    connection = session.connection
    if session.resumes:
        return
    left = RETAINED_SLICE
    while backlog and connection is not None and connection.writable and has_room(session):
        if left <= 0 or session.drained >= state.writes.room:
            _resume(state, session)
            return
        left -= 1
        filter = next(iter(backlog))
        try:
            found = next(backlog[filter])
        except StopIteration:
            del backlog[filter]
            continue
        if found is None:
            left -= _SKIPPED
            continue
        outgoing, subscription = found
        if outgoing is _NOTHING:  # compiled code makes another tuple of `WAITING` each time
            return  # the plugin's answer drains the queue
        session.drained += outgoing.size
        if session.durable and state.recording:
            outgoing = outgoing.without_id()
        qos = min(outgoing.message.qos, subscription.qos)
        deliver(state, session, outgoing, qos, True, identifiers_of(subscription), subscription)
        connection = session.connection
    if not backlog:
        session.backlog = None


def _resume(state: BrokerState, session: Session) -> None:
    """Continue draining the queue in the next turn."""
    if not session.resumes:
        session.resumes = True
        state.runtime.call_soon(partial(_go_on, state, session))


def _go_on(state: BrokerState, session: Session) -> None:
    session.resumes = False
    session.drained = 0
    drain_queue(state, session)
