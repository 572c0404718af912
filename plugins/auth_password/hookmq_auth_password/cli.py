"""``hookmq passwd``: edit the users in a file, even while the broker is running."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from hookmq.plugin import ConfigError
from hookmq_toolkit.passwords.hashes import Argon2, Format, make, outdated, to_yaml, verify
from hookmq_toolkit.passwords.prompt import add_password_options, read_password

from hookmq_auth_password import book
from hookmq_auth_password.files import too_open
from hookmq_auth_password.users import User, Users, bad_name

MAX_PASSWORD: Final = 1024
EXAMPLES: Final = """\
examples:
  hookmq passwd add users.yaml alice                     ask for a password twice
  hookmq passwd add users.yaml alice --group meters --password-file alice.txt
  hookmq passwd delete users.yaml alice
  hookmq passwd check users.yaml                         validate the file
  hookmq passwd check users.yaml alice                   ask for a password and verify it
  hookmq passwd list users.yaml
  hookmq passwd import /etc/mosquitto/passwd users.yaml

A running broker loads the change by itself.
exit codes: 0 done or right, 1 wrong or no such user, 2 usage error or invalid file"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Add, delete and check users and their passwords."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def new(name: str, run: Callable[[argparse.Namespace], int], help: str) -> Any:
        one = commands.add_parser(name, help=help, description=f"{help[:1].upper()}{help[1:]}.")
        one.set_defaults(run=run, parser=one)
        return one

    one = new("add", add, "add a user, or change the password of one")
    _file(one)
    one.add_argument("user", help="user name")
    one.add_argument(
        "-g",
        "--group",
        action="append",
        metavar="NAME",
        help="group of the user; repeatable; replaces existing groups",
    )
    one.add_argument("--no-password", action="store_true", help="write a user without a password")
    add_password_options(one)
    defaults = Argon2()
    one.add_argument(
        "--memory",
        type=int,
        default=defaults.memory >> 20,
        metavar="MIB",
        help="memory for argon2id; %(default)s by default",
    )
    one.add_argument(
        "--passes",
        type=int,
        default=defaults.passes,
        metavar="N",
        help="passes of argon2id; %(default)s by default",
    )
    one.add_argument(
        "--lanes",
        type=int,
        default=defaults.lanes,
        metavar="N",
        help="lanes of argon2id; %(default)s by default",
    )
    one = new("delete", delete, "delete a user")
    _file(one)
    one.add_argument("user", help="user name")
    one = new("check", check, "validate a file, or verify a password")
    _file(one)
    one.add_argument("user", nargs="?", help="user whose password is verified")
    add_password_options(one)
    one = new("list", list_, "print the users, their kind of hash, groups and claims")
    _file(one)
    one.add_argument("--json", action="store_true", help="print a JSON list")
    one = new("import", import_, "copy the users of a mosquitto password_file to a YAML file")
    one.add_argument("source", type=Path, help="mosquitto's password_file")
    one.add_argument("file", type=Path, help="YAML file, created if missing")
    one.add_argument(
        "--replace", action="store_true", help="write the new hash for users that exist"
    )


def _file(parser: Any) -> None:
    parser.add_argument("file", type=Path, help="the user file, `path` of the plugin")
    parser.add_argument(
        "--format",
        choices=("yaml", "mosquitto"),
        default="yaml",
        help="format of the file, as in the configuration; %(default)s by default",
    )


def _wrong(arguments: argparse.Namespace, message: str) -> NoReturn:
    arguments.parser.error(message)
    raise AssertionError("argparse did not exit")


def _password(arguments: argparse.Namespace, twice: bool) -> bytes:
    try:
        return read_password(
            arguments.user, arguments.stdin, arguments.password_file, twice, MAX_PASSWORD
        )
    except ConfigError as error:
        _wrong(arguments, error.message)


def add(arguments: argparse.Namespace) -> int:
    """Run ``hookmq passwd add``: write a user."""
    format: Format = arguments.format
    name: str = arguments.user
    problem = bad_name(name)
    if format == "mosquitto":
        if ":" in name or name.startswith("#"):
            problem = "in mosquitto's format, a name must not contain a colon or start with #"
        elif arguments.group or arguments.no_password:
            problem = "mosquitto's format has no groups and no users without a password"
    if problem:
        _wrong(arguments, problem)
    hash = None
    if arguments.no_password:
        if arguments.stdin or arguments.password_file:
            _wrong(arguments, "--no-password excludes --stdin and --password-file")
    else:
        cost = _cost(arguments)
        hash = make(_password(arguments, True), format, cost)
    groups = None if arguments.group is None else tuple(dict.fromkeys(arguments.group))
    there = book.put(arguments.file, format, [book.New(name, hash, groups)])
    print(f"{arguments.file}: {name} {'changed' if there else 'added'}")
    _warn(arguments.file)
    return 0


