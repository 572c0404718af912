"""Parse and build queues' topics and filters: ``$queue/NAME`` and the levels below it."""

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
    """Return a queue's topic followed by `topic`. If the result would be too long, return only the queue's topic."""
    made = f"{PREFIX}{queue}/{topic}"
    if 4 * len(made) > _MAX_BYTES and len(made.encode()) > _MAX_BYTES:
        return PREFIX + queue
    return made


def delivered_topic(filter: str, queue: str, source: str) -> str:
    """Return the topic on which a message is delivered to the subscription `filter`. The topic must match the filter.

    With the filter ``$queue/NAME``, every message is delivered on that topic. With a filter below it, a message
    published to the queue keeps its topic. A captured message gets the queue's topic followed by its own. If the result
    would be too long, the queue's topic is used.
    """
    if filter == PREFIX + queue:
        return PREFIX + queue
    if source.startswith(PREFIX):
        return source
    return below(queue, source)
