"""The bytes of an outgoing PUBLISH: encoded once for all who take the same form; a topic alias or a mount point make a
form of one's own.
"""

from math import ceil
from typing import Final

from hookmq.broker.core import Core
from hookmq.broker.expiries import FORMS, Kept
from hookmq.codec import encode_properties, encode_publish_parts
from hookmq.properties import EMPTY
from hookmq.qos import Delivery
from hookmq.session import Session
from hookmq.types import Message

_LONGEST: Final = 0xFFFFFFFF
"""Seconds: the largest Message Expiry Interval."""


def form_of(core: Core, session: Session, delivery: Delivery) -> tuple[bytes, bytes]:
    """(head, tail) of the PUBLISH for this client; the packet id, if any, goes between. Encoded once for all who take
    the same form; a topic alias or a mount point make a form of one's own."""
    outgoing = delivery.outgoing
    message = outgoing.message
    client = session.client
    connection = session.connection
    five = client.version == 5
    remaining = -1
    if five and message.expires_at is not None:
        # [MQTT-3.3.2-6]: what is left of the interval, rounded up; never more than came, even if the clock was set back
        interval = message.properties.message_expiry_interval
        most = _LONGEST if interval is None else interval
        remaining = min(max(0, ceil(message.expires_at - core.runtime.time())), most)
    mount = client.scope.mount_point
    if mount or (five and connection is not None and connection.alias_maximum):
        topic = message.topic.removeprefix(mount)
        core.work += len(delivery.identifiers) >> 3
        return _encode_own(session, delivery, topic, remaining)
    key = (five, delivery.qos, delivery.retain, delivery.identifiers, remaining)
    forms = outgoing.forms
    if forms is None:
        forms = outgoing.forms = {}
    form = forms.get(key)
    if form is None:
        if forms and len(forms) >= (outgoing.most if type(outgoing) is Kept else FORMS):
            forms.clear()
        if delivery.identifiers:
            core.work += len(delivery.identifiers) >> 3
        properties = _properties(message, delivery.identifiers, remaining) if five else None
        form = forms[key] = encode_publish_parts(
            message.topic.encode(),
            message.payload,
            delivery.qos,
            delivery.retain,
            False,  # DUP is of one hop [MQTT-3.3.1-3, 4.3.2-2, 4.3.3-2] [MQTT311-3.3.1-3]
            properties,
        )
    return form


def _encode_own(
    session: Session, delivery: Delivery, topic: str, remaining: int
) -> tuple[bytes, bytes]:
    message = delivery.outgoing.message
    connection = session.connection
    if session.client.version < 5:
        return encode_publish_parts(
            topic.encode(), message.payload, delivery.qos, delivery.retain, False, None
        )
    alias = 0
    name = topic
    held_back = delivery.qos == 2 and session.durable
    if connection is not None and connection.aliases is not None and not held_back:
        # What waits for a commit might leave after a packet that relies on the alias it gives.
        alias, name = connection.aliases.name(topic)
    properties = _properties(message, delivery.identifiers, remaining, alias)
    return encode_publish_parts(
        name.encode(), message.payload, delivery.qos, delivery.retain, False, properties
    )


def take_back_alias(session: Session, message: Message) -> None:
    """The packet just made for `message` is not sent after all: an alias that it was to give stands for nothing."""
    connection = session.connection
    aliases = connection.aliases if connection is not None else None
    if aliases is not None:
        aliases.take_back(message.topic.removeprefix(session.client.scope.mount_point))


def _properties(
    message: Message, identifiers: tuple[int, ...], remaining: int, alias: int = 0
) -> bytes:
    """The encoded property section of an outgoing PUBLISH: the publisher's, less the hop's own, plus ours
    [MQTT-3.3.2-4, 3.3.2-15 to 20, 3.3.4-3]."""
    values = message.properties
    if not identifiers and remaining < 0 and not alias:
        return encode_properties(values) if values is not EMPTY else b"\0"
    changes: dict[str, object] = {}
    if identifiers:
        changes["subscription_identifier"] = identifiers
    if remaining >= 0:
        changes["message_expiry_interval"] = remaining
    if alias:
        changes["topic_alias"] = alias
    return encode_properties(values.replace(**changes))
