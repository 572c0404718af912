"""A message on its way out: into a session's queue, out of the queue when the client has room, and done with when the
client has acknowledged it. Every room that sends something to a client goes through here.
"""

from collections import deque
from functools import partial
from math import ceil
from typing import Final

from hookmq.broker.core import Core
from hookmq.broker.groups import Group
from hookmq.codec import encode_properties, encode_publish_parts
from hookmq.hooks.chains import narrow
from hookmq.hooks.run import run_authorize, run_deliver
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.properties import EMPTY
from hookmq.qos import (
    PACKET_IDS,
    PUBREL,
    VOLATILE_1,
    VOLATILE_2,
    VOLATILE_RELEASED,
    Acknowledgement,
    Delivery,
    Outgoing,
    take_packet_id,
)
from hookmq.reason import ReasonCode
from hookmq.session import BEHIND, CLEAN, Session
from hookmq.store import Dequeue, Enqueue, Queued, SetPacket
from hookmq.types import Action, Direction, DropReason, Message, Subscription

_DUP = 0x08


# --- in -----------------------------------------------------------------------------------------------------------------


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
    if has_room(session) and not session.queued:
        if session.durable:
            _number(session, delivery)
        start(core, session, delivery, stored=False)
        return
    enqueue(core, session, delivery)


def _offer_qos0(core: Core, session: Session, delivery: Delivery) -> None:
    connection = session.connection
    if connection is None:
        if core.settings.session.queue_qos0 and session.durable:
            enqueue(core, session, delivery)
        else:
            message = delivery.outgoing.message
            core.dropped(message, session.client, DropReason.OFFLINE_QOS0, Direction.OUT)
        return
    if connection.writable and not session.queue_qos0 and not session.paused:
        start(core, session, delivery, stored=False)
        return
    queue = session.queue_qos0
    if queue is None:
        queue = session.queue_qos0 = deque()
    if not _admit(core, session, delivery, len(queue)):
        return
    queue.append(delivery)
    session.state = BEHIND
    session.queued_bytes += delivery.outgoing.size
    core.queued_bytes += delivery.outgoing.size


def has_room(session: Session) -> bool:
    """Whether a QoS 1 or 2 message could be sent to the client now [MQTT-3.3.4-9, 4.9.0-2]."""
    connection = session.connection
    if connection is None or not connection.writable or session.paused:
        return False
    resend = session.resend
    return len(session.inflight) - (len(resend) if resend else 0) < session.window


def enqueue(core: Core, session: Session, delivery: Delivery) -> None:
    """Put a QoS 1 or 2 message (QoS 0 where configured) at the end of the session's queue, within its bounds."""
    if not _admit(core, session, delivery, session.queued):
        return
    if session.durable:
        _number(session, delivery)
        core.committer.add(_entry(core, session, delivery))
    session.queued += 1
    session.queued_bytes += delivery.outgoing.size
    core.queued_bytes += delivery.outgoing.size
    queue = session.queue
    if queue is None:
        queue = session.queue = deque()
    if session.durable and (session.stored or len(queue) >= core.settings.session.queue_page):
        # Only the head of a long queue is in memory; this entry is read again when its turn comes.
        session.stored += 1
        settle(core, delivery)
        return
    queue.append(delivery)
    session.loaded_seq = delivery.seq


def _admit(core: Core, session: Session, delivery: Delivery, waiting: int) -> bool:
    """Whether the bounds let one more message wait; drops as the policy says."""
    limits = core.settings.session
    size = delivery.outgoing.size
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
        if limits.queue_drop == "oldest" and _drop_oldest(core, session, delivery.qos, reason):
            waiting -= 1
            continue
        core.dropped(delivery.outgoing.message, session.client, reason, Direction.OUT)
        settle(core, delivery)
        connection = session.connection
        if limits.queue_drop == "disconnect" and connection is not None:
            connection.disconnect(ReasonCode.QUOTA_EXCEEDED, "too many messages wait")
        return False


def _drop_oldest(core: Core, session: Session, qos: int, reason: DropReason) -> bool:
    queue = session.queue_qos0 if qos == 0 and session.queue_qos0 else session.queue
    if not queue:
        return False
    oldest = queue.popleft()
    _unqueue(core, session, oldest, counted=queue is session.queue)
    finish(core, session, oldest)
    core.dropped(oldest.outgoing.message, session.client, reason, Direction.OUT)
    if not session.queue:
        load_page(core, session)
    return True


def _unqueue(core: Core, session: Session, delivery: Delivery, counted: bool) -> None:
    if counted:
        session.queued -= 1
    session.queued_bytes -= delivery.outgoing.size
    core.queued_bytes -= delivery.outgoing.size


