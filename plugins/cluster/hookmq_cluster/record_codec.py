"""The stored form of records and messages: tuples of plain values for msgpack.

Encoding succeeds for every record that the broker accepts, and decoding restores it. Claims and limits are JSON, because
they may have any values. Decoding checks types and ranges, so that damaged data fails here and not later in the broker.
"""

import json
from collections.abc import Callable, Sequence
from itertools import product
from math import isnan
from sys import intern
from typing import Any, Final

from hookmq.mqtt_api import EMPTY, In, decode_section, encode_section
from hookmq.plugin import (
    Certificate,
    ClientRecord,
    HookMQError,
    Message,
    Peer,
    Properties,
    ReasonCode,
    Subscription,
    Will,
)
from hookmq.storage_api import (
    Dequeue,
    DropPublisher,
    DropReceived,
    DropRetained,
    DropSession,
    DropState,
    DropSubscription,
    Enqueue,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    Record,
    SessionRecord,
    SetPacket,
    make_message,
)

from hookmq_cluster.frame_error import FrameError

Fields = tuple[Any, ...]
"""A record or message as msgpack stores it."""

_NONE: Final = type(None)
_BOOL: Final = (bool, int)
_NUMBER: Final = (float, int)


def _shown(value: object) -> str:
    text = repr(value[:40] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 60 else f"{text[:60]}…"


class _Shape:
    """The names and types of a tuple's fields. `fits` is the fast check, `wrong` finds the field that failed it."""

    __slots__ = ("_names", "_signatures", "_types", "what")

    def __init__(self, what: str, **fields: type | tuple[type, ...]) -> None:
        self.what = what
        self._names = tuple(fields)
        self._types = tuple(one if isinstance(one, tuple) else (one,) for one in fields.values())
        self._signatures = frozenset(product(*self._types))

    def fits(self, fields: Any) -> bool:
        """Return whether `fields` is a tuple with the right number and types of values."""
        return type(fields) is tuple and tuple(map(type, fields)) in self._signatures

    def wrong(self, fields: Any) -> FrameError:
        """Return the error for fields that do not fit."""
        if type(fields) is not tuple:
            return FrameError(f"{self.what}: expected fields, found {_shown(fields)}")
        if len(fields) != len(self._names):
            return FrameError(
                f"{self.what}: expected {len(self._names)} fields, found {len(fields)}"
            )
        for name, value, types in zip(self._names, fields, self._types, strict=True):
            if type(value) not in types:
                expected = " or ".join("None" if one is _NONE else one.__name__ for one in types)
                return FrameError(
                    f"{self.what}: {name}: expected {expected}, found {_shown(value)}"
                )
        return FrameError(f"{self.what}: damaged")


def _invalid(what: str, name: str, value: object) -> FrameError:
    return FrameError(f"{what}: {name}: invalid value {_shown(value)}")


# --- messages --------------------------------------------------------------------------------------------------------

_MESSAGE: Final = _Shape(
    "message", topic=str, payload=bytes, flags=int, properties=(bytes, _NONE), sender=(str, _NONE), origin=str,
    received_at=_NUMBER, expires_at=(float, int, _NONE),
)  # fmt: skip


def _section(properties: Properties) -> bytes | None:
    """Encode the properties as an MQTT 5 PUBLISH property section. Return None if there are no properties."""
    if not properties.values:
        return None
    try:
        return encode_section(properties, In.PUBLISH)
    except (ValueError, TypeError):
        # A plugin set properties that PUBLISH does not allow. Clients would not receive them either.
        return _allowed(properties)


def _allowed(properties: Properties) -> bytes | None:
    kept: dict[int, Any] = {}
    for id, value in properties.values.items():
        try:
            encode_section(Properties.of({id: value}), In.PUBLISH)
        except (ValueError, TypeError):
            continue
        kept[id] = value
    return encode_section(Properties.of(kept), In.PUBLISH) if kept else None


def encode_message(message: Message) -> Fields:
    """Return the message as a tuple for msgpack."""
    properties = message.properties
    return (
        message.topic,
        message.payload,
        message.qos + 4 if message.retain else message.qos,
        None if properties is EMPTY else _section(properties),
        message.sender,
        message.origin,
        message.received_at,
        message.expires_at,
    )


def decode_message(fields: Any) -> Message:
    """Return the message in a tuple that `encode_message` made and msgpack decoded. Raises FrameError if it is
    damaged."""
    try:
        topic, payload, flags, section, sender, origin, received_at, expires_at = fields
    except (TypeError, ValueError):
        raise _MESSAGE.wrong(fields) from None
    # These tests take half the time of `_Shape.fits`. Every forwarded message passes through here.
    if not (
        type(fields) is tuple
        and type(topic) is str
        and type(payload) is bytes
        and type(flags) is int
        and (section is None or type(section) is bytes)
        and (sender is None or type(sender) is str)
        and type(origin) is str
        and (type(received_at) is float or type(received_at) is int)
        and (expires_at is None or type(expires_at) is float or type(expires_at) is int)
    ):
        raise _MESSAGE.wrong(fields)
    if not topic:
        raise _invalid("message", "topic", topic)
    if not 0 <= flags <= 6 or flags == 3:
        raise _invalid("message", "flags", flags)
    if received_at != received_at or expires_at != expires_at:
        raise FrameError("message: a time is not a number")
    properties = EMPTY
    if section is not None:
        try:
            properties = decode_section(section, In.PUBLISH)
        except HookMQError as error:
            raise FrameError(f"message: properties: {error}") from error
    return make_message(
        topic, payload, flags & 3, flags >= 4, properties, sender, origin, received_at, expires_at
    )


# --- clients and sessions --------------------------------------------------------------------------------------------

_CLIENT: Final = _Shape(
    "client", client_id=str, version=int, username=(str, _NONE), identity=(str, _NONE), claims=(str, _NONE),
    vouched_by=(str, _NONE), host=str, port=int, transport=str, certificate=(tuple, _NONE), listener=str,
    mount_point=str, clean_start=_BOOL, keep_alive=int, connected_at=_NUMBER, expires_at=(float, int, _NONE),
    expiry_code=int,
)  # fmt: skip
_CERTIFICATE: Final = _Shape(
    "certificate", common_name=str, subject=str, sans=tuple, fingerprint=str
)
_SESSION: Final = _Shape(
    "session", client=tuple, expiry=_NUMBER, limits=(str, _NONE), ended_at=(float, int, _NONE), will=(tuple, _NONE),
    will_at=(float, int, _NONE), revoked=tuple,
)  # fmt: skip
_WILL: Final = _Shape("will", message=tuple, delay=_NUMBER)
_dumps: Final = json.JSONEncoder(separators=(",", ":"), default=str).encode


def _texts(what: str, name: str, values: Fields) -> tuple[str, ...]:
    for value in values:
        if type(value) is not str:
            raise _invalid(what, name, value)
    return values


_NOTHING: Final[dict[str, Any]] = {}
"""The claims and limits of most clients."""


def _json(what: str, name: str, text: str | None) -> dict[str, Any]:
    """Return the JSON object in `text`, or an empty dict for None. Do not change it."""
    if text is None:
        return _NOTHING
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"{what}: {name}: invalid JSON: {error}") from error
    if type(value) is not dict:
        raise _invalid(what, name, text)
    return value


