"""Sample messages and sessions with a value in every field, and helpers that compare the values a store returns."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import inf
from typing import Any

from hookmq.model.client import Certificate, ClientInfo, Peer, Scope
from hookmq.model.message import Message, Will
from hookmq.model.subscription import Subscription
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.records import Enqueue, Loaded, SessionRecord

MESSAGE = Message(
    "t/\N{SNOWMAN}",
    bytes(range(256)),
    2,
    True,
    Properties(
        payload_format_indicator=1,
        message_expiry_interval=0xFFFFFFFF,
        content_type="text/plain",
        response_topic="answers/here",
        correlation_data=b"\x00\xff",
        user_property=(("b", "1"), ("a", "2"), ("b", "1"), ("", "")),
    ),
    "sender",
    "plugin:x",
    1_700_000_000.25,
    1_700_000_060.5,
)
"""A message with a value in every field."""
CLIENT = ClientInfo(
    "c1",
    5,
    "user",
    Peer(
        "192.0.2.7",
        40000,
        "tls",
        Certificate("device", "CN=device,O=\N{SNOWMAN}", ("device.example", "DNS:two"), "ab" * 32),
    ),
    Scope("tls", "tenant/"),
    False,
    60,
    1_700_000_000.0,
    "identity",
    {"groups": ["a", "b"], "level": 3, "nested": {"yes": True, "none": None, "pi": 3.5}},
    1_700_000_500.5,
    ReasonCode.NOT_AUTHORIZED,
    "plugin:tokens",
)
"""A client with a value in every field."""
PLAIN_CLIENT = ClientInfo("", 0, None, Peer(""), Scope())
"""A client with only the required values."""
UNSTORED = frozenset({"scope", "_publisher", "_state"})
"""Fields of `ClientInfo` that are not stored unchanged. For the scope, see `UNSTORED_SCOPE`."""
UNSTORED_SCOPE = frozenset({"versions", "connect_timeout", "connect_bytes", "identity"})
"""Fields of `Scope` that matter only while a client connects."""
SESSION = SessionRecord(
    CLIENT.record(),
    inf,
    {"queue_messages": 5},
    1_700_000_100.125,
    Will(MESSAGE, 30),
    1_700_000_130.125,
    ("gone/#", "\N{SNOWMAN}"),
)
"""A session with a value in every field."""
SUBSCRIPTION = Subscription("$share/g/a/+", "tenant/a/+", 2, True, True, 1, 268435455, "g")
"""A subscription with a value in every field."""

_MESSAGE_FIELDS = (
    "topic", "payload", "qos", "retain", "properties", "sender", "origin", "received_at", "expires_at",
)  # fmt: skip


def fields_of(message: Message) -> tuple[Any, ...]:
    """Return a message's field values for comparison, since two message objects never compare equal."""
    return tuple(getattr(message, name) for name in _MESSAGE_FIELDS)


def comparable(value: Any) -> Any:
    """Return a form of `value` that can be compared with ``==``. Messages compare by identity otherwise."""
    if isinstance(value, Message):
        return fields_of(value)
    if isinstance(value, Will):
        return (fields_of(value.message), value.delay)
    if isinstance(value, Certificate):
        return tuple(comparable(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return {key: comparable(value[key]) for key in value}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (type(value).__name__, *map(comparable, value))
    if isinstance(value, tuple | list):
        return list(map(comparable, value))
    return value


def vars_of(kind: Any) -> frozenset[str]:
    """Return the names of a dataclass's fields."""
    return frozenset(field.name for field in fields(kind))


def renamed(client_id: str) -> SessionRecord:
    """Return `SESSION` with another client id."""
    return SESSION._replace(client=SESSION.client._replace(client_id=client_id))


def make_message(topic: str, payload: bytes = b"", **fields: Any) -> Message:
    """Return a message with QoS 1, unless `fields` say otherwise."""
    return Message(topic, payload, fields.pop("qos", 1), **fields)


def make_entry(owner: str, seq: int, id: int, size: int = 0, **fields: Any) -> Enqueue:
    """Return a queue entry with QoS 1 for the message `id`, unless `fields` say otherwise. `size` is in bytes."""
    return Enqueue(owner, seq, id, fields.pop("qos", 1), size, **fields)


def of_kind(loaded: Iterable[Loaded], kind: type[Any]) -> list[Any]:
    """Return the records of one type, in order."""
    return [one for one in loaded if isinstance(one, kind)]
