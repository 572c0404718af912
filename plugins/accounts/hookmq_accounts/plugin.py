"""Implement the `accounts` plugin: users and groups with rules, which operators change while the broker is running."""

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from hookmq.mqtt_api import SHARE_PREFIX
from hookmq.plugin import (
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
    ReasonCode,
    SessionSnapshot,
    Subscription,
    Timer,
    hookimpl,
)
from hookmq_toolkit.accounts import SERVICE
from hookmq_toolkit.listing import visit_all
from hookmq_toolkit.passwords import Cache, Checker, Pool, prepare

from hookmq_accounts.book import Book, Unreadable
from hookmq_accounts.manager import Manager
from hookmq_accounts.settings import AccountsConfig
from hookmq_accounts.sign_in import RESULTS, Admitted, Answer, SignIn

_ASKED: Final = frozenset({Action.PUBLISH, Action.SUBSCRIBE, Action.WILL})
_UNREADABLE: Final = Deny(
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, decided=False, rule="unreadable account"
)
_LATER: Final = (5.0, 20.0, 60.0)
"""Seconds after a change until connections are checked again. A client accepted before the change may still have been
waiting for another plugin or its session."""


class AccountsPlugin(Plugin):
    """Authenticates users by password and authorizes them by rules. The plugin state holds the accounts.

    Only clients that this plugin accepted are subject to its rules. It abstains for all others.
    """

    Config = AccountsConfig
    config: AccountsConfig
    per_node = "each node has its own accounts, and a user removed on one node can still connect to the others"

    def __init__(self, config: AccountsConfig, context: Context) -> None:
        super().__init__(config, context)
        self.book = Book()
        self.cache = Cache(config.cache_time, config.cache_size)
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        self.decisions: Counter[str] = Counter(
            {"allow": 0, "deny": 0, "no_match": 0, "unreadable": 0}
        )
        self.disconnected = 0
        """Number of clients that were disconnected because their account changed."""
        self.offered_services = {SERVICE: Manager(self)}
        self._sign_in = SignIn(self)
        self._broker: BrokerHandle | None = None
        self._pool: Pool | None = None
        self._checker: Checker | None = None
        self._sweeping_since: float | None = None
        self._again = False
        self._later: list[Timer] = []

    @property
    def broker(self) -> BrokerHandle:
        """The broker, available after startup."""
        if self._broker is None:
            raise RuntimeError("the plugin has not started")
        return self._broker

    @property
    def pool(self) -> Pool:
        """The threads that hash passwords, available after startup."""
        if self._pool is None:
            raise RuntimeError("the plugin has not started")
        return self._pool

    @property
    def checker(self) -> Checker:
        """Verifies passwords; available after startup."""
        if self._checker is None:
            raise RuntimeError("the plugin has not started")
        return self._checker

    @property
    def authorize_actions(self) -> frozenset[Action]:  # type: ignore[override]
        """The actions that the plugin decides on. They include deliveries only if a rule names them."""
        return _ASKED | {Action.DELIVER} if self.book.delivering else _ASKED

    @property
    def admission(self) -> Admission:
        """The clients that this plugin accepts, for ``hookmq check``."""
        config = self.config
        given = {"unknown: ignore": config.unknown, "anonymous: ignore": config.anonymous}
        lacking = [setting for setting, value in given.items() if value == "deny"]
        return Admission(
            "users with an account",
            "left" if not lacking else "some" if len(lacking) == 1 else "refused",
            to_share=" and ".join(lacking),
        )

    # lifecycle -------------------------------------------------------------------------------------------------------

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Load the accounts."""
        self._broker = broker
        self._make_pool()
        items: list[tuple[str, bytes]] = []
        cursor, more = "", True
        while more:
            page = broker.state.items(cursor=cursor, limit=1000)
            items += page.items
            cursor, more = page.cursor, bool(page.cursor)
        book = Book()
        book.load(items)
        prepare({"argon2id", *(hash.scheme for hash in book.hashes())})
        self.book = book
        if book.unusable:
            broker.log("error", "accounts.unusable", error=book.unusable)
        for (kind, name), error in book.broken.items():
            broker.log("error", "accounts.unreadable", kind=kind, name=name, error=error)
        # A replaced plugin object may have accepted clients whose account has changed since.
        self._sweep_later()

    def reconfigure(self, config: AccountsConfig) -> Callable[[], None]:
        """Continue with the new settings. Creating a new plugin object instead could lose a change to an account."""

        def apply() -> None:
            self.config = config
            self.cache = Cache(config.cache_time, config.cache_size)
            if self._broker is not None:
                self._make_pool()
                self._broker.invalidate_authz()

        return apply

    @hookimpl
    def on_shutdown(self) -> None:
        """Forget accepted passwords."""
        self.cache.clear()
        self._cancel_later()

    def _make_pool(self) -> None:
        runtime = self.broker.runtime
        self._pool = Pool(runtime, self.config.threads, self.config.queue)
        self._checker = Checker(runtime, self._pool)

    # decisions -------------------------------------------------------------------------------------------------------

    @hookimpl
    def on_connect(self, client: ClientInfo, connect: Connect) -> Answer | Awaitable[Answer]:
        """Accept a user with the right password."""
        return self._sign_in.decide(client, connect)

    @hookimpl
    def authorize(
        self,
        client: ClientInfo,
        action: Action,
        topic: str,
        message: Message | None,
        subscription: Subscription | None,
    ) -> Allow | Deny | None:
        """Decide by the first rule that applies. A user's own rules come before those of its groups."""
        if client.vouched_by != f"plugin:{self.id}" or client.identity is None:
            return None
        try:
            user = self.book.user(client.identity)
        except Unreadable:
            self.decisions["unreadable"] += 1
            return _UNREADABLE
        if user is None or not user.enabled:
            why = "no such user" if user is None else "the user is disabled"
            return self._deny(why, "not authorized")
        qos, retain = 0, False
        if message is not None:
            qos, retain = message.qos, message.retain
            if subscription is not None:  # a message is delivered at the lower of the two
                qos = min(qos, subscription.qos)
        rule = None
        # The broker has already removed one $share/NAME/. No rule can exist for a second one.
        if action is not Action.SUBSCRIBE or not topic.startswith(SHARE_PREFIX):
            rule = self.book.decide(user, client, action, topic, qos, retain)
        if rule is None:
            if self.config.no_match == "abstain":
                self.decisions["no_match"] += 1
                return None
            return self._deny("no rule", "no rule allows it", "no_match")
        if rule.allow:
            self.decisions["allow"] += 1
            return Allow(max_qos=rule.qos, rule=rule.source)
        return self._deny(rule.source, f"denied by {rule.source}")

    def _deny(self, rule: str, reason: str, result: str = "deny") -> Deny:
        self.decisions[result] += 1
        return Deny(reason=reason if self.config.explain else None, rule=rule)

    # changes ---------------------------------------------------------------------------------------------------------

    def changed(self, users: set[str], rights: bool) -> None:
        """Apply a change to connected clients and stored sessions."""
        if users:
            self.cache.forget(users)
        if rights:
            self.broker.invalidate_authz()
        if users:
            self._sweep()
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._cancel_later()  # the present sweep takes the place of those that are due for earlier changes
        runtime = self.broker.runtime
        self._later = [runtime.call_later(delay, self._sweep) for delay in _LATER]

    def _cancel_later(self) -> None:
        for timer in self._later:
            timer.cancel()
        self._later = []

    def _sweep(self) -> None:
        """Disconnect clients whose account was deleted, was disabled or has a new password. Only one sweep runs at a
        time."""
        broker = self.broker
        since = self._sweeping_since
        if since is not None and broker.now() - since < _LATER[-1]:  # otherwise, it has failed
            self._again = True
            return
        self._sweeping_since = broker.now()
        visit_all(
            broker.runtime,
            partial(broker.sessions, limit=1000, connected=True),
            self._check,
            self._swept,
        )

    def _swept(self) -> None:
        self._sweeping_since = None
        if self._again:
            self._again = False
            self._sweep()

    def _check(self, session: SessionSnapshot) -> None:
        client = self.broker.client(session.client_id)
        was = None if client is None else client.state.get(self.id)
        if not isinstance(was, Admitted):
            return
        user = self.book.get("user", was.name)
        if user is None or not user.enabled or user.mark != was.mark:
            self.disconnected += 1
            # The will would be authorized with the permissions of a user that the client no longer is.
            self.broker.disconnect(session.client_id, ReasonCode.NOT_AUTHORIZED, drop_will=True)

    # registration ----------------------------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the ``hookmq_accounts_*`` metrics."""
        from hookmq_accounts.metrics import register

        register(registry, self)
