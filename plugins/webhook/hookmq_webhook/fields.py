"""Fields of events, with their JSON Schemas. Several event types share them."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Field(NamedTuple):
    """A field of an event's data. If `always` is true, every event has the field."""

    name: str
    schema: Mapping[str, Any]
    help: str
    always: bool = True


TEXT: Final = {"type": "string"}
NAME: Final = {"type": "string", "minLength": 1}
BOOL: Final = {"type": "boolean"}
COUNT: Final = {"type": "integer", "minimum": 0}
SECONDS: Final = {"type": "number", "minimum": 0}
QOS: Final = {"type": "integer", "enum": [0, 1, 2]}
CODE: Final = {"type": "integer", "minimum": 0, "maximum": 255}
TIME: Final = {"type": "string", "format": "date-time"}
BASE64: Final = {"type": "string", "contentEncoding": "base64"}
PAIRS: Final = {
    "type": "array",
    "items": {
        "type": "array",
        "prefixItems": [{"type": "string"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
    },
}


def one_of(*values: str) -> dict[str, Any]:
    """Return the schema of a string that is one of `values`."""
    return {"type": "string", "enum": list(values)}


WHO: Final = (
    Field("client_id", TEXT, "client id"),
    Field("username", TEXT, "user name in CONNECT", False),
    Field("identity", TEXT, "identity established by authentication", False),
    Field("listener", NAME, "listener of the connection"),
)
CLIENT: Final = (
    *WHO,
    Field("host", TEXT, "address of the client"),
    Field("port", COUNT, "port of the client"),
    Field("transport", NAME, "tcp, tls, ws, wss, unix or memory"),
    Field("version", {"type": "integer", "enum": [3, 4, 5]}, "MQTT version: 3 is 3.1, 4 is 3.1.1"),
)
REFUSED: Final = (
    Field("code", CODE, "reason code of MQTT 5"),
    Field("code_name", NAME, "name of the reason code"),
)
SUBSCRIPTION: Final = (
    Field("filter", NAME, "filter as the client sent it, with $share/NAME/"),
    Field("topic", NAME, "filter without $share/NAME/"),
    Field("share", NAME, "name of the shared subscription", False),
    Field("qos", QOS, "granted QoS"),
    Field("no_local", BOOL, "true if the client does not receive its own messages"),
    Field("retain_as_published", BOOL, "true if deliveries keep the RETAIN flag of the publish"),
    Field(
        "retain_handling",
        {"type": "integer", "enum": [0, 1, 2]},
        "when retained messages are sent for the subscription: 0 always, 1 only if it is new, 2 never",
    ),
    Field("identifier", {"type": "integer", "minimum": 1}, "subscription identifier", False),
)
MESSAGE: Final = (
    Field("topic", NAME, "topic of the message"),
    Field("qos", QOS, "QoS of the message"),
    Field("retain", BOOL, "true if the message was published with RETAIN"),
    Field("origin", NAME, "client, will, or plugin:ID"),
    Field("received_at", TIME, "time at which the broker received the message"),
    Field("expires_at", TIME, "time at which the message expires", False),
    Field("content_type", TEXT, "content type set by the publisher", False),
    Field(
        "payload_format_indicator",
        {"type": "integer", "enum": [0, 1]},
        "1 if the publisher declares the payload as UTF-8",
        False,
    ),
    Field("response_topic", TEXT, "topic for a response", False),
    Field("correlation_data", BASE64, "data that a response must repeat", False),
    Field("user_properties", PAIRS, "pairs [name, value], in the publisher's order", False),
)
PUBLISHER: Final = (
    Field(
        "client_id",
        TEXT,
        "client id of the publisher; absent for messages from the broker or a plugin",
        False,
    ),
    Field("username", TEXT, "user name of the publisher, if it is still connected", False),
    Field("identity", TEXT, "identity of the publisher, if it is still connected", False),
    Field("listener", NAME, "listener of the publisher, if it is still connected", False),
)
RECEIVER: Final = (
    *WHO,
    Field(
        "sender",
        TEXT,
        "client id of the publisher; absent for messages from the broker or a plugin",
        False,
    ),
)
DELIVERED: Final = (
    *RECEIVER,
    *(one._replace(help="QoS of the delivery") if one.name == "qos" else one for one in MESSAGE),
    Field("publish_qos", QOS, "QoS with which the message was published"),
)
