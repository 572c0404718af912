"""May a retained message still be sent, now that the rights of its publisher may have changed?

A right that was taken away must not outlive itself in what was retained with it. The answer is kept with the message
until rights may have changed, so that `authorize` is asked once for each message and not once for each subscriber.
"""

from math import inf
from typing import Final

from hookmq.broker.authorizer import authorize
from hookmq.broker.core import Core
from hookmq.broker.deliver import pump
from hookmq.broker.expiries import Kept
from hookmq.broker.publishers import Publisher
from hookmq.hooks.chains import cacheable, narrow
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.session import Session
from hookmq.types import Action, Direction, DropReason

_HOLDS: Final = 1.0
"""Seconds for which an answer that was awaited holds, even if it is not to be remembered: for those who waited."""


def may_be_sent(core: Core, kept: Kept, session: Session) -> bool | None:
    """Return whether `kept` may go to `session`; None if a plugin has still to answer, after which `session` is pumped.

    A denied message is dropped for this receiver and stays retained. "Could not decide" denies, and is asked again.
    """
    publisher = kept.publisher
    if publisher is None or not core.settings.broker.check_retain_source:
        return True
    if kept.asking is not None:
        if session not in kept.asking:
            kept.asking.append(session)
        return None
    rights = core.publishers.rights + publisher.rights
    if kept.until == inf or core.runtime.now() < kept.until:
        if kept.rights == rights:
            return True
        if kept.rights == -rights:
            _deny(core, kept, session)
            return False
    return _ask(core, kept, publisher, session, rights)


def _ask(
    core: Core, kept: Kept, publisher: Publisher, session: Session, rights: int
) -> bool | None:
    message = kept.message
    client = publisher.client
    action = Action.WILL if message.origin == "will" else Action.PUBLISH
    chains = core.chains(client.listener)
    remembered = cacheable(narrow(chains.authorize[action], message.topic))
    answers: list[bool] = []

    def decided(verdict: Allow | Deny, by: str) -> None:
        allowed = isinstance(verdict, Allow) and (
            verdict.max_qos is None or message.qos <= verdict.max_qos
        )
        if not allowed:
            core.denied(
                client,
                action,
                message.topic,
                verdict.code if isinstance(verdict, Deny) else Deny().code,
                by,
            )
        holds = verdict.cache_for
        if not remembered or (isinstance(verdict, Deny) and not verdict.decided):
            holds = 0.0
        waiting, kept.asking = kept.asking, None
        if waiting is not None and holds is not None:
            holds = max(holds, _HOLDS)
        kept.rights = 0 if holds == 0 else rights if allowed else -rights
        kept.until = inf if holds is None else core.runtime.now() + holds
        answers.append(allowed)
        for other in waiting or ():
            pump(core, other)
        if waiting:
            core.schedule()

    authorize(
        core, client, chains, None, action, message.topic, message.qos, True, message, None, decided
    )
    if answers:
        if not answers[0]:
            _deny(core, kept, session)
        return answers[0]
    kept.asking = [session]
    return None


def _deny(core: Core, kept: Kept, session: Session) -> None:
    core.dropped(kept.message, session.client, DropReason.DENIED, Direction.OUT, "publisher")
