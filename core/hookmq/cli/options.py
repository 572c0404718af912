"""The options shared by `pub`, `sub` and `rr`, with the same letters as in mosquitto's commands. This module checks them
and combines them into a `ConnectTarget`.
"""

import argparse
import getpass
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from hookmq.config.units import parse_duration
from hookmq.model.errors import ConfigError
from hookmq.mqtt.properties import BY_NAME, In, PropertyKind

VERSIONS: Final = {"mqttv31": 3, "31": 3, "mqttv311": 4, "311": 4, "mqttv5": 5, "5": 5}
TLS_VERSIONS: Final = ("tlsv1.2", "tlsv1.3")
SCHEMES: Final = {
    "mqtt": (False, False, 1883),
    "mqtts": (True, False, 8883),
    "ws": (False, True, 8083),
    "wss": (True, True, 8084),
}
"""For each URL scheme: whether it uses TLS and WebSocket, and its default port."""

INTEGER, TEXT, DATA, PAIR = "whole number", "text", "data", "name and value"
_KINDS: Final = {
    PropertyKind.STRING: TEXT,
    PropertyKind.BINARY: DATA,
    PropertyKind.PAIR: PAIR,
}
PROPERTIES: Final = {
    name.replace("_", "-"): (name.title().replace("_", ""), _KINDS.get(spec.kind, INTEGER))
    for name, spec in BY_NAME.items()
}
"""For each property under mosquitto's name: paho's name, and the type of its value."""
_PACKETS: Final = {
    "connect": In.CONNECT,
    "publish": In.PUBLISH,
    "subscribe": In.SUBSCRIBE,
    "unsubscribe": In.UNSUBSCRIBE,
    "disconnect": In.DISCONNECT,
    "will": In.WILL,
}
_BY_SERVERS: Final = {("publish", "subscription-identifier"), ("disconnect", "server-reference")}
LEGAL: Final = {
    packet: frozenset(
        name
        for name in PROPERTIES
        if BY_NAME[name.replace("-", "_")].packets & bit and (packet, name) not in _BY_SERVERS
    )
    for packet, bit in _PACKETS.items()
}
"""The properties that a client may put into each packet. Packets have the names that ``-D`` uses."""

Property = tuple[str, str, Any]
"""A packet, named as in ``-D``; the property, named as in paho; and its value."""


class Will(NamedTuple):
    """The will defined by the options."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


@dataclass(frozen=True, slots=True)
class ConnectTarget:
    """A broker's address, how to connect to it, and the credentials."""

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
    properties: tuple[Property, ...] = ()
    debug: bool = False
    quiet: bool = False

    @property
    def address(self) -> str:
        """The host and port, or the Unix socket's path, for use in messages."""
        if self.unix is not None:
            return self.unix
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


_COPIED: Final = (
    "keep_alive", "ca", "certificate", "key", "insecure", "ca_folder", "ciphers", "tls_version", "bind", "nodelay",
    "max_inflight", "unix", "session_expiry", "debug", "quiet",
)  # fmt: skip
"""Fields of `ConnectTarget` that are copied from the option with the same name."""


