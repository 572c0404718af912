"""A message on the wire: the last checks and hooks before it leaves, its packet id, its record, and what its
acknowledgements mean.
"""

from math import inf

from hookmq.broker.committer import entry_of
from hookmq.broker.core import Core
from hookmq.broker.forms import form_of, take_back_alias
from hookmq.hooks.chains import narrow
from hookmq.hooks.run import run_authorize, run_deliver
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.qos import (
    PACKET_IDS,
    PUBREL,
    VOLATILE_1,
    VOLATILE_2,
    VOLATILE_RELEASED,
    Delivery,
    Outgoing,
    take_packet_id,
)
from hookmq.session import BEHIND, CLEAN, Session
from hookmq.store import Dequeue, SetPacket
from hookmq.types import Action, Direction, DropReason, Subscription

_DUP = 0x08


def has_room(session: Session) -> bool:
    """Whether a QoS 1 or 2 message could be sent to the client now [MQTT-3.3.4-9, 4.9.0-2]."""
    connection = session.connection
    if connection is None or not connection.writable or session.paused:
        return False
    resend = session.resend
    if len(session.inflight) - (len(resend) if resend else 0) >= session.window:
        return False
    return connection.pace is None or bool(connection.pace.ready())


def first_in_line(session: Session) -> bool:
    """Whether nothing waits for the client that a new message would overtake."""
    return not session.queued and not session.resend


def settle_state(session: Session) -> None:
    """Open or close the fast path: messages may be appended to `out` only when nothing waits before them."""
    connection = session.connection
    if (
        connection is None
        or not connection.writable
        or session.queue_qos0
        or session.resend
        or session.paused
    ):
        session.state = BEHIND
    elif session.state == BEHIND:
        session.state = CLEAN


def start(core: Core, session: Session, delivery: Delivery, stored: bool) -> None:
    """Let a message leave the queue for the wire: the last checks and hooks, its packet id, its record, its bytes.
    `stored` tells that the store has its queue entry already."""
    connection = session.connection
    assert connection is not None
    message = delivery.outgoing.message
    reason = DropReason.EXPIRED
    refused = message.expires_at is not None and message.expires_at <= core.runtime.time()
    mount = session.client.scope.mount_point
    if mount and not refused and message.topic in (mount, mount[:-1]):
        # "tenant/#" matches "tenant" and "tenant/" as well, and a topic without the mount point would be none.
        refused, reason = True, DropReason.DENIED
    if connection.delivers and not refused:
        chains = core.chains(session.client.listener)
        stop = _may_deliver(core, session, delivery) if chains.authorize[Action.DELIVER] else None
        if stop is not None:
            refused, reason = True, stop
        elif chains.on_deliver:
            calls = narrow(chains.on_deliver, message.topic)
            changed = run_deliver(calls, session.client, message, delivery.subscription)
            if changed is None:
                refused, reason = True, DropReason.PLUGIN
            elif changed is not message:
                # It has a record of its own: what is sent again must be what was sent.
                delivery.original, message = message, changed
                delivery.outgoing = Outgoing(changed)
                if stored and delivery.seq and delivery.qos:
                    core.committer.add(Dequeue(session.owner, delivery.seq))
                    stored = False
    if refused:  # [MQTT-3.3.2-5]: the copy whose delivery has not begun is dropped
        core.work += 1
        give_up(core, session, delivery, reason, stored)
        return
    head, tail = form_of(core, session, delivery)
    size = len(head) + len(tail) + (2 if delivery.qos else 0)
    core.work += 1 + (size >> 12)
    if size > connection.max_packet_size:  # [MQTT-3.1.2-24, 3.1.2-25]
        take_back_alias(session, message)
        give_up(core, session, delivery, DropReason.TOO_LARGE, stored)
        return
    core.metrics.messages_delivered += 1
    if connection.pace is not None:
        connection.pace.sent()
    if delivery.qos == 0:
        out = session.out
        out.append(head)
        out.append(tail)
        core.put(session, size)
        if stored and delivery.seq:
            core.committer.add(Dequeue(session.owner, delivery.seq))
        if "on_delivered" in core.observed:
            core.observe("on_delivered", session.client, message, 0)
        return
    # [MQTT-4.3.2-1, 4.3.3-1] [MQTT311-2.3.1-4]
    number = take_packet_id(session.inflight, session.last_packet_id)
    session.last_packet_id = number
    delivery.packet_id = number
    session.inflight[number] = delivery  # [MQTT-4.3.2-3, 4.3.3-3] [MQTT311-4.3.2-1]
    if core.settings.session.retry_interval:
        delivery.sent_at = core.runtime.now()
    if delivery.seq and session.durable:
        if stored:
            core.committer.add(SetPacket(session.owner, delivery.seq, number, False))
        else:
            core.committer.add(entry_of(session.owner, delivery, core.keep(delivery.outgoing)))
            if delivery.qos == 1:
                core.committer.sent(delivery)
        if delivery.qos == 2:
            # The id must be on record before the client sees it: after a crash it might come back with another
            # message and be taken for a duplicate.
            epoch = session.epoch
            delivery.sent_at = inf

            def leave() -> None:
                if session.epoch == epoch and session.inflight.get(number) is delivery:
                    delivery.sent_at = core.runtime.now()
                    session.out += (head, PACKET_IDS[number], tail)
                    core.put(session, size)

            # No cut: the message may be owed to others as well, and its sender's packet id is of the same batch.
            core.committer.then(leave, cut=False)
            core.schedule()
            settle(core, delivery)
            return
    out = session.out
    out.append(head)
    out.append(PACKET_IDS[number])
    out.append(tail)
    core.put(session, size)
    settle(core, delivery)