def encode_client(client: ClientRecord) -> Fields:
    """Return the client as a tuple for msgpack."""
    peer = client.peer
    kept = peer.certificate
    return (
        client.client_id, client.version, client.username, client.identity,
        _dumps(dict(client.claims)) if client.claims else None, client.vouched_by, peer.host, peer.port, peer.transport,
        None if kept is None else (kept.common_name, kept.subject, kept.sans, kept.fingerprint), client.listener,
        client.mount_point, client.clean_start, client.keep_alive, client.connected_at, client.expires_at,
        int(client.expiry_code),
    )  # fmt: skip


def decode_client(fields: Any) -> ClientRecord:
    """Return the client in a tuple that `encode_client` made and msgpack decoded. Raises FrameError if it is damaged."""
    if not _CLIENT.fits(fields):
        raise _CLIENT.wrong(fields)
    (
        client_id, version, username, identity, claims, vouched_by, host, port, transport, kept, listener, mount_point,
        clean_start, keep_alive, connected_at, expires_at, expiry_code,
    ) = fields  # fmt: skip
    certificate = None
    if kept is not None:
        if not _CERTIFICATE.fits(kept):
            raise _CERTIFICATE.wrong(kept)
        _texts("certificate", "sans", kept[2])
        certificate = Certificate(*kept)
    if not 0 <= port <= 65535:
        raise _invalid("client", "port", port)
    try:
        code = ReasonCode(expiry_code)
    except ValueError:
        raise _invalid("client", "expiry_code", expiry_code) from None
    # A lane may have a million clients, most of which have the same listener and one name.
    return ClientRecord(
        intern(client_id), version, username and intern(username), identity and intern(identity),
        _json("client", "claims", claims), vouched_by and intern(vouched_by),
        Peer(host, port, intern(transport), certificate), intern(listener), intern(mount_point), bool(clean_start),
        keep_alive, connected_at, expires_at, code,
    )  # fmt: skip


