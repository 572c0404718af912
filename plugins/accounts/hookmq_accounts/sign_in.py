"""Decide on connections. Threads verify passwords, and a refusal takes equally long whether or not the user exists."""

from collections import Counter
from collections.abc import Awaitable
from functools import partial
from typing import Final, NamedTuple, Protocol

from hookmq.plugin import Accept, BrokerHandle, ClientInfo, Connect, Deny, ReasonCode
from hookmq_toolkit.passwords import (
    Busy,
    Cache,
    Checker,
    choose_decoy,
    neighbours,
    nobody,
    verify,
)

from hookmq_accounts.book import Book, Unreadable
from hookmq_accounts.settings import AccountsConfig
from hookmq_accounts.stored import StoredAccount

_WRONG: Final = Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)
_NOBODY: Final = Deny(ReasonCode.NOT_AUTHORIZED)
_BUSY: Final = Deny(ReasonCode.SERVER_BUSY)
_UNREADABLE: Final = Deny(ReasonCode.SERVER_UNAVAILABLE, decided=False, rule="unreadable account")
RESULTS: Final = (
    "accepted", "cached", "wrong_password", "unknown_user", "disabled", "no_password", "too_long", "no_user_name",
    "busy", "changed", "unreadable", "ignored",
)  # fmt: skip
Answer = Accept | Deny | None


class Admitted(NamedTuple):
    """The user that a client signed in as. It is stored in `ClientInfo.state`."""

    name: str
    mark: str


class Serving(Protocol):
    """The parts of the plugin that sign-in uses."""

    config: AccountsConfig
    book: Book
    cache: Cache
    results: Counter[str]

    @property
    def id(self) -> str: ...

    @property
    def broker(self) -> BrokerHandle: ...

    @property
    def checker(self) -> Checker: ...


class SignIn:
    """Implements `on_connect` for the plugin."""

    def __init__(self, plugin: Serving) -> None:
        self._plugin = plugin

    def decide(self, client: ClientInfo, connect: Connect) -> Answer | Awaitable[Answer]:
        """Accept or refuse a client. Returns the verdict at once if no hash needs to be computed."""
        plugin = self._plugin
        config = plugin.config
        if connect.properties.authentication_method is not None:
            return None  # the plugin that handles the method authenticates it
        name, password = client.username, connect.password
        if name is None:
            if config.anonymous == "ignore":
                return self._told("ignored", None)
            return self._told("no_user_name", _NOBODY)
        try:
            user = plugin.book.user(name)
        except Unreadable:
            return self._told("unreadable", _UNREADABLE)
        if user is None and config.unknown == "ignore":
            return self._told("ignored", None)
        if not password:
            return self._told("no_password", _WRONG)
        if len(password) > config.password_limit:
            return self._told("too_long", _WRONG)
        if client.scope.identity:
            # The listener authenticates its clients by certificate, so they are not users of this plugin.
            return self._told("unknown_user", _WRONG)
        if user is not None and user.hash is not None and user.enabled:
            key = plugin.cache.key(name, user.hash, password)
            if plugin.cache.has(key, plugin.broker.now()):
                return self._in(client, user, "cached")
        return self._verify(client, name, password)

    async def _verify(self, client: ClientInfo, name: str, password: bytes) -> Answer:
        """Verify a password. This takes just as long for unknown and disabled users."""
        plugin = self._plugin
        for _ in range(2):
            try:
                user = plugin.book.user(name)
                hash = None if user is None else user.hash
                used = hash
                if used is None:
                    hashes = plugin.book.hashes() or [nobody(plugin.config.argon2)]
                    used = choose_decoy(hashes, plugin.cache.secret, name)
                key = plugin.cache.key(name, used, password)
                host = neighbours(client.peer.host)
                right = await plugin.checker.ask(key, host, partial(verify, used, password))
                user = plugin.book.user(name)
            except Busy:
                return self._told("busy", _BUSY)
            except Unreadable:
                return self._told("unreadable", _UNREADABLE)
            if (None if user is None else user.hash) != hash:
                continue  # the password has changed meanwhile: verify against the new hash
            if user is None or not user.enabled:
                return self._told("unknown_user" if user is None else "disabled", _WRONG)
            if hash is None or not right:
                return self._told("wrong_password", _WRONG)
            plugin.cache.add(key, name, plugin.broker.now())
            return self._in(client, user, "accepted")
        return self._told("changed", _WRONG)

    def _in(self, client: ClientInfo, user: StoredAccount, result: str) -> Accept:
        plugin = self._plugin
        client.state[plugin.id] = Admitted(user.name, user.mark)
        plugin.results[result] += 1
        return Accept(user.name)

    def _told(self, result: str, answer: Answer) -> Answer:
        self._plugin.results[result] += 1
        return answer
