"""Parse and build the topics and filters of queues: ``$queue/NAME`` and the levels below it."""

from typing import Final

PREFIX: Final = "$queue/"
CONSUMER_GROUP: Final = "consumer-group"
START: Final = "start"
"""The user property of SUBSCRIBE that names a group."""


def queue_of(topic: str) -> str:
    """Return the name of the queue in a topic or filter that starts with ``$queue/``."""
    return topic[len(PREFIX) :].partition("/")[0]


def rest_of(topic: str) -> str:
    """Return the levels after the queue's name, without the leading slash."""
    return topic[len(PREFIX) :].partition("/")[2]


_MAX_BYTES: Final = 65_535
"""Maximum length of a topic in MQTT."""


def below(queue: str, topic: str) -> str:
    """Return a queue's topic followed by `topic`, or only the queue's topic if the result would be too long."""
    made = f"{PREFIX}{queue}/{topic}"
    if 4 * len(made) > _MAX_BYTES and len(made.encode()) > _MAX_BYTES:
        return PREFIX + queue
    return made


def delivered_topic(filter: str, queue: str, source: str) -> str:
    """Return the topic with which a message is delivered to the subscription `filter`. The topic must match the filter.

    For ``$queue/NAME``, every message has that topic. For filters below it, a message published to the queue has its
    own topic, and a captured one has its own topic after the queue's name. If the result is too long, the message has
    the queue's topic.
    """
    if filter == PREFIX + queue:
        return PREFIX + queue
    if source.startswith(PREFIX):
        return source
    return below(queue, source)
