"""Send a message: final checks and hooks, packet id, record and encoding.

A PUBLISH is encoded once for all clients that can share the encoding. A topic alias or a mount point needs its own
encoding. `fast_path` and `packet_reader` write a PUBLISH that needs none of these steps; all others are written here.
"""

from math import ceil, inf
from typing import Final

from hookmq.broker.retained_expiry import FORMS, Kept
from hookmq.broker.state import BrokerState
from hookmq.hooks.call import run_authorize, run_deliver
from hookmq.hooks.chain import Chains, narrow
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.events import Action, Direction, DropReason
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.encoder import encode_publish_parts
from hookmq.mqtt.packet_limits import LARGEST_PACKET
from hookmq.mqtt.properties import EMPTY
from hookmq.mqtt.property_section import encode_properties
from hookmq.session.inflight import PACKET_IDS, PUBREL, Delivery, Outgoing, take_packet_id
from hookmq.session.session import IDLE, QUEUEING, Session
from hookmq.storage.group_commit import entry_of
from hookmq.storage.records import Dequeue, SetPacket

_DUP: Final = 0x08
_LONGEST: Final = 0xFFFFFFFF
"""The largest Message Expiry Interval, in seconds."""


def has_room(session: Session) -> bool:
    """Return whether a QoS 1 or 2 message could be sent to the client now [MQTT-3.3.4-9, 4.9.0-2]."""
    connection = session.connection
    if connection is None or not connection.writable or session.paused:
        return False
    resend = session.resend
    if len(session.inflight) - (len(resend) if resend else 0) >= session.window:
        return False
    return connection.delivery_limit is None or bool(connection.delivery_limit.ready())


def first_in_line(session: Session) -> bool:
    """Return whether a new message may be sent without overtaking one already waiting for the client."""
    return not session.queued and not session.resend


def update_write_state(session: Session) -> None:
    """Open or close the fast path, which may append messages to `out` only if no other messages are waiting."""
    connection = session.connection
    if (
        connection is None
        or not connection.writable
        or session.queue_qos0
        or session.resend
        or session.paused
    ):
        session.state = QUEUEING
    elif session.state == QUEUEING:
        session.state = IDLE


def transmit(
    state: BrokerState, session: Session, delivery: Delivery, stored: bool, checked: bool = False
) -> None:
    """Send `delivery` to the connected client of `session`, or drop it if a final check refuses it.

    `stored` is true if its queue entry is in the store, `checked` if plugins have already decided on it.
    """
    connection = session.connection
    assert connection is not None
    message = delivery.outgoing.message
    mount = session.client.scope.mount_point
    reason: DropReason | None = None
    if checked:
        pass
    elif message.expires_at is not None and message.expires_at <= state.runtime.time():
        reason = (
            DropReason.EXPIRED
        )  # [MQTT-3.3.2-5]: the copy whose delivery has not begun is dropped
    elif mount and message.topic in (mount, mount[:-1]):
        # "tenant/#" matches "tenant" and "tenant/" too; without the mount point their topic would be empty.
        reason = DropReason.DENIED
    elif connection.delivers:
        reason = _ask_plugins(state, session, delivery)
        if reason is None and delivery.outgoing.message is not message:
            # The changed message gets a record of its own, because a resent PUBLISH must equal the first.
            message = delivery.outgoing.message
            if stored and delivery.seq and delivery.qos:
                state.committer.add(Dequeue(session.owner, delivery.seq))
                stored = False
    if reason is not None:
        state.work += 1
        drop(state, session, delivery, reason, stored)
        return
    head, tail = encode_for(state, session, delivery)
    size = len(head) + len(tail) + (2 if delivery.qos else 0)
    state.work += 1 + (size >> 12)
    if size > connection.max_packet_size:  # [MQTT-3.1.2-24, 3.1.2-25]
        take_back_alias(session, message)
        drop(state, session, delivery, DropReason.TOO_LARGE, stored)
        return
    state.metrics.messages_delivered += 1
    if state.writes.sampling and not delivery.retain:
        state.writes.count_queued(state.runtime.time() - message.received_at)
    if connection.delivery_limit is not None:
        connection.delivery_limit.sent()
    if delivery.qos == 0:
        if connection.in_process:
            connection.arrive(delivery, False)
        else:
            session.out += (head, tail)
            state.writes.put(session, size)
        if stored and delivery.seq:
            state.committer.add(Dequeue(session.owner, delivery.seq))
        if "on_delivered" in state.observed:
            state.observe("on_delivered", session.client, message, 0)
        return
    # [MQTT-4.3.2-1, 4.3.3-1] [MQTT311-2.3.1-4]
    number = take_packet_id(session.inflight, session.last_packet_id)
    session.last_packet_id = number
    delivery.packet_id = number
    session.inflight[number] = delivery  # [MQTT-4.3.2-3, 4.3.3-3] [MQTT311-4.3.2-1]
    if state.settings.session.retry_interval:
        delivery.sent_at = state.runtime.now()
    if delivery.seq and session.durable:
        _record_sent(state, session, delivery, stored)
        if delivery.qos == 2:
            _send_after_commit(state, session, delivery, head, tail)
            return
    if connection.in_process:
        connection.arrive(delivery, False)
    else:
        session.out += (head, PACKET_IDS[number], tail)
        state.writes.put(session, size)
    if delivery.waiter is not None:
        release_publisher(state, delivery)