def _number(session: Session, delivery: Delivery) -> None:
    session.last_seq += 1
    delivery.seq = session.last_seq


def _entry(core: Core, session: Session, delivery: Delivery) -> Enqueue:
    subscription = delivery.subscription
    group = delivery.group
    return Enqueue(
        session.owner,
        delivery.seq,
        core.keep(delivery.outgoing),
        delivery.qos,
        delivery.outgoing.size,
        delivery.retain,
        delivery.identifiers,
        subscription.filter,
        delivery.packet_id,
        delivery.released,
        group.owner if group is not None else "",
    )


# --- out ----------------------------------------------------------------------------------------------------------------


def pump(core: Core, session: Session) -> None:
    """Send what waits for as long as the client has room: first what must be sent again, then QoS 0, then the queue."""
    connection = session.connection
    if connection is None:
        return
    resend = session.resend
    while resend and connection.writable and has_room(session):
        send_again(core, session, resend.popleft())
    if resend is not None and not resend:
        session.resend = resend = None
    waiting = session.queue_qos0
    while waiting and connection.writable and not session.paused:
        delivery = waiting.popleft()
        _unqueue(core, session, delivery, counted=False)
        start(core, session, delivery, stored=False)
    if waiting is not None and not waiting:
        session.queue_qos0 = None
    queue = session.queue
    while not resend and has_room(session):
        if queue:
            delivery = queue.popleft()
            _unqueue(core, session, delivery, counted=True)
            start(core, session, delivery, stored=True)
            connection = session.connection
            if connection is None:
                return
            continue
        if session.stored:
            load_page(core, session)
            queue = session.queue
            if queue:
                continue
            break
        if not _take_from_groups(core, session):
            break
    if session.backlog and not queue and not session.stored:
        _send_retained(core, session)
    settle_state(session)


RETAINED_SLICE = 256
"""Retained messages looked at in one turn for one session: a fetch of all of them must not stall the others."""


def _send_retained(core: Core, session: Session) -> None:
    """Send retained messages that subscriptions have still to get, as long as there is room, a slice at a time
    [MQTT-3.3.1-9]. They carry RETAIN whatever the subscription says."""
    backlog = session.backlog
    connection = session.connection
    left = RETAINED_SLICE
    while backlog and connection is not None and connection.writable and has_room(session):
        if left == 0:
            core.runtime.call_soon(partial(_go_on, core, session, session.epoch))
            return
        left -= 1
        found = next(backlog[0], _ALL_SENT)
        if found is _ALL_SENT:
            backlog.popleft()
            continue
        if found is None:
            continue
        outgoing, subscription = found
        qos = min(outgoing.message.qos, subscription.qos)
        offer(core, session, outgoing, qos, True, identifiers_of(subscription), subscription)
        connection = session.connection
    if not backlog:
        session.backlog = None


def _go_on(core: Core, session: Session, epoch: int) -> None:
    if session.epoch == epoch:
        pump(core, session)


_ALL_SENT: Final = (Outgoing(Message("", b"")), Subscription("", ""))


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


def load_page(core: Core, session: Session) -> None:
    """Read the next page of a durable queue into memory; goes on with `pump` when it came."""
    if session.reading or not session.stored:
        return
    session.reading = True
    epoch = session.epoch

    def loaded(page: list[Queued]) -> None:
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
            if session.revoked and entry.filter in session.revoked:
                _unqueue(core, session, delivery, counted=True)
                finish(core, session, delivery)
                core.dropped(message, session.client, DropReason.REVOKED, Direction.OUT)
                continue
            queue.append(delivery)
        session.stored = max(0, session.stored - len(page)) if page else 0
        if session.epoch == epoch and not synchronous:
            pump(core, session)
            core.schedule()

    limits = core.settings.session
    synchronous = True
    core.store.read(
        session.owner, session.loaded_seq, limits.queue_page, limits.queue_bytes, loaded
    )
    synchronous = False


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
    delivery.packet_id = entry.packet_id
    delivery.released = entry.released
    return delivery


