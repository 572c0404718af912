"""Load and edit the user file in both formats. It is loaded whole or not at all, and each edit is checked before it is
written.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hookmq.plugin import ConfigError
from hookmq_toolkit.files import FileStamp
from hookmq_toolkit.passwords.hashes import Format, Hash, prepare
from hookmq_toolkit.passwords.hashes import read as read_hash

from hookmq_auth_password import mosquitto_file, yaml_file
from hookmq_auth_password.files import Content, create, read, rewrite
from hookmq_auth_password.users import User

ByName = dict[str, User]


class Loaded(NamedTuple):
    """A file's users, its state when it was read, and its permissions."""

    users: list[User]
    stamp: FileStamp
    mode: int


def parse(text: str, source: str, format: Format) -> list[User]:
    """Return the users in `text`. Raise ConfigError, which lists every mistake."""
    if format == "yaml":
        return yaml_file.load(text, source)
    return mosquitto_file.load(text, source)


def load(path: Path, format: Format) -> Loaded:
    """Return the users in a file. This call blocks. Raises ConfigError."""
    content = read(path)
    if format == "yaml" and not content.text.endswith("\n"):
        line = content.text.count("\n") + 1
        column = len(content.text) - content.text.rfind("\n")
        raise ConfigError(
            "the last line has no line break; the file may be truncated",
            source=str(path),
            line=line,
            column=column,
            hint="end the file with a line break",
        )
    with uncollected():
        users = parse(content.text, str(path), format)
    prepare({user.hash.scheme for user in users if user.hash is not None} | {"argon2id"})
    return Loaded(users, content.stamp, content.mode)


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector during the block.

    New users are not garbage. With 100,000 users, the collector would scan them again and again, and stall the event
    loop each time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # If the collector was already disabled, leave it disabled.
        if enabled:
            gc.enable()


def _change(
    path: Path, format: Format, apply: Callable[[str, ByName], tuple[str, ByName] | None]
) -> tuple[FileStamp, FileStamp] | None:
    """Rewrite the file with `apply`. Return the file's states before and after the change, or None if nothing changed.

    `apply` receives the text and its users. It returns the new text and the users that this text must contain, or None.
    Before the new text is written, it is parsed and compared with those users.
    """
    source = str(path)

    def edit(content: Content) -> str | None:
        text = content.text
        made = apply(text, {user.name: user for user in parse(text, source, format)})
        if made is None:
            return None
        text, expected = made
        if format == "yaml" and not text.endswith("\n"):
            text += "\n"
        try:
            found = {user.name: user for user in parse(text, source, format)}
        except ConfigError:
            found = {}
        if found != expected:
            hint = "the file is unchanged; edit it by hand"
            raise ConfigError("the layout of this file cannot be edited", source=source, hint=hint)
        return text

    return rewrite(path, edit)


def rehash(
    path: Path, format: Format, changes: Mapping[str, tuple[Hash, str]]
) -> tuple[list[str], tuple[FileStamp, FileStamp] | None]:
    """Write new hashes for the same passwords. Skip users whose old hash has since been replaced.

    `changes` maps each user name to the old and the new hash. Return the names of the changed users, and the file's
    states before and after. This call blocks. Raises ConfigError and OSError.
    """
    done: list[str] = []

    def apply(text: str, users: ByName) -> tuple[str, ByName] | None:
        for name, (old, _) in changes.items():
            user = users.get(name)
            if user is not None and user.hash == old:
                done.append(name)
        if not done:
            return None
        new = {name: changes[name][1] for name in done}
        if format == "yaml":
            text = yaml_file.set_hash(text, str(path), dict(new))
        else:
            text = mosquitto_file.set_hash(text, new)
        for name, hash in new.items():
            users[name] = replace(users[name], hash=read_hash(hash, format))
        return text, users

    stamps = _change(path, format, apply)
    return done, stamps


class New(NamedTuple):
    """A user to write. If `hash` is None, the user has no password; if `groups` is None, the groups stay unchanged."""

    name: str
    hash: str | None
    groups: tuple[str, ...] | None = None


def put(path: Path, format: Format, users: Sequence[New], *, replacing: bool = True) -> list[str]:
    """Add users, or update existing ones: the hash and, if given, the groups. Return the names of those that already
    existed.

    A missing file is created. This call blocks. Raises OSError and ConfigError. Existing users are an error unless
    `replacing` is True.
    """
    if not path.exists():
        text = yaml_file.HEAD if format == "yaml" else ""
        text, expected = _put(text, {}, str(path), format, users)
        if {user.name: user for user in parse(text, str(path), format)} != expected:
            raise ConfigError("these users cannot be written", source=str(path))
        create(path, text)
        return []
    there: list[str] = []

    def apply(text: str, known: ByName) -> tuple[str, ByName]:
        there.extend(user.name for user in users if user.name in known)
        if there and not replacing:
            raise ConfigError(
                f"users that exist: {', '.join(map(repr, there[:5]))}",
                source=str(path),
                hint="--replace writes the new hash for them",
            )
        return _put(text, known, str(path), format, users)

    _change(path, format, apply)
    return there


def _put(
    text: str, known: ByName, source: str, format: Format, users: Sequence[New]
) -> tuple[str, ByName]:
    changed = {new.name: new.hash for new in users if new.name in known}
    added = [new for new in users if new.name not in known]
    expected = dict(known)
    for new in users:
        hash = None if new.hash is None else read_hash(new.hash, format)
        user = replace(expected.get(new.name, User(new.name)), hash=hash)
        expected[new.name] = user if new.groups is None else replace(user, groups=new.groups)
    if format == "mosquitto":
        made = [new.hash or "" for new in added]
        text = mosquitto_file.set_hash(text, {name: hash or "" for name, hash in changed.items()})
        return mosquitto_file.add(text, [User(new.name) for new in added], made), expected
    text = yaml_file.set_hash(text, source, changed) if changed else text
    for new in users:
        if new.name in known and new.groups is not None and new.groups != known[new.name].groups:
            text = yaml_file.set_groups(text, source, new.name, new.groups)
    if added:
        rows = [User(new.name, groups=new.groups or ()) for new in added]
        text = yaml_file.add(text, source, rows, [new.hash for new in added])
    return text, expected


def delete(path: Path, format: Format, name: str) -> bool:
    """Delete a user. Return False if the user does not exist. This call blocks. Raises ConfigError and OSError."""

    def apply(text: str, users: ByName) -> tuple[str, ByName] | None:
        if users.pop(name, None) is None:
            return None
        if format == "mosquitto":
            return mosquitto_file.remove(text, name), users
        return yaml_file.remove(text, str(path), name), users

    return _change(path, format, apply) is not None