def transmit_answered(
    state: BrokerState,
    session: Session,
    outgoing: Outgoing,
    qos: int,
    subscription: Subscription,
    answer: Message | None,
) -> None:
    """Continue `transmit` after the fast path has called `on_deliver`. Send `answer` in place of
    the message of `outgoing`. If `answer` is None, drop the message.
    """
    delivery = Delivery(outgoing, qos, False, (), subscription)
    if answer is None or session.connection is None:
        # Without a connection, the plugin has disconnected the client.
        state.work += 1
        reason = DropReason.PLUGIN if answer is None else DropReason.SESSION_ENDED
        drop(state, session, delivery, reason, stored=False)
        return
    delivery.original = outgoing.message
    delivery.outgoing = Outgoing(answer)
    transmit(state, session, delivery, stored=False, checked=True)


def _record_sent(state: BrokerState, session: Session, delivery: Delivery, stored: bool) -> None:
    """Record the packet id of `delivery`: in its stored queue entry if there is one, otherwise in a new entry."""
    if stored:
        state.committer.add(SetPacket(session.owner, delivery.seq, delivery.packet_id, False))
        return
    state.committer.add(entry_of(session.owner, delivery, state.keep(delivery.outgoing)))
    if delivery.qos == 1:
        state.committer.sent(delivery)


def _send_after_commit(
    state: BrokerState, session: Session, delivery: Delivery, head: bytes, tail: bytes
) -> None:
    """Send a QoS 2 PUBLISH once its packet id is recorded.

    Otherwise, after a crash, the id could be reused for another message, which the client would take for a duplicate.
    """
    number = delivery.packet_id
    generation = session.generation
    delivery.sent_at = inf

    def send() -> None:
        if session.generation == generation and session.inflight.get(number) is delivery:
            delivery.sent_at = state.runtime.now()
            connection = session.connection
            if connection is not None and connection.in_process:
                connection.arrive(delivery, False)
                return
            session.out += (head, PACKET_IDS[number], tail)
            state.writes.put(session, len(head) + len(tail) + 2)

    # Do not split the batch here: it may hold the message's entries for others, and its sender's packet id.
    state.committer.after_commit(send, may_split=False)
    state.writes.schedule()
    release_publisher(state, delivery)


def _ask_plugins(state: BrokerState, session: Session, delivery: Delivery) -> DropReason | None:
    """Ask the plugins about a delivery. Return the reason to drop it, or None to send it, possibly changed."""
    message = delivery.outgoing.message
    connection = session.connection
    assert connection is not None
    chains = connection.chains
    if chains.authorize[Action.DELIVER]:
        reason = _may_deliver(state, session, chains, delivery)
        if reason is not None:
            return reason
    if not chains.on_deliver:
        return None
    calls = narrow(chains.on_deliver, message.topic)
    changed = run_deliver(calls, session.client, message, delivery.subscription)
    if changed is None:
        return DropReason.PLUGIN
    if changed is not message:
        delivery.original = message
        delivery.outgoing = Outgoing(changed)
    return None


def _may_deliver(
    state: BrokerState, session: Session, chains: Chains, delivery: Delivery
) -> DropReason | None:
    """Return the reason why the message may not be delivered, or None if it may."""
    message = delivery.outgoing.message
    reason: DropReason | None = DropReason.UNDECIDED

    def decided(verdict: Allow | Deny, by: str) -> None:
        nonlocal reason
        if isinstance(verdict, Allow):
            reason = None
        elif verdict.decided:
            reason = DropReason.DENIED

    run_authorize(
        state.runtime,
        narrow(chains.authorize[Action.DELIVER], message.topic),
        (session.client, Action.DELIVER, message.topic, message, delivery.subscription),
        True,
        decided,
    )
    return reason


def drop(
    state: BrokerState, session: Session, delivery: Delivery, reason: DropReason, stored: bool
) -> None:
    state.dropped(delivery.outgoing.message, session.client, reason, Direction.OUT)
    release_publisher(state, delivery)
    if stored and delivery.seq:
        state.committer.add(Dequeue(session.owner, delivery.seq))
        state.writes.schedule()


