"""The fast path for a PUBLISH whose authorization and route its connection has cached (`ClientConnection.remember`).

If all receivers are plain clean sessions, the received bytes are forwarded. A `Message` is created only if a plugin
needs it.
"""

from typing import Final

from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.broker.delivery.deliver import deliver
from hookmq.broker.delivery.transmit import transmit_answered
from hookmq.broker.inline_publish import passed
from hookmq.broker.plain_receivers import forward_seen, hand_over_acknowledged
from hookmq.broker.publish.fan_out import publish
from hookmq.broker.published_events import client_message
from hookmq.broker.state import BrokerState
from hookmq.hooks.call import run_deliver
from hookmq.model.message import Message
from hookmq.mqtt.encoder import encode_publish_parts
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.primitives import Reader
from hookmq.mqtt.properties import EMPTY, In, Properties
from hookmq.mqtt.property_section import check_response_topic, read_properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.routing.route import CachedPublish, Route
from hookmq.session.inflight import (
    PACKET_IDS,
    PUBACK,
    PUBREC,
    VOLATILE_1,
    VOLATILE_2,
    Acknowledgement,
    Delivery,
    Outgoing,
    take_packet_id,
)
from hookmq.session.session import IDLE, PENDING, QUEUEING, UNENCODED, Session
from hookmq.storage.records import PutReceived

_OPEN: Final = Phase.OPEN  # compiled code reads a module's own constants directly
_EMPTY: Final = EMPTY
_SECTIONS: Final = 64
"""The maximum number of property sections to remember per connection. Publishers often repeat the same section."""
_TOPIC_ALIAS: Final = 0x23
_SUBSCRIPTION_IDENTIFIER: Final = 0x0B
_NO_MATCH: Final = bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,))
_JOINED: Final = 1024
"""Acknowledgements are joined until they reach this many bytes. The next one is then sent separately."""
REFUSED: Final = 0
FORWARDED: Final = 1
CONTINUED: Final = 2
"""The results that `forward` can return."""


def read_section(
    connection: ClientConnection, cached: CachedPublish, data: bytes, start: int, after: int
) -> Properties | None:
    """Return the properties whose section begins at `start`, if they can be forwarded unchanged, and remember them in
    `cached`. Otherwise return None, so that the handler processes them and reports any error.
    """
    if start >= after or data[start] > 127:
        return None
    stop = start + 1 + data[start]
    if stop > after:
        return None
    section = data[start:stop]
    sections = connection.sections
    if sections is not None:
        known = sections.get(section)
        if known is not None:
            cached.section = section
            cached.properties = known
            return known
    limits = connection.limits
    try:
        properties = read_properties(
            Reader(section, 0, limits.strict_text), In.PUBLISH, limits.max_user_properties
        )
        check_response_topic(properties)
    except ProtocolError:
        return None
    values = properties.values
    if _TOPIC_ALIAS in values or _SUBSCRIPTION_IDENTIFIER in values:
        return None
    if properties.message_expiry_interval == 0:
        return None
    if (
        connection.state.settings.broker.check_payload_format
        and properties.payload_format_indicator
    ):
        return None
    if sections is None or len(sections) >= _SECTIONS:
        sections = connection.sections = {}
    sections[section] = properties
    cached.section = section
    cached.properties = properties
    return properties


