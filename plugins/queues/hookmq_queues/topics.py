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


def delivered_topic(filter: str, queue: str, source: str) -> str:
    """Return the topic with which a message goes to the subscription `filter`, which the topic must match.

    To ``$queue/NAME``, every message has that topic. To filters below it, a message that was published to the queue has
    its own topic, and a captured one has its own topic after the queue's name.
    """
    if filter == PREFIX + queue:
        return PREFIX + queue
    if source.startswith(PREFIX):
        return source
    return f"{PREFIX}{queue}/{source}"
