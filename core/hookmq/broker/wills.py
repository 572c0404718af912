"""A will that is due, on its way through the pipeline. If no plugin can decide about it, it waits and asks again.

due -> decided -> published or dropped
    -> undecided -> asked again after 1, 2, 4 ... 60 s, for an hour at most; then dropped
    -> undecided, and its client returns -> asked a last time, before anything of the client
"""

from collections.abc import Callable
from typing import Final

from hookmq.broker.core import Core
from hookmq.broker.ingest import Ingest, Outcome
from hookmq.session import Due, Session
from hookmq.types import Action, Direction, DropReason, Message

PATIENCE: Final = 3600.0
"""Seconds that a will waits for a decision."""
FIRST: Final = 1.0
LONGEST: Final = 60.0
"""Seconds until a will is asked about again: the first time and at most."""
MAX_WAITING: Final = 10_000
MAX_WAITING_BYTES: Final = 64 << 20
"""Wills that wait at the same time, and their topics and payloads."""


class DueWill:
    """One will whose time has come. `forget` records that it is no longer to be published."""

    __slots__ = (
        "_core", "_delay", "_due", "_forget", "_message", "_session", "_until", "_waits",
    )  # fmt: skip

    def __init__(
        self, core: Core, session: Session, message: Message, forget: Callable[[], None]
    ) -> None:
        self._core = core
        self._session = session
        self._message = message
        self._forget = forget
        self._until = core.runtime.now() + PATIENCE
        self._delay = FIRST
        self._due: Due | None = None
        self._waits = False

    def ask(self, last: bool = False) -> None:
        """Authorize it as its owner and hand it on. If nobody can decide, it waits unless this is the `last` time."""
        core = self._core
        expires_at = self._message.expires_at
        if self._waits:
            self._leave()
            if expires_at is not None and expires_at <= core.runtime.time():
                self._forget()
                core.dropped(self._message, self._session.client, DropReason.EXPIRED, Direction.IN)
                core.schedule()
                return
        client = self._session.client
        run = Ingest(
            core,
            core.chains(client.listener),
            self._message,
            self._done,
            client=client,
            sender=self._session,  # no-local holds, and observers are told whose it is
            action=Action.WILL,
        )
        run.before = self._forget
        run.patient = (
            not last and core.runtime.now() < self._until and has_room(core, self._message)
        )
        run.run()

    def _leave(self) -> None:
        """Wait no more."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._waits = False
        core = self._core
        core.undecided_will_bytes -= size_of(self._message)
        client_id = self._session.client_id
        left = tuple(one for one in core.undecided_wills.pop(client_id) if one is not self)
        if left:
            core.undecided_wills[client_id] = left

    def _done(self, outcome: Outcome) -> None:
        core = self._core
        if outcome.undecided:
            known = core.sessions.get(self._session.client_id)
            if known is not None and known.connection is not None:
                self.ask(True)  # the client came back meanwhile
            else:
                self._wait(outcome)
            return
        if outcome.matched < 0:
            self._forget()
        core.runtime.log(
            "debug",
            "will.published",
            client_id=self._session.client_id,
            topic=self._message.topic,
            matched=outcome.matched,
        )
        core.schedule()

    def _wait(self, outcome: Outcome) -> None:
        core = self._core
        client_id = self._session.client_id
        if self._delay == FIRST:
            core.runtime.log(
                "info",
                "will.undecided",
                client_id=client_id,
                topic=self._message.topic,
                plugin=outcome.by,
                reason=outcome.reason or None,
            )
        self._waits = True
        core.undecided_wills[client_id] = (*core.undecided_wills.get(client_id, ()), self)
        core.undecided_will_bytes += size_of(self._message)
        self._due = core.deadlines.after(self._delay, self.ask)
        self._delay = min(self._delay * 2, LONGEST)


def size_of(message: Message) -> int:
    """What a will that waits is counted as, in bytes."""
    return len(message.topic) + len(message.payload)


def has_room(core: Core, message: Message) -> bool:
    """Whether one more will may wait."""
    return (
        len(core.undecided_wills) < MAX_WAITING
        and core.undecided_will_bytes + size_of(message) <= MAX_WAITING_BYTES
    )


def ask_now(core: Core, client_id: str) -> None:
    """The client is back: ask a last time about its wills that wait, ahead of what it sends now."""
    for will in core.undecided_wills.get(client_id, ()):
        will.ask(True)
