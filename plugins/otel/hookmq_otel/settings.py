"""The settings of `use: otel`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from hookmq.plugin import ConfigError, Seconds, setting

Spans = Literal["connect", "publish", "commit", "deliver", "plugins"]


@dataclass(frozen=True)
class OtelConfig:
    """Settings of `use: otel`."""

    endpoint: str = setting(
        "http://127.0.0.1:4318", "URL of the collector, without /v1/traces and /v1/metrics"
    )
    headers: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "headers of each request, such as authorization"}
    )
    ca: str = setting(
        "", "file with the certificates that the collector's must be signed by", path=True
    )
    timeout: Seconds = setting(
        10.0, "time limit of an export, with its retries", minimum=0.1, maximum=300
    )
    service: str = setting("hookmq", "value of the resource attribute service.name")
    sampling: float = setting(
        0.01, "share of connections and messages that are traced; 0 turns traces off", maximum=1
    )
    parent: bool = setting(
        True, "let the traceparent of a client decide whether its message is traced"
    )
    spans: tuple[Spans, ...] = setting(
        ("connect", "publish", "commit", "deliver", "plugins"),
        "the spans to record; plugins: those that other plugins report, such as webhook",
        nonempty=True,
    )
    max_rate: int = setting(
        100,
        "traces a second that begin; ten times as many spans of deliveries and plugins a second",
        minimum=1,
    )
    max_queue: int = setting(
        2048,
        "spans that are open or wait for export; others are dropped",
        minimum=1,
        maximum=1_000_000,
    )
    metrics_interval: Seconds = setting(
        60.0, "time between two exports of metrics; 0 turns them off", maximum=86400
    )

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("endpoint: expected a URL such as https://collector:4318")
        if parts.username or parts.password:
            raise ConfigError("endpoint: must not contain credentials; use headers")
        if 0 < self.metrics_interval < 1:
            raise ConfigError("metrics_interval: expected 0 or at least 1s")

    @property
    def traced(self) -> frozenset[str]:
        """The kinds of spans to record; none if `sampling` is 0."""
        return frozenset(self.spans) if self.sampling > 0 else frozenset()

    def url(self, signal: str) -> str:
        """Return the URL for `signal`, which is "traces" or "metrics"."""
        return f"{self.endpoint.rstrip('/')}/v1/{signal}"
