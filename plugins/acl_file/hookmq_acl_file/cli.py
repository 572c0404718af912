"""Implement ``hookmq acl``, which tests rules, checks rule files and converts mosquitto's acl_file."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from hookmq.mqtt_api import parse_share, validate_filter, validate_topic
from hookmq.plugin import (
    Action,
    Certificate,
    ClientInfo,
    ConfigError,
    Peer,
    ProtocolError,
    Scope,
)
from hookmq_toolkit.rules import Rule

from hookmq_acl_file.convert import to_yaml
from hookmq_acl_file.file import Format, load, read_text
from hookmq_acl_file.problems import FileError

EXAMPLES: Final = """\
examples:
  hookmq acl check acl.yaml
  hookmq acl test ann sensor-1 publish devices/sensor-1/temperature --qos 1
  hookmq acl test - kiosk subscribe 'news/#' --ip 10.1.2.3
  hookmq acl test bob c1 subscribe 'plant/#' --file /etc/hookmq/acl.yaml --claim role=admin
  hookmq acl import /etc/mosquitto/acl -o acl.yaml

exit codes: 0 allowed or done, 1 denied or mistakes found, 2 usage error"""

TEST: Final = """\
Print whether a client may do something, and the file and line of the rule that decides.

USER is the client's identity or user name; - is none. For subscribe, TOPIC is a filter."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Test, check and convert access rules."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    one = commands.add_parser(
        "test", help="print whether a client may do something, and the rule", description=TEST
    )
    one.add_argument("user", metavar="USER", help="the user; - for none")
    one.add_argument("client", metavar="CLIENT", help="the client id")
    one.add_argument("action", metavar="ACTION", choices=tuple(Action), help=", ".join(Action))
    one.add_argument("topic", metavar="TOPIC", help="topic, or topic filter")
    _add_file(one, "--file")
    one.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="QoS, 0 by default")
    one.add_argument("--retain", action="store_true", help="the message has the RETAIN flag set")
    one.add_argument("--ip", default="", metavar="ADDRESS", help="the client's IP address")
    one.add_argument("--listener", default="default", metavar="NAME", help="the client's listener")
    one.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a claim of the client, JSON or text; may be repeated",
    )
    one.add_argument(
        "--common-name", default="", metavar="NAME", help="common name of its certificate"
    )
    one.add_argument("--fingerprint", default="", metavar="HEX", help="SHA-256 of its certificate")
    one.add_argument(
        "--san",
        action="append",
        default=[],
        metavar="NAME",
        help="subject alternative name of its certificate; may be repeated",
    )
    one.add_argument("--json", action="store_true", help="print a JSON object")
    one.set_defaults(run=test)

    one = commands.add_parser(
        "check", help="print all mistakes of a file", description="Print all mistakes of a file."
    )
    _add_file(one, "file")
    one.set_defaults(run=check)

    one = commands.add_parser(
        "import",
        help="convert mosquitto's acl_file to YAML",
        description="Convert mosquitto's acl_file to YAML.",
    )
    one.add_argument("source", type=Path, metavar="SOURCE", help="mosquitto's acl_file")
    one.add_argument(
        "-o", "--output", type=Path, help="the file to create; standard output by default"
    )
    one.add_argument(
        "--filtered",
        action="store_true",
        help="allow all subscriptions and decide each delivery, as mosquitto does",
    )
    one.set_defaults(run=import_)


def _add_file(parser: Any, name: str) -> None:
    if name == "file":
        parser.add_argument(name, type=Path, metavar="FILE", help="the rule file")
    else:
        parser.add_argument(
            name,
            type=Path,
            default=Path("acl.yaml"),
            metavar="FILE",
            help="the rule file, acl.yaml by default",
        )
    parser.add_argument(
        "--format",
        choices=("yaml", "mosquitto"),
        help="yaml for .yaml and .yml by default, otherwise mosquitto",
    )


