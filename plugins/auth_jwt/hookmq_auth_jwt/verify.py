"""From bytes to a verified token, or the reason why not."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hookmq.plugin import Limits, Rules

from hookmq_auth_jwt.claims import Checker
from hookmq_auth_jwt.config import JwtConfig
from hookmq_auth_jwt.keys import ALGORITHMS, Key
from hookmq_auth_jwt.refusal import BAD, UNDECIDED, Refused, UnknownKey
from hookmq_auth_jwt.sources import Source, UrlSource
from hookmq_auth_jwt.token import Token, parse

MAX_TRIES: Final = 8
"""Keys that are tried for a token that names none."""


class Verified(NamedTuple):
    """A token that holds, and what it says."""

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
        """What a token says. `now` is the runtime's clock, `time` epoch seconds. Raises Refused; UnknownKey where fresher
        keys may help. Whatever the bytes are, nothing else is raised."""
        token = parse(data, self._config.max_size)
        key = self.key_of(token, now)
        claims = token.claims
        for problem in self.checker.problems(token.header, claims, client_id, username, time):
            raise problem
        return self.read(claims, client_id, username, key)

    def read(
        self, claims: Mapping[str, Any], client_id: str, username: str | None, key: Key
    ) -> Verified:
        """What good claims are turned into. Raises Refused."""
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
        """The key that verifies a token's signature. Raises Refused."""
        algorithm, kid = token.algorithm, token.kid
        if algorithm not in ALGORITHMS:
            raise Refused("algorithm", f"the algorithm {algorithm!r} is not supported")
        keys = [key for source in self.sources for key in source.keys(now)]
        if not keys:
            raise UnknownKey("no_keys", "there are no keys", UNDECIDED)
        issuer = token.claims.get("iss")
        named = [key for key in keys if kid is not None and key.kid == kid]
        # A key without a name may be the one meant; one of another name is not.
        chosen = named or [key for key in keys if kid is None or key.kid is None]
        chosen = [key for key in chosen if not key.issuer or key.issuer == issuer]
        fitting = [key for key in chosen if algorithm in key.algorithms]
        if len(fitting) > MAX_TRIES:
            raise Refused(
                "unknown_key", f"it names no key, and more than {MAX_TRIES} could be meant"
            )
        for key in fitting:
            if key.verifies(algorithm, token.signed, token.signature):
                return key
        if named:
            if not fitting:
                raise Refused(
                    "algorithm", f"{algorithm} or its issuer is not for the key that it names"
                )
            raise Refused("signature", "the signature is not of the key that it names")
        if kid is None and fitting:
            raise Refused("signature", "no key verifies the signature")
        if kid is None:
            raise Refused("algorithm", f"no key is for {algorithm} and its issuer")
        # All sources that could have it were asked and answered, or else nobody knows.
        asked = all(not s.fails for s in self.sources if isinstance(s, UrlSource))
        raise UnknownKey(
            "unknown_key", "it names a key that is not there", BAD if asked else UNDECIDED
        )
