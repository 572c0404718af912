"""The 27 MQTT 5.0 properties, with their ids, types and packets (section 2.2.2.2), and the class that holds a packet's
properties.

A missing property is None, never an empty value, and is not forwarded [MQTT-3.3.2-4, 3.3.2-15 to 20].
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum, IntFlag
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from hookmq.mqtt.reason_codes import PacketType

UserProperty = tuple[tuple[str, str], ...]
"""(name, value) pairs in the sender's order, including duplicates [MQTT-3.3.2-17, 3.3.2-18]."""


class PropertyKind(IntEnum):
    """The wire type of a property's value (MQTT 5.0 section 1.5)."""

    BYTE = 1
    UINT16 = 2
    UINT32 = 3
    VARINT = 4
    STRING = 5
    BINARY = 6
    PAIR = 7


class In(IntFlag):
    """The packets that may carry a property. The will in a CONNECT counts as a packet of its own."""

    CONNECT = 1 << PacketType.CONNECT
    CONNACK = 1 << PacketType.CONNACK
    PUBLISH = 1 << PacketType.PUBLISH
    PUBACK = 1 << PacketType.PUBACK
    PUBREC = 1 << PacketType.PUBREC
    PUBREL = 1 << PacketType.PUBREL
    PUBCOMP = 1 << PacketType.PUBCOMP
    SUBSCRIBE = 1 << PacketType.SUBSCRIBE
    SUBACK = 1 << PacketType.SUBACK
    UNSUBSCRIBE = 1 << PacketType.UNSUBSCRIBE
    UNSUBACK = 1 << PacketType.UNSUBACK
    DISCONNECT = 1 << PacketType.DISCONNECT
    AUTH = 1 << PacketType.AUTH
    WILL = 1 << 16


class PropertySpec(NamedTuple):
    """One row of the property table. `minimum` and `maximum` limit numeric values."""

    id: int
    name: str
    kind: PropertyKind
    packets: In
    minimum: int = 0
    maximum: int = 0xFFFFFFFF
    repeats: bool = False


_K = PropertyKind
_ACKS = In.PUBACK | In.PUBREC | In.PUBREL | In.PUBCOMP | In.SUBACK | In.UNSUBACK
_MESSAGE = In.PUBLISH | In.WILL
_EVERYWHERE = (
    _ACKS
    | _MESSAGE
    | In.CONNECT
    | In.CONNACK
    | In.SUBSCRIBE
    | In.UNSUBSCRIBE
    | In.DISCONNECT
    | In.AUTH
)

PROPERTIES: Final = (
    PropertySpec(0x01, "payload_format_indicator", _K.BYTE, _MESSAGE, 0, 1),
    PropertySpec(0x02, "message_expiry_interval", _K.UINT32, _MESSAGE),
    PropertySpec(0x03, "content_type", _K.STRING, _MESSAGE),
    PropertySpec(0x08, "response_topic", _K.STRING, _MESSAGE),
    PropertySpec(0x09, "correlation_data", _K.BINARY, _MESSAGE),
    PropertySpec(
        0x0B, "subscription_identifier", _K.VARINT, In.PUBLISH | In.SUBSCRIBE, 1, 268435455, True
    ),
    PropertySpec(
        0x11, "session_expiry_interval", _K.UINT32, In.CONNECT | In.CONNACK | In.DISCONNECT
    ),
    PropertySpec(0x12, "assigned_client_identifier", _K.STRING, In.CONNACK),
    PropertySpec(0x13, "server_keep_alive", _K.UINT16, In.CONNACK, 0, 65535),
    PropertySpec(0x15, "authentication_method", _K.STRING, In.CONNECT | In.CONNACK | In.AUTH),
    PropertySpec(0x16, "authentication_data", _K.BINARY, In.CONNECT | In.CONNACK | In.AUTH),
    PropertySpec(0x17, "request_problem_information", _K.BYTE, In.CONNECT, 0, 1),
    PropertySpec(0x18, "will_delay_interval", _K.UINT32, In.WILL),
    PropertySpec(0x19, "request_response_information", _K.BYTE, In.CONNECT, 0, 1),
    PropertySpec(0x1A, "response_information", _K.STRING, In.CONNACK),
    PropertySpec(0x1C, "server_reference", _K.STRING, In.CONNACK | In.DISCONNECT),
    PropertySpec(0x1F, "reason_string", _K.STRING, _ACKS | In.CONNACK | In.DISCONNECT | In.AUTH),
    PropertySpec(0x21, "receive_maximum", _K.UINT16, In.CONNECT | In.CONNACK, 1, 65535),
    PropertySpec(0x22, "topic_alias_maximum", _K.UINT16, In.CONNECT | In.CONNACK, 0, 65535),
    PropertySpec(0x23, "topic_alias", _K.UINT16, In.PUBLISH, 0, 65535),
    PropertySpec(0x24, "maximum_qos", _K.BYTE, In.CONNACK, 0, 1),
    PropertySpec(0x25, "retain_available", _K.BYTE, In.CONNACK, 0, 1),
    PropertySpec(0x26, "user_property", _K.PAIR, _EVERYWHERE, repeats=True),
    PropertySpec(0x27, "maximum_packet_size", _K.UINT32, In.CONNECT | In.CONNACK, 1),
    PropertySpec(0x28, "wildcard_subscription_available", _K.BYTE, In.CONNACK, 0, 1),
    PropertySpec(0x29, "subscription_identifier_available", _K.BYTE, In.CONNACK, 0, 1),
    PropertySpec(0x2A, "shared_subscription_available", _K.BYTE, In.CONNACK, 0, 1),
)
"""Every property, sorted by id. `subscription_identifier` may occur repeatedly only in packets from the broker."""

