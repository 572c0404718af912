"""Settings of the `auth_http` plugin: the service, its contract, and limits on requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.service_url import check_service_url, clear_text_host
from hookmq_toolkit.templates import Template
from hookmq_toolkit.tls_client import TlsConfig

from hookmq_auth_http.answers import CONTRACTS
from hookmq_auth_http.values import (
    AUTHORIZE_NAMES,
    CONNECT_NAMES,
    SUPERUSER_NAMES,
    check_placeholders,
)

Method = Literal["get", "post", "put"]
Format = Literal["json", "form"]


@dataclass(frozen=True)
class Endpoint:
    """The URL and format of one kind of request."""

    url: str = field(metadata={"help": "http or https URL, with ${...} in path and query"})
    method: Method = setting("post", "get (values go into the query), post or put")
    format: Format = setting("json", "format of the body: json or form")
    # Headers and body may contain credentials, so repr() must not show them.
    headers: Mapping[str, str] = field(
        default=None,  # type: ignore[arg-type]
        repr=False,
        metadata={"help": "headers, with ${...} in their values"},
    )
    body: Mapping[str, str] | None = field(
        default=None,
        repr=False,
        metadata={
            "help": "members of the body, with ${...} in their values; default: the contract's"
        },
    )


@dataclass(frozen=True)
class AuthHttpConfig:
    """Settings of `use: auth_http`. At least one of `authenticate` and `authorize` is required."""

    contract: Literal["hookmq", "emqx", "mosquitto-go-auth"] = setting(
        "hookmq", "form of requests and answers: hookmq, emqx or mosquitto-go-auth"
    )
    authenticate: Endpoint | None = setting(None, "asked whether a client may connect")
    authorize: Endpoint | None = setting(
        None, "asked whether a client may publish or subscribe, if it has no permissions yet"
    )
    superuser: Endpoint | None = setting(
        None, "mosquitto-go-auth only: asked whether an accepted client may do everything"
    )
    timeout: Seconds = setting(2.0, "time limit of one request", minimum=0.001, maximum=300)
    retries: int = setting(1, "attempts after the first one failed", minimum=0, maximum=10)
    retry_delay: Seconds = setting(
        0.1,
        "approximate delay before the first retry; doubles with each further one",
        minimum=0,
        maximum=60,
    )
    max_parallel: int = setting(
        50, "requests at a time, and connections kept", minimum=1, maximum=10000
    )
    max_waiting: int = setting(
        1000, "requests that wait for a turn; further ones are undecided", minimum=0
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
    cache: Seconds = setting(
        30.0, "how long an allow is valid, unless the answer says; 0 disables caching"
    )
    negative_cache: Seconds = setting(3.0, "how long a deny is valid, unless the answer says")
    cache_size: int = setting(10000, "cached answers", minimum=0)
    max_answer: Size = setting(65536, "largest answer", minimum=1)
    plain_http: bool = setting(
        False, "allow http to other machines; passwords then cross the network unencrypted"
    )
    tls: TlsConfig | None = setting(None, "files for https")

    def __post_init__(self) -> None:
        if self.authenticate is None and self.authorize is None:
            raise ConfigError("expected authenticate, authorize or both")
        if self.superuser is not None and not CONTRACTS[self.contract].superuser:
            raise ConfigError(f"superuser: not part of the contract {self.contract}")
        if self.superuser is not None and self.authenticate is None:
            raise ConfigError("superuser: authenticate is required with it")
        for name, known in (
            ("authenticate", CONNECT_NAMES),
            ("superuser", SUPERUSER_NAMES),
            ("authorize", AUTHORIZE_NAMES),
        ):
            endpoint = getattr(self, name)
            if endpoint is not None:
                _check(name, endpoint, known, self.plain_http)

    @property
    def patience(self) -> float:
        """The longest time, in seconds, that a decision may take. It starts with the decision's first request."""
        pauses = self.retry_delay * (2.0**self.retries - 1)  # each is at most 1.5 times as long
        return (self.retries + 1) * self.timeout + 1.5 * pauses


def _check(name: str, endpoint: Endpoint, known: frozenset[str], plain_http: bool) -> None:
    key = f"{name}.url"
    check_service_url(key, endpoint.url, "headers")
    if not plain_http and clear_text_host(endpoint.url):
        raise ConfigError(
            f"{key}: http to another machine sends passwords unencrypted",
            hint="use https, or set plain_http: true if the network is trusted",
        )
    check_placeholders(Template(endpoint.url).names, known, key)
    for part in ("headers", "body"):
        for member, text in (getattr(endpoint, part) or {}).items():
            check_placeholders(Template(text).names, known, f"{name}.{part}.{member}")
