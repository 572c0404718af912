"""A message for one session: sent now if the client has room, else queued, else dropped with its reason; and what
waits, sent when there is room again.
"""

from functools import partial
from typing import Final

from hookmq.broker.core import Core
from hookmq.broker.queue import enqueue, load_page, unqueue, wait_qos0
from hookmq.broker.send import (
    first_in_line,
    has_room,
    identifiers_of,
    send_again,
    settle_state,
    start,
    take_number,
)
from hookmq.broker.shared import take_from_groups
from hookmq.qos import (
    Acknowledgement,
    Delivery,
    Outgoing,
)
from hookmq.session import Session
from hookmq.types import Direction, DropReason, Message, Subscription


def offer(
    core: Core,
    session: Session,
    outgoing: Outgoing,
    qos: int,
    retain: bool,
    identifiers: tuple[int, ...],
    subscription: Subscription,
    waiter: Acknowledgement | None = None,
) -> None:
    """Hand a message to `session`: sent now where the client has room, else queued within the session's bounds, else
    dropped with its reason."""
    delivery = Delivery(outgoing, qos, retain, identifiers, subscription)
    if qos == 0:
        _offer_qos0(core, session, delivery)
        return
    if waiter is not None and session.connection is not None:
        waiter.hold()
        delivery.waiter = waiter
    if has_room(session) and first_in_line(session):
        if session.durable and core.recording:
            take_number(session, delivery)
        start(core, session, delivery, stored=False)
        return
    enqueue(core, session, delivery)
    if session.connection is not None and session.connection.pace is not None:
        session.connection.may_send()


def _offer_qos0(core: Core, session: Session, delivery: Delivery) -> None:
    connection = session.connection
    if connection is None:
        if core.settings.session.queue_qos0 and session.durable:
            enqueue(core, session, delivery)
        else:
            message = delivery.outgoing.message
            core.dropped(message, session.client, DropReason.OFFLINE_QOS0, Direction.OUT)
        return
    if session.queued and session.durable and core.settings.session.queue_qos0:
        # Others of QoS 0 may wait there since the client was away: none is overtaken [MQTT-4.6.0-5].
        enqueue(core, session, delivery)
        return
    pace = connection.pace
    if pace is not None and pace.drops and not pace.ready():
        message = delivery.outgoing.message
        core.dropped(
            message, session.client, DropReason.RATE_LIMITED, Direction.OUT, pace.dropped()
        )
        return
    if (
        connection.writable
        and not session.queue_qos0
        and not session.paused
        and (pace is None or connection.may_send())
    ):
        start(core, session, delivery, stored=False)
        return
    wait_qos0(core, session, delivery)


def pump(core: Core, session: Session) -> None:
    """Send what waits for as long as the client has room: first what must be sent again, then QoS 0, then the queue."""
    connection = session.connection
    if connection is None:
        return
    # Not all in one turn: others have their turn too, and a client need not read to be sent to.
    if session.pumped_in != core.turn:
        session.pumped_in = core.turn
        session.pumped = 0
    room = core.write_room - session.pumped
    most = core.work + PUMPED
    resend = session.resend
    while resend and room > 0 and core.work < most and connection.writable and has_room(session):
        # [MQTT311-4.4.0-1, 4.6.0-6]
        delivery = resend.popleft()
        room -= delivery.outgoing.size
        send_again(core, session, delivery)
    if resend is not None and not resend:
        session.resend = resend = None
    waiting = session.queue_qos0
    while (
        waiting
        and room > 0
        and core.work < most
        and connection.writable
        and not session.paused
        and (connection.pace is None or connection.may_send())
    ):
        delivery = waiting.popleft()
        room -= delivery.outgoing.size
        unqueue(core, session, delivery, counted=False)
        start(core, session, delivery, stored=False)
    if waiting is not None and not waiting:
        session.queue_qos0 = None
    queue = session.queue
    nothing = False
    while not resend and room > 0 and core.work < most and has_room(session):
        if queue:
            delivery = queue.popleft()
            room -= delivery.outgoing.size
            unqueue(core, session, delivery, counted=True)
            start(core, session, delivery, stored=True)
            connection = session.connection
            if connection is None:
                return
            continue
        if session.stored:
            before = session.stored
            load_page(core, session, pump)
            queue = session.queue
            if queue or session.stored < before:  # a page may hold nothing but what was revoked
                continue
            break
        size = take_from_groups(core, session)
        if not size:
            # To find that nothing waits for thousands of groups takes many steps, too: that is no reason to look again.
            nothing = True
            break
        room -= size
    session.pumped = core.write_room - room
    if room <= 0 or (core.work >= most and not nothing):
        _resume(core, session)
    elif session.backlog and not queue and not session.stored:
        send_retained(core, session)
    if connection.pace is not None and (
        session.queued or session.resend or session.backlog or any(g.queue for g in session.groups)
    ):
        connection.may_send()
    settle_state(session)


Found = tuple[Outgoing, Subscription]
_NOTHING: Final = Outgoing(Message("", b""))
WAITING: Final[Found] = (_NOTHING, Subscription("", ""))
"""What a search for retained messages gives when it cannot go on before a plugin has answered."""
PUMPED: Final = 256
"""Steps (`Core.work`) of one pump."""
RETAINED_SLICE: Final = 256
"""Retained messages looked at in one turn for one session: a fetch of all of them must not stall the others."""
_SKIPPED: Final = 8
"""How many of these `PACE` nodes count for that a search visited and found nothing in: both take the same time."""


def send_retained(core: Core, session: Session) -> None:
    """Send retained messages that subscriptions have still to get, as long as there is room, a slice at a time
    [MQTT-3.3.1-9] [MQTT311-3.3.1-8]. They carry RETAIN whatever the subscription says."""
    backlog = session.backlog
    connection = session.connection
    if session.resumes:
        return
    left = RETAINED_SLICE
    while backlog and connection is not None and connection.writable and has_room(session):
        if left <= 0 or session.pumped >= core.write_room:
            _resume(core, session)
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
        if outgoing is _NOTHING:  # `WAITING` itself is another tuple each time if compiled
            return  # the answer pumps
        session.pumped += outgoing.size
        if session.durable and core.recording:
            outgoing = outgoing.anew()
        qos = min(outgoing.message.qos, subscription.qos)
        offer(core, session, outgoing, qos, True, identifiers_of(subscription), subscription)
        connection = session.connection
    if not backlog:
        session.backlog = None


def _resume(core: Core, session: Session) -> None:
    """Have more of what waits sent in the next turn."""
    if not session.resumes:
        session.resumes = True
        core.runtime.call_soon(partial(_go_on, core, session))


def _go_on(core: Core, session: Session) -> None:
    session.resumes = False
    session.pumped = 0
    pump(core, session)
