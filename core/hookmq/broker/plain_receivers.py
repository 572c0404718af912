"""Forward a QoS 0 PUBLISH on the fast path to plain receivers. They share the received bytes, or one encoding.

Receivers for which a plugin's `on_deliver` abstains share the bytes too.
"""

from typing import Final

from hookmq.broker.connection import ClientConnection
from hookmq.broker.delivery.deliver import deliver
from hookmq.broker.delivery.transmit import transmit_answered
from hookmq.broker.published_events import client_message
from hookmq.hooks.call import run_deliver
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message
from hookmq.mqtt.encoder import encode_publish_parts, encode_varint
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.routing.route import CachedPublish, Recipient, Route
from hookmq.session.inflight import VOLATILE_1, VOLATILE_2, Outgoing, take_packet_id
from hookmq.session.session import IDLE, PENDING, QUEUEING, UNENCODED, Session

_run_deliver: Final = run_deliver  # compiled code reads a module's own constants directly


def deliver_to_one(
    connection: ClientConnection,
    receiver: Session,
    route: Route,
    payload: bytes,
    properties: Properties,
    outgoing: Outgoing | None,
) -> Outgoing | None:
    """Deliver a QoS 0 message to a plain receiver that is offline or slow. To share one message among all receivers,
    pass the result of one call as `outgoing` to the next."""
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
            client = connection.client
            assert client is not None
            outgoing = Outgoing(
                client_message(state.arrival(), client, route.topic, payload, 0, properties)
            )
        deliver(state, receiver, outgoing, 0, False, (), recipient.subscription)
    return outgoing


def forward_to_others(
    connection: ClientConnection,
    cached: CachedPublish,
    payload: bytes,
    properties: Properties,
    outgoing: Outgoing | None = None,
) -> None:
    """Forward a QoS 0 message to the plain receivers that cannot get the publisher's bytes. Plugin clients get the
    message itself. Receivers of the other protocol version share one encoding. `outgoing` is the message if it has
    already been created.
    """
    state = connection.state
    route = cached.route
    if route.plugin_clients:
        hand_over(connection, route, payload, properties, outgoing)
        if not cached.other_version:
            return
    packet = _for_other_version(connection, route, payload)
    state.work += len(cached.other_version) >> 4
    for receiver in cached.other_version:
        if receiver.state == QUEUEING:
            outgoing = deliver_to_one(connection, receiver, route, payload, properties, outgoing)
            continue
        state.writes.mark(receiver)
        receiver.out.append(packet)
        state.metrics.messages_delivered += 1


def hand_over(
    connection: ClientConnection,
    route: Route,
    payload: bytes,
    properties: Properties,
    outgoing: Outgoing | None = None,
) -> None:
    """Pass a QoS 0 message to the plugin clients on its route. `outgoing` is the message if it was created already."""
    state = connection.state
    sender = connection.client
    assert sender is not None
    message = None if outgoing is None else outgoing.message
    delivered = 0
    for receiver in route.plugin_clients:
        mailbox = receiver.connection
        if receiver.state == QUEUEING or mailbox is None:
            outgoing = deliver_to_one(connection, receiver, route, payload, properties, outgoing)
            continue
        mailbox.arrive_plain(sender, route.topic, payload, 0, properties, 0, 0, message)
        delivered += 1
    state.metrics.messages_delivered += delivered
    state.work += delivered


def hand_over_run(
    connection: ClientConnection,
    cached: CachedPublish,
    data: bytes,
    pos: int,
    start: int,
    after: int,
    last: int,
    enough: int,
    properties: Properties,
) -> int:
    """Pass on the QoS 0 messages that follow the one at ``data[pos:after]``. They differ from it only in their payloads,
    which have the same length. Their only recipients are plugin clients. Stop at `last`, or when `BrokerState.work`
    exceeds `enough`. Return how many messages were passed on.
    """
    if cached.publish_limit is not None:
        return 0
    state = connection.state
    route = cached.route
    sender = connection.client
    receivers = route.plugin_clients
    assert sender is not None
    same = data[pos:start]
    named = start - pos
    size = after - pos
    end = len(data)
    found = 0
    while (
        after < last
        and after + size <= end
        and state.work <= enough
        and route.valid
        and data[after : after + named] == same
    ):
        payload = data[after + named : after + size]
        for receiver in receivers:
            mailbox = receiver.connection
            if receiver.state == QUEUEING or mailbox is None:
                deliver_to_one(connection, receiver, route, payload, properties, None)
                continue
            mailbox.arrive_plain(sender, route.topic, payload, 0, properties, 0, 0, None)
            state.metrics.messages_delivered += 1
        state.work += len(receivers)
        after += size
        found += 1
    return found


