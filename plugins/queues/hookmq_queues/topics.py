"""The topics and filters of queues: ``$queue/NAME`` and what follows."""

from typing import Final

PREFIX: Final = "$queue/"
CONSUMER_GROUP: Final = "consumer-group"
START: Final = "start"
"""The user property of SUBSCRIBE that names a group."""


def queue_of(topic: str) -> str:
    """Return the name of the queue in a topic or filter that starts with ``$queue/``."""
    return topic[len(PREFIX) :].partition("/")[0]


def rest_of(topic: str) -> str:
    """Return what follows the name of the queue, without its slash."""
    return topic[len(PREFIX) :].partition("/")[2]


_MAX_BYTES: Final = 65_535
"""Maximum length of a topic in MQTT."""


def below(queue: str, topic: str) -> str:
    """Return the topic of a queue that ends with `topic`, or the queue's own topic if that is too long."""
    made = f"{PREFIX}{queue}/{topic}"
    if 4 * len(made) > _MAX_BYTES and len(made.encode()) > _MAX_BYTES:
        return PREFIX + queue
    return made


def delivered_topic(filter: str, queue: str, source: str) -> str:
    """Return the topic with which a message goes to the subscription `filter`, which the topic must match.

    For ``$queue/NAME``, every message has that topic. For filters below it, a message published to the queue has its
    own topic, and a captured one has its own topic after the queue's name. If that is too long, the message has the
    queue's topic.
    """
    if filter == PREFIX + queue:
        return PREFIX + queue
    if source.startswith(PREFIX):
        return source
    return below(queue, source)
