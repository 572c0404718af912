"""The path of a message over bridges: a user property that names the brokers it has passed.

A bridge adds one name to each message. Outgoing messages get this broker's name, and incoming messages get the remote
broker's name. The bridge does not send a message to a broker that the message has already passed, and drops a message
that comes back. Bridges therefore cannot form a loop, however many brokers they connect.

MQTT 3.1.1 has no user properties. A bridge that uses it still does not send a message back to the broker it came from,
because this broker keeps the path. But the bridge does not recognize its own messages when they come back.
"""

from typing import Final

PATH: Final = "hookmq-bridge-path"
"""The name of the user property. Its value is ``FIRST,SECOND,LAST``."""
MOST: Final = 32
"""The maximum number of brokers in a path. A message with a longer path is dropped."""

UserProperties = tuple[tuple[str, str], ...]


def path_of(properties: UserProperties) -> tuple[str, ...]:
    """Return the names in the path, oldest first."""
    for name, value in properties:
        if name == PATH:
            return tuple(one for one in value.split(",") if one)
    return ()


def with_hop(properties: UserProperties, broker: str) -> UserProperties:
    """Return the properties with `broker` added to the end of the path, unless it is already there."""
    path = path_of(properties)
    if path and path[-1] == broker:
        return properties
    rest = tuple(one for one in properties if one[0] != PATH)
    return (*rest, (PATH, ",".join((*path, broker))))


def is_loop(properties: UserProperties, *brokers: str) -> bool:
    """Return whether a message has already passed any of these brokers, or too many brokers in total."""
    path = path_of(properties)
    return bool(path) and (len(path) > MOST or any(one in path for one in brokers))
