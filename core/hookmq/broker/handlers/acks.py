"""Handle PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ and DISCONNECT on an open connection."""

from hookmq.broker.connection import ClientConnection
from hookmq.broker.delivery.completion import acknowledged, record_pubrec
from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.handlers.connack import seconds
from hookmq.broker.handlers.established import session_of
from hookmq.model.events import DisconnectReason, EndedBy
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import Disconnect, Packet, Puback, Pubcomp, Pubrec, Pubrel
from hookmq.mqtt.properties import EMPTY
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.inflight import (
    PACKET_IDS,
    PUBCOMP,
    PUBREL,
    VOLATILE_RELEASED,
    Acknowledgement,
)
from hookmq.storage.records import DropReceived


def on_puback(connection: ClientConnection, packet: Packet) -> None:
    """Handle PUBACK: complete a QoS 1 delivery and send waiting messages."""
    assert isinstance(packet, Puback)
    session = session_of(connection)
    delivery = session.inflight.get(packet.packet_id)
    if delivery is not None and delivery.qos == 1:
        acknowledged(connection.state, session, packet.packet_id, packet.code)
        drain_queue(connection.state, session)


def on_pubrec(connection: ClientConnection, packet: Packet) -> None:
    """Handle PUBREC: send PUBREL, or end a delivery that the client refused [MQTT-4.3.3-4]."""
    assert isinstance(packet, Pubrec)
    session = session_of(connection)
    state = connection.state
    if packet.code >= 0x80:
        delivery = session.inflight.get(packet.packet_id)
        if delivery is not None and delivery.qos == 2:
            acknowledged(state, session, packet.packet_id, packet.code)
            drain_queue(state, session)
        return
    if record_pubrec(state, session, packet.packet_id):
        return
    if connection.version == 5:
        # This PUBREL has no Reason String or User Property that might make it too large [MQTT-3.6.2-2, 3.6.2-3].
        connection.send_packet(Pubrel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
    else:
        # The client still has a QoS 2 flow that the broker has already finished: let the client finish it too.
        connection.send(PUBREL + PACKET_IDS[packet.packet_id])


def on_pubrel(connection: ClientConnection, packet: Packet) -> None:
    """Handle PUBREL: free the packet id, if it is in use, and always send PUBCOMP [MQTT-4.3.3-11]."""
    assert isinstance(packet, Pubrel)
    session = session_of(connection)
    state = connection.state
    taken = session.received
    if taken is not None and packet.packet_id in taken:
        taken.discard(packet.packet_id)
        answer = Acknowledgement(connection.release, PUBCOMP + PACKET_IDS[packet.packet_id])
        if session.durable and state.recording:
            state.committer.add(DropReceived(session.client_id, packet.packet_id))
            answer.add_condition()
            state.committer.after_commit(answer.met, True, answer)
            state.writes.schedule()
        connection.answer(answer)
        return
    if connection.version == 5:
        # This PUBCOMP has no Reason String or User Property either [MQTT-3.7.2-2, 3.7.2-3].
        data = encode(Pubcomp(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), 5)
    else:
        data = PUBCOMP + PACKET_IDS[packet.packet_id]
    answer = Acknowledgement(connection.release, data)
    if session.durable and state.committer.busy:
        # The commit in progress may contain the first PUBREL for this id: until it ends, the id must not be reused.
        answer.add_condition()
        state.committer.after_commit(answer.met, True, answer)
        state.writes.schedule()
    connection.answer(answer)


def on_pubcomp(connection: ClientConnection, packet: Packet) -> None:
    """Handle PUBCOMP: complete a QoS 2 delivery whose PUBREC was received [MQTT-4.3.3-3]."""
    assert isinstance(packet, Pubcomp)
    session = session_of(connection)
    delivery = session.inflight.get(packet.packet_id)
    if delivery is not None and (delivery is VOLATILE_RELEASED or delivery.released):
        acknowledged(connection.state, session, packet.packet_id, 0)
        drain_queue(connection.state, session)


def on_pingreq(connection: ClientConnection, packet: Packet) -> None:
    """Handle PINGREQ: send PINGRESP [MQTT-3.12.4-1] [MQTT311-3.12.4-1]."""
    connection.send(b"\xd0\x00")


def on_disconnect(connection: ClientConnection, packet: Packet) -> None:
    """Handle DISCONNECT: only code 0x00 cancels the will [MQTT-3.14.4-3]."""
    assert isinstance(packet, Disconnect)
    session = session_of(connection)
    properties = packet.properties
    asked = properties.session_expiry_interval if properties is not EMPTY else None
    if asked is not None:
        expiry = min(seconds(asked), connection.max_expiry)
        if expiry and not session.expiry:
            # Section 3.14.2.2.2: a session that was to end with its connection cannot be kept after all.
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "session expiry was 0 at CONNECT")
        session.expiry = expiry
    connection.flush()
    code = packet.code
    connection.end(DisconnectReason(ReasonCode(code), EndedBy.CLIENT) if code else _LEFT)


_LEFT = DisconnectReason(ReasonCode.SUCCESS, EndedBy.CLIENT)
