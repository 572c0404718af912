"""A service for managing users, groups and their rules: one plugin provides it, and another can offer it to operators.

A plugin offers an `AccountManager` in `Plugin.offered_services` under the name `SERVICE`.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Literal, Protocol, runtime_checkable

from hookmq.plugin import Page

SERVICE: Final = "accounts"
"""The name of the service in `Plugin.offered_services`."""
Kind = Literal["user", "group"]
"""Whether an account is a user or a group."""
Account = Mapping[str, Any]
"""A user or group as JSON values, without a password or hash."""


class AccountError(Exception):
    """A refused request. Nothing has changed. The message contains no secrets.

    `reason` is ``invalid`` (the value of `field` is invalid), ``missing`` (there is no such user, group or rule),
    ``conflict`` (the request conflicts with the current state) or ``busy`` (too many passwords are being hashed).
    """

    def __init__(
        self, reason: Literal["invalid", "missing", "conflict", "busy"], text: str, field: str = ""
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.field = field


@runtime_checkable
class AccountManager(Protocol):
    """Users and groups with rules. Every change takes effect at once, and the returned awaitable completes after the
    commit.

    Call the methods only on the event loop. Each of them raises AccountError.

    The fields of a user are ``name``, ``enabled``, ``groups``, ``rules`` and ``note``, and those of a group ``name``,
    ``rules`` and ``note``. A rule has either ``allow`` or ``deny`` with a list of actions, and ``topic`` with a list of
    filters. It may also have ``qos`` and ``retain``. The manager adds ``id`` to each rule, and ``created_at``,
    ``changed_at`` and ``revision`` to each account.
    """

    def find(self, kind: Kind, name: str) -> Account:
        """Return one user or group."""

    def page(
        self,
        kind: Kind,
        cursor: str,
        limit: int,
        *,
        search: str = "",
        group: str = "",
        enabled: bool | None = None,
    ) -> Page[Account]:
        """Return users or groups sorted by name, starting after `cursor`. `search` matches any part of the name. `group`
        and `enabled` filter the users. A page may be short even if more accounts follow.
        """

    def create(
        self, kind: Kind, fields: Mapping[str, Any], password: bytes | None = None
    ) -> Awaitable[Account]:
        """Create a user or group. For a user, `fields` may contain ``hash`` instead of `password`."""

    def change(self, kind: Kind, name: str, fields: Mapping[str, Any]) -> Awaitable[Account]:
        """Change the given fields. The account's revision increases by one."""

    def delete(self, kind: Kind, name: str) -> Awaitable[None]:
        """Delete a user or group. A group that still has users cannot be deleted."""

    def set_password(self, name: str, password: bytes) -> Awaitable[None]:
        """Set a user's password."""

    def add_rule(
        self, kind: Kind, name: str, rule: Mapping[str, Any], position: int | None = None
    ) -> Awaitable[Account]:
        """Insert a rule before the rule at `position`, counted from 0, or add it at the end."""

    def delete_rule(self, kind: Kind, name: str, rule_id: int) -> Awaitable[Account]:
        """Delete the rule with this id."""

    def export(self, hashes: bool) -> Awaitable[Mapping[str, Any]]:
        """Return all users and groups as one document. With `hashes`, it includes the password hashes."""

    def load(
        self, document: Mapping[str, Any], replace: bool, check: bool
    ) -> Awaitable[Mapping[str, int]]:
        """Create or change all users and groups in a document from `export`, or none of them.

        With `replace`, delete all other accounts. With `check`, change nothing. The result is the number of accounts
        created, changed and deleted. A user without a ``hash`` keeps its password; a new user without a ``hash`` cannot
        connect.
        """
