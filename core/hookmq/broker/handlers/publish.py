"""Handle PUBLISH: check it, send it through the pipeline, and acknowledge it."""

from functools import partial
from typing import Final

from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.broker.handlers.established import session_of
from hookmq.broker.memo import remember
from hookmq.broker.parked_publishes import Parked
from hookmq.broker.publish.authorize import Decisions
from hookmq.broker.publish.pipeline import PublishPipeline, PublishResult
from hookmq.hooks.chain import Chains
from hookmq.hooks.inline import Answered
from hookmq.hooks.rate_limit import LimitExceeded, PublishLimit
from hookmq.hooks.verdicts import Deny
from hookmq.model.events import Action, Direction, DropReason
from hookmq.model.message import Message, make_message
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import Packet, Publish
from hookmq.mqtt.properties import EMPTY, In, Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import validate_topic
from hookmq.session.inflight import (
    Acknowledgement,
)
from hookmq.session.session import Session
from hookmq.storage.records import PutReceived

_TOPIC_ALIAS = 0x23
_SUBSCRIPTION_IDENTIFIER = 0x0B


def on_publish(connection: ClientConnection, packet: Packet) -> None:
    """Handle PUBLISH. The QoS determines the acknowledgement [MQTT-3.3.4-1] [MQTT311-3.3.4-1]."""
    assert isinstance(packet, Publish)
    state = connection.state
    session = connection.session
    assert session is not None  # calling `session_of` for each message would cost more
    client = session.client
    limits = state.settings.broker
    offered = connection.offered
    qos = packet.qos
    if qos > offered.max_qos:  # [MQTT-3.2.2-11]
        raise ProtocolError(ReasonCode.QOS_NOT_SUPPORTED, f"QoS {qos} is not offered")
    if packet.retain and not offered.retain_available:  # [MQTT-3.2.2-14]
        raise ProtocolError(ReasonCode.RETAIN_NOT_SUPPORTED, "retained messages are not offered")
    properties = packet.properties
    topic = packet.topic
    if properties is not EMPTY:
        topic = _resolve_alias(connection, topic, properties)
        properties = properties.only(In.WILL, without=(_TOPIC_ALIAS, _SUBSCRIPTION_IDENTIFIER))
    mount = client.scope.mount_point
    if mount:
        topic = mount + topic
    if mount or topic.count("/") > limits.max_topic_levels:
        # The decoder has checked the topic, but not its depth and not the mount point in front of it.
        validate_topic(topic, limits.max_topic_levels)
    metrics = state.metrics
    metrics.messages_received += 1
    metrics.received_qos_sum += qos
    if qos == 2:
        metrics.received_qos2 += 1
    now = state.runtime.time()
    interval = properties.message_expiry_interval if properties is not EMPTY else None
    message = make_message(
        topic,
        packet.payload,
        qos,
        packet.retain,
        properties,
        client.client_id,
        "client",
        now,
        None if interval is None else now + interval,
    )
    if limits.check_payload_format and properties.payload_format_indicator == 1:
        try:
            packet.payload.decode()
        except UnicodeDecodeError:
            code = ReasonCode.PAYLOAD_FORMAT_INVALID
            state.dropped(message, client, DropReason.DENIED, Direction.IN, "broker")
            state.denied(client, Action.PUBLISH, topic, code, "broker")
            _refuse(connection, packet, PublishResult(code, "payload is not UTF-8"))
            return
    if qos == 2 and session.received is not None and packet.packet_id in session.received:
        # [MQTT-4.3.3-10] [MQTT311-4.3.3-2]: the client did not receive the PUBREC for a message already accepted. At
        # QoS 1, a repeated id is a new message [MQTT-4.3.2-5].
        relies = session.durable and state.committer.busy  # perhaps on the commit of the first copy
        connection.acknowledge(packet, ReasonCode.SUCCESS, "", relies, None)
        return
    unfinished = connection.unacknowledged + (len(session.received) if session.received else 0)
    if qos and unfinished >= connection.receive_maximum + connection.carried:
        state.metrics.receive_maximum_exceeded += 1
        if limits.receive_maximum_policy == "strict" and connection.version == 5:
            # [MQTT-3.3.4-7]
            raise ProtocolError(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "too many publishes in flight")
    if connection.rate_limiter is not None:
        publish_limit = connection.rate_limiter.publish_limit(topic)
        if publish_limit is not None and not publish_limit.take(connection.size):
            _over(connection, packet, message, publish_limit)
            return
    _submit(connection, session, packet, message)


