"""mosquitto's ``password_file``: a line for each user, ``name:hash``."""

from collections.abc import Sequence

from hookmq.config.problems import Place, Problems

from hookmq_auth_password.hashes import read
from hookmq_auth_password.users import User, bad_name


def load(text: str, source: str) -> list[User]:
    """The users in a file. Raises ConfigError that tells every mistake: a line that is not understood is no user, and no
    reason to go on without it."""
    problems = Problems()
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
                problem = f"this user is there twice, first in line {users[name][0]}"
            else:
                problem = bad_name(name)
                if not problem:
                    column = len(name) + 2
                    users[name] = number, User(name, read(rest, "mosquitto"))
        except ValueError as error:
            problem = str(error)
        if problem:
            problems.add(Place(source, number, column), (), problem)
            if len(problems.errors) >= 20:
                break
    problems.check()
    return [user for _, user in users.values()]


def set_hash(text: str, changes: dict[str, str]) -> str:
    """The text with other hashes for users that are there."""
    lines = text.split("\n")
    for index, line in enumerate(lines):
        name, colon, _ = line.partition(":")
        if colon and name in changes and not line.startswith("#"):
            lines[index] = f"{name}:{changes[name]}" + ("\r" if line.endswith("\r") else "")
    return "\n".join(lines)


def add(text: str, users: Sequence[User], hashes: Sequence[str]) -> str:
    """The text with more users at its end."""
    if text and not text.endswith("\n"):
        text += "\n"
    return text + "".join(f"{u.name}:{h}\n" for u, h in zip(users, hashes, strict=True))


def remove(text: str, name: str) -> str:
    """The text without a user."""
    kept = [
        line for line in text.split("\n") if not line.startswith(f"{name}:") or line.startswith("#")
    ]
    return "\n".join(kept)
