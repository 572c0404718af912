"""The short way of a PUBLISH that needs no decision any more: its connection sent one like it before, and nothing stood
in its way (`Link.remember`). What is left is to hand it on.

Where all receivers are plain and end with their connections, not even a `Message` is made: the bytes that came in go out.
"""

from functools import partial
from typing import Final

from hookmq.broker.deliver import offer
from hookmq.broker.fanout import publish
from hookmq.broker.link import Link
from hookmq.broker.routes import Permit, Route
from hookmq.codec import encode_publish_parts
from hookmq.codec.primitives import Reader
from hookmq.codec.properties import check_response_topic, read_properties
from hookmq.errors import ProtocolError
from hookmq.properties import EMPTY, In, Properties
from hookmq.qos import (
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
from hookmq.reason import ReasonCode
from hookmq.session import BEHIND, CLEAN, DIRTY, Session
from hookmq.store import PutReceived
from hookmq.types import Direction, DropReason, Message, make_message

_SECTIONS: Final = 64
"""Property sections remembered per connection: publishers repeat theirs."""
_TOPIC_ALIAS: Final = 0x23
_SUBSCRIPTION_IDENTIFIER: Final = 0x0B
_NO_MATCH: Final = bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,))


def read_section(
    connection: Link, permit: Permit, data: bytes, start: int, after: int
) -> Properties | None:
    """The properties whose section begins at `start`, if they only belong to the message and may be passed on as they
    are; `permit` remembers them. None: the long way must look at them (and say what is wrong with them)."""
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
            permit.section = section
            permit.properties = known
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
    if connection.core.settings.broker.check_payload_format and properties.payload_format_indicator:
        return None
    if sections is None or len(sections) >= _SECTIONS:
        sections = connection.sections = {}
    sections[section] = properties
    permit.section = section
    permit.properties = properties
    return properties


def _message(
    connection: Link, route: Route, payload: bytes, qos: int, properties: Properties
) -> Message:
    client = connection.client
    assert client is not None
    now = connection.core.runtime.time()
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


def _tell(connection: Link, route: Route, payload: bytes, qos: int, properties: Properties) -> None:
    message = _message(connection, route, payload, qos, properties)
    connection.core.observe("on_published", connection.client, message, route.matched)


def queue_one(
    connection: Link,
    receiver: Session,
    route: Route,
    payload: bytes,
    properties: Properties,
    outgoing: Outgoing | None,
) -> Outgoing | None:
    """Send a QoS 0 message the long way to a plain receiver that is away or slow. `outgoing` is what the call for the
    receiver before returned: all of them share one message."""
    core = connection.core
    if (
        receiver.connection is None
        and not core.settings.session.queue_qos0
        and "on_dropped" not in core.observed
    ):
        core.metrics.count_drop(DropReason.OFFLINE_QOS0, Direction.OUT)
        return outgoing
    target = route.target_of(receiver)
    if target is not None:
        if outgoing is None:
            outgoing = Outgoing(_message(connection, route, payload, 0, properties))
        offer(core, receiver, outgoing, 0, False, (), target.subscription)
    return outgoing


def pass_other(
    connection: Link, permit: Permit, payload: bytes, section: bytes, properties: Properties
) -> None:
    """QoS 0 to the plain receivers of the other protocol version: one encoding for all of them."""
    core = connection.core
    route = permit.route
    to_five = None if connection.version == 5 else b"\0"
    head, tail = encode_publish_parts(route.topic.encode(), payload, 0, False, False, to_five)
    packet = head + tail
    core.work += len(permit.other) >> 4
    outgoing: Outgoing | None = None
    for receiver in permit.other:
        if receiver.state == BEHIND:
            outgoing = queue_one(connection, receiver, route, payload, properties, outgoing)
            continue
        core.mark(receiver)
        receiver.out.append(packet)
        core.metrics.messages_delivered += 1


