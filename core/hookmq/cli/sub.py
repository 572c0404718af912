"""Subscribe and print messages, with the flags of mosquitto_sub."""

import argparse
import sys
import time
from typing import TYPE_CHECKING

from hookmq.cli.formats import FIELDS, check, render
from hookmq.cli.options import Target, add_connection, count, qos, seconds, target_of
from hookmq.errors import ConfigError
from hookmq.topics import matches

if TYPE_CHECKING:
    from hookmq.cli.link import Event, Link

ADD_HELP = False
TIMED_OUT = 27
"""The exit code when -W ended it, as mosquitto_sub's."""
EXAMPLES = (
    """\
examples:
  hookmq sub -t 'sensors/#' -v                      with the topic in front
  hookmq sub -t 'sensors/#' -T sensors/noisy        but not this one
  hookmq sub -t a -t b/+ -q 1 -C 10 -W 30s          ten messages, at most 30 seconds
  hookmq sub -t '#' -F '%I %t %p'                   with the time
  hookmq sub -t '#' -F json | jq .
  hookmq sub -i me -c -q 1 -t jobs                  a session that the broker keeps

fields of -F, each with an optional width as in %-20t:
"""
    + "".join(f"  %{name}  {what}\n" for name, what in FIELDS.items())
    + """
exit code 27: -W ended it"""
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    group = parser.add_argument_group("subscription")
    add = group.add_argument
    add("-t", "--topic", action="append", default=[], metavar="FILTER",
        help="topic filter; may be given several times")  # fmt: skip
    add("-T", "--filter-out", action="append", default=[], metavar="FILTER",
        help="do not print messages of these topics")  # fmt: skip
    add("-U", "--unsubscribe", action="append", default=[], metavar="FILTER",
        help="unsubscribe first, of a kept session")  # fmt: skip
    add("-q", "--qos", type=qos, default=0, help="highest QoS wanted: 0 (default), 1 or 2")
    add("-R", "--no-retained", action="store_true", help="print no retained messages")
    add("--retained-only", action="store_true", help="print retained messages alone, then leave "
        "at the first other")  # fmt: skip
    add("--retain-as-published", action="store_true", help="keep the retain flag (MQTT 5)")
    add("--no-local", action="store_true", help="not our own messages (MQTT 5)")
    add("-E", "--exit-after-subscribe", action="store_true", help="leave when subscribed")
    add("-C", "--count", type=count, default=0, metavar="N", help="leave after N messages")
    add(
        "-W", "--timeout", type=seconds, metavar="TIME", help="leave after this time (exit code 27)"
    )
    output = parser.add_argument_group("output")
    output.add_argument("-v", "--verbose", action="store_true", help="print the topic as well")
    output.add_argument("-F", "--format", help="json, or text with %%-fields, see below")
    output.add_argument("-N", "--no-newline", action="store_true", help="no line end after each")
    add_connection(parser)


FOR_NOW = frozenset({0x80, 0x83, 0x88, 0x89, 0x97, 0x9F})
"""Refusals that may be over soon: the server is not available or busy, or a limit was reached. After any other, such as a
user that was deleted, trying again is of no use."""


def template_of(arguments: argparse.Namespace) -> str:
    """The format that -F, -v and -N ask for. Raises ConfigError."""
    if arguments.format == "json":
        template = "%j"
    elif arguments.format is not None:
        template = check(arguments.format)
    else:
        template = "%t %p" if arguments.verbose else "%p"
    return template if arguments.no_newline else template + "\n"


def run(arguments: argparse.Namespace) -> int:
    """Subscribe and print until told to stop."""
    from hookmq.cli.link import Deadline, opened

    target = target_of(arguments)
    filters = arguments.topic + ([arguments.url_topic] if arguments.url_topic else [])
    if not filters and not arguments.unsubscribe:
        raise ConfigError("which topics? give -t FILTER")
    template = template_of(arguments)
    options = {}
    if target.version == 5:
        options = {
            "noLocal": arguments.no_local,
            "retainAsPublished": arguments.retain_as_published,
            "retainHandling": 2 if arguments.no_retained else 0,
        }
    deadline = Deadline(arguments.timeout)
    with opened(target) as link:
        printed = 0
        pending = _subscribe(link, filters, arguments, options)
        while True:
            event = link.next(deadline.left())
            if event is None:
                return TIMED_OUT
            if event.kind == "connected":
                # back after a loss: a clean session has forgotten its subscriptions
                pending = _subscribe(link, filters, arguments, options)
            elif event.kind == "refused" and not FOR_NOW.intersection(event.codes):
                _tell(target, f"{target.address} refused the connection: {event.reason}")
                return 1
            elif event.kind in ("lost", "refused"):
                _tell(target, f"the connection was lost: {event.reason}; trying again")
            elif event.kind in ("subscribed", "unsubscribed"):
                pending.discard(event.mid)
                if _refused(target, event):
                    return 1
                if not pending and (arguments.exit_after_subscribe or not filters):
                    return 0
            elif event.message is not None:
                message = event.message
                if arguments.retained_only and not message.retain:
                    return 0
                if message.retain and arguments.no_retained:
                    continue
                if any(matches(f, message.topic) for f in arguments.filter_out):
                    continue
                _print(render(message, template, time.time(), sys.stdout.isatty()))
                printed += 1
                if printed == arguments.count:
                    return 0


def _subscribe(
    link: "Link", filters: list[str], arguments: argparse.Namespace, options: dict[str, object]
) -> set[int]:
    pending = set(link.unsubscribe(arguments.unsubscribe))
    pending.update(link.subscribe(filters, arguments.qos, **options))
    return pending


def _refused(target: Target, event: "Event") -> bool:
    for code in event.codes:
        if code >= 0x80 and event.kind == "subscribed":
            from hookmq.reason import ReasonCode

            try:
                words = ReasonCode(code).text
            except ValueError:
                words = "failure"
            more = f" ({event.reason})" if event.reason else ""
            _tell(target, f"the subscription was refused: {words} (0x{code:02X}){more}")
            return True
    return False


def _print(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _tell(target: Target, text: str) -> None:
    if not target.quiet:
        print(f"hookmq sub: {text}", file=sys.stderr)