def _format(arguments: argparse.Namespace) -> Format:
    if arguments.format is not None:
        given: Format = arguments.format
        return given
    return "yaml" if arguments.file.suffix in (".yaml", ".yml") else "mosquitto"


def test(arguments: argparse.Namespace) -> int:
    """Run ``hookmq acl test``, which prints a decision."""
    action = Action(arguments.action)
    topic: str = arguments.topic
    try:
        if action is Action.SUBSCRIBE:
            validate_filter(topic)
            topic = parse_share(topic)[1]
        else:
            validate_topic(topic)
    except ProtocolError as error:
        raise ConfigError(f"TOPIC {topic[:200]!r}: {error.detail}") from None
    rules = load(arguments.file, _format(arguments)).rules
    client = _client(arguments)
    rule = rules.decide(rules.choose(client), action, topic, arguments.qos, arguments.retain)
    allowed = rule is not None and rule.allow
    if arguments.json:
        print(json.dumps(_shown(rule)))
    elif rule is None:
        print("denied: no rule allows it")
    else:
        print(f"{'allowed' if allowed else 'denied'} by {rule.source}: {_described(rule)}")
        if (
            allowed
            and action is Action.SUBSCRIBE
            and rule.qos is not None
            and rule.qos < arguments.qos
        ):
            print(f"granted QoS {rule.qos}")
        number = int(rule.source.rpartition(":")[2])
        print(f"    {read_text(arguments.file).split(chr(10))[number - 1].strip()}")
    return 0 if allowed else 1


def _client(arguments: argparse.Namespace) -> ClientInfo:
    certificate = None
    if arguments.common_name or arguments.fingerprint or arguments.san:
        fingerprint = arguments.fingerprint.replace(":", "").lower()
        certificate = Certificate(arguments.common_name, "", tuple(arguments.san), fingerprint)
    claims = {}
    for given in arguments.claim:
        name, equals, value = given.partition("=")
        if not name or not equals:
            raise ConfigError(f"--claim {given!r} is not NAME=VALUE")
        try:
            claims[name] = json.loads(value)
        except ValueError:
            claims[name] = value
    user = None if arguments.user == "-" else arguments.user
    peer = Peer(arguments.ip, certificate=certificate)
    return ClientInfo(arguments.client, 5, user, peer, Scope(arguments.listener), claims=claims)


def _described(rule: Rule) -> str:
    actions = ", ".join(action for action in Action if action in rule.actions)
    text = f"{'allow' if rule.allow else 'deny'} {actions} on {rule.filter}"
    if rule.qos is not None:
        text += f", at most QoS {rule.qos}"
    if rule.retain is not None:
        text += f", {'retained' if rule.retain else 'not retained'}"
    return text


def _shown(rule: Rule | None) -> dict[str, Any]:
    if rule is None:
        return {"allow": False, "rule": None}
    return {
        "allow": rule.allow,
        "rule": rule.source,
        "filter": rule.filter,
        "actions": [action for action in Action if action in rule.actions],
        "qos": rule.qos,
        "retain": rule.retain,
    }


def check(arguments: argparse.Namespace) -> int:
    """Run ``hookmq acl check``, which prints all mistakes."""
    try:
        rules = load(arguments.file, _format(arguments)).rules
    except FileError as error:
        for one in error.errors:
            print(one, file=sys.stderr)
        return 1
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    deliveries = ", deliveries are decided" if rules.delivers else ""
    print(
        f"{arguments.file} is valid: {rules.rules} rules for {rules.sections} kinds of clients{deliveries}"
    )
    return 0


def import_(arguments: argparse.Namespace) -> int:
    """Run ``hookmq acl import``, which writes mosquitto's acl_file as YAML."""
    text = to_yaml(read_text(arguments.source), str(arguments.source), arguments.filtered)
    output: Path | None = arguments.output
    if output is None:
        sys.stdout.write(text)
        return 0
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write the file: {error.strerror}", source=str(output)) from None
    print(f"{output} has the rules of {arguments.source}")
    return 0
