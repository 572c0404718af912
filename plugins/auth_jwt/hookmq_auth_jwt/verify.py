"""Verify tokens with the keys of all sources."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hookmq.plugin import Limits
from hookmq_toolkit.rules import Rules

from hookmq_auth_jwt.claims import Checker
from hookmq_auth_jwt.config import JwtConfig
from hookmq_auth_jwt.keys import ALGORITHMS, Key
from hookmq_auth_jwt.refusal import BAD, UNDECIDED, Refused, UnknownKey
from hookmq_auth_jwt.sources import Source, UrlSource
from hookmq_auth_jwt.token import Token, parse

MAX_TRIES: Final = 8
"""Maximum number of keys to try for a token that names no key."""


class Verified(NamedTuple):
    """A valid token and the information read from it."""

    identity: str
    claims: Mapping[str, Any]
    """The token's claims, with ``groups`` filled in."""
    expires_at: float | None
    rules: Rules | None
    limits: Limits | None
    key: Key


class Verifier:
    """Verifies tokens with the keys of `sources`."""

    __slots__ = ("_config", "checker", "sources")

    def __init__(self, config: JwtConfig, sources: Sequence[Source]) -> None:
        self._config = config
        self.sources = sources
        self.checker = Checker(config)

    def verify(
        self, data: bytes, client_id: str, username: str | None, now: float, time: float
    ) -> Verified:
        """Verify a token and return its contents. `now` is a time on the runtime's clock, and `time` is Unix time. Both
        are in seconds.

        Raises Refused, or its subclass UnknownKey if fetching keys may help. Raises nothing else, no matter what `data`
        contains.
        """
        token = parse(data, self._config.max_size)
        key = self.key_of(token, now)
        claims = token.claims
        for problem in self.checker.problems(token.header, claims, client_id, username, time):
            raise problem
        return self.read(claims, client_id, username, key)

    def read(
        self, claims: Mapping[str, Any], client_id: str, username: str | None, key: Key
    ) -> Verified:
        """Return the contents of a token whose claims have been verified. Raises Refused."""
        checker = self.checker
        identity = checker.identity(claims, client_id, username)
        groups = checker.groups(claims)
        rules = checker.rules(claims)
        limits = checker.limits(claims)
        expires = claims.get("exp")
        claims = dict(claims)
        if groups is not None:
            claims["groups"] = list(groups)
        return Verified(
            identity,
            MappingProxyType(claims),
            None if expires is None else float(expires) + self._config.leeway,
            rules,
            limits,
            key,
        )

    def key_of(self, token: Token, now: float) -> Key:
        """Return the key that verifies the signature of `token`. Raises Refused."""
        algorithm, kid = token.algorithm, token.kid
        if algorithm not in ALGORITHMS:
            raise Refused("algorithm", f"the algorithm {algorithm!r} is not supported")
        keys = [key for source in self.sources for key in source.keys(now)]
        if not keys:
            raise UnknownKey("no_keys", "there are no keys", UNDECIDED)
        issuer = token.claims.get("iss")
        named = [key for key in keys if kid is not None and key.kid == kid]
        # A key without a name may be the right one; a key with another name is not.
        chosen = named or [key for key in keys if kid is None or key.kid is None]
        chosen = [key for key in chosen if not key.issuer or key.issuer == issuer]
        fitting = [key for key in chosen if algorithm in key.algorithms]
        if len(fitting) > MAX_TRIES:
            raise Refused(
                "unknown_key", f"the token names no key, and more than {MAX_TRIES} keys fit"
            )
        for key in fitting:
            if key.verifies(algorithm, token.signed, token.signature):
                return key
        if named:
            if not fitting:
                raise Refused(
                    "algorithm", f"the named key is not for {algorithm} or not for this issuer"
                )
            raise Refused("signature", "the named key does not verify the signature")
        if kid is None and fitting:
            raise Refused("signature", "no key verifies the signature")
        if kid is None:
            raise Refused("algorithm", f"no key is for {algorithm} and this issuer")
        # A source that did not respond might have the key, so the result is undecided.
        answered = all(not s.fails for s in self.sources if isinstance(s, UrlSource))
        raise UnknownKey("unknown_key", "the named key is unknown", BAD if answered else UNDECIDED)
