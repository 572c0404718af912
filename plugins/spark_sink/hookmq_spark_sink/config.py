"""The plugin's settings: the streams, their retention, and who may read them."""

import ipaddress
import re
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Final, Literal

from hookmq.mqtt_api import parse_share, validate_filter
from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq.server_api import TlsSettings

from hookmq_spark_sink.placement import PartitionBy, new

OnFull = Literal["reject", "drop_oldest"]
Compression = Literal["zstd", "none"]
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Pattern for the names of streams and consumers. A stream's folder has the stream's name."""
MAX_PARTITIONS: Final = 256
OF_QUEUE: Final = frozenset({"name", "topics", "queue", "consumers"})
"""The settings of a stream that serves a queue."""
TIER: Final = "tier"
"""The consumer that records which messages are in Parquet."""
ANY: Final = "*"


@dataclass(frozen=True)
class TierConfig:
    """The daily Parquet files to which messages are written before retention removes them."""

    target: str = field(
        metadata={"help": "a folder, or a URL of an object store: s3://, gs://, abfs://"}
    )
    file_size: Size = setting(
        256 << 20,
        "bytes of the log for one file; with less, a partition has one file for each day",
        minimum=1 << 16,
    )
    python: str = setting(
        "",
        "the Python that writes them, whose environment has hookmq-spark-sink[export]; default: the broker's",
    )

    def __post_init__(self) -> None:
        if not self.target:
            raise ConfigError("tier.target: empty")
        if self.python and which(self.python) is None:
            raise ConfigError(f"tier.python: no program {self.python}")
        if not self.python and find_spec("pyarrow") is None:
            raise ConfigError(
                "tier: the broker's Python has no pyarrow",
                hint="install hookmq-spark-sink with the extra `export`, here or where tier.python is",
            )


@dataclass(frozen=True)
class StreamConfig:
    """A stream's settings."""

    name: str = field(metadata={"help": "its name and that of its folder: letters, digits, _ . -"})
    topics: tuple[str, ...] = setting(
        (), "topic filters; a message that matches one of them is stored"
    )
    partitions: int = setting(
        1,
        "parts that are read in parallel; each topic is in one of them. Cannot be changed later",
        minimum=1,
        maximum=MAX_PARTITIONS,
    )
    partition_by: PartitionBy = setting(
        "topic",
        "topic keeps the messages of a topic in order, in one partition; round_robin spreads all messages evenly, in no "
        "order. Cannot be changed later",
    )
    retention_time: Seconds = setting(604800.0, "how long messages are kept; 0 means forever")
    retention_bytes: Size = setting(
        8 << 30,
        "size beyond which the oldest messages are removed, whatever their age; 0 means no limit",
    )
    max_bytes: Size = setting(
        10 << 30,
        "the hard limit, up to which messages are kept for consumers that have not read them",
        minimum=1 << 16,
    )
    on_full: OnFull = setting(
        "reject",
        "at the hard limit: reject refuses messages (0x97), drop_oldest removes unread ones",
    )
    segment_size: Size = setting(
        64 << 20,
        "size of the log's files; retention removes whole files",
        minimum=1 << 12,
        maximum=1 << 30,
    )
    segment_time: Seconds = setting(
        3600.0,
        "begin a new file after this time, so that the old one can be removed; 0 means never",
    )
    flush_window: Seconds = setting(
        0.0,
        "shortest time between flushes: a longer one gives larger blocks and later acknowledgements",
        maximum=10,
    )
    compression: Compression = setting(
        "zstd", "how the log's files are compressed once they are full: zstd or none"
    )
    consumers: tuple[str, ...] = setting((), "consumers whose unread messages retention keeps")
    queue: str = setting(
        "",
        "instead of topics: a queue of the type stream, whose messages readers get with the offsets of the queue",
    )
    tier: TierConfig | None = setting(
        None,
        "write the messages of each day to Parquet before retention removes them",
    )

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"name: {self.name!r} is not a name; use letters, digits, _ . -")
        if self.queue:
            self._check_queue()
        elif not self.topics:
            raise ConfigError(
                f"topics: the stream {self.name} has neither a topic filter nor a queue"
            )
        for one in self.topics:
            try:
                validate_filter(one)
            except Exception as error:
                raise ConfigError(f"topics: {one!r} is not a topic filter: {error}") from None
            if parse_share(one)[0] is not None:
                raise ConfigError(f"topics: {one!r}: a stream cannot use a shared subscription")
        if self.segment_size * 4 > self.max_bytes:
            raise ConfigError(
                f"segment_size: {self.segment_size} is more than a quarter of max_bytes",
                hint="retention deletes whole segments",
            )
        if self.retention_bytes > self.max_bytes:
            raise ConfigError("retention_bytes: more than max_bytes")
        for consumer in self.consumers:
            if not NAME.fullmatch(consumer):
                raise ConfigError(
                    f"consumers: {consumer!r} is not a name; use letters, digits, _ . -"
                )
        if len(set(self.consumers)) != len(self.consumers):
            raise ConfigError("consumers: a name is listed twice")
        if self.tier is not None:
            if TIER in self.consumers:
                raise ConfigError(
                    f"consumers: {TIER} is the consumer of tier, and need not be listed"
                )
            # Retention waits for it like for any other consumer.
            object.__setattr__(self, "consumers", (*self.consumers, TIER))

    def _check_queue(self) -> None:
        """Check that a stream that serves a queue has only settings that apply to it."""
        if not NAME.fullmatch(self.queue):
            raise ConfigError(
                f"queue: {self.queue!r} is not the name of a queue; use letters, digits, _ . -"
            )
        if self.topics:
            raise ConfigError(f"queue: the stream {self.name} has topics; give one of the two")
        for one in fields(self):
            if one.name not in OF_QUEUE and getattr(self, one.name) != one.default:
                raise ConfigError(
                    f"{one.name}: the stream {self.name} serves a queue, so it does not have this setting",
                    hint="its queue has settings for retention; a stream of a queue has one partition",
                )

    @property
    def placement(self) -> str:
        """Return the name of the placement for a new log."""
        return new(self.partition_by)


