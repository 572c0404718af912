"""Session ownership: whether a client may take over, resume or end the session that has its client id."""

from hookmq.broker.connection import ClientConnection
from hookmq.broker.sessions.lifecycle import expired
from hookmq.broker.state import BrokerState
from hookmq.model.client import ClientInfo
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.session import Session


def id_in_use(state: BrokerState, session: Session) -> bool:
    """Return whether the session is online and must not be taken over [MQTT-3.1.3-8] [MQTT311-3.1.3-9]."""
    return session.connection is not None and state.settings.broker.duplicate_client_id == "reject"


def voucher(client: ClientInfo, by: str) -> str:
    """Return the plugin or listener that authenticated `client`, in the format of `ClientInfo.vouched_by`.

    `by` is the plugin that accepted the client, or ''. If the listener takes the user name from the certificate, the
    result is the listener.
    """
    if client.scope.identity:
        return f"listener:{client.listener}"
    return f"plugin:{by}" if by else ""


def same_owner(state: BrokerState, owner: ClientInfo, client: ClientInfo) -> bool:
    """Return whether `client` also owns the sessions of `owner`: the same user in the same realm."""
    if _user(owner) != _user(client):
        return False
    realm = state.settings.session.realm
    if realm == "none":
        return True
    if realm == "listener" or owner.vouched_by is None:
        return owner.listener == client.listener
    return owner.vouched_by == client.vouched_by


def _user(client: ClientInfo) -> str | None:
    """Return the user who owns the client's session. Rules refer to this user as ``%u``."""
    return client.username if client.identity is None else client.identity


def refuse_other_owner(connection: ClientConnection, client: ClientInfo, known: Session) -> bool:
    """Refuse the client and return True if it may not take over, resume or end session `known`.

    The client is refused if the session has another mount point. It is also refused if the session
    has another owner, and a plugin or listener vouched for that owner. If only a listener's mount
    point was changed, its clients get new sessions instead.
    """
    state = connection.state
    owner = known.client
    mine, other = connection.scope, owner.scope
    if other.mount_point != mine.mount_point and other.name != mine.name:
        connection.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id is in use")
        return True
    vouched = owner.identity if owner.vouched_by is None else owner.vouched_by
    if (
        not vouched
        or state.settings.session.other_owner == "replace"
        or expired(state, known)
        or same_owner(state, owner, client)
    ):
        return False
    connection.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id belongs to another client")
    return True