def add_connection(parser: argparse.ArgumentParser, link: bool = True) -> None:
    """Add the options that define where and how to connect.

    Without `link`, omit the options that only `mqtt_client` supports; `target_of` then uses their defaults. As in
    mosquitto's commands, ``-h`` is the host, so only ``--help`` prints the help.
    """
    # fmt: off
    if not link:
        parser.set_defaults(bind="", id_prefix=None, unix=None, max_inflight=None, nodelay=False)
    group = parser.add_argument_group("connection", conflict_handler="resolve")
    add = group.add_argument
    add("-h", "--host", help="host name or IP address of the broker (default: localhost)")
    group.conflict_handler = parser.conflict_handler
    add("-p", "--port", type=port, help="port (default: 1883; TLS 8883; WebSocket 8083, with TLS 8084)")
    add("-L", "--url", help="mqtt://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC; also mqtts, ws and wss")
    if link:
        add("-A", "--bind", metavar="ADDRESS", default="", help="local address to connect from")
    chosen = group.add_mutually_exclusive_group()
    chosen.add_argument("-i", "--id", help="client id (default: chosen by the client or the broker)")
    if link:
        chosen.add_argument("-I", "--id-prefix", metavar="PREFIX", help="client id: PREFIX followed by the process id")
    add("-u", "--username", help="user name")
    add("-P", "--pw", metavar="PASSWORD", help="password; - prompts for it")
    add("--password-file", metavar="FILE",
        help="read the password or token from the first line of FILE; other users can see -P in the process list")
    if link:
        add("--unix", metavar="PATH", help="connect to a Unix socket instead of a host")
    add("-V", "--protocol-version", choices=VERSIONS, default="mqttv311", metavar="VERSION",
        help="mqttv31, mqttv311 (default) or mqttv5")
    add("-k", "--keepalive", dest="keep_alive", type=count, default=60, metavar="SECONDS",
        help="keep alive in seconds (default: 60)")
    add("-c", "--disable-clean-session", action="store_true",
        help="use a durable session, which keeps its subscriptions; needs -i")
    add("-x", "--session-expiry-interval", dest="session_expiry", type=expiry, metavar="SECONDS",
        help="seconds that the broker keeps the session while you are offline, or never (MQTT 5)")
    if link:
        add("-M", "--max-inflight", type=inflight, metavar="COUNT",
            help="most QoS 1 and 2 messages in flight (default: 20)")
        add("--nodelay", action="store_true", help="send small packets at once (TCP_NODELAY)")
    add("-D", "--property", action="append", nargs="+", default=[], metavar=("PACKET", "NAME VALUE"),
        help="set an MQTT 5 property, as in: -D publish user-property NAME VALUE")
    add("-d", "--debug", action="store_true", help="print every packet to standard error")
    add("--quiet", action="store_true", help="print no error messages")
    add = parser.add_argument_group("will").add_argument
    add("--will-topic", metavar="TOPIC", help="topic of the will")
    add("--will-payload", metavar="TEXT", default="", help="payload of the will (default: empty)")
    add("--will-qos", type=qos, default=0, metavar="QOS", help="QoS of the will (default: 0)")
    add("--will-retain", action="store_true", help="retain the will")
    add = parser.add_argument_group("TLS and WebSocket").add_argument
    add("--cafile", dest="ca", metavar="FILE", help="CA certificates to trust, PEM; turns TLS on")
    add("--capath", dest="ca_folder", metavar="FOLDER",
        help="folder of CA certificates to trust, prepared by `openssl rehash`; turns TLS on")
    add("--ciphers", metavar="LIST", help="ciphers for TLS 1.2, as an OpenSSL cipher list")
    add("--tls-version", choices=TLS_VERSIONS, help="oldest TLS version to use")
    add("--cert", dest="certificate", metavar="FILE", help="client certificate, PEM")
    add("--key", metavar="FILE", help="private key of the client certificate, PEM")
    add("--tls", action="store_true", help="use TLS and trust the CA certificates of the system")
    add("--insecure", action="store_true", help="do not verify the certificate of the broker: for tests only")
    add("--ws", action="store_true", help="connect over WebSocket")
    add("--ws-path", metavar="PATH", help="path of the WebSocket (default: /mqtt)")
    # fmt: on


def add_payload(group: Any, *, lines: bool) -> None:
    """Add the options that provide a payload, and require one of them. With `lines`, include ``-l``."""
    add = group.add_mutually_exclusive_group().add_argument
    add("-m", "--message", metavar="TEXT", help="the payload")
    add("-f", "--file", metavar="FILE", help="read the payload from FILE")
    add("-n", "--null-message", action="store_true", help="send an empty payload")
    if lines:
        add("-l", "--stdin-line", action="store_true", help="send each line of standard input")
    add("-s", "--stdin-file", action="store_true", help="read the payload from standard input")


