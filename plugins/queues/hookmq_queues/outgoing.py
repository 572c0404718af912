"""Convert a queue's messages to the messages that consumers get. These have properties that only the broker may set."""

from typing import Final

from hookmq.mqtt_api import EMPTY
from hookmq.plugin import Message
from hookmq.storage_api import make_message

from hookmq_queues.topics import PREFIX, below, delivered_topic

MESSAGE_ID: Final = "message-id"
GROUP: Final = "group"
OFFSET: Final = "offset"
DELIVERY_COUNT: Final = "delivery-count"
SOURCE_TOPIC: Final = "source-topic"
FOR_GROUP: Final = "redrive-group"
"""The user property that names the only group for a redriven dead letter. Other groups do not get the message again."""
SETTLE: Final = "settle"
RESERVED: Final = frozenset(
    {MESSAGE_ID, GROUP, OFFSET, DELIVERY_COUNT, SOURCE_TOPIC, FOR_GROUP, SETTLE}
)
"""The user properties that the plugin sets. A publisher's own are removed."""
DEAD: Final = "dead-letter-"
"""Prefix of the user properties of dead letters. A client's own are removed."""
_FORMS: Final = 1024
"""Maximum number of encoded forms to keep."""
_LONG: Final = 256
"""Maximum length of a source topic whose encoded form is kept. A publisher could otherwise fill the memory."""


class UserProperties:
    """Encodes the user properties that one group's consumers get. For most messages, only two of these differ from the
    message before.
    """

    def __init__(self, queue: str, group: str, explicit: bool) -> None:
        self._queue = queue
        self._group = group
        self._settle = _pair(SETTLE, b"explicit") if explicit else b""
        self._forms: dict[tuple[str, int, int], tuple[bytes, bytes, bytes]] = {}
        """The bytes around the two offsets, by source topic, number of digits and delivery count."""

    def encode(self, offset: int, count: int, source: str) -> bytes:
        """Return the properties for the `count`-th delivery of a message from the topic `source`."""
        digits = b"%d" % offset
        form = self._forms.get((source, len(digits), count))
        if form is None:
            form = self._form(source, len(digits), count)
        return form[0] + digits + form[1] + digits + form[2]

    def _form(self, source: str, size: int, count: int) -> tuple[bytes, bytes, bytes]:
        if len(self._forms) >= _FORMS:
            self._forms.clear()
        prefix = self._queue.encode() + b":"
        form = (
            _pair(MESSAGE_ID, prefix, size),
            _pair(GROUP, self._group.encode()) + _pair(OFFSET, b"", size),
            _pair(DELIVERY_COUNT, b"%d" % count)
            + _pair(SOURCE_TOPIC, source.encode())
            + self._settle,
        )
        if len(source) <= _LONG:
            self._forms[source, size, count] = form
        return form


def _pair(name: str, value: bytes, more: int = 0) -> bytes:
    """Return an encoded user property. Its value consists of `value` and `more` bytes to be added."""
    key = name.encode()
    size = len(value) + more
    return b"\x26" + len(key).to_bytes(2, "big") + key + size.to_bytes(2, "big") + value


def outgoing(message: Message, queue: str, topic_filter: str, own: str) -> Message:
    """Return a message in the form that is sent to the subscription `topic_filter`. The properties of `UserProperties`
    are not included. `own` is the origin of dead letters.
    """
    topic = delivered_topic(topic_filter, queue, message.topic)
    properties = message.properties
    if properties is not EMPTY and properties.user_property:
        trusted = (
            message.origin == own
        )  # another plugin, such as a bridge, passes on what strangers send
        kept = tuple(
            one
            for one in properties.user_property
            if one[0] not in RESERVED and (trusted or not one[0].startswith(DEAD))
        )
        if len(kept) < len(properties.user_property):
            properties = properties.replace(user_property=kept)
    if topic == message.topic and properties is message.properties:
        return message
    return make_message(
        topic,
        message.payload,
        1,
        False,
        properties,
        message.sender,
        message.origin,
        message.received_at,
        message.expires_at,
    )


def dead_letter(
    message: Message,
    target: str,
    queue: str,
    group: str,
    offset: int,
    count: int,
    reason: str,
    now: float,
    plugin: str,
    description: str = "",
) -> Message:
    """Return a message in the form that is stored in the dead-letter queue `target`. It does not expire."""
    own: tuple[tuple[str, str], ...] = (
        (DEAD + "queue", queue),
        (DEAD + "group", group),
        (DEAD + "id", f"{queue}:{offset}"),
        (DEAD + "topic", message.topic),
        (DEAD + "reason", reason),
        (DEAD + "count", str(count)),
        (DEAD + "time", f"{now:.3f}"),
    )
    if description:
        own = (*own, (DEAD + "description", description))
    # Those of `FOR_GROUP` would hide it from the groups of `target`.
    kept = tuple(
        one for one in message.user_property if not one[0].startswith(DEAD) and one[0] != FOR_GROUP
    )
    return make_message(
        below(target, delivered_topic("/#", queue, message.topic)[len(PREFIX) :]),
        message.payload,
        message.qos,
        False,
        message.properties.replace(user_property=(*kept, *own), message_expiry_interval=None),
        message.sender,
        f"plugin:{plugin}",
        now,
        None,
    )


def revived(message: Message, topic: str, group: str, now: float, origin: str) -> Message:
    """Turn a dead letter back into the message that was published to `topic`. If `group` is not empty, the message is
    only for that group.
    """
    kept = tuple(
        one for one in message.user_property if not one[0].startswith(DEAD) and one[0] != FOR_GROUP
    )
    own = ((FOR_GROUP, group),) if group else ()
    return make_message(
        topic,
        message.payload,
        message.qos,
        False,
        message.properties.replace(user_property=(*kept, *own)),
        message.sender,
        origin,
        now,
        None,
    )


def is_for(message: Message, group: str) -> bool:
    """Return whether a message that this plugin added is meant for a group."""
    return all(name != FOR_GROUP or value == group for name, value in message.user_property)
