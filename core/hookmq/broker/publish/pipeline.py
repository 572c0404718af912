"""The pipeline through which every message enters the broker, whether from a client, a will or a plugin.

    authorize -> on_publish chain -> [topic changed? authorize again] -> fan-out

Without plugins, `run` completes the whole pipeline and returns the result. If a plugin has yet to decide, `run` returns
None and the pipeline calls `done` later. A waiting message delays only its own source.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from hookmq.broker.publish.authorize import Decisions, authorize
from hookmq.broker.publish.fan_out import publish
from hookmq.broker.state import BrokerState
from hookmq.hooks.call import run_transform
from hookmq.hooks.chain import Calls, Chains, narrow
from hookmq.hooks.inline import Answered, continue_transform
from hookmq.hooks.verdicts import Allow, Deny, Drop, Handled
from hookmq.model.client import ClientInfo
from hookmq.model.events import Action, Direction, DropReason
from hookmq.model.message import Message
from hookmq.model.runtime import Cancel
from hookmq.model.subscription import Subscription
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import validate_topic
from hookmq.routing.route import Route
from hookmq.session.inflight import Acknowledgement
from hookmq.session.session import Session
from hookmq.storage.protocols import BoundedJournal

SYSTEM = "$SYS/"
"""Prefix of the broker's own topics, to which no client may publish."""


class PublishResult:
    """The result of publishing a message."""

    __slots__ = (
        "by", "code", "decided", "disconnect", "full", "later", "matched", "message", "reason", "relies", "route",
        "undecided",
    )  # fmt: skip

    def __init__(
        self, code: ReasonCode, reason: str = "", disconnect: bool = False, matched: int = -1
    ) -> None:
        self.code = code
        """The reason code for the acknowledgement."""
        self.reason = reason
        """An explanation for MQTT 5 clients; may be empty."""
        self.disconnect = disconnect
        """Whether the publisher's connection must end."""
        self.matched = matched
        """How many sessions, shared subscriptions and journals matched; -1 if the message was not accepted."""
        self.relies = False
        """Whether the acknowledgement must wait for a commit."""
        self.decided = True
        """False if no plugin could decide. A 3.x client cannot be sent a reason code, so it gets no acknowledgement."""
        self.undecided = False
        """Whether the source should retry (`PublishPipeline.patient`), because no plugin could decide and nothing was
        dropped."""
        self.by = ""
        """The id of the plugin that failed to decide."""
        self.full: tuple[BoundedJournal, ...] = ()
        """Journals without room for `message`."""
        self.message: Message | None = None
        self.later: Callable[[], PublishResult] | None = None
        """Completes the publish once the journals in `full` have room, and returns its result."""
        self.route: Route | None = None
        """The route of the message."""


