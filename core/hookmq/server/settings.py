"""The settings of listeners. The configuration binds YAML to these; the `help` of a field is the manual's text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from hookmq.errors import ConfigError
from hookmq.server.addresses import bound_to_loopback, parse_bind, parse_networks
from hookmq.settings import Seconds, Size, setting
from hookmq.types import Scope

Transport = Literal["tcp", "tls", "ws", "wss", "unix", "http", "https"]
TYPES: Final[tuple[str, ...]] = get_args(Transport)
"""The types of listeners that need no plugin."""
HTTP: Final = ("http", "https")
"""Those that MQTT clients do not come in by."""
VERSIONS = {"3.1": 3, "3.1.1": 4, "5": 5}
"""A version's name to its number on the wire."""


def takes(kind: str, key: str) -> bool:
    """Whether a listener of type `kind` has a use for the section `key`."""
    return {
        "websocket": kind in ("ws", "wss"),
        "http": kind in HTTP,
        "settings": kind not in TYPES,
    }.get(key, True)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """``tls:`` of a listener."""

    certificate: str = setting(
        "", "file with the server's certificate and its chain, PEM", path=True
    )
    key: str = setting(
        "", "file with the private key, PEM; empty when the certificate's file holds it", path=True
    )
    key_password: str = setting("", "what the private key is encrypted with")
    client_ca: str = setting(
        "", "file with the authorities that sign clients' certificates, PEM", path=True
    )
    client_certificates: Literal["none", "optional", "required"] = setting(
        "none", "whether a client is asked for a certificate, and refused without one"
    )
    crl: str = setting(
        "", "file with revoked client certificates, PEM; empty checks none", path=True
    )
    minimum_version: Literal["TLSv1.2", "TLSv1.3"] = setting(
        "TLSv1.2", "oldest TLS version accepted"
    )
    ciphers: str = setting(
        "", "OpenSSL cipher list for TLS 1.2; empty takes Python's secure default"
    )
    handshake_timeout: Seconds = setting(10.0, "how long a handshake may take", minimum=0.1)

    def __post_init__(self) -> None:
        asks = self.client_certificates != "none"
        if not self.certificate:
            raise ConfigError("certificate: a TLS listener needs one", hint="a PEM file")
        if asks and not self.client_ca:
            raise ConfigError(
                f"client_certificates: {self.client_certificates} needs the authorities to trust",
                hint="set client_ca",
            )
        if self.crl and not asks:
            raise ConfigError("crl: no client certificate is asked for", hint="client_certificates")


