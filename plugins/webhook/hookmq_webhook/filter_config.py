"""What an operator says of a service that filters messages."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hookmq.plugin import ConfigError, Seconds, Size, setting

from hookmq_webhook.config import (
    AuthConfig,
    DestinationConfig,
    Payload,
    SignConfig,
    TlsConfig,
    check_url,
)

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x1f\x7f]*")


@dataclass(frozen=True)
class FilterPluginConfig:
    """Of `use: webhook_filter`."""

    url: str = field(metadata={"help": "of the service"})
    payload: Payload = setting("auto", "how payloads are shown: auto, json, text, base64 or none")
    max_payload: Size = setting(
        262144, "largest payload that is shown; a message with a larger one is undecided"
    )
    headers: Mapping[str, str] = field(default_factory=dict, metadata={"help": "further headers"})
    auth: AuthConfig | None = setting(None, "how we show who we are")
    sign: SignConfig | None = setting(None, "how the service knows that it was us")
    timeout: Seconds = setting(
        0.5, "how long a message may wait for the answer", minimum=0.001, maximum=60
    )
    max_parallel: int = setting(
        50, "requests at a time, and connections kept", minimum=1, maximum=10000
    )
    max_waiting: int = setting(
        1000, "messages that wait for their turn; more are undecided", minimum=0
    )
    breaker_failures: int = setting(
        5, "failures in a row after which the service is left alone", minimum=1
    )
    breaker_pause: Seconds = setting(
        5.0, "how long, at first; up to eight times that", minimum=0.001, maximum=3600
    )
    max_answer: Size = setting(1 << 20, "largest answer that is read", minimum=1)
    tls: TlsConfig | None = setting(None, "of https")
    destinations: DestinationConfig = setting(DestinationConfig(), "where requests may go")

    def __post_init__(self) -> None:
        check_url("url", self.url)
        if "$" in self.url:
            raise ConfigError("url: there is no ${...} here")
        if self.auth is not None and self.auth.oauth2 is not None:
            check_url("auth.oauth2.token_url", self.auth.oauth2.token_url)
        for name, text in self.headers.items():
            if name.lower() == "authorization":
                raise ConfigError("headers.Authorization: use auth, which is never shown")
            if name.lower() in ("content-type", "content-length", "transfer-encoding", "host"):
                raise ConfigError(f"headers.{name}: it is ours to set")
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(text):
                raise ConfigError(f"headers.{name}: not a header")
        if self.tls is not None and self.tls.key_file is not None and self.tls.cert_file is None:
            raise ConfigError("tls.key_file: there is no tls.cert_file that it belongs to")