class PublishPipeline:
    """The pipeline for one incoming message.

    `client` is None for messages from the broker and from plugins. These need no authorization: configuring a plugin
    means trusting it. `cancel` stops the pipeline when the client disconnects.
    """

    __slots__ = (
        "acknowledgement", "action", "allowed", "before", "cancelled", "chains", "client", "decisions", "done", "full",
        "guarded", "kept", "message", "patient", "plain", "result", "returned", "sender", "skip", "state", "step",
        "volatile",
    )  # fmt: skip

    def __init__(
        self,
        state: BrokerState,
        chains: Chains,
        message: Message,
        done: Callable[[PublishResult], None],
        *,
        client: ClientInfo | None = None,
        sender: Session | None = None,
        action: Action = Action.PUBLISH,
        decisions: Decisions | None = None,
        acknowledgement: Acknowledgement | None = None,
        skip: str = "",
    ) -> None:
        self.state = state
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
        """Seconds for which the permission holds; None means without limit."""
        self.before: Callable[[], None] | None = None
        """Called once the message is accepted, before fan-out, so that the source's records join the same batch."""
        self.volatile = False
        """Whether the message is retained without a record, so that a restart forgets it."""
        self.result: PublishResult | None = None
        self.guarded = False
        """Whether `_go_on` catches internal errors."""
        self.returned = False
        """Whether `run` has returned. The result is then passed to `done`."""
        self.step: Cancel | None = None
        self.cancelled = False
        self.full: tuple[BoundedJournal, ...] = ()
        """Journals that still need the message."""
        self.kept = -1
        """The number of changes to plugin state before the hooks were called; -1 if no hook was called."""
        self.patient = False
        """Whether the source retries if no plugin can decide. If so, the message is neither dropped nor reported."""
        self.plain = True
        """Whether remembered permissions were sufficient and no plugin changed the message, so that the next such
        message may take the fast path."""

    @property
    def waiting(self) -> bool:
        """Whether a plugin has yet to decide."""
        return self.step is not None

    def cancel(self) -> None:
        """Stop, because the source is gone. `done` will not be called."""
        self.cancelled = True
        step, self.step = self.step, None
        if step is not None:
            step()

    def run(self) -> PublishResult | None:
        """Start the pipeline. Return the result, or None if a plugin has yet to decide; `done` is then called later."""
        chains = self.chains
        if self.client is not None and (
            chains.authorize[self.action]
            or self.message.topic.startswith(SYSTEM)
            or self.state.settings.authz.default != "allow"
        ):
            self._authorize(self._authorized)
        elif chains.on_publish or self.action is Action.WILL:
            self._transform()
        else:
            self._accept()
        self.returned = True
        return self.result

    def run_from(self, answered: Answered, kept: int) -> PublishResult | None:
        """Continue as `run` does with a message that the fast path has authorized and passed to
        `on_publish`.

        `answered` is the result of `hooks.inline.ask`. `kept` counts the changes to plugin state before that call.
        """
        self.kept = kept
        step = continue_transform(
            self.state.runtime,
            self.chains.on_publish,
            self.client,
            self.message,
            self._transformed,
            answered,
        )
        if step is not None:
            self.step = step
        self.returned = True
        return self.result

    def start(self) -> None:
        """Start the pipeline, and call `done` with the result, now or later."""
        result = self.run()
        if result is not None:
            self.done(result)

    def start_decided(self) -> None:
        """Start the pipeline as `start` does, for a message on which the plugins have already decided."""
        self._accept()
        self.returned = True
        if self.result is not None:
            self.done(self.result)

    def _authorize(self, then: Callable[[Allow | Deny, str], None]) -> None:
        client = self.client
        message = self.message
        assert client is not None
        if message.topic.startswith(SYSTEM):
            then(Deny(reason="topics below $SYS are the broker's own"), "broker")
            return
        step = authorize(
            self.state,
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
        if self.returned and not self.guarded:
            self._go_on(partial(self._authorized, verdict, by))
        elif not self._refused(verdict, by):
            self._transform()

    def _go_on(self, step: Callable[[], None]) -> None:
        """Run a step after `run` has returned. After an internal error, refuse the message, because
        the source is still waiting for a result.
        """
        self.guarded = True
        try:
            step()
        except Exception as error:
            if self.result is not None or self.cancelled:
                raise  # the source has the result
            self.state.runtime.log("error", "internal.error", error=repr(error), traceback=error)
            self._deny(_INTERNAL, "broker")
        finally:
            self.guarded = False

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
            outcome = PublishResult(verdict.code, verdict.reason or "")
            outcome.undecided = True
            outcome.by = by
            self._end(outcome)
            return
        reason = DropReason.DENIED if verdict.decided else DropReason.UNDECIDED
        self.state.dropped(self.message, self.client, reason, Direction.IN, by)
        if self.client is not None:
            self.state.denied(self.client, self.action, self.message.topic, verdict.code, by)
        outcome = PublishResult(verdict.code, verdict.reason or "", verdict.disconnect)
        outcome.decided = verdict.decided
        self._end(outcome)

    def _transform(self) -> None:
        calls = self._calls()
        if not calls:
            self._accept()
            return
        self.kept = self.state.plugin_states.changes
        step = run_transform(
            self.state.runtime, calls, self.client, self.message, self._transformed, self.skip
        )
        if step is not None:
            self.step = step

    def _calls(self) -> Calls:
        topic = self.message.topic
        calls = self.chains.on_publish
        if self.action is Action.WILL:
            calls = self.chains.on_will + calls
        # Call all of them or none: a plugin may move the message to a topic that only another plugin is narrowed to.
        return calls if calls and narrow(calls, topic) else ()

    def _transformed(self, result: Message | Subscription | Deny | Drop | Handled, by: str) -> None:
        if self.returned and not self.guarded:
            self._go_on(partial(self._transformed, result, by))
            return
        self.step = None
        if self.cancelled:
            return
        if isinstance(result, Deny):
            self._deny(result, by)
            return
        if result is not self.message:
            self.plain = False
        if isinstance(result, Drop):
            self.state.dropped(self.message, self.client, DropReason.PLUGIN, Direction.IN, by)
            outcome = PublishResult(result.code, matched=0)
            added = self.state.committer.added
            if self.before is not None:
                self.before()  # for its source, the message was accepted
            outcome.relies = self.state.committer.added != added or self._has_kept()
            self._end(outcome)
            return
        if isinstance(result, Handled):
            self._handled(result)
            return
        assert isinstance(result, Message)
        before, self.message = self.message, result
        if result.topic == before.topic:
            self._accept()
            return
        try:
            validate_topic(result.topic, self.state.settings.broker.max_topic_levels)
        except ProtocolError as error:
            self._deny(Deny(error.code, error.detail, decided=False), by)
            return
        if self.client is None:
            self._accept()
        else:
            # A plugin moved the message to another topic, which needs permission too.
            self._authorize(self._authorized_again)

    def _handled(self, verdict: Handled) -> None:
        """End the pipeline because a plugin has taken over the message. Everything that the plugin recorded in this
        turn must be committed first.
        """
        self.state.metrics.messages_handled += 1
        outcome = PublishResult(verdict.code, matched=0)
        outcome.relies = True
        if self.before is not None:
            self.before()
        self._end(outcome)

    def _authorized_again(self, verdict: Allow | Deny, by: str) -> None:
        if self.returned and not self.guarded:
            self._go_on(partial(self._authorized_again, verdict, by))
        elif not self._refused(verdict, by):
            self._accept()

    def _accept(self) -> None:
        route = self.state.router.lookup(self.message.topic)
        if route.large and self.state.collecting is not None:
            # The commit waits for one such message, not for a stream of them.
            self.state.after_collecting.append(self._accept_next)
            self.step = _nothing
            return
        if route.bounded and (full := self.state.parking.without_room(route.bounded)):
            self._no_room(full)
            return
        self.step = None
        self.result = self._hand_on(route)
        if self.returned:
            self.done(self.result)

    def _accept_next(self) -> None:
        if not self.cancelled:
            self.step = None
            self._go_on(self._accept)

    def _hand_on(self, route: Route, without: tuple[BoundedJournal, ...] = ()) -> PublishResult:
        """Deliver the message to every recipient of `route` except the journals in `without`."""
        result = PublishResult(ReasonCode.SUCCESS)
        result.route = route
        committer = self.state.committer
        added = committer.added
        if self.before is not None:
            self.before()
        result.matched = publish(
            self.state,
            route,
            self.message,
            self.sender,
            self.acknowledgement,
            self.client,
            self.allowed,
            without,
            self.volatile,
        )
        if not result.matched:
            result.code = ReasonCode.NO_MATCHING_SUBSCRIBERS
        result.relies = committer.added != added or self._has_kept()
        return result

    def _has_kept(self) -> bool:
        """Return whether a plugin has changed its state since the hooks were called. If so, the
        acknowledgement waits for the commit.
        """
        return self.kept >= 0 and self.kept != self.state.plugin_states.changes

    def _no_room(self, full: tuple[BoundedJournal, ...]) -> None:
        """Handle a message that some journals have no room for.

        At QoS 1, deliver the message now and journal it when there is room. The publisher gets no acknowledgement until
        then. At QoS 2, neither deliver nor journal it until there is room, because resending it would deliver it twice.
        At QoS 0 or for a will, there is no one to notify: deliver it, and count it as dropped by those journals.
        """
        self.plain = False
        message = self.message
        names = ", ".join(journal.name for journal in full)
        outcome = PublishResult(ReasonCode.QUOTA_EXCEEDED, f"{names} is full")
        outcome.full, outcome.message = full, message
        told = message.qos > 0 and self.action is Action.PUBLISH
        if told and message.qos == 2:
            outcome.later = self._hand_on_later
        elif told:
            self._hand_on(self.state.router.lookup(message.topic), full)
            self.full = full
            outcome.later = self._journal_later
        else:
            outcome = self._hand_on(self.state.router.lookup(message.topic), full)
        if not told or self.client is None:
            self.state.dropped(message, self.client, DropReason.QUEUE_FULL, Direction.IN, names)
        self._end(outcome)

    def _hand_on_later(self) -> PublishResult:
        return self._hand_on(self.state.router.lookup(self.message.topic))

    def _journal_later(self) -> PublishResult:
        """Journal a message that was delivered earlier, now that there is room."""
        outcome = PublishResult(ReasonCode.SUCCESS, matched=1)
        for journal in self.full:
            self.state.committer.journal(journal, self.message)
        outcome.relies = True
        return outcome

    def _end(self, outcome: PublishResult) -> None:
        self.step = None
        self.result = outcome
        if self.returned:
            self.done(outcome)


_INTERNAL: Final = Deny(ReasonCode.UNSPECIFIED_ERROR, "internal error", decided=False)


def _nothing() -> None:
    """Do nothing. Setting `cancelled` is enough to cancel the pipeline."""
