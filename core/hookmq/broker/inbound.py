"""What an open connection may send about messages: PUBLISH and the four acknowledgements, PINGREQ, DISCONNECT.

These are the handlers of the table in `broker.table`; each takes the connection and a decoded packet.
"""

from functools import partial
from math import inf
from typing import Final

from hookmq.broker.authorizer import Decisions
from hookmq.broker.channel import Phase
from hookmq.broker.connack import seconds
from hookmq.broker.deliver import pump
from hookmq.broker.ingest import Ingest, Outcome
from hookmq.broker.link import Link
from hookmq.broker.parking import Parked
from hookmq.broker.send import acknowledged, received
from hookmq.codec import (
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    encode,
)
from hookmq.errors import ProtocolError
from hookmq.hooks.chains import narrow
from hookmq.hooks.meter import Charge, Over
from hookmq.hooks.verdicts import Deny
from hookmq.properties import EMPTY, In, Properties
from hookmq.qos import (
    PACKET_IDS,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    VOLATILE_RELEASED,
    Acknowledgement,
)
from hookmq.reason import PacketType, ReasonCode, clamp
from hookmq.session import Session
from hookmq.store import DropReceived, PutReceived
from hookmq.topics import validate_topic
from hookmq.types import (
    Action,
    Direction,
    DisconnectReason,
    DropReason,
    EndedBy,
    Message,
    make_message,
)

_TOPIC_ALIAS = 0x23
_SUBSCRIPTION_IDENTIFIER = 0x0B


def on_publish(connection: Link, packet: Packet) -> None:
    """PUBLISH: check it, then the one pipeline; the acknowledgement follows by QoS [MQTT-3.3.4-1] [MQTT311-3.3.4-1]."""
    assert isinstance(packet, Publish)
    core = connection.core
    session = connection.session
    client = connection.client
    assert session is not None
    assert client is not None
    limits = core.settings.broker
    offered = connection.offered
    qos = packet.qos
    if qos > offered.max_qos:  # [MQTT-3.2.2-11]
        raise ProtocolError(ReasonCode.QOS_NOT_SUPPORTED, f"QoS {qos} is not offered")
    if packet.retain and not offered.retain_available:  # [MQTT-3.2.2-14]
        raise ProtocolError(ReasonCode.RETAIN_NOT_SUPPORTED, "retained messages are not offered")
    topic = client.scope.mount_point + _topic(connection, packet)
    if client.scope.mount_point:
        # What is put before it may make it longer or deeper than others can be sent.
        validate_topic(topic, limits.max_topic_levels)
    core.metrics.messages_received += 1
    properties = packet.properties
    if properties is not EMPTY:
        properties = properties.only(In.WILL, without=(_TOPIC_ALIAS, _SUBSCRIPTION_IDENTIFIER))
    if limits.check_payload_format and properties.payload_format_indicator == 1:
        try:
            packet.payload.decode()
        except UnicodeDecodeError:
            outcome = Outcome(ReasonCode.PAYLOAD_FORMAT_INVALID, "payload is not UTF-8")
            _refuse(connection, packet, outcome)
            return
    now = core.runtime.time()
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
    if qos == 2 and session.received is not None and packet.packet_id in session.received:
        # [MQTT-4.3.3-10] [MQTT311-4.3.3-2]: the sender did not see our PUBREC; its message was taken already. An id of
        # QoS 1 is a new message each time [MQTT-4.3.2-5].
        repeated = Outcome(ReasonCode.SUCCESS, matched=1)
        repeated.relies = (
            session.durable and core.committer.busy
        )  # on the commit of the first, perhaps
        _acknowledge(connection, packet, repeated, None)
        return
    unfinished = connection.unacknowledged + (len(session.received) if session.received else 0)
    if qos and unfinished >= connection.receive_maximum + connection.carried:
        core.metrics.receive_maximum_exceeded += 1
        if limits.receive_maximum_policy == "strict" and connection.version == 5:
            # [MQTT-3.3.4-7]
            raise ProtocolError(
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "too many unfinished publishes"
            )
    if connection.meter is not None:
        charge = connection.meter.charge(topic)
        if charge is not None and not charge.take(connection.size):
            _over(connection, packet, message, charge)
            return
    _ingest(connection, packet, message)


