"""Test the state of a session without a connection."""

from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.session.session import QUEUEING, Session


def test_a_new_session_is_away_and_queues() -> None:
    made = Session(ClientInfo("a/b", 5, None, Peer("127.0.0.1"), Scope()))
    assert (made.connection, made.state, made.generation, made.durable) == (
        None,
        QUEUEING,
        0,
        False,
    )


def test_its_queue_has_one_owner() -> None:
    made = Session(ClientInfo("a/b", 5, None, Peer("127.0.0.1"), Scope()))
    assert made.owner == "c/a/b"
    assert made.owner is made.owner
