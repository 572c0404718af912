"""Check a token's claims, and read the client's identity, groups, permissions and limits from them."""

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from hookmq.plugin import ConfigError, Limits
from hookmq_toolkit.claims import MISSING, find_claim
from hookmq_toolkit.rules import Rules, rules_from_lists

from hookmq_auth_jwt.config import JwtConfig
from hookmq_auth_jwt.refusal import NOT_ALLOWED, Refused
from hookmq_auth_jwt.template import ClaimTemplate

_LATEST: Final = 253402300799
"""The last second of the year 9999, the latest time accepted."""
_LIMITS: Final = frozenset(Limits.__slots__)
_MAX_LIMIT: Final = (1 << 32) - 1
_MAX_IDENTITY: Final = 1024
_COMPILED: Final = 256
"""Maximum number of compiled permissions to cache. Each is compiled from text that is no longer than a token."""


class Checker:
    """The checks that a configuration requires. The constructor raises ConfigError for invalid templates."""

    __slots__ = (
        "_audience",
        "_compiled",
        "_config",
        "_identity",
        "_issuers",
        "_required",
        "_types",
    )

    def __init__(self, config: JwtConfig) -> None:
        self._config = config
        self._compiled = lru_cache(_COMPILED)(self._compile)
        self._issuers = frozenset(config.issuer)
        self._audience = frozenset(config.audience)
        self._types = frozenset(_media_type(one) for one in config.typ)
        self._identity = ClaimTemplate(config.identity, "identity", claims=True)
        self._required = {
            name: [
                ClaimTemplate(one, "required") if isinstance(one, str) else one
                for one in (wanted if isinstance(wanted, list | tuple) else [wanted])
            ]
            for name, wanted in config.required.items()
        }

    def problems(
        self,
        header: Mapping[str, Any],
        claims: Mapping[str, Any],
        client_id: str,
        username: str | None,
        now: float,
    ) -> Iterator[Refused]:
        """Yield every problem, in the order in which the checks run. `now` is Unix time in seconds."""
        if self._types and _media_type(header.get("typ")) not in self._types:
            yield Refused("type", "typ is not accepted", NOT_ALLOWED)
        yield from self._times(claims, now)
        if self._issuers:
            issuer = claims.get("iss")
            if not isinstance(issuer, str) or issuer not in self._issuers:
                yield Refused("issuer", "iss is not accepted", NOT_ALLOWED)
        yield from self._audiences(claims)
        for name, wanted in self._required.items():
            found = find_claim(claims, name)
            if found is MISSING:
                yield Refused("claim", f"the claim {name} is missing", NOT_ALLOWED)
            elif not _holds(found, wanted, client_id, username):
                yield Refused(
                    "claim", f"the claim {name} does not have the required value", NOT_ALLOWED
                )

    def _times(self, claims: Mapping[str, Any], now: float) -> Iterator[Refused]:
        config = self._config
        leeway = config.leeway
        for name in ("exp", "nbf", "iat"):
            if name in claims and not _is_time(claims[name]):
                yield Refused("malformed", f"{name} is not a valid time")
                return
        expires, begins, issued = claims.get("exp"), claims.get("nbf"), claims.get("iat")
        if expires is None:
            if config.require_exp:
                yield Refused("expired", "exp is missing, and require_exp is set", NOT_ALLOWED)
        elif expires + leeway <= now:
            yield Refused("expired", f"expired {now - expires:.0f} s ago")
        if begins is not None and begins - leeway > now:
            yield Refused("not_yet", f"valid in {begins - now:.0f} s")
        if issued is not None and issued - leeway > now:
            yield Refused("issued", f"iat is {issued - now:.0f} s in the future")
        if config.issued_within:
            if issued is None:
                yield Refused("issued", "iat is missing, and issued_within is set", NOT_ALLOWED)
            elif issued + config.issued_within + leeway < now:
                yield Refused("issued", f"issued {now - issued:.0f} s ago")

    def _audiences(self, claims: Mapping[str, Any]) -> Iterator[Refused]:
        if "*" in self._audience:
            return
        given = claims.get("aud", MISSING)
        if given is MISSING:
            if self._audience:
                yield Refused("audience", "aud is missing", NOT_ALLOWED)
            return
        named = [given] if isinstance(given, str) else given
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            yield Refused("malformed", "aud is not a string or a list of strings")
        elif self._audience.isdisjoint(named):
            # RFC 7519, 4.1.3. This applies even if `audience` is empty: the token is for another service.
            yield Refused("audience", "aud is not accepted", NOT_ALLOWED)

    def identity(self, claims: Mapping[str, Any], client_id: str, username: str | None) -> str:
        """Return the client's identity. Raises Refused."""
        found = self._identity.fill(client_id, username, claims)
        if not found or len(found) > _MAX_IDENTITY or not found.isprintable():
            raise Refused(
                "identity", f"{self._identity.text} is missing or not a valid name", NOT_ALLOWED
            )
        return found

    def groups(self, claims: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return the client's groups, or None if the token has no such claim. Raises Refused for a malformed claim."""
        found: list[str] = []
        named = False
        for path in self._config.groups:
            value = find_claim(claims, path)
            if value is MISSING or value is None:
                continue
            named = True
            values = [value] if isinstance(value, str) else value
            if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
                raise Refused("groups", f"the claim {path} is not a list of strings", NOT_ALLOWED)
            found += values
        return tuple(dict.fromkeys(found)) if named else None

    def rules(self, claims: Mapping[str, Any]) -> Rules | None:
        """Return the permissions, or None if the token has no such claim. Raises Refused for malformed permissions."""
        config = self._config
        value = find_claim(claims, config.acl) if config.acl else MISSING
        if value is MISSING:
            if config.require_acl:
                raise Refused("acl", f"the claim {config.acl} is missing", NOT_ALLOWED)
            return None
        return self.rules_of(value)

    def rules_of(self, value: Any) -> Rules:
        """Return the permissions that a claim's value grants. Raises Refused."""
        try:
            # Many tokens have the same permissions, so these are compiled only once.
            return self._compiled(json.dumps(value))
        except ConfigError as error:
            raise Refused("acl", str(error), NOT_ALLOWED) from None

    def _compile(self, text: str) -> Rules:
        config = self._config
        return Rules(rules_from_lists(json.loads(text), f"claim {config.acl}", config.max_rules))

    def limits(self, claims: Mapping[str, Any]) -> Limits | None:
        """Return the limits, or None if the token has no such claim. Raises Refused for malformed limits."""
        path = self._config.limits
        value = find_claim(claims, path) if path else MISSING
        if value is MISSING or value is None:
            return None
        if not isinstance(value, Mapping):
            raise Refused("limits", f"the claim {path} is not an object", NOT_ALLOWED)
        for name, number in value.items():
            if name not in _LIMITS:
                raise Refused(
                    "limits", f"the claim {path} has an unknown limit {name[:40]!r}", NOT_ALLOWED
                )
            if type(number) is not int or not 0 <= number <= _MAX_LIMIT:
                raise Refused(
                    "limits", f"the limit {name} is not a whole number of 0 or more", NOT_ALLOWED
                )
        return Limits(**value)


def _is_time(value: Any) -> bool:
    kind = type(value)  # a bool is an int, but not a time
    return (kind is int or (kind is float and math.isfinite(value))) and 0 <= value <= _LATEST


def _media_type(value: Any) -> str:
    """Return the type in lower case, without the prefix application/ (RFC 7515, 4.1.9)."""
    return value.lower().removeprefix("application/") if isinstance(value, str) else ""


def _holds(found: Any, wanted: list[Any], client_id: str, username: str | None) -> bool:
    """Return whether a claim equals or contains one of `wanted`. Note that 1, "1" and true are different values."""
    values = found if isinstance(found, list) else [found]
    for one in wanted:
        value = one.fill(client_id, username, {}) if isinstance(one, ClaimTemplate) else one
        if value is None:
            continue  # the client has no user name
        if any(type(have) is type(value) and have == value for have in values):
            return True
    return False
