"""Encode replies that may have a Reason String. The string is left out if the packet would exceed the client's Maximum
Packet Size.

`limit` is that maximum, in bytes. `wanted` is true if the client requested problem information [MQTT-3.1.2-29].
"""

from dataclasses import replace

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connack, Disconnect, Puback, Publish, Pubrec, Suback, Unsuback
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import PacketType, ReasonCode, clamp, v3_connack


def encode_refusal(
    version: int,
    code: ReasonCode,
    reason: str,
    properties: Properties,
    malformed: bool,
    limit: int,
) -> bytes:
    """Return the CONNACK that refuses a client, or empty bytes if the client's version has no reply for this case.

    `version` is 0 before CONNECT [MQTT-3.1.0-1]. A malformed 3.x CONNECT gets no reply [MQTT311-3.1.4-1].
    """
    if version == 5:
        legal = clamp(PacketType.CONNACK, code)
        if reason:
            properties = properties.replace(reason_string=reason)
        data = encode(Connack(legal, False, properties), 5)  # [MQTT-3.2.2-6]
        if len(data) > limit:
            data = encode(Connack(legal), 5)  # [MQTT-3.2.2-19, 3.2.2-20]
        return data if len(data) <= limit else b""  # [MQTT-3.1.2-24]
    if version and (not malformed or code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION):
        # [MQTT311-3.1.2-2]: reply to an unknown version. An unknown protocol name (version 0) is not MQTT.
        return encode(Connack(v3_connack(code)), version)
    return b""


def encode_disconnect(code: ReasonCode, reason: str, reference: str, limit: int) -> bytes:
    """Return a DISCONNECT for an MQTT 5 client, or empty bytes if it does not fit. `reference` names another server."""
    legal = clamp(PacketType.DISCONNECT, code)
    given: dict[str, str] = {}
    if reason:
        given["reason_string"] = reason
    if reference:
        given["server_reference"] = reference
    data = encode(Disconnect(legal, Properties(**given)), 5)
    if len(data) > limit:
        data = encode(Disconnect(legal), 5)  # [MQTT-3.14.2-3, 3.14.2-4]
    return data if len(data) <= limit else b""


def encode_acknowledgement(
    packet: Publish, code: ReasonCode, reason: str, wanted: bool, limit: int
) -> bytes:
    """Return the MQTT 5 PUBACK or PUBREC for `packet`, with `code`."""
    code = clamp(PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC, code)
    if not wanted:  # [MQTT-3.1.2-29]
        reason = ""
    make = Puback if packet.qos == 1 else Pubrec
    data = encode(make(packet.packet_id, code, Properties(reason_string=reason or None)), 5)
    if len(data) > limit:  # [MQTT-3.4.2-2, 3.4.2-3, 3.5.2-2, 3.5.2-3]
        data = encode(make(packet.packet_id, code), 5)
    return data


def encode_subscription_reply(
    packet: Suback | Unsuback, version: int, reason: str, wanted: bool, limit: int
) -> bytes:
    """Return a SUBACK or UNSUBACK."""
    # [MQTT-3.1.2-29]
    if version == 5 and reason and wanted:
        properties = packet.properties.replace(reason_string=reason)
        with_reason = encode(replace(packet, properties=properties), 5)
        if len(with_reason) <= limit:  # [MQTT-3.9.2-1, 3.9.2-2]
            return with_reason
    return encode(packet, version)