def start(core: Core, session: Session, delivery: Delivery, stored: bool) -> None:
    """Let a message leave the queue for the wire: the last checks and hooks, its packet id, its record, its bytes.
    `stored` tells that the store has its queue entry already."""
    connection = session.connection
    assert connection is not None
    message = delivery.outgoing.message
    chains = core.chains(session.client.listener)
    reason = DropReason.EXPIRED
    refused = message.expires_at is not None and message.expires_at <= core.runtime.time()
    if (
        not refused
        and chains.authorize[Action.DELIVER]
        and not _may_deliver(core, session, delivery)
    ):
        refused, reason = True, DropReason.DENIED
    if not refused and chains.on_deliver:
        calls = narrow(chains.on_deliver, message.topic)
        if calls:
            changed = run_deliver(calls, session.client, message, delivery.subscription)
            if changed is None:
                refused, reason = True, DropReason.PLUGIN
            elif changed is not message:
                replaced = Outgoing(changed, delivery.outgoing.id)
                delivery.outgoing = replaced
                message = changed
    if refused:  # [MQTT-3.3.2-5]: the copy whose delivery has not begun is dropped
        _give_up(core, session, delivery, reason, stored)
        return
    head, tail = encode(core, session, delivery)
    size = len(head) + len(tail) + (2 if delivery.qos else 0)
    if size > connection.max_packet_size:  # [MQTT-3.1.2-24, 3.1.2-25]
        if connection.aliases and message.topic in connection.aliases:
            connection.aliases[message.topic] = 0  # an alias that was to be given here was not
        _give_up(core, session, delivery, DropReason.TOO_LARGE, stored)
        return
    core.metrics.messages_delivered += 1
    if delivery.qos == 0:
        session.out += (head, tail)
        core.mark(session)
        if stored and session.durable:
            core.committer.add(Dequeue(session.owner, delivery.seq))
        if "on_delivered" in core.observed:
            core.observe("on_delivered", session.client, message)
        return
    number = take_packet_id(session.inflight, session.last_packet_id)
    session.last_packet_id = number
    delivery.packet_id = number
    session.inflight[number] = delivery
    if core.settings.session.retry_interval:
        delivery.sent_at = core.runtime.now()
    if session.durable:
        if stored:
            core.committer.add(SetPacket(session.owner, delivery.seq, number, False))
        else:
            core.committer.add(_entry(core, session, delivery))
        if delivery.qos == 2:
            # The id must be on record before the client sees it: after a crash it might come back with another
            # message and be taken for a duplicate.
            epoch = session.epoch

            def leave() -> None:
                if session.epoch == epoch and session.inflight.get(number) is delivery:
                    session.out += (head, PACKET_IDS[number], tail)
                    core.mark(session)

            core.committer.then(leave)
            core.schedule()
            settle(core, delivery)
            return
    session.out += (head, PACKET_IDS[number], tail)
    core.mark(session)
    settle(core, delivery)


def _may_deliver(core: Core, session: Session, delivery: Delivery) -> bool:
    message = delivery.outgoing.message
    allowed = False

    def decided(verdict: Allow | Deny, by: str) -> None:
        nonlocal allowed
        allowed = isinstance(verdict, Allow)

    run_authorize(
        core.runtime,
        narrow(core.chains(session.client.listener).authorize[Action.DELIVER], message.topic),
        (session.client, Action.DELIVER, message.topic, message, delivery.subscription),
        True,
        decided,
    )
    return allowed


def _give_up(
    core: Core, session: Session, delivery: Delivery, reason: DropReason, stored: bool
) -> None:
    core.dropped(delivery.outgoing.message, session.client, reason, Direction.OUT)
    settle(core, delivery)
    if stored and delivery.seq:
        core.committer.add(Dequeue(session.owner, delivery.seq))
        core.schedule()


def send_again(core: Core, session: Session, delivery: Delivery) -> None:
    """Repeat an unfinished delivery under its old id, after the session was resumed [MQTT-4.4.0-1] (or, to 3.x, when an
    answer is overdue)."""
    number = delivery.packet_id
    if core.settings.session.retry_interval:
        delivery.sent_at = core.runtime.now()
    if session.inflight.get(number) is not delivery:
        return
    if delivery.released:  # [MQTT-4.3.3-6]: after PUBREC only PUBREL is sent again
        session.out += (PUBREL, PACKET_IDS[number])
    else:
        head, tail = encode(core, session, delivery)
        connection = session.connection
        if connection is not None and len(head) + len(tail) + 2 > connection.max_packet_size:
            del session.inflight[number]
            _give_up(core, session, delivery, DropReason.TOO_LARGE, stored=True)
            return
        session.out += (bytes((head[0] | _DUP,)) + head[1:], PACKET_IDS[number], tail)
    core.mark(session)


# --- done ---------------------------------------------------------------------------------------------------------------


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
    finish(core, session, delivery)
    message = delivery.outgoing.message
    if code >= 0x80:  # [MQTT-4.8.2-6]: a shared message that was refused goes to nobody else
        detail = f"0x{code:02X}"
        core.dropped(message, session.client, DropReason.REFUSED, Direction.OUT, detail)
    elif "on_delivered" in core.observed:
        core.observe("on_delivered", session.client, message)


