"""`on_published` events that wait until the packets of their turn have been written.

Publishers' acknowledgements do not wait for the `Message` objects that observers need. If no hook has seen a message
yet, its object is created only when observers are notified.
"""

from collections.abc import Iterable
from typing import Final

from hookmq.model.client import ClientInfo
from hookmq.model.message import Message, make_message
from hookmq.model.runtime import Runtime
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.routing.route import Route

# Compiled code reads a module's own constants directly, and imported ones by name.
_EMPTY: Final = EMPTY

PublishedEvent = tuple[ClientInfo, Route, bytes, int, Properties, Message | None]
"""An event: publisher, route, payload, QoS, properties, and the message if it already exists."""


def client_message(
    now: float,
    client: ClientInfo,
    topic: str,
    payload: bytes,
    qos: int,
    properties: Properties,
) -> Message:
    """Return the message for a PUBLISH without RETAIN that arrived from `client` at `now`."""
    interval = None if properties is _EMPTY else properties.message_expiry_interval
    return make_message(
        topic,
        payload,
        qos,
        False,
        properties,
        client.client_id,
        "client",
        now,
        None if interval is None else now + interval,
    )


def arguments(
    runtime: Runtime, events: Iterable[PublishedEvent]
) -> list[tuple[ClientInfo | None, Message, int]]:
    """Return the arguments of `on_published` for each event. If the message does not exist yet, the current time
    becomes its time of arrival.
    """
    now = runtime.time()
    found: list[tuple[ClientInfo | None, Message, int]] = []
    for client, route, payload, qos, properties, message in events:
        if message is None:
            if properties is _EMPTY:
                message = make_message(
                    route.topic, payload, qos, False, _EMPTY, client.client_id, "client", now, None
                )
            else:
                message = client_message(now, client, route.topic, payload, qos, properties)
        found.append((client, message, route.matched))
    return found
