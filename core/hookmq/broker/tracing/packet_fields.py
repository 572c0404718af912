"""Describe a packet for a trace, without secrets."""

from typing import Final

from hookmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from hookmq.mqtt.properties import EMPTY, Properties

PAYLOAD: Final = 512
"""Maximum number of payload bytes in an event."""
_LISTED: Final = 64
"""Maximum number of filters or reason codes in an event."""
_TEXT: Final = 256
"""Maximum length of a string in an event, in characters."""
_PLAIN: Final = (
    "session_expiry_interval", "receive_maximum", "maximum_qos", "retain_available", "maximum_packet_size",
    "topic_alias_maximum", "server_keep_alive", "assigned_client_identifier", "authentication_method",
    "payload_format_indicator", "message_expiry_interval", "content_type", "response_topic", "topic_alias",
    "subscription_identifier", "will_delay_interval", "reason_string", "server_reference",
)  # fmt: skip
"""Properties that are shown. All others may hold secrets."""


def packet_fields(packet: Packet, payloads: bool) -> dict[str, object]:
    """Return the fields of a packet that may be shown. With `payloads`, they include the start of a PUBLISH's payload."""
    fields: dict[str, object] = {}
    match packet:
        case Connect():
            fields |= {
                "version": packet.version,
                "clean_start": packet.clean_start,
                "keep_alive": packet.keep_alive,
                "has_username": packet.username is not None,
                "has_password": packet.password is not None,
            }
            if packet.will is not None:
                will = packet.will
                fields |= {"will_topic": _short(will.topic), "will_qos": will.qos}
                fields["will_retain"] = will.retain
        case Connack():
            fields |= {"code": packet.code, "session_present": packet.session_present}
        case Publish():
            fields |= {"qos": packet.qos, "retain": packet.retain, "dup": packet.dup}
            fields |= {"packet_id": packet.packet_id, "payload_bytes": len(packet.payload)}
            if payloads:
                fields["payload"] = packet.payload[:PAYLOAD]
        case Puback() | Pubrec() | Pubrel() | Pubcomp():
            fields |= {"packet_id": packet.packet_id, "code": packet.code}
        case Subscribe():
            fields["packet_id"] = packet.packet_id
            fields["filters"] = [
                {"filter": _short(one.filter), "qos": one.qos} for one in packet.requests[:_LISTED]
            ]
        case Unsubscribe():
            fields["packet_id"] = packet.packet_id
            fields["filters"] = [_short(one) for one in packet.filters[:_LISTED]]
        case Suback() | Unsuback():
            fields |= {"packet_id": packet.packet_id, "codes": list(packet.codes[:_LISTED])}
        case Disconnect() | Auth():
            fields["code"] = packet.code
    properties = getattr(packet, "properties", EMPTY)
    if properties is not EMPTY:
        fields["properties"] = property_fields(properties)
    return fields


def property_fields(properties: Properties) -> dict[str, object]:
    """Return the properties that may be shown. Only the names of user properties are included."""
    found: dict[str, object] = {}
    for name in _PLAIN:
        value = getattr(properties, name)
        if value not in (None, ()):
            found[name] = _short(value) if isinstance(value, str) else value
    if properties.user_property:
        names = [_short(name) for name, _ in properties.user_property[:_LISTED]]
        found["user_properties"] = names
    return found


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"
