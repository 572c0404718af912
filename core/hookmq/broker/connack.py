"""The CONNACK of an accepted connection: what the server grants, offers and imposes."""

from math import inf

from hookmq.broker.link import Link
from hookmq.codec import Connack, Connect, encode
from hookmq.properties import Properties
from hookmq.reason import ReasonCode

FOREVER = 0xFFFFFFFF
"""A session expiry interval that never ends."""
_ACCEPTED = encode(Connack(0, False), 4)
_PRESENT = encode(Connack(0, True), 4)


def seconds(interval: int) -> float:
    """A session expiry interval in seconds."""
    return inf if interval == FOREVER else float(interval)


def connack(connection: Link, expiry: float, connect: Connect, present: bool) -> bytes:
    """The packet; `expiry` is the session expiry granted, seconds."""
    version = connection.version
    broker = connection.offered
    keep_alive = connect.keep_alive
    if version < 5:
        connection.keep_alive = float(keep_alive)
        # 3.1 knows no session present flag: that byte is reserved
        return _PRESENT if present and version == 4 else _ACCEPTED
    imposed: int | None = None
    if broker.server_keep_alive:
        imposed = broker.server_keep_alive
    elif broker.max_keep_alive < 65535 and not 0 < keep_alive <= broker.max_keep_alive:
        imposed = broker.max_keep_alive
    connection.keep_alive = float(keep_alive if imposed is None else imposed)  # [MQTT-3.2.2-22]
    asked = connect.properties
    granted = FOREVER if expiry == inf else int(expiry)
    most = connection.limits.max_packet_size
    method = asked.authentication_method
    wants_response = asked.request_response_information == 1  # [MQTT-3.1.2-28]
    client = connection.client
    assert client is not None
    given = Properties(
        session_expiry_interval=granted
        if granted != (asked.session_expiry_interval or 0)
        else None,
        receive_maximum=connection.receive_maximum if connection.receive_maximum < 65535 else None,
        maximum_qos=broker.max_qos if broker.max_qos < 2 else None,  # [MQTT-3.2.2-9]
        retain_available=None if broker.retain_available else 0,
        maximum_packet_size=most if most < 268435460 else None,
        assigned_client_identifier=client.client_id if connection.assigned_id else None,
        topic_alias_maximum=broker.topic_alias_maximum or None,
        wildcard_subscription_available=None if broker.wildcard_available else 0,
        subscription_identifier_available=(
            None if broker.subscription_identifiers_available else 0
        ),
        shared_subscription_available=None if broker.shared_available else 0,
        server_keep_alive=imposed,
        response_information=(broker.response_information or None) if wants_response else None,
        authentication_method=method,
        authentication_data=connection.authentication_data,
    )
    return encode(Connack(ReasonCode.SUCCESS, present, given), 5)