def received(core: Core, session: Session, number: int) -> bool:
    """A good PUBREC came: from now on only PUBREL is sent for the id [MQTT-4.3.3-4, 4.3.3-6]. Returns False when the id
    is unknown. PUBREL leaves when that is on record."""
    delivery = session.inflight.get(number)
    if delivery is None or delivery is VOLATILE_1 or delivery.qos != 2:
        return False
    if delivery is VOLATILE_2 or delivery is VOLATILE_RELEASED:
        session.inflight[number] = VOLATILE_RELEASED
    else:
        delivery.released = True
        if session.durable and delivery.seq:
            core.committer.add(SetPacket(session.owner, delivery.seq, number, True))
            epoch = session.epoch

            def leave() -> None:
                if session.epoch == epoch:
                    session.out += (PUBREL, PACKET_IDS[number])
                    core.mark(session)

            core.committer.then(leave)
            core.schedule()
            return True
    session.out += (PUBREL, PACKET_IDS[number])
    core.mark(session)
    return True


# --- shared subscriptions -----------------------------------------------------------------------------------------------


def offer_group(core: Core, group: Group, outgoing: Outgoing) -> None:
    """Hand a message to one member of `group`: one that is online and has room, else it waits in the group's queue."""
    message = outgoing.message
    if not group.queued or message.qos == 0:
        for session in group.candidates(message, core.runtime.random):
            connection = session.connection
            subscription = group.members[session]
            qos = min(message.qos, subscription.qos)  # [MQTT-4.8.2-3]
            if connection is None or not connection.writable or session.paused:
                continue
            if qos and (not has_room(session) or session.queued):
                continue
            if group.strategy == "sticky":
                group.sticky = session
            _deliver_shared(core, group, session, subscription, outgoing, qos)
            return
    if message.qos == 0 or group.qos == 0:
        # QoS 0 waits for nobody: it goes into the queue of a slow member, if there is one.
        for session in group.online:
            subscription = group.members[session]
            offer(core, session, outgoing, 0, False, identifiers_of(subscription), subscription)
            return
        core.dropped(message, None, DropReason.OFFLINE_QOS0, Direction.OUT, group.owner)
        return
    _wait_in_group(core, group, outgoing)


def identifiers_of(subscription: Subscription) -> tuple[int, ...]:
    """A subscription's identifier as a delivery carries it."""
    return () if subscription.identifier is None else (subscription.identifier,)


def _deliver_shared(
    core: Core,
    group: Group,
    session: Session,
    subscription: Subscription,
    outgoing: Outgoing,
    qos: int,
) -> None:
    retain = subscription.retain_as_published and outgoing.message.retain
    identifiers = identifiers_of(subscription)
    delivery = Delivery(outgoing, qos, retain, identifiers, subscription, group)
    if qos and session.durable:
        _number(session, delivery)
    start(core, session, delivery, stored=False)


def _wait_in_group(core: Core, group: Group, outgoing: Outgoing, front: bool = False) -> None:
    limits = core.settings.session
    size = outgoing.size
    while not front and (
        group.queued >= limits.queue_messages
        or group.queued_bytes + size > limits.queue_bytes
        or core.queued_bytes + size > core.settings.broker.max_queue_bytes
    ):
        reason = (
            DropReason.QUEUE_FULL
            if group.queued >= limits.queue_messages
            else DropReason.QUEUE_BYTES
        )
        if limits.queue_drop == "oldest" and group.queue:
            oldest = group.queue.popleft()
            _left_group(core, group, oldest)
            core.dropped(oldest.outgoing.message, None, reason, Direction.OUT, group.owner)
            continue
        core.dropped(outgoing.message, None, reason, Direction.OUT, group.owner)
        return
    delivery = Delivery(
        outgoing, min(outgoing.message.qos, group.qos), False, (), _OF_A_GROUP, group
    )
    group.queued += 1
    group.queued_bytes += size
    core.queued_bytes += size
    if group.durable:
        if front:
            # Before everything else that waits: the sequence runs downwards there.
            delivery.seq = group.first_seq = group.first_seq - 1
        else:
            group.last_seq += 1
            delivery.seq = group.last_seq
        entry = Enqueue(group.owner, delivery.seq, core.keep(outgoing), delivery.qos, outgoing.size)
        core.committer.add(entry)
        core.schedule()
    if front:
        group.queue.appendleft(delivery)
    else:
        group.queue.append(delivery)


_OF_A_GROUP: Final = Subscription("", "")
"""Stands in for the subscription of a message whose receiver is not known yet."""


