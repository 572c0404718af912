"""What claims must say, and what they are turned into."""

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from hookmq.plugin import ConfigError, Limits, Rules, rules_from_lists

from hookmq_auth_jwt.config import JwtConfig
from hookmq_auth_jwt.refusal import NOT_ALLOWED, Refused
from hookmq_auth_jwt.template import MISSING, Template, find

_LATEST: Final = 253402300799
"""The last second of the year 9999: what is later is no time."""
_LIMITS: Final = frozenset(Limits.__slots__)
_MAX_LIMIT: Final = (1 << 32) - 1
_MAX_IDENTITY: Final = 1024
_COMPILED: Final = 256
"""Permissions kept compiled; each is at most as long as a token."""


class Checker:
    """The checks of one configuration. Raises ConfigError for templates that cannot be read."""

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
        self._identity = Template(config.identity, "identity", claims=True)
        self._required = {
            name: [
                Template(one, "required") if isinstance(one, str) else one
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
        """Everything that is wrong, in the order in which it is looked at. `now` is epoch seconds."""
        if self._types and _media_type(header.get("typ")) not in self._types:
            yield Refused("type", "typ is not one that is accepted", NOT_ALLOWED)
        yield from self._times(claims, now)
        if self._issuers:
            issuer = claims.get("iss")
            if not isinstance(issuer, str) or issuer not in self._issuers:
                yield Refused("issuer", "iss is not one that is accepted", NOT_ALLOWED)
        yield from self._audiences(claims)
        for name, wanted in self._required.items():
            found = find(claims, name)
            if found is MISSING:
                yield Refused("claim", f"the claim {name} is missing", NOT_ALLOWED)
            elif not _holds(found, wanted, client_id, username):
                yield Refused(
                    "claim", f"the claim {name} has not the value it must have", NOT_ALLOWED
                )

    def _times(self, claims: Mapping[str, Any], now: float) -> Iterator[Refused]:
        config = self._config
        leeway = config.leeway
        for name in ("exp", "nbf", "iat"):
            if name in claims and not _is_time(claims[name]):
                yield Refused("malformed", f"{name} is no time")
                return
        expires, begins, issued = claims.get("exp"), claims.get("nbf"), claims.get("iat")
        if expires is None:
            if config.require_exp:
                yield Refused("expired", "there is no exp, and require_exp wants one", NOT_ALLOWED)
        elif expires + leeway <= now:
            yield Refused("expired", f"it ended {now - expires:.0f} s ago")
        if begins is not None and begins - leeway > now:
            yield Refused("not_yet", f"it begins in {begins - now:.0f} s")
        if issued is not None and issued - leeway > now:
            yield Refused("issued", f"it will be issued in {issued - now:.0f} s")
        if config.issued_within:
            if issued is None:
                yield Refused("issued", "there is no iat, and issued_within wants one", NOT_ALLOWED)
            elif issued + config.issued_within + leeway < now:
                yield Refused("issued", f"it was issued {now - issued:.0f} s ago")

    def _audiences(self, claims: Mapping[str, Any]) -> Iterator[Refused]:
        if "*" in self._audience:
            return
        given = claims.get("aud", MISSING)
        if given is MISSING:
            if self._audience:
                yield Refused("audience", "there is no aud", NOT_ALLOWED)
            return
        named = [given] if isinstance(given, str) else given
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            yield Refused("malformed", "aud is neither a text nor a list of texts")
        elif self._audience.isdisjoint(named):
            # RFC 7519 4.1.3, also where nobody said who we are
            yield Refused("audience", "aud names others", NOT_ALLOWED)

    def identity(self, claims: Mapping[str, Any], client_id: str, username: str | None) -> str:
        """Who it is. Raises Refused."""
        found = self._identity.fill(client_id, username, claims)
        if not found or len(found) > _MAX_IDENTITY or not found.isprintable():
            raise Refused("identity", f"{self._identity.text} is missing, or no name", NOT_ALLOWED)
        return found

    def groups(self, claims: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The client's groups; None where no claim names any. Raises Refused for a claim that is neither a text nor a
        list of texts."""
        found: list[str] = []
        named = False
        for path in self._config.groups:
            value = find(claims, path)
            if value is MISSING or value is None:
                continue
            named = True
            values = [value] if isinstance(value, str) else value
            if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
                raise Refused("groups", f"the claim {path} is no list of texts", NOT_ALLOWED)
            found += values
        return tuple(dict.fromkeys(found)) if named else None

    def rules(self, claims: Mapping[str, Any]) -> Rules | None:
        """The permissions; None where no claim names any. Raises Refused for permissions that cannot be read as a
        whole."""
        config = self._config
        value = find(claims, config.acl) if config.acl else MISSING
        if value is MISSING:
            if config.require_acl:
                raise Refused("acl", f"the claim {config.acl} is missing", NOT_ALLOWED)
            return None
        return self.rules_of(value)

    def rules_of(self, value: Any) -> Rules:
        """The permissions that a claim's value names. Raises Refused."""
        try:
            # Many tokens say the same: their rules are compiled once.
            return self._compiled(json.dumps(value))
        except ConfigError as error:
            raise Refused("acl", str(error), NOT_ALLOWED) from None

    def _compile(self, text: str) -> Rules:
        config = self._config
        return Rules(rules_from_lists(json.loads(text), f"claim {config.acl}", config.max_rules))

    def limits(self, claims: Mapping[str, Any]) -> Limits | None:
        """The limits; None where no claim names any. Raises Refused for what is no limit."""
        path = self._config.limits
        value = find(claims, path) if path else MISSING
        if value is MISSING or value is None:
            return None
        if not isinstance(value, Mapping):
            raise Refused("limits", f"the claim {path} is no object", NOT_ALLOWED)
        for name, number in value.items():
            if name not in _LIMITS:
                raise Refused(
                    "limits", f"the claim {path} has an unknown limit {name[:40]!r}", NOT_ALLOWED
                )
            if type(number) is not int or not 0 <= number <= _MAX_LIMIT:
                raise Refused(
                    "limits", f"the limit {name} is no whole number of 0 or more", NOT_ALLOWED
                )
        return Limits(**value)


def _is_time(value: Any) -> bool:
    kind = type(value)  # a bool is an int, but no time
    return (kind is int or (kind is float and math.isfinite(value))) and 0 <= value <= _LATEST


def _media_type(value: Any) -> str:
    """RFC 7515 4.1.9: case does not count, nor does application/ before it."""
    return value.lower().removeprefix("application/") if isinstance(value, str) else ""


def _holds(found: Any, wanted: list[Any], client_id: str, username: str | None) -> bool:
    """Whether a claim is one of `wanted`, or a list that has one; 1, "1" and true are three different things."""
    values = found if isinstance(found, list) else [found]
    for one in wanted:
        value = one.fill(client_id, username, {}) if isinstance(one, Template) else one
        if value is None:
            continue  # a client without a user name matches nothing
        if any(type(have) is type(value) and have == value for have in values):
            return True
    return False
