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
        return _encode_own(core, session, delivery, topic, remaining)
    key = (five, delivery.qos, delivery.retain, delivery.identifiers, remaining)
    forms = outgoing.forms
    if forms is None:
        forms = outgoing.forms = {}
    form = forms.get(key)
    if form is None:
        if len(forms) >= (outgoing.most if type(outgoing) is Kept else FORMS):
            forms.clear()
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
    core: Core, session: Session, delivery: Delivery, topic: str, remaining: int
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
    if connection is not None and connection.alias_maximum and not held_back:
        # What waits for a commit might leave after a packet that relies on the alias it gives.
        alias, name = _alias(core, connection.aliases, connection.alias_maximum, topic)
    properties = _properties(message, delivery.identifiers, remaining, alias)
    return encode_publish_parts(
        name.encode(), message.payload, delivery.qos, delivery.retain, False, properties
    )


def _alias(core: Core, aliases: dict[str, int] | None, maximum: int, topic: str) -> tuple[int, str]:
    """The alias and the topic name to send: an alias is given to a topic the second time it is sent, since one that is
    sent once would only cost bytes [MQTT-3.1.2-26, 3.3.2-8, 3.3.2-11]."""
    if aliases is None:
        return 0, topic
    known = aliases.get(topic)
    if known:
        return known, ""
    if known is None:
        if len(aliases) < 4 * maximum:
            aliases[topic] = 0  # seen once
        return 0, topic
    used = aliases.get("", 0)
    if used >= maximum:
        return 0, topic
    aliases[""] = used + 1  # the empty topic cannot be sent, so its place counts the aliases given
    aliases[topic] = used + 1
    return used + 1, topic


def take_back_alias(session: Session, message: Message) -> None:
    """The packet just made for `message` is not sent after all: an alias that it was to give stands for nothing."""
    connection = session.connection
    aliases = connection.aliases if connection is not None else None
    if not aliases:
        return
    topic = message.topic.removeprefix(session.client.scope.mount_point)
    given = aliases.get(topic)
    if given:
        aliases[topic] = 0
        if given == aliases[""]:
            aliases[""] = given - 1


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
