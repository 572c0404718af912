"""Find the node of the cluster that has a client's session, before plugins decide on the client."""

from collections.abc import Callable
from functools import partial

from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.cluster import Here, Place, Redirect, Refused, Transfer


def locate(connection: ClientConnection, client_id: str, here: Callable[[], None]) -> bool:
    """Return True if there is no cluster. Otherwise ask it for the client's node, and return False.

    Once the cluster answers, `here` is called if the client belongs to this node. If not, the connection is refused, or
    relayed to the other node. Until then, at most ``connect_timeout`` may pass, as for CONNECT itself.
    """
    state = connection.state
    cluster = state.cluster
    if cluster is None:
        return True
    if connection.relay is not None:
        connection.relay.hold()
    connection.due.cancel()
    connection.due = state.deadlines.after(connection.scope.connect_timeout, connection.overdue)
    cluster.locate(client_id, partial(_located, connection, here))
    return False


def refuse(connection: ClientConnection, refused: Refused) -> None:
    """Refuse a client. An MQTT 5 client learns which server to use, if there is one."""
    properties = Properties(server_reference=refused.reference or None)
    connection.refuse(refused.code, refused.reason, properties=properties)


def _located(connection: ClientConnection, here: Callable[[], None], place: Place) -> None:
    if connection.phase is not Phase.DECIDING:
        return
    try:
        _go_on(connection, here, place)
    except ProtocolError as error:
        connection.fail(error)
    except Exception as error:
        connection.internal_error(error)


def _go_on(connection: ClientConnection, here: Callable[[], None], place: Place) -> None:
    relay = connection.relay
    if isinstance(place, Transfer):
        if relay is not None and relay.ask(place, partial(_located, connection, here)):
            return
        place = place.otherwise
    if isinstance(place, Redirect):
        # A 3.x client cannot learn the address, so its bytes are passed on.
        if connection.version == 5 and relay is not None:
            reason = "the session is on another node"
            place = Refused(ReasonCode.USE_ANOTHER_SERVER, reason, place.reference)
        else:
            place = place.relaying
    if isinstance(place, Refused):
        refuse(connection, place)
    elif isinstance(place, Here):
        if relay is not None:
            connection.relay = None
            connection.rest = relay.release()
        here()
        if relay is not None and connection.reading and connection.phase is not Phase.CLOSED:
            connection.read_on()
    elif relay is None or relay.relayed:
        # Neither a plugin's client nor one that another node has relayed to this one can be relayed.
        connection.refuse(ReasonCode.USE_ANOTHER_SERVER, "the session is on another node")
    else:
        relay.start(place)
        if connection.gone is not None:
            connection.end(connection.gone)
