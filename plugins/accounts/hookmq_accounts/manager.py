"""The service that manages users and groups. Every change is validated, stored in one batch, and applied at once."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from hookmq.plugin import BrokerHandle, Page, PluginError
from hookmq_toolkit.accounts import Account, AccountError, Kind
from hookmq_toolkit.passwords import Busy, Pool, make, prepare, read
from hookmq_toolkit.threads import in_thread

from hookmq_accounts.book import Book
from hookmq_accounts.document import VERSION, Effects, ImportPlan, Key, effects, plan_import
from hookmq_accounts.rule import invalid, parse_rule
from hookmq_accounts.settings import AccountsConfig
from hookmq_accounts.stored import StoredAccount

EXAMINED: Final = 1000
"""Maximum number of accounts that one page examines."""
_ATTEMPTS: Final = 3
"""Maximum number of times that an import is planned, if other changes keep interfering."""


class Served(Protocol):
    """The parts of the plugin that the manager uses."""

    config: AccountsConfig
    book: Book

    @property
    def broker(self) -> BrokerHandle: ...

    @property
    def pool(self) -> Pool: ...

    def changed(self, users: set[str], rights: bool) -> None:
        """Apply a change to connected clients. `users` contains the users that were deleted, disabled or given a new
        password. `rights` is true if any rules have changed.
        """


class Manager:
    """Implements `hookmq_toolkit.accounts.AccountManager` for the plugin."""

    def __init__(self, plugin: Served) -> None:
        self._plugin = plugin

    # reading ---------------------------------------------------------------------------------------------------------

    def find(self, kind: Kind, name: str) -> Account:
        """Return one user or group."""
        return self._get(kind, name).shown()

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
        """Return one page of users or groups, sorted by name."""
        part, more = self._plugin.book.after(kind, cursor, EXAMINED)
        found: list[Account] = []
        last = ""
        for one in part:
            if len(found) == limit:
                more = True
                break
            last = one.name
            if (
                search in one.name
                and (not group or group in one.groups)
                and (enabled is None or one.enabled == enabled)
            ):
                found.append(one.shown())
        return Page(tuple(found), last if more else "")

    async def export(self, hashes: bool) -> Mapping[str, Any]:
        """Return all users and groups as one document. A thread builds it."""
        self._check_usable()
        book = self._plugin.book
        if book.broken:
            kind, name = next(iter(book.broken))
            raise AccountError("conflict", f"the record of the {kind} {name!r} cannot be read")
        groups, users = book.all("group"), book.all("user")

        def work() -> Mapping[str, Any]:
            return {
                "version": VERSION,
                "groups": [one.exported(False) for one in groups],
                "users": [one.exported(hashes) for one in users],
            }

        return await in_thread(self._plugin.broker.runtime, work)

    # changes ---------------------------------------------------------------------------------------------------------

    async def create(
        self, kind: Kind, fields: Mapping[str, Any], password: bytes | None = None
    ) -> Account:
        """Create a user or group."""
        self._check_usable()
        if "name" not in fields:
            raise invalid("name", "the field is missing")
        made = self._changed(StoredAccount(kind, ""), fields)
        self._check_new(made)
        if password is not None:
            if made.hash is not None:
                raise invalid("hash", "give either a password or a hash")
            made = await self._hashed(made, password)
            self._check_new(made)  # another request may have been faster
            self._check_groups(made, ())
        now = self._plugin.broker.time()
        made = replace(made, created_at=now, changed_at=now)
        await self._apply([made], [])
        return made.shown()

    async def change(self, kind: Kind, name: str, fields: Mapping[str, Any]) -> Account:
        """Change the given fields."""
        old = self._get(kind, name)
        if "name" in fields:
            raise invalid("name", "a name cannot be changed")
        return await self._store(self._changed(old, fields))

    async def delete(self, kind: Kind, name: str) -> None:
        """Delete a user or group, even one whose record is broken."""
        self._check_usable()
        if (kind, name) not in self._plugin.book.broken:
            self._get(kind, name)
        members = self._plugin.book.members[name] if kind == "group" else 0
        if members:
            raise AccountError("conflict", f"{members} users have this group: change them first")
        await self._apply([], [(kind, name)])

    async def set_password(self, name: str, password: bytes) -> None:
        """Set a user's password."""
        self._get("user", name)
        made = await self._hashed(StoredAccount("user", name), password)
        await self._store(replace(self._get("user", name), hash=made.hash))

    async def add_rule(
        self, kind: Kind, name: str, rule: Mapping[str, Any], position: int | None = None
    ) -> Account:
        """Insert a rule."""
        old = self._get(kind, name)
        made = parse_rule(rule, old.next_rule, "rule")
        if len(old.rules) >= self._plugin.config.max_rules:
            raise AccountError("conflict", f"it has {len(old.rules)} rules, which is the limit")
        at = len(old.rules) if position is None else position
        if not 0 <= at <= len(old.rules):
            raise invalid("position", f"expected 0 to {len(old.rules)}")
        rules = (*old.rules[:at], made, *old.rules[at:])
        return await self._store(replace(old, rules=rules, next_rule=old.next_rule + 1))

    async def delete_rule(self, kind: Kind, name: str, rule_id: int) -> Account:
        """Delete a rule."""
        old = self._get(kind, name)
        rules = tuple(one for one in old.rules if one.id != rule_id)
        if len(rules) == len(old.rules):
            raise AccountError("missing", "no rule has this id", "rule_id")
        return await self._store(replace(old, rules=rules))

    async def load(
        self, document: Mapping[str, Any], replace: bool, check: bool
    ) -> Mapping[str, int]:
        """Create or change all users and groups in a document, or none of them.

        A thread parses and validates the document. Only the result is applied on the event loop, in one turn.
        """
        self._check_usable()
        plan = await self._planned(document, replace)
        prepare(plan.schemes)
        if not check:
            waiting = self._put(plan.records, plan.deletes)
            self._plugin.book = plan.book
            await self._applied(plan.effects, plan.records, plan.deletes, waiting)
        return plan.counts

    # parts -----------------------------------------------------------------------------------------------------------

    async def _planned(self, document: Mapping[str, Any], replace: bool) -> ImportPlan:
        """Plan an import based on the current accounts. The accounts may change while the thread works."""
        plugin = self._plugin
        for _ in range(_ATTEMPTS):
            book, changes = plugin.book, plugin.book.changes
            plan = partial(
                plan_import, book.copy(), plugin.config, plugin.broker.time(), document, replace
            )
            found = await in_thread(plugin.broker.runtime, plan)
            if plugin.book is book and book.changes == changes:
                return found
        raise AccountError("conflict", "the accounts were changed during the import: try again")

    def _changed(self, old: StoredAccount, fields: Mapping[str, Any]) -> StoredAccount:
        made = self._fields(old, fields, "")
        self._check_groups(made, old.groups)
        return made

    def _check_groups(self, account: StoredAccount, known: Sequence[str]) -> None:
        """Check that a user's groups exist, except those that the user already had."""
        for index, group in enumerate(account.groups):
            if group not in known and self._plugin.book.get("group", group) is None:
                raise invalid(f"groups[{index}]", "no group has this name")

    def _fields(self, old: StoredAccount, fields: Mapping[str, Any], place: str) -> StoredAccount:
        made = old.changed(fields, self._plugin.config.max_rules, place)
        if made.hash is not None and made.hash != old.hash:
            prepare({made.hash.scheme})
        return made

    async def _hashed(self, account: StoredAccount, password: bytes) -> StoredAccount:
        config = self._plugin.config
        if not config.min_password <= len(password) <= config.password_limit:
            text = f"expected {config.min_password} to {config.password_limit} bytes"
            raise invalid("password", text)
        done = self._plugin.broker.runtime.promise()

        def ended(value: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_result((value, error))

        try:
            self._plugin.pool.submit("", partial(make, password, "yaml", config.argon2), ended)
        except Busy as error:
            raise _BUSY from error
        text, failure = await done
        if isinstance(failure, Busy):
            raise _BUSY
        if failure is not None:
            raise failure
        return replace(account, hash=read(text, "yaml"))

    async def _store(self, account: StoredAccount) -> Account:
        now = self._plugin.broker.time()
        made = replace(account, changed_at=now, revision=account.revision + 1)
        await self._apply([made], [])
        return made.shown()

    async def _apply(self, puts: Sequence[StoredAccount], deletes: Sequence[Key]) -> None:
        """Store changes in one batch, apply them, and wait for the commit. Changes nothing if a limit is exceeded."""
        book = self._plugin.book
        records = [(one.key, one.record()) for one in puts]
        keys = [f"{kind}/{name}" for kind, name in deletes]
        waiting = self._put(records, keys)
        found = effects(book, puts, deletes)
        for kind, name in deletes:
            book.remove(kind, name)
        for one in puts:
            book.put(one)
        await self._applied(found, records, keys, waiting)

    def _put(
        self, records: Sequence[tuple[str, bytes]], deletes: Sequence[str]
    ) -> Awaitable[object] | None:
        """Store changes in one batch. Return an awaitable that completes after the commit. Change nothing if a limit is
        exceeded.
        """
        state = self._plugin.broker.state
        before = {key: state.get(key) for key in (*deletes, *(key for key, _ in records))}
        last: Awaitable[object] | None = None
        try:
            for key in deletes:
                last = state.delete(key)
            for key, record in records:
                last = state.put(key, record)
        except PluginError as error:
            for key, _ in records:
                state.delete(key)
            for key, value in before.items():
                if value is not None:
                    state.put(key, value)
            raise AccountError("conflict", error.message) from None
        return last  # all changes are in the same batch

    async def _applied(
        self,
        found: Effects,
        records: Sequence[tuple[str, bytes]],
        deletes: Sequence[str],
        waiting: Awaitable[object] | None,
    ) -> None:
        """Apply a change to clients, log the change, and wait for its commit."""
        self._plugin.changed(found.users, found.rights)
        self._plugin.broker.log(
            "info", "accounts.changed",
            stored=[key for key, _ in records[:_LOGGED]], deleted=list(deletes[:_LOGGED]),
            count=len(records) + len(deletes),
        )  # fmt: skip
        if waiting is not None:
            await waiting

    def _get(self, kind: Kind, name: str) -> StoredAccount:
        self._check_usable()
        found = self._plugin.book.get(kind, name)
        if found is None:
            if (kind, name) in self._plugin.book.broken:
                text = f"the record of this {kind} cannot be read: delete it, or create it again"
                raise AccountError("conflict", text)
            raise AccountError("missing", f"no {kind} has this name", kind)
        return found

    def _check_new(self, account: StoredAccount) -> None:
        book, config = self._plugin.book, self._plugin.config
        kind = account.kind
        if book.get(kind, account.name) is not None:
            raise AccountError("conflict", f"a {kind} has this name", "name")
        most = config.max_users if kind == "user" else config.max_groups
        if book.count(kind) >= most:
            raise AccountError("conflict", f"there are {most} {kind}s, which is the limit")

    def _check_usable(self) -> None:
        if self._plugin.book.unusable:
            raise AccountError("conflict", self._plugin.book.unusable)


_BUSY: Final = AccountError("busy", "too many passwords are being hashed")
_LOGGED: Final = 10
"""Maximum number of names in a log event."""