def retransmit(state: BrokerState, session: Session, delivery: Delivery) -> None:
    """Resend an unfinished delivery with its packet id, when a session resumes [MQTT-4.4.0-1] or a 3.x client's
    acknowledgement is overdue. Message expiry no longer applies [MQTT-4.3.3-7, 4.3.3-13]."""
    number = delivery.packet_id
    delivery.sent_at = state.runtime.now()
    if session.inflight.get(number) is not delivery:
        return
    state.work += 1
    size = 4
    connection = session.connection
    if delivery.released and connection is not None and connection.in_process:
        connection.arrive(delivery, True)
        return
    if delivery.released:  # [MQTT-4.3.3-6]: after PUBREC only PUBREL is resent
        session.out += (PUBREL, PACKET_IDS[number])
    else:
        head, tail = encode_for(state, session, delivery)
        size = len(head) + len(tail) + 2
        state.work += size >> 12
        if connection is not None and size > connection.max_packet_size:
            del session.inflight[number]
            take_back_alias(session, delivery.outgoing.message)
            drop(state, session, delivery, DropReason.TOO_LARGE, stored=True)
            return
        if connection is not None and connection.in_process:
            connection.arrive(delivery, True)
            return
        # [MQTT-3.3.1-1] [MQTT311-3.3.1-1]
        session.out += (bytes((head[0] | _DUP,)) + head[1:], PACKET_IDS[number], tail)
    state.writes.put(session, size)


def release_publisher(state: BrokerState, delivery: Delivery) -> None:
    """Release a publisher that was waiting for this delivery to start or be dropped."""
    waiter = delivery.waiter
    if waiter is not None:
        delivery.waiter = None
        waiter.met()


def assign_sequence(session: Session, delivery: Delivery) -> None:
    session.last_seq += 1
    delivery.seq = session.last_seq


def identifiers_of(subscription: Subscription) -> tuple[int, ...]:
    """Return a subscription's identifier as a tuple, empty if it has none."""
    return () if subscription.identifier is None else (subscription.identifier,)


def encode_for(state: BrokerState, session: Session, delivery: Delivery) -> tuple[bytes, bytes]:
    """Return (head, tail) of the PUBLISH for this client; the packet id, if any, goes between them. The PUBLISH is
    encoded once for all clients that can share the encoding. Both parts are empty for a plugin client that sets no
    maximum packet size.
    """
    outgoing = delivery.outgoing
    message = outgoing.message
    client = session.client
    connection = session.connection
    if (
        connection is not None
        and connection.in_process
        and connection.max_packet_size == LARGEST_PACKET
    ):
        state.work += outgoing.size >> 12
        return b"", b""
    five = client.version == 5
    remaining = -1
    if five and message.expires_at is not None:
        # [MQTT-3.3.2-6]: the remaining interval, rounded up, but never more than received, even if the clock was set
        # back
        interval = message.properties.message_expiry_interval
        most = _LONGEST if interval is None else interval
        remaining = min(max(0, ceil(message.expires_at - state.runtime.time())), most)
    mount = client.scope.mount_point
    if mount or (five and connection is not None and connection.alias_maximum):
        topic = message.topic.removeprefix(mount)
        state.work += len(delivery.identifiers) >> 3
        return _encode_own(session, delivery, topic, remaining)
    key = (five, delivery.qos, delivery.retain, delivery.identifiers, remaining)
    forms = outgoing.forms
    if forms is None:
        forms = outgoing.forms = {}
    form = forms.get(key)
    if form is None:
        if forms and len(forms) >= (outgoing.most if type(outgoing) is Kept else FORMS):
            forms.clear()
        if delivery.identifiers:
            state.work += len(delivery.identifiers) >> 3
        properties: bytes | None = None
        if five:
            properties = b"\0"
            if message.properties is not EMPTY or delivery.identifiers or remaining >= 0:
                properties = _properties(message, delivery.identifiers, remaining)
        form = forms[key] = encode_publish_parts(
            message.topic.encode(),
            message.payload,
            delivery.qos,
            delivery.retain,
            False,  # DUP belongs to one hop [MQTT-3.3.1-3, 4.3.2-2, 4.3.3-2] [MQTT311-3.3.1-3]
            properties,
        )
    return form


def _encode_own(
    session: Session, delivery: Delivery, topic: str, remaining: int
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
    if connection is not None and connection.aliases is not None and not held_back:
        # A packet that waits for a commit might be sent after one that relies on its alias.
        alias, name = connection.aliases.name(topic)
    properties = _properties(message, delivery.identifiers, remaining, alias)
    return encode_publish_parts(
        name.encode(), message.payload, delivery.qos, delivery.retain, False, properties
    )


def take_back_alias(session: Session, message: Message) -> None:
    """Withdraw the alias introduced by the packet just encoded for `message`, which will not be sent."""
    connection = session.connection
    aliases = connection.aliases if connection is not None else None
    if aliases is not None:
        aliases.take_back(message.topic.removeprefix(session.client.scope.mount_point))


def _properties(
    message: Message, identifiers: tuple[int, ...], remaining: int, alias: int = 0
) -> bytes:
    """Return the encoded properties of an outgoing PUBLISH: the publisher's properties plus those for this hop
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