def hand_over_payloads(
    connection: ClientConnection, route: Route, payloads: list[bytes], first: int, end: int
) -> int:
    """Pass QoS 0 messages with the payloads in ``payloads[first:end]`` to the plugin clients on their route. Stop if the
    route is no longer valid. Return the index of the first message that was not passed on.
    """
    state = connection.state
    sender = connection.client
    assert sender is not None
    receivers = route.plugin_clients
    index = first
    while index < end and (index == first or route.valid):
        payload = payloads[index]
        index += 1
        for receiver in receivers:
            mailbox = receiver.connection
            if receiver.state == QUEUEING or mailbox is None:
                deliver_to_one(connection, receiver, route, payload, EMPTY, None)
                continue
            mailbox.arrive_plain(sender, route.topic, payload, 0, EMPTY, 0, 0, None)
            state.metrics.messages_delivered += 1
    state.work += (index - first) * (1 + len(receivers))
    return index


def hand_over_acknowledged(
    connection: ClientConnection,
    recipient: Recipient,
    route: Route,
    payload: bytes,
    qos: int,
    properties: Properties,
    message: Message | None,
) -> bool:
    """Pass a QoS 1 or 2 message to a plugin client with a clean session. Nothing is recorded. Return False if the
    message must be delivered in the usual way.
    """
    receiver = recipient.session
    mailbox = receiver.connection
    sender = connection.client
    granted = recipient.qos
    if granted > qos:
        granted = qos
    if (
        not recipient.plain
        or receiver.encoding_version != UNENCODED
        or receiver.state == QUEUEING
        or mailbox is None
        or sender is None
        or (granted and (receiver.queued or len(receiver.inflight) >= receiver.window))
    ):
        return False
    state = connection.state
    number = 0
    if granted:
        number = take_packet_id(receiver.inflight, receiver.last_packet_id)
        receiver.last_packet_id = number
        receiver.inflight[number] = VOLATILE_1 if granted == 1 else VOLATILE_2
    mailbox.arrive_plain(sender, route.topic, payload, qos, properties, granted, number, message)
    state.metrics.messages_delivered += 1
    state.work += 1
    return True


def forward_unencoded(connection: ClientConnection, route: Route, payload: bytes, qos: int) -> None:
    """Pass on a QoS 1 or 2 message from a plugin client. All its recipients are plugin clients with clean sessions."""
    state = connection.state
    outgoing: Outgoing | None = None
    for recipient in route.recipients:
        if hand_over_acknowledged(connection, recipient, route, payload, qos, EMPTY, None):
            continue
        if outgoing is None:
            client = connection.client
            assert client is not None
            outgoing = Outgoing(
                client_message(state.arrival(), client, route.topic, payload, qos, EMPTY)
            )
        granted = min(qos, recipient.qos)
        deliver(state, recipient.session, outgoing, granted, False, (), recipient.subscription)


def forward_seen(
    connection: ClientConnection,
    session: Session,
    cached: CachedPublish,
    data: bytes,
    pos: int,
    stop: int,
    start: int,
    after: int,
    properties: Properties,
    message: Message,
) -> None:
    """Forward a QoS 0 message that plugins have seen to plain receivers. All receivers of the
    publisher's protocol version share the received bytes.
    """
    state = connection.state
    packet = data[pos:after]
    outgoing: Outgoing | None = None
    delivered = 0
    for receiver in cached.same_version:
        write_state = receiver.state
        if write_state == IDLE:
            receiver.state = PENDING
            state.writes.dirty.append(receiver)
        elif write_state == QUEUEING:
            if outgoing is None:
                outgoing = Outgoing(message)
            deliver_to_one(
                connection, receiver, cached.route, message.payload, properties, outgoing
            )
            continue
        receiver.out.append(packet)
        delivered += 1
    state.metrics.messages_delivered += delivered
    state.work += 1 + (delivered >> 4)
    if cached.others:
        forward_to_others(
            connection, cached, message.payload, properties, outgoing or Outgoing(message)
        )
    if cached.route.asked:
        _forward_asked(connection, cached.route, packet, message, outgoing)
    if cached.told:
        state.writes.later.append(
            (session.client, cached.route, message.payload, 0, properties, message)
        )