def _over(connection: Link, packet: Publish, message: Message, charge: Charge) -> None:
    """A PUBLISH is above a limit: it waits, and those behind it with it, or it is refused or dropped."""
    core = connection.core

    def go(refusal: Over | None) -> None:
        # `waiting` stays: what was held goes on when this one is done.
        connection.decision = None
        if refusal is None:
            core.guarded(partial(_ingest, connection, packet, message))
        else:
            core.guarded(partial(_limited, connection, packet, message, refusal))
        core.schedule()

    answer = charge.over(connection.size, packet.qos, go)
    if isinstance(answer, Over):
        _limited(connection, packet, message, answer)
    else:
        connection.wait(answer)


def _limited(connection: Link, packet: Publish, message: Message, refusal: Over) -> None:
    """A PUBLISH is refused or dropped on account of a limit."""
    core = connection.core
    client = connection.client
    session = connection.session
    assert client is not None
    assert session is not None
    resumed = connection.waiting
    verdict, limit = refusal.verdict, refusal.limit
    core.dropped(message, client, DropReason.RATE_LIMITED, Direction.IN, limit)
    if isinstance(verdict, Deny):
        core.denied(client, Action.PUBLISH, message.topic, verdict.code, limit)
        outcome = Outcome(verdict.code, verdict.reason or "", verdict.disconnect)
        _refuse(connection, packet, outcome)
    else:
        outcome = Outcome(verdict.code, matched=0)
        if packet.qos == 2:
            _take_id(connection, session, packet.packet_id)
            outcome.relies = session.durable
        _acknowledge(connection, packet, outcome, None)
    core.schedule()
    if resumed:
        connection.go_on()


def _ingest(connection: Link, packet: Publish, message: Message) -> None:
    """Hand a PUBLISH that stands to reason to the one pipeline."""
    core = connection.core
    session = connection.session
    assert session is not None
    qos = packet.qos
    acknowledgement = Acknowledgement(connection.release) if qos else None
    if connection.decisions is None:
        connection.decisions = Decisions()
    run = Ingest(
        core,
        connection.chains,
        message,
        partial(_ingested, connection, packet, acknowledgement),
        client=connection.client,
        sender=session,
        decisions=connection.decisions,
        acknowledgement=acknowledgement,
    )
    if qos == 2:
        run.before = partial(_take_id, connection, session, packet.packet_id)
    run.run()
    if run.waiting:
        connection.wait(run.cancel)
    elif run.plain and packet.properties.topic_alias is None:
        _learn(connection, session, packet, message)


def _topic(connection: Link, packet: Publish) -> str:
    """The topic that is meant, after topic alias; checked."""
    core = connection.core
    topic = packet.topic
    alias = packet.properties.topic_alias
    if alias is not None:
        if not 0 < alias <= connection.offered.topic_alias_maximum:
            # [MQTT-3.3.2-8, 3.3.2-9, 3.2.2-17, 3.2.2-18]
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}")
        known = connection.inbound_aliases
        if topic:
            if known is None:
                known = connection.inbound_aliases = {}
            validate_topic(topic, core.settings.broker.max_topic_levels)
            known[alias] = topic  # [MQTT-3.3.2-12]
            return topic
        if known is None or alias not in known:  # [MQTT-3.3.2-7]
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR, f"topic alias {alias} stands for nothing"
            )
        topic = known[alias]
        connection.size += len(topic)  # a limit on bytes counts what is handed on
        return topic
    validate_topic(topic, core.settings.broker.max_topic_levels)
    return topic


def _take_id(connection: Link, session: Session, packet_id: int) -> None:
    """The message is accepted: its id is taken until PUBREL, in the batch that holds the message."""
    if session.received is None:
        session.received = set()
    session.received.add(packet_id)
    if session.durable and connection.core.recording:
        connection.core.committer.add(PutReceived(session.client_id, packet_id))


def _learn(connection: Link, session: Session, packet: Publish, message: Message) -> None:
    """Remember a PUBLISH that nothing stood in the way of, so that the next like it takes the short way: its permission
    was granted until further notice."""
    core = connection.core
    topic = message.topic
    if packet.retain or packet.dup or topic != packet.topic or connection.phase is not Phase.OPEN:
        return
    if narrow(connection.chains.authorize[Action.PUBLISH], topic):
        decisions = connection.decisions or Decisions()
        known = decisions.get((Action.PUBLISH, topic, packet.qos, False))
        if known is None or known[2] != inf:
            return
    route = core.router.lookup(topic)
    simple = topic not in core.fan_outs
    kept = False
    if packet.qos == 0:
        simple = simple and route.simple and "on_published" not in core.observed
    else:
        simple = simple and core.settings.session.inflight_overflow == "pending"
        kept = (
            simple
            and route.kept
            and packet.qos == 1
            and core.recording
            and "on_published" not in core.observed
        )
        simple = simple and route.volatile and not (packet.qos == 2 and session.durable)
    connection.remember(topic.encode(), 0x30 | packet.qos << 1, route, simple, kept)


