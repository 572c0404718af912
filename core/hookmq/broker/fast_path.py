"""The fast path for a PUBLISH whose authorization and route its connection has cached (`ClientConnection.remember`).

If all receivers are plain clean sessions, no `Message` is made: the received bytes are forwarded.
"""

from functools import partial
from typing import Final

from hookmq.broker.connection import ClientConnection
from hookmq.broker.delivery.deliver import deliver
from hookmq.broker.publish.fan_out import publish
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message, make_message
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
from hookmq.session.session import IDLE, PENDING, QUEUEING, Session
from hookmq.storage.records import PutReceived

_SECTIONS: Final = 64
"""Property sections remembered per connection, since publishers repeat them."""
_TOPIC_ALIAS: Final = 0x23
_SUBSCRIPTION_IDENTIFIER: Final = 0x0B
_NO_MATCH: Final = bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,))


def read_section(
    connection: ClientConnection, cached: CachedPublish, data: bytes, start: int, after: int
) -> Properties | None:
    """Return the properties whose section begins at `start`, if they can be forwarded unchanged, and remember them in
    `cached`. Otherwise return None: the handler must process them and report any error."""
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


def _message(
    connection: ClientConnection, route: Route, payload: bytes, qos: int, properties: Properties
) -> Message:
    client = connection.client
    assert client is not None
    now = connection.state.runtime.time()
    interval = None if properties is EMPTY else properties.message_expiry_interval
    return make_message(
        route.topic,
        payload,
        qos,
        False,
        properties,
        client.client_id,
        "client",
        now,
        None if interval is None else now + interval,
    )


def _tell(
    connection: ClientConnection, route: Route, payload: bytes, qos: int, properties: Properties
) -> None:
    message = _message(connection, route, payload, qos, properties)
    connection.state.observe("on_published", connection.client, message, route.matched)


def deliver_to_one(
    connection: ClientConnection,
    receiver: Session,
    route: Route,
    payload: bytes,
    properties: Properties,
    outgoing: Outgoing | None,
) -> Outgoing | None:
    """Deliver a QoS 0 message to a plain receiver that is offline or slow. Pass the result of one call as `outgoing` to
    the next, so that all receivers share one message."""
    state = connection.state
    if (
        receiver.connection is None
        and not state.settings.session.queue_qos0
        and "on_dropped" not in state.observed
    ):
        state.metrics.count_drop(DropReason.OFFLINE_QOS0, Direction.OUT)
        return outgoing
    recipient = route.recipient_of(receiver)
    if recipient is not None:
        if outgoing is None:
            outgoing = Outgoing(_message(connection, route, payload, 0, properties))
        deliver(state, receiver, outgoing, 0, False, (), recipient.subscription)
    return outgoing


def forward_other_version(
    connection: ClientConnection,
    cached: CachedPublish,
    payload: bytes,
    section: bytes,
    properties: Properties,
) -> None:
    """Forward a QoS 0 message to the plain receivers of the other protocol version, encoded once."""
    state = connection.state
    route = cached.route
    to_five = None if connection.version == 5 else b"\0"
    head, tail = encode_publish_parts(route.topic.encode(), payload, 0, False, False, to_five)
    packet = head + tail
    state.work += len(cached.other_version) >> 4
    outgoing: Outgoing | None = None
    for receiver in cached.other_version:
        if receiver.state == QUEUEING:
            outgoing = deliver_to_one(connection, receiver, route, payload, properties, outgoing)
            continue
        state.writes.mark(receiver)
        receiver.out.append(packet)
        state.metrics.messages_delivered += 1


