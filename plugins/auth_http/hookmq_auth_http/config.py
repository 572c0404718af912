"""What an operator says: the service, its contract, and how patient to be with it."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from hookmq.plugin import ConfigError, Seconds, Size, setting

from hookmq_auth_http import template
from hookmq_auth_http.answers import CONTRACTS

Method = Literal["get", "post", "put"]
Format = Literal["json", "form"]


@dataclass(frozen=True)
class Endpoint:
    """One question's address and shape."""

    url: str = field(metadata={"help": "http or https, with ${...} in path and query"})
    method: Method = setting("post", "get (values go into the query), post or put")
    format: Format = setting("json", "of the body: json or form")
    # Not in a repr: they may hold what the service knows us by.
    headers: Mapping[str, str] = field(
        default=None,  # type: ignore[arg-type]
        repr=False,
        metadata={"help": "headers, with ${...} in their values"},
    )
    body: Mapping[str, str] | None = field(
        default=None,
        repr=False,
        metadata={
            "help": "members of the body, with ${...} in their values; the contract's own if left out",
        },
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
class AuthHttpConfig:
    """At least one of `authenticate` and `authorize`."""

    contract: Literal["hookmq", "emqx", "mosquitto-go-auth"] = setting(
        "hookmq", "how requests and answers look: hookmq, emqx or mosquitto-go-auth"
    )
    authenticate: Endpoint | None = setting(None, "who is asked whether a client may connect")
    authorize: Endpoint | None = setting(
        None, "who is asked whether it may publish or subscribe, unless the first answer said that"
    )
    superuser: Endpoint | None = setting(
        None,
        "mosquitto-go-auth only: who is asked whether a client that may connect may do everything",
    )
    timeout: Seconds = setting(2.0, "how long one request may take", minimum=0.001, maximum=300)
    retries: int = setting(1, "further requests after one that failed", minimum=0, maximum=10)
    retry_delay: Seconds = setting(
        0.1,
        "about how long before the first of them; twice as long before each next",
        minimum=0,
        maximum=60,
    )
    max_parallel: int = setting(
        50, "requests at a time, and connections kept", minimum=1, maximum=10000
    )
    max_waiting: int = setting(
        1000, "requests that wait for their turn; more are not decided", minimum=0
    )
    breaker_failures: int = setting(
        5, "failures in a row after which the service is left alone", minimum=1
    )
    breaker_pause: Seconds = setting(
        5.0, "how long, at first; up to eight times that", minimum=0.001, maximum=3600
    )
    cache: Seconds = setting(30.0, "how long a yes holds, unless the answer says; 0 for not at all")
    negative_cache: Seconds = setting(3.0, "how long a no holds, unless the answer says")
    cache_size: int = setting(10000, "answers kept", minimum=0)
    max_answer: Size = setting(65536, "largest answer that is read", minimum=1)
    plain_http: bool = setting(
        False, "allow http to other machines: passwords then cross the network unprotected"
    )
    tls: TlsConfig | None = setting(None, "of https")

    def __post_init__(self) -> None:
        if self.authenticate is None and self.authorize is None:
            raise ConfigError("neither authenticate nor authorize: there is nobody to ask")
        if self.superuser is not None and not CONTRACTS[self.contract].superuser:
            raise ConfigError(f"superuser: the contract {self.contract} has no such question")
        if self.superuser is not None and self.authenticate is None:
            raise ConfigError("superuser: it is asked after authenticate, which is missing")
        for name, known in (
            ("authenticate", template.CONNECT_NAMES),
            ("superuser", template.CONNECT_NAMES - {"password"}),
            ("authorize", template.AUTHORIZE_NAMES),
        ):
            endpoint = getattr(self, name)
            if endpoint is not None:
                _check(name, endpoint, known, self.plain_http)
        if self.tls is not None and self.tls.key_file is not None and self.tls.cert_file is None:
            raise ConfigError("tls.key_file: there is no tls.cert_file that it belongs to")

    @property
    def patience(self) -> float:
        """Seconds that one decision takes at most."""
        pauses = self.retry_delay * (2.0**self.retries - 1)  # each at most 1.5 times what it says
        return (self.retries + 1) * self.timeout + 1.5 * pauses


def _check(name: str, endpoint: Endpoint, known: frozenset[str], plain_http: bool) -> None:
    where = f"{name}.url"
    try:
        parts = urlsplit(endpoint.url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{where}: not the URL of a service: http://... or https://...")
    if "$" in parts.netloc:
        raise ConfigError(
            f"{where}: a client must not choose the host: ${{...}} is for path and query"
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{where}: a password in a URL ends up in logs: use headers")
    if parts.scheme == "http" and not plain_http and not _is_loopback(host):
        raise ConfigError(
            f"{where}: http to another machine shows passwords to the network",
            hint="use https, or say plain_http: true where that network may see them",
        )
    template.check(endpoint.url, known, where)
    for part in ("headers", "body"):
        for key, text in (getattr(endpoint, part) or {}).items():
            template.check(text, known, f"{name}.{part}.{key}")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
