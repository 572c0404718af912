"""JWK Sets: read strictly as a whole, leniently key by key, as RFC 7517 has it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hookmq_auth_jwt.keys import Key, UnusableKey, jwk_key
from hookmq_auth_jwt.refusal import Refused
from hookmq_auth_jwt.token import read_object


class Left(NamedTuple):
    """A key that was left out, and why."""

    kid: str
    why: str


class KeySet(NamedTuple):
    """What a JWK Set holds."""

    keys: tuple[Key, ...]
    left: tuple[Left, ...]


def read_set(
    data: bytes,
    allowed: frozenset[str],
    symmetric: bool,
    issuer: str,
    source: str,
    max_keys: int,
) -> KeySet:
    """The keys of a JWK Set. A key that cannot be used is left out; what is no JWK Set raises UnusableKey. A set without
    a key is a set: whoever serves it says that no key holds."""
    try:
        found = read_object(data, "JWK Set")
    except Refused as error:
        raise UnusableKey(error.why) from None
    members = found.get("keys")
    if not isinstance(members, list):
        raise UnusableKey("it is no JWK Set: there is no list 'keys'")
    if len(members) > max_keys:
        raise UnusableKey(f"{len(members)} keys: more than max_keys allows ({max_keys})")
    keys: list[Key] = []
    left: list[Left] = []
    for member in members:
        name = _name(member)
        try:
            if not isinstance(member, Mapping):
                raise UnusableKey("it is no JWK")
            keys.append(jwk_key(member, allowed, symmetric, issuer, source))
        except UnusableKey as error:
            left.append(Left(name, str(error)))
    return KeySet(tuple(keys), tuple(left))


def _name(member: Any) -> str:
    kid = member.get("kid") if isinstance(member, Mapping) else None
    return kid[:64] if isinstance(kid, str) else ""
