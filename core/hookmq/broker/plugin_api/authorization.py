"""Calls that plugins use to authorize clients' actions, and to discard cached decisions."""

from collections.abc import Awaitable
from functools import partial
from typing import Any

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.broker.plugin_api.decisions import Decided, Survey
from hookmq.broker.publish.authorize import ALLOW, DENY, authorize
from hookmq.broker.publish.pipeline import SYSTEM
from hookmq.broker.sessions.revocation import revoke
from hookmq.hooks.call import run_authorize
from hookmq.hooks.chain import Calls, narrow
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.hooks.verdicts import Allow, Deny, PluginDecision
from hookmq.model.client import ClientInfo
from hookmq.model.errors import PluginError
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.model.runtime import Promise
from hookmq.model.subscription import Subscription
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.topics import parse_share, validate_filter


class Authorization(HandleBase):
    """The methods of a plugin's handle that authorize actions."""

    __slots__ = ()

    def authorize(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None = None
    ) -> Awaitable[Allow | Deny]:
        """Ask every plugin, in a later turn, whether `client` may perform `action` on `topic`."""
        self._only_on_loop("authorize()")
        if action is Action.DELIVER:
            raise self._not_asked(action)
        state = self._state
        topic, message, subscription = self._question(client, action, topic, message, None)
        result = self._promise()
        depth = DEPTH.get() + 1
        if depth > state.settings.broker.publish_depth:
            self._fail(result, PluginError(self._plugin, "plugins ask in a loop"))
            return result

        def decided(verdict: Allow | Deny, by: str) -> None:
            if result.done():
                return  # the caller has stopped waiting
            highest = verdict.max_qos if isinstance(verdict, Allow) else None
            if message is not None and highest is not None and highest < message.qos:
                verdict = Deny(reason=f"QoS above {highest} is not allowed here")
            result.set_result(verdict)

        def settled(verdict: Allow | Deny, by: str) -> None:
            state.guarded(partial(self._settling, result, partial(decided, verdict, by)))

        def begin() -> None:
            if message is not None and topic.startswith(SYSTEM):
                decided(Deny(reason="topics below $SYS are reserved for the broker"), "")
                return
            chains = state.chains(client.listener)
            qos, retain = (message.qos, message.retain) if message is not None else (0, False)
            at_depth(
                depth, authorize, state, client, chains, None, action, topic, qos, retain, message,
                subscription, settled,
            )  # fmt: skip

        state.runtime.call_soon(partial(state.guarded, partial(self._settling, result, begin)))
        return result

    def explain(
        self,
        client: ClientInfo,
        action: Action,
        topic: str,
        message: Message | None = None,
        subscription: Subscription | None = None,
    ) -> Awaitable[tuple[PluginDecision, ...]]:
        """Ask each plugin separately, in a later turn, whether `client` may perform `action` on `topic`."""
        self._only_on_loop("explain()")
        topic, message, subscription = self._question(client, action, topic, message, subscription)
        return self._result_of(
            partial(self._explain, client, action, (client, action, topic, message, subscription))
        )

    def _explain(
        self, client: ClientInfo, action: Action, given: tuple[Any, ...], result: Promise
    ) -> None:
        state = self._state
        calls = narrow(state.chains(client.listener).authorize[action], given[2])
        allows = action is Action.DELIVER or state.settings.authz.default == "allow"

        def ask(call: Calls, decided: Decided) -> object:
            return run_authorize(state.runtime, call, given, True, decided)

        Survey(calls, ALLOW if allows else DENY, partial(self._give, result)).run(ask)

    def _question(
        self,
        client: ClientInfo,
        action: Action,
        topic: str,
        message: Message | None,
        subscription: Subscription | None,
    ) -> tuple[str, Message | None, Subscription | None]:
        """Check the arguments of an authorization request. Return the topic, message and subscription for plugins."""
        for name, given, kind in (
            ("client", client, ClientInfo), ("topic", topic, str), ("message", message, Message | None),
            ("subscription", subscription, Subscription | None),
        ):  # fmt: skip
            if not isinstance(given, kind):
                raise PluginError(
                    self._plugin, f"cannot authorize: {name} is {type(given).__name__}"
                )
        if action is Action.SUBSCRIBE:
            asked, inner = self._asked_filter(topic)
            return inner, None, asked
        if action not in (Action.PUBLISH, Action.WILL, Action.DELIVER):
            raise self._not_asked(action)
        self._check_topic(topic, "authorize")
        if message is None:
            origin = "will" if action is Action.WILL else "client"
            now = self._state.runtime.time()
            sender = None if action is Action.DELIVER else client.client_id
            message = Message(topic, b"", sender=sender, origin=origin, received_at=now)
        elif message.topic != topic:
            message = message.replace(topic=topic)
        if action is not Action.DELIVER:
            return topic, message, None
        return topic, message, subscription or Subscription(topic, topic)

    def _not_asked(self, action: object) -> PluginError:
        return PluginError(
            self._plugin, f"cannot authorize: {action!r} is not PUBLISH, SUBSCRIBE or WILL"
        )

    def _asked_filter(self, filter: str) -> tuple[Subscription, str]:
        """Return a subscription to `filter`, and the topic filter that plugins see."""
        try:
            validate_filter(filter, self._state.settings.broker.max_topic_levels)
            share, inner = parse_share(filter)
        except ProtocolError as error:
            raise PluginError(self._plugin, f"cannot authorize: {error.detail}") from error
        return Subscription(filter, inner, share=share), inner

    def invalidate_authz(self, client_id: str | None = None, filter: str | None = None) -> None:
        """Discard cached `authorize` verdicts for one client or all clients. Ask again, in slices, about all
        subscriptions or those that overlap with `filter`. Also reread every plugin's `authorize_actions`."""
        what = "invalidate decisions"
        self._check_types(
            what, ("client_id", client_id, str | None), ("filter", filter, str | None)
        )
        if filter is not None:
            self._parse_filter(filter, what)
        self._on_loop(partial(self._invalidate_authz, client_id, filter))

    def _invalidate_authz(self, client_id: str | None, filter: str | None) -> None:
        state = self._state
        if state.hooks.asks_anew():
            state.router.clear_cache()
            for session in state.sessions.values():
                if session.connection is not None:
                    session.connection.rechain()
        revoke(state, client_id, filter)
