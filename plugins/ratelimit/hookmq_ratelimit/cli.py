"""``hookmq ratelimit``: print the limits that apply to a client."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from hookmq.cli_api import add_source, chosen
from hookmq.mqtt_api import validate_topic
from hookmq.plugin import ClientInfo, ConfigError, Peer, ProtocolError, Scope
from hookmq.server_api import parse_address

if TYPE_CHECKING:
    from hookmq_ratelimit.plugin import RateLimitPlugin

EXAMPLES: Final = """\
examples:
  hookmq ratelimit explain -c hookmq.yaml
  hookmq ratelimit explain -c hookmq.yaml --user alice --ip 2001:db8::1 --topic alarms/fire

exit codes: 0 done, 2 usage error or invalid configuration"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Print the rate limits that apply to a client."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    one = commands.add_parser(
        "explain",
        help="print the limits that apply to a client",
        description="Print the limits that apply to a client, and what happens above each.",
    )
    add_source(one)
    one.add_argument("--client", default="a-client", metavar="ID", help="its client id")
    one.add_argument("--user", metavar="NAME", help="its user, once accepted")
    one.add_argument("--ip", default="192.0.2.1", metavar="ADDRESS", help="its address")
    one.add_argument("--listener", metavar="NAME", help="its listener; the first by default")
    one.add_argument("--topic", help="a topic it publishes to; all limits by topic by default")
    one.add_argument("--plugin", metavar="ID", help="the plugin's id, if there are several")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=explain)


def explain(arguments: argparse.Namespace) -> int:
    """Run ``hookmq ratelimit explain``: print the limits that apply to a client."""
    from hookmq_ratelimit.plugin import RateLimitPlugin

    if parse_address(arguments.ip) is None:
        raise ConfigError(f"option --ip: {arguments.ip!r} is not an IP address")
    if arguments.topic is not None:
        try:
            validate_topic(arguments.topic)
        except ProtocolError as error:
            raise ConfigError(f"option --topic: {error.detail}") from None
    config = chosen(arguments, RateLimitPlugin)
    listeners = config.listeners
    listener = arguments.listener or (listeners[0] if listeners else "default")
    if arguments.listener is not None and arguments.listener not in listeners:
        raise ConfigError(
            f"option --listener: unknown listener {arguments.listener!r}",
            hint=f"known: {', '.join(listeners)}",
        )
    client = ClientInfo(
        arguments.client, 5, arguments.user, Peer(arguments.ip), Scope(name=listener)
    )
    rows: list[dict[str, Any]] = []
    exempt: dict[str, str] = {}
    found = False
    for instance in config.plugins:
        plugin = instance.plugin
        if arguments.plugin not in (None, instance.id):
            continue
        found = True
        if instance.listeners is not None and listener not in instance.listeners:
            continue
        why = plugin.free_inside(client)
        if why:
            exempt[instance.id] = why
        rows += _rows(plugin, client, arguments.topic)
    if not found:
        name = f" {arguments.plugin!r}" if arguments.plugin else ""
        raise ConfigError(f"{config.source} has no plugin ratelimit{name}")
    if arguments.json:
        print(json.dumps({"exempt": exempt, "limits": rows}, indent=2))
        return 0
    for id, why in exempt.items():
        print(f"exempt from {id}: {why}")
    _print(rows)
    return 0


def _rows(plugin: "RateLimitPlugin", client: ClientInfo, topic: str | None) -> list[dict[str, Any]]:
    rows = []
    matched = None
    if topic is not None and plugin.by_topic is not None:
        matched = plugin.by_topic.lookup(topic).allowances
    outside = plugin.free(client)
    inside = plugin.free_inside(client)
    for allowance in plugin.allowances:
        limit = allowance.limit
        if limit.filters and topic is not None and allowance not in (matched or ()):
            continue
        free = outside if limit.what in ("connections", "auth_failures") else inside
        if free:
            continue
        key = plugin.key(limit.per, client)
        rows.append(
            {
                "limit": allowance.rule,
                "what": limit.what,
                "per": limit.per,
                "key": key.lstrip("\0"),
                "rates": [str(rate) for rate in limit.rates],
                "at once": [limit.burst or max(rate.count, 1) for rate in limit.rates],
                "mode": limit.mode,
                "filters": list(limit.filters),
            }
        )
    return rows


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print("no limit applies")
        return
    names = [name for name in rows[0] if any(row[name] not in ("", []) for row in rows)]
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    for line in cells:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write(text.rstrip() + "\n")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_cell(one) for one in value) or "-"
    if isinstance(value, float):
        return f"{value:.10g}"
    return str(value) or "-"
