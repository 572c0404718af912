"""Subscribe and print messages, with the options of mosquitto_sub."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from hookmq.cli.formats import FIELDS, add_output, print_message, template_of
from hookmq.cli.options import ConnectTarget, add_connection, count, qos, seconds, target_of
from hookmq.model.errors import ConfigError
from hookmq.mqtt.topics import matches

if TYPE_CHECKING:
    from hookmq.cli.mqtt_client import ClientEvent, MqttClient

TIMED_OUT = 27
"""The exit code if -W ended the command; mosquitto_sub uses the same code."""
_FIELDS = "".join(f"  %{name}  {what}\n" for name, what in FIELDS.items())
EXAMPLES = f"""\
examples:
  hookmq sub -t 'sensors/#' -v                      print the topic before each payload
  hookmq sub -t 'sensors/#' -T sensors/noisy        all but one topic
  hookmq sub -t a -t b/+ -q 1 -C 10 -W 30s          ten messages, at most 30 seconds
  hookmq sub -t '#' -F '%I %t %p'                   print the time
  hookmq sub -t '#' -F json | jq .
  hookmq sub -i me -c -q 1 -t jobs                  a durable session

fields of -F, each with an optional width as in %-20t:
{_FIELDS}
With -q 1, a message is acknowledged after it is printed. A durable session or queue keeps the others.
exit code 27: -W ended the command"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    # fmt: off
    add = parser.add_argument_group("subscription").add_argument
    several: dict[str, Any] = {"action": "append", "default": [], "metavar": "FILTER"}
    add("-t", "--topic", **several, help="topic filter; may be repeated")
    add("-T", "--filter-out", **several, help="do not print messages that match; may be repeated")
    add("-U", "--unsubscribe", **several, help="unsubscribe first, in a durable session; may be repeated")
    add("-q", "--qos", type=qos, default=0, help="maximum QoS: 0 (default), 1 or 2")
    add("-R", "--no-retained", action="store_true", help="print no retained messages")
    add("--retained-only", action="store_true", help="print retained messages only; exit at the first other one")
    add("--retain-as-published", action="store_true", help="keep the RETAIN flag of the publisher (MQTT 5)")
    add("--no-local", action="store_true", help="do not receive your own messages (MQTT 5)")
    add("-E", "--exit-after-subscribe", action="store_true", help="exit once subscribed")
    add("-C", "--count", type=count, default=0, metavar="N", help="exit after N messages")
    add("-W", "--timeout", type=seconds, metavar="TIME", help="exit after this time (exit code 27)")
    # fmt: on
    add_output(parser)
    add_connection(parser)


TEMPORARY = frozenset({0x80, 0x83, 0x88, 0x89, 0x97, 0x9F})
"""Reason codes after which a retry may succeed: the server is unavailable or busy, or a limit was reached."""


def run(arguments: argparse.Namespace) -> int:
    """Subscribe, and print messages until an option or a signal ends the command."""
    from hookmq.cli.mqtt_client import Deadline, opened

    target = target_of(arguments)
    filters = arguments.topic + ([arguments.url_topic] if arguments.url_topic else [])
    if not filters and not arguments.unsubscribe:
        raise ConfigError("a topic filter is required: give -t FILTER")
    template = template_of(arguments)
    deadline = Deadline(arguments.timeout)
    printed = 0
    # not at QoS 2: paho would leave a PUBREL for an unknown message without PUBCOMP
    with opened(target, manual_ack=arguments.qos == 1) as client:
        pending = _subscribe(client, filters, arguments)
        while True:
            event = client.next(deadline.left())
            if event is None:
                return TIMED_OUT
            if event.kind == "connected":
                # subscribe again after a reconnect: a clean session has lost its subscriptions
                pending = _subscribe(client, filters, arguments)
            elif event.kind == "refused" and not TEMPORARY.intersection(event.codes):
                _complain(target, f"{target.address} refused the connection: {event.reason}")
                return 1
            elif event.kind in ("lost", "refused"):
                _complain(target, f"the connection was lost: {event.reason}; reconnecting")
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
                shown = not (message.retain and arguments.no_retained) and not any(
                    matches(f, message.topic) for f in arguments.filter_out
                )
                if shown:
                    print_message(message, template)
                    printed += 1
                client.acknowledge(event)  # the broker delivers unprinted messages again
                if shown and printed == arguments.count:
                    _await_answers(client, pending)
                    return 0


def _await_answers(client: "MqttClient", pending: set[int]) -> None:
    """Wait up to 2 s for SUBACK and UNSUBACK. If the socket were closed first, the broker would fail to send them. It
    would then not read the last PUBACK, and would deliver that message again.
    """
    from hookmq.cli.mqtt_client import Deadline

    deadline = Deadline(2.0)
    while pending:
        event = client.next(deadline.left())
        if event is None or event.kind == "lost":
            return
        if event.kind in ("subscribed", "unsubscribed"):
            pending.discard(event.mid)


def _subscribe(client: "MqttClient", filters: list[str], arguments: argparse.Namespace) -> set[int]:
    pending = set(client.unsubscribe(arguments.unsubscribe))
    options = {
        "noLocal": arguments.no_local,
        "retainAsPublished": arguments.retain_as_published,
        "retainHandling": 2 if arguments.no_retained else 0,
    }
    return pending.union(client.subscribe(filters, arguments.qos, **options))


def _refused(target: ConnectTarget, event: "ClientEvent") -> bool:
    code = max(event.codes, default=0)
    if code < 0x80 or event.kind != "subscribed":
        return False
    from hookmq.mqtt.reason_codes import ReasonCode

    known = code in ReasonCode.__members__.values()
    words = ReasonCode(code).text if known else "failure"
    more = f" ({event.reason})" if event.reason else ""
    _complain(target, f"the subscription was refused: {words} (0x{code:02X}){more}")
    return True


def _complain(target: ConnectTarget, text: str) -> None:
    if not target.quiet:
        print(f"hookmq sub: {text}", file=sys.stderr)
