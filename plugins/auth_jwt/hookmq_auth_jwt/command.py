"""The arguments of ``hookmq jwt``. The modules that do the work are imported when it runs."""

import argparse
from pathlib import Path
from typing import Final

from hookmq.cli_api import add_source

EXAMPLES: Final = """\
examples:
  hookmq jwt check -c hookmq.yaml --client-id pump7 --file token.txt
  hookmq jwt check -c hookmq.yaml < token.txt
  hookmq jwt keys -c hookmq.yaml
  hookmq jwt sign --secret-file secret.txt --claim sub=pump7 --expires 1h > token.txt

exit codes: 0 accepted, or all keys are present; 1 refused, or keys are missing; 2 wrong usage or configuration"""
_PLUGIN_HELP: Final = "plugin id, if several plugins are of this kind"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Check tokens and keys against a configuration, sign tokens for tests."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    one = commands.add_parser(
        "check",
        help="say whether a token is accepted, what it allows, or why it is refused",
        description="Say whether a token (standard input, or --file) is accepted, what it allows, or why it is refused.",
    )
    add_source(one)
    one.add_argument("--plugin", metavar="ID", help=_PLUGIN_HELP)
    one.add_argument("--file", type=Path, help="file with the token (default: standard input)")
    one.add_argument("--client-id", default="", help="client id, for ${clientid}")
    one.add_argument("--username", help="user name, for ${username}")
    one.set_defaults(run=_check)

    one = commands.add_parser(
        "keys",
        help="read and fetch all keys, and list them",
        description="Read and fetch all keys, and list them.",
    )
    add_source(one)
    one.add_argument("--plugin", metavar="ID", help=_PLUGIN_HELP)
    one.add_argument("--json", action="store_true", help="print a JSON array")
    one.set_defaults(run=_keys)

    one = commands.add_parser(
        "sign",
        help="print a token for tests",
        description="Sign a token for tests, and print it.",
    )
    given = one.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--secret-file", type=Path, help="file with the secret; a line end after it is ignored"
    )
    given.add_argument("--key", type=Path, help="PEM file of a private key")
    one.add_argument(
        "--algorithm", help="default: HS256, RS256, ES256 or another that fits the key"
    )
    one.add_argument("--kid", help="key name for the header")
    one.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a claim; VALUE is JSON, or text if it is not valid JSON",
    )
    one.add_argument("--claims", type=Path, help="file with a JSON object of claims")
    one.add_argument("--expires", default="1h", help="lifetime; 0 for no expiry (%(default)s)")
    one.set_defaults(run=_sign)

    one = commands.add_parser(
        "secret",
        help="make a random secret",
        description="Make a random secret of 64 bytes, as base64url text.",
    )
    one.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write it to a new file with mode 0600"
    )
    one.set_defaults(run=_secret)


def _check(arguments: argparse.Namespace) -> int:
    from hookmq_auth_jwt.cli import check

    return check(arguments)


def _keys(arguments: argparse.Namespace) -> int:
    from hookmq_auth_jwt.cli import keys

    return keys(arguments)


def _sign(arguments: argparse.Namespace) -> int:
    from hookmq_auth_jwt.cli import sign

    return sign(arguments)


def _secret(arguments: argparse.Namespace) -> int:
    from hookmq_auth_jwt.cli import secret

    return secret(arguments)
