"""What ``config:`` of the plugin may hold."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from hookmq.plugin import ConfigError, Seconds, Size, setting

from hookmq_auth_jwt.keys import Algorithm
from hookmq_auth_jwt.template import USERNAME, Template

_KINDS: Final = ("secret", "pem", "jwks_file", "jwks_url")
_CHOICES: Final[Mapping[str, Any]] = {
    "token_in": ("password", "username", "auth"),
    "on_expiry": ("maximum_connect_time", "not_authorized"),
    "on_key_removed": ("keep", "disconnect"),
}
Text = str | tuple[str, ...]


def _secret(help: str) -> Any:
    return field(default=None, repr=False, metadata={"help": help})


@dataclass(frozen=True)
class KeyConfig:
    """``keys[]:`` where keys are, and whose tokens they verify. Exactly one of the first four is given."""

    secret: str | None = _secret("a secret shared with whoever signs; by $env or $file")
    pem: Path | None = setting(None, "a PEM file of public keys or certificates")
    jwks_file: Path | None = setting(None, "a file with a JWK Set")
    jwks_url: str = setting("", "where a JWK Set is fetched from")
    secret_encoding: Literal["text", "base64"] = setting("text", "how `secret` is written")
    kid: str = setting("", "the name of a secret or PEM key; tokens that name another do not match")
    issuer: str = setting("", "the only issuer whose tokens these keys verify; empty for any")
    algorithms: tuple[Algorithm, ...] = setting(
        (), "what these keys may be used with; none given is what fits the key", nonempty=True
    )

    def __post_init__(self) -> None:
        for name in ("pem", "jwks_file"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, Path(getattr(self, name)))
        object.__setattr__(self, "algorithms", tuple(self.algorithms))
        _check_algorithms(self.algorithms)
        given = [name for name in _KINDS if getattr(self, name)]
        if len(given) != 1:
            raise ConfigError(
                f"{len(given)} places for keys in one entry: give one of {', '.join(_KINDS)}"
            )
        if self.kid and self.kind in ("jwks_file", "jwks_url"):
            raise ConfigError("kid: the keys of a JWK Set have their names in it")
        if self.secret_encoding not in ("text", "base64"):
            raise ConfigError(f"secret_encoding: {self.secret_encoding!r} is not text or base64")
        if self.jwks_url:
            _check_url(self.jwks_url)

    @property
    def kind(self) -> str:
        """Which of the four it is."""
        return next(name for name in _KINDS if getattr(self, name))

    @property
    def label(self) -> str:
        """Its name in logs and metrics: nothing secret, no query."""
        if self.jwks_url:
            parts = urlsplit(self.jwks_url)
            return f"{parts.scheme}://{parts.netloc}{parts.path}"
        if self.secret:
            return f"secret {self.kid}".strip()
        return str(self.pem or self.jwks_file)


@dataclass(frozen=True)
class FetchConfig:
    """``jwks:`` how JWK Sets are fetched from URLs."""

    refresh: Seconds = setting(300.0, "how often keys are fetched again", minimum=1)
    max_age: Seconds = setting(
        86400.0,
        "how long fetched keys are used when fetching fails; then nobody is let in",
        minimum=1,
    )
    miss_interval: Seconds = setting(
        10.0, "shortest time between fetches that tokens with an unknown key cause", minimum=1
    )
    timeout: Seconds = setting(4.0, "for one fetch, redirects included", minimum=0.1, maximum=20)
    max_size: Size = setting(262144, "largest JWK Set", minimum=256, maximum=16777216)
    max_keys: int = setting(100, "most keys in a JWK Set", minimum=1, maximum=10000)
    max_redirects: int = setting(2, "redirects followed in one fetch", maximum=10)
    max_waiting: int = setting(
        1000, "clients that wait for one fetch; others are told to come later", minimum=1
    )
    ca_file: Path | None = setting(
        None, "PEM file of the authorities that vouch for the server; none is the system's"
    )
    insecure_http: bool = setting(
        False, "allow http:// to other machines: whoever listens in may forge"
    )
    required: bool = setting(
        False,
        "wait for the keys at start, and refuse to start without; false: start, and deny until they are there",
    )

    def __post_init__(self) -> None:
        if isinstance(self.ca_file, str):
            object.__setattr__(self, "ca_file", Path(self.ca_file))
        if self.max_age < self.refresh:
            raise ConfigError(
                "max_age: shorter than refresh, so that keys would end between fetches"
            )


@dataclass(frozen=True)
class JwtConfig:
    """Which tokens are accepted, and what becomes of their claims."""

    secret: str | None = _secret("as keys[].secret, for a single place of keys")
    pem: Path | None = setting(None, "as keys[].pem")
    jwks_file: Path | None = setting(None, "as keys[].jwks_file")
    jwks_url: str = setting("", "as keys[].jwks_url")
    keys: tuple[KeyConfig, ...] = setting((), "places of keys, when there are several")
    algorithms: tuple[Algorithm, ...] = setting(
        (), "algorithms that are allowed at all; none given is every one but none", nonempty=True
    )
    jwks: FetchConfig = field(
        default_factory=FetchConfig, metadata={"help": "how JWK Sets are fetched"}
    )
    watch: Seconds = setting(
        5.0,
        "how often files are looked at; a change is taken when it stood still for as long; 0: only at reload",
    )
    token_in: Literal["password", "username", "auth"] = setting(
        "password", "where CONNECT has the token; auth: only enhanced authentication is accepted"
    )
    method: str = setting(
        "JWT", "authentication method of MQTT 5 whose data is the token; empty for none"
    )
    optional: bool = setting(
        False, "leave clients without a token to other plugins; a bad token is refused all the same"
    )
    max_size: Size = setting(8192, "largest token", minimum=64, maximum=65535)
    issuer: Text = setting((), "accepted `iss`; none given is any", nonempty=True)
    audience: Text = setting(
        (), "accepted `aud`; none given refuses tokens that name one, '*' takes any", nonempty=True
    )
    typ: Text = setting(
        (), "accepted `typ` in the header, such as at+jwt; none given is any", nonempty=True
    )
    leeway: Seconds = setting(5.0, "how far clocks may differ", maximum=3600)
    require_exp: bool = setting(True, "refuse tokens that never expire")
    issued_within: Seconds = setting(
        0.0, "refuse tokens issued longer ago than this; 0 does not ask"
    )
    required: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"help": "claims and the value, or the list of values, that each must have"},
    )
    identity: str = setting("${sub}", "who the client is")
    groups: Text = setting("groups", "claims with the client's groups, for other plugins")
    acl: str = setting("acl", "claim with permissions; empty for none")
    require_acl: bool = setting(False, "refuse tokens without permissions")
    max_rules: int = setting(1000, "most rules in one token", minimum=1, maximum=100000)
    limits: str = setting("limits", "claim with limits; empty for none")
    on_expiry: Literal["maximum_connect_time", "not_authorized"] = setting(
        "maximum_connect_time", "what the client is told when its token ends: 0xA0 or 0x87"
    )
    on_key_removed: Literal["keep", "disconnect"] = setting(
        "keep", "what becomes of clients whose token's key is withdrawn"
    )

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("issuer", "audience", "typ", "groups"):
            value = getattr(self, name)
            put(self, name, (value,) if isinstance(value, str) and value else tuple(value))
        put(self, "algorithms", tuple(self.algorithms))
        put(self, "keys", tuple(_made(KeyConfig, one) for one in self.keys))
        put(self, "jwks", _made(FetchConfig, self.jwks))
        _check_algorithms(self.algorithms)
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}: {getattr(self, name)!r} is not {' or '.join(known)}")
        sources = self.sources
        if not sources:
            raise ConfigError(f"no keys: give one of {', '.join(_KINDS)}, or keys")
        for one in sources:
            if one.jwks_url and not (self.jwks.insecure_http or is_safe(one.jwks_url)):
                raise ConfigError(
                    f"jwks_url: {one.label}: whoever listens in on http may forge tokens",
                    hint="use https, or set jwks.insecure_http: true",
                )
        if self.token_in == "auth" and not self.method:
            raise ConfigError("method: with token_in: auth it names the method")
        if "*" in self.audience and len(self.audience) > 1:
            raise ConfigError("audience: '*' stands for every audience, and alone")
        templates = [Template(self.identity, "identity", claims=True)]
        if not self.identity:
            raise ConfigError("identity: empty, so that nobody would be anybody")
        for name, wanted in self.required.items():
            values = wanted if isinstance(wanted, list | tuple) else [wanted]
            if not values or not all(isinstance(one, str | int | float) for one in values):
                raise ConfigError(
                    f"required: {name}: a text, number, true or false, or a list of them"
                )
            templates += [Template(one, "required") for one in values if isinstance(one, str)]
        if self.token_in == "username" and any(USERNAME in one.names for one in templates):
            raise ConfigError("token_in: the user name is the token, so ${username} names nobody")
        if self.require_acl and not self.acl:
            raise ConfigError("require_acl: acl names no claim")

    @property
    def sources(self) -> tuple[KeyConfig, ...]:
        """Every place of keys."""
        return tuple(one for _, one in self.located)

    @property
    def located(self) -> tuple[tuple[tuple[str | int, ...], KeyConfig], ...]:
        """Every place of keys, after the path to it: empty for the one whose keys are the plugin's own."""
        given = {name: getattr(self, name) for name in _KINDS if getattr(self, name)}
        own = [((), KeyConfig(**{name: value})) for name, value in given.items()]
        return (*own, *((("keys", index), one) for index, one in enumerate(self.keys)))

    def allowed(self, source: KeyConfig) -> frozenset[str]:
        """The algorithms that the keys of a place may be used with, as far as they fit."""
        all_ = frozenset(self.algorithms or get_args(Algorithm))
        return all_.intersection(source.algorithms) if source.algorithms else all_


def _made(kind: Any, value: Any) -> Any:
    """For whoever embeds it: a mapping as the dataclass."""
    return kind(**value) if isinstance(value, dict) else value


def _check_algorithms(given: tuple[str, ...]) -> None:
    for name in given:
        if name not in get_args(Algorithm):
            raise ConfigError(
                f"algorithms: {name!r} is not one of {', '.join(get_args(Algorithm))}"
            )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - it raises for a port that is none
    except ValueError:
        raise ConfigError("jwks_url: no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("jwks_url: not the https:// URL of a JWK Set")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("jwks_url: credentials do not belong into a URL: it would show in logs")


def is_safe(url: str) -> bool:
    """Whether nobody between can change what comes from `url`: https, or this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return True
    host = parts.hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
