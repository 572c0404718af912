"""Call `on_publish` on the fast path. If a plugin does more than read the message, pass the message to the pipeline."""

from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.broker.handlers.publish import continue_publish
from hookmq.hooks.inline import Answered, ask
from hookmq.model.message import Message
from hookmq.routing.route import CachedPublish
from hookmq.session.session import Session


def passed(
    connection: ClientConnection,
    cached: CachedPublish,
    session: Session,
    message: Message,
    number: int,
) -> bool:
    """Call `on_publish`. Return whether every plugin abstained and changed nothing that the fast
    path relies on. If not, the message has been passed to the pipeline.
    """
    state = connection.state
    route = cached.route
    chains = connection.chains
    kept = state.plugin_states.changes
    answered = ask(cached.calls, session.client, message)
    if answered is None:
        if (
            route.valid
            and kept
            == state.plugin_states.changes  # otherwise the acknowledgement waits for the commit
            and connection.phase is Phase.OPEN
            and not (route.bounded and state.parking.without_room(route.bounded))
            and not (route.large and state.collecting is not None)
        ):
            return True
        answered = Answered()
    state.work += 1
    continue_publish(connection, chains, session, message, number, answered, kept)
    return False
