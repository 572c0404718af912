"""An immutable class for each control packet, used for all protocol versions.

Versions are protocol levels: 3 is MQTT 3.1, 4 is MQTT 3.1.1, 5 is MQTT 5.0. `properties` are empty in versions below 5.
Reason codes are integers. `repr` omits payloads, passwords and property values, so packets can be logged.
"""

from dataclasses import dataclass, field

from hookmq.mqtt.fast_constructor import fast_constructor
from hookmq.mqtt.properties import EMPTY, Properties


@dataclass(frozen=True, slots=True)
class WillFields:
    """The will in a CONNECT. `qos` is 0 to 2."""

    topic: str
    payload: bytes = field(repr=False)
    qos: int = 0
    retain: bool = False
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Connect:
    """CONNECT. `version` is 3, 4 or 5. `clean_start` is Clean Session in 3.x. `keep_alive` is in seconds, 0 for none.

    `bridge` is True if a 3.x client set bit 7 of the protocol level, as mosquitto bridges do.
    """

    client_id: str
    version: int
    clean_start: bool
    keep_alive: int
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: WillFields | None = None
    bridge: bool = False
    properties: Properties = EMPTY


new_connect = fast_constructor(Connect)


@dataclass(frozen=True, slots=True)
class Connack:
    """CONNACK. `code` is a reason code in MQTT 5.0, a return code of 0 to 5 in 3.x."""

    code: int
    session_present: bool = False
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Publish:
    """PUBLISH. `packet_id` is 0 if and only if `qos` is 0. `topic` may be empty only with a topic alias."""

    topic: str
    payload: bytes = field(repr=False)
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = EMPTY


new_publish = fast_constructor(Publish)


@dataclass(frozen=True, slots=True)
class Puback:
    """PUBACK: ends a QoS 1 delivery. `code` is 0 in 3.x."""

    packet_id: int
    code: int = 0
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Pubrec:
    """PUBREC: the first acknowledgement of a QoS 2 PUBLISH. A code of 0x80 or above ends the delivery."""

    packet_id: int
    code: int = 0
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Pubrel:
    """PUBREL: the sender of a QoS 2 message releases it. `code` is 0x00 or 0x92."""

    packet_id: int
    code: int = 0
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Pubcomp:
    """PUBCOMP: ends a QoS 2 delivery. `code` is 0x00 or 0x92."""

    packet_id: int
    code: int = 0
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """One filter in a SUBSCRIBE, with its options. In 3.x, `qos` is the only option.

    `retain_handling` is 0 (send retained messages), 1 (only for a new subscription) or 2 (never).
    """

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE with at least one request, in the client's order."""

    packet_id: int
    requests: tuple[SubscribeRequest, ...]
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Suback:
    """SUBACK with one code for each request, in order: the granted QoS, or a failure of 0x80 or above."""

    packet_id: int
    codes: tuple[int, ...]
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """UNSUBSCRIBE with at least one filter, in the client's order."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Unsuback:
    """UNSUBACK with one code for each filter. In 3.x, it has no codes."""

    packet_id: int
    codes: tuple[int, ...] = ()
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Pingreq:
    """PINGREQ: keeps the connection alive."""


@dataclass(frozen=True, slots=True)
class Pingresp:
    """PINGRESP: the response to PINGREQ."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """DISCONNECT. In 3.x only clients send it, and `code` is 0."""

    code: int = 0
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Auth:
    """AUTH: a step of enhanced authentication in MQTT 5.0. Its properties contain the method."""

    code: int = 0
    properties: Properties = EMPTY


Packet = (
    Connect | Connack | Publish | Puback | Pubrec | Pubrel | Pubcomp | Subscribe | Suback | Unsubscribe |
    Unsuback | Pingreq | Pingresp | Disconnect | Auth
)  # fmt: skip
"""Any control packet."""