def forward(
    connection: ClientConnection,
    cached: CachedPublish,
    data: bytes,
    pos: int,
    stop: int,
    start: int,
    after: int,
    properties: Properties,
) -> int:
    """Forward the PUBLISH at ``data[pos:after]``; its topic ends at `stop` and its payload begins at `start`.

    Return REFUSED if the handler must process it: the packet id is wrong or repeated, a quota is used up, or a journal
    has no room. Return CONTINUED if a plugin may have changed the connection.
    """
    state = connection.state
    session = connection.session
    assert session is not None
    route = cached.route
    qos = cached.header >> 1 & 3
    stores = bool(route.columns) and _has_room(state, route)
    if not stores and route.bounded and state.parking.without_room(route.bounded):
        return REFUSED
    if route.large and state.collecting is not None:
        return REFUSED
    number = 0
    taken = session.received
    if qos:
        number = data[stop] << 8 | data[stop + 1]
        if not number or not _within_quota(connection, taken, qos, number):
            return REFUSED
        if qos == 2:
            state.metrics.received_qos2 += 1
    message: Message | None = None
    if cached.calls:
        message = passed(connection, cached, session, data[start:after], qos, properties, number)
        if message is None:
            return CONTINUED
    if stores and qos != 2 and not cached.told and not state.fan_outs:
        _store(connection, session, route, data, start, after, qos, number, properties, message)
        return FORWARDED
    if qos == 0:
        if message is None:
            message = client_message(
                state.arrival(), session.client, route.topic, data[start:after], 0, properties
            )
        if cached.plain_receivers:
            forward_seen(
                connection, session, cached, data, pos, stop, start, after, properties, message
            )
        else:
            publish(state, route, message, session, None, session.client, None)
        state.writes.schedule()
        return FORWARDED if connection.phase is _OPEN else CONTINUED
    if cached.plain_receivers and not connection.answers:
        if qos == 2:
            if taken is None:
                taken = session.received = set()
            taken.add(number)
        forward_raw(
            connection, session, cached, data, pos, stop, start, after, qos, properties, message,
            connection.version == 5,
        )  # fmt: skip
        return CONTINUED if route.asked and connection.phase is not _OPEN else FORWARDED
    if cached.single_durable and _forward_durable(
        connection, session, cached, data, pos, stop, start, after, properties, message
    ):
        return FORWARDED
    if message is None:
        message = client_message(
            state.arrival(), session.client, route.topic, data[start:after], qos, properties
        )
    _publish(connection, session, route, message, number)
    return FORWARDED if connection.phase is _OPEN else CONTINUED


def _has_room(state: BrokerState, route: Route) -> bool:
    """Return whether the columns of the route's journals have room, so that no journal needs to be asked."""
    if state.parking.waiting:
        return False  # earlier messages wait for room
    return all(room.used < room.limit for room in route.rooms)


def _within_quota(
    connection: ClientConnection, taken: set[int] | None, qos: int, number: int
) -> bool:
    """Return whether the quota allows the client to send a message. At QoS 2, its packet id must not be in `taken`."""
    if taken is None:
        return connection.unacknowledged < connection.receive_maximum
    if len(taken) + connection.unacknowledged >= connection.receive_maximum + connection.carried:
        return False
    return qos != 2 or number not in taken


def _publish(
    connection: ClientConnection, session: Session, route: Route, message: Message, number: int
) -> None:
    """Publish a QoS 1 or 2 message whose packet id is `number`, and acknowledge it."""
    state = connection.state
    qos = message.qos
    publishes = 1 if qos == 1 else 0
    committer = state.committer
    added = committer.added
    acknowledgement: Acknowledgement | None = None
    if route.large or state.fan_outs or state.queue_limits.back_pressure:
        acknowledgement = Acknowledgement(connection.release, b"", publishes)
    if qos == 2:
        taken = session.received
        if taken is None:
            taken = session.received = set()
        taken.add(number)
        if session.durable and state.recording:
            committer.add(PutReceived(session.client_id, number))
    matched = publish(state, route, message, session, acknowledgement, session.client, None)
    if matched or connection.version < 5:
        data = (PUBACK if qos == 1 else PUBREC) + PACKET_IDS[number]
    else:
        first = b"\x40\x03" if qos == 1 else b"\x50\x03"
        data = first + PACKET_IDS[number] + _NO_MATCH
    recorded = committer.added != added
    if (
        recorded
        and (acknowledgement is None or not acknowledgement.left)
        and _join(connection, data, publishes)
    ):
        state.writes.schedule()
        return
    if acknowledgement is None:
        acknowledgement = Acknowledgement(connection.release, b"", publishes)
    acknowledgement.data = data
    if recorded:
        acknowledgement.add_condition()
        committer.after_commit(acknowledgement.met, True, acknowledgement)
    connection.answer(acknowledgement)
    state.writes.schedule()


