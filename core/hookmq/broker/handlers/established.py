"""A connection's client, CONNECT and session, for handlers that run only once these exist."""

from hookmq.broker.connection import ClientConnection
from hookmq.model.client import ClientInfo
from hookmq.mqtt.packets import Connect
from hookmq.session.session import Session


def client_of(connection: ClientConnection) -> ClientInfo:
    """Return the client of a connection that has sent CONNECT."""
    client = connection.client
    if client is None:
        raise RuntimeError("the client is unknown before CONNECT")
    return client


def connect_of(connection: ClientConnection) -> Connect:
    """Return a connection's CONNECT. Once the connection is open, only the authentication method is kept."""
    connect = connection.connect
    if not isinstance(connect, Connect):
        raise RuntimeError("the connection has not sent CONNECT")
    return connect


def session_of(connection: ClientConnection) -> Session:
    """Return the session of an open connection."""
    session = connection.session
    if session is None:
        raise RuntimeError("only an open connection has a session")
    return session
