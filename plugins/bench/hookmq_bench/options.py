"""The command-line options of ``hookmq bench``, and the plan built from them."""

import argparse
import secrets
from pathlib import Path
from typing import Final

from hookmq.cli_api import PROPERTIES, ConnectTarget, add_connection, count, qos, seconds, target_of
from hookmq.config_api import parse_size
from hookmq.plugin import ConfigError, Properties
from hookmq.server_api import is_loopback

from hookmq_bench.plan import SCENARIOS, STAMP, TOPIC, Limits, Plan, fill

EXAMPLES: Final = """\
examples:
  hookmq bench pair                                     50 publishers, 50 subscribers, as fast as a window of 20 permits
  hookmq bench fanin --rate 10000 -q 1 --max-p99 5ms    latency at a fixed rate; exit code 1 above 5 ms
  hookmq bench fanout --subscribers 1000 --html report.html
  hookmq bench connect --clients 5000 --connect-rate 500
  hookmq bench churn --clients 2000 --storm 5s          cut all connections every 5 s
  hookmq bench pair -L mqtts://broker.example --cafile ca.pem -V mqttv5 --yes-remote --fail-on-loss

exit codes: 0 done; 1 failed, void or a limit exceeded; 2 wrong options"""

WINDOW: Final = 20
SNAKE: Final = {paho: name.replace("-", "_") for name, (paho, _) in PROPERTIES.items()}
"""Maps paho's property names to HookMQ's."""
ONLY: Final = {
    "shared": ("sub", "fanin", "fanout"),
    "abrupt": ("churn",),
    "storm": ("churn",),
    "clients": ("connect", "churn"),
    "publishers": ("pub", "pair", "fanin", "fanout"),
    "subscribers": ("sub", "fanin", "fanout"),
    "rate": ("pub", "pair", "fanin", "fanout"),
    "window": ("pub", "pair", "fanin", "fanout"),
    "ramp_up": ("pub", "pair", "fanin", "fanout"),
    "retain": ("pub", "pair", "fanin", "fanout"),
    "payload": ("pub", "pair", "fanin", "fanout"),
    "payload_file": ("pub", "pair", "fanin", "fanout"),
    "topic": ("pub", "sub", "pair", "fanin", "fanout"),
    "qos": ("pub", "sub", "pair", "fanin", "fanout"),
    "warm_up": ("pub", "sub", "pair", "fanin", "fanout"),
    "count": ("pub", "sub", "pair", "fanin", "fanout", "churn"),
}
"""For each option that only some scenarios support, those scenarios."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and options to `parser`."""
    listed = "; ".join(f"{name}: {one.help}" for name, one in SCENARIOS.items())
    parser.add_argument("scenario", choices=SCENARIOS, metavar="SCENARIO", help=listed)
    add = parser.add_argument_group("clients").add_argument
    add(
        "--publishers",
        type=positive,
        metavar="N",
        help="publishers (pub 10, pair and fanin 50, fanout 1)",
    )
    add(
        "--subscribers",
        type=positive,
        metavar="N",
        help="subscribers (sub 10, fanin 1, fanout 100); pair has as many as publishers",
    )
    add("--clients", type=positive, metavar="N", help="connections (connect 1000, churn 100)")
    add("--processes", type=positive, default=1, metavar="N", help="processes of the generator (1)")
    add(
        "--native",
        action="store_true",
        help="use the generator in C: pair, fanin and fanout over plain TCP to 127.0.0.1, on Linux",
    )
    add = parser.add_argument_group("messages").add_argument
    add(
        "--rate",
        type=number,
        metavar="N",
        help="messages a second, of all publishers together; 0 (default): as fast as the window permits",
    )
    add(
        "--window",
        type=count,
        metavar="N",
        help=f"messages that a publisher may have outstanding: {WINDOW}, or 0 (no bound) with a --rate",
    )
    add("-q", "--qos", type=qos, help="QoS of publishers and subscribers: 0 (default), 1 or 2")
    add(
        "--payload",
        type=size,
        metavar="SIZE",
        help=f"size of the payload (64), at least {STAMP.size} bytes",
    )
    add(
        "--payload-file",
        type=Path,
        metavar="FILE",
        help=f"a payload of {STAMP.size} bytes and the content of this file",
    )
    add(
        "-t",
        "--topic",
        metavar="TEMPLATE",
        help="topic of each publisher (hookmq-bench/{run}/{i}): {i} is its number, {run} the run's",
    )
    add(
        "-r",
        "--retain",
        action="store_true",
        default=None,
        help="publish retained messages; they are removed at the end",
    )
    add(
        "--shared",
        action="store_true",
        default=None,
        help="let all subscribers share one subscription",
    )
    add = parser.add_argument_group("how long").add_argument
    add("--duration", type=seconds, metavar="TIME", help="measured time (10s; no end with --count)")
    add("--count", type=positive, metavar="N", help="end after N messages; churn: after N connects")
    add(
        "--warm-up",
        type=seconds,
        metavar="TIME",
        help="time before measuring begins (1s; 0 with --count)",
    )
    add(
        "--ramp-up",
        type=seconds,
        metavar="TIME",
        help="the rate rises evenly from 0 to --rate in this time",
    )
    add(
        "--drain",
        type=seconds,
        default=2.0,
        metavar="TIME",
        help="at the end, how long to wait for a missing message (2s)",
    )
    add = parser.add_argument_group("connections").add_argument
    add(
        "--connect-rate",
        type=number,
        default=0.0,
        metavar="N",
        help="connects a second; 0 (default): as fast as possible",
    )
    add(
        "--connecting",
        type=positive,
        default=64,
        metavar="N",
        help="connections being opened at a time (64)",
    )
    add(
        "--storm",
        type=seconds,
        metavar="TIME",
        help="churn: cut all connections at this interval; they reconnect at once",
    )
    add(
        "--abrupt",
        action="store_true",
        default=None,
        help="churn: leave without DISCONNECT; with --will-topic, wills are counted",
    )
    add(
        "--timeout",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="how long to wait for CONNACK and SUBACK, and for any progress (30s)",
    )
    add(
        "--keep",
        action="store_true",
        help="do not remove durable sessions (-c) and retained messages",
    )
    add(
        "--yes-remote",
        action="store_true",
        help="the broker is on another machine, and you may load it",
    )
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="FILE", help="write the result as JSON; - for standard output")
    add("--html", type=Path, metavar="FILE", help="write a report with plots")
    add = parser.add_argument_group("exit code 1 if").add_argument
    add("--fail-on-loss", action="store_true", help="a message or a connection was lost")
    add("--max-p50", type=seconds, metavar="TIME", help="the median latency is above this")
    add("--max-p99", type=seconds, metavar="TIME", help="the 99th percentile is above this")
    add("--max-p999", type=seconds, metavar="TIME", help="the 99.9th percentile is above this")
    add(
        "--min-rate",
        type=number,
        metavar="N",
        help="fewer messages per second arrived (pub: acknowledged messages; connect, churn: connects)",
    )
    add_connection(parser, link=False)


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Build the plan that the options describe. Raises ConfigError for invalid combinations."""
    scenario = arguments.scenario
    for name, scenarios in ONLY.items():
        if getattr(arguments, name) is not None and scenario not in scenarios:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} is for {', '.join(scenarios)}, not {scenario}")
    if not (arguments.url or arguments.host):
        arguments.host = "127.0.0.1"
    if arguments.debug:
        raise ConfigError("-d: a load test has too many packets to log")
    target = target_of(arguments)
    if not is_loopback(target.host) and not arguments.yes_remote:
        raise ConfigError(
            f"{target.host} is not this machine, and a load test may overload a broker for all its users",
            hint="use --yes-remote if you may load it",
        )
    kind = SCENARIOS[scenario]
    publishers = arguments.publishers or kind.publishers
    subscribers = arguments.subscribers or kind.subscribers
    if kind.paired:
        subscribers = publishers
    clients = arguments.clients or kind.clients
    rate = arguments.rate or 0.0
    run = secrets.randbits(24)
    window = arguments.window
    if window is None:
        window = 0 if rate else WINDOW
    if not window and not rate and publishers:
        raise ConfigError("--window 0 needs --rate: otherwise nothing limits the messages")
    if window > 65_535:
        raise ConfigError("--window: at most 65535, the number of packet ids")
    if arguments.ramp_up and not rate:
        raise ConfigError("--ramp-up needs --rate")
    topic = arguments.topic or arguments.url_topic or TOPIC
    _check_topic(topic, scenario, arguments)
    if arguments.abrupt and target.will is not None and target.will.payload:
        raise ConfigError(
            "--will-payload: not with --abrupt, which needs its own payload to count wills"
        )
    duration = arguments.duration
    if duration is None:
        duration = 0.0 if arguments.count else 10.0
    if not duration and not arguments.count and scenario != "connect":
        raise ConfigError("--duration 0 needs --count: otherwise the run never ends")
    warm_up = arguments.warm_up
    if warm_up is None:
        warm_up = 0.0 if arguments.count or kind.connects else max(1.0, arguments.ramp_up or 0.0)
    total = clients if kind.connects else publishers + subscribers
    return Plan(
        scenario=scenario,
        target=target,
        run=run,
        publishers=publishers,
        subscribers=subscribers,
        clients=clients,
        processes=min(arguments.processes, total),
        rate=rate,
        window=window,
        qos=arguments.qos or 0,
        payload=_payload(arguments),
        topic=topic,
        retain=bool(arguments.retain),
        shared=bool(arguments.shared),
        duration=duration,
        count=arguments.count or 0,
        warm_up=warm_up,
        ramp_up=arguments.ramp_up or 0.0,
        drain=arguments.drain,
        connect_rate=arguments.connect_rate,
        connecting=arguments.connecting,
        storm=arguments.storm or 0.0,
        abrupt=bool(arguments.abrupt),
        keep=arguments.keep,
        prefix=arguments.id or f"hookmq-bench-{run:06x}",
        properties=_properties(target),
        timeout=arguments.timeout,
        native=arguments.native,
    )


def limits_of(arguments: argparse.Namespace) -> Limits:
    """Return the pass/fail limits set by the options."""
    return Limits(
        arguments.fail_on_loss,
        arguments.max_p50,
        arguments.max_p99,
        arguments.max_p999,
        arguments.min_rate,
    )


def _check_topic(topic: str, scenario: str, arguments: argparse.Namespace) -> None:
    wildcards = any(character in fill(topic, "0", 0) for character in "+#")
    if wildcards and scenario != "sub":
        raise ConfigError(f"--topic: {topic!r} is a filter; a topic has no wildcards")
    if "\0" in topic or len(fill(topic, "9" * 8, 0).encode()) > 65_000:
        raise ConfigError("--topic: invalid topic")
    if scenario == "pair" and "{i}" not in topic:
        raise ConfigError("--topic: pair needs one topic for each publisher: use {i}")
    several = "{i}" in topic and not all(
        level == "{i}" or "{i}" not in level for level in topic.split("/")
    )
    if several and scenario in ("fanin", "fanout"):
        raise ConfigError(f"--topic: {scenario} needs {{i}} as a whole level, for a filter with +")


MOST: Final = 268_000_000
TOO_MUCH: Final = "--payload: the largest packet of MQTT has 256 MiB"


def _payload(arguments: argparse.Namespace) -> bytes:
    """Return the part of the payload that follows the stamp. Raises ConfigError."""
    if arguments.payload_file is not None:
        if arguments.payload is not None:
            raise ConfigError("use either --payload or --payload-file")
        try:
            with arguments.payload_file.open("rb") as file:
                filler: bytes = file.read(MOST + 1)
        except OSError as error:
            raise ConfigError(
                f"--payload-file: {arguments.payload_file}: {error.strerror}"
            ) from None
    else:
        wanted = 64 if arguments.payload is None else arguments.payload
        if wanted < STAMP.size:
            raise ConfigError(
                f"--payload: at least {STAMP.size} bytes, for the publisher, number and time of each message"
            )
        if wanted > MOST:  # check the size before allocating
            raise ConfigError(TOO_MUCH)
        filler = b"x" * (wanted - STAMP.size)
    if len(filler) > MOST:
        raise ConfigError(TOO_MUCH)
    return filler


def _properties(target: ConnectTarget) -> dict[str, Properties]:
    """Return the `-D` properties by packet type. Raises ConfigError."""
    found: dict[str, dict[str, object]] = {}
    for packet, paho_name, value in target.properties:
        if packet in ("unsubscribe", "disconnect"):
            raise ConfigError(f"-D {packet}: a load test sends no such packet")
        values = found.setdefault(packet, {})
        name = SNAKE[paho_name]
        if name in ("user_property", "subscription_identifier"):
            before = values.get(name, ())
            assert isinstance(before, tuple)
            values[name] = (*before, value)
        else:
            values[name] = value
    return {packet: Properties(**values) for packet, values in found.items()}


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    value = count(text)
    if not value:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, not {text!r}")
    return value


def number(text: str) -> float:
    """Parse a number from 0 to 1e9."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1e9, not {text!r}")
    return value


def size(text: str) -> int:
    """Parse a size in bytes."""
    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a size such as 512 or 16KiB, not {text!r}"
        ) from None
