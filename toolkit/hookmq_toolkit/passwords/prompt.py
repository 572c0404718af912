"""Read a password for a command: from a terminal, a file or standard input, but never from an argument."""

import getpass
import sys
from argparse import ArgumentParser
from pathlib import Path

from hookmq.plugin import ConfigError, HookMQError


def add_password_options(parser: ArgumentParser) -> None:
    """Add ``--stdin`` and ``--password-file``. The password is never an argument, because every user of the machine can
    read a command's arguments.
    """
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--stdin", action="store_true", help="read the password from standard input, one line"
    )
    ways.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="read the password from the first line of a file",
    )


def read_password(user: str, stdin: bool, file: Path | None, twice: bool, most: int) -> bytes:
    """Return the password of `user`, which has at most `most` bytes. In a terminal, prompt for it, twice if `twice` is
    true. This call blocks.

    Raises ConfigError if there is no terminal, HookMQError if the password is empty or too long, and OSError if reading
    fails.
    """
    if stdin:
        line = sys.stdin.buffer.readline(most + 3)
    elif file is not None:
        with open(file, "rb") as opened:
            line = opened.readline(most + 3)
    elif not sys.stdin.isatty():
        raise ConfigError("no terminal: use --stdin or --password-file")
    else:
        line = getpass.getpass(f"Password of {user}: ").encode()
        if twice and getpass.getpass("Repeat: ").encode() != line:
            raise HookMQError("the passwords differ")
    password = line.removesuffix(b"\n").removesuffix(b"\r")
    if not password:
        raise HookMQError("the password is empty; no client can use it")
    if len(password) > most:
        raise HookMQError(f"the password is longer than {most} bytes")
    return password
