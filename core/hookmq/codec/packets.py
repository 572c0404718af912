"""One immutable value per control packet, for every protocol version.

Versions are numbered by their protocol level: 3 is MQTT 3.1, 4 is MQTT 3.1.1, 5 is MQTT 5.0. `properties` are those of
MQTT 5.0 and are empty in the others. Reason codes are plain integers, as on the wire. Payloads, passwords and property
values stay out of `repr`, so that packets may be logged.
"""

from dataclasses import dataclass, field
from typing import Any

from hookmq.properties import EMPTY, Properties


@dataclass(frozen=True, slots=True)
class WillFields:
    """The will that a CONNECT carries; `qos` is 0 to 2."""

    topic: str
    payload: bytes = field(repr=False)
    qos: int = 0
    retain: bool = False
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Connect:
    """CONNECT. `version` is 3, 4 or 5; `clean_start` is Clean Session in 3.x; `keep_alive` is in seconds, 0 for none.

    `bridge` tells that a 3.x client set bit 7 of the protocol level, as mosquitto's bridges do.
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


@dataclass(slots=True)
class _ConnectFields:
    """The slots of `Connect`, writable."""

    client_id: str
    version: int
    clean_start: bool
    keep_alive: int
    username: str | None
    password: bytes | None
    will: WillFields | None
    bridge: bool
    properties: Properties


def new_connect(
    client_id: str,
    version: int,
    clean_start: bool,
    keep_alive: int,
    username: str | None,
    password: bytes | None,
    will: WillFields | None,
    bridge: bool,
    properties: Properties,
) -> Connect:
    """A `Connect`, made as `new_publish` makes its packets."""
    packet: Any = _ConnectFields(
        client_id, version, clean_start, keep_alive, username, password, will, bridge, properties
    )
    packet.__class__ = Connect
    made: Connect = packet
    return made


@dataclass(frozen=True, slots=True)
class Connack:
    """CONNACK. `code` is a reason code in MQTT 5.0 and a return code, 0 to 5, in 3.x."""

    code: int
    session_present: bool = False
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Publish:
    """PUBLISH. `packet_id` is 0 exactly when `qos` is 0; `topic` is empty only beside a topic alias."""

    topic: str
    payload: bytes = field(repr=False)
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = EMPTY


@dataclass(slots=True)
class _PublishFields:
    """The slots of `Publish`, writable."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties


def new_publish(
    topic: str,
    payload: bytes,
    qos: int,
    retain: bool,
    dup: bool,
    packet_id: int,
    properties: Properties,
) -> Publish:
    """A `Publish`, made in a third of the time: a frozen dataclass sets each field through ``object.__setattr__``,
    and that was more than half of decoding a PUBLISH. Both classes have the same slots, so one may become the other."""
    packet: Any = _PublishFields(topic, payload, qos, retain, dup, packet_id, properties)
    packet.__class__ = Publish
    made: Publish = packet
    return made


@dataclass(frozen=True, slots=True)
class Puback:
    """PUBACK: ends a QoS 1 delivery. `code` is 0 in 3.x."""

    packet_id: int
    code: int = 0
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Pubrec:
    """PUBREC: step one of answering QoS 2; a code of 0x80 and above ends the delivery."""

    packet_id: int
    code: int = 0
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Pubrel:
    """PUBREL: the QoS 2 sender lets go of the message. `code` is 0x00 or 0x92."""

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
    """One topic filter of a SUBSCRIBE with its options; all but `qos` are MQTT 5.0's. `retain_handling` is 0 (send
    retained messages), 1 (only to a new subscription) or 2 (never)."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE: at least one request, in the client's order."""

    packet_id: int
    requests: tuple[SubscribeRequest, ...]
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Suback:
    """SUBACK: one code for each request, in their order: the granted QoS, or 0x80 and above."""

    packet_id: int
    codes: tuple[int, ...]
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """UNSUBSCRIBE: at least one topic filter, in the client's order."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Unsuback:
    """UNSUBACK: one code for each filter in MQTT 5.0, none in 3.x."""

    packet_id: int
    codes: tuple[int, ...] = ()
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Pingreq:
    """PINGREQ: the client is alive and asks whether the server is."""


@dataclass(frozen=True, slots=True)
class Pingresp:
    """PINGRESP: the answer to PINGREQ."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """DISCONNECT. In 3.x only a client sends it, and `code` is 0."""

    code: int = 0
    properties: Properties = EMPTY


@dataclass(frozen=True, slots=True)
class Auth:
    """AUTH, MQTT 5.0 only: a step of enhanced authentication. Its properties name the authentication method."""

    code: int = 0
    properties: Properties = EMPTY


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
"""Any control packet."""
