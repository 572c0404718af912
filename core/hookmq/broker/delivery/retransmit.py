"""Resend unacknowledged messages to connected MQTT 3 clients, if `session.retry_interval` is set.

MQTT 5 forbids this [MQTT-4.4.0-1]. MQTT 3 allows it, and some devices rely on it. All connections are checked once per
interval.
"""

from functools import partial

from hookmq.broker.delivery.transmit import retransmit
from hookmq.broker.state import BrokerState
from hookmq.session.session import Session

_IDLE = 60.0
"""Seconds between checks while no interval is set. A reload may set one at any time."""


def watch_retries(state: BrokerState) -> None:
    """Resend overdue messages, now and after each interval."""
    interval = state.settings.session.retry_interval
    if interval:
        due = state.runtime.now() - interval
        for session in state.sessions.values():
            if session.connection is not None and session.client.version < 5:
                _resend(state, session, due)
        state.writes.schedule()
    state.deadlines.after(interval or _IDLE, partial(watch_retries, state))


def _resend(state: BrokerState, session: Session, due: float) -> None:
    connection = session.connection
    for delivery in list(session.inflight.values()):
        if connection is None or not connection.writable or session.paused:
            return
        if delivery.packet_id and delivery.sent_at <= due:
            retransmit(state, session, delivery)
