"""Resending to MQTT 3.x clients within a connection, where `session.retry_interval` asks for it.

MQTT 5 forbids it [MQTT-4.4.0-1]; 3.x allows it, and some devices lean on it. One look at all connections per interval.
"""

from functools import partial

from hookmq.broker.core import Core
from hookmq.broker.send import send_again
from hookmq.session import Session


def watch_retries(core: Core) -> None:
    """Look now, and again after each interval; with an interval of 0 look only whether that has changed."""
    interval = core.settings.session.retry_interval
    if interval:
        due = core.runtime.now() - interval
        for session in core.sessions.values():
            if session.connection is not None and session.client.version < 5:
                _resend(core, session, due)
        core.schedule()
    core.deadlines.after(interval or _IDLE, partial(watch_retries, core))


_IDLE = 60.0


def _resend(core: Core, session: Session, due: float) -> None:
    connection = session.connection
    for delivery in list(session.inflight.values()):
        if connection is None or not connection.writable or session.paused:
            return
        if delivery.packet_id and delivery.sent_at <= due:
            send_again(core, session, delivery)