def payload_of(arguments: argparse.Namespace) -> bytes | None:
    """Return the payload from the options, or None for ``-n``. Reads files. Raises ConfigError if
    there is no payload.
    """
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
    raise ConfigError("a payload is required: give one of -m, -f, -n and -s")


def topic_of(arguments: argparse.Namespace) -> str:
    """Return the topic to publish to. Raises ConfigError if it is missing or has wildcards."""
    topic: str = arguments.topic or arguments.url_topic or ""
    if not topic:
        raise ConfigError("a topic is required: give -t TOPIC, or -L URL with a topic")
    if any(character in topic for character in "+#\0"):
        raise ConfigError(f"{topic!r} is a filter: a message needs a topic without wildcards")
    return topic


def target_of(arguments: argparse.Namespace) -> ConnectTarget:
    """Return the target described by the options. Also set ``arguments.url_topic`` to the topic in ``-L``.

    May ask for a password on the terminal. Raises ConfigError.
    """
    url = _url(arguments)
    arguments.url_topic = url.topic
    secure = bool(
        url.tls
        or arguments.tls
        or arguments.ca
        or arguments.ca_folder
        or arguments.certificate
        or arguments.insecure
    )
    websocket = url.websocket or arguments.ws
    version = VERSIONS[arguments.protocol_version]
    _check_together(arguments, url, version, secure, websocket)
    username = url.username if arguments.username is None else arguments.username
    password = _password(arguments, url)
    if password is not None and username is None and version < 5:
        raise ConfigError("a password needs a user name (-u) before MQTT 5")
    if arguments.id_prefix is not None:
        arguments.id = f"{arguments.id_prefix}{os.getpid()}"
    return ConnectTarget(
        host=url.host or "localhost",
        port=url.port or next(p for t, w, p in SCHEMES.values() if (t, w) == (secure, websocket)),
        version=version,
        clean_start=not arguments.disable_clean_session,
        client_id=arguments.id or "",
        username=username,
        password=password,
        tls=secure,
        websocket=websocket,
        path=arguments.ws_path or "/mqtt",
        will=_will(arguments),
        properties=tuple(parse_property(words) for words in arguments.property),
        **{name: getattr(arguments, name) for name in _COPIED},
    )


class _Url(NamedTuple):
    """The parts of the URL in ``-L``, or of ``-h`` and ``-p``."""

    host: str | None
    port: int | None
    tls: bool = False
    websocket: bool = False
    username: str | None = None
    password: str | None = None
    topic: str | None = None


def _url(arguments: argparse.Namespace) -> _Url:
    text = arguments.url
    if not text:
        return _Url(arguments.host, arguments.port)
    if arguments.host or arguments.port:
        raise ConfigError("give -L or -h and -p, not both")
    scheme, slashes, rest = text.partition("://")
    shown = scheme + slashes + rest.rpartition("@")[2]  # without the password
    try:
        parts = urlsplit(text)
        number = parts.port
    except ValueError as error:
        raise ConfigError(f"-L {shown}: {error}") from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ConfigError(f"-L {shown}: expected {', '.join(SCHEMES)}://HOST[:PORT]/TOPIC")
    topic = unquote(parts.path[1:] + (f"#{parts.fragment}" if "#" in text else "")) or None
    username = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return _Url(parts.hostname, number, *SCHEMES[parts.scheme][:2], username, password, topic)


def _check_together(
    arguments: argparse.Namespace, url: _Url, version: int, secure: bool, websocket: bool
) -> None:
    """Raise ConfigError if options conflict, if an option lacks another one that it needs, or if a file is unreadable."""
    durable = arguments.disable_clean_session
    if arguments.unix is not None and (url.host or url.port or secure or websocket):
        raise ConfigError("--unix excludes -h, -p, -L, --ws and the options of TLS")
    if (arguments.ciphers or arguments.tls_version) and not secure:
        raise ConfigError("--ciphers and --tls-version need TLS, such as --tls or --cafile")
    if (arguments.certificate is None) != (arguments.key is None):
        raise ConfigError("--cert and --key go together")
    if arguments.ca_folder is not None and not os.path.isdir(arguments.ca_folder):
        raise ConfigError(f"--capath {arguments.ca_folder}: not a folder")
    for file in (arguments.ca, arguments.certificate, arguments.key):
        if file is not None and not os.access(file, os.R_OK):
            raise ConfigError(f"{file}: cannot be read")
    if durable and arguments.id_prefix is not None:
        raise ConfigError("-c needs a client id that is the same each time: use -i, not -I")
    if durable and not arguments.id:
        raise ConfigError("-c needs a client id (-i), which names the session")
    if version < 5 and (arguments.property or arguments.session_expiry is not None):
        raise ConfigError("properties (-D, -x) need -V mqttv5")