def _over(
    connection: ClientConnection, packet: Publish, message: Message, publish_limit: PublishLimit
) -> None:
    """Handle a PUBLISH that exceeds a rate limit: hold it and later packets, refuse it or drop it."""
    state = connection.state
    waits = True

    def go(refusal: LimitExceeded | None) -> None:
        nonlocal waits
        if not waits or connection.phase is Phase.CLOSED:
            return  # the limit ignored the cancellation, or calls twice: nothing is published for a client that left
        waits = False
        # `waiting` remains set: held packets continue when this one is done.
        connection.decision = None
        if refusal is None:
            state.guarded(partial(_submit, connection, session_of(connection), packet, message))
        else:
            state.guarded(partial(_limited, connection, packet, message, refusal))
        state.writes.schedule()

    answer = publish_limit.over(connection.size, packet.qos, go)
    if isinstance(answer, LimitExceeded):
        _limited(connection, packet, message, answer)
    else:
        connection.wait(answer)


def _limited(
    connection: ClientConnection, packet: Publish, message: Message, refusal: LimitExceeded
) -> None:
    """Refuse or drop a PUBLISH that exceeds a rate limit."""
    state = connection.state
    session = session_of(connection)
    client = session.client
    resumed = connection.waiting
    verdict, limit = refusal.verdict, refusal.limit
    state.dropped(message, client, DropReason.RATE_LIMITED, Direction.IN, limit)
    if isinstance(verdict, Deny):
        state.denied(client, Action.PUBLISH, message.topic, verdict.code, limit)
        result = PublishResult(verdict.code, verdict.reason or "", verdict.disconnect)
        _refuse(connection, packet, result)
    else:
        result = PublishResult(verdict.code, matched=0)
        if packet.qos == 2:
            _take_id(connection, session, packet.packet_id)
            result.relies = session.durable
        connection.acknowledge(packet, result.code, result.reason, result.relies, None)
    state.writes.schedule()
    if resumed:
        connection.go_on()


def continue_publish(
    connection: ClientConnection,
    chains: Chains,
    session: Session,
    message: Message,
    packet_id: int,
    answered: Answered,
    kept: int,
) -> None:
    """Complete a PUBLISH for which the fast path has called the `on_publish` hooks of `chains`. For `answered` and
    `kept`, see `PublishPipeline.run_from`.
    """
    packet = Publish(
        message.topic, message.payload, message.qos, False, False, packet_id, message.properties
    )
    _submit(connection, session, packet, message, chains, answered, kept)


def _submit(
    connection: ClientConnection,
    session: Session,
    packet: Publish,
    message: Message,
    chains: Chains | None = None,
    answered: Answered | None = None,
    kept: int = -1,
) -> None:
    """Send a PUBLISH through the pipeline and acknowledge it. The last three arguments are set if `on_publish` has
    already been called."""
    state = connection.state
    if chains is None:
        chains = connection.chains
    qos = packet.qos
    acknowledgement = Acknowledgement(connection.release) if qos else None
    decisions = connection.decisions
    if decisions is None and chains.authorize[Action.PUBLISH]:
        decisions = connection.decisions = Decisions()
    pipeline = PublishPipeline(
        state,
        chains,
        message,
        partial(_settle, connection, packet, acknowledgement),
        client=connection.client,
        sender=session,
        decisions=decisions,
        acknowledgement=acknowledgement,
    )
    if qos == 2:
        pipeline.before = partial(_take_id, connection, session, packet.packet_id)
    result = pipeline.run() if answered is None else pipeline.run_from(answered, kept)
    if result is None:
        connection.wait(pipeline.cancel)
        return
    if result.matched < 0 or result.full:
        _settle(connection, packet, acknowledgement, result)
        return
    if pipeline.plain and result.route is not None:
        remember(connection, packet, message, result.route)
    resumed = connection.waiting
    connection.acknowledge(packet, result.code, result.reason, result.relies, acknowledgement)
    state.writes.schedule()
    if resumed:
        connection.go_on()


