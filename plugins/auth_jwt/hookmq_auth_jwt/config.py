"""The plugin's settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.service_url import check_service_url, clear_text_host

from hookmq_auth_jwt.keys import Algorithm
from hookmq_auth_jwt.template import USERNAME, ClaimTemplate

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
    """``keys[]:`` one key source. Exactly one of the first four settings is required."""

    secret: str | None = _secret("secret shared with the signer; by $env or $file")
    pem: Path | None = setting(None, "PEM file of public keys or certificates")
    jwks_file: Path | None = setting(None, "file with a JWK Set")
    jwks_url: str = setting("", "URL of a JWK Set")
    secret_encoding: Literal["text", "base64"] = setting("text", "encoding of `secret`")
    kid: str = setting("", "name of a secret or PEM key; tokens that name another do not match")
    issuer: str = setting("", "the only issuer whose tokens these keys verify; default: any")
    algorithms: tuple[Algorithm, ...] = setting(
        (), "algorithms that these keys may be used with; default: all that fit", nonempty=True
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
                f"{len(given)} sources of keys in one entry, expected one of {', '.join(_KINDS)}"
            )
        if self.kid and self.kind in ("jwks_file", "jwks_url"):
            raise ConfigError("kid: not allowed with a JWK Set, whose keys have their own names")
        if self.secret_encoding not in ("text", "base64"):
            raise ConfigError(
                f"secret_encoding: expected text or base64, found {self.secret_encoding!r}"
            )
        if self.jwks_url:
            check_service_url("jwks_url", self.jwks_url)

    @property
    def kind(self) -> str:
        """The name of the setting in use."""
        return next(name for name in _KINDS if getattr(self, name))

    @property
    def label(self) -> str:
        """The name of this source in logs and metrics, without secrets or a URL's query."""
        if self.jwks_url:
            parts = urlsplit(self.jwks_url)
            return f"{parts.scheme}://{parts.netloc}{parts.path}"
        if self.secret:
            return f"secret {self.kid}".strip()
        return str(self.pem or self.jwks_file)


@dataclass(frozen=True)
class FetchConfig:
    """``jwks:`` how JWK Sets are fetched."""

    refresh: Seconds = setting(300.0, "how often keys are fetched", minimum=1)
    max_age: Seconds = setting(
        86400.0,
        "how long keys stay valid while fetching fails; then all tokens are refused",
        minimum=1,
    )
    miss_interval: Seconds = setting(
        10.0, "shortest time between fetches that an unknown key causes", minimum=1
    )
    timeout: Seconds = setting(
        4.0, "time limit of a fetch, with redirects", minimum=0.1, maximum=20
    )
    max_size: Size = setting(262144, "largest JWK Set", minimum=256, maximum=16777216)
    max_keys: int = setting(100, "most keys in a JWK Set", minimum=1, maximum=10000)
    max_redirects: int = setting(2, "redirects followed in one fetch", maximum=10)
    max_waiting: int = setting(
        1000, "clients that wait for one fetch; others are refused at once", minimum=1
    )
    ca_file: Path | None = setting(
        None, "PEM file of the authorities to trust; default: those of the system"
    )
    insecure_http: bool = setting(
        False, "allow http to other machines; an attacker on the network can then forge tokens"
    )
    required: bool = setting(
        False, "at start, wait for keys and refuse to start without; false: deny until they come"
    )

    def __post_init__(self) -> None:
        if isinstance(self.ca_file, str):
            object.__setattr__(self, "ca_file", Path(self.ca_file))
        if self.max_age < self.refresh:
            raise ConfigError(
                "max_age: expected at least refresh, otherwise keys expire between fetches"
            )


