"""Implement the `auth_http` plugin: an HTTP service decides which clients may connect and what they may do."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from hookmq.plugin import (
    Accept,
    Action,
    Admission,
    Allow,
    BrokerHandle,
    ClientInfo,
    Connect,
    Context,
    Deny,
    Message,
    MetricRegistry,
    Plugin,
    PluginError,
    Settings,
    Subscription,
    hookimpl,
)
from hookmq_toolkit.http_client import HttpService, Unavailable
from hookmq_toolkit.rules import Rules, rule_values, rules_from_lists
from hookmq_toolkit.tls_client import check_tls
from hookmq_toolkit.ttl_cache import KeyDigest, TtlCache

from hookmq_auth_http.answers import (
    CONTRACTS,
    PERMISSIONS,
    SUPERUSER,
    Answer,
    Undecided,
    Unusable,
    go_superuser,
)
from hookmq_auth_http.config import AuthHttpConfig
from hookmq_auth_http.metrics import register as register_metrics
from hookmq_auth_http.service import Question, make_service
from hookmq_auth_http.values import Values, authorize_values, connect_values

SLACK: Final = 1.0
"""Number of seconds by which the broker's time limit exceeds the plugin's, so that the plugin can report the reason."""


class AuthHttpPlugin(Plugin):
    """A plugin that authenticates and authorizes clients with an HTTP service."""

    Config = AuthHttpConfig
    config: AuthHttpConfig

    def __init__(self, config: AuthHttpConfig, context: Context) -> None:
        super().__init__(config, context)
        check_tls(config.tls)
        self.timeouts = dict.fromkeys(("on_connect", "authorize"), config.patience + SLACK)
        self.timeouts["on_connect"] *= 1 if config.superuser is None else 2
        self.undecided = 0
        """Number of undecided decisions."""
        self.cache: TtlCache[bytes, Answer] = TtlCache(config.cache_size)
        """Parsed responses, by the digest of the request."""
        self._digest = KeyDigest()
        self._grants_claim = f"hookmq:{self.id}"
        """Name of the claim that stores the grants. Other plugins cannot set it."""
        contract = CONTRACTS[config.contract]
        self._authenticate = self._superuser = self._authorize = None
        if config.authenticate is not None:
            self._authenticate = Question(
                "authenticate",
                config.authenticate,
                contract.authenticate,
                contract.read_authenticate,
            )
        if config.superuser is not None:
            self._superuser = Question(
                "superuser", config.superuser, contract.superuser, go_superuser
            )
        if config.authorize is not None:
            self._authorize = Question(
                "authorize", config.authorize, contract.authorize, contract.read_authorize
            )
        self._service: HttpService | None = None
        self._now: Callable[[], float] | None = None

    @property
    def admission(self) -> Admission:
        """Describe the clients that the service accepts."""
        if self._authenticate is None:
            return Admission()
        ignores = self.config.contract != "mosquitto-go-auth"
        share = "have the service answer ignore for clients it does not know" if ignores else ""
        return Admission(
            f"clients that {self._authenticate.place} accepts", "refused", to_share=share
        )

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Read the TLS files. Connections are opened later."""
        await self.start(broker.now)

    async def start(self, now: Callable[[], float]) -> None:
        """Start without a broker. `now` is a monotonic clock in seconds. Raises PluginError."""
        try:
            self._service = make_service(self.config, now)
        except OSError as error:
            raise PluginError(self.id, f"tls: {error}") from error
        self._now = now

    @hookimpl
    async def on_shutdown(self) -> None:
        """Cancel requests in progress and close all connections."""
        service, self._service = self._service, None
        if service is not None:
            await service.close()

    @hookimpl
    def on_reload(self, old: Settings, new: Settings) -> None:
        """Clear the cache, because the service may have changed too."""
        self.cache.clear()

    # decisions ----------------------------------------------------------------------------------------------------

    @hookimpl
    async def on_connect(self, client: ClientInfo, connect: Connect) -> Accept | Deny | None:
        """Query `authenticate`, and then `superuser` if it is configured. Raises Undecided."""
        if self._authenticate is None:
            return None
        try:
            values = connect_values(client, (connect.password or b"").decode())
        except UnicodeDecodeError:
            return Deny(reason="the password is not UTF-8")
        answer = await self._ask(self._authenticate, values)
        if not isinstance(answer.verdict, Accept):
            return answer.verdict  # type: ignore[return-value]  # no contract reads an Allow here
        grants = dict(answer.grants)
        if self._superuser is not None:
            asked = await self._ask(self._superuser, values)
            if isinstance(asked.verdict, Allow):
                grants[SUPERUSER] = True
        return self._accept(client, answer.verdict, grants)

    def _accept(self, client: ClientInfo, accept: Accept, grants: Mapping[str, Any]) -> Accept:
        claims = dict(accept.claims or {})
        claims.pop(self._grants_claim, None)
        if grants:
            claims[self._grants_claim] = grants
        identity = accept.identity or client.username or None
        return Accept(identity, claims, accept.expires_at, accept.limits)

    @hookimpl
    def authorize(
        self,
        client: ClientInfo,
        action: Action,
        topic: str,
        message: Message | None,
        subscription: Subscription | None,
    ) -> Allow | Deny | Awaitable[Allow | Deny | None] | None:
        """Decide by the permissions granted at CONNECT. If there are none, query `authorize`. Raises Undecided."""
        grants = client.claims.get(self._grants_claim)
        if isinstance(grants, Mapping):
            if grants.get(SUPERUSER) is True:
                return Allow()
            if PERMISSIONS in grants:
                qos = (
                    message.qos if message is not None else subscription.qos if subscription else 0
                )
                retain = message.retain if message is not None else False
                return self._permitted(client, grants[PERMISSIONS], action, topic, qos, retain)
        if self._authorize is None:
            return None
        values = authorize_values(client, action, topic, message, subscription)
        return self._ask_authorize(self._authorize, values, action)

    def _permitted(
        self, client: ClientInfo, lists: Any, action: Action, topic: str, qos: int, retain: bool
    ) -> Allow | Deny:
        compiled = client.state.get(self.id)
        if compiled is None or compiled[0] is not lists:
            rules = Rules(rules_from_lists(lists, PERMISSIONS))
            compiled = client.state[self.id] = (lists, rules, rule_values(client, rules.variables))
        rule = compiled[1].decide(action, topic, qos, retain, compiled[2])
        if rule is None:
            return Deny(reason="no permission")
        if not rule.allow:
            return Deny(reason=f"denied by {rule.source}")
        return Allow(max_qos=rule.qos if action is Action.SUBSCRIBE else None)

    async def _ask_authorize(
        self, question: Question, values: Values, action: Action
    ) -> Allow | Deny | None:
        answer = await self._ask(question, values)
        verdict = answer.verdict
        keep = self._keep(answer)
        if isinstance(verdict, Allow):
            return Allow(keep, verdict.max_qos)
        if isinstance(verdict, Deny):
            # Only a denial by the service itself may remove stored subscriptions, their queues, and due wills.
            decided = not answer.bare or action is Action.PUBLISH
            return Deny(verdict.code, verdict.reason, decided=decided, cache_for=keep)
        return None

    def _keep(self, answer: Answer) -> float:
        if answer.keep is not None:
            return answer.keep
        denied = isinstance(answer.verdict, Deny)
        return self.config.negative_cache if denied else self.config.cache

    async def _ask(self, question: Question, values: Values) -> Answer:
        """Return the parsed response, from the cache if possible. Raises Undecided."""
        service, now = self._service, self._now
        if service is None or now is None:
            raise Undecided("not started")
        try:
            request = question.request(values)
            key = self._digest(question.name.encode(), bytes(request))
            answer = self.cache.get(key, now())
            if answer is None:
                answer = question.read(*await service.ask(request))
                self.cache.put(key, answer, self._keep(answer), now())
        except (Unavailable, Unusable, ValueError) as error:
            self.undecided += 1
            raise Undecided(f"{question.place}: {error}") from None
        return answer

    # metrics and commands -----------------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics defined in `hookmq_auth_http.metrics`."""
        register_metrics(registry, self, lambda: self._service)
