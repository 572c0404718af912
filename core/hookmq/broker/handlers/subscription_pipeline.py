"""The pipeline through which every subscription enters a session, whether from a SUBSCRIBE or from a plugin.

    check -> authorize -> on_subscribe -> [filter changed? authorize again] -> subscribe and record

If a check or a verdict refuses the subscription, the result is a `Deny`, and nothing changes.
"""

from collections.abc import Callable
from functools import partial

from hookmq.broker.connection import ClientConnection
from hookmq.broker.publish.authorize import Decisions, asked, authorize
from hookmq.broker.sessions.subscriptions import subscribe
from hookmq.broker.state import BrokerState
from hookmq.hooks.call import run_transform
from hookmq.hooks.chain import narrow
from hookmq.hooks.verdicts import Allow, Deny, Drop, Handled
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.model.runtime import Cancel
from hookmq.model.settings import BrokerSettings
from hookmq.model.subscription import Subscription
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import SubscribeRequest
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import SHARE_PREFIX, has_wildcard, parse_share, validate_filter
from hookmq.session.session import Session
from hookmq.storage.records import PutSubscription

Decided = Callable[[Subscription | Deny, str, bool], None]
"""The callback ``decided(result, by, late)``. `result` is the granted subscription, or a Deny. `by` is the id of the
plugin that decided. `late` is true unless `SubscriptionPipeline.run` is still running.
"""


def check(
    state: BrokerState,
    session: Session,
    offered: BrokerSettings,
    request: SubscribeRequest,
    identifier: int | None,
    bridge: bool,
    user_property: tuple[tuple[str, str], ...] = (),
) -> Subscription | Deny:
    """Return the subscription for `request`, with the mount point of the client's listener. Return a Deny if the filter
    is invalid or not available, or if the session has no room for another subscription.
    """
    limits = state.settings.broker
    mount = session.client.scope.mount_point
    filter = request.filter
    try:
        validate_filter(filter, limits.max_topic_levels)
        share, topic_filter = parse_share(filter)
        if mount:
            validate_filter(mount + topic_filter, limits.max_topic_levels)
    except ProtocolError as error:
        # [MQTT-4.7.1-1, 4.7.1-2, 4.8.2-1, 4.8.2-2]
        return Deny(error.code, error.detail)
    code = unavailable(offered, filter)
    if code is not None:
        return Deny(code)  # [MQTT311-3.8.3-2]
    excess = _excess(state, session, filter)
    if excess:
        return Deny(ReasonCode.QUOTA_EXCEEDED, excess)
    return Subscription(
        filter,
        mount + topic_filter,
        min(request.qos, limits.max_qos),  # [MQTT-3.2.2-10]
        request.no_local or bridge,
        request.retain_as_published or bridge,
        request.retain_handling,
        identifier,
        share,
        user_property,
    )


def unavailable(offered: BrokerSettings, filter: str) -> ReasonCode | None:
    """Return the reason code if the broker does not offer this kind of subscription, otherwise None."""
    if not offered.shared_available and filter.startswith(SHARE_PREFIX):
        return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if not offered.wildcard_available and has_wildcard(filter):
        return ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
    return None


def _excess(state: BrokerState, session: Session, filter: str) -> str:
    """Return the limit that a new subscription exceeds, or ''."""
    if filter in session.subscriptions:
        return ""
    if len(session.subscriptions) >= session.max_subscriptions:
        return "too many subscriptions"
    size = len(filter)
    settings = state.settings
    if (
        session.filter_bytes + size > settings.session.subscription_bytes
        or state.session_bytes + size > settings.broker.max_session_bytes
    ):
        return "too many bytes of topic filters"
    return ""


