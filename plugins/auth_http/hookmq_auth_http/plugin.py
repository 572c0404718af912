"""The plugin: clients are let in, and allowed what they do, as an HTTP service says."""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from hookmq.errors import ConfigError
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
    Plugin,
    PluginError,
    Settings,
    Subscription,
    hookimpl,
)
from hookmq.rules import Rules, rule_values, rules_from_lists

from hookmq_auth_http import template
from hookmq_auth_http.answers import (
    CONTRACTS,
    GRANTS,
    SUPERUSER,
    Answer,
    Undecided,
    Unusable,
    go_superuser,
)
from hookmq_auth_http.cache import Cache
from hookmq_auth_http.config import AuthHttpConfig, Endpoint
from hookmq_auth_http.service import Request, Service, Unavailable, context_of, render

SLACK: Final = 1.0
"""Seconds by which a hook's deadline is later than ours, so that it is we who say what happened."""


class AuthHttpPlugin(Plugin):
    """Authentication and authorization by an HTTP service."""

    Config = AuthHttpConfig
    config: AuthHttpConfig

    def __init__(self, config: AuthHttpConfig, context: Context) -> None:
        super().__init__(config, context)
        if config.tls is not None:
            try:
                context_of(config.tls)  # `hookmq check` finds mistakes here
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(str(error), path=("tls",)) from error
        self.timeouts = dict.fromkeys(("on_connect", "authorize"), config.patience + SLACK)
        self.timeouts["on_connect"] *= 1 if config.superuser is None else 2
        self.contract = CONTRACTS[config.contract]
        self._note = f"hookmq:{self.id}"
        """The claim that holds what was granted, which nobody else can write."""
        self.undecided = 0
        """Decisions that could not be made."""
        self._service: Service | None = None
        self._cache: Cache[Answer] | None = None

    @property
    def admission(self) -> Admission:
        """Whom the service accepts."""
        endpoint = self.config.authenticate
        if endpoint is None:
            return Admission()
        ignores = self.config.contract != "mosquitto-go-auth"
        share = "have the service answer ignore for clients it does not know" if ignores else ""
        return Admission(
            f"whom {endpoint.url.partition('?')[0]} accepts", "refused", to_share=share
        )

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Reads the files of `tls`; no connection is opened yet."""
        await self.start(broker.now)

    async def start(self, now: Callable[[], float]) -> None:
        """As `on_startup`, for who has a clock but no broker. Raises PluginError."""
        self._cache = Cache(self.config.cache_size, now)
        service = Service(self.config, now)
        try:
            await service.start()
        except (OSError, ssl.SSLError) as error:
            raise PluginError(self.id, f"tls: {error}") from error
        self._service = service

    @hookimpl
    async def on_shutdown(self) -> None:
        """Ends what is under way."""
        service, self._service = self._service, None
        if service is not None:
            await service.close()

    @hookimpl
    def on_reload(self, old: Settings, new: Settings) -> None:
        """The operator may have changed the service, too: nothing that it said before holds."""
        if self._cache is not None:
            self._cache.clear()

    # decisions ----------------------------------------------------------------------------------------------------

    @hookimpl
    async def on_connect(self, client: ClientInfo, connect: Connect) -> Accept | Deny | None:
        """Ask `authenticate`, and `superuser` where there is one."""
        endpoint = self.config.authenticate
        if endpoint is None:
            return None
        values = template.client_values(client)
        try:
            values["password"] = (connect.password or b"").decode()
        except UnicodeDecodeError:
            return Deny(reason="the password is not UTF-8")
        read = self.contract.read_authenticate
        answer = await self._ask(endpoint, self.contract.authenticate, values, read)
        if not isinstance(answer.verdict, Accept):
            return answer.verdict  # type: ignore[return-value]  # no contract reads an Allow here
        grants = dict(answer.grants)
        if self.config.superuser is not None:
            members = self.contract.superuser
            asked = await self._ask(self.config.superuser, members, values, go_superuser)
            if isinstance(asked.verdict, Allow):
                grants[SUPERUSER] = True
        return self._accept(client, answer.verdict, grants)

    def _accept(self, client: ClientInfo, accept: Accept, grants: Mapping[str, Any]) -> Accept:
        claims = dict(accept.claims or {})
        claims.pop(self._note, None)
        if grants:
            claims[self._note] = grants
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
        """By what came with the consent to connect, where that said anything; else `authorize` is asked."""
        qos = message.qos if message is not None else subscription.qos if subscription else 0
        retain = message.retain if message is not None else False
        grants = client.claims.get(self._note)
        if isinstance(grants, Mapping):
            if grants.get(SUPERUSER) is True:
                return Allow()
            if GRANTS in grants:
                return self._granted(client, grants[GRANTS], action, topic, qos, retain)
        endpoint = self.config.authorize
        if endpoint is None:
            return None
        values = template.client_values(client)
        values.update(
            action="publish" if action is Action.WILL else action.value,
            topic=topic,
            qos=qos,
            retain=retain,
            share=(subscription.share or "") if subscription is not None else "",
            access=template.ACCESS[action],
        )
        known = template.ClaimValues(values, client.claims)
        return self._authorize(endpoint, known, action)

    def _granted(
        self, client: ClientInfo, lists: Any, action: Action, topic: str, qos: int, retain: bool
    ) -> Allow | Deny:
        compiled = client.state.get(self.id)
        if compiled is None or compiled[0] is not lists:
            rules = Rules(rules_from_lists(lists, GRANTS))
            compiled = client.state[self.id] = (lists, rules, rule_values(client, rules.variables))
        rule = compiled[1].decide(action, topic, qos, retain, compiled[2])
        if rule is None:
            return Deny(reason="no permission for it")
        if not rule.allow:
            return Deny(reason=f"denied by {rule.source}")
        return Allow(max_qos=rule.qos if action is Action.SUBSCRIBE else None)

    async def _authorize(
        self, endpoint: Endpoint, values: template.Values, action: Action
    ) -> Allow | Deny | None:
        read = self.contract.read_authorize
        answer = await self._ask(endpoint, self.contract.authorize, values, read)
        verdict = answer.verdict
        keep = self._keep(answer)
        if isinstance(verdict, Allow):
            return Allow(keep, verdict.max_qos)
        if isinstance(verdict, Deny):
            # Stored subscriptions, their queues and wills that are due go only for a no that the service itself said.
            decided = not answer.bare or action is Action.PUBLISH
            return Deny(verdict.code, verdict.reason, decided=decided, cache_for=keep)
        return None

    def _keep(self, answer: Answer) -> float:
        if answer.keep is not None:
            return answer.keep
        denied = isinstance(answer.verdict, Deny)
        return self.config.negative_cache if denied else self.config.cache

    async def _ask(
        self,
        endpoint: Endpoint,
        members: Mapping[str, str],
        values: template.Values,
        read: Callable[[int, bytes], Answer],
    ) -> Answer:
        """The service's answer, or the one that it gave a while ago. Raises Undecided."""
        service, cache = self._service, self._cache
        if service is None or cache is None:
            raise Undecided("not started")
        try:
            request: Request = render(endpoint, members, values)
            key = cache.key(read.__name__.encode() + b"\n" + bytes(request))
            answer = cache.get(key)
            if answer is None:
                answer = read(*await service.ask(request))
                cache.put(key, answer, self._keep(answer))
        except (Unavailable, Unusable, ValueError) as error:
            self.undecided += 1
            place = endpoint.url.partition("?")[0]
            raise Undecided(f"{place}: {error}") from None
        return answer

    # what it shows ------------------------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: Any) -> None:
        """Adds what `hookmq_auth_http.metrics` lists."""
        from hookmq_auth_http.metrics import register

        register(registry, self, lambda: self._service, lambda: self._cache)

    @classmethod
    @hookimpl
    def register_cli(cls, group: Any) -> None:
        """Adds ``hookmq auth-http``."""
        from hookmq_auth_http.cli import register

        register(group, cls)