@dataclass(frozen=True, slots=True)
class WebSocketSettings:
    """``websocket:`` of a listener."""

    path: str = setting("/mqtt", "path clients ask for; any other is 404")
    origins: tuple[str, ...] = setting(
        (),
        "origins whose pages may connect, such as https://app.example.com; * is any. Empty refuses every browser, "
        "but for pages of this very machine when the listener is bound to loopback. "
        "Clients that send no Origin are no browsers and always pass",
    )
    max_message: Size = setting(
        0, "largest frame or message accepted; 0 is twice broker.max_packet_size"
    )
    compression: bool = setting(False, "whether permessage-deflate is offered")

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigError(f"path: expected a path that begins with /, found {self.path!r}")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """``http:`` of a listener of type http or https, which answers /healthz, /readyz, /metrics and /plugins/ID."""

    token: str = setting(
        "", "what a request must bring as `Authorization: Bearer TOKEN`; empty asks for nothing"
    )
    public_health: bool = setting(
        False, "whether /healthz and /readyz are answered without the token"
    )
    insecure: bool = setting(
        False,
        "allows a listener without a token to be bound to more than loopback, and requests that name another host. "
        "Everybody who reaches it may then read the metrics and use what plugins offer",
    )
    max_body: Size = setting(65536, "largest body of a request accepted", minimum=1)
    timeout: Seconds = setting(
        10.0, "how long reading a request's body, answering and sending may take", minimum=0.1
    )


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """One entry of ``listeners:``."""

    name: str = setting("default", "how plugins and logs call it")
    type: Transport | str = setting(
        "tcp",
        "MQTT over tcp, tls, ws, wss or unix; http or https for health, metrics and plugins' routes; or what a plugin "
        "adds",
    )
    bind: str = setting(
        "127.0.0.1:1883",
        "HOST:PORT, [IPv6]:PORT or *:PORT (every address, IPv4 and IPv6); a path for unix. Port 0 takes a free one",
    )
    backlog: int = setting(1024, "connections the kernel holds before they are accepted", minimum=1)
    max_connections: int = setting(
        100000, "connections open at once on this listener; further ones are closed", minimum=1
    )
    connect_timeout: Seconds = setting(
        10.0, "time from a connection's start until its whole CONNECT must have come", minimum=0.1
    )
    connect_bytes: Size = setting(
        65536, "bytes a client may send before it is accepted", minimum=64
    )
    close_timeout: Seconds = setting(
        5.0, "how long a closed connection may take to read its last bytes", minimum=0.1
    )
    versions: tuple[Literal["3.1", "3.1.1", "5"], ...] = setting(
        ("3.1", "3.1.1", "5"), "MQTT versions accepted"
    )
    mount_point: str = setting("", "put before every topic and filter of its clients; ends with /")
    identity: Literal["", "common_name", "san", "fingerprint"] = setting(
        "", "field of the client's certificate that is its user name"
    )
    tls: TlsSettings | None = setting(None, "certificate and key; needed by tls and wss")
    websocket: WebSocketSettings = field(
        default=WebSocketSettings(), metadata={"help": "for ws and wss"}
    )
    http: HttpSettings = field(default=HttpSettings(), metadata={"help": "for http and https"})
    settings: Mapping[str, Any] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={"help": "what a plugin's type of listener is told"},
    )
    proxy_protocol: Literal["off", "v1", "v2", "any"] = setting(
        "off",
        "PROXY protocol header expected of a load balancer; a connection without one is closed",
    )
    proxy_timeout: Seconds = setting(5.0, "how long that header may take", minimum=0.1)
    trusted_proxies: tuple[str, ...] = setting(
        (), "networks whose PROXY headers and X-Forwarded-For are believed, such as 10.0.0.0/8"
    )
    mode: str = setting("0660", "permission bits of a unix socket, octal")

    def __post_init__(self) -> None:
        try:
            networks = parse_networks(self.trusted_proxies)
        except ValueError as error:
            raise ConfigError(f"trusted_proxies: {error}") from None
        if self.type not in TYPES:
            return  # a plugin's: it says itself what it can use
        if self.type == "unix":
            if not self.bind or len(self.bind.encode()) > 107:
                raise ConfigError("bind: expected a path of at most 107 bytes")
        else:
            try:
                parse_bind(self.bind)
            except ValueError as error:
                raise ConfigError(f"bind: {error}") from None
            if self.proxy_protocol != "off" and not networks:
                # Without it anybody could name any address as his own.
                raise ConfigError(
                    "proxy_protocol: needs trusted_proxies", hint="the load balancer's networks"
                )
        if self.secure != (self.tls is not None):
            if self.secure:
                raise ConfigError(f"type: {self.type} needs tls: with certificate and key")
            raise ConfigError(f"tls: a listener of type {self.type} does not use it")
        if self.type in HTTP:
            self._check_http()
        certified = self.tls is not None and self.tls.client_certificates != "none"
        told = self.identity == "common_name" and self.proxy_protocol in ("v2", "any")
        if self.identity and not certified and not told:
            raise ConfigError("identity: needs tls.client_certificates: required")
        if not self.versions:
            raise ConfigError("versions: at least one is needed")
        try:
            valid = 0 <= int(self.mode, 8) <= 0o777
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(
                f"mode: expected octal permission bits such as 0660, found {self.mode!r}"
            )

    def _check_http(self) -> None:
        http = self.http
        if not (http.token or http.insecure or bound_to_loopback(self.bind)):
            raise ConfigError(
                f"http: {self.bind} is reached from the network and asks for no token",
                hint="set http.token, such as {$file: PATH}, or http.insecure: true",
            )
        if http.token and not http.token.isascii():
            raise ConfigError("http: the token holds more than ASCII characters")

    @property
    def secure(self) -> bool:
        """Whether it speaks TLS."""
        return self.type in ("tls", "wss", "https")

    def scope(self) -> Scope:
        """What the core needs to know of it."""
        return Scope(
            name=self.name,
            mount_point=self.mount_point,
            versions=frozenset(VERSIONS[version] for version in self.versions),
            connect_timeout=self.connect_timeout,
            connect_bytes=self.connect_bytes,
            identity=self.identity,
        )