def _encode_session(record: PutSession) -> Fields:
    client, expiry, limits, ended_at, will, will_at, revoked = record.session
    return (
        encode_client(client),
        expiry,
        _dumps(dict(limits)) if limits else None,
        ended_at,
        None if will is None else (encode_message(will.message), will.delay),
        will_at,
        revoked,
    )


def _decode_session(fields: Any) -> PutSession:
    if not _SESSION.fits(fields):
        raise _SESSION.wrong(fields)
    client, expiry, text, ended_at, kept, will_at, revoked = fields
    if isnan(expiry):
        raise _invalid("session", "expiry", expiry)
    limits = _json("session", "limits", text)
    for name, value in limits.items():
        if type(value) is not int:
            raise _invalid("session", f"limits: {name}", value)
    will = None
    if kept is not None:
        if not _WILL.fits(kept):
            raise _WILL.wrong(kept)
        will = Will(decode_message(kept[0]), kept[1])
    return PutSession(
        SessionRecord(
            decode_client(client), expiry, limits, ended_at, will, will_at,
            _texts("session", "revoked", revoked),
        )
    )  # fmt: skip


# --- other records ---------------------------------------------------------------------------------------------------

_SUBSCRIPTION: Final = _Shape(
    "PutSubscription", client_id=str, filter=str, topic_filter=(str, _NONE), options=int, identifier=(int, _NONE),
    share=(str, _NONE),
)  # fmt: skip


def _encode_subscription(record: PutSubscription) -> Fields:
    one = record.subscription
    return (
        record.client_id,
        one.filter,
        None if one.topic_filter == one.filter else one.topic_filter,
        one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4,
        one.identifier,
        one.share,
    )


def _decode_subscription(fields: Any) -> PutSubscription:
    if not _SUBSCRIPTION.fits(fields):
        raise _SUBSCRIPTION.wrong(fields)
    client_id, filter, topic_filter, options, identifier, share = fields
    if not 0 <= options < 48 or options & 3 == 3:
        raise _invalid("PutSubscription", "options", options)
    filter = intern(filter)
    return PutSubscription(
        intern(client_id),
        Subscription(
            filter, filter if topic_filter is None else topic_filter, options & 3, (options & 4) != 0,
            (options & 8) != 0, options >> 4, identifier, share,
        ),
    )  # fmt: skip


_ENQUEUE: Final = _Shape(
    "Enqueue", owner=str, seq=int, message_ref=int, qos=int, size=int, retain=_BOOL, identifiers=tuple, filter=str,
    packet_id=int, released=_BOOL, group=str,
)  # fmt: skip


def _decode_enqueue(fields: Any) -> Enqueue:
    if not _ENQUEUE.fits(fields):
        raise _ENQUEUE.wrong(fields)
    record = Enqueue._make(fields)
    if record.owner[:2] not in ("c/", "g/"):
        raise _invalid("Enqueue", "owner", record.owner)
    if not 0 <= record.qos <= 2:
        raise _invalid("Enqueue", "qos", record.qos)
    if record.size < 0:
        raise _invalid("Enqueue", "size", record.size)
    if not 0 <= record.packet_id <= 65535:
        raise _invalid("Enqueue", "packet_id", record.packet_id)
    for identifier in record.identifiers:
        if type(identifier) is not int:
            raise _invalid("Enqueue", "identifiers", identifier)
    if type(record.retain) is int or type(record.released) is int:
        return record._replace(retain=bool(record.retain), released=bool(record.released))
    return record


_MESSAGE_RECORD: Final = _Shape("PutMessage", id=int, message=tuple)
_PUBLISHER: Final = _Shape("PutPublisher", id=int, client=tuple)
_RETAINED: Final = _Shape("PutRetained", message=tuple, publisher=int)


