"""Check whether a retained message may still be sent after its publisher's permissions may have changed.

A message must not outlive the permission it was retained with. The verdict is cached with the message until
permissions may have changed. `authorize` is therefore called once per message, not once per subscriber.
"""

from math import inf
from typing import Final

from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.publish.authorize import authorize
from hookmq.broker.publishers import Publisher
from hookmq.broker.retained_expiry import Kept
from hookmq.broker.state import BrokerState
from hookmq.hooks.chain import cacheable, narrow
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.events import Action, Direction, DropReason
from hookmq.session.session import Session

_HOLDS: Final = 1.0
"""How long a verdict applies to the sessions that waited for it, in seconds, even if it cannot be cached."""


def may_be_sent(state: BrokerState, kept: Kept, session: Session) -> bool | None:
    """Return whether `kept` may be sent to `session`, or None if a plugin has yet to decide. In that case the session's
    queue is drained after the decision.

    A denied message is dropped for this recipient but stays retained. An undecided message is also denied, and plugins
    are asked again next time.
    """
    publisher = kept.publisher
    if publisher is None or not state.settings.broker.check_retain_source:
        return True
    if kept.asking is not None:
        if session not in kept.asking:
            kept.asking.append(session)
        return None
    rights = state.publishers.rights + publisher.rights
    allowed: bool | None
    if abs(kept.rights) == rights and (kept.until == inf or state.runtime.now() < kept.until):
        allowed = kept.rights == rights
    else:
        allowed = _ask(state, kept, publisher, rights)
    if allowed is None:
        kept.asking = [session]
    elif not allowed:
        state.dropped(kept.message, session.client, DropReason.DENIED, Direction.OUT, "publisher")
    return allowed


def _ask(state: BrokerState, kept: Kept, publisher: Publisher, rights: int) -> bool | None:
    message = kept.message
    client = publisher.client
    action = Action.WILL if message.origin == "will" else Action.PUBLISH
    chains = state.chains(client.listener)
    remembered = cacheable(narrow(chains.authorize[action], message.topic))
    answers: list[bool] = []

    def decided(verdict: Allow | Deny, by: str) -> None:
        allowed = isinstance(verdict, Allow) and (
            verdict.max_qos is None or message.qos <= verdict.max_qos
        )
        if not allowed:
            code = verdict.code if isinstance(verdict, Deny) else Deny().code
            state.denied(client, action, message.topic, code, by)
        holds = verdict.cache_for
        if not remembered or (isinstance(verdict, Deny) and not verdict.decided):
            holds = 0.0
        waiting, kept.asking = kept.asking, None
        if waiting is not None and holds is not None:
            holds = max(holds, _HOLDS)
        kept.rights = 0 if holds == 0 else rights if allowed else -rights
        kept.until = inf if holds is None else state.runtime.now() + holds
        answers.append(allowed)
        for other in waiting or ():
            drain_queue(state, other)
        if waiting:
            state.writes.schedule()

    authorize(
        state, client, chains, None, action, message.topic, message.qos, True, message, None, decided,
    )  # fmt: skip
    return answers[0] if answers else None