def _left_group(core: Core, group: Group, delivery: Delivery) -> None:
    group.queued -= 1
    group.queued_bytes -= delivery.outgoing.size
    core.queued_bytes -= delivery.outgoing.size
    if delivery.seq:
        core.committer.add(Dequeue(group.owner, delivery.seq))
        core.schedule()


def _take_from_groups(core: Core, session: Session) -> bool:
    """Let a member with room take one message that waits for its group; False when none waits."""
    for group in session.groups:
        if not group.queue:
            continue
        waiting = group.queue.popleft()
        subscription = group.members[session]
        qos = min(waiting.outgoing.message.qos, subscription.qos)
        # The entry in the member's queue is recorded before the group's own goes: the message is never without owner.
        _deliver_shared(core, group, session, subscription, waiting.outgoing, qos)
        _left_group(core, group, waiting)
        return True
    return False


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
        _wait_in_group(core, group, delivery.outgoing, front=True)
        finish(core, session, delivery)
    return own


# --- bytes --------------------------------------------------------------------------------------------------------------


def encode(core: Core, session: Session, delivery: Delivery) -> tuple[bytes, bytes]:
    """(head, tail) of the PUBLISH for this client; the packet id, if any, goes between. Encoded once for all who take
    the same form; a topic alias or a mount point make a form of one's own."""
    outgoing = delivery.outgoing
    message = outgoing.message
    client = session.client
    connection = session.connection
    five = client.version == 5
    remaining = -1
    if five and message.expires_at is not None:
        # [MQTT-3.3.2-6]: what is left of the interval, rounded up
        remaining = max(0, ceil(message.expires_at - core.runtime.time()))
    mount = client.scope.mount_point
    if mount or (five and connection is not None and connection.alias_maximum):
        topic = message.topic[len(mount) :]
        return _encode_own(core, session, delivery, topic, remaining)
    key = (five, delivery.qos, delivery.retain, delivery.identifiers, remaining)
    forms = outgoing.forms
    if forms is None:
        forms = outgoing.forms = {}
    form = forms.get(key)
    if form is None:
        properties = _properties(message, delivery.identifiers, remaining) if five else None
        form = forms[key] = encode_publish_parts(
            message.topic.encode(),
            message.payload,
            delivery.qos,
            delivery.retain,
            False,
            properties,
        )
    return form


def _encode_own(
    core: Core, session: Session, delivery: Delivery, topic: str, remaining: int
) -> tuple[bytes, bytes]:
    message = delivery.outgoing.message
    connection = session.connection
    if session.client.version < 5:
        return encode_publish_parts(
            topic.encode(), message.payload, delivery.qos, delivery.retain, False, None
        )
    alias = 0
    name = topic
    held_back = delivery.qos == 2 and session.durable
    if connection is not None and connection.alias_maximum and not held_back:
        # What waits for a commit might leave after a packet that relies on the alias it gives.
        alias, name = _alias(core, connection.aliases, connection.alias_maximum, topic)
    properties = _properties(message, delivery.identifiers, remaining, alias)
    return encode_publish_parts(
        name.encode(), message.payload, delivery.qos, delivery.retain, False, properties
    )


def _alias(core: Core, aliases: dict[str, int] | None, maximum: int, topic: str) -> tuple[int, str]:
    """The alias and the topic name to send: an alias is given to a topic the second time it is sent, since one that is
    sent once would only cost bytes [MQTT-3.1.2-26, 3.3.2-8, 3.3.2-11]."""
    if aliases is None:
        return 0, topic
    known = aliases.get(topic)
    if known:
        return known, ""
    if known is None:
        if len(aliases) < 4 * maximum:
            aliases[topic] = 0  # seen once
        return 0, topic
    used = aliases.get("", 0)
    if used >= maximum:
        return 0, topic
    aliases[""] = used + 1  # the empty topic cannot be sent, so its place counts the aliases given
    aliases[topic] = used + 1
    return used + 1, topic


def _properties(
    message: Message, identifiers: tuple[int, ...], remaining: int, alias: int = 0
) -> bytes:
    """The encoded property section of an outgoing PUBLISH: the publisher's, less the hop's own, plus ours
    [MQTT-3.3.2-4, 3.3.2-15 to 20, 3.3.4-3]."""
    values = message.properties
    if not identifiers and remaining < 0 and not alias:
        return encode_properties(values) if values is not EMPTY else b"\0"
    changes: dict[str, object] = {}
    if identifiers:
        changes["subscription_identifier"] = identifiers
    if remaining >= 0:
        changes["message_expiry_interval"] = remaining
    if alias:
        changes["topic_alias"] = alias
    return encode_properties(values.replace(**changes))