def _may_deliver(core: Core, session: Session, delivery: Delivery) -> DropReason | None:
    """Why the message may not be delivered; None if it may."""
    message = delivery.outgoing.message
    reason: DropReason | None = DropReason.UNDECIDED

    def decided(verdict: Allow | Deny, by: str) -> None:
        nonlocal reason
        if isinstance(verdict, Allow):
            reason = None
        elif verdict.decided:
            reason = DropReason.DENIED

    run_authorize(
        core.runtime,
        narrow(core.chains(session.client.listener).authorize[Action.DELIVER], message.topic),
        (session.client, Action.DELIVER, message.topic, message, delivery.subscription),
        True,
        decided,
    )
    return reason


def give_up(
    core: Core, session: Session, delivery: Delivery, reason: DropReason, stored: bool
) -> None:
    core.dropped(delivery.outgoing.message, session.client, reason, Direction.OUT)
    settle(core, delivery)
    if stored and delivery.seq:
        core.committer.add(Dequeue(session.owner, delivery.seq))
        core.schedule()


def send_again(core: Core, session: Session, delivery: Delivery) -> None:
    """Repeat an unfinished delivery under its old id, after the session was resumed [MQTT-4.4.0-1] (or, to 3.x, when an
    answer is overdue). That it has expired meanwhile changes nothing [MQTT-4.3.3-7, 4.3.3-13]."""
    number = delivery.packet_id
    delivery.sent_at = core.runtime.now()
    if session.inflight.get(number) is not delivery:
        return
    core.work += 1
    size = 4
    if delivery.released:  # [MQTT-4.3.3-6]: after PUBREC only PUBREL is sent again
        session.out += (PUBREL, PACKET_IDS[number])
    else:
        head, tail = form_of(core, session, delivery)
        size = len(head) + len(tail) + 2
        core.work += size >> 12
        connection = session.connection
        if connection is not None and size > connection.max_packet_size:
            del session.inflight[number]
            take_back_alias(session, delivery.outgoing.message)
            give_up(core, session, delivery, DropReason.TOO_LARGE, stored=True)
            return
        # [MQTT-3.3.1-1] [MQTT311-3.3.1-1]
        session.out += (bytes((head[0] | _DUP,)) + head[1:], PACKET_IDS[number], tail)
    core.put(session, size)


def settle(core: Core, delivery: Delivery) -> None:
    """Let go a publisher that waits for this delivery to start (or for it to be given up)."""
    waiter = delivery.waiter
    if waiter is not None:
        delivery.waiter = None
        waiter.met()


def finish(core: Core, session: Session, delivery: Delivery) -> None:
    """Forget a delivery whatever became of it: its record goes and whoever waits for it goes on."""
    settle(core, delivery)
    if delivery.seq and session.durable:
        core.committer.add(Dequeue(session.owner, delivery.seq))
        core.schedule()


def acknowledged(core: Core, session: Session, number: int, code: int) -> None:
    """PUBACK or PUBCOMP, or a PUBREC of 0x80 and above, came: the delivery is complete and its id free
    [MQTT-4.4.0-2, 4.3.3-12]. An unknown id is tolerated."""
    delivery = session.inflight.pop(number, None)
    if delivery is None:
        return
    if delivery is VOLATILE_1 or delivery is VOLATILE_2 or delivery is VOLATILE_RELEASED:
        if code >= 0x80:
            core.dropped(None, session.client, DropReason.REFUSED, Direction.OUT)
        return
    _not_again(session, delivery)
    if core.committer.take_back(delivery):
        settle(core, delivery)
        core.schedule()
    else:
        finish(core, session, delivery)
    if code >= 0x80:  # [MQTT-4.8.2-6]: a shared message that was refused goes to nobody else
        message, detail = delivery.outgoing.message, f"0x{code:02X}"
        core.dropped(message, session.client, DropReason.REFUSED, Direction.OUT, detail)
    elif "on_delivered" in core.observed:
        core.observe("on_delivered", session.client, delivery.outgoing.message, delivery.qos)


def _not_again(session: Session, delivery: Delivery) -> None:
    """The client answered, on a new connection, what it was sent on the old one: it need not be sent again."""
    resend = session.resend
    if resend and delivery in resend:
        resend.remove(delivery)


def received(core: Core, session: Session, number: int) -> bool:
    """A good PUBREC came: from now on only PUBREL is sent for the id [MQTT-4.3.3-4, 4.3.3-6]. Returns False when the id
    is unknown. PUBREL leaves when that is on record."""
    delivery = session.inflight.get(number)
    if delivery is None or delivery is VOLATILE_1 or delivery.qos != 2:
        return False
    if delivery is VOLATILE_2 or delivery is VOLATILE_RELEASED:
        session.inflight[number] = VOLATILE_RELEASED
    else:
        delivery.released = True  # [MQTT-4.3.3-5] [MQTT311-4.3.3-1]
        _not_again(session, delivery)
        if session.durable and delivery.seq:
            core.committer.add(SetPacket(session.owner, delivery.seq, number, True))
            epoch = session.epoch
            delivery.sent_at = inf

            def leave() -> None:
                if session.epoch == epoch:
                    delivery.sent_at = core.runtime.now()
                    session.out += (PUBREL, PACKET_IDS[number])
                    core.mark(session)

            core.committer.then(leave)
            core.schedule()
            return True
    session.out += (PUBREL, PACKET_IDS[number])
    core.mark(session)
    return True


def take_number(session: Session, delivery: Delivery) -> None:
    session.last_seq += 1
    delivery.seq = session.last_seq


def identifiers_of(subscription: Subscription) -> tuple[int, ...]:
    """A subscription's identifier as a delivery carries it."""
    return () if subscription.identifier is None else (subscription.identifier,)
