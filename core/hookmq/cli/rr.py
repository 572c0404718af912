"""Send a request and print the response, with the options of mosquitto_rr (MQTT 5 request/response)."""

import argparse
import secrets

from hookmq.cli.formats import add_output, print_message, template_of
from hookmq.cli.options import (
    add_connection,
    add_payload,
    payload_of,
    qos,
    seconds,
    target_of,
    topic_of,
)
from hookmq.cli.sub import TIMED_OUT

EXAMPLES = """\
examples:
  hookmq rr -t service/time -e reply/me -m now       send "now" and print the message that arrives at reply/me
  hookmq rr -t service/time -m now -W 5s             wait 5 seconds, on a response topic chosen at random"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    # fmt: off
    group = parser.add_argument_group("request")
    add = group.add_argument
    add("-t", "--topic", help="topic of the request")
    add("-e", "--response-topic", metavar="TOPIC", help="topic of the response (default: a random one)")
    add_payload(group, lines=False)
    add("-q", "--qos", type=qos, default=0, help="QoS: 0 (default), 1 or 2")
    add("-r", "--retain", action="store_true", help="retain the request")
    add("-W", "--timeout", type=seconds, metavar="TIME", help="give up after this time (exit code 27)")
    # fmt: on
    add_output(parser)
    add_connection(parser)
    parser.set_defaults(protocol_version="mqttv5")


def run(arguments: argparse.Namespace) -> int:
    """Subscribe to the response topic, send the request, and print the first response."""
    from hookmq.cli.mqtt_client import (
        Deadline,
        MqttClientError,
        new_properties,
        opened,
        properties_for,
    )

    target = target_of(arguments)
    topic = topic_of(arguments)
    template = template_of(arguments)
    payload = payload_of(arguments)
    response_topic = arguments.response_topic or f"hookmq/rr/{secrets.token_hex(8)}"
    properties = None
    correlation = b""
    if target.version == 5:
        properties = properties_for("publish", target.properties) or new_properties("publish")
        properties.ResponseTopic = response_topic
        correlation = getattr(properties, "CorrelationData", b"") or secrets.token_bytes(12)
        properties.CorrelationData = correlation
    deadline = Deadline(arguments.timeout)
    with opened(target) as client:
        client.subscribe([response_topic], arguments.qos)
        while True:
            event = client.next(deadline.left())
            if event is None:
                return TIMED_OUT
            if event.kind == "subscribed":
                if event.codes[0] >= 0x80:
                    raise MqttClientError(f"the subscription to {response_topic!r} was refused")
                client.publish(topic, payload, arguments.qos, arguments.retain, properties)
            elif event.kind == "published" and event.codes[0] >= 0x80:
                raise MqttClientError(f"the request was refused: {event.reason}")
            elif event.kind == "lost":
                raise MqttClientError(f"the connection was lost: {event.reason}")
            elif event.message is not None:
                answer = getattr(event.message.properties, "CorrelationData", None)
                # A response may lack correlation data. Different data means that it belongs to another request.
                if target.version < 5 or answer in (None, correlation):
                    print_message(event.message, template)
                    return 0
