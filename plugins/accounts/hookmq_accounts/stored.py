"""Users and groups as they are stored: validated fields, JSON records, and the form that the service returns."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hookmq_toolkit.accounts import AccountError, Kind
from hookmq_toolkit.passwords import Hash, read

from hookmq_accounts.rule import AccountRule, invalid, parse_rule, texts

MAX_NAME: Final = 512
"""Maximum length of a name, in bytes of UTF-8."""
MAX_NOTE: Final = 256
MAX_GROUPS: Final = 32
"""Maximum number of groups per user."""
FORMAT: Final = 1
"""Version of the records. Records of other versions are not read, because they may contain unknown restrictions."""
_COMMON: Final = frozenset({"name", "rules", "note"})
FIELDS: Final[Mapping[Kind, frozenset[str]]] = {
    "user": _COMMON | {"enabled", "groups", "hash"},
    "group": _COMMON,
}
_RECORD: Final = frozenset(
    {"format", "rules", "next_rule", "note", "created_at", "changed_at", "revision"}
)


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """A user or group. `next_rule` is the id for the next new rule, so that ids are never reused."""

    kind: Kind
    name: str
    rules: tuple[AccountRule, ...] = ()
    next_rule: int = 1
    note: str = ""
    created_at: float = 0.0
    changed_at: float = 0.0
    revision: int = 1
    enabled: bool = True
    groups: tuple[str, ...] = ()
    hash: Hash | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """The key in the plugin state."""
        return f"{self.kind}/{self.name}"

    @property
    def delivers(self) -> bool:
        """Whether a rule names the `deliver` action. If so, the plugin must also decide on deliveries."""
        return any("deliver" in rule.words for rule in self.rules)

    @property
    def mark(self) -> str:
        """A value that changes when the password changes or the account is recreated. It does not reveal the hash."""
        text = "" if self.hash is None else self.hash.text
        return hashlib.sha256(f"{self.created_at!r}:{text}".encode()).hexdigest()[:16]

    def shown(self) -> dict[str, Any]:
        """Return the JSON form, without the hash."""
        found: dict[str, Any] = {
            "name": self.name,
            "note": self.note,
            "rules": [rule.shown() for rule in self.rules],
            "created_at": self.created_at,
            "changed_at": self.changed_at,
            "revision": self.revision,
        }
        if self.kind == "user":
            found |= {
                "enabled": self.enabled,
                "groups": list(self.groups),
                "has_password": self.hash is not None,
            }
        return found

    def exported(self, hashes: bool) -> dict[str, Any]:
        """Return the fields that recreate this account when passed to `changed`."""
        found: dict[str, Any] = {
            "name": self.name,
            "note": self.note,
            "rules": [rule.shown(with_id=False) for rule in self.rules],
        }
        if self.kind == "user":
            found |= {"enabled": self.enabled, "groups": list(self.groups)}
            if hashes and self.hash is not None:
                found["hash"] = self.hash.text
        return found

    def record(self) -> bytes:
        """Return the JSON record."""
        found: dict[str, Any] = {
            "format": FORMAT,
            "rules": [rule.shown() for rule in self.rules],
            "next_rule": self.next_rule,
            "note": self.note,
            "created_at": self.created_at,
            "changed_at": self.changed_at,
            "revision": self.revision,
        }
        if self.kind == "user":
            text = None if self.hash is None else self.hash.text
            found |= {"enabled": self.enabled, "groups": list(self.groups), "hash": text}
        return json.dumps(found, ensure_ascii=False).encode()

    def changed(self, given: Mapping[str, Any], max_rules: int, where: str = "") -> "StoredAccount":
        """Return a copy with the given fields. `where` is the fields' location, for use in errors. Raises
        AccountError.
        """
        made = self
        for name, value in given.items():
            place = where + name
            if name not in FIELDS[self.kind]:
                raise invalid(place, "unknown field")
            if name == "name":
                check_name(value, place)
                made = replace(made, name=value)
            elif name == "note":
                made = replace(made, note=_note(value, place))
            elif name == "rules":
                made = made.with_rules(value, max_rules, place)
            elif name == "enabled":
                if type(value) is not bool:
                    raise invalid(place, "expected true or false")
                made = replace(made, enabled=value)
            elif name == "groups":
                made = replace(made, groups=texts(value, place, MAX_GROUPS, 0))
            elif value is not None:
                made = replace(made, hash=_hash(value, place))
        return made

    def with_rules(self, value: object, max_rules: int, place: str) -> "StoredAccount":
        """Return a copy with different rules, which get new ids."""
        if not isinstance(value, list | tuple):
            raise invalid(place, "expected a list of rules")
        if len(value) > max_rules:
            raise invalid(place, f"expected at most {max_rules} rules")
        first = self.next_rule
        rules = tuple(
            parse_rule(one, first + index, f"{place}[{index}]") for index, one in enumerate(value)
        )
        return replace(self, rules=rules, next_rule=first + len(rules))


def parse_record(kind: Kind, name: str, data: bytes) -> StoredAccount:
    """Return the account in a record. Raises AccountError or ValueError if any part of it cannot be understood."""
    found = json.loads(data)
    wanted = _RECORD | (FIELDS[kind] - _COMMON)
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.keys() != wanted:
        raise ValueError("the record has another format")
    check_name(name, "name")
    numbers = [found[key] for key in ("next_rule", "revision")]
    times = [found[key] for key in ("created_at", "changed_at")]
    if not all(type(one) is int for one in numbers) or not all(
        type(one) in (int, float) for one in times
    ):
        raise ValueError("the record has an invalid number")
    made = StoredAccount(
        kind, name, (), numbers[0], "", float(times[0]), float(times[1]), numbers[1]
    )
    rules = []
    for rule in found.pop("rules"):
        if type(rule.get("id")) is not int:
            raise ValueError("a rule has no id")
        rules.append(parse_rule(rule, rule["id"], "rules"))
    fields = {key: value for key, value in found.items() if key in FIELDS[kind]}
    return replace(made.changed(fields, 0), rules=tuple(rules))


def check_name(value: object, field: str) -> None:
    """Raise AccountError unless `value` is a valid name."""
    if not isinstance(value, str):
        raise invalid(field, "expected a string")
    if not value:
        raise invalid(field, "expected at least 1 character")
    if not value.isprintable():
        raise invalid(field, "expected printable characters")
    if len(value.encode()) > MAX_NAME:
        raise invalid(field, f"expected at most {MAX_NAME} bytes")


def _note(value: object, field: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_NOTE:
        raise invalid(field, f"expected a string of at most {MAX_NOTE} characters")
    try:
        value.encode()
    except UnicodeEncodeError:  # the record could not be stored
        raise invalid(field, "expected valid Unicode") from None
    return value


def _hash(value: object, field: str) -> Hash:
    if not isinstance(value, str):
        raise invalid(field, "expected a string")
    try:
        return read(value, "yaml")
    except ValueError as error:  # never quotes the hash
        raise AccountError("invalid", str(error), field) from None
