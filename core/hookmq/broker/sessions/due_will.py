"""Publish a due will through the pipeline. If no plugin can decide on the will, it waits and is retried.

due -> decided -> published or dropped
    -> undecided -> retried after 1, 2, 4 ... 60 s, for at most an hour; then dropped
    -> undecided, and its client returns -> retried once more, before the client sends anything
"""

from collections.abc import Callable
from typing import Final

from hookmq.broker.publish.pipeline import PublishPipeline, PublishResult
from hookmq.broker.state import BrokerState
from hookmq.model.events import Action, Direction, DropReason
from hookmq.model.message import Message
from hookmq.model.runtime import Timer
from hookmq.session.session import Session

PATIENCE: Final = 3600.0
"""The longest time in seconds that a will waits for a decision."""
FIRST: Final = 1.0
LONGEST: Final = 60.0
"""Seconds before the first retry, and the longest pause between two retries."""
MAX_WAITING: Final = 10_000
MAX_WAITING_BYTES: Final = 64 << 20
"""How many wills may wait at a time, and how many bytes their topics and payloads may have in total."""


class DueWill:
    """A due will. `forget` is called to record that the will must no longer be published."""

    __slots__ = (
        "_delay", "_due", "_forget", "_message", "_session", "_state", "_until", "_waits",
    )  # fmt: skip

    def __init__(
        self, state: BrokerState, session: Session, message: Message, forget: Callable[[], None]
    ) -> None:
        self._state = state
        self._session = session
        self._message = message
        self._forget = forget
        self._until = state.runtime.now() + PATIENCE
        self._delay = FIRST
        self._due: Timer | None = None
        self._waits = False

    def ask(self, last: bool = False) -> None:
        """Authorize and publish the will as its owner. If no plugin can decide, wait, unless this is the `last`
        attempt."""
        state = self._state
        expires_at = self._message.expires_at
        if self._waits:
            self.stop_waiting()
            if expires_at is not None and expires_at <= state.runtime.time():
                self._forget()
                state.dropped(self._message, self._session.client, DropReason.EXPIRED, Direction.IN)
                state.writes.schedule()
                return
        client = self._session.client
        run = PublishPipeline(
            state,
            state.chains(client.listener),
            self._message,
            self._done,
            client=client,
            sender=self._session,  # for no-local, and for observers as the publisher
            action=Action.WILL,
        )
        run.before = self._forget
        run.patient = (
            not last and state.runtime.now() < self._until and has_room(state, self._message)
        )
        run.start()

    def stop_waiting(self) -> None:
        """Stop a will that waits for a decision."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._waits = False
        state = self._state
        state.undecided_will_bytes -= size_of(self._message)
        client_id = self._session.client_id
        left = tuple(one for one in state.undecided_wills.pop(client_id) if one is not self)
        if left:
            state.undecided_wills[client_id] = left

    def _done(self, result: PublishResult) -> None:
        state = self._state
        if result.undecided:
            known = state.sessions.get(self._session.client_id)
            if known is not None and known.connection is not None:
                self.ask(True)  # the client returned meanwhile
            else:
                self._wait(result)
            return
        if result.matched < 0:
            self._forget()
        else:
            state.runtime.log(
                "debug",
                "will.published",
                client_id=self._session.client_id,
                topic=self._message.topic,
                matched=result.matched,
            )
        state.writes.schedule()

    def _wait(self, result: PublishResult) -> None:
        state = self._state
        client_id = self._session.client_id
        if self._delay == FIRST:
            state.runtime.log(
                "info",
                "will.undecided",
                client_id=client_id,
                topic=self._message.topic,
                plugin=result.by,
                reason=result.reason or None,
            )
        self._waits = True
        state.undecided_wills[client_id] = (*state.undecided_wills.get(client_id, ()), self)
        state.undecided_will_bytes += size_of(self._message)
        self._due = state.deadlines.after(self._delay, self.ask)
        self._delay = min(self._delay * 2, LONGEST)


def size_of(message: Message) -> int:
    """Return the number of bytes to count for a waiting will."""
    return len(message.topic) + len(message.payload)


def has_room(state: BrokerState, message: Message) -> bool:
    """Return whether there is room for another waiting will."""
    return (
        len(state.undecided_wills) < MAX_WAITING
        and state.undecided_will_bytes + size_of(message) <= MAX_WAITING_BYTES
    )


def ask_now(state: BrokerState, client_id: str) -> None:
    """Retry the client's waiting wills one last time. The client is online again, and its wills must precede its new
    messages."""
    for will in state.undecided_wills.get(client_id, ()):
        will.ask(True)
