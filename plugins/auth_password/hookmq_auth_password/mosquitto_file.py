"""Read and edit mosquitto's ``password_file``, which has one line ``name:hash`` per user."""

from collections.abc import Sequence

from hookmq.config_api import ConfigProblems, SourcePlace
from hookmq_toolkit.passwords.hashes import read

from hookmq_auth_password.users import User, bad_name


def load(text: str, source: str) -> list[User]:
    """Return the users in a file. Invalid lines are never skipped: raise ConfigError, which lists every mistake."""
    problems = ConfigProblems()
    users: dict[str, tuple[int, User]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, rest = line.partition(":")
        problem = ""
        column = 1
        try:
            if not colon:
                problem = "expected name:hash, found no colon"
            elif not rest:
                problem = "this user has no hash"
            elif name in users:
                problem = f"this user is given twice, first in line {users[name][0]}"
            else:
                problem = bad_name(name)
                if not problem:
                    column = len(name) + 2
                    users[name] = number, User(name, read(rest, "mosquitto"))
        except ValueError as error:
            problem = str(error)
        if problem:
            problems.add(SourcePlace(source, number, column), (), problem)
            if len(problems.errors) >= 20:
                break
    problems.check()
    return [user for _, user in users.values()]


def set_hash(text: str, changes: dict[str, str]) -> str:
    """Return the text with new hashes for existing users."""
    lines = text.split("\n")
    for index, line in enumerate(lines):
        name, colon, _ = line.partition(":")
        if colon and name in changes and not line.startswith("#"):
            lines[index] = f"{name}:{changes[name]}" + ("\r" if line.endswith("\r") else "")
    return "\n".join(lines)


def add(text: str, users: Sequence[User], hashes: Sequence[str]) -> str:
    """Return the text with `users` added at its end."""
    if text and not text.endswith("\n"):
        text += "\n"
    return text + "".join(f"{u.name}:{h}\n" for u, h in zip(users, hashes, strict=True))


def remove(text: str, name: str) -> str:
    """Return the text without the user `name`."""
    kept = [
        line for line in text.split("\n") if not line.startswith(f"{name}:") or line.startswith("#")
    ]
    return "\n".join(kept)
