"""Listener settings, to which the configuration is bound. A field's `help` is its text in the manual."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from hookmq.model.client import Scope
from hookmq.model.errors import ConfigError
from hookmq.model.settings import Seconds, Size, setting
from hookmq.server.addresses import bound_to_loopback, parse_bind, parse_networks

Transport = Literal["tcp", "tls", "ws", "wss", "unix", "http", "https"]
TYPES: Final[tuple[str, ...]] = get_args(Transport)
"""The listener types that need no plugin."""
HTTP: Final = ("http", "https")
"""The listener types that are not for MQTT clients."""
VERSIONS = {"3.1": 3, "3.1.1": 4, "5": 5}
"""The protocol level of each MQTT version."""


def takes(kind: str, key: str) -> bool:
    """Return whether a listener of type `kind` uses the section `key`."""
    return {
        "websocket": kind in ("ws", "wss"),
        "http": kind in HTTP,
        "settings": kind not in TYPES,
    }.get(key, True)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """``tls:`` TLS settings of a listener."""

    # fmt: off
    certificate: str = setting("", "PEM file with the broker's certificate and its chain", path=True)
    key: str = setting("", "PEM file with the private key; empty if the certificate file contains the key", path=True)
    key_password: str = setting("", "password of the private key")
    client_ca: str = setting("", "PEM file with the CA certificates that sign client certificates", path=True)
    client_certificates: Literal["none", "optional", "required"] = setting(
        "none", "whether clients are asked for a certificate; with `required`, clients without one are refused")
    crl: str = setting("", "PEM file with revoked client certificates; empty: no check", path=True)
    minimum_version: Literal["TLSv1.2", "TLSv1.3"] = setting("TLSv1.2", "lowest TLS version accepted")
    ciphers: str = setting("", "OpenSSL cipher list for TLS 1.2; empty: Python's secure default")
    handshake_timeout: Seconds = setting(10.0, "maximum time for a TLS handshake", minimum=0.1)
    # fmt: on

    def __post_init__(self) -> None:
        asks = self.client_certificates != "none"
        if not self.certificate:
            raise ConfigError("certificate: a TLS listener needs one", hint="a PEM file")
        if asks and not self.client_ca:
            message = f"client_certificates: {self.client_certificates} needs client_ca"
            raise ConfigError(message, hint="the CA certificates to trust")
        if self.crl and not asks:
            raise ConfigError("crl: needs client_certificates", hint="optional or required")


@dataclass(frozen=True, slots=True)
class WebSocketSettings:
    """``websocket:`` WebSocket settings of a listener."""

    # fmt: off
    path: str = setting("/mqtt", "path that clients must request; other paths return 404")
    origins: tuple[str, ...] = setting(
        (),
        "origins of web pages that may connect, such as https://app.example.com, or * for any. If empty, browsers are "
        "refused, except pages of this machine if the listener is bound to loopback. Clients that send no Origin are "
        "not browsers and are always accepted")
    max_message: Size = setting(0, "maximum size of a frame or message; 0: twice broker.max_packet_size")
    compression: bool = setting(False, "whether to offer permessage-deflate")
    # fmt: on

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigError(f"path: expected a path that starts with /, found {self.path!r}")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """``http:`` settings of an http or https listener, which serves /healthz, /readyz, /metrics and /plugins/ID."""

    # fmt: off
    token: str = setting("", "token required in `Authorization: Bearer TOKEN`; empty: none is required")
    public_health: bool = setting(False, "whether /healthz and /readyz need no token")
    insecure: bool = setting(
        False,
        "whether to allow an address other than loopback without a token, and requests for another host. Anyone who can "
        "reach the listener can then read the metrics and use the plugins' routes")
    max_body: Size = setting(65536, "maximum size of a request body", minimum=1)
    timeout: Seconds = setting(10.0, "maximum time to read a request, handle it and send the response", minimum=0.1)
    # fmt: on


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """One entry of ``listeners:``."""

    # fmt: off
    name: str = setting("default", "name of the listener in plugins' settings and in logs")
    type: Transport | str = setting(
        "tcp",
        "tcp, tls, ws, wss or unix for MQTT; http or https for health, metrics and plugins' routes; or a type that a "
        "plugin adds")
    bind: str = setting(
        "127.0.0.1:1883",
        "HOST:PORT, [IPv6]:PORT or *:PORT (all IPv4 and IPv6 addresses); a path for unix. Port 0 selects a free port")
    reuse_port: bool = setting(
        False,
        "whether other processes of the same user may listen on the same address, if they set this too; the kernel "
        "distributes the connections among them")
    backlog: int = setting(1024, "number of connections that the kernel queues until they are accepted", minimum=1)
    max_connections: int = setting(
        100000, "maximum number of open connections of this listener; further ones are closed", minimum=1)
    connect_timeout: Seconds = setting(10.0, "maximum time for a new connection to send CONNECT", minimum=0.1)
    connect_bytes: Size = setting(
        65536, "maximum number of bytes that a client may send before it is accepted", minimum=64)
    close_timeout: Seconds = setting(
        5.0, "maximum time for a client to read the last bytes before the connection is aborted", minimum=0.1)
    versions: tuple[Literal["3.1", "3.1.1", "5"], ...] = setting(("3.1", "3.1.1", "5"), "MQTT versions accepted")
    mount_point: str = setting("", "prefix added to every topic and filter of the listener's clients; ends with /")
    identity: Literal["", "common_name", "san", "fingerprint"] = setting(
        "", "field of the client certificate to use as the user name")
    tls: TlsSettings | None = setting(None, "certificate and key; required by tls, wss and https")
    websocket: WebSocketSettings = field(default=WebSocketSettings(), metadata={"help": "for ws and wss"})
    http: HttpSettings = field(default=HttpSettings(), metadata={"help": "for http and https"})
    settings: Mapping[str, Any] = field(
        default_factory=lambda: MappingProxyType({}), metadata={"help": "settings of a listener type that a plugin adds"})
    proxy_protocol: Literal["off", "v1", "v2", "any"] = setting(
        "off", "version of the PROXY header that a load balancer must send; connections without a header are closed")
    proxy_timeout: Seconds = setting(5.0, "maximum time for the PROXY header to arrive", minimum=0.1)
    trusted_proxies: tuple[str, ...] = setting(
        (), "networks such as 10.0.0.0/8 whose PROXY headers and X-Forwarded-For are trusted")
    mode: str = setting("0660", "permissions of a Unix socket, in octal")
    # fmt: on

    def __post_init__(self) -> None:
        try:
            networks = parse_networks(self.trusted_proxies)
        except ValueError as error:
            raise ConfigError(f"trusted_proxies: {error}") from None
        if self.type not in TYPES:
            return  # the plugin validates it
        if self.type == "unix":
            if not self.bind or len(self.bind.encode()) > 107:
                raise ConfigError("bind: expected a path of at most 107 bytes")
        else:
            try:
                parse_bind(self.bind)
            except ValueError as error:
                raise ConfigError(f"bind: {error}") from None
            if self.proxy_protocol != "off" and not networks:
                # otherwise anyone could claim any address
                raise ConfigError(
                    "proxy_protocol: needs trusted_proxies",
                    hint="the networks of the load balancer",
                )
        if self.secure != (self.tls is not None):
            if self.secure:
                raise ConfigError(f"type: {self.type} needs tls: with certificate and key")
            raise ConfigError(f"tls: a listener of type {self.type} does not use it")
        if self.type in HTTP:
            self._check_http()
        certified = self.tls is not None and self.tls.client_certificates != "none"
        by_proxy = self.identity == "common_name" and self.proxy_protocol in ("v2", "any")
        if self.identity and not certified and not by_proxy:
            raise ConfigError("identity: needs tls.client_certificates: required")
        if not self.versions:
            raise ConfigError("versions: expected at least one")
        try:
            valid = 0 <= int(self.mode, 8) <= 0o777
        except ValueError:
            valid = False
        if not valid:
            bits = "octal permission bits such as 0660"
            raise ConfigError(f"mode: expected {bits}, found {self.mode!r}")

    def _check_http(self) -> None:
        http = self.http
        if not (http.token or http.insecure or bound_to_loopback(self.bind)):
            raise ConfigError(
                f"http: {self.bind} can be reached from the network without a token",
                hint="set http.token, such as {$file: PATH}, or http.insecure: true",
            )
        if http.token and not http.token.isascii():
            raise ConfigError("http: the token must be ASCII")

    @property
    def secure(self) -> bool:
        """Whether the listener uses TLS."""
        return self.type in ("tls", "wss", "https")

    def scope(self) -> Scope:
        """Return the settings that the core needs."""
        return Scope(
            name=self.name,
            mount_point=self.mount_point,
            versions=frozenset(VERSIONS[version] for version in self.versions),
            connect_timeout=self.connect_timeout,
            connect_bytes=self.connect_bytes,
            identity=self.identity,
        )