def _ingested(
    connection: Link,
    packet: Publish,
    acknowledgement: Acknowledgement | None,
    outcome: Outcome,
) -> None:
    """The pipeline is done with a PUBLISH of this connection, at once or after a plugin answered."""
    resumed = connection.waiting
    core = connection.core
    if outcome.full:
        _no_room(connection, packet, acknowledgement, outcome)
    elif outcome.matched < 0:
        _refuse(connection, packet, outcome)
    else:
        _acknowledge(connection, packet, outcome, acknowledgement)
    core.schedule()
    if resumed:
        connection.go_on()


def _refuse(connection: Link, packet: Publish, outcome: Outcome) -> None:
    """Refuse a PUBLISH: by an error code if the version has one, else as configured [MQTT311-3.3.5-2]. If nobody could
    decide, disconnect clients of 3.x without an acknowledgement."""
    core = connection.core
    if outcome.disconnect:
        connection.disconnect(outcome.code, outcome.reason)
        return
    if connection.version < 5:
        if packet.qos and not outcome.decided:
            # An acknowledgement would be a lie: the client repeats it when it is back [MQTT311-4.4.0-1].
            connection.disconnect(outcome.code, outcome.reason or "could not be decided")
            return
        if core.settings.broker.mqtt3_denied_publish == "disconnect":
            connection.disconnect(outcome.code, outcome.reason)
            return
        if packet.qos == 2:
            session = connection.session
            assert session is not None
            _take_id(connection, session, packet.packet_id)
            outcome.relies = session.durable
        outcome.code = ReasonCode.SUCCESS
    _acknowledge(connection, packet, outcome, None)


def _no_room(
    connection: Link,
    packet: Publish,
    acknowledgement: Acknowledgement | None,
    outcome: Outcome,
) -> None:
    """A journal is full: tell a client of MQTT 5, or have the acknowledgement wait until there is room. A client that has
    too much waiting is not read from, and disconnected after `hold_timeout`: it repeats."""
    core = connection.core
    message, later = outcome.message, outcome.later
    assert message is not None
    assert later is not None
    session = connection.session
    assert session is not None
    names = ", ".join(journal.name for journal in outcome.full)
    gone = partial(
        core.dropped, message, connection.client, DropReason.QUEUE_FULL, Direction.IN, names
    )
    if connection.version == 5:
        gone()
        _acknowledge(connection, packet, outcome, None)
        return
    number = packet.packet_id
    parked = connection.parked
    if parked is None:
        parked = connection.parked = set()
    if packet.qos == 2:
        if number in parked:
            return  # repeated: it waits already
        parked.add(number)
    size = len(message.payload) + len(message.topic) + _PARKED

    def go() -> None:
        parked.discard(number)
        connection.held_bytes -= size
        _acknowledge(connection, packet, later(), acknowledgement)
        connection.go_on_reading()

    if not core.parking.park(Parked(connection, outcome.full, size, go, gone)):
        gone()
        connection.disconnect(outcome.code, outcome.reason)
        return
    connection.hold_bytes(size)


_PARKED: Final = 256
"""Bytes that a PUBLISH costs while it waits for room, besides its message."""


def _acknowledge(
    connection: Link,
    packet: Publish,
    outcome: Outcome,
    acknowledgement: Acknowledgement | None,
) -> None:
    """Send PUBACK or PUBREC when everything that the PUBLISH caused is committed."""
    qos = packet.qos
    if qos == 0:
        return
    core = connection.core
    kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
    if connection.version < 5 or (outcome.code is ReasonCode.SUCCESS and not outcome.reason):
        # [MQTT-2.2.1-5] [MQTT311-2.3.1-6]
        data = (PUBACK if qos == 1 else PUBREC) + PACKET_IDS[packet.packet_id]
    else:
        code = clamp(kind, outcome.code)
        # [MQTT-3.1.2-29]
        reason = outcome.reason if connection.problem_information else ""
        make = Puback if qos == 1 else Pubrec
        data = encode(make(packet.packet_id, code, Properties(reason_string=reason or None)), 5)
        if len(data) > connection.max_packet_size:  # [MQTT-3.4.2-2, 3.4.2-3, 3.5.2-2, 3.5.2-3]
            data = encode(make(packet.packet_id, code), 5)
    if acknowledgement is None:
        acknowledgement = Acknowledgement(connection.release)
    acknowledgement.data = data
    acknowledgement.publishes = int(qos == 1)
    if outcome.relies:  # [MQTT-4.3.2-4, 4.3.3-8] [MQTT311-4.3.2-2]
        acknowledgement.hold()
        core.committer.then(acknowledgement.met)
    connection.answer(acknowledgement)


