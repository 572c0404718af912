"""What every contract uses: a message and a session with everything in them, and how to compare what comes back."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import inf
from typing import Any

from hookmq.properties import Properties
from hookmq.reason import ReasonCode
from hookmq.store import (
    Enqueue,
    Loaded,
    SessionRecord,
)
from hookmq.types import Certificate, ClientInfo, Message, Peer, Scope, Subscription, Will

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
"""A client with a value in no field that can do without."""
UNSTORED = frozenset({"scope", "_publisher", "_state"})
"""Fields of `ClientInfo` that no record holds as they are: of the scope, see `UNSTORED_SCOPE`; plugins' scratch space is
of one process."""
UNSTORED_SCOPE = frozenset({"versions", "connect_timeout", "connect_bytes", "identity"})
"""Fields of `Scope` that say how a listener admits clients, and nothing of a client that was admitted."""
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
    """A message's values, to be compared: two messages are never equal."""
    return tuple(getattr(message, name) for name in _MESSAGE_FIELDS)


def comparable(value: Any) -> Any:
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
    """The names of a dataclass's fields."""
    return frozenset(field.name for field in fields(kind))


def renamed(client_id: str) -> SessionRecord:
    """`SESSION`, of another client."""
    return SESSION._replace(client=SESSION.client._replace(client_id=client_id))


def make_message(topic: str, payload: bytes = b"", **fields: Any) -> Message:
    return Message(topic, payload, fields.pop("qos", 1), **fields)


def make_entry(owner: str, seq: int, id: int, size: int = 0, **fields: Any) -> Enqueue:
    return Enqueue(owner, seq, id, fields.pop("qos", 1), size, **fields)


def of_kind(loaded: Iterable[Loaded], kind: type[Any]) -> list[Any]:
    return [one for one in loaded if isinstance(one, kind)]
