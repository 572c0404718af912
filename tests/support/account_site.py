"""An in-memory broker with the `accounts` plugin, and methods that change its users and groups."""

from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

from hookmq.plugin import Plugin
from hookmq_accounts.plugin import AccountsPlugin
from hookmq_testing import DurableStore, Harness, MemoryClient, make_plugin
from hookmq_toolkit.accounts import SERVICE, AccountManager

T = TypeVar("T")
CHEAP = {"memory": 1 << 20, "passes": 1, "lanes": 1}
SECRET = b"correct horse"


class AccountSite:
    """A broker whose only users are accounts. It starts without any accounts."""

    def __init__(
        self,
        *others: Plugin,
        last: Plugin | None = None,
        store: DurableStore | None = None,
        authz: str = "deny",
        **config: Any,
    ) -> None:
        self._again = partial(type(self), *others, last=last, store=store, authz=authz, **config)
        made = make_plugin(AccountsPlugin, {"argon2": CHEAP, **config}, "accounts")
        settings = {"auth": {"default": "deny"}, "authz": {"default": authz}}
        plugins: list[Any] = [*others, made] if last is None else [*others, made, last]
        self.harness = Harness(plugins, config=settings, store=store)

    def restart(self) -> None:
        """Stop the broker and start a new one, with a new plugin object and the same store."""
        self.harness.close()
        self.harness = self._again().harness

    @property
    def plugin(self) -> AccountsPlugin:
        """The plugin object."""
        instance = self.harness.hooks.instance("accounts")
        assert instance is not None
        assert isinstance(instance.plugin, AccountsPlugin)
        return instance.plugin

    @property
    def manager(self) -> AccountManager:
        """The service that the plugin offers to other plugins."""
        found = self.harness.handle("accounts").services(SERVICE)["accounts"]
        assert isinstance(found, AccountManager)
        return found

    def run(self, work: Awaitable[T]) -> T:
        """Run a change, wait until it is complete, and return its result."""
        found: Any = self.harness.clock.run(work)
        self.harness.settle()
        return found  # type: ignore[no-any-return]

    def user(self, name: str, *rules: dict[str, Any], **fields: Any) -> Any:
        """Create a user with the password `SECRET`."""
        given = {"name": name, "rules": list(rules), **fields}
        password = None if "hash" in given else SECRET
        return self.run(self.manager.create("user", given, password))

    def group(self, name: str, *rules: dict[str, Any]) -> Any:
        """Create a group."""
        return self.run(self.manager.create("group", {"name": name, "rules": list(rules)}))

    def client(self, client_id: str, username: str | None = None, **options: Any) -> MemoryClient:
        """Connect as a user. The user name defaults to the client id."""
        given = {"password": SECRET, "keep_alive": 0, "username": username or client_id, **options}
        return self.harness.connect(client_id, **given)


def allow(*words: str, topic: str = "#", **conditions: Any) -> dict[str, Any]:
    """Return a rule that allows actions."""
    return {"allow": list(words), "topic": [topic], **conditions}


def deny(*words: str, topic: str = "#", **conditions: Any) -> dict[str, Any]:
    """Return a rule that denies actions."""
    return {"deny": list(words), "topic": [topic], **conditions}
