"""Import documents with users and groups, and work out what an import would change. All of this may run in a thread."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from hookmq_toolkit.accounts import Kind

from hookmq_accounts.book import KINDS, Book
from hookmq_accounts.rule import invalid
from hookmq_accounts.settings import AccountsConfig
from hookmq_accounts.stored import StoredAccount, check_name

VERSION: Final = 1
"""Version of exported documents."""
_IGNORED: Final = frozenset({"created_at", "changed_at", "revision", "has_password"})
"""Fields in the shown form of accounts that an import ignores."""
Key = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Effects:
    """How a change affects connected clients. `users` contains the users that were deleted, disabled or given a new
    password. `rights` is true if any rules have changed.
    """

    users: set[str]
    rights: bool


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """A valid import: the resulting accounts, the records to store, and the keys to delete."""

    book: Book
    records: list[tuple[str, bytes]]
    deletes: list[str]
    effects: Effects
    counts: dict[str, int]
    schemes: set[str]
    """The schemes of the password hashes."""


def plan_import(
    book: Book, config: AccountsConfig, now: float, document: Mapping[str, Any], replace: bool
) -> ImportPlan:
    """Validate a document, and return what an import would change. Changes `book`, which must be a copy.

    Raises AccountError.
    """
    if document.get("version", VERSION) != VERSION:
        raise invalid("version", f"expected {VERSION}")
    puts: dict[Key, StoredAccount] = {}
    counts = {"created": 0, "changed": 0, "deleted": 0}
    for kind in reversed(KINDS):
        for place, fields in _listed(document, f"{kind}s"):
            one = _loaded(book, config, now, kind, fields, place)
            if (kind, one.name) in puts:
                raise invalid(place + "name", "the name is repeated")
            counts["changed" if one.revision > 1 else "created"] += 1
            puts[kind, one.name] = one
    present = [(kind, one.name) for kind in KINDS for one in book.all(kind)]
    deletes = [key for key in (*present, *book.broken) if replace and key not in puts]
    counts["deleted"] = len(deletes)
    _check_whole(book, config, puts, set(deletes))
    stored = list(puts.values())
    found = effects(book, stored, deletes)
    book.update(stored, deletes)
    return ImportPlan(
        book,
        [(one.key, one.record()) for one in stored],
        [f"{kind}/{name}" for kind, name in deletes],
        found,
        counts,
        {one.hash.scheme for one in stored if one.hash is not None},
    )


def effects(book: Book, puts: Sequence[StoredAccount], deletes: Sequence[Key]) -> Effects:
    """Return how a change to the accounts in `book` affects connected clients."""
    users = {name for kind, name in deletes if kind == "user"}
    rights = bool(deletes)
    for one in puts:
        old = book.get(one.kind, one.name)
        rights = rights or old is None or _rights(old) != _rights(one)
        if (
            one.kind == "user"
            and old is not None
            and (old.mark != one.mark or (old.enabled and not one.enabled))
        ):
            users.add(one.name)
    return Effects(users, rights)


def _rights(account: StoredAccount) -> tuple[object, ...]:
    return account.rules, account.groups, account.enabled


def _loaded(
    book: Book,
    config: AccountsConfig,
    now: float,
    kind: Kind,
    fields: Mapping[str, Any],
    place: str,
) -> StoredAccount:
    given = {name: one for name, one in fields.items() if name not in _IGNORED}
    if "name" not in given:
        raise invalid(place + "name", "the field is missing")
    check_name(given["name"], place + "name")
    old = book.get(kind, given["name"])
    if old is None:
        start = StoredAccount(kind, given["name"], created_at=now, changed_at=now)
        return start.changed(given, config.max_rules, place)
    start = replace(old, enabled=True, groups=(), rules=(), note="")
    made = start.changed(given, config.max_rules, place)
    return replace(made, changed_at=now, revision=old.revision + 1)


def _check_whole(
    book: Book, config: AccountsConfig, puts: Mapping[Key, StoredAccount], deletes: Set[Key]
) -> None:
    """Check that groups and limits will be valid after the import."""
    limits: dict[Kind, int] = {"user": config.max_users, "group": config.max_groups}
    for kind, most in limits.items():
        names = {one.name for one in book.all(kind) if (kind, one.name) not in deletes}
        names |= {name for found, name in puts if found == kind}
        if len(names) > most:
            raise invalid(f"{kind}s", f"there would be {len(names)}; max_{kind}s is {most}")
    groups = {one.name for one in book.all("group") if ("group", one.name) not in deletes}
    groups |= {name for kind, name in puts if kind == "group"}
    kept = [one for one in book.all("user") if ("user", one.name) not in deletes]
    for user in (*puts.values(), *(one for one in kept if ("user", one.name) not in puts)):
        for group in user.groups:
            if group not in groups:
                raise invalid("groups", f"user {user.name!r} has the unknown group {group!r}")


def _listed(document: Mapping[str, Any], name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects in one of a document's lists, each with its location."""
    given = document.get(name)
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        raise invalid(name, "expected a list")
    found = []
    for index, one in enumerate(given):
        if not isinstance(one, Mapping):
            raise invalid(f"{name}[{index}]", "expected an object")
        found.append((f"{name}[{index}].", one))
    return found
