"""The messages that consumers get: those of the queue, with the properties that only the broker may set."""

from typing import Final

from hookmq.mqtt_api import EMPTY, Properties
from hookmq.plugin import Message
from hookmq.storage_api import make_message

from hookmq_queues.consumers import Consumer
from hookmq_queues.topics import PREFIX, delivered_topic

MESSAGE_ID: Final = "message-id"
GROUP: Final = "group"
OFFSET: Final = "offset"
DELIVERY_COUNT: Final = "delivery-count"
SOURCE_TOPIC: Final = "source-topic"
RESERVED: Final = frozenset({MESSAGE_ID, GROUP, OFFSET, DELIVERY_COUNT, SOURCE_TOPIC})
"""The user properties that the plugin sets. Those of publishers are removed."""
DEAD: Final = "dead-letter-"
"""Prefix of the user properties of dead letters. Those of clients are removed."""


def outgoing(
    message: Message, queue: str, group: str, offset: int, count: int, consumer: Consumer
) -> Message:
    """Return the message of the queue as it is sent to a consumer for the `count`-th time."""
    properties = message.properties
    if consumer.with_properties:
        own = (
            (MESSAGE_ID, f"{queue}:{offset}"),
            (GROUP, group),
            (OFFSET, str(offset)),
            (DELIVERY_COUNT, str(count)),
            (SOURCE_TOPIC, message.topic),
        )
        if properties is EMPTY:
            properties = Properties(user_property=own)
        else:
            trusted = message.origin.startswith("plugin:")
            kept = tuple(
                one
                for one in properties.user_property or ()
                if one[0] not in RESERVED and (trusted or not one[0].startswith(DEAD))
            )
            properties = properties.replace(user_property=(*kept, *own))
    return make_message(
        delivered_topic(consumer.topic_filter, queue, message.topic),
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
) -> Message:
    """Return the message as it is stored in the queue `target` for dead letters. It does not expire."""
    own = (
        (DEAD + "queue", queue),
        (DEAD + "group", group),
        (DEAD + "id", f"{queue}:{offset}"),
        (DEAD + "topic", message.topic),
        (DEAD + "reason", reason),
        (DEAD + "count", str(count)),
        (DEAD + "time", f"{now:.3f}"),
    )
    kept = tuple(one for one in message.user_property if not one[0].startswith(DEAD))
    return make_message(
        f"{PREFIX}{target}/{delivered_topic('/#', queue, message.topic)[len(PREFIX) :]}",
        message.payload,
        message.qos,
        False,
        message.properties.replace(user_property=(*kept, *own), message_expiry_interval=None),
        message.sender,
        f"plugin:{plugin}",
        now,
        None,
    )
