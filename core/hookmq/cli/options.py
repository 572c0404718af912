"""What `pub`, `sub` and `rr` share on the command line: mosquitto's flag letters, checked and put into one `Target`."""

import argparse
import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from hookmq.errors import ConfigError

VERSIONS: Final = {"mqttv31": 3, "31": 3, "mqttv311": 4, "311": 4, "mqttv5": 5, "5": 5}
TLS_VERSIONS: Final = ("tlsv1.2", "tlsv1.3")
SCHEMES: Final = {
    "mqtt": (False, False, 1883),
    "mqtts": (True, False, 8883),
    "ws": (False, True, 8083),
    "wss": (True, True, 8084),
}
"""TLS, WebSocket and the usual port of a URL's scheme."""

INTEGER, TEXT, DATA, PAIR = "whole number", "text", "data", "name and value"
PROPERTIES: Final[dict[str, tuple[str, str]]] = {
    "assigned-client-identifier": ("AssignedClientIdentifier", TEXT),
    "authentication-data": ("AuthenticationData", DATA),
    "authentication-method": ("AuthenticationMethod", TEXT),
    "content-type": ("ContentType", TEXT),
    "correlation-data": ("CorrelationData", DATA),
    "maximum-packet-size": ("MaximumPacketSize", INTEGER),
    "message-expiry-interval": ("MessageExpiryInterval", INTEGER),
    "payload-format-indicator": ("PayloadFormatIndicator", INTEGER),
    "reason-string": ("ReasonString", TEXT),
    "receive-maximum": ("ReceiveMaximum", INTEGER),
    "request-problem-information": ("RequestProblemInformation", INTEGER),
    "request-response-information": ("RequestResponseInformation", INTEGER),
    "response-topic": ("ResponseTopic", TEXT),
    "session-expiry-interval": ("SessionExpiryInterval", INTEGER),
    "subscription-identifier": ("SubscriptionIdentifier", INTEGER),
    "topic-alias": ("TopicAlias", INTEGER),
    "topic-alias-maximum": ("TopicAliasMaximum", INTEGER),
    "user-property": ("UserProperty", PAIR),
    "will-delay-interval": ("WillDelayInterval", INTEGER),
}
"""mosquitto's name of a property to paho's and the kind of its value."""
LEGAL: Final[dict[str, frozenset[str]]] = {
    "connect": frozenset({
        "authentication-data", "authentication-method", "maximum-packet-size", "receive-maximum",
        "request-problem-information", "request-response-information", "session-expiry-interval",
        "topic-alias-maximum", "user-property",
    }),
    "publish": frozenset({
        "content-type", "correlation-data", "message-expiry-interval", "payload-format-indicator", "response-topic",
        "topic-alias", "user-property",
    }),
    "subscribe": frozenset({"subscription-identifier", "user-property"}),
    "unsubscribe": frozenset({"user-property"}),
    "disconnect": frozenset({"reason-string", "session-expiry-interval", "user-property"}),
    "will": frozenset({
        "content-type", "correlation-data", "message-expiry-interval", "payload-format-indicator", "response-topic",
        "user-property", "will-delay-interval",
    }),
}  # fmt: skip
"""The properties that a packet, as ``-D`` calls it, may carry."""

Property = tuple[str, str, Any]
"""Packet as ``-D`` calls it, paho's name of the property, value."""