@dataclass(frozen=True)
class Access:
    """A permission to read, for a token or for a client certificate's common name."""

    token: str = field(
        default="",
        repr=False,
        metadata={"help": "the token in `Authorization: Bearer`; at least 16 characters"},
    )
    common_name: str = setting("", "the common name of a client certificate (tls.client_ca)")
    streams: tuple[str, ...] = setting((ANY,), "streams that may be read; * for all")
    commit: bool = setting(True, "allow committing offsets of consumers")

    def __post_init__(self) -> None:
        if bool(self.token) == bool(self.common_name):
            raise ConfigError("access: give either token or common_name")
        if self.token and (len(self.token) < 16 or not self.token.isascii()):
            raise ConfigError("access.token: needs at least 16 characters, ASCII only")


@dataclass(frozen=True)
class ApiConfig:
    """The read API, which has its own listener and process."""

    bind: str = setting("127.0.0.1:1890", "HOST:PORT; port 0 means any free port")
    access: tuple[Access, ...] = setting((), "who may read which streams")
    tls: TlsSettings | None = setting(None, "https; required beyond loopback")
    plain_http: bool = setting(
        False, "allow http beyond loopback: tokens and messages then cross the network unprotected"
    )
    max_response: Size = setting(64 << 20, "largest answer", minimum=1 << 16)
    max_requests: int = setting(64, "concurrent requests for records; more get 503", minimum=1)
    timeout: Seconds = setting(
        30.0, "longest time that a reader may leave sent data unread", minimum=0.1
    )

    def __post_init__(self) -> None:
        host, _ = address(self.bind)
        if not self.access:
            raise ConfigError(
                "access: empty, so nobody could read", hint="add an entry with a token"
            )
        named = any(one.common_name for one in self.access)
        if named and (self.tls is None or self.tls.client_certificates == "none"):
            raise ConfigError(
                "access.common_name: clients are not asked for a certificate",
                hint="set tls.client_ca and tls.client_certificates",
            )
        tokens = [one.token for one in self.access if one.token]
        if len(set(tokens)) != len(tokens):
            raise ConfigError("access: two entries have the same token")
        if self.tls is None and not self.plain_http and not loopback(host):
            raise ConfigError(
                f"bind: http on {host} would reveal tokens to the network",
                hint="set tls, or plain_http: true if that network may see them",
            )


@dataclass(frozen=True)
class SparkSinkConfig:
    """The plugin's settings."""

    path: Path = field(metadata={"help": "folder of the streams; created if missing"})
    streams: tuple[StreamConfig, ...] = field(metadata={"help": "the streams"})
    api: ApiConfig | None = setting(
        None, "the read API; without it, only `hookmq spark` can read the streams"
    )
    sync: bool = setting(
        True, "fsync before acknowledging; false survives the end of the process but no power cut"
    )
    min_free: Size = setting(256 << 20, "free disk space below which every stream is full")
    check_every: Seconds = setting(10.0, "interval of retention", minimum=0.05, maximum=3600)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not self.streams:
            raise ConfigError("streams: empty, but at least one is required")
        names = [one.name.lower() for one in self.streams]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"streams: {name} is listed twice")
        queues = [one.queue for one in self.streams if one.queue]
        for name in queues:
            if queues.count(name) > 1:
                raise ConfigError(f"streams: two of them serve the queue {name}")
        for one in self.api.access if self.api is not None else ():
            for name in one.streams:
                if name != ANY and name not in {stream.name for stream in self.streams}:
                    raise ConfigError(f"api.access.streams: no stream {name}")
        tiers: dict[str, TierConfig] = {}
        for stream in self.streams:
            if (tier := stream.tier) is not None and tiers.setdefault(tier.target, tier) != tier:
                raise ConfigError(f"streams: tiers with the target {tier.target} differ")


def address(bind: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` into host and port. Raises ConfigError if it is invalid."""
    host, colon, port = bind.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"bind: {bind!r} is not HOST:PORT")
    return host, int(port)


def loopback(host: str) -> bool:
    """Return whether `host` is a loopback address, which only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