def _cost(arguments: argparse.Namespace) -> Argon2:
    from hookmq_toolkit.passwords.hashes import MAX_LANES, MAX_MEMORY, MAX_PASSES

    for key, value, most in (
        ("memory", arguments.memory, MAX_MEMORY >> 20),
        ("passes", arguments.passes, MAX_PASSES),
        ("lanes", arguments.lanes, MAX_LANES),
    ):
        if not 1 <= value <= most:
            _wrong(arguments, f"--{key} must be 1 to {most}")
    try:
        return Argon2(arguments.memory << 20, arguments.passes, arguments.lanes)
    except ValueError as error:
        _wrong(arguments, str(error))


def delete(arguments: argparse.Namespace) -> int:
    """Run ``hookmq passwd delete``: delete a user."""
    if not book.delete(arguments.file, arguments.format, arguments.user):
        print(f"hookmq: {arguments.file} has no user {arguments.user!r}", file=sys.stderr)
        return 1
    print(f"{arguments.file}: {arguments.user} deleted")
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Run ``hookmq passwd check``: validate the file, or verify a password."""
    loaded = book.load(arguments.file, arguments.format)
    if arguments.user is not None:
        return _check_user(arguments, Users(loaded.users).get(arguments.user))
    if arguments.stdin or arguments.password_file:
        _wrong(arguments, "USER is missing")
    kinds = Counter("no password" if u.hash is None else u.hash.scheme for u in loaded.users)
    told = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    print(f"{arguments.file}: valid, {len(loaded.users)} users" + (f" ({told})" if told else ""))
    weak = sum(_weak(user, arguments.format) for user in loaded.users)
    if weak:
        print(f"{weak} have a hash weaker than that of a new user")
    _warn(arguments.file)
    return 0


def _check_user(arguments: argparse.Namespace, user: User | None) -> int:
    if user is None:
        print(f"hookmq: {arguments.file} has no user {arguments.user!r}", file=sys.stderr)
        return 1
    if user.hash is None:
        print(f"{user.name} has no password")
        return 1
    right = verify(user.hash, _password(arguments, False))
    print(
        "right" if right else "wrong",
        "" if user.enabled else "(the user is disabled)",
        sep=" " * (not user.enabled),
    )
    return 0 if right and user.enabled else 1


def list_(arguments: argparse.Namespace) -> int:
    """Run ``hookmq passwd list``: print the users without their hashes."""
    rows = [
        {
            "user": user.name,
            "hash": "none" if user.hash is None else user.hash.scheme,
            "weak": _weak(user, arguments.format),
            "enabled": user.enabled,
            "groups": list(user.groups),
            "claims": sorted(user.claims),
        }
        for user in book.load(arguments.file, arguments.format).users
    ]
    if arguments.json:
        print(json.dumps(rows, ensure_ascii=False))
        return 0
    width = max((len(str(row["user"])) for row in rows), default=0)
    for row in rows:
        notes = [str(row["hash"]) + (" (weak)" if row["weak"] else "")]
        notes += [] if row["enabled"] else ["disabled"]
        notes += [f"groups {', '.join(row['groups'])}"] if row["groups"] else []  # type: ignore[arg-type]
        notes += [f"claims {', '.join(row['claims'])}"] if row["claims"] else []  # type: ignore[arg-type]
        print(f"{row['user']!s:<{width}}  {'; '.join(notes)}")
    return 0


def _weak(user: User, format: Format) -> bool:
    return user.hash is not None and outdated(user.hash, format, Argon2())


def import_(arguments: argparse.Namespace) -> int:
    """Run ``hookmq passwd import``: copy users with their hashes."""
    loaded = book.load(arguments.source, "mosquitto")
    users = [book.New(u.name, to_yaml(u.hash)) for u in loaded.users if u.hash is not None]
    there = book.put(arguments.file, "yaml", users, replacing=arguments.replace)
    print(f"{arguments.file}: {len(users) - len(there)} users added, {len(there)} changed")
    _warn(arguments.file)
    return 0


def _warn(file: Path) -> None:
    problem = too_open(os.stat(file).st_mode & 0o7777)
    if problem:
        print(f"hookmq: warning: {file}: {problem}", file=sys.stderr)
