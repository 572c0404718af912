"""Publish messages, with the flags of mosquitto_pub."""

import argparse
import sys
import time
from collections.abc import Iterator

from hookmq.cli.options import add_connection, count, qos, seconds, target_of
from hookmq.errors import ConfigError

ADD_HELP = False
EXAMPLES = """\
examples:
  hookmq pub -t sensors/a -m 21.5
  hookmq pub -t sensors/a -m 21.5 -q 1 -r           at least once, retained
  hookmq pub -t sensors/a -n -r                     forget the retained message
  hookmq pub -t logs -l < app.log                   one message per line
  hookmq pub -L mqtt://user:secret@host/firmware -f image.bin -q 2
  hookmq pub -V 5 -t a -m x -D publish user-property color blue -D publish message-expiry-interval 60
  hookmq pub -t tick -m x --repeat 10 --repeat-delay 1s"""

WAIT = 60.0
"""Seconds without any acknowledgement after which publishing failed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    group = parser.add_argument_group("message")
    group.add_argument("-t", "--topic", help="topic to publish to")
    source = group.add_mutually_exclusive_group()
    source.add_argument("-m", "--message", metavar="TEXT", help="the payload")
    source.add_argument("-f", "--file", metavar="FILE", help="payload from a file")
    source.add_argument("-n", "--null-message", action="store_true", help="an empty payload")
    source.add_argument(
        "-l", "--stdin-line", action="store_true", help="a message per line of standard input"
    )
    source.add_argument(
        "-s", "--stdin-file", action="store_true", help="payload is all of standard input"
    )
    group.add_argument("-q", "--qos", type=qos, default=0, help="QoS: 0 (default), 1 or 2")
    group.add_argument("-r", "--retain", action="store_true", help="retain the message")
    group.add_argument(
        "--repeat", type=count, default=1, metavar="N", help="publish it N times (1)"
    )
    group.add_argument(
        "--repeat-delay", type=seconds, default=0.0, metavar="TIME", help="pause between repeats"
    )
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Publish, wait for the acknowledgements, and leave. 1 when one was refused."""
    target = target_of(arguments)
    topic = arguments.topic or arguments.url_topic
    if not topic:
        raise ConfigError("which topic? give -t TOPIC, or -L URL with one")
    if any(character in topic for character in "+#\0"):
        raise ConfigError(f"{topic!r} is a filter; messages are published to one topic")
    if target.version == 5:
        from hookmq.cli.link import properties_for

        properties = properties_for("publish", target.properties)
    else:
        properties = None
    payloads = _payloads(arguments)
    from hookmq.cli.link import LinkError, opened

    refused = 0
    with opened(target) as link:
        waiting: set[int] = set()

        def settle(limit: int) -> None:
            """Wait until at most `limit` messages are unacknowledged."""
            nonlocal refused
            while len(waiting) > limit:
                event = link.next(WAIT)
                if event is None:
                    raise LinkError(f"no acknowledgement within {WAIT:g} s")
                if event.kind == "lost":
                    raise LinkError(f"the connection was lost: {event.reason}")
                if event.kind == "published":
                    waiting.discard(event.mid)
                    if event.codes[0] >= 0x80:
                        refused += 1
                        _tell(target.quiet, f"refused: {event.reason}")

        for number, payload in enumerate(payloads):
            if number and arguments.repeat_delay:
                time.sleep(arguments.repeat_delay)
            # paho tells that a QoS 0 message was written by the same event
            waiting.add(link.publish(topic, payload, arguments.qos, arguments.retain, properties))
            settle(100)
        settle(0)
    return 1 if refused else 0


def _payloads(arguments: argparse.Namespace) -> Iterator[bytes | None]:
    if arguments.stdin_line:
        return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    payload: bytes | None
    if arguments.message is not None:
        payload = arguments.message.encode("utf-8", "surrogateescape")
    elif arguments.file is not None:
        with open(arguments.file, "rb") as file:
            payload = file.read()
    elif arguments.stdin_file:
        payload = sys.stdin.buffer.read()
    elif arguments.null_message:
        payload = None
    else:
        raise ConfigError("which message? give one of -m, -f, -n, -l and -s")
    return (payload for _ in range(arguments.repeat))


def _tell(quiet: bool, text: str) -> None:
    if not quiet:
        print(f"hookmq pub: {text}", file=sys.stderr)