class SubscriptionPipeline:
    """Creates the subscriptions of one session, one after another.

    `connection` is the client's connection if the client itself subscribes; decisions are then cached. If a plugin
    subscribes, `connection` is None, and `skip` is the plugin's id, because its own `on_subscribe` is not called. If
    `asks` is true, `authorize` is called first.
    """

    __slots__ = (
        "_asks", "_connection", "_done", "_guarded", "_session", "_skip", "_state", "_step", "sends_retained",
    )  # fmt: skip

    def __init__(
        self,
        state: BrokerState,
        session: Session,
        connection: ClientConnection | None,
        asks: bool = True,
        skip: str = "",
    ) -> None:
        self._state = state
        self._session = session
        self._connection = connection
        self._asks = asks
        self._skip = skip
        self._step: Cancel | None = None
        self._done: Decided | None = None
        self._guarded = False
        """Whether `_go_on` catches internal errors."""
        self.sends_retained = False
        """Whether retained messages must be sent for the most recent subscription."""

    def cancel(self) -> None:
        """Stop, because the client has disconnected. `done` will not be called."""
        self._done = None
        step, self._step = self._step, None
        if step is not None:
            step()

    def run(self, subscription: Subscription, done: Decided) -> None:
        """Create `subscription`, and call `done` with the result, either now or after the plugins have decided."""
        self._done = done
        if self._asks:
            self._authorize(subscription, self._transform)
        else:
            self._transform(subscription)

    def _end(self, result: Subscription | Deny, by: str) -> None:
        late = self._step is not None
        self._step = None
        done, self._done = self._done, None
        if done is not None:
            done(result, by, late)

    def _go_on(self, step: Callable[[], None]) -> None:
        """Run a step after awaiting a plugin. After an internal error, refuse the subscription, because the caller is
        still waiting for a result.
        """
        self._guarded = True
        try:
            step()
        except Exception as error:
            if self._done is None:
                raise  # the caller has the result
            self._state.runtime.log("error", "internal.error", error=repr(error), traceback=error)
            self._end(_INTERNAL, "broker")
        finally:
            self._guarded = False

    def _authorize(self, subscription: Subscription, then: Callable[[Subscription], None]) -> None:
        client = self._session.client
        connection = self._connection
        decisions: Decisions | None = None
        if connection is None:
            chains = self._state.chains(client.listener)
        else:
            chains = connection.chains
            decisions = connection.decisions
            if decisions is None:
                decisions = connection.decisions = Decisions()

        topic_filter, qos = subscription.topic_filter, subscription.qos
        step = authorize(
            self._state, client, chains, decisions,
            Action.SUBSCRIBE, topic_filter, qos, False, None, subscription,
            partial(self._decided, subscription, then),
        )  # fmt: skip
        if step is not None:
            self._step = step

    def _decided(
        self,
        subscription: Subscription,
        then: Callable[[Subscription], None],
        verdict: Allow | Deny,
        by: str,
    ) -> None:
        if self._done is None:
            return  # cancelled
        if self._step is not None and not self._guarded:
            self._go_on(partial(self._decided, subscription, then, verdict, by))
        elif isinstance(verdict, Deny):
            self._end(verdict, by)
        elif verdict.max_qos is not None and verdict.max_qos < subscription.qos:
            then(subscription.replace(qos=verdict.max_qos))
        else:
            then(subscription)

    def _transform(self, subscription: Subscription) -> None:
        client = self._session.client
        connection = self._connection
        chains = self._state.chains(client.listener) if connection is None else connection.chains
        calls = chains.on_subscribe
        if calls:
            calls = narrow(calls, subscription.topic_filter)
        if not calls:
            self._add(subscription)
            return

        runtime = self._state.runtime
        changed = partial(self._changed, subscription)
        step = run_transform(runtime, calls, client, subscription, changed, self._skip)
        if step is not None:
            self._step = step

    def _changed(
        self,
        subscription: Subscription,
        result: Message | Subscription | Deny | Drop | Handled,
        by: str,
    ) -> None:
        if self._done is None:
            return  # cancelled
        if self._step is not None and not self._guarded:
            self._go_on(partial(self._changed, subscription, result, by))
            return
        if isinstance(result, Deny):
            self._end(result, by)
            return
        assert isinstance(result, Subscription)
        try:
            validate_filter(result.topic_filter, self._state.settings.broker.max_topic_levels)
        except ProtocolError as error:
            self._end(Deny(error.code, error.detail, decided=False), by)
            return
        # Keep the filter that the client sent: it will unsubscribe with it.
        made = result.replace(filter=subscription.filter)
        if not self._asks or asked(made) == asked(subscription):
            self._add(made)
        else:
            # The plugin changed the topic filter, so the new one must be allowed too.
            self._authorize(made, self._add)

    def _add(self, subscription: Subscription) -> None:
        state = self._state
        session = self._session
        if state.sessions.get(session.client_id) is not session:
            self._end(_ENDED, "")  # while a plugin decided
            return
        if session.revoked:
            session.revoked.discard(subscription.filter)
        observed = subscription
        if subscription.user_property:
            # No limit counts them, so a client could fill the memory with them.
            subscription = subscription.replace(user_property=())
        known = subscribe(state, session, subscription)
        if session.durable:
            state.committer.add(PutSubscription(session.client_id, subscription))
        handling = subscription.retain_handling
        # [MQTT-3.3.1-9 to 11, 3.8.4-4] [MQTT311-3.3.1-6, 3.8.4-3]
        self.sends_retained = subscription.share is None and (
            handling == 0 or (handling == 1 and known is None)
        )
        state.observe("on_subscribed", session.client, observed, ReasonCode(subscription.qos))
        self._end(subscription, "")


_INTERNAL = Deny(ReasonCode.UNSPECIFIED_ERROR, "internal error", decided=False)
_ENDED = Deny(ReasonCode.UNSPECIFIED_ERROR, "the session has ended", decided=False)