@dataclass(frozen=True, slots=True)
class Will:
    """The will given on the command line."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect and as whom."""

    host: str
    port: int
    version: int
    keep_alive: int
    clean_start: bool
    client_id: str = ""
    username: str | None = None
    password: str | None = None
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    insecure: bool = False
    ca_folder: str | None = None
    ciphers: str | None = None
    tls_version: str | None = None
    bind: str = ""
    nodelay: bool = False
    max_inflight: int | None = None
    websocket: bool = False
    path: str = "/mqtt"
    unix: str | None = None
    will: Will | None = None
    session_expiry: int | None = None
    properties: tuple[Property, ...] = field(default=())
    debug: bool = False
    quiet: bool = False

    @property
    def address(self) -> str:
        """Host and port, or the socket's path, for people."""
        if self.unix is not None:
            return self.unix
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def add_connection(parser: argparse.ArgumentParser, link: bool = True) -> None:
    """Add the options that say where and how to connect.

    `link`: also those that only `hookmq.cli.link` honours. A command that connects by other means leaves them out: they
    are unknown to it, and `target_of` takes their defaults.
    """
    if not link:
        parser.set_defaults(bind="", id_prefix=None, unix=None, max_inflight=None, nodelay=False)
    parser.add_argument("--help", action="help", help="show this help and exit")
    group = parser.add_argument_group("connection")
    add = group.add_argument
    add("-h", "--host", help="host name or address (localhost)")
    add("-p", "--port", type=port, help="port (1883; 8883 with TLS; 8083, 8084 with --ws)")
    add("-L", "--url", help="mqtt://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC; also mqtts, ws and wss")
    if link:
        add("-A", "--bind", metavar="ADDRESS", default="", help="the local address to connect from")
    chosen = group.add_mutually_exclusive_group()
    chosen.add_argument("-i", "--id", help="client id; without it the broker or we choose one")
    if link:
        chosen.add_argument("-I", "--id-prefix", metavar="PREFIX",
                            help="client id: PREFIX and the number of this process")  # fmt: skip
    add("-u", "--username", help="user name")
    add("-P", "--pw", metavar="PASSWORD", help="password; - asks for it")
    add("--password-file", metavar="FILE",
        help="file whose first line is the password or token: other users see -P in the list of processes")  # fmt: skip
    if link:
        add("--unix", metavar="PATH", help="connect to a Unix socket instead of a host")
    add("-V", "--protocol-version", choices=VERSIONS, default="mqttv311", metavar="VERSION",
        help="mqttv31, mqttv311 (default) or mqttv5")  # fmt: skip
    add("-k", "--keepalive", type=count, default=60, metavar="SECONDS", help="keep alive (60)")
    add("-c", "--disable-clean-session", action="store_true",
        help="keep the session and its subscriptions; needs -i")  # fmt: skip
    add("-x", "--session-expiry-interval", type=expiry, metavar="SECONDS",
        help="how long the broker keeps the session (MQTT 5); a number or ∞")  # fmt: skip
    if link:
        add("-M", "--max-inflight", type=inflight, metavar="COUNT",
            help="QoS 1 and 2 messages under way at once (20)")  # fmt: skip
        add("--nodelay", action="store_true", help="send small packets at once (TCP_NODELAY)")
    add("-D", "--property", action="append", nargs="+", default=[], metavar=("PACKET", "NAME VALUE"),
        help="an MQTT 5 property: -D publish user-property NAME VALUE")  # fmt: skip
    add("-d", "--debug", action="store_true", help="tell every packet on stderr")
    add("--quiet", action="store_true", help="no error messages")
    will = parser.add_argument_group("will")
    will.add_argument("--will-topic", metavar="TOPIC")
    will.add_argument("--will-payload", metavar="TEXT", default="")
    will.add_argument("--will-qos", type=qos, default=0, metavar="QOS")
    will.add_argument("--will-retain", action="store_true")
    tls = parser.add_argument_group("TLS and WebSocket")
    tls.add_argument("--cafile", metavar="FILE", help="authorities to trust, PEM; turns TLS on")
    tls.add_argument("--capath", metavar="FOLDER",
                     help="authorities to trust, a folder as openssl rehash makes it; turns TLS on")  # fmt: skip
    tls.add_argument("--ciphers", metavar="LIST", help="TLS 1.2 ciphers, as OpenSSL lists them")
    tls.add_argument("--tls-version", choices=TLS_VERSIONS, help="lowest version of TLS")
    tls.add_argument("--cert", metavar="FILE", help="our certificate, PEM")
    tls.add_argument("--key", metavar="FILE", help="our private key, PEM")
    tls.add_argument("--tls", action="store_true", help="TLS with the system's authorities")
    tls.add_argument("--insecure", action="store_true",
                     help="do not check that the certificate is the host's: for tests only")  # fmt: skip
    tls.add_argument("--ws", action="store_true", help="MQTT over WebSocket")
    tls.add_argument(
        "--ws-path", default=None, metavar="PATH", help="path of the WebSocket (/mqtt)"
    )


