"""Pause deliveries to a client while its rate limit does not permit them."""

from functools import partial

from hookmq.broker.connection_state import ConnectionState
from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.delivery.transmit import update_write_state
from hookmq.hooks.rate_limit import RateLimiter


def use_rate_limiter(connection: ConnectionState, rate_limiter: RateLimiter | None) -> None:
    """Use `rate_limiter` as the rate limit from now on. A PUBLISH that is already waiting keeps waiting for the
    previous limit.
    """
    connection.rate_limiter = rate_limiter
    connection.delivery_limit = rate_limiter.delivery_limit if rate_limiter is not None else None
    delivery_wait, connection.delivery_wait = connection.delivery_wait, None
    if delivery_wait is not None:
        delivery_wait()
        _go_on_sending(connection)


def pause_sending(connection: ConnectionState) -> None:
    """Queue messages until the rate limit permits the next one, then drain the queue."""
    session = connection.session
    delivery_limit = connection.delivery_limit
    if connection.delivery_wait is None and session is not None and delivery_limit is not None:
        session.paused += 1
        update_write_state(session)
        connection.delivery_wait = delivery_limit.wait(
            partial(connection.state.guarded, partial(_go_on_sending, connection))
        )


def _go_on_sending(connection: ConnectionState) -> None:
    connection.delivery_wait = None
    session = connection.session
    if session is None:
        return
    session.paused -= 1
    if not session.paused:
        update_write_state(session)
        drain_queue(connection.state, session)
        connection.state.writes.schedule()
