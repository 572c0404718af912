"""Settings of the `webhook` plugin: which events to send, where to send and store them, and when to retry."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.service_url import check_service_url
from hookmq_toolkit.templates import Template, check_names
from hookmq_toolkit.tls_client import TlsConfig

Mode = Literal["at_least_once", "best_effort"]
Envelope = Literal["structured", "binary", "batch", "plain"]
Payload = Literal["auto", "json", "text", "base64", "none"]
Key = Literal["client", "topic", "none", "all"]
PLACES: frozenset[str] = frozenset({"type", "client", "topic", "listener", "id"})
"""Placeholders that the URL and the headers accept."""
PAYLOAD_PLACE = re.compile(r"payload(\.[^.\s]+)*")
"""Placeholders for the payload and its fields, in the URL and the headers."""
OURS: frozenset[str] = frozenset(
    {
        "content-type", "content-length", "content-encoding", "transfer-encoding", "host",
        "webhook-id", "webhook-timestamp", "webhook-signature",
    }
)  # fmt: skip
"""Headers that cannot be configured, because the plugin sets them."""


def hidden(help: str) -> Any:
    """Return a dataclass field for a setting whose value is never shown."""
    return field(default=None, repr=False, metadata={"help": help})


@dataclass(frozen=True)
class FilterConfig:
    """Filters that select which of the events in `events` are sent.

    Topic filters do not apply to events without a topic. Client filters do not apply to event types without a client. A
    condition does not apply to event types that lack its field.
    """

    topics: tuple[str, ...] = setting((), "topic filters: only events about these topics are sent")
    exclude_topics: tuple[str, ...] = setting((), "topic filters: events about these are not sent")
    clients: tuple[str, ...] = setting((), "client ids, with * and ?: only their events are sent")
    exclude_clients: tuple[str, ...] = setting(
        (), "client ids, with * and ?: their events are not sent"
    )
    listeners: tuple[str, ...] = setting((), "listeners: only events of their clients are sent")
    sample: float = setting(1.0, "the share of events that is sent, 0 to 1", maximum=1)
    sample_by: Literal["event", "client", "topic"] = setting(
        "event", "choose that share by event, or choose all events of a client or topic"
    )
    when: tuple[str, ...] = setting(
        (), "conditions on fields, such as payload.celsius > 30: only events that meet all are sent"
    )
    fields: tuple[str, ...] = setting(
        (), "fields of the data that are sent, or with - not sent; default: all"
    )


@dataclass(frozen=True)
class OutboxConfig:
    """Where events wait on disk in `at_least_once` mode."""

    path: Path | None = setting(None, "folder; default: webhook/ID next to that of storage")
    max_bytes: Size = setting(1 << 30, "approximate size at which it is full", minimum=65536)
    max_events: int = setting(0, "waiting events at which it is full; 0: no limit", minimum=0)
    max_unwritten: Size = setting(
        64 << 20,
        "bytes not yet written at which it is full, if publishers are faster than the disk",
        minimum=65536,
    )
    on_full: Literal["reject", "dead_letter", "drop", "drop_oldest"] = setting(
        "reject",
        "what happens then: refuse messages, make dead letters of events, drop them, or drop the oldest ones",
    )
    sync: bool = setting(
        True, "true: acknowledged messages survive a power cut; false: only the end of the broker"
    )


@dataclass(frozen=True)
class QueueConfig:
    """The in-memory queue that is used in `best_effort` mode."""

    max_events: int = setting(10_000, "most events that wait", minimum=1)
    max_bytes: Size = setting(64 << 20, "their approximate size", minimum=1024)
    drop: Literal["oldest", "newest"] = setting("oldest", "which event is dropped when it is full")


@dataclass(frozen=True)
class BatchConfig:
    """The number of events that a request may contain, for the envelopes `batch` and `plain`."""

    count: int = setting(1, "most events in one request", minimum=1, maximum=10_000)
    bytes: Size = setting(1 << 20, "their approximate size", minimum=1)
    linger: Seconds = setting(0.0, "how long to wait for a batch to fill", maximum=60)


@dataclass(frozen=True)
class RetryConfig:
    """When to retry an event, and when to give up on it."""

    first_delay: Seconds = setting(
        0.5,
        "approximate delay after the first failure; doubles with each further one",
        minimum=0.001,
    )
    longest_delay: Seconds = setting(300.0, "longest delay, also for a Retry-After", minimum=0.001)
    max_age: Seconds = setting(0.0, "age at which an event is given up; 0: never")
    max_attempts: int = setting(0, "attempts after which an event is given up; 0: never")
    refused: tuple[int, ...] = setting(
        (400, 413, 414, 415, 422, 431),
        "statuses after which an event is given up at once",
    )
    breaker_failures: int = setting(
        5, "failures in a row after which no requests are sent for a while", minimum=1
    )
    breaker_pause: Seconds = setting(
        5.0,
        "length of the first such pause; later ones are up to eight times as long",
        minimum=0.001,
        maximum=3600,
    )


@dataclass(frozen=True)
class DisableConfig:
    """When to stop sending events until an operator resumes the plugin. Meanwhile, events wait as they do during a
    pause.
    """

    statuses: tuple[int, ...] = setting(
        (410,), "statuses that say that the service is gone; those in retry.refused do not count"
    )
    after: Seconds = setting(0.0, "how long the service must have failed without a break; 0: never")


@dataclass(frozen=True)
class ProxyConfig:
    """The HTTP proxy for all requests, including those to a token service."""

    url: str = field(metadata={"help": "URL of the proxy"})
    username: str | None = setting(None, "user name at the proxy")
    password: str | None = hidden("password at the proxy")

    def __post_init__(self) -> None:
        check_service_url("proxy.url", self.url, "proxy.username")
        if (self.username is None) != (self.password is None):
            raise ConfigError("proxy: username and password must be set together")


@dataclass(frozen=True)
class DeadLetterConfig:
    """Where to store events that the plugin gives up on."""

    path: Path | None = setting(
        None, "folder of the file; default: dead in the outbox's folder, none with best_effort"
    )
    topic: str | None = setting(None, "topic that they are published to, instead of the file")
    max_bytes: Size = setting(
        256 << 20, "size of the file at which its oldest events are removed", minimum=4096
    )


@dataclass(frozen=True)
class OAuth2Config:
    """OAuth 2.0 client credentials (RFC 6749, 4.4)."""

    token_url: str = field(metadata={"help": "URL of the token service"})
    client_id: str = field(metadata={"help": "client id at the token service"})
    client_secret: str = field(repr=False, metadata={"help": "client secret"})
    scope: str = setting("", "scopes to request, separated by spaces")
    audience: str = setting("", "audience to request, if the service needs one")
    style: Literal["basic", "form"] = setting("basic", "how client_secret is sent")


@dataclass(frozen=True)
class AuthConfig:
    """Credentials for requests: a bearer token, basic authentication or OAuth 2.0."""

    bearer_token: str | None = hidden("bearer token")
    username: str | None = setting(None, "user name for basic authentication")
    password: str | None = hidden("password for basic authentication")
    oauth2: OAuth2Config | None = setting(None, "OAuth 2.0 client credentials")

    def __post_init__(self) -> None:
        ways = [self.bearer_token, self.username, self.oauth2]
        if sum(way is not None for way in ways) != 1:
            raise ConfigError("auth: expected exactly one of bearer_token, username and oauth2")
        if self.bearer_token is not None and not re.fullmatch(r"[!-~]+", self.bearer_token):
            raise ConfigError("auth.bearer_token: expected printable ASCII without spaces")
        if (self.username is None) != (self.password is None):
            raise ConfigError("auth: username and password must be set together")


@dataclass(frozen=True)
class SignConfig:
    """Standard Webhooks signatures of the id, timestamp and body: HMAC-SHA256 (v1) with a shared secret, ed25519 (v1a)
    with a private key, or both."""

    secret: str | None = hidden("whsec_ and base64")
    previous_secret: str | None = hidden(
        "previous secret, which also signs until all receivers know the new one"
    )
    private_key: str | None = hidden("whsk_ and base64; receivers need only its public key")
    previous_private_key: str | None = hidden(
        "previous private key, which also signs until all receivers know the new public key"
    )

    def __post_init__(self) -> None:
        if self.secret is None and self.private_key is None:
            raise ConfigError("sign: expected secret, private_key, or both")
        for name in ("secret", "private_key"):
            if getattr(self, name) is None and getattr(self, f"previous_{name}") is not None:
                raise ConfigError(f"sign.previous_{name}: requires {name}")


@dataclass(frozen=True)
class DestinationConfig:
    """Restrictions on the destinations of requests. They are checked for every connection, after
    the host name is resolved.
    """

    allow_hosts: tuple[str, ...] = setting((), "host names, with * and ?: all others are refused")
    deny_hosts: tuple[str, ...] = setting((), "host names, with * and ?, that are refused")
    allow_networks: tuple[str, ...] = setting(
        (), "networks: all other addresses are refused; these may include link-local ones"
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
    """Settings of one plugin instance, which sends events to one service."""

    url: str = field(metadata={"help": "URL of the service, with ${...} in path and query"})
    events: tuple[str, ...] = setting(("*",), "types of events, with *; excluded with a - in front")
    filters: FilterConfig = setting(FilterConfig(), "which of these events are sent")
    mode: Mode = setting(
        "at_least_once",
        "at_least_once: events wait on disk until they arrive; best_effort: in memory",
    )
    key: Key = setting(
        "client",
        "events with the same client or topic arrive in order; all: all events do; none: none do",
    )
    envelope: Envelope = setting(
        "structured", "CloudEvents 1.0 (structured, binary or batch), or plain"
    )
    payload: Payload = setting("auto", "form of payloads: auto, json, text, base64 or none")
    content: Literal["event", "payload"] = setting(
        "event", "data of a message's CloudEvent: the event with the payload, or the payload alone"
    )
    dataschema: str = setting(
        "", "URI of the schema of payloads, with content: payload; an attribute of the CloudEvent"
    )
    max_event: Size = setting(
        1 << 20, "size of an event above which its payload is omitted", minimum=1024
    )
    body: str | None = setting(
        None, "JSON with ${...} in its strings, instead of the body of envelope plain"
    )
    source: str = setting("", "source of CloudEvents; default: urn:hookmq:ID")
    method: Literal["post", "put", "patch"] = setting("post", "method of requests")
    headers: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "more headers, with ${...} in their values"}
    )
    auth: AuthConfig | None = setting(None, "credentials for requests")
    sign: SignConfig | None = setting(None, "signatures that receivers can verify")
    timeout: Seconds = setting(10.0, "time limit of one request", minimum=0.01, maximum=300)
    connect_timeout: Seconds = setting(
        3.0, "time limit for opening a connection", minimum=0.01, maximum=300
    )
    concurrency: int = setting(
        4, "requests at a time, with events of different keys", minimum=1, maximum=1000
    )
    rate: float = setting(0.0, "most requests in a second; 0: no limit", minimum=0)
    window: int = setting(2000, "events in memory that wait to be sent", minimum=1)
    window_bytes: Size = setting(32 << 20, "their approximate size", minimum=1024)
    batch: BatchConfig = setting(BatchConfig(), "several events in one request")
    retry: RetryConfig = setting(RetryConfig(), "when events are sent again or given up")
    disable: DisableConfig = setting(DisableConfig(), "when nothing more is sent")
    outbox: OutboxConfig = setting(OutboxConfig(), "for at_least_once")
    queue: QueueConfig = setting(QueueConfig(), "for best_effort")
    dead_letter: DeadLetterConfig = setting(DeadLetterConfig(), "for events that are given up")
    gzip: Size = setting(0, "size from which bodies are compressed; 0: never")
    max_answer: Size = setting(65536, "bytes of an answer that are read", minimum=0)
    redirects: int = setting(0, "redirects (307, 308) that are followed", maximum=10)
    tls: TlsConfig | None = setting(None, "files for https")
    proxy: ProxyConfig | None = setting(None, "HTTP proxy for the requests")
    destinations: DestinationConfig = setting(DestinationConfig(), "where requests may go")
    drain: Seconds = setting(5.0, "how long a stop waits for events to arrive")
    process: bool = setting(
        True, "send requests from a separate process, outside the broker's event loop"
    )
    wake_interval: Seconds = setting(
        0.1,
        "how often that process learns about new events, if they keep coming",
        minimum=0.001,
        maximum=10,
    )

    def __post_init__(self) -> None:
        if not self.events:
            raise ConfigError("events: expected at least one type")
        check_url("url", self.url)
        if self.auth is not None and self.auth.oauth2 is not None:
            check_url("auth.oauth2.token_url", self.auth.oauth2.token_url)
        templates = {"url": self.url}
        templates |= {f"headers.{name}": text for name, text in self.headers.items()}
        used = {key: sorted(Template(text).names) for key, text in templates.items()}
        for key, names in used.items():
            others = [name for name in names if not PAYLOAD_PLACE.fullmatch(name)]
            check_names(others, PLACES | {"payload", "payload.FIELD"}, key)
        for name, text in self.headers.items():
            check_header(name, text, OURS)
        if self.sign is not None and self.envelope == "binary":
            raise ConfigError(
                "sign: signatures do not cover the ce-* headers of envelope binary",
                hint="use envelope structured, which has these attributes in the body",
            )
        if self.body is not None and self.envelope != "plain":
            raise ConfigError("body: requires envelope: plain, whose body it replaces")
        if self.content == "payload" and (self.envelope == "plain" or self.payload == "none"):
            raise ConfigError("content: payload requires a CloudEvents envelope, and a payload")
        if self.dataschema and self.content != "payload":
            raise ConfigError("dataschema: requires content: payload, whose schema it names")
        if self.dataschema and not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+", self.dataschema):
            raise ConfigError(
                f"dataschema: {self.dataschema!r} is not an absolute URI",
                hint="such as https://example.org/schemas/reading.json or urn:example:reading",
            )
        if self.batch.count > 1:
            if self.envelope in ("structured", "binary"):
                raise ConfigError(
                    f"batch.count: envelope {self.envelope} has one event in a request",
                    hint="use envelope batch or plain",
                )
            per_event = next((key for key, names in used.items() if names), None)
            if per_event is not None:
                raise ConfigError(f"{per_event}: ${{...}} cannot be used with batch.count above 1")
        if self.outbox.on_full == "dead_letter" and self.dead_letter.topic is not None:
            # The commit and the message would wait for each other.
            raise ConfigError("outbox.on_full: dead_letter cannot be used with dead_letter.topic")
        if self.proxy is not None and (
            self.destinations.allow_networks or self.destinations.deny_networks
        ):
            raise ConfigError(
                "destinations: networks cannot be checked with a proxy, which looks up the addresses",
                hint="use allow_hosts, or restrict the networks in the proxy",
            )
        if self.retry.first_delay > self.retry.longest_delay:
            raise ConfigError("retry.first_delay: more than longest_delay")


def check_header(name: str, text: str, reserved: frozenset[str]) -> None:
    """Raise ConfigError if a header is invalid or `reserved`, or contains credentials."""
    if name.lower() == "authorization":
        raise ConfigError("headers.Authorization: use auth, which is never shown")
    if name.lower() in reserved:
        raise ConfigError(f"headers.{name}: set by the plugin, and cannot be configured")
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(
        r"[\x00-\x1f\x7f]", text
    ):
        raise ConfigError(f"headers.{name}: not a valid header")


def check_url(key: str, url: str) -> None:
    """Raise ConfigError if `url` is not a valid service URL, or if its host name cannot be looked up."""
    host = check_service_url(key, url, "auth").hostname or ""
    # A host name that the resolver rejects would make every event fail.
    labels = host.removesuffix(".").split(".")
    valid = all(re.fullmatch(r"[A-Za-z0-9_-]{1,63}", one) for one in labels)
    if ":" not in host and not valid:
        raise ConfigError(
            f"{key}: {host!r} is not a valid host name",
            hint="labels of at most 63 ASCII characters; others as xn--...",
        )
