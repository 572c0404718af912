"""Settings of the `webhook_filter` plugin."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.tls_client import TlsConfig

from hookmq_webhook.config import (
    AuthConfig,
    DestinationConfig,
    Payload,
    SignConfig,
    check_header,
    check_url,
)

_RESERVED = frozenset({"content-type", "content-length", "transfer-encoding", "host"})


@dataclass(frozen=True)
class FilterPluginConfig:
    """Settings of `use: webhook_filter`."""

    url: str = field(metadata={"help": "URL of the service"})
    payload: Payload = setting("auto", "form of payloads: auto, json, text, base64 or none")
    max_payload: Size = setting(
        262144, "largest payload that is sent; messages with a larger one are undecided"
    )
    headers: Mapping[str, str] = field(default_factory=dict, metadata={"help": "more headers"})
    auth: AuthConfig | None = setting(None, "credentials for requests")
    sign: SignConfig | None = setting(None, "signatures that the service can verify")
    timeout: Seconds = setting(
        0.5, "how long a message waits for the answer", minimum=0.001, maximum=60
    )
    max_parallel: int = setting(
        50, "requests at a time, and connections kept", minimum=1, maximum=10000
    )
    max_waiting: int = setting(
        1000, "messages that wait for a turn; further ones are undecided", minimum=0
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
    max_answer: Size = setting(1 << 20, "largest answer", minimum=1)
    tls: TlsConfig | None = setting(None, "files for https")
    destinations: DestinationConfig = setting(DestinationConfig(), "where requests may go")

    def __post_init__(self) -> None:
        check_url("url", self.url)
        if "$" in self.url:
            raise ConfigError("url: ${...} cannot be used here")
        if self.auth is not None and self.auth.oauth2 is not None:
            check_url("auth.oauth2.token_url", self.auth.oauth2.token_url)
        for name, text in self.headers.items():
            check_header(name, text, _RESERVED)
