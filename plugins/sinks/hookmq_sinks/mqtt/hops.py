"""The path of a message over bridges: a user property with the names of the brokers that it has left.

A bridge adds the name of its broker to each message that it sends, and drops a message that it receives if the path
contains that name. Any number of bridges between any brokers thus make no loop. MQTT 3.1.1 has no user properties, so
a bridge with MQTT 3.1.1 neither sees nor passes on the path.
"""

from typing import Final

PATH: Final = "hookmq-bridge-path"
"""The name of the user property. Its value is ``FIRST,SECOND,LAST``."""
MOST: Final = 32
"""The largest number of brokers in a path. A message with a longer path is dropped."""

UserProperties = tuple[tuple[str, str], ...]


def path_of(properties: UserProperties) -> tuple[str, ...]:
    """Return the names in the path, the oldest first."""
    for name, value in properties:
        if name == PATH:
            return tuple(one for one in value.split(",") if one)
    return ()


def with_hop(properties: UserProperties, broker: str) -> UserProperties:
    """Return the properties with `broker` at the end of the path, unless it is there already."""
    path = path_of(properties)
    if path and path[-1] == broker:
        return properties
    rest = tuple(one for one in properties if one[0] != PATH)
    return (*rest, (PATH, ",".join((*path, broker))))


def is_loop(properties: UserProperties, broker: str) -> bool:
    """Return whether a message that arrives at `broker` has been there before, or has come too far."""
    path = path_of(properties)
    return broker in path or len(path) > MOST