def target_of(arguments: argparse.Namespace) -> Target:
    """The target that the options describe. Raises ConfigError. May ask for a password on the terminal. A topic in
    ``-L`` is put into ``arguments.url_topic``."""
    host, port_number = arguments.host, arguments.port
    username, password = arguments.username, arguments.pw
    secure = bool(
        arguments.tls
        or arguments.cafile
        or arguments.capath
        or arguments.cert
        or arguments.insecure
    )
    websocket, path = arguments.ws, arguments.ws_path
    arguments.url_topic = None
    if arguments.url:
        if host or port_number:
            raise ConfigError("give -L or -h and -p, not both")
        url = _url(arguments.url)
        host, port_number, path_topic = url[1], url[2], url[5]
        url_secure, url_websocket, _ = SCHEMES[url[0]]
        secure, websocket = secure or url_secure, websocket or url_websocket
        username = username if username is not None else url[3]
        password = password if password is not None else url[4]
        arguments.url_topic = path_topic
    version = VERSIONS[arguments.protocol_version]
    if arguments.password_file is not None:
        if arguments.pw is not None:
            raise ConfigError("give -P or --password-file, not both")
        password = _first_line(arguments.password_file)
    if arguments.unix is not None and (host or port_number or secure or websocket):
        raise ConfigError("--unix is instead of -h, -p, -L, TLS and --ws")
    if password == "-" and arguments.password_file is None:
        password = getpass.getpass("password: ")
    if password is not None and username is None and version < 5:
        raise ConfigError("a password needs a user name (-u) before MQTT 5")
    if (arguments.ciphers or arguments.tls_version) and not secure:
        raise ConfigError("--ciphers and --tls-version need TLS, such as --tls or --cafile")
    if (arguments.cert is None) != (arguments.key is None):
        raise ConfigError("--cert and --key go together")
    if arguments.capath is not None and not os.path.isdir(arguments.capath):
        raise ConfigError(f"--capath {arguments.capath}: is no folder")
    for path_of_file in (arguments.cafile, arguments.cert, arguments.key):
        if path_of_file is not None and not os.access(path_of_file, os.R_OK):
            raise ConfigError(f"{path_of_file}: cannot be read")
    if arguments.id_prefix is not None:
        if arguments.disable_clean_session:
            raise ConfigError("-c needs a client id that is the same each time: -i, not -I")
        arguments.id = f"{arguments.id_prefix}{os.getpid()}"
    if arguments.disable_clean_session and not arguments.id:
        raise ConfigError("-c needs a client id (-i) to find the session by")
    if version < 5 and (arguments.property or arguments.session_expiry_interval is not None):
        raise ConfigError("properties (-D, -x) need -V mqttv5")
    will = None
    if arguments.will_topic:
        payload = arguments.will_payload.encode()
        will = Will(arguments.will_topic, payload, arguments.will_qos, arguments.will_retain)
    elif arguments.will_payload or arguments.will_qos or arguments.will_retain:
        raise ConfigError("a will needs --will-topic")
    usual = next(
        usual for tls, ws, usual in SCHEMES.values() if (tls, ws) == (secure, bool(websocket))
    )
    return Target(
        host=host or "localhost",
        unix=arguments.unix,
        port=port_number or usual,
        version=version,
        keep_alive=arguments.keepalive,
        clean_start=not arguments.disable_clean_session,
        client_id=arguments.id or "",
        username=username,
        password=password,
        tls=secure,
        ca=arguments.cafile,
        certificate=arguments.cert,
        key=arguments.key,
        insecure=arguments.insecure,
        ca_folder=arguments.capath,
        ciphers=arguments.ciphers,
        tls_version=arguments.tls_version,
        bind=arguments.bind,
        nodelay=arguments.nodelay,
        max_inflight=arguments.max_inflight,
        websocket=bool(websocket),
        path=path or "/mqtt",
        will=will,
        session_expiry=arguments.session_expiry_interval,
        properties=tuple(parse_property(words) for words in arguments.property),
        debug=arguments.debug,
        quiet=arguments.quiet,
    )