def _resolve_alias(connection: ClientConnection, topic: str, properties: Properties) -> str:
    """Return the topic of a PUBLISH: `topic`, or the one its topic alias refers to."""
    alias = properties.topic_alias
    if alias is None:
        return topic
    if not 0 < alias <= connection.offered.topic_alias_maximum:
        # [MQTT-3.3.2-8, 3.3.2-9, 3.2.2-17, 3.2.2-18]
        raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}")
    known = connection.inbound_aliases
    if topic:
        if known is None:
            known = connection.inbound_aliases = {}
        validate_topic(topic, connection.state.settings.broker.max_topic_levels)
        known[alias] = topic  # [MQTT-3.3.2-12]
        return topic
    if known is None or alias not in known:  # [MQTT-3.3.2-7]
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"unknown topic alias {alias}")
    topic = known[alias]
    connection.size += len(topic)  # the byte rate limit counts the resolved topic
    return topic


def _take_id(connection: ClientConnection, session: Session, packet_id: int) -> None:
    """Reserve an accepted message's packet id until PUBREL, in the same batch as the message."""
    if session.received is None:
        session.received = set()
    session.received.add(packet_id)
    if session.durable and connection.state.recording:
        connection.state.committer.add(PutReceived(session.client_id, packet_id))


def _settle(
    connection: ClientConnection,
    packet: Publish,
    acknowledgement: Acknowledgement | None,
    result: PublishResult,
) -> None:
    """Acknowledge or refuse a PUBLISH, depending on the pipeline's result."""
    resumed = connection.waiting
    if result.full:
        _no_room(connection, packet, acknowledgement, result)
    elif result.matched < 0:
        _refuse(connection, packet, result)
    else:
        connection.acknowledge(packet, result.code, result.reason, result.relies, acknowledgement)
    connection.state.writes.schedule()
    if resumed:
        connection.go_on()


def _refuse(connection: ClientConnection, packet: Publish, result: PublishResult) -> None:
    """Refuse a PUBLISH: with a reason code if the protocol version has one, otherwise as configured [MQTT311-3.3.5-2].
    If no plugin could decide, disconnect a 3.x client without an acknowledgement."""
    state = connection.state
    if result.disconnect:
        connection.disconnect(result.code, result.reason)
        return
    if connection.version < 5:
        if packet.qos and not result.decided:
            # An acknowledgement would be wrong. The client resends the PUBLISH after it reconnects [MQTT311-4.4.0-1].
            connection.disconnect(result.code, result.reason or "could not be decided")
            return
        if state.settings.broker.mqtt3_denied_publish == "disconnect":
            connection.disconnect(result.code, result.reason)
            return
        if packet.qos == 2:
            session = session_of(connection)
            _take_id(connection, session, packet.packet_id)
            result.relies = session.durable
        result.code = ReasonCode.SUCCESS
    connection.acknowledge(packet, result.code, result.reason, result.relies, None)


def _no_room(
    connection: ClientConnection,
    packet: Publish,
    acknowledgement: Acknowledgement | None,
    result: PublishResult,
) -> None:
    """Handle a PUBLISH that a full journal cannot take. Send MQTT 5 clients a reason code. For 3.x clients, delay the
    acknowledgement until there is room. If too much of a client's data is waiting, stop reading from the client, and
    disconnect it after `hold_timeout`.
    """
    state = connection.state
    message, later = result.message, result.later
    assert message is not None
    assert later is not None
    names = ", ".join(journal.name for journal in result.full)
    gone = partial(
        state.dropped, message, connection.client, DropReason.QUEUE_FULL, Direction.IN, names
    )
    if connection.version == 5:
        gone()
        connection.acknowledge(packet, result.code, result.reason, result.relies, None)
        return
    number = packet.packet_id
    parked = connection.parked
    if parked is None:
        parked = connection.parked = set()
    if packet.qos == 2:
        if number in parked:
            return  # resent: it already waits
        parked.add(number)
    size = len(message.payload) + len(message.topic) + _PARKED

    def go() -> None:
        parked.discard(number)
        connection.held_bytes -= size
        done = later()
        connection.acknowledge(packet, done.code, done.reason, done.relies, acknowledgement)
        connection.go_on_reading()

    if not state.parking.park(Parked(connection, result.full, size, go, gone)):
        gone()
        connection.disconnect(result.code, result.reason)
        return
    connection.count_held(size)


_PARKED: Final = 256
"""Overhead in bytes of a PUBLISH waiting for room, on top of its message."""