@dataclass(frozen=True)
class JwtConfig:
    """Settings that determine which tokens are accepted and how their claims are used."""

    secret: str | None = _secret("as keys[].secret, for a single source of keys")
    pem: Path | None = setting(None, "as keys[].pem")
    jwks_file: Path | None = setting(None, "as keys[].jwks_file")
    jwks_url: str = setting("", "as keys[].jwks_url")
    keys: tuple[KeyConfig, ...] = setting((), "sources of keys, if there are several")
    algorithms: tuple[Algorithm, ...] = setting(
        (), "allowed algorithms; default: all but none", nonempty=True
    )
    jwks: FetchConfig = field(
        default_factory=FetchConfig, metadata={"help": "how JWK Sets are fetched"}
    )
    watch: Seconds = setting(
        5.0,
        "how often files are checked; a change is read once the file stays the same for that long; 0: only at reload",
    )
    token_in: Literal["password", "username", "auth"] = setting(
        "password", "field of CONNECT with the token; auth: accept enhanced authentication only"
    )
    method: str = setting(
        "JWT", "authentication method (MQTT 5) whose data is the token; empty for none"
    )
    optional: bool = setting(
        False, "abstain for clients without a token; invalid tokens are still refused"
    )
    max_size: Size = setting(8192, "largest token", minimum=64, maximum=65535)
    issuer: Text = setting((), "accepted `iss`; default: any", nonempty=True)
    audience: Text = setting(
        (), "accepted `aud`; '*' accepts any; default: only tokens without `aud`", nonempty=True
    )
    typ: Text = setting(
        (), "accepted `typ` in the header, such as at+jwt; default: any", nonempty=True
    )
    leeway: Seconds = setting(5.0, "how far clocks may differ", maximum=3600)
    require_exp: bool = setting(True, "refuse tokens that never expire")
    issued_within: Seconds = setting(
        0.0, "refuse tokens issued longer ago than this; 0 turns the check off"
    )
    required: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"help": "claims, and the value or list of values each must have"},
    )
    identity: str = setting("${sub}", "identity of the client, a template over claims")
    groups: Text = setting("groups", "claims with the client's groups")
    acl: str = setting("acl", "claim with permissions; empty for none")
    require_acl: bool = setting(False, "refuse tokens without permissions")
    max_rules: int = setting(1000, "most rules in one token", minimum=1, maximum=100000)
    limits: str = setting("limits", "claim with limits; empty for none")
    on_expiry: Literal["maximum_connect_time", "not_authorized"] = setting(
        "maximum_connect_time", "reason code of DISCONNECT when the token expires: 0xA0 or 0x87"
    )
    on_key_removed: Literal["keep", "disconnect"] = setting(
        "keep", "keep or disconnect clients whose token was verified by a removed key"
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
                found = getattr(self, name)
                raise ConfigError(f"{name}: expected {' or '.join(known)}, found {found!r}")
        sources = self.sources
        if not sources:
            raise ConfigError(f"expected one of {', '.join(_KINDS)}, or keys")
        for one in sources:
            if one.jwks_url and not self.jwks.insecure_http and clear_text_host(one.jwks_url):
                raise ConfigError(
                    f"jwks_url: {one.label}: over http, an attacker on the network can forge tokens",
                    hint="use https, or set jwks.insecure_http: true",
                )
        if self.token_in == "auth" and not self.method:
            raise ConfigError("method: required with token_in: auth")
        if "*" in self.audience and len(self.audience) > 1:
            raise ConfigError("audience: '*' accepts any audience and must be the only entry")
        templates = [ClaimTemplate(self.identity, "identity", claims=True)]
        if not self.identity:
            raise ConfigError("identity: must not be empty")
        for name, wanted in self.required.items():
            values = wanted if isinstance(wanted, list | tuple) else [wanted]
            if not values or not all(isinstance(one, str | int | float) for one in values):
                raise ConfigError(
                    f"required: {name}: expected a text, number or boolean, or a list of them"
                )
            templates += [ClaimTemplate(one, "required") for one in values if isinstance(one, str)]
        if self.token_in == "username" and any(USERNAME in one.names for one in templates):
            raise ConfigError("token_in: the user name is the token, so ${username} cannot be used")
        if self.require_acl and not self.acl:
            raise ConfigError("require_acl: acl is empty")

    @property
    def sources(self) -> tuple[KeyConfig, ...]:
        """All key sources."""
        return tuple(one for _, one in self.located)

    @property
    def located(self) -> tuple[tuple[tuple[str | int, ...], KeyConfig], ...]:
        """All key sources, each with the path of its settings. The path is empty if the source is set in the plugin's
        own settings.
        """
        given = {name: getattr(self, name) for name in _KINDS if getattr(self, name)}
        own = [((), KeyConfig(**{name: value})) for name, value in given.items()]
        return (*own, *((("keys", index), one) for index, one in enumerate(self.keys)))

    def allowed(self, source: KeyConfig) -> frozenset[str]:
        """Return the algorithms that are allowed for a source's keys. A key can use only those that suit its type."""
        all_ = frozenset(self.algorithms or get_args(Algorithm))
        return all_.intersection(source.algorithms) if source.algorithms else all_


def _made(kind: Any, value: Any) -> Any:
    """Convert a mapping to the dataclass `kind`. This is for settings given in code."""
    return kind(**value) if isinstance(value, dict) else value


def _check_algorithms(given: tuple[str, ...]) -> None:
    for name in given:
        if name not in get_args(Algorithm):
            raise ConfigError(
                f"algorithms: {name!r} is not one of {', '.join(get_args(Algorithm))}"
            )
