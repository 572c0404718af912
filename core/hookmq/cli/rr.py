"""Send a request and print the response: MQTT 5's request/response, with the flags of mosquitto_rr."""

import argparse
import secrets
import sys
import time

from hookmq.cli.formats import render
from hookmq.cli.options import add_connection, qos, seconds, target_of
from hookmq.cli.sub import TIMED_OUT, template_of
from hookmq.errors import ConfigError

ADD_HELP = False
EXAMPLES = """\
examples:
  hookmq rr -t service/time -e reply/me -m now       send "now", print what comes to reply/me
  hookmq rr -t service/time -m now -W 5s             with a response topic of our own making"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    group = parser.add_argument_group("request")
    add = group.add_argument
    add("-t", "--topic", help="topic of the request")
    add(
        "-e",
        "--response-topic",
        metavar="TOPIC",
        help="topic of the response; made up when left out",
    )
    source = group.add_mutually_exclusive_group()
    source.add_argument("-m", "--message", metavar="TEXT", help="the request's payload")
    source.add_argument("-f", "--file", metavar="FILE", help="payload from a file")
    source.add_argument("-n", "--null-message", action="store_true", help="an empty payload")
    source.add_argument(
        "-s", "--stdin-file", action="store_true", help="payload from standard input"
    )
    add("-q", "--qos", type=qos, default=0, help="QoS: 0 (default), 1 or 2")
    add("-r", "--retain", action="store_true", help="retain the request")
    add(
        "-W",
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="give up after this time (exit code 27)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("-v", "--verbose", action="store_true", help="print the topic as well")
    output.add_argument("-F", "--format", help="json, or text with %%-fields as in `hookmq sub`")
    output.add_argument("-N", "--no-newline", action="store_true", help="no line end")
    add_connection(parser)
    parser.set_defaults(protocol_version="mqttv5")


def run(arguments: argparse.Namespace) -> int:
    """Subscribe to the response topic, send the request, print the first response that is ours."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    from hookmq.cli.link import Deadline, LinkError, opened, properties_for

    target = target_of(arguments)
    topic = arguments.topic or arguments.url_topic
    if not topic:
        raise ConfigError("which topic? give -t TOPIC")
    template = template_of(arguments)
    payload = _payload(arguments)
    response_topic = arguments.response_topic or f"hookmq/rr/{secrets.token_hex(8)}"
    properties = None
    correlation = b""
    if target.version == 5:
        properties = properties_for("publish", target.properties)
        properties = properties or Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = response_topic
        correlation = getattr(properties, "CorrelationData", b"") or secrets.token_bytes(12)
        properties.CorrelationData = correlation
    deadline = Deadline(arguments.timeout)
    with opened(target) as link:
        link.subscribe([response_topic], arguments.qos)
        while True:
            event = link.next(deadline.left())
            if event is None:
                return TIMED_OUT
            if event.kind == "subscribed":
                if event.codes[0] >= 0x80:
                    raise LinkError(f"the subscription to {response_topic!r} was refused")
                link.publish(topic, payload, arguments.qos, arguments.retain, properties)
            elif event.kind == "published" and event.codes[0] >= 0x80:
                raise LinkError(f"the request was refused: {event.reason}")
            elif event.kind == "lost":
                raise LinkError(f"the connection was lost: {event.reason}")
            elif event.message is not None:
                answer = getattr(event.message.properties, "CorrelationData", None)
                # a responder may leave it out, but one that answers another request is not ours
                if target.version == 5 and answer not in (None, correlation):
                    continue
                terminal = sys.stdout.isatty()
                sys.stdout.buffer.write(render(event.message, template, time.time(), terminal))
                sys.stdout.buffer.flush()
                return 0


def _payload(arguments: argparse.Namespace) -> bytes | None:
    if arguments.message is not None:
        text: str = arguments.message
        return text.encode("utf-8", "surrogateescape")
    if arguments.file is not None:
        with open(arguments.file, "rb") as file:
            return file.read()
    if arguments.stdin_file:
        return sys.stdin.buffer.read()
    if arguments.null_message:
        return None
    raise ConfigError("which message? give one of -m, -f, -n and -s")