def _password(arguments: argparse.Namespace, url: _Url) -> str | None:
    if arguments.password_file is not None:
        if arguments.pw is not None:
            raise ConfigError("give -P or --password-file, not both")
        return _first_line(arguments.password_file)
    password: str | None = url.password if arguments.pw is None else arguments.pw
    return getpass.getpass("password: ") if password == "-" else password


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            line = file.readline(65_537).rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"--password-file {path}: {why}") from None
    if not line or len(line) > 65_535:
        raise ConfigError(f"--password-file {path}: expected a password in the first line")
    return line


def _will(arguments: argparse.Namespace) -> Will | None:
    payload, retain = arguments.will_payload, arguments.will_retain
    if arguments.will_topic:
        return Will(arguments.will_topic, payload.encode(), arguments.will_qos, retain)
    if payload or arguments.will_qos or retain:
        raise ConfigError("a will needs --will-topic")
    return None


def parse_property(words: Sequence[str]) -> Property:
    """Parse ``-D PACKET NAME VALUE [VALUE]`` and return the property. Raises ConfigError."""
    shown = "-D " + " ".join(words[:2])
    if len(words) < 3:
        raise ConfigError(f"{shown}: expected PACKET NAME VALUE")
    packet, name, *values = words
    if packet not in LEGAL:
        raise ConfigError(f"{shown}: expected one of these packets: {', '.join(LEGAL)}")
    if name not in LEGAL[packet]:
        raise ConfigError(f"{shown}: {packet} takes {', '.join(sorted(LEGAL[packet]))}")
    paho_name, kind = PROPERTIES[name]
    if len(values) != (2 if kind == PAIR else 1):
        raise ConfigError(f"{shown}: expected {'a ' if kind in (PAIR, INTEGER) else ''}{kind}")
    if kind == PAIR:
        return packet, paho_name, (values[0], values[1])
    if kind == INTEGER:
        if not values[0].isdecimal():
            raise ConfigError(f"{shown}: expected a whole number, found {values[0]!r}")
        return packet, paho_name, int(values[0])
    return packet, paho_name, values[0].encode() if kind == DATA else values[0]


def qos(text: str) -> int:
    """Parse a QoS: 0, 1 or 2."""
    if text not in ("0", "1", "2"):
        raise argparse.ArgumentTypeError(f"expected 0, 1 or 2, not {text!r}")
    return int(text)


def count(text: str) -> int:
    """Parse a non-negative whole number."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}")
    return int(text)


def inflight(text: str) -> int:
    """Parse the number of messages in flight, from 1 to 65535, which is the number of packet ids."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"expected 1 to 65535, not {text!r}")
    return int(text)


port = inflight
"""Parse a port that a client can connect to: 1 to 65535."""


def expiry(text: str) -> int:
    """Parse an expiry in seconds, or 4294967295 for never [MQTT-3.1.2-23]."""
    if text in ("∞", "inf", "never"):
        return 0xFFFFFFFF
    return min(count(text), 0xFFFFFFFF)


def seconds(text: str) -> float:
    """Parse a time such as ``1.5``, ``250ms``, ``5s`` or ``2m`` into seconds."""
    try:
        value = float(text)
    except ValueError:
        try:
            value = parse_duration(text)
        except ValueError:
            value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"expected a time such as 5s or 250ms, not {text!r}")
    return value
