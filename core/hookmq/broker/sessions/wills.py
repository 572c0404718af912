"""Wills: stored with the session, published when due, discarded by a normal DISCONNECT."""

from functools import partial

from hookmq.broker.sessions.due_will import DueWill
from hookmq.broker.sessions.session_record import record
from hookmq.broker.state import BrokerState
from hookmq.model.message import Will
from hookmq.session.session import Session
from hookmq.storage.records import DropSession


def publish_will(state: BrokerState, session: Session) -> None:
    """Publish the session's will, if it has one. It is published once, through the publish pipeline, on behalf of its
    owner [MQTT-3.1.2-10, 3.1.2-8] [MQTT311-3.1.2-8, 3.1.2-10]."""
    will = session.will
    cancel_will(session)
    if will is None:  # [MQTT311-3.1.2-12]
        return
    state.metrics.wills_published += 1
    now = state.runtime.time()
    interval = will.message.properties.message_expiry_interval
    message = will.message.replace(
        received_at=now, expires_at=None if interval is None else now + interval
    )
    session.firing = will
    # `DueWill` gets a function instead of the session's method. In compiled code the method would form a reference
    # cycle, which keeps the will until the garbage collector runs.
    DueWill(state, session, message, partial(_forget_will, state, session)).ask()


def _forget_will(state: BrokerState, session: Session) -> None:
    """Remove the will's record in the same batch that contains its message. After a crash the will is then either
    published or still stored, never both or neither."""
    session.firing = None
    if not session.recorded:
        return
    known = state.sessions.get(session.client_id)
    if known is session:
        state.committer.add(record(session))
    elif session.lingering:
        session.lingering = False
        if known is None or not known.recorded:
            state.committer.add(DropSession(session.client_id))


def cancel_will(session: Session) -> None:
    """Discard the session's will: its client returned in time or withdrew it [MQTT-3.1.3-9, 3.14.4-3]."""
    session.will = None
    session.will_at = None
    if session.will_due is not None:
        session.will_due.cancel()
        session.will_due = None


def set_will(session: Session, will: Will | None) -> None:
    """Replace the session's will with the new connection's will [MQTT-3.1.2-7]."""
    cancel_will(session)
    session.will = will
