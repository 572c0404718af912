"""A session's record in the store."""

from hookmq.session.session import Session
from hookmq.storage.records import PutSession, SessionRecord


def record(session: Session) -> PutSession:
    """Return the session as a record for the store."""
    limits = {
        "queue_messages": session.queue_messages,
        "max_subscriptions": session.max_subscriptions,
    }
    return PutSession(
        SessionRecord(
            session.client.record(),
            session.expiry,
            limits,
            session.ended_at,
            session.will or session.firing,
            session.will_at,
            tuple(sorted(session.revoked)) if session.revoked else (),
        )
    )