def _store(
    connection: ClientConnection,
    session: Session,
    route: Route,
    data: bytes,
    start: int,
    after: int,
    qos: int,
    number: int,
    properties: Properties,
    message: Message | None,
) -> None:
    """Store a QoS 0 or 1 message whose only recipients are journals with columns. They need no `Message`."""
    state = connection.state
    if message is None:
        payload = data[start:after]
        sender = session.client.client_id
        now = state.arrival()
        expires: float | None = None
        if (
            properties is not _EMPTY
            and (interval := properties.message_expiry_interval) is not None
        ):
            expires = now + interval
        for columns in route.columns:
            columns.add(route.topic, payload, qos, properties, sender, now, expires)
    else:
        for columns in route.columns:
            columns.add_message(message)
    state.committer.stored()
    if qos:
        answer = PUBACK + PACKET_IDS[number]
        if not _join(connection, answer, 1):
            acknowledgement = Acknowledgement(connection.release, answer, 1)
            acknowledgement.add_condition()
            state.committer.after_commit(acknowledgement.met, True, acknowledgement)
            connection.answer(acknowledgement)
    state.writes.schedule()


def _join(connection: ClientConnection, data: bytes, publishes: int) -> bool:
    """Append `data`, which acknowledges `publishes` publishes, to the last pending acknowledgement if both wait for
    the same commit. A burst then needs only one write. Return False if `data` must wait separately."""
    answers = connection.answers
    if not answers:
        return False
    last = answers[-1]
    if last.then is not None or len(last.data) >= _JOINED:
        return False
    if not connection.state.committer.still_last(last):
        return False
    last.data += data
    last.publishes += publishes
    connection.unacknowledged += publishes
    if connection.owes_much():
        connection.stop_reading()
    return True


def _forward_durable(
    connection: ClientConnection,
    session: Session,
    cached: CachedPublish,
    data: bytes,
    pos: int,
    stop: int,
    start: int,
    after: int,
    properties: Properties,
    message: Message | None,
) -> bool:
    """Forward a QoS 1 message to one plain receiver with a durable session. The message is part of the commit that its
    sender is waiting for, unless the receiver acknowledges it first. Return False if the receiver is offline, slow or
    full, uses the other MQTT version, or is subscribed at QoS 0.
    """
    state = connection.state
    route = cached.route
    recipient = route.recipients[0]
    receiver = recipient.session
    inflight = receiver.inflight
    if (
        receiver.state == QUEUEING
        or receiver.encoding_version != (5 if connection.version == 5 else 3)
        or not recipient.qos
        or receiver.queued
        or len(inflight) >= receiver.window
        or not receiver.durable
    ):
        return False
    if message is None:
        message = client_message(
            state.arrival(), session.client, route.topic, data[start:after], 1, properties
        )
    outgoing = Outgoing(message)
    delivery = Delivery(outgoing, 1, False, (), recipient.subscription)
    receiver.last_seq += 1
    delivery.seq = receiver.last_seq
    number = take_packet_id(inflight, receiver.last_packet_id)
    receiver.last_packet_id = number
    delivery.packet_id = number
    delivery.owner = receiver.owner
    inflight[number] = delivery
    state.committer.add_sent(delivery)
    state.metrics.messages_delivered += 1
    out = receiver.out
    out.append(data[pos:stop])
    out.append(PACKET_IDS[number])
    out.append(data[stop + 2 : after])
    if receiver.state == IDLE:
        receiver.state = PENDING
        state.writes.dirty.append(receiver)
    if cached.told:
        state.writes.later.append((session.client, route, message.payload, 1, properties, message))
    answer = PUBACK + data[stop : stop + 2]
    if not _join(connection, answer, 1):
        acknowledgement = Acknowledgement(connection.release, answer, 1)
        acknowledgement.add_condition()
        state.committer.after_commit(acknowledgement.met, True, acknowledgement)
        connection.answer(acknowledgement)
    state.writes.schedule()
    return True