BY_ID: Final[Mapping[int, PropertySpec]] = {spec.id: spec for spec in PROPERTIES}
BY_NAME: Final[Mapping[str, PropertySpec]] = {spec.name: spec for spec in PROPERTIES}

T = TypeVar("T")


class _Field(Generic[T]):
    """Reads one property of a `Properties`; None if it is missing."""

    __slots__ = ("id",)

    def __set_name__(self, owner: type, name: str) -> None:
        self.id = BY_NAME[name].id

    @overload
    def __get__(self, instance: None, owner: type) -> "_Field[T]": ...
    @overload
    def __get__(self, instance: "Properties", owner: type) -> T | None: ...
    def __get__(self, instance: "Properties | None", owner: type) -> "T | None | _Field[T]":
        if instance is None:
            return self
        value: T | None = instance.values.get(self.id)
        return value


class Properties:
    """An immutable set of properties, such as ``Properties(content_type="text/plain", user_property=(("k", "v"),))``.

    None means missing. Raises TypeError for unknown names. `values` maps property ids to values and is read-only.
    Values are integers, `str`, `bytes`, a tuple of pairs for `user_property`, and a tuple of integers for
    `subscription_identifier`.
    """

    __slots__ = ("values",)
    values: dict[int, Any]

    payload_format_indicator = _Field[int]()
    message_expiry_interval = _Field[int]()
    content_type = _Field[str]()
    response_topic = _Field[str]()
    correlation_data = _Field[bytes]()
    subscription_identifier = _Field[tuple[int, ...]]()
    session_expiry_interval = _Field[int]()
    assigned_client_identifier = _Field[str]()
    server_keep_alive = _Field[int]()
    authentication_method = _Field[str]()
    authentication_data = _Field[bytes]()
    request_problem_information = _Field[int]()
    will_delay_interval = _Field[int]()
    request_response_information = _Field[int]()
    response_information = _Field[str]()
    server_reference = _Field[str]()
    reason_string = _Field[str]()
    receive_maximum = _Field[int]()
    topic_alias_maximum = _Field[int]()
    topic_alias = _Field[int]()
    maximum_qos = _Field[int]()
    retain_available = _Field[int]()
    user_property = _Field[UserProperty]()
    maximum_packet_size = _Field[int]()
    wildcard_subscription_available = _Field[int]()
    subscription_identifier_available = _Field[int]()
    shared_subscription_available = _Field[int]()

    def __init__(self, **given: Any) -> None:
        values: dict[int, Any] = {}
        for name, value in given.items():
            spec = BY_NAME.get(name)
            if spec is None:
                raise TypeError(f"unknown MQTT 5 property {name!r}")
            if value is not None:
                values[spec.id] = tuple(value) if spec.repeats else value
        object.__setattr__(self, "values", values)

    @classmethod
    def of(cls, values: dict[int, Any]) -> "Properties":
        """Wrap `values` (a mapping from ids to values) without copying or checking it. The caller must not change
        `values` later."""
        if not values:
            return EMPTY
        self = cls.__new__(cls)
        object.__setattr__(self, "values", values)
        return self

    def replace(self, **changes: Any) -> "Properties":
        """Return a copy with changed properties. Set a property to None to remove it."""
        values = dict(self.values)
        for name, value in changes.items():
            spec = BY_NAME.get(name)
            if spec is None:
                raise TypeError(f"unknown MQTT 5 property {name!r}")
            if value is None:
                values.pop(spec.id, None)
            else:
                values[spec.id] = tuple(value) if spec.repeats else value
        return Properties.of(values)

    def only(self, packet: In, *, without: Iterable[int] = ()) -> "Properties":
        """Return only the properties that `packet` may have, except the ids in `without`."""
        drop = set(without)
        kept = {i: v for i, v in self.values.items() if BY_ID[i].packets & packet and i not in drop}
        return Properties.of(kept)

    def extent(self) -> int:
        """Return the approximate size of all strings and binary data, in characters and bytes."""
        size = 0
        for value in self.values.values():
            if isinstance(value, str | bytes):
                size += len(value)
            elif isinstance(value, tuple):
                for item in value:
                    if isinstance(item, tuple):
                        size += len(item[0]) + len(item[1])
        return size

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Properties are immutable: use replace()")

    def __bool__(self) -> bool:
        return bool(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Properties) and self.values == other.values

    def __hash__(self) -> int:
        return hash(frozenset(self.values.items()))

    def __repr__(self) -> str:
        # Names only: values may be secrets, such as authentication data.
        return f"Properties({', '.join(BY_ID[i].name for i in self.values)})"


EMPTY: Final = Properties()
"""No properties, as in all MQTT 3.x packets."""