def _first_line(path: str) -> str:
    """The password in a file. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            line = file.readline(65_537).rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"--password-file {path}: {why}") from None
    if not line or len(line) > 65_535:
        raise ConfigError(f"--password-file {path}: expected a password in the first line")
    return line


def parse_property(words: Sequence[str]) -> Property:
    """What ``-D PACKET NAME VALUE [VALUE]`` says. Raises ConfigError."""
    shown = "-D " + " ".join(words[:2])
    if len(words) < 3:
        raise ConfigError(f"{shown}: expected PACKET NAME VALUE")
    packet, name, *values = words
    if packet not in LEGAL:
        raise ConfigError(f"{shown}: packet is one of {', '.join(LEGAL)}")
    if name not in LEGAL[packet]:
        raise ConfigError(f"{shown}: {packet} takes {', '.join(sorted(LEGAL[packet]))}")
    paho_name, kind = PROPERTIES[name]
    if len(values) != (2 if kind == PAIR else 1):
        raise ConfigError(f"{shown}: expected {'a ' if kind != TEXT else ''}{kind}")
    if kind == PAIR:
        return packet, paho_name, (values[0], values[1])
    if kind == INTEGER:
        if not values[0].isdecimal():
            raise ConfigError(f"{shown}: expected a whole number, found {values[0]!r}")
        return packet, paho_name, int(values[0])
    return packet, paho_name, values[0].encode() if kind == DATA else values[0]


def _url(text: str) -> tuple[str, str, int | None, str | None, str | None, str | None]:
    try:
        parts = urlsplit(text)
        number = parts.port
    except ValueError as error:
        raise ConfigError(f"-L {_without_password(text)}: {error}") from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        known = ", ".join(SCHEMES)
        raise ConfigError(f"-L {_without_password(text)}: expected {known}://HOST[:PORT]/TOPIC")
    topic = unquote(parts.path[1:] + (f"#{parts.fragment}" if "#" in text else "")) or None
    username = unquote(parts.username) if parts.username is not None else None
    password = unquote(parts.password) if parts.password is not None else None
    return parts.scheme, parts.hostname, number, username, password, topic


def _without_password(text: str) -> str:
    scheme, slashes, rest = text.partition("://")
    return scheme + slashes + rest.rpartition("@")[2]


def qos(text: str) -> int:
    """0, 1 or 2."""
    if text not in ("0", "1", "2"):
        raise argparse.ArgumentTypeError(f"QoS is 0, 1 or 2, not {text!r}")
    return int(text)


def port(text: str) -> int:
    """A port that one can connect to."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"a port is 1 to 65535, not {text!r}")
    return int(text)


def count(text: str) -> int:
    """A whole number that is not negative."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}")
    return int(text)


def inflight(text: str) -> int:
    """1 to 65535, as many packet ids as there are."""
    value = count(text)
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError(f"expected 1 to 65535, not {text!r}")
    return value


def expiry(text: str) -> int:
    """Seconds, or for ever [MQTT-3.1.2-23]: 4294967295 means never."""
    if text in ("∞", "inf", "never"):
        return 0xFFFFFFFF
    return min(count(text), 0xFFFFFFFF)


def seconds(text: str) -> float:
    """A time span: a number of seconds, or 250ms, 5s, 2m."""
    from hookmq.config.units import parse_duration

    try:
        value = float(text)
    except ValueError:
        try:
            value = parse_duration(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected seconds, not {text!r}") from None
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"expected seconds, not {text!r}")
    return value