def _decode_put_message(fields: Any) -> PutMessage:
    if not _MESSAGE_RECORD.fits(fields):
        raise _MESSAGE_RECORD.wrong(fields)
    return PutMessage(fields[0], decode_message(fields[1]))


def _decode_publisher(fields: Any) -> PutPublisher:
    if not _PUBLISHER.fits(fields):
        raise _PUBLISHER.wrong(fields)
    return PutPublisher(fields[0], decode_client(fields[1]))


def _decode_retained(fields: Any) -> PutRetained:
    if not _RETAINED.fits(fields):
        raise _RETAINED.wrong(fields)
    return PutRetained(decode_message(fields[0]), fields[1])


def _plain(kind: Any, **types: type | tuple[type, ...]) -> Callable[[Any], Any]:
    """Return a decoder for a record whose fields are stored as they are."""
    shape = _Shape(kind.__name__, **types)
    packet_id = tuple(types).index("packet_id") if "packet_id" in types else None
    times = "due" in types
    make = kind._make

    def decode_plain(fields: Any) -> Any:
        if not shape.fits(fields):
            raise shape.wrong(fields)
        if packet_id is not None and not 0 <= fields[packet_id] <= 65535:
            raise _invalid(shape.what, "packet_id", fields[packet_id])
        if times and fields[3] is not None and isnan(fields[3]):
            raise _invalid(shape.what, "due", fields[3])
        return make(fields)

    return decode_plain


_CODES: Final[dict[type, int]] = {
    PutSession: 1, DropSession: 2, PutSubscription: 3, DropSubscription: 4, PutMessage: 5, Enqueue: 6, SetPacket: 7,
    Dequeue: 8, PutReceived: 9, DropReceived: 10, PutPublisher: 11, DropPublisher: 12, PutRetained: 13,
    DropRetained: 14, PutState: 15, DropState: 16,
}  # fmt: skip
"""The codes of the records. They are part of the stored form."""

_ENCODERS: Final[dict[type, Callable[[Any], Fields]]] = {
    PutSession: _encode_session,
    PutSubscription: _encode_subscription,
    PutMessage: lambda record: (record.id, encode_message(record.message)),
    PutPublisher: lambda record: (record.id, encode_client(record.client)),
    PutRetained: lambda record: (encode_message(record.message), record.publisher),
}
"""Records with other fields than plain values. The others are named tuples, which msgpack stores as they are."""

_DECODERS: Final[dict[int, Callable[[Any], Record]]] = {
    1: _decode_session,
    2: _plain(DropSession, client_id=str),
    3: _decode_subscription,
    4: _plain(DropSubscription, client_id=str, filter=str),
    5: _decode_put_message,
    6: _decode_enqueue,
    7: _plain(SetPacket, owner=str, seq=int, packet_id=int, released=_BOOL),
    8: _plain(Dequeue, owner=str, seq=int),
    9: _plain(PutReceived, client_id=str, packet_id=int),
    10: _plain(DropReceived, client_id=str, packet_id=int),
    11: _decode_publisher,
    12: _plain(DropPublisher, id=int),
    13: _decode_retained,
    14: _plain(DropRetained, topic=str),
    15: _plain(PutState, space=str, key=str, value=bytes, due=(float, int, _NONE)),
    16: _plain(DropState, space=str, key=str),
}


def encode_records(records: Sequence[Record]) -> list[Any]:
    """Return the records as a list for msgpack: the code and the fields of each record in turn."""
    flat: list[Any] = []
    append = flat.append
    codes, encoders = _CODES, _ENCODERS
    for record in records:
        kind = type(record)
        append(codes[kind])
        encode = encoders.get(kind)
        append(record if encode is None else encode(record))
    return flat


def decode_records(flat: Any) -> tuple[Record, ...]:
    """Return the records in what `encode_records` made and msgpack decoded. Raises FrameError if it is damaged."""
    if type(flat) is not tuple or len(flat) % 2:
        raise FrameError(f"records: expected codes and fields, found {_shown(flat)}")
    records: list[Record] = []
    append = records.append
    decoders = _DECODERS
    codes = iter(flat)
    try:
        for code in codes:
            decode = decoders.get(code) if type(code) is int else None
            if decode is None:
                raise FrameError(f"unknown kind {_shown(code)}")
            append(decode(next(codes)))
    except FrameError as error:
        raise FrameError(f"record {len(records) + 1} of {len(flat) // 2}: {error}") from error
    return tuple(records)
