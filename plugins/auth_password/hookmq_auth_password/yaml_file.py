"""Parse users from YAML strictly, reporting the position of each mistake. Edit users without touching the rest of the
text.
"""

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hookmq.config_api import ConfigProblems, SourcePlace
from hookmq.plugin import ConfigError
from hookmq_toolkit.passwords.hashes import read
from hookmq_toolkit.yaml_places import Node, parse

from hookmq_auth_password.users import NO_CLAIMS, User, bad_name

VERSION: Final = 1
HEAD: Final = "version: 1\nusers:\n"
"""The start of a new file."""
_TOP: Final = ("version", "users")
_KEYS: Final = ("hash", "groups", "claims", "enabled")
_MOST: Final = 20
"""Maximum number of mistakes reported for one file."""


def load(text: str, source: str) -> list[User]:
    """Return the users in a file. Raise ConfigError, which lists every mistake and never quotes a hash."""
    return _Reader(source).users(parse(text, source))


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._problems = ConfigProblems()

    def _wrong(self, node: Node, message: str, hint: str = "") -> None:
        self._problems.add(SourcePlace(self._source, node.line, node.column), (), message, hint)
        if len(self._problems.errors) >= _MOST:
            self._problems.check()

    def users(self, root: Node | None) -> list[User]:
        if root is None or root.mapping is None:
            raise ConfigError(
                "this is not a user file",
                source=self._source,
                hint="it must have the keys version and users",
            )
        self._known(root.mapping, _TOP)
        version = root.mapping.get("version")
        if version is None:
            self._wrong(root, "the key version is missing", f"version: {VERSION}")
        elif version.value != VERSION or version.value is True:
            self._wrong(version, f"version must be {VERSION}")
        found: list[User] = []
        users = root.mapping.get("users")
        if users is None:
            self._wrong(root, "the key users is missing")
        elif users.mapping is not None:
            for name, node in users.mapping.items():
                user = self._user(name, node)
                if user is not None:
                    found.append(user)
        elif users.items is not None or users.value is not None:
            self._wrong(users, "users must be a mapping of names to users")
        self._problems.check()
        return found

    def _known(self, mapping: Mapping[str, Node], keys: Sequence[str]) -> None:
        for name, node in mapping.items():
            if name not in keys:
                close = difflib.get_close_matches(name, keys, 1, 0.6)
                hint = f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(keys)
                self._wrong(_key(node), f"unknown key {name!r}", hint)

    def _user(self, name: str, node: Node) -> User | None:
        before = len(self._problems.errors)
        problem = bad_name(name)
        if problem:
            self._wrong(_key(node), problem)
        entries = node.mapping
        if entries is None:
            self._wrong(node, "a user must be a mapping with the key hash")
            return None
        self._known(entries, _KEYS)
        hash = None
        given = entries.get("hash")
        if given is None:
            hint = "hash: null for a user without a password"
            self._wrong(_key(node), "this user has no hash", hint)
        elif given.text == "" and given.plain:
            # Truncation can cause this. Read as null, it would mean a user that needs no password.
            self._wrong(given, "hash has no value", "null for a user without a password")
        elif given.value is not None:
            text = given.value
            try:
                hash = read(text if isinstance(text, str) else "", "yaml")
            except ValueError as error:
                self._wrong(given, str(error))
        groups = self._groups(entries.get("groups"))
        claims = self._claims(entries.get("claims"))
        enabled = entries["enabled"].value if "enabled" in entries else True
        if not isinstance(enabled, bool):
            self._wrong(entries["enabled"], "enabled must be true or false")
        elif not enabled and not node.flow and list(entries).index("enabled") > _place(entries):
            # If such a file were truncated after the hash, it would be valid and the user enabled again.
            self._wrong(entries["enabled"], "enabled comes after hash", "put it before hash")
        if len(self._problems.errors) > before:
            return None
        return User(name, hash, groups, claims, enabled)

    def _groups(self, node: Node | None) -> tuple[str, ...]:
        if node is None or _is_null(node):
            return ()
        if node.items is None:
            self._wrong(node, "groups must be a list of names")
            return ()
        groups = [one.value for one in node.items]
        for one, group in zip(node.items, groups, strict=True):
            if not isinstance(group, str) or not group:
                self._wrong(one, "a group must be a name; write a number in quotes")
        return tuple(dict.fromkeys(str(group) for group in groups))

    def _claims(self, node: Node | None) -> Mapping[str, Any]:
        if node is None or _is_null(node):
            return NO_CLAIMS
        if node.mapping is None:
            self._wrong(node, "claims must be a mapping")
            return NO_CLAIMS
        if "groups" in node.mapping:
            hint = "move it up, next to claims"
            self._wrong(_key(node.mapping["groups"]), "groups is not a claim", hint)
        self._finite(node)
        claims: dict[str, Any] = node.value
        return claims

    def _finite(self, node: Node) -> None:
        """Report infinite numbers, which are not JSON."""
        for one in (node.mapping or {}).values() if node.items is None else node.items:
            if one.text is None:
                self._finite(one)
            elif isinstance(one.value, float) and not math.isfinite(one.value):
                self._wrong(one, "an infinite number is not accepted")


def _key(node: Node) -> Node:
    return node.key or node


def _is_null(node: Node) -> bool:
    return node.text is not None and node.value is None


def _place(entries: Mapping[str, Node]) -> int:
    return list(entries).index("hash") if "hash" in entries else len(entries)