def pass_on(
    connection: Link,
    permit: Permit,
    data: bytes,
    pos: int,
    stop: int,
    start: int,
    after: int,
    properties: Properties,
) -> bool:
    """Hand on the PUBLISH at ``data[pos:after]``, whose topic ends at `stop` and whose payload begins at `start`. False
    if it must go the long way after all: an id that is wrong or repeated, a quota that is used up, a journal without
    room."""
    core = connection.core
    session = connection.session
    assert session is not None
    qos = permit.header >> 1 & 3
    if permit.route.bounded and core.parking.without_room(permit.route.bounded):
        return False
    if permit.route.large and core.collecting is not None:
        return False
    if qos == 0:
        message = _message(connection, permit.route, data[start:after], 0, properties)
        publish(core, message, session, None, session.client, None)
        core.schedule()
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
    if permit.simple and not connection.answers:
        if qos == 2:
            if taken is None:
                taken = session.received = set()
            taken.add(number)
        _pass_bytes(
            connection, session, permit.route, data, pos, stop, start, after, qos, properties
        )
        return True
    if permit.kept and _pass_kept(
        connection, permit.route, data, pos, stop, start, after, properties
    ):
        return True
    acknowledgement = Acknowledgement(connection.release, b"", 1 if qos == 1 else 0)
    committer = core.committer
    added = committer.added
    if qos == 2:
        if taken is None:
            taken = session.received = set()
        taken.add(number)
        if session.durable and core.recording:
            committer.add(PutReceived(session.client_id, number))
    message = _message(connection, permit.route, data[start:after], qos, properties)
    matched = publish(core, message, session, acknowledgement, session.client, None)
    if matched or connection.version < 5:
        acknowledgement.data = (PUBACK if qos == 1 else PUBREC) + PACKET_IDS[number]
    else:
        first = b"\x40\x03" if qos == 1 else b"\x50\x03"
        acknowledgement.data = first + PACKET_IDS[number] + _NO_MATCH
    if committer.added != added:
        if not acknowledgement.left and connection.join(
            acknowledgement.data, acknowledgement.publishes
        ):
            core.schedule()
            return True
        acknowledgement.hold()
        committer.then(acknowledgement.met)
    connection.answer(acknowledgement)
    core.schedule()
    return True


def _pass_kept(
    connection: Link,
    route: Route,
    data: bytes,
    pos: int,
    stop: int,
    start: int,
    after: int,
    properties: Properties,
) -> bool:
    """QoS 1 to one plain receiver whose session outlives its connection. It is on record when the commit starts that its
    sender waits for, unless it was acknowledged by then. False if it must go the long way: the receiver is away, slow or
    of the other version, has no room or gets it at QoS 0."""
    core = connection.core
    target = route.targets[0]
    receiver = target.session
    inflight = receiver.inflight
    if (
        receiver.state == BEHIND
        or receiver.kind != (5 if connection.version == 5 else 3)
        or not target.qos
        or receiver.queued
        or len(inflight) >= receiver.window
        or not receiver.durable
    ):
        return False
    outgoing = Outgoing(_message(connection, route, data[start:after], 1, properties))
    delivery = Delivery(outgoing, 1, False, (), target.subscription)
    receiver.last_seq += 1
    delivery.seq = receiver.last_seq
    number = take_packet_id(inflight, receiver.last_packet_id)
    receiver.last_packet_id = number
    delivery.packet_id = number
    delivery.owner = receiver.owner
    inflight[number] = delivery
    core.committer.add_sent(delivery)
    core.metrics.messages_delivered += 1
    out = receiver.out
    out.append(data[pos:stop])
    out.append(PACKET_IDS[number])
    out.append(data[stop + 2 : after])
    if receiver.state == CLEAN:
        receiver.state = DIRTY
        core.dirty.append(receiver)
    answer = PUBACK + data[stop : stop + 2]
    if not connection.join(answer, 1):
        acknowledgement = Acknowledgement(connection.release, answer, 1)
        acknowledgement.hold()
        core.committer.then(acknowledgement.met)
        connection.answer(acknowledgement)
    core.schedule()
    return True


def _pass_bytes(
    connection: Link,
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
    """QoS 1 or 2 to plain receivers whose sessions end with their connections: no record, no commit; head and tail of the
    packet are shared, only the packet id differs."""
    core = connection.core
    kind = 5 if connection.version == 5 else 3
    same_head = data[pos:stop]
    same_tail = data[stop + 2 : after]
    lower: bytes | None = None
    zero: bytes | None = None
    outgoing: Outgoing | None = None
    delivered = 0
    core.work += len(route.targets) >> 3
    for target in route.targets:
        receiver = target.session
        granted = target.qos
        if granted > qos:
            granted = qos
        if (
            receiver.state == BEHIND
            or receiver.kind != kind
            or (granted and (receiver.queued or len(receiver.inflight) >= receiver.window))
        ):
            if outgoing is None:
                outgoing = Outgoing(_message(connection, route, data[start:after], qos, properties))
            offer(core, receiver, outgoing, granted, False, (), target.subscription)
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
        if receiver.state == CLEAN:
            receiver.state = DIRTY
            core.dirty.append(receiver)
    core.metrics.messages_delivered += delivered
    if "on_published" in core.observed:
        # The client need not wait until there is a message to tell of.
        core.later.append(partial(_tell, connection, route, data[start:after], qos, properties))
    number = data[stop : stop + 2]
    out = session.out
    if kind == 5 and not route.matched:
        out.append(b"\x40\x03" if qos == 1 else b"\x50\x03")
        out.append(number)
        out.append(_NO_MATCH)
    else:
        out.append(PUBACK if qos == 1 else PUBREC)
        out.append(number)
    if session.state == CLEAN:
        session.state = DIRTY
        core.dirty.append(session)
    elif session.state == BEHIND:
        core.dirty.append(session)
