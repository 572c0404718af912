"""Implement `hookmq auth-http`, which asks the configured service as the broker would and prints the verdicts."""

import argparse
import asyncio
import getpass
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookmq.cli_api import add_source, plugin_of
from hookmq.mqtt_api import parse_share
from hookmq.plugin import (
    Accept,
    Action,
    Allow,
    ClientInfo,
    ConfigError,
    Connect,
    Deny,
    Message,
    Peer,
    Scope,
    Subscription,
)

from hookmq_auth_http.answers import Undecided

if TYPE_CHECKING:
    from hookmq_auth_http.plugin import AuthHttpPlugin

EXAMPLES: Final = """\
examples:
  hookmq auth-http try -c hookmq.yaml --client-id pump7 --username pump7
  hookmq auth-http try -c hookmq.yaml --username ann --password-file pw.txt --subscribe 'home/#'

exit codes: 0 allowed, or left to other plugins; 1 refused or undecided; 2 wrong usage or configuration"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Ask the authentication service as the broker would."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    one = commands.add_parser(
        "try",
        help="ask whether a client may connect and what it may do",
        description="Ask whether a client may connect and, if so, whether it may publish or subscribe.",
    )
    add_source(one)
    one.add_argument(
        "--plugin", metavar="ID", help="plugin id, if several plugins are of this kind"
    )
    one.add_argument("--client-id", default="hookmq-try", help="client id (%(default)s)")
    one.add_argument("--username", help="user name")
    one.add_argument(
        "--password-file", type=Path, help="file with the password (default: ask for it)"
    )
    one.add_argument("--host", default="127.0.0.1", help="address of the client (%(default)s)")
    one.add_argument("--listener", default="tcp", help="listener of the connection (%(default)s)")
    one.add_argument(
        "--publish",
        action="append",
        default=[],
        metavar="TOPIC",
        help="also ask whether it may publish to TOPIC",
    )
    one.add_argument(
        "--subscribe",
        action="append",
        default=[],
        metavar="FILTER",
        help="also ask whether it may subscribe to FILTER",
    )
    one.add_argument(
        "--qos", type=int, choices=(0, 1, 2), default=0, help="QoS of both (%(default)s)"
    )
    one.add_argument("--retain", action="store_true", help="ask about publishing with RETAIN")
    one.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask the service, print the verdicts, and return the exit code."""
    from hookmq_auth_http.plugin import AuthHttpPlugin

    plugin = plugin_of(arguments, AuthHttpPlugin, "auth_http")
    password = None if arguments.username is None else _password(arguments.password_file)
    return asyncio.run(_try(plugin, arguments, password))


def _password(path: Path | None) -> bytes:
    if path is None:
        return getpass.getpass("password: ").encode()
    try:
        return path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


async def _try(
    plugin: "AuthHttpPlugin", arguments: argparse.Namespace, password: bytes | None
) -> int:
    client = ClientInfo(
        arguments.client_id, 5, arguments.username, Peer(arguments.host), Scope(arguments.listener)
    )
    connect = Connect(arguments.client_id, 5, True, 60, arguments.username, password)
    await plugin.start(time.monotonic)
    try:
        try:
            answer = await plugin.on_connect(client, connect)
        except Undecided as error:
            return _say("connect", f"undecided, so refused: {error}", 1)
        code = _show("connect", answer)
        if code:
            return code
        if isinstance(answer, Accept):
            client.identity, client.claims = answer.identity, answer.claims or {}
        for topic in arguments.publish:
            message = Message(topic, b"", arguments.qos, arguments.retain)
            code |= await _ask(plugin, client, Action.PUBLISH, topic, message, None)
        for text in arguments.subscribe:
            share, topic_filter = parse_share(text)
            wanted = Subscription(text, topic_filter, arguments.qos, share=share)
            code |= await _ask(plugin, client, Action.SUBSCRIBE, topic_filter, None, wanted)
        return code
    finally:
        await plugin.on_shutdown()


async def _ask(
    plugin: "AuthHttpPlugin",
    client: ClientInfo,
    action: Action,
    topic: str,
    message: Message | None,
    subscription: Subscription | None,
) -> int:
    what = f"{action.value} {topic}"
    try:
        answer = plugin.authorize(client, action, topic, message, subscription)
        if answer is not None and not isinstance(answer, Allow | Deny):
            answer = await answer
    except Undecided as error:
        return _say(what, f"undecided, so refused: {error}", 1)
    return _show(what, answer)


def _show(what: str, answer: Accept | Allow | Deny | None) -> int:
    if answer is None:
        return _say(what, "left to other plugins", 0)
    if isinstance(answer, Deny):
        why = f": {answer.reason}" if answer.reason else ""
        return _say(what, f"refused, 0x{answer.code:02X} {answer.code.text}{why}", 1)
    details: dict[str, Any] = {}
    if isinstance(answer, Accept):
        details = {
            "identity": answer.identity,
            "claims": answer.claims,
            "expires_at": answer.expires_at,
        }
        if answer.limits is not None:
            details["limits"] = str(answer.limits)
    elif answer.max_qos is not None:
        details = {"max_qos": answer.max_qos}
    told = {key: value for key, value in details.items() if value}
    text = f" {json.dumps(told, ensure_ascii=True, default=str)}" if told else ""
    return _say(what, f"allowed{text}", 0)


def _say(what: str, text: str, code: int) -> int:
    print(f"{what}: {text}", file=sys.stdout)
    return code