def forward_payload(
    connection: ClientConnection, session: Session, cached: CachedPublish, payload: bytes
) -> None:
    """Forward a QoS 0 message of a plugin client to plain receivers, encoded once for each version. Call this only if
    no plugin sees the message.
    """
    state = connection.state
    route = cached.route
    outgoing: Outgoing | None = None
    size = 0
    if cached.same_version:
        packet = packet_start(cached, len(payload), connection.version == 5) + payload
        size = len(packet)
        delivered = 0
        for receiver in cached.same_version:
            write_state = receiver.state
            if write_state == IDLE:
                receiver.state = PENDING
                state.writes.dirty.append(receiver)
            elif write_state == QUEUEING:
                outgoing = deliver_to_one(connection, receiver, route, payload, EMPTY, outgoing)
                continue
            receiver.out.append(packet)
            delivered += 1
        state.metrics.messages_delivered += delivered
        state.work += delivered >> 4
    if cached.others:
        size = size or len(payload) + len(route.topic) + 5
        forward_to_others(connection, cached, payload, EMPTY, outgoing)
    if size:
        state.writes.share(size)


def packet_start(cached: CachedPublish, size: int, five: bool) -> bytes:
    """Return the bytes that precede a payload of `size` bytes in the packet for MQTT 5 or 3 receivers, with packet id 0.
    The packet has no properties. For MQTT 5, `cached` remembers the result.
    """
    if five and cached.start_for == size:
        return cached.start
    name = cached.route.topic.encode()
    name = len(name).to_bytes(2, "big") + name
    tail = b"\0" if five else b""
    if cached.header & 6:
        tail = b"\0\0" + tail
    rest = encode_varint(len(name) + len(tail) + size)
    start = b"%c%b%b%b" % (cached.header, rest, name, tail)
    if five:
        cached.start = start
        cached.start_for = size
    return start


def _for_other_version(connection: ClientConnection, route: Route, payload: bytes) -> bytes:
    """Return the QoS 0 PUBLISH for receivers whose protocol version differs from the publisher's."""
    to_five = None if connection.version == 5 else b"\0"
    head, tail = encode_publish_parts(route.topic.encode(), payload, 0, False, False, to_five)
    return head + tail


def _forward_asked(
    connection: ClientConnection,
    route: Route,
    packet: bytes,
    message: Message,
    outgoing: Outgoing | None,
) -> None:
    """Call `on_deliver` for each receiver. Forward `packet` to the receivers for which the hook changes nothing.
    `outgoing` is the message for the others, if it already exists."""
    state = connection.state
    same = 5 if connection.version == 5 else 3
    other = b""
    delivered = 0
    for recipient in route.asked:
        receiver = recipient.session
        subscription = recipient.subscription
        if receiver.state == QUEUEING or receiver.encoding_version == UNENCODED:
            if outgoing is None:
                outgoing = Outgoing(message)
            deliver(state, receiver, outgoing, 0, False, (), subscription)
            continue
        answer = _run_deliver(recipient.calls, receiver.client, message, subscription)
        state.work += 1
        if answer is not message:
            if outgoing is None:
                outgoing = Outgoing(message)
            transmit_answered(state, receiver, outgoing, 0, subscription, answer)
            continue
        if receiver.encoding_version == same:
            receiver.out.append(packet)
        else:
            if not other:
                other = _for_other_version(connection, route, message.payload)
            receiver.out.append(other)
        state.writes.mark(receiver)
        delivered += 1
    state.metrics.messages_delivered += delivered
