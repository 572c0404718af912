"""What an operator says: what is told, to whom, how often it is tried, and where it waits."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from hookmq.plugin import ConfigError, Seconds, Size, setting

Mode = Literal["at_least_once", "best_effort"]
Envelope = Literal["structured", "binary", "batch", "plain"]
Payload = Literal["auto", "json", "text", "base64", "none"]
Key = Literal["client", "topic", "none", "all"]
PLACES: frozenset[str] = frozenset({"type", "client", "topic", "listener", "id"})
"""What ``${...}`` may name."""
OURS: frozenset[str] = frozenset(
    {
        "content-type", "content-length", "content-encoding", "transfer-encoding", "host",
        "webhook-id", "webhook-timestamp", "webhook-signature",
    }
)  # fmt: skip
"""Headers that no configuration sets: they say what the request is."""
_PLACE = re.compile(r"\$\{([^{}]*)\}")


def hidden(help: str) -> Any:
    """A key whose value is never shown."""
    return field(default=None, repr=False, metadata={"help": help})


@dataclass(frozen=True)
class FilterConfig:
    """Of the events chosen by `events`, those that are told. One without a client or a topic is not asked about it."""

    topics: tuple[str, ...] = setting((), "topic filters: events about other topics are left out")
    exclude_topics: tuple[str, ...] = setting((), "topic filters of what is left out")
    clients: tuple[str, ...] = setting((), "client ids, with * and ?: others are left out")
    exclude_clients: tuple[str, ...] = setting((), "client ids, with * and ?, that are left out")
    listeners: tuple[str, ...] = setting((), "names of listeners: clients of others are left out")
    sample: float = setting(1.0, "the share that is told", maximum=1)
    sample_by: Literal["event", "client", "topic"] = setting(
        "event", "what the share is of: events, or all events of some clients or topics"
    )
    fields: tuple[str, ...] = setting(
        (), "the members of data that are told, or with - before them are not; all if left out"
    )


@dataclass(frozen=True)
class OutboxConfig:
    """Of `at_least_once`: where events wait."""

    path: Path | None = setting(None, "its folder; webhook/ID beside that of storage if left out")
    max_bytes: Size = setting(1 << 30, "its size, about, when it is full", minimum=65536)
    max_events: int = setting(0, "events that wait when it is full; 0: any number", minimum=0)
    max_unwritten: Size = setting(
        64 << 20,
        "bytes that wait for the disk when it is full: publishers are faster",
        minimum=65536,
    )
    on_full: Literal["reject", "dead_letter", "drop"] = setting(
        "reject", "what becomes of a message then: its publisher keeps it, dead letter, or gone"
    )
    sync: bool = setting(
        True, "whether what is acknowledged survives a power cut, and not only the broker's end"
    )


@dataclass(frozen=True)
class QueueConfig:
    """Of `best_effort`: what waits in memory."""

    max_events: int = setting(10_000, "events", minimum=1)
    max_bytes: Size = setting(64 << 20, "their size, about", minimum=1024)
    drop: Literal["oldest", "newest"] = setting("oldest", "what goes when it is full")


@dataclass(frozen=True)
class BatchConfig:
    """Several events in one request: `envelope` batch or plain."""

    count: int = setting(1, "events in one request", minimum=1, maximum=10_000)
    bytes: Size = setting(1 << 20, "their size, about", minimum=1)
    linger: Seconds = setting(0.0, "how long to wait for a batch to fill", maximum=60)


@dataclass(frozen=True)
class RetryConfig:
    """What happens until an event arrived."""

    first_delay: Seconds = setting(
        0.5, "about how long after the first failure; twice as long after each next", minimum=0.001
    )
    longest_delay: Seconds = setting(300.0, "the longest, also of a Retry-After", minimum=0.001)
    max_age: Seconds = setting(0.0, "age at which an event is given up; 0 never")
    max_attempts: int = setting(0, "attempts after which an event is given up; 0 never")
    refused: tuple[int, ...] = setting(
        (400, 410, 413, 414, 415, 422, 431),
        "statuses that say: never this one; it is given up at once",
    )
    breaker_failures: int = setting(
        5, "failures in a row after which the service is left alone", minimum=1
    )
    breaker_pause: Seconds = setting(
        5.0, "how long, at first; up to eight times that", minimum=0.001, maximum=3600
    )


@dataclass(frozen=True)
class DeadLetterConfig:
    """Where events go that were given up."""

    path: Path | None = setting(
        None, "folder of the file; dead in the outbox's if left out, none with best_effort"
    )
    topic: str | None = setting(None, "a topic that they are published to, instead of the file")
    max_bytes: Size = setting(
        256 << 20, "size of the file beyond which its oldest go", minimum=4096
    )


@dataclass(frozen=True)
class TlsConfig:
    """Of https."""

    ca_file: Path | None = setting(
        None, "PEM file of the authorities to trust instead of the system's"
    )
    cert_file: Path | None = setting(
        None, "PEM file of our certificate, for services that ask for one"
    )
    key_file: Path | None = setting(None, "PEM file of its key, where cert_file does not have it")


@dataclass(frozen=True)
class OAuth2Config:
    """Client credentials (RFC 6749, 4.4)."""

    token_url: str = field(metadata={"help": "where tokens are given"})
    client_id: str = field(metadata={"help": "who we are there"})
    client_secret: str = field(repr=False, metadata={"help": "and how we show it"})
    scope: str = setting("", "scopes to ask for, with spaces between")
    audience: str = setting("", "audience to ask for, where the service wants one")
    style: Literal["basic", "form"] = setting("basic", "how client_secret is sent")


@dataclass(frozen=True)
class AuthConfig:
    """How we show who we are: one of bearer, basic and OAuth2."""

    bearer_token: str | None = hidden("a bearer token")
    username: str | None = setting(None, "of basic authentication")
    password: str | None = hidden("of basic authentication")
    oauth2: OAuth2Config | None = setting(None, "OAuth 2.0 client credentials")

    def __post_init__(self) -> None:
        ways = [self.bearer_token, self.username, self.oauth2]
        if sum(way is not None for way in ways) != 1:
            raise ConfigError("auth: one of bearer_token, username and oauth2")
        if self.bearer_token is not None and not re.fullmatch(r"[!-~]+", self.bearer_token):
            raise ConfigError("auth.bearer_token: printable ASCII without spaces, and not empty")
        if (self.username is None) != (self.password is None):
            raise ConfigError("auth: username and password belong together")


@dataclass(frozen=True)
class SignConfig:
    """Standard Webhooks: HMAC-SHA256 over id, time and body."""

    secret: str = field(repr=False, metadata={"help": "whsec_ and base64"})
    previous_secret: str | None = hidden(
        "signed with as well, until all receivers know the new one"
    )


@dataclass(frozen=True)
class DestinationConfig:
    """Where requests may go. Looked at for every connection, after the name was resolved."""

    allow_hosts: tuple[str, ...] = setting((), "names, with * and ?: others are refused")
    deny_hosts: tuple[str, ...] = setting((), "names, with * and ?, that are refused")
    allow_networks: tuple[str, ...] = setting(
        (), "networks: addresses in others are refused; lifts the refusal of link-local ones"
    )
    deny_networks: tuple[str, ...] = setting((), "networks whose addresses are refused")

    def __post_init__(self) -> None:
        for name in ("allow_networks", "deny_networks"):
            for text in getattr(self, name):
                try:
                    ipaddress.ip_network(text)
                except ValueError as error:
                    raise ConfigError(f"destinations.{name}: {error}") from None


@dataclass(frozen=True)
class WebhookConfig:
    """One instance: one service."""

    url: str = field(metadata={"help": "of the service; ${...} in path and query"})
    events: tuple[str, ...] = setting(("*",), "types of events, with *; those with - are left out")
    filters: FilterConfig = setting(FilterConfig(), "which of these")
    mode: Mode = setting(
        "at_least_once", "at_least_once: kept on disk until it arrived; best_effort: in memory"
    )
    key: Key = setting(
        "client",
        "events with the same client or topic arrive in order; none: as they come; all: all",
    )
    envelope: Envelope = setting(
        "structured", "CloudEvents 1.0: structured, binary or batch; or plain"
    )
    payload: Payload = setting("auto", "how payloads are told: auto, json, text, base64 or none")
    content: Literal["event", "payload"] = setting(
        "event",
        "data of a message's CloudEvent: event, with the payload in it, or the payload itself",
    )
    max_event: Size = setting(
        1 << 20, "size of an event beyond which its payload is left out", minimum=1024
    )
    body: str | None = setting(
        None, "JSON with ${...} in its strings, instead of what envelope plain sends"
    )
    source: str = setting("", "of CloudEvents; urn:hookmq:ID if left out")
    method: Literal["post", "put", "patch"] = setting("post", "of requests")
    headers: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "further headers, with ${...} in their values"}
    )
    auth: AuthConfig | None = setting(None, "how we show who we are")
    sign: SignConfig | None = setting(None, "how receivers know that it was us")
    timeout: Seconds = setting(10.0, "of one request", minimum=0.01, maximum=300)
    connect_timeout: Seconds = setting(3.0, "of one connection", minimum=0.01, maximum=300)
    concurrency: int = setting(4, "requests at a time, each of other keys", minimum=1, maximum=1000)
    window: int = setting(2000, "events held in memory ahead of the service", minimum=1)
    window_bytes: Size = setting(32 << 20, "their size, about", minimum=1024)
    batch: BatchConfig = setting(BatchConfig(), "several events in one request")
    retry: RetryConfig = setting(RetryConfig(), "what happens until an event arrived")
    outbox: OutboxConfig = setting(OutboxConfig(), "of at_least_once")
    queue: QueueConfig = setting(QueueConfig(), "of best_effort")
    dead_letter: DeadLetterConfig = setting(DeadLetterConfig(), "of what was given up")
    gzip: Size = setting(0, "size from which bodies are compressed; 0 never")
    max_answer: Size = setting(65536, "bytes that are read of an answer", minimum=0)
    redirects: int = setting(0, "redirections (307, 308) that are followed", maximum=10)
    tls: TlsConfig | None = setting(None, "of https")
    destinations: DestinationConfig = setting(DestinationConfig(), "where requests may go")
    drain: Seconds = setting(5.0, "how long a stop waits until everything has arrived")
    process: bool = setting(
        True, "requests are made by a process of their own, beside the broker's event loop"
    )

    def __post_init__(self) -> None:
        if not self.events:
            raise ConfigError("events: none is named")
        check_url("url", self.url)
        if self.auth is not None and self.auth.oauth2 is not None:
            check_url("auth.oauth2.token_url", self.auth.oauth2.token_url)
        places = {"url": self.url}
        places |= {f"headers.{name}": text for name, text in self.headers.items()}
        used = {where: set(_PLACE.findall(text)) for where, text in places.items()}
        for where, names in used.items():
            check_places(where, names)
        for name, text in self.headers.items():
            if name.lower() == "authorization":
                raise ConfigError("headers.Authorization: use auth, which is never shown")
            if name.lower() in OURS:
                raise ConfigError(f"headers.{name}: it is ours to set")
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(
                r"[\x00-\x1f\x7f]", text
            ):
                raise ConfigError(f"headers.{name}: not a header")
        if self.sign is not None and self.envelope == "binary":
            raise ConfigError(
                "sign: it does not cover the ce-* headers of envelope binary, so that anybody could change them",
                hint="use envelope structured, which has them in the body",
            )
        if self.body is not None and self.envelope != "plain":
            raise ConfigError("body: it takes the place of envelope plain; say that, too")
        if self.content == "payload" and (self.envelope == "plain" or self.payload == "none"):
            raise ConfigError("content: a payload alone is of CloudEvents, and needs a payload")
        if self.batch.count > 1:
            if self.envelope in ("structured", "binary"):
                raise ConfigError(
                    f"batch.count: {self.envelope} events go one by one; use envelope batch or plain"
                )
            per_event = next((where for where, names in used.items() if names), None)
            if per_event is not None:
                raise ConfigError(f"{per_event}: ${{...}} is of one event, batch.count of several")
        if self.outbox.on_full == "dead_letter" and self.dead_letter.topic is not None:
            # The commit would wait for a message that waits for the commit.
            raise ConfigError("outbox.on_full: dead_letter needs their file, not dead_letter.topic")
        if self.tls is not None and self.tls.key_file is not None and self.tls.cert_file is None:
            raise ConfigError("tls.key_file: there is no tls.cert_file that it belongs to")
        if self.retry.first_delay > self.retry.longest_delay:
            raise ConfigError("retry.first_delay: more than longest_delay")


def check_places(where: str, names: set[str]) -> None:
    """Raise ConfigError for ``${...}`` that there is not."""
    unknown = sorted(names - PLACES)
    if unknown:
        raise ConfigError(
            f"{where}: there is no ${{{unknown[0]}}}", hint="known: " + ", ".join(sorted(PLACES))
        )


def check_url(where: str, url: str) -> None:
    """Raise ConfigError for what is no address of a service."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{where}: not the URL of a service: http://... or https://...")
    if "$" in parts.netloc:
        raise ConfigError(
            f"{where}: ${{...}} is for path and query: a client must not choose a host"
        )
    if ":" not in host and not _is_name(host):
        raise ConfigError(
            f"{where}: {host!r} is not the name of a host",
            hint="labels of at most 63 ASCII characters; others as xn--...",
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{where}: a password in a URL ends up in logs: use auth")


def exposed(url: str) -> str:
    """Return the host if requests to `url` pass a network in the clear; '' for https and this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost":
        return ""
    try:
        return "" if ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return host


def _is_name(host: str) -> bool:
    """Whether a resolver takes it; what it is not would be found with each event, and be that one's fault."""
    return all(
        re.fullmatch(r"[A-Za-z0-9_-]{1,63}", one) for one in host.removesuffix(".").split(".")
    )
