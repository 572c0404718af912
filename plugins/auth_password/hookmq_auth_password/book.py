"""The file of users, whatever its format: loaded whole or not at all, changed only where the change is what was meant."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hookmq.files import FileStamp
from hookmq.plugin import ConfigError

from hookmq_auth_password import mosquitto_file, yaml_file
from hookmq_auth_password.files import Content, create, read, rewrite
from hookmq_auth_password.hashes import Format, Hash, prepare
from hookmq_auth_password.hashes import read as read_hash
from hookmq_auth_password.users import User

ByName = dict[str, User]


class Loaded(NamedTuple):
    """What a file holds, the state it was read in, and its permissions."""

    users: list[User]
    stamp: FileStamp
    mode: int


def parse(text: str, source: str, format: Format) -> list[User]:
    """The users in `text`. Raises ConfigError that tells every mistake."""
    if format == "yaml":
        return yaml_file.load(text, source)
    return mosquitto_file.load(text, source)


def load(path: Path, format: Format) -> Loaded:
    """The users of a file. Blocks; raises ConfigError."""
    content = read(path)
    if format == "yaml" and not content.text.endswith("\n"):
        line = content.text.count("\n") + 1
        column = len(content.text) - content.text.rfind("\n")
        raise ConfigError(
            "the last line does not end: cut short?",
            source=str(path),
            line=line,
            column=column,
            hint="end it with a line break",
        )
    with uncollected():
        users = parse(content.text, str(path), format)
    prepare({user.hash.scheme for user in users if user.hash is not None} | {"argon2id"})
    return Loaded(users, content.stamp, content.mode)


@contextmanager
def uncollected() -> Iterator[None]:
    """A block without the garbage collector: it finds nothing here, and would look at a hundred thousand users again and
    again, each time with the event loop at a standstill."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Who found it off did not turn it off, or will turn it on.
        if enabled:
            gc.enable()


def _change(
    path: Path, format: Format, apply: Callable[[str, ByName], tuple[str, ByName] | None]
) -> tuple[FileStamp, FileStamp] | None:
    """Rewrite the file as `apply` says: it gets the text and its users, and returns a text and the users that this must
    hold. The new text is read before it is written."""
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
            hint = "nothing was changed; change it by hand"
            raise ConfigError("written in a way that cannot be edited", source=source, hint=hint)
        return text

    return rewrite(path, edit)


def rehash(
    path: Path, format: Format, changes: Mapping[str, tuple[Hash, str]]
) -> tuple[list[str], tuple[FileStamp, FileStamp] | None]:
    """Write other hashes of the same passwords, for users that still have the old ones: who they were, and the states of
    the file before and after. Blocks; raises ConfigError and OSError."""
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
    """A user to write: its hash (None for no password) and its groups, None to leave them."""

    name: str
    hash: str | None
    groups: tuple[str, ...] | None = None


def put(path: Path, format: Format, users: Sequence[New], *, replacing: bool = True) -> list[str]:
    """Add users, or give those that are there another hash and, if they are named, groups. A file that is not there is
    made. The names of those that were there before. Blocks; raises ConfigError, and OSError."""
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
                f"{', '.join(map(repr, there[:5]))}: already there",
                source=str(path),
                hint="--replace gives them the new hash",
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
    """Take a user out; False when it is not there. Blocks; raises ConfigError and OSError."""

    def apply(text: str, users: ByName) -> tuple[str, ByName] | None:
        if users.pop(name, None) is None:
            return None
        if format == "mosquitto":
            return mosquitto_file.remove(text, name), users
        return yaml_file.remove(text, str(path), name), users

    return _change(path, format, apply) is not None
