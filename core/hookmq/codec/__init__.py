"""The MQTT 3.1, 3.1.1 and 5.0 codec: bytes to packets and back, without any I/O or state beyond a partial packet."""

from hookmq.codec.connect import ConnectError
from hookmq.codec.decoder import Decoder, decode, decode_publish
from hookmq.codec.encoder import encode, encode_publish_parts
from hookmq.codec.header import frame
from hookmq.codec.limits import DEFAULT_LIMITS, Limits
from hookmq.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    WillFields,
)
from hookmq.codec.primitives import encode_varint
from hookmq.codec.properties import encode_properties

__all__ = [
    "DEFAULT_LIMITS",
    "Auth",
    "Connack",
    "Connect",
    "ConnectError",
    "Decoder",
    "Disconnect",
    "Limits",
    "Packet",
    "Pingreq",
    "Pingresp",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Suback",
    "Subscribe",
    "SubscribeRequest",
    "Unsuback",
    "Unsubscribe",
    "WillFields",
    "decode",
    "decode_publish",
    "encode",
    "encode_properties",
    "encode_publish_parts",
    "encode_varint",
    "frame",
]
