"""Handle the receivers' acknowledgements: continue a delivery with PUBREL, or complete it and free its packet id."""

from math import inf

from hookmq.broker.delivery.transmit import release_publisher
from hookmq.broker.state import BrokerState
from hookmq.model.events import Direction, DropReason
from hookmq.session.inflight import (
    PACKET_IDS,
    PUBREL,
    VOLATILE_1,
    VOLATILE_2,
    VOLATILE_RELEASED,
    Delivery,
)
from hookmq.session.session import Session
from hookmq.storage.records import Dequeue, SetPacket


def complete(state: BrokerState, session: Session, delivery: Delivery) -> None:
    """Forget a delivery that was acknowledged or dropped: remove its record, and release the publisher if it is waiting
    for the delivery.
    """
    release_publisher(state, delivery)
    if delivery.seq and session.durable:
        state.committer.add(Dequeue(session.owner, delivery.seq))
        state.writes.schedule()


def acknowledged(state: BrokerState, session: Session, number: int, code: int) -> None:
    """Complete a delivery after PUBACK, PUBCOMP, or a PUBREC of 0x80 or above, and free its packet id [MQTT-4.4.0-2,
    4.3.3-12]. An unknown id is ignored."""
    delivery = session.inflight.pop(number, None)
    if delivery is None:
        return
    if delivery is VOLATILE_1 or delivery is VOLATILE_2 or delivery is VOLATILE_RELEASED:
        if code >= 0x80:
            state.dropped(None, session.client, DropReason.REFUSED, Direction.OUT)
        return
    _not_again(session, delivery)
    if state.committer.take_back(delivery):
        release_publisher(state, delivery)
        state.writes.schedule()
    else:
        complete(state, session, delivery)
    if code >= 0x80:  # [MQTT-4.8.2-6]: no other member gets a shared message that one has refused
        message, detail = delivery.outgoing.message, f"0x{code:02X}"
        state.dropped(message, session.client, DropReason.REFUSED, Direction.OUT, detail)
    elif "on_delivered" in state.observed:
        state.observe("on_delivered", session.client, delivery.outgoing.message, delivery.qos)


def _not_again(session: Session, delivery: Delivery) -> None:
    """Remove a delivery from the list of those to resend, because the client has acknowledged it on
    its new connection.
    """
    resend = session.resend
    if resend and delivery in resend:
        resend.remove(delivery)


def record_pubrec(state: BrokerState, session: Session, number: int) -> bool:
    """Handle a successful PUBREC: record it, then send PUBREL. From now on, only PUBREL is sent for
    this packet id [MQTT-4.3.3-4, 4.3.3-6]. Return False if the id is unknown.
    """
    delivery = session.inflight.get(number)
    if delivery is None or delivery is VOLATILE_1 or delivery.qos != 2:
        return False
    if delivery is VOLATILE_2 or delivery is VOLATILE_RELEASED:
        session.inflight[number] = VOLATILE_RELEASED
    else:
        delivery.released = True  # [MQTT-4.3.3-5] [MQTT311-4.3.3-1]
        _not_again(session, delivery)
        if session.durable and delivery.seq:
            state.committer.add(SetPacket(session.owner, delivery.seq, number, True))
            generation = session.generation
            delivery.sent_at = inf

            def leave() -> None:
                if session.generation == generation:
                    delivery.sent_at = state.runtime.now()
                    session.out += (PUBREL, PACKET_IDS[number])
                    state.writes.mark(session)

            state.committer.after_commit(leave)
            state.writes.schedule()
            return True
    session.out += (PUBREL, PACKET_IDS[number])
    state.writes.mark(session)
    return True
