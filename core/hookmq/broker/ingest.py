"""The one pipeline of a message into the broker, whatever its source: a client, a will, a plugin.

    authorize -> on_publish chain -> [topic changed? authorize again] -> fan-out

Each step may answer at once or later; completion is a callback. A message that waits holds back only its own source.
"""

from collections.abc import Callable

from hookmq.broker.authorizer import Decisions, authorize
from hookmq.broker.core import Core
from hookmq.broker.fanout import publish
from hookmq.errors import ProtocolError
from hookmq.hooks.chains import Calls, Chains, narrow
from hookmq.hooks.run import run_transform
from hookmq.hooks.verdicts import Allow, Deny, Drop
from hookmq.qos import Acknowledgement
from hookmq.reason import ReasonCode
from hookmq.runtime import Cancel
from hookmq.session import Session
from hookmq.store import BoundedJournal
from hookmq.topics import validate_topic
from hookmq.types import Action, ClientInfo, Direction, DropReason, Message, Subscription

SYSTEM = "$SYS/"
"""Topics of the broker itself: no client may publish there."""


class Outcome:
    """What became of a message: `code` for its acknowledgement, `reason` in words for MQTT 5 clients, whether the
    connection is to end, how many matched (-1: it was not accepted), and whether it `relies` on a commit. `decided` is
    False if nobody could say whether it may be accepted: a client of 3.x, which cannot be told, gets no acknowledgement
    rather than a wrong one. `undecided`: nobody could decide, the source is `Ingest.patient`, and nothing was dropped
    yet; `by` is the id of the plugin that failed. `full` are journals without room for `message`; when there is room,
    `later` does what is left to be done and returns what became of it then."""

    __slots__ = (
        "by", "code", "decided", "disconnect", "full", "later", "matched", "message", "reason", "relies", "undecided",
    )  # fmt: skip

    def __init__(
        self, code: ReasonCode, reason: str = "", disconnect: bool = False, matched: int = -1
    ) -> None:
        self.code = code
        self.reason = reason
        self.disconnect = disconnect
        self.matched = matched
        self.relies = False
        self.decided = True
        self.undecided = False
        self.by = ""
        self.full: tuple[BoundedJournal, ...] = ()
        self.message: Message | None = None
        self.later: Callable[[], Outcome] | None = None