def on_puback(connection: Link, packet: Packet) -> None:
    """PUBACK: a QoS 1 delivery is complete; what waits may go."""
    assert isinstance(packet, Puback)
    session = connection.session
    assert session is not None
    delivery = session.inflight.get(packet.packet_id)
    if delivery is not None and delivery.qos == 1:
        acknowledged(connection.core, session, packet.packet_id, packet.code)
        pump(connection.core, session)


def on_pubrec(connection: Link, packet: Packet) -> None:
    """PUBREC: PUBREL follows, or the delivery has failed [MQTT-4.3.3-4]."""
    assert isinstance(packet, Pubrec)
    session = connection.session
    assert session is not None
    core = connection.core
    if packet.code >= 0x80:
        delivery = session.inflight.get(packet.packet_id)
        if delivery is not None and delivery.qos == 2:
            acknowledged(core, session, packet.packet_id, packet.code)
            pump(core, session)
        return
    if received(core, session, packet.packet_id):
        return
    if connection.version == 5:
        # It has no Reason String or User Properties that might make it too large [MQTT-3.6.2-2, 3.6.2-3].
        connection.send_packet(Pubrel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
    else:
        # The client holds on to a flow that we have finished: let it finish too.
        connection.send(PUBREL + PACKET_IDS[packet.packet_id])


def on_pubrel(connection: Link, packet: Packet) -> None:
    """PUBREL: the id is free; PUBCOMP in any case [MQTT-4.3.3-11]."""
    assert isinstance(packet, Pubrel)
    session = connection.session
    assert session is not None
    core = connection.core
    taken = session.received
    if taken is not None and packet.packet_id in taken:
        taken.discard(packet.packet_id)
        answer = Acknowledgement(connection.release, PUBCOMP + PACKET_IDS[packet.packet_id])
        if session.durable and core.recording:
            core.committer.add(DropReceived(session.client_id, packet.packet_id))
            answer.hold()
            core.committer.then(answer.met)
            core.schedule()
        connection.answer(answer)
        return
    if connection.version == 5:
        # Nor has this one [MQTT-3.7.2-2, 3.7.2-3].
        data = encode(Pubcomp(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), 5)
    else:
        data = PUBCOMP + PACKET_IDS[packet.packet_id]
    answer = Acknowledgement(connection.release, data)
    if session.durable and core.committer.busy:
        # Perhaps its first PUBREL is what is being committed: until then the id must not be used again.
        answer.hold()
        core.committer.then(answer.met)
        core.schedule()
    connection.answer(answer)


def on_pubcomp(connection: Link, packet: Packet) -> None:
    """PUBCOMP: a QoS 2 delivery is complete, if PUBREC came before [MQTT-4.3.3-3]."""
    assert isinstance(packet, Pubcomp)
    session = connection.session
    assert session is not None
    delivery = session.inflight.get(packet.packet_id)
    if delivery is not None and (delivery is VOLATILE_RELEASED or delivery.released):
        acknowledged(connection.core, session, packet.packet_id, 0)
        pump(connection.core, session)


def on_pingreq(connection: Link, packet: Packet) -> None:
    """PINGREQ [MQTT-3.12.4-1] [MQTT311-3.12.4-1]."""
    connection.send(b"\xd0\x00")


def on_disconnect(connection: Link, packet: Packet) -> None:
    """DISCONNECT: the client leaves; only code 0x00 takes its will along [MQTT-3.14.4-3]."""
    assert isinstance(packet, Disconnect)
    session = connection.session
    assert session is not None
    properties = packet.properties
    asked = properties.session_expiry_interval if properties is not EMPTY else None
    if asked is not None:
        expiry = min(seconds(asked), connection.max_expiry)
        if expiry and not session.expiry:
            # Edge of section 3.14.2.2.2: a session that was to end cannot be kept after all.
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "session expiry was 0 at CONNECT")
        session.expiry = expiry
    connection.flush()
    code = packet.code
    connection.end(DisconnectReason(ReasonCode(code), EndedBy.CLIENT) if code else _LEFT)


_LEFT = DisconnectReason(ReasonCode.SUCCESS, EndedBy.CLIENT)