def forward(
    connection: ClientConnection,
    cached: CachedPublish,
    data: bytes,
    pos: int,
    stop: int,
    start: int,
    after: int,
    properties: Properties,
) -> bool:
    """Forward the PUBLISH at ``data[pos:after]``; its topic ends at `stop` and its payload begins at `start`. Return
    False if the handler must process it: the packet id is wrong or repeated, a quota is used up, or a journal has no
    room."""
    state = connection.state
    session = connection.session
    assert session is not None
    qos = cached.header >> 1 & 3
    if cached.route.bounded and state.parking.without_room(cached.route.bounded):
        return False
    if cached.route.large and state.collecting is not None:
        return False
    if qos == 0:
        message = _message(connection, cached.route, data[start:after], 0, properties)
        publish(state, cached.route, message, session, None, session.client, None)
        state.writes.schedule()
        return True
    number = data[stop] << 8 | data[stop + 1]
    if not number:
        return False
    taken = session.received
    if taken is not None and (
        len(taken) + connection.unacknowledged >= connection.receive_maximum + connection.carried
        or (qos == 2 and number in taken)
    ):
        return False
    if taken is None and connection.unacknowledged >= connection.receive_maximum:
        return False
    if cached.raw_forwardable and not connection.answers:
        if qos == 2:
            if taken is None:
                taken = session.received = set()
            taken.add(number)
        _forward_raw(
            connection, session, cached.route, data, pos, stop, start, after, qos, properties
        )
        return True
    if cached.single_durable and _forward_durable(
        connection, cached.route, data, pos, stop, start, after, properties
    ):
        return True
    acknowledgement = Acknowledgement(connection.release, b"", 1 if qos == 1 else 0)
    committer = state.committer
    added = committer.added
    if qos == 2:
        if taken is None:
            taken = session.received = set()
        taken.add(number)
        if session.durable and state.recording:
            committer.add(PutReceived(session.client_id, number))
    message = _message(connection, cached.route, data[start:after], qos, properties)
    matched = publish(state, cached.route, message, session, acknowledgement, session.client, None)
    if matched or connection.version < 5:
        acknowledgement.data = (PUBACK if qos == 1 else PUBREC) + PACKET_IDS[number]
    else:
        first = b"\x40\x03" if qos == 1 else b"\x50\x03"
        acknowledgement.data = first + PACKET_IDS[number] + _NO_MATCH
    if committer.added != added:
        if not acknowledgement.left and connection.join(
            acknowledgement.data, acknowledgement.publishes
        ):
            state.writes.schedule()
            return True
        acknowledgement.hold()
        committer.after_commit(acknowledgement.met)
    connection.answer(acknowledgement)
    state.writes.schedule()
    return True


def _forward_durable(
    connection: ClientConnection,
    route: Route,
    data: bytes,
    pos: int,
    stop: int,
    start: int,
    after: int,
    properties: Properties,
) -> bool:
    """Forward a QoS 1 message to one plain receiver with a durable session. The message is part of the commit that its
    sender waits for, unless the receiver acknowledges it first. Return False if the receiver is offline, slow, of the
    other version, without room, or subscribed at QoS 0."""
    state = connection.state
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
    outgoing = Outgoing(_message(connection, route, data[start:after], 1, properties))
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
    answer = PUBACK + data[stop : stop + 2]
    if not connection.join(answer, 1):
        acknowledgement = Acknowledgement(connection.release, answer, 1)
        acknowledgement.hold()
        state.committer.after_commit(acknowledgement.met)
        connection.answer(acknowledgement)
    state.writes.schedule()
    return True


def _forward_raw(
    connection: ClientConnection,
    session: Session,
    route: Route,
    data: bytes,
    pos: int,
    stop: int,
    start: int,
    after: int,
    qos: int,
    properties: Properties,
) -> None:
    """Forward a QoS 1 or 2 message to plain receivers with clean sessions. Nothing is recorded or committed. All
    receivers share the packet's head and tail; only the packet id differs."""
    # Long on purpose: a function call per receiver would cost more than the work itself.
    state = connection.state
    kind = 5 if connection.version == 5 else 3
    same_head = data[pos:stop]
    same_tail = data[stop + 2 : after]
    lower: bytes | None = None
    zero: bytes | None = None
    outgoing: Outgoing | None = None
    delivered = 0
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
            if outgoing is None:
                outgoing = Outgoing(_message(connection, route, data[start:after], qos, properties))
            deliver(state, receiver, outgoing, granted, False, (), recipient.subscription)
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
    if "on_published" in state.observed:
        # The acknowledgement does not wait for the `Message` that observers get.
        state.writes.later.append(
            partial(_tell, connection, route, data[start:after], qos, properties)
        )
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
