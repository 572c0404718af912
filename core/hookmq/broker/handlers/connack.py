"""The CONNACK of an accepted connection."""

from math import inf

from hookmq.broker.connection import ClientConnection
from hookmq.model.client import ClientInfo
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packet_limits import LARGEST_PACKET
from hookmq.mqtt.packets import Connack, Connect
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode

FOREVER = 0xFFFFFFFF
"""The session expiry interval of a session that never expires."""
_ACCEPTED = encode(Connack(0, False), 4)
_PRESENT = encode(Connack(0, True), 4)


def seconds(interval: int) -> float:
    """Return a session expiry interval in seconds."""
    return inf if interval == FOREVER else float(interval)


def connack(
    connection: ClientConnection, client: ClientInfo, expiry: float, connect: Connect, present: bool
) -> bytes:
    """Return the encoded CONNACK and set the connection's keep alive. `expiry` is the granted session expiry in
    seconds."""
    version = connection.version
    broker = connection.offered
    keep_alive = connect.keep_alive
    if version < 5:
        connection.keep_alive = float(keep_alive)
        # MQTT 3.1 reserves the byte that holds the session present flag.
        return _PRESENT if present and version == 4 else _ACCEPTED
    imposed: int | None = None
    if broker.server_keep_alive:
        imposed = broker.server_keep_alive
    elif broker.max_keep_alive < 65535 and not 0 < keep_alive <= broker.max_keep_alive:
        imposed = broker.max_keep_alive
    connection.keep_alive = float(keep_alive if imposed is None else imposed)  # [MQTT-3.2.2-22]
    asked = connect.properties
    granted = FOREVER if expiry == inf else int(expiry)
    same_expiry = granted == (asked.session_expiry_interval or 0)
    size = connection.limits.max_packet_size
    receive_maximum = connection.receive_maximum
    wants_response = asked.request_response_information == 1  # [MQTT-3.1.2-28]
    given = Properties(
        session_expiry_interval=None if same_expiry else granted,
        receive_maximum=receive_maximum if receive_maximum < 65535 else None,
        maximum_qos=broker.max_qos if broker.max_qos < 2 else None,  # [MQTT-3.2.2-9]
        retain_available=_unless(broker.retain_available),
        maximum_packet_size=size if size < LARGEST_PACKET else None,
        assigned_client_identifier=client.client_id if connection.assigned_id else None,
        topic_alias_maximum=broker.topic_alias_maximum or None,
        wildcard_subscription_available=_unless(broker.wildcard_available),
        subscription_identifier_available=_unless(broker.subscription_identifiers_available),
        shared_subscription_available=_unless(broker.shared_available),
        server_keep_alive=imposed,
        response_information=(broker.response_information or None) if wants_response else None,
        authentication_method=asked.authentication_method,
        authentication_data=connection.authentication_data,
    )
    return encode(Connack(ReasonCode.SUCCESS, present, given), 5)


def _unless(available: bool) -> int | None:
    """Return the property value 0 if a feature is not available, else None."""
    return None if available else 0
