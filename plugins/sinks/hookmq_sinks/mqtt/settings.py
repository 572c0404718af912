"""The settings of a connection to a remote broker."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from hookmq.mqtt_api import validate_topic
from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.tls_client import TlsConfig, check_tls

from hookmq_sinks.mqtt.remap import MqttRule

Version = Literal["5", "3.1.1"]
LEVELS: Final = {"5": 5, "3.1.1": 4}
"""The protocol level of each version."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Pattern for the names of brokers. A name must not contain the comma that separates names in a path."""
_TEXT: Final = 65_535


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """The host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_remote(text: str, port: int) -> RemoteAddress:
    """Parse ``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``. `port` is the default port. Raises ValueError."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^\s:/\[\]@]+))(?::(\d{1,5}))?", text)
    if found is None:
        raise ValueError(f"{text!r} is not an address; write HOST:PORT or [IPV6]:PORT")
    number = int(found[3]) if found[3] else port
    if not 0 < number < 65536:
        raise ValueError(f"{text!r}: the port must be from 1 to 65535")
    return RemoteAddress(found[1] or found[2], number)


@dataclass(frozen=True, kw_only=True)
class RemoteSettings:
    """The settings shared by the driver and the source of a bridge."""

    addresses: tuple[str, ...] = field(
        metadata={"help": "remote brokers, as HOST:PORT; the first that accepts the bridge is used"}
    )
    broker: str = field(
        metadata={
            "help": "this broker's name in the path of a message; unique among all bridged brokers"
        }
    )
    remote: str = setting(
        "",
        "the remote broker's name in the path of a message, its `broker` if it runs HookMQ; default: the first address",
    )
    round_robin: bool = setting(
        False, "try the next address after each failure, instead of preferring the first"
    )
    protocol: Version = setting("5", 'version of MQTT: "5" or "3.1.1"')
    client_id: str = setting("", "client id; default: made of `broker` and the name of the entry")
    username: str | None = setting(None, "user name at the remote broker")
    password: str | None = setting(None, "password at the remote broker")
    tls: TlsConfig | None = setting(None, "TLS; the certificate and the host name are verified")
    keep_alive: Seconds = setting(
        60.0, "longest silence on the connection", minimum=5, maximum=65535
    )
    connect_timeout: Seconds = setting(
        10.0, "longest time for connecting to an address", minimum=0.1
    )
    return_after: Seconds = setting(
        30.0, "how often a better address is tried while another one is in use; 0 means never"
    )
    session_expiry: Seconds = setting(
        604_800.0,
        "time for which the remote broker keeps the session of a lost bridge",
        maximum=4294967295,
    )
    window: int = setting(
        0,
        "largest number of messages that are not acknowledged yet; 0 means 1000, or 20 with QoS 2 and MQTT 3.1.1",
        maximum=32_768,
    )
    max_packet_size: Size = setting(
        1 << 20, "largest packet that is received", minimum=1024, maximum=268_435_455
    )
    state_topic: str = setting(
        "",
        'topic at the remote broker with the retained state "1" or "0" of the bridge, also as its will',
    )
    rules: tuple[MqttRule, ...] = setting((), "which topics are bridged under which names")

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ConfigError("addresses: empty, but at least one is required")
        for one in self.addresses:
            _check("addresses", lambda one=one: parse_remote(one, 1883))  # type: ignore[misc]
        if not NAME.fullmatch(self.broker):
            raise ConfigError(f"broker: {self.broker!r} is not a name; use letters, digits, _ . -")
        if "," in self.remote or len(self.remote) > 255:
            raise ConfigError(f"remote: {self.remote!r} is not a name")
        if self.state_topic:
            _check("state_topic", lambda: validate_topic(self.state_topic))
        if len(self.client_id.encode()) > _TEXT:
            raise ConfigError("client_id: longer than 65,535 bytes")
        if self.password is not None and self.username is None and self.protocol != "5":
            raise ConfigError("username: MQTT 3.1.1 has no password without a user name")
        try:
            check_tls(self.tls, ())
        except ConfigError as error:
            raise ConfigError(f"tls: {error}") from None

    @property
    def level(self) -> int:
        """The protocol level: 5, or 4 for MQTT 3.1.1."""
        return LEVELS[self.protocol]

    def window_for(self, qos: int) -> int:
        """Return the maximum number of unacknowledged messages. In MQTT 3.1.1, a receiver cannot announce its limit.

        Mosquitto discards QoS 2 messages beyond its limit of 20.
        """
        return self.window or (20 if self.level == 4 and qos == 2 else 1000)

    @property
    def remote_name(self) -> str:
        """The name that stands for the remote broker in the path of a message."""
        return self.remote or str(self.remotes[0])

    @property
    def remotes(self) -> list[RemoteAddress]:
        """The parsed addresses."""
        port = 1883 if self.tls is None else 8883
        return [parse_remote(one, port) for one in self.addresses]


T = TypeVar("T")


def _check(key: str, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except Exception as error:
        raise ConfigError(f"{key}: {error}") from None
