"""Convert the broker's records to rows and back."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hookmq.mqtt_api import In, decode_section, encode_section
from hookmq.plugin import EMPTY, ClientRecord, Message, Properties, Subscription, Will
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

from hookmq_storage import batch
from hookmq_storage.batch import Operation
from hookmq_storage.client import client_data, client_of


def _properties(properties: Properties) -> bytes | None:
    """Encode the properties as an MQTT 5 PUBLISH property section. Return None if there are no properties."""
    if not properties.values:
        return None
    try:
        return encode_section(properties, In.PUBLISH)
    except ValueError:
        # A plugin set properties that PUBLISH does not allow. Clients would not receive them either.
        kept = properties.only(In.PUBLISH)
        return encode_section(kept, In.PUBLISH) if kept else None


def message_row(message: Message) -> tuple[Any, ...]:
    """Return the message's topic, payload, flags, properties, sender, origin, received_at and expires_at."""
    return (
        message.topic,
        message.payload,
        message.qos + 4 if message.retain else message.qos,
        _properties(message.properties) if message.properties else None,
        message.sender,
        message.origin,
        message.received_at,
        message.expires_at,
    )


def message_of(row: Sequence[Any]) -> Message:
    """Return the message in a row that `message_row` made."""
    topic, payload, flags, properties, sender, origin, received_at, expires_at = row
    return make_message(
        topic,
        payload,
        flags & 3,
        flags >= 4,
        EMPTY if properties is None else decode_section(properties, In.PUBLISH),
        sender,
        origin,
        received_at,
        expires_at,
    )


def _client(client: ClientRecord) -> str:
    return json.dumps(client_data(client), separators=(",", ":"), default=str)


def publisher_of(row: Sequence[Any]) -> PutPublisher:
    """Return the publisher in a row."""
    id, client_id, version, data = row[:4]
    return PutPublisher(id, client_of(client_id, version, 0.0, json.loads(data)))


_NO_WILL: Final = (None,) * 9


def _session(record: PutSession) -> Operation:
    one = record.session
    will = _NO_WILL if one.will is None else (one.will.delay, *message_row(one.will.message))
    client = one.client
    data = json.dumps(
        {**client_data(client), "limits": dict(one.limits), "revoked": list(one.revoked)},
        separators=(",", ":"),
        default=str,  # claims may have any type
    )
    return (
        batch.PUT_SESSION,
        client.client_id,
        client.version,
        one.expiry,
        client.connected_at,
        one.ended_at,
        one.will_at,
        data,
        *will,
    )


def session_of(client_id: str, row: Sequence[Any]) -> PutSession:
    """Return the session described by the columns after `owner`."""
    version, expiry, connected_at, ended_at, will_at, data = row[:6]
    kept = json.loads(data)
    will = None if row[6] is None else Will(message_of(row[7:15]), row[6])
    return PutSession(
        SessionRecord(
            client_of(client_id, version, connected_at, kept),
            expiry,
            kept["limits"],
            ended_at,
            will,
            will_at,
            tuple(kept["revoked"]),
        )
    )


def _subscription(record: PutSubscription) -> Operation:
    one = record.subscription
    options = one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4
    return (
        batch.PUT_SUBSCRIPTION,
        record.client_id,
        one.filter,
        one.topic_filter,
        options,
        one.identifier,
        one.share,
    )


class _SubscriptionFields:
    """The fields of a `Subscription`.

    Instances are turned into subscriptions, as in `hookmq.storage_api.make_message`. This has to be fast, because
    startup may load a million subscriptions.
    """

    __slots__ = Subscription.__slots__

    def __init__(
        self,
        filter: str,
        topic_filter: str,
        qos: int,
        no_local: bool,
        retain_as_published: bool,
        retain_handling: int,
        identifier: int | None,
        share: str | None,
    ) -> None:
        self.filter = filter
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling
        self.identifier = identifier
        self.share = share
        self.user_property: tuple[tuple[str, str], ...] = ()


def subscription_of(client_id: str, row: Sequence[Any]) -> PutSubscription:
    """Return the subscription described by the columns after `owner`."""
    filter, topic_filter, options, identifier, share = row[:5]
    fields: Any = _SubscriptionFields(
        filter,
        filter if topic_filter == filter else topic_filter,
        options & 3,
        (options & 4) != 0,
        (options & 8) != 0,
        options >> 4,
        identifier,
        share,
    )
    fields.__class__ = Subscription
    return PutSubscription(client_id, fields)


def enqueue_of(owner: str, row: Sequence[Any]) -> Enqueue:
    """Return the entry described by the columns after `owner`."""
    seq, message, qos, size, retain, identifiers, filter, group, sent = row[:9]
    return Enqueue(
        owner,
        seq,
        message,
        qos,
        size,
        bool(retain),
        () if identifiers is None else tuple(map(int, identifiers.split())),
        filter or "",
        sent & 0xFFFF,
        sent > 0xFFFF,
        group or "",
    )


_ENCODERS: Final[Mapping[type, Callable[[Any], Operation]]] = {
    PutMessage: lambda r: (batch.PUT_MESSAGE, r.id, *message_row(r.message)),
    Enqueue: lambda r: (batch.ENQUEUE, *r),
    SetPacket: lambda r: (batch.SET_PACKET, *r),
    Dequeue: lambda r: (batch.DEQUEUE, *r),
    PutSession: _session,
    DropSession: lambda r: (batch.DROP_SESSION, *r),
    PutSubscription: _subscription,
    DropSubscription: lambda r: (batch.DROP_SUBSCRIPTION, *r),
    PutReceived: lambda r: (batch.PUT_RECEIVED, *r),
    DropReceived: lambda r: (batch.DROP_RECEIVED, *r),
    PutPublisher: lambda r: (
        batch.PUT_PUBLISHER,
        r.id,
        r.client.client_id,
        r.client.version,
        _client(r.client),
    ),
    DropPublisher: lambda r: (batch.DROP_PUBLISHER, *r),
    PutRetained: lambda r: (batch.PUT_RETAINED, *message_row(r.message), r.publisher or None),
    DropRetained: lambda r: (batch.DROP_RETAINED, *r),
    PutState: lambda r: (batch.PUT_STATE, *r),
    DropState: lambda r: (batch.DROP_STATE, *r),
}


def operations(records: Sequence[Record]) -> list[Operation]:
    """Convert records to the operations of `hookmq_storage.batch`, which consist of plain values for `marshal`.

    A message and the entry that follows it become one `QUEUED` operation, even if the message has more entries later.
    """
    encoders = _ENCODERS
    made: list[Operation] = []
    put: PutMessage | None = None
    for record in records:
        if put is not None:
            if type(record) is Enqueue and record[2] == put[0]:
                (
                    owner,
                    seq,
                    id,
                    qos,
                    size,
                    retain,
                    identifiers,
                    filter,
                    packet_id,
                    released,
                    group,
                ) = record
                message = put[1]
                made.append((
                    batch.QUEUED, owner, seq, id, size, packet_id, released,
                    message.payload, message.received_at, message.expires_at,
                    qos, retain, identifiers, filter, group,
                    message.topic,
                    message.qos + 4 if message.retain else message.qos,
                    _properties(message.properties) if message.properties.values else None,
                    message.sender,
                    message.origin,
                ))  # fmt: skip
                put = None
                continue
            made.append((batch.PUT_MESSAGE, put.id, *message_row(put.message)))
            put = None
        if type(record) is PutMessage:
            put = record
        else:
            made.append(encoders[type(record)](record))
    if put is not None:
        made.append((batch.PUT_MESSAGE, put.id, *message_row(put.message)))
    return made
