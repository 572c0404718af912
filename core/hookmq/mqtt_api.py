"""Public: topics, packets and the codec, for plugins that read or write MQTT themselves.

Everything in ``__all__`` stays compatible within a major version of `HOOK_API`, like `hookmq.plugin`. Nothing in this
module does I/O.
"""

from hookmq.mqtt.decoder import decode
from hookmq.mqtt.encoder import encode, encode_publish_parts
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import frame
from hookmq.mqtt.packet_limits import PacketLimits
from hookmq.mqtt.packets import (
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
from hookmq.mqtt.properties import EMPTY, In, Properties
from hookmq.mqtt.property_section import decode_section, encode_properties, encode_section
from hookmq.mqtt.reason_codes import PacketType, ReasonCode, v3_connack
from hookmq.mqtt.topics import (
    MAX_BYTES,
    SHARE_PREFIX,
    compile_filter,
    contains,
    matches,
    parse_share,
    validate_filter,
    validate_topic,
)
from hookmq.routing.subscription_tree import Route, SubscriptionTree

__all__ = [
    "EMPTY",
    "MAX_BYTES",
    "SHARE_PREFIX",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "In",
    "Packet",
    "PacketLimits",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "ProtocolError",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "ReasonCode",
    "Route",
    "Suback",
    "Subscribe",
    "SubscribeRequest",
    "SubscriptionTree",
    "Unsuback",
    "Unsubscribe",
    "WillFields",
    "compile_filter",
    "contains",
    "decode",
    "decode_section",
    "encode",
    "encode_properties",
    "encode_publish_parts",
    "encode_section",
    "frame",
    "matches",
    "parse_share",
    "v3_connack",
    "validate_filter",
    "validate_topic",
]  # fmt: skip
