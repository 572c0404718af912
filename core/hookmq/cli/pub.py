"""Publish messages, with the options of mosquitto_pub."""

import argparse
import sys
import time
from collections.abc import Iterator

from hookmq.cli.options import (
    add_connection,
    add_payload,
    count,
    payload_of,
    qos,
    seconds,
    target_of,
    topic_of,
)

EXAMPLES = """\
examples:
  hookmq pub -t sensors/a -m 21.5
  hookmq pub -t sensors/a -m 21.5 -q 1 -r           at least once, retained
  hookmq pub -t sensors/a -n -r                     delete the retained message
  hookmq pub -t logs -l < app.log                   one message for each line
  hookmq pub -L mqtt://user:secret@host/firmware -f image.bin -q 2
  hookmq pub -V 5 -t a -m x -D publish user-property color blue -D publish message-expiry-interval 60
  hookmq pub -t tick -m x --repeat 10 --repeat-delay 1s"""

WAIT = 60.0
"""How many seconds to wait for an acknowledgement before publishing fails."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    group = parser.add_argument_group("message")
    add = group.add_argument
    add("-t", "--topic", help="topic to publish to")
    add_payload(group, lines=True)
    add("-q", "--qos", type=qos, default=0, help="QoS: 0 (default), 1 or 2")
    add("-r", "--retain", action="store_true", help="retain the message")
    add("--repeat", type=count, default=1, metavar="N", help="publish N times (default: 1)")
    add(
        "--repeat-delay", type=seconds, default=0.0, metavar="TIME", help="time between two repeats"
    )
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Publish the messages and wait for their acknowledgements. Return 1 if a message was refused."""
    target = target_of(arguments)
    topic = topic_of(arguments)
    payloads = _payloads(arguments)
    from hookmq.cli.mqtt_client import MqttClientError, opened, properties_for

    properties = properties_for("publish", target.properties) if target.version == 5 else None
    refused = 0
    with opened(target) as client:
        waiting: set[int] = set()

        def settle(limit: int) -> None:
            """Wait until at most `limit` messages are unacknowledged."""
            nonlocal refused
            while len(waiting) > limit:
                event = client.next(WAIT)
                if event is None:
                    raise MqttClientError(f"no acknowledgement within {WAIT:g} s")
                if event.kind == "lost":
                    raise MqttClientError(f"the connection was lost: {event.reason}")
                if event.kind == "published":
                    waiting.discard(event.mid)
                    if event.codes[0] >= 0x80:
                        refused += 1
                        if not target.quiet:
                            print(f"hookmq pub: refused: {event.reason}", file=sys.stderr)

        for number, payload in enumerate(payloads):
            if number and arguments.repeat_delay:
                time.sleep(arguments.repeat_delay)
            # at QoS 0, paho reports the same event when the message has been written
            waiting.add(client.publish(topic, payload, arguments.qos, arguments.retain, properties))
            settle(100)
        settle(0)
    return 1 if refused else 0


def _payloads(arguments: argparse.Namespace) -> Iterator[bytes | None]:
    if arguments.stdin_line:
        return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    payload = payload_of(arguments)
    return (payload for _ in range(arguments.repeat))
