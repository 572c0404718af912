"""Users in YAML: read strictly, every mistake with its place, and edited so that all the rest stays as it was written."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hookmq.config.problems import Place, Problems
from hookmq.plugin import ConfigError

from hookmq_auth_password.hashes import read
from hookmq_auth_password.tree import Item, parse
from hookmq_auth_password.users import NO_CLAIMS, User, bad_name

VERSION: Final = 1
HEAD: Final = "version: 1\nusers:\n"
"""What a new file begins with."""
_TOP: Final = ("version", "users")
_KEYS: Final = ("hash", "groups", "claims", "enabled")


def load(text: str, source: str) -> list[User]:
    """The users in a file. Raises ConfigError that tells every mistake; hashes are never told."""
    return _Reader(source).users(parse(text, source))


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._problems = Problems()

    def _wrong(self, item: Item, message: str, hint: str = "") -> None:
        self._problems.add(Place(self._source, item.line, item.column), (), message, hint)
        if len(self._problems.errors) >= 20:
            self._problems.check()

    def users(self, root: Item | None) -> list[User]:
        if root is None or not isinstance(root.value, dict):
            raise ConfigError(
                "this is no file of users",
                source=self._source,
                hint="it has the keys version and users",
            )
        self._known(root, _TOP)
        version = root.value.get("version")
        if version is None:
            self._wrong(root, "the key version is missing", f"version: {VERSION}")
        elif version[1].value != VERSION or version[1].value is True:
            self._wrong(version[1], f"this is not version {VERSION}")
        found: list[User] = []
        entry = root.value.get("users")
        if entry is None:
            self._wrong(root, "the key users is missing")
        elif isinstance(entry[1].value, dict):
            for key, value in entry[1].value.values():
                user = self._user(key, value)
                if user is not None:
                    found.append(user)
        elif entry[1].value is not None:
            self._wrong(
                entry[1], "users is a mapping: a name, and below it hash, groups and claims"
            )
        self._problems.check()
        return found

    def _known(self, item: Item, keys: Sequence[str]) -> None:
        for name, (key, _) in item.value.items():
            if name not in keys:
                close = difflib.get_close_matches(name, keys, 1, 0.6)
                hint = f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(keys)
                self._wrong(key, f"unknown key {name!r}", hint)

    def _user(self, key: Item, item: Item) -> User | None:
        before = len(self._problems.errors)
        name = key.raw  # a number is a name as well
        problem = bad_name(name)
        if problem:
            self._wrong(key, problem)
        if not isinstance(item.value, dict):
            self._wrong(item, "a user is a mapping with the key hash")
            return None
        self._known(item, _KEYS)
        entries: dict[str, Item] = {name: value for name, (_, value) in item.value.items()}
        hash = None
        if "hash" not in entries:
            self._wrong(key, "this user has no hash", "hash: null for a user without a password")
        elif entries["hash"].value is None and not entries["hash"].raw:
            # A file that was cut short: taken for null, it would be a user who needs no password.
            self._wrong(
                entries["hash"], "nothing stands here", "null for a user without a password"
            )
        elif entries["hash"].value is not None:
            text = entries["hash"].value
            try:
                hash = read(text if isinstance(text, str) else "", "yaml")
            except ValueError as error:
                self._wrong(entries["hash"], str(error))
        groups = self._groups(entries.get("groups"))
        claims = self._claims(entries.get("claims"))
        enabled = entries["enabled"].value if "enabled" in entries else True
        if not isinstance(enabled, bool):
            self._wrong(entries["enabled"], "enabled is true or false")
        elif not enabled and not item.flow and list(entries).index("enabled") > _place(entries):
            # A file that was cut short behind the hash is good YAML, and the user would be back.
            self._wrong(entries["enabled"], "enabled stands behind hash", "put it before hash")
        if len(self._problems.errors) > before:
            return None
        return User(name, hash, groups, claims, enabled)

    def _groups(self, item: Item | None) -> tuple[str, ...]:
        if item is None or item.value is None:
            return ()
        if not isinstance(item.value, list):
            self._wrong(item, "groups is a list of names")
            return ()
        for one in item.value:
            if not isinstance(one.value, str) or not one.value:
                self._wrong(one, "a group is a name; in quotes a number is one")
        return tuple(dict.fromkeys(str(one.value) for one in item.value))

    def _claims(self, item: Item | None) -> Mapping[str, Any]:
        if item is None or item.value is None:
            return NO_CLAIMS
        if not isinstance(item.value, dict):
            self._wrong(item, "claims is a mapping")
            return NO_CLAIMS
        if "groups" in item.value:
            self._wrong(item.value["groups"][0], "groups stands beside claims, not in it")
        claims: dict[str, Any] = item.plain()
        return claims


def _place(entries: Mapping[str, Item]) -> int:
    return list(entries).index("hash") if "hash" in entries else len(entries)


# editing ---------------------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """A scalar that is text wherever it stands: JSON's strings are YAML's."""
    if text.isascii() and text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return json.dumps(text, ensure_ascii=False)


def _named(text: str) -> str:
    """A name without quotes where that is safe."""
    plain = (
        text[:1].isascii()
        and text[:1].isalpha()
        and all(c.isascii() and (c.isalnum() or c in "_.-@") for c in text)
    )
    return text if plain and text.lower() not in _WORDS else quoted(text)


_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _root(text: str, source: str) -> tuple[Item, Item]:
    """The document and its users."""
    root = parse(text, source)
    if root is None or not isinstance(root.value, dict) or "users" not in root.value:
        raise ConfigError("this is no file of users", source=source)
    return root, root.value["users"][1]


def _flow_list(names: Iterable[str]) -> str:
    return "[" + ", ".join(map(_named, names)) + "]"


def set_hash(text: str, source: str, changes: dict[str, str | None]) -> str:
    """The text with other hashes for users that are there; None is no password. Raises ConfigError."""
    _, users = _root(text, source)
    spans: list[tuple[int, int, str]] = []
    for name, hash in changes.items():
        item = users.value[name][1].value["hash"][1]
        written = "null" if hash is None else quoted(hash)
        if item.end == item.start:  # nothing stands behind the colon
            spans.append((item.start, item.start, f" {written}"))
        else:
            spans.append((item.start, _written(text, item.end), written))
    return _spliced(text, spans)


def set_groups(text: str, source: str, name: str, groups: Sequence[str]) -> str:
    """The text with other groups for a user that is there. Raises ConfigError."""
    _, users = _root(text, source)
    user: Item = users.value[name][1]
    written = _flow_list(groups)
    if "groups" in user.value:
        key, old = user.value["groups"]
        if old.flow or not isinstance(old.value, list):
            return _spliced(text, [(old.start, old.end, written)])
        # A block may begin on the key's own line or below it.
        return _spliced(text, [(key.end, old.last(), f": {written}")])
    key, hash = user.value["hash"]
    if user.flow:
        return _spliced(text, [(hash.end, hash.end, f", groups: {written}")])
    at, end = _line_after(text, hash.last())
    return _spliced(text, [(at, at, f"{end}{' ' * (key.column - 1)}groups: {written}\n")])


def add(text: str, source: str, users: Sequence[User], hashes: Sequence[str | None]) -> str:
    """The text with more users at its end. Raises ConfigError."""
    root, item = _root(text, source)
    if item.flow and item.value:
        new = "".join(
            f"{_named(u.name)}: {{{', '.join(_fields(u, h))}}}, "
            for u, h in zip(users, hashes, strict=True)
        )
        return _spliced(text, [(item.start + 1, item.start + 1, new)])
    key = root.value["users"][0]
    if not item.value:  # nothing, null or {}
        if root.flow:
            raise ConfigError(
                "users is empty and in braces: write users: on a line of its own", source=source
            )
        indent = key.column - 1 + 2
        if item.end > item.start:
            text = _spliced(text, [(key.end, item.end, ":")])
            at, end = _line_after(text, key.end + 1)
        else:
            at, end = _line_after(text, max(key.end, item.start))
    else:
        indent = next(iter(item.value.values()))[0].column - 1
        at, end = _line_after(text, item.last())
    lines = []
    for user, hash in zip(users, hashes, strict=True):
        lines.append(f"{' ' * indent}{_named(user.name)}:\n")
        lines += [f"{' ' * (indent + 2)}{field}\n" for field in _fields(user, hash)]
    return _spliced(text, [(at, at, end + "".join(lines))])


def _fields(user: User, hash: str | None) -> list[str]:
    found = [f"hash: {'null' if hash is None else quoted(hash)}"]
    return [*found, f"groups: {_flow_list(user.groups)}"] if user.groups else found


def remove(text: str, source: str, name: str) -> str:
    """The text without a user. Raises ConfigError."""
    _, users = _root(text, source)
    key, value = users.value[name]
    if users.flow:
        rest = text[value.end :]
        comma = len(rest) - len(rest.lstrip()) if rest.lstrip().startswith(",") else -1
        end = value.end + comma + 1 if comma >= 0 else value.end
        return _spliced(text, [(key.start, end, "")])
    start = text.rfind("\n", 0, key.start) + 1
    end, _ = _line_after(text, max(key.end, value.last()))
    return _spliced(text, [(start, end, "")])


def _written(text: str, position: int) -> int:
    """Where what ends at `position` really ends: of a block scalar that is in the next line."""
    while position and text[position - 1] in " \n":
        position -= 1
    return position


def _line_after(text: str, position: int) -> tuple[int, str]:
    """Where the line behind begins, and the line's end that is missing before it."""
    found = text.find("\n", _written(text, position))
    return (len(text), "" if text.endswith("\n") else "\n") if found < 0 else (found + 1, "")


def _spliced(text: str, spans: list[tuple[int, int, str]]) -> str:
    parts: list[str] = []
    at = 0
    for start, end, new in sorted(spans):
        parts += (text[at:start], new)
        at = end
    return "".join([*parts, text[at:]])
