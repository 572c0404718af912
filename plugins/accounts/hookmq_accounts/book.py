"""Keep all users and groups in memory, and decide by their rules."""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final

from hookmq.plugin import Action, ClientInfo
from hookmq_toolkit.accounts import AccountError, Kind
from hookmq_toolkit.passwords import Hash
from hookmq_toolkit.rules import Rule, Rules, rule_values

from hookmq_accounts.stored import StoredAccount, parse_record

KINDS: Final[tuple[Kind, ...]] = ("user", "group")


class Unreadable(Exception):
    """A record that a decision depends on cannot be read."""


class Book:
    """The users and groups by name.

    Unreadable records are listed in `broken`, because they may contain restrictions. If no decision is possible,
    `unusable` says why. Otherwise, it is empty.
    """

    def __init__(self) -> None:
        self._accounts: dict[Kind, dict[str, StoredAccount]] = {kind: {} for kind in KINDS}
        self._names: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
        self._rules: dict[tuple[Kind, str], Rules] = {}
        self._hashes: list[Hash] | None = None
        self.members: Counter[str] = Counter()
        """Number of users by group."""
        self.delivering = 0
        """Number of users and groups with a rule for deliveries."""
        self.broken: dict[tuple[Kind, str], str] = {}
        self.unusable = "the accounts are not loaded"
        self.changes = 0
        """Number of changes so far."""

    def copy(self) -> "Book":
        """Return a book with the same accounts."""
        made = Book()
        made._accounts = {kind: dict(found) for kind, found in self._accounts.items()}
        made._names = {kind: list(names) for kind, names in self._names.items()}
        made._rules = dict(self._rules)
        made.members = self.members.copy()
        made.delivering = self.delivering
        made.broken = dict(self.broken)
        made.unusable = self.unusable
        return made

    def load(self, items: Iterable[tuple[str, bytes]]) -> None:
        """Read all records from the plugin state."""
        unusable = ""
        for key, value in items:
            kind, _, name = key.partition("/")
            if kind not in KINDS:
                unusable = f"unknown record {key[:80]!r}"
                continue
            try:
                self.put(parse_record(kind, name, value))
            except (AccountError, ValueError, AttributeError, TypeError, RecursionError) as error:
                self.broken[kind, name] = str(error) or type(error).__name__
        self.unusable = unusable

    # changes ---------------------------------------------------------------------------------------------------------

    def put(self, account: StoredAccount) -> None:
        """Add or replace an account."""
        if self._remove(account.kind, account.name) is None:
            insort(self._names[account.kind], account.name)
        self._add(account)

    def remove(self, kind: Kind, name: str) -> None:
        """Remove an account. If its record is broken, remove it from `broken`."""
        if self._remove(kind, name) is not None:
            names = self._names[kind]
            del names[bisect_left(names, name)]

    def update(self, puts: Iterable[StoredAccount], removed: Iterable[tuple[Kind, str]]) -> None:
        """Remove accounts, then add or replace others. For many accounts, this is faster than
        changing them one by one.
        """
        for kind, name in removed:
            self._remove(kind, name)
        for account in puts:
            self._remove(account.kind, account.name)
            self._add(account)
        self._names = {kind: sorted(found) for kind, found in self._accounts.items()}

    def _add(self, account: StoredAccount) -> None:
        self._accounts[account.kind][account.name] = account
        self.members.update(account.groups)
        self.delivering += account.delivers

    def _remove(self, kind: Kind, name: str) -> StoredAccount | None:
        """Remove all data about an account except its name. Return the old account."""
        self.changes += 1
        self._hashes = None
        self.broken.pop((kind, name), None)
        self._rules.pop((kind, name), None)
        old = self._accounts[kind].pop(name, None)
        if old is not None:
            self.members.subtract(old.groups)
            self.delivering -= old.delivers
        return old

    # reading ---------------------------------------------------------------------------------------------------------

    def get(self, kind: Kind, name: str) -> StoredAccount | None:
        """Return an account, or None."""
        return self._accounts[kind].get(name)

    def count(self, kind: Kind) -> int:
        """Return the number of users or groups."""
        return len(self._names[kind])

    def all(self, kind: Kind) -> tuple[StoredAccount, ...]:
        """Return all accounts of one kind, sorted by name."""
        accounts = self._accounts[kind]
        return tuple(accounts[name] for name in self._names[kind])

    def after(self, kind: Kind, cursor: str, most: int) -> tuple[list[StoredAccount], bool]:
        """Return up to `most` accounts whose names come after `cursor`, and whether there are more."""
        names, accounts = self._names[kind], self._accounts[kind]
        start = bisect_right(names, cursor) if cursor else 0
        part = names[start : start + most]
        return [accounts[name] for name in part], start + most < len(names)

    def hashes(self) -> list[Hash]:
        """Return the hashes of all users."""
        if self._hashes is None:
            users = self._accounts["user"].values()
            self._hashes = [user.hash for user in users if user.hash is not None]
        return self._hashes

    # deciding --------------------------------------------------------------------------------------------------------

    def user(self, name: str) -> StoredAccount | None:
        """Return a user, or None. Raises Unreadable if its record, or that of one of its groups, is broken."""
        if self.unusable or ("user", name) in self.broken:
            raise Unreadable(name)
        user = self._accounts["user"].get(name)
        if user is not None:
            for group in user.groups:
                if group not in self._accounts["group"]:
                    raise Unreadable(group)
        return user

    def decide(
        self,
        user: StoredAccount,
        client: ClientInfo,
        action: Action,
        topic: str,
        qos: int,
        retain: bool,
    ) -> Rule | None:
        """Return the first rule that applies, or None. The user's own rules come first, then those of its groups, in
        group order.
        """
        for owner in chain((user,), (self._accounts["group"][name] for name in user.groups)):
            rules = self._compiled(owner)
            if len(rules):
                values: Mapping[str, str] = (
                    rule_values(client, rules.variables) if rules.variables else {}
                )
                found = rules.decide(action, topic, qos, retain, values)
                if found is not None:
                    return found
        return None

    def _compiled(self, owner: StoredAccount) -> Rules:
        rules = self._rules.get((owner.kind, owner.name))
        if rules is None:
            listed = (
                one
                for order, rule in enumerate(owner.rules)
                for one in rule.compiled(f"{owner.kind} {owner.name} rule {rule.id}", order)
            )
            rules = self._rules[owner.kind, owner.name] = Rules(listed)
        return rules
