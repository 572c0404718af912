"""Declare the arguments of ``hookmq webhook``. The modules that implement the command are imported only when it runs."""

import argparse
from pathlib import Path
from typing import Any, Final

from hookmq.cli_api import add_source

INSTANCE_HELP: Final = "plugin id, if several plugins are of this kind"
EXAMPLES: Final = """\
examples:
  hookmq webhook deadletter list -c hookmq.yaml
  hookmq webhook deadletter replay -c hookmq.yaml --id webhook --only 4f1c-17

Stop the broker first, because it locks the file. A running broker serves the same on its http listener:
  GET /plugins/ID/deadletter and POST /plugins/ID/deadletter/replay

exit codes: 0 done, 1 some did not arrive or the file cannot be used, 2 wrong usage or configuration"""
TEST: Final = """\
examples:
  hookmq webhook test -c hookmq.yaml
  hookmq webhook test -c hookmq.yaml --id audit --event 'client.*' --event message.published

The ids of the samples begin with "test". Failed samples are not sent again.

exit codes: 0 all arrived, 1 some did not, 2 wrong usage or configuration"""

LISTEN: Final = """\
examples:
  hookmq webhook listen --port 8080
  hookmq webhook listen --secret-file hook.secret

A secret is whsec_ and base64, as printed by `hookmq webhook secret`. The file may contain several, one on each line,
and public keys (whpk_) as printed by `hookmq webhook key`.
Requests with an invalid signature are answered with 401 and not printed. Without secrets, all requests are printed.

exit codes: 0 stopped, 2 wrong usage or no secrets, 4 cannot listen on the address"""

KEY: Final = """\
examples:
  hookmq webhook key -o hook.key > hook.pub
  hookmq webhook key --public hook.key

Without options, the command prints the private key and then the public key.

exit codes: 0 done, 2 wrong usage, or a file that cannot be used"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.description = "Dead letters of the webhook plugin, and tools for receivers."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    dead = commands.add_parser(
        "deadletter",
        help="list or resend events that were given up",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    under = dead.add_subparsers(metavar="COMMAND", required=True)
    for name, help, run in (
        ("list", "list dead letters, oldest first", _list),
        ("replay", "send dead letters again, oldest first, with their old ids", _replay),
    ):
        one = under.add_parser(name, help=help, description=f"{help[:1].upper()}{help[1:]}.")
        add_source(one)
        one.add_argument("--id", metavar="ID", help=INSTANCE_HELP)
        if name == "list":
            one.add_argument("--json", action="store_true", help="print a line of JSON for each")
        else:
            one.add_argument(
                "--only",
                action="append",
                default=[],
                metavar="EVENT",
                help="send only the event with this id; repeatable",
            )
        one.set_defaults(run=run)
    _add_tools(commands)


def _add_tools(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    one = commands.add_parser(
        "test",
        help="send a signed sample of each event",
        description="Send a signed sample of each event of an instance, and print the answers.",
        formatter_class=raw,
        epilog=TEST,
    )
    add_source(one)
    one.add_argument("--id", "--plugin", metavar="ID", help=INSTANCE_HELP)
    one.add_argument(
        "--event",
        action="append",
        default=[],
        metavar="TYPE",
        help="types of events, with * (default: those of the instance)",
    )
    one.set_defaults(run=_test)
    one = commands.add_parser(
        "listen",
        help="receive, verify and print events",
        description="Receive events on this machine, verify their signatures, and print them.",
        formatter_class=raw,
        epilog=LISTEN,
    )
    one.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    one.add_argument("--port", type=int, default=8080, help="port; 0 for any (%(default)s)")
    one.add_argument("--secret-file", type=Path, help="file with the secrets, one on each line")
    one.add_argument("--status", type=int, default=204, help="status to answer (%(default)s)")
    one.add_argument(
        "--count", type=int, default=0, help="stop after this many requests; 0: never (%(default)s)"
    )
    one.set_defaults(run=_listen)
    one = commands.add_parser(
        "schema",
        help="print the JSON Schema of an event, or the names of all",
        description="Print the JSON Schema of an event's data, or the names of all events.",
    )
    one.add_argument("event", nargs="?", help="type of event, such as message.published")
    one.set_defaults(run=_schema)
    one = commands.add_parser(
        "secret", help="make a random secret", description="Make a random secret for signatures."
    )
    one.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write it to a new file with mode 0600"
    )
    one.set_defaults(run=_secret)
    one = commands.add_parser(
        "key",
        help="make a private key and its public key",
        description="Make an ed25519 private key (whsk_) for the broker, and print its public key (whpk_) for receivers.",
        formatter_class=raw,
        epilog=KEY,
    )
    group = one.add_mutually_exclusive_group()
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the private key to a new file with mode 0600",
    )
    group.add_argument(
        "--public",
        type=Path,
        metavar="FILE",
        help="print the public key of the private key in FILE",
    )
    one.set_defaults(run=_key)


def _list(arguments: argparse.Namespace) -> int:
    from hookmq_webhook.cli import run_list

    return run_list(arguments)


def _replay(arguments: argparse.Namespace) -> int:
    from hookmq_webhook.cli import run_replay

    return run_replay(arguments)


def _test(arguments: argparse.Namespace) -> int:
    from hookmq_webhook.kit import run_test

    return run_test(arguments)


def _listen(arguments: argparse.Namespace) -> int:
    from hookmq_webhook.kit import run_listen

    return run_listen(arguments)


def _schema(arguments: argparse.Namespace) -> int:
    from hookmq_webhook.kit import run_schema

    return run_schema(arguments)


def _key(arguments: argparse.Namespace) -> int:
    from hookmq_webhook.kit import run_key

    return run_key(arguments)


def _secret(arguments: argparse.Namespace) -> int:
    from hookmq_webhook.kit import run_secret

    return run_secret(arguments)