def forward_raw(
    connection: ClientConnection,
    session: Session,
    cached: CachedPublish,
    data: bytes,
    pos: int,
    stop: int,
    start: int,
    after: int,
    qos: int,
    properties: Properties,
    message: Message | None,
    five: bool,
) -> None:
    """Forward a QoS 1 or 2 message to plain receivers with clean sessions. Nothing is recorded or committed. All
    receivers share the packet's head and tail; only the packet id differs. `five` is true for an MQTT 5 packet. A
    plugin client's message is not acknowledged here, because that client gets a reason code instead."""
    # Long on purpose: a function call per receiver would cost more than the work itself.
    state = connection.state
    route = cached.route
    kind = 5 if five else 3
    same_head = data[pos:stop]
    same_tail = data[stop + 2 : after]
    lower: bytes | None = None
    zero: bytes | None = None
    outgoing: Outgoing | None = None
    delivered = 0
    asked = bool(route.asked)
    if asked and message is None:
        message = client_message(
            state.arrival(), session.client, route.topic, data[start:after], qos, properties
        )
    state.work += len(route.recipients) >> 3
    for recipient in route.recipients:
        receiver = recipient.session
        granted = recipient.qos
        if granted > qos:
            granted = qos
        if (
            receiver.state == QUEUEING
            or receiver.encoding_version != kind
            or (granted and (receiver.queued or len(receiver.inflight) >= receiver.window))
        ):
            if receiver.encoding_version == UNENCODED and hand_over_acknowledged(
                connection, recipient, route, data[start:after], qos, properties, message
            ):
                continue
            if outgoing is None:
                if message is None:
                    message = client_message(
                        state.arrival(),
                        session.client,
                        route.topic,
                        data[start:after],
                        qos,
                        properties,
                    )
                outgoing = Outgoing(message)
            deliver(state, receiver, outgoing, granted, False, (), recipient.subscription)
            continue
        if asked and recipient.calls and message is not None:
            answer = run_deliver(recipient.calls, receiver.client, message, recipient.subscription)
            if answer is not message:
                if outgoing is None:
                    outgoing = Outgoing(message)
                transmit_answered(
                    state, receiver, outgoing, granted, recipient.subscription, answer
                )
                continue
        out = receiver.out
        if granted == 0:
            if zero is None:
                section = data[stop + 2 : start] if kind == 5 else None
                zero = b"".join(
                    encode_publish_parts(
                        route.topic.encode(), data[start:after], 0, False, False, section
                    )
                )
            out.append(zero)
        else:
            last = receiver.last_packet_id + 1
            if last > 65535:
                last = 1
            inflight = receiver.inflight
            while last in inflight:
                last = last + 1 if last < 65535 else 1
            receiver.last_packet_id = last
            if granted == qos:
                out.append(same_head)
            else:
                if lower is None:
                    lower = b"\x32" + same_head[1:]
                out.append(lower)
            out.append(PACKET_IDS[last])
            out.append(same_tail)
            inflight[last] = VOLATILE_1 if granted == 1 else VOLATILE_2
        delivered += 1
        if receiver.state == IDLE:
            receiver.state = PENDING
            state.writes.dirty.append(receiver)
    state.metrics.messages_delivered += delivered
    if cached.told:
        state.writes.later.append(
            (session.client, route, data[start:after], qos, properties, message)
        )
    if connection.in_process:
        return
    number = data[stop : stop + 2]
    out = session.out
    if kind == 5 and not route.matched:
        out.append(b"\x40\x03" if qos == 1 else b"\x50\x03")
        out.append(number)
        out.append(_NO_MATCH)
    else:
        out.append(PUBACK if qos == 1 else PUBREC)
        out.append(number)
    if session.state == IDLE:
        session.state = PENDING
        state.writes.dirty.append(session)
    elif session.state == QUEUEING:
        state.writes.dirty.append(session)
