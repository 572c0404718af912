"""Call `on_publish` on the fast path. If a plugin does more than read the message, pass the message to the pipeline."""

from typing import Final, cast

from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.broker.handlers.publish import continue_publish
from hookmq.hooks.inline import Answered, ask
from hookmq.model.message import Message
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.routing.route import CachedPublish
from hookmq.session.session import Session

# Compiled code reads a module's own constants directly, and imported ones by name.
_ANSWERED: Final = Answered
_EMPTY: Final = EMPTY
_OPEN: Final = Phase.OPEN
_ask: Final = ask


def passed(
    connection: ClientConnection,
    cached: CachedPublish,
    session: Session,
    payload: bytes,
    qos: int,
    properties: Properties,
    number: int,
) -> Message | None:
    """Create the message and call `on_publish`. Return the message if every plugin abstained and changed nothing that the
    fast path relies on. Otherwise, pass the message to the pipeline.
    """
    state = connection.state
    route = cached.route
    chains = connection.chains
    kept = state.plugin_states.changes
    now = state.arrival()
    interval = None if properties is _EMPTY else properties.message_expiry_interval
    found: object = _ask(
        cached.calls,
        session.client,
        route.topic,
        payload,
        qos,
        properties,
        now,
        None if interval is None else now + interval,
    )
    if type(found) is not _ANSWERED:
        message = cast("Message", found)
        if (
            route.valid
            and kept
            == state.plugin_states.changes  # otherwise the acknowledgement waits for the commit
            and connection.phase is _OPEN
            and not (route.bounded and state.parking.without_room(route.bounded))
            and not (route.large and state.collecting is not None)
        ):
            return message
        answered = Answered(message)
    else:
        answered = found
    state.work += 1
    continue_publish(connection, chains, session, answered.message, number, answered, kept)
    return None