# editing ---------------------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Return `text` as a YAML scalar that is always read as text."""
    if text.isascii() and text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return json.dumps(text, ensure_ascii=False)


def _named(text: str) -> str:
    """Return a name as a YAML scalar. Omit the quotes if that is safe."""
    plain = (
        text[:1].isascii()
        and text[:1].isalpha()
        and all(c.isascii() and (c.isalnum() or c in "_.-@") for c in text)
    )
    return text if plain and text.lower() not in _WORDS else quoted(text)


_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _root(text: str, source: str) -> tuple[Node, Node, dict[str, Node]]:
    """Return the document's root node, the node that holds the users, and each user's node by name."""
    root = parse(text, source)
    if root is None or root.mapping is None or "users" not in root.mapping:
        raise ConfigError("this is not a user file", source=source)
    users = root.mapping["users"]
    return root, users, users.mapping or {}


def _fields_of(user: Node) -> dict[str, Node]:
    assert user.mapping is not None  # the file was loaded before
    return user.mapping


def _flow_list(names: Iterable[str]) -> str:
    return "[" + ", ".join(map(_named, names)) + "]"


def set_hash(text: str, source: str, changes: dict[str, str | None]) -> str:
    """Return the text with new hashes for existing users. A hash of None means no password. Raises ConfigError."""
    _, _, users = _root(text, source)
    spans: list[tuple[int, int, str]] = []
    for name, hash in changes.items():
        node = _fields_of(users[name])["hash"]
        written = "null" if hash is None else quoted(hash)
        if node.end == node.start:  # the key has no value
            spans.append((node.start, node.start, f" {written}"))
        else:
            spans.append((node.start, _written(text, node.end), written))
    return _spliced(text, spans)


def set_groups(text: str, source: str, name: str, groups: Sequence[str]) -> str:
    """Return the text with new groups for an existing user. Raises ConfigError."""
    _, _, users = _root(text, source)
    user = users[name]
    fields = _fields_of(user)
    written = _flow_list(groups)
    if "groups" in fields:
        old = fields["groups"]
        if old.flow or old.items is None:
            return _spliced(text, [(old.start, old.end, written)])
        # A block starts on the line of the key or below it.
        return _spliced(text, [(_key(old).end, old.content_end, f": {written}")])
    hash = fields["hash"]
    key = _key(hash)
    if user.flow:
        return _spliced(text, [(hash.end, hash.end, f", groups: {written}")])
    at, end = _line_after(text, hash.content_end)
    return _spliced(text, [(at, at, f"{end}{' ' * (key.column - 1)}groups: {written}\n")])


def add(text: str, source: str, users: Sequence[User], hashes: Sequence[str | None]) -> str:
    """Return the text with `users` added at its end. Raises ConfigError."""
    root, node, known = _root(text, source)
    if node.flow and known:
        new = "".join(
            f"{_named(u.name)}: {{{', '.join(_fields(u, h))}}}, "
            for u, h in zip(users, hashes, strict=True)
        )
        return _spliced(text, [(node.start + 1, node.start + 1, new)])
    key = _key(node)
    if not known:  # nothing, null or {}
        if root.flow:
            raise ConfigError(
                "users is empty and in braces",
                hint="write users: on a line of its own",
                source=source,
            )
        indent = key.column - 1 + 2
        if node.end > node.start:
            text = _spliced(text, [(key.end, node.end, ":")])
            at, end = _line_after(text, key.end + 1)
        else:
            at, end = _line_after(text, max(key.end, node.start))
    else:
        indent = _key(next(iter(known.values()))).column - 1
        at, end = _line_after(text, node.content_end)
    lines = []
    for user, hash in zip(users, hashes, strict=True):
        lines.append(f"{' ' * indent}{_named(user.name)}:\n")
        lines += [f"{' ' * (indent + 2)}{field}\n" for field in _fields(user, hash)]
    return _spliced(text, [(at, at, end + "".join(lines))])


def _fields(user: User, hash: str | None) -> list[str]:
    found = [f"hash: {'null' if hash is None else quoted(hash)}"]
    return [*found, f"groups: {_flow_list(user.groups)}"] if user.groups else found


def remove(text: str, source: str, name: str) -> str:
    """Return the text without the user `name`. Raises ConfigError."""
    _, users, by_name = _root(text, source)
    value = by_name[name]
    key = _key(value)
    if users.flow:
        rest = text[value.end :]
        comma = len(rest) - len(rest.lstrip()) if rest.lstrip().startswith(",") else -1
        end = value.end + comma + 1 if comma >= 0 else value.end
        return _spliced(text, [(key.start, end, "")])
    start = text.rfind("\n", 0, key.start) + 1
    end, _ = _line_after(text, max(key.end, value.content_end))
    return _spliced(text, [(start, end, "")])


def _written(text: str, position: int) -> int:
    """Move `position` back over spaces and line breaks, and return it. This is needed because a block scalar ends on
    the next line.
    """
    while position and text[position - 1] in " \n":
        position -= 1
    return position


def _line_after(text: str, position: int) -> tuple[int, str]:
    """Return the start of the next line, and the line break to insert there if it is missing."""
    found = text.find("\n", _written(text, position))
    return (len(text), "" if text.endswith("\n") else "\n") if found < 0 else (found + 1, "")


def _spliced(text: str, spans: list[tuple[int, int, str]]) -> str:
    parts: list[str] = []
    at = 0
    for start, end, new in sorted(spans):
        parts += (text[at:start], new)
        at = end
    return "".join([*parts, text[at:]])
