"""Empty a session's queue on request, in memory and in the store, a slice per turn.

Messages in flight are left alone. Messages that arrive in the meantime are kept, and wait until the purge ends.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from hookmq.broker.delivery.completion import complete
from hookmq.broker.delivery.deliver import pause, unpause
from hookmq.broker.delivery.queue import account_dequeued, load_page
from hookmq.broker.state import BrokerState
from hookmq.model.events import Direction, DropReason
from hookmq.session.inflight import Delivery
from hookmq.session.session import Session

SLICE: Final = 256
"""Messages to drop in one turn."""


class Purge:
    """A purge of one session's queue. `by` is the id of the plugin that asked for it. `done` is called with the number
    of dropped messages once the drops are committed, or once the session has ended. `failed` is called instead after
    an internal error, which ends the purge.
    """

    __slots__ = (
        "_by", "_count", "_done", "_failed", "_holds", "_last", "_left", "_left_qos0", "_session", "_state", "_waits",
    )  # fmt: skip

    def __init__(
        self,
        state: BrokerState,
        session: Session,
        by: str,
        done: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._state = state
        self._session = session
        self._by = by
        self._done = done
        self._failed = failed
        self._count = 0
        self._left_qos0 = len(session.queue_qos0 or ())
        self._left = session.queued
        self._last = session.last_seq
        """The sequence number of the last stored queue entry to drop."""
        self._waits = False
        self._holds = False
        """Whether this purge is holding back the queue."""

    def run(self) -> None:
        """Start the purge. Until it ends, nothing is sent from the queue."""
        pause(self._session)
        self._holds = True
        self._slice()

    @property
    def _ended(self) -> bool:
        return self._state.sessions.get(self._session.client_id) is not self._session

    def _slice(self) -> None:
        """Drop one turn's share of the messages. After an error, resume sending from the queue."""
        try:
            self._drop_some()
        except Exception as error:
            self._failed(error)
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Resume sending from the queue, unless the session has ended."""
        held, self._holds = self._holds, False
        if held and not self._ended:
            unpause(self._state, self._session)

    def _drop_some(self) -> None:
        """Drop messages until none are left, a page must be read, or the turn's share of work is used up."""
        state, session = self._state, self._session
        left = SLICE
        while not self._ended:
            if not left:
                state.runtime.call_soon(partial(state.guarded, self._slice))
                state.writes.schedule()
                return
            left -= 1
            if self._drop_next():
                continue
            if session.queue or not session.stored or not self._left:
                break
            if not self._read_page():
                return
        self._let_go()
        state.committer.after_commit(partial(self._done, self._count))
        state.writes.schedule()

    def _drop_next(self) -> bool:
        """Drop the next message in memory. Return False if there is none."""
        session = self._session
        waiting = session.queue_qos0
        if self._left_qos0 and waiting:
            self._left_qos0 -= 1
            self._drop(waiting.popleft(), counted=False)
            if not waiting:
                session.queue_qos0 = None
            return True
        queue = session.queue
        if not self._left or not queue or queue[0].seq > self._last:
            return False
        self._left -= 1
        self._drop(queue.popleft(), counted=True)
        return True

    def _drop(self, delivery: Delivery, counted: bool) -> None:
        state, session = self._state, self._session
        account_dequeued(state, session, delivery, counted)
        complete(state, session, delivery)
        message = delivery.outgoing.message
        state.dropped(message, session.client, DropReason.PLUGIN, Direction.OUT, self._by)
        self._count += 1

    def _read_page(self) -> bool:
        """Read the next page of the queue. Return False if that takes time; the purge then continues later."""
        session = self._session
        if not session.loading:
            before = session.stored
            load_page(self._state, session, self._go_on)
            if session.queue or session.stored < before:
                return True
        self._waits = True
        others = session.on_page
        session.on_page = self._go_on if others is None else partial(_both, others, self._go_on)
        return False

    def _go_on(self, state: BrokerState, session: Session) -> None:
        if self._waits:
            self._waits = False
            self._slice()


def _both(
    first: Callable[[BrokerState, Session], None],
    second: Callable[[BrokerState, Session], None],
    state: BrokerState,
    session: Session,
) -> None:
    """Call both functions, which were waiting for the same page."""
    first(state, session)
    second(state, session)
