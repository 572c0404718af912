"""What an operator says: the streams, how long they keep what, and who may read them."""

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from hookmq import topics
from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq.server.settings import TlsSettings

OnFull = Literal["reject", "drop_oldest"]
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Of streams and consumers: also the names of folders."""
MAX_PARTITIONS: Final = 256
ANY: Final = "*"


@dataclass(frozen=True)
class StreamConfig:
    """One stream."""

    name: str = field(metadata={"help": "its name, and that of its folder: letters, digits, _ . -"})
    topics: tuple[str, ...] = field(
        metadata={"help": "topic filters; what matches any of them is in the stream"}
    )
    partitions: int = setting(
        1,
        "parts that are read in parallel; a topic is always in one of them. Fixed once the stream is there",
        minimum=1,
        maximum=MAX_PARTITIONS,
    )
    retention_time: Seconds = setting(
        604800.0, "how long messages are kept at least by age; 0 for ever"
    )
    retention_bytes: Size = setting(
        8 << 30, "bytes beyond which the oldest go, however young; 0 for no such limit"
    )
    max_bytes: Size = setting(
        10 << 30,
        "the hard limit: consumers hold back what they did not read, but no more than this",
        minimum=1 << 16,
    )
    on_full: OnFull = setting(
        "reject",
        "at the hard limit: reject refuses messages (0x97), drop_oldest deletes what a consumer still wants",
    )
    segment_size: Size = setting(
        64 << 20,
        "size of the log's files; retention deletes whole ones",
        minimum=1 << 12,
        maximum=1 << 30,
    )
    segment_time: Seconds = setting(
        3600.0, "begin a new file after this, so that the old one can be deleted; 0 never"
    )
    flush_window: Seconds = setting(
        0.0,
        "shortest time from one flush to the next: fewer, larger blocks for later acknowledgements",
        maximum=10,
    )
    consumers: tuple[str, ...] = setting((), "whose unread messages retention keeps")

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"name: {self.name!r} is no name: letters, digits, _ . -")
        if not self.topics:
            raise ConfigError(f"topics: the stream {self.name} has no topic filter")
        for one in self.topics:
            try:
                topics.validate_filter(one)
            except Exception as error:
                raise ConfigError(f"topics: {one!r} is no topic filter: {error}") from None
            if topics.parse_share(one)[0] is not None:
                raise ConfigError(f"topics: {one!r}: a stream has no share")
        if self.segment_size * 4 > self.max_bytes:
            raise ConfigError(
                f"segment_size: {self.segment_size} is more than a quarter of max_bytes",
                hint="retention deletes whole segments",
            )
        if self.retention_bytes > self.max_bytes:
            raise ConfigError("retention_bytes: more than max_bytes")
        for consumer in self.consumers:
            if not NAME.fullmatch(consumer):
                raise ConfigError(f"consumers: {consumer!r} is no name: letters, digits, _ . -")
        if len(set(self.consumers)) != len(self.consumers):
            raise ConfigError("consumers: a name stands there twice")


@dataclass(frozen=True)
class Access:
    """Who may read: whoever brings the token, or a client certificate with that name."""

    token: str = field(
        default="",
        repr=False,
        metadata={"help": "what `Authorization: Bearer` brings; at least 16 characters"},
    )
    common_name: str = setting("", "the common name of a client certificate (tls.client_ca)")
    streams: tuple[str, ...] = setting((ANY,), "streams that it opens; * for all")
    commit: bool = setting(True, "whether it may say how far a consumer is")

    def __post_init__(self) -> None:
        if bool(self.token) == bool(self.common_name):
            raise ConfigError("access: give one of token and common_name")
        if self.token and (len(self.token) < 16 or not self.token.isascii()):
            raise ConfigError("access: a token has at least 16 characters, ASCII only")


@dataclass(frozen=True)
class ApiConfig:
    """The read API's own listener, served by a process of its own."""

    bind: str = setting("127.0.0.1:1890", "HOST:PORT; port 0 takes any")
    access: tuple[Access, ...] = setting((), "who may read what")
    tls: TlsSettings | None = setting(None, "https; needed beyond loopback")
    plain_http: bool = setting(
        False, "allow http beyond loopback: tokens and messages then cross the network unprotected"
    )
    max_response: Size = setting(64 << 20, "bytes of one answer", minimum=1 << 16)
    max_requests: int = setting(64, "requests for records at a time; more get 503", minimum=1)
    timeout: Seconds = setting(30.0, "how long a reader may not take what it is sent", minimum=0.1)

    def __post_init__(self) -> None:
        host, _ = address(self.bind)
        if not self.access:
            raise ConfigError("access: nobody may read", hint="add an entry with a token")
        named = any(one.common_name for one in self.access)
        if named and (self.tls is None or self.tls.client_certificates == "none"):
            raise ConfigError(
                "access.common_name: no client is asked for a certificate",
                hint="set tls.client_ca and tls.client_certificates",
            )
        tokens = [one.token for one in self.access if one.token]
        if len(set(tokens)) != len(tokens):
            raise ConfigError("access: two entries have the same token")
        if self.tls is None and not self.plain_http and not loopback(host):
            raise ConfigError(
                f"bind: http on {host} shows tokens to the network",
                hint="set tls, or plain_http: true where that network may see them",
            )


@dataclass(frozen=True)
class SparkSinkConfig:
    """Streams, and the way to read them."""

    path: Path = field(metadata={"help": "folder of the streams; made if it is not there"})
    streams: tuple[StreamConfig, ...] = field(metadata={"help": "the streams"})
    api: ApiConfig | None = setting(None, "the read API; without it only `hookmq spark` reads")
    sync: bool = setting(
        True, "fsync before acknowledging; false survives the end of the process but no power cut"
    )
    min_free: Size = setting(
        256 << 20, "bytes that the disk must have left; below it every stream is full"
    )
    check_every: Seconds = setting(10.0, "how often retention looks", minimum=0.05, maximum=3600)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not self.streams:
            raise ConfigError("streams: there is none")
        names = [one.name.lower() for one in self.streams]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"streams: {name} stands there twice")
        for one in self.api.access if self.api is not None else ():
            for name in one.streams:
                if name != ANY and name not in {stream.name for stream in self.streams}:
                    raise ConfigError(f"api.access.streams: there is no stream {name}")


def address(bind: str) -> tuple[str, int]:
    """Host and port. Raises ConfigError."""
    host, colon, port = bind.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"bind: {bind!r} is not HOST:PORT")
    return host, int(port)


def loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