class Ingest:
    """One message on its way in. `run` starts it; `done` is told the outcome, at once or later; `cancel` stops it for a
    client that left.

    `client` is None for messages of the broker itself and of plugins, which are not asked for permission: whoever
    configured the plugin trusts it. `before` is called when the message was accepted and is about to be handed on, so
    that records of the source stand in the same batch.
    """

    __slots__ = (
        "acknowledgement", "action", "allowed", "before", "cancelled", "chains", "client", "core", "decisions", "done",
        "full", "message", "patient", "plain", "sender", "skip", "step",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        chains: Chains,
        message: Message,
        done: Callable[[Outcome], None],
        *,
        client: ClientInfo | None = None,
        sender: Session | None = None,
        action: Action = Action.PUBLISH,
        decisions: Decisions | None = None,
        acknowledgement: Acknowledgement | None = None,
        skip: str = "",
    ) -> None:
        self.core = core
        self.chains = chains
        self.message = message
        self.done = done
        self.client = client
        self.sender = sender
        self.action = action
        self.decisions = decisions
        self.acknowledgement = acknowledgement
        self.skip = skip
        self.allowed: float | None = None
        """Seconds for which permission holds; None for good."""
        self.before: Callable[[], None] | None = None
        self.step: Cancel | None = None
        self.cancelled = False
        self.full: tuple[BoundedJournal, ...] = ()
        """Journals that are owed the message."""
        self.patient = False
        """Whether it is the source's to ask again if nobody could decide: then nothing is dropped or told."""
        self.plain = True
        """Whether nothing but a remembered permission stood in its way: the next like it may take the fast path."""

    @property
    def waiting(self) -> bool:
        """Whether a plugin has still to answer."""
        return self.step is not None

    def cancel(self) -> None:
        """Give up: the source is gone. `done` is not called any more."""
        self.cancelled = True
        step, self.step = self.step, None
        if step is not None:
            step()

    def run(self) -> None:
        """Start."""
        if self.client is None:
            self._transform()
        else:
            self._authorize(self._authorized)

    def _authorize(self, then: Callable[[Allow | Deny, str], None]) -> None:
        client = self.client
        message = self.message
        assert client is not None
        if message.topic.startswith(SYSTEM):
            then(Deny(reason="topics below $SYS are the broker's own"), "broker")
            return
        step = authorize(
            self.core,
            client,
            self.chains,
            self.decisions,
            self.action,
            message.topic,
            message.qos,
            message.retain,
            message,
            None,
            then,
        )
        if step is not None:
            self.step = step

    def _authorized(self, verdict: Allow | Deny, by: str) -> None:
        if self._refused(verdict, by):
            return
        self._transform()

    def _refused(self, verdict: Allow | Deny, by: str) -> bool:
        self.step = None
        if self.cancelled:
            return True
        if isinstance(verdict, Deny):
            self._deny(verdict, by)
            return True
        self.allowed = verdict.cache_for
        if verdict.cache_for is not None:
            self.plain = False
        if verdict.max_qos is not None and verdict.max_qos < self.message.qos:
            self._deny(Deny(reason=f"QoS above {verdict.max_qos} is not allowed here"), by)
            return True
        return False

    def _deny(self, verdict: Deny, by: str) -> None:
        self.plain = False
        if self.patient and not verdict.decided:
            outcome = Outcome(verdict.code, verdict.reason or "")
            outcome.undecided = True
            outcome.by = by
            self._end(outcome)
            return
        reason = DropReason.DENIED if verdict.decided else DropReason.UNDECIDED
        self.core.dropped(self.message, self.client, reason, Direction.IN, by)
        if self.client is not None:
            self.core.denied(self.client, self.action, self.message.topic, verdict.code, by)
        outcome = Outcome(verdict.code, verdict.reason or "", verdict.disconnect)
        outcome.decided = verdict.decided
        self._end(outcome)

    def _transform(self) -> None:
        calls = self._calls()
        if not calls:
            self._accept()
            return
        self.plain = False
        step = run_transform(
            self.core.runtime, calls, self.client, self.message, self._transformed, self.skip
        )
        if step is not None:
            self.step = step

    def _calls(self) -> Calls:
        topic = self.message.topic
        calls = self.chains.on_publish
        if self.action is Action.WILL:
            calls = self.chains.on_will + calls
        # All of them if any: one narrowed to where another moves the message has a say there too.
        return calls if calls and narrow(calls, topic) else ()

    def _transformed(self, result: Message | Subscription | Deny | Drop, by: str) -> None:
        self.step = None
        if self.cancelled:
            return
        if isinstance(result, Deny):
            self._deny(result, by)
            return
        if isinstance(result, Drop):
            self.core.dropped(self.message, self.client, DropReason.PLUGIN, Direction.IN, by)
            outcome = Outcome(result.code, matched=0)
            added = self.core.committer.added
            if self.before is not None:
                self.before()  # to its source it was taken like any other
            outcome.relies = self.core.committer.added != added
            self._end(outcome)
            return
        assert isinstance(result, Message)
        before, self.message = self.message, result
        if result.topic == before.topic:
            self._accept()
            return
        try:
            validate_topic(result.topic, self.core.settings.broker.max_topic_levels)
        except ProtocolError as error:
            self._deny(Deny(error.code, error.detail, decided=False), by)
            return
        if self.client is None:
            self._accept()
        else:
            # The plugin moved the message: it must be allowed where it goes, not only where it came from.
            self._authorize(self._authorized_again)

    def _authorized_again(self, verdict: Allow | Deny, by: str) -> None:
        if not self._refused(verdict, by):
            self._accept()

    def _accept(self) -> None:
        route = self.core.router.lookup(self.message.topic)
        if route.large and self.core.collecting is not None:
            # The commit waits for one such message, not for a stream of them.
            self.core.after_collecting.append(self._accept_next)
            self.step = _nothing
            return
        if route.bounded and (full := self.core.parking.without_room(route.bounded)):
            self._no_room(full)
            return
        self._end(self._hand_on())

    def _accept_next(self) -> None:
        if not self.cancelled:
            self.step = None
            self._accept()

    def _hand_on(self, without: tuple[BoundedJournal, ...] = ()) -> Outcome:
        """Give it to everybody but the journals of `without`."""
        committer = self.core.committer
        added = committer.added
        if self.before is not None:
            self.before()
        matched = publish(
            self.core,
            self.message,
            self.sender,
            self.acknowledgement,
            self.client,
            self.allowed,
            without,
        )
        code = ReasonCode.SUCCESS if matched else ReasonCode.NO_MATCHING_SUBSCRIBERS
        outcome = Outcome(code, matched=matched)
        outcome.relies = committer.added != added
        return outcome

    def _no_room(self, full: tuple[BoundedJournal, ...]) -> None:
        """Journals that must have the message are full. Its publisher is to keep it, and subscribers get it all the same;
        but not at QoS 2, where to repeat it would be to deliver it twice. At QoS 0, and of a will, nobody can be told."""
        self.plain = False
        message = self.message
        names = ", ".join(journal.name for journal in full)
        outcome = Outcome(ReasonCode.QUOTA_EXCEEDED, f"{names} is full")
        outcome.full, outcome.message = full, message
        told = message.qos > 0 and self.action is Action.PUBLISH
        if told and message.qos == 2:
            outcome.later = self._hand_on
        elif told:
            self._hand_on(full)
            self.full = full
            outcome.later = self._journal_later
        else:
            outcome = self._hand_on(full)
        if not told or self.client is None:
            self.core.dropped(message, self.client, DropReason.QUEUE_FULL, Direction.IN, names)
        self._end(outcome)

    def _journal_later(self) -> Outcome:
        """There is room: what was handed on before is journaled, too."""
        outcome = Outcome(ReasonCode.SUCCESS, matched=1)
        for journal in self.full:
            self.core.committer.journal(journal, self.message)
        outcome.relies = True
        return outcome

    def _end(self, outcome: Outcome) -> None:
        self.step = None
        self.done(outcome)


def _nothing() -> None:
    """Stop waiting for another message: `cancelled` says it all."""
