"""Read JWK Sets. The set itself must be valid, but unusable keys in it are skipped (RFC 7517, section 5)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hookmq_auth_jwt.keys import Key, UnusableKey, jwk_key
from hookmq_auth_jwt.refusal import Refused
from hookmq_auth_jwt.token import read_object


class Left(NamedTuple):
    """A key that was ignored, and why."""

    kid: str
    why: str


class KeySet(NamedTuple):
    """The keys of a JWK Set."""

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
    """Return the keys in a JWK Set. Unusable keys are ignored and listed. Raises UnusableKey if the set itself is
    invalid.

    A set without keys is accepted: the server thereby declares that no key is valid.
    """
    try:
        found = read_object(data, "JWK Set")
    except Refused as error:
        raise UnusableKey(error.why) from None
    members = found.get("keys")
    if not isinstance(members, list):
        raise UnusableKey("not a JWK Set: expected a list 'keys'")
    if len(members) > max_keys:
        raise UnusableKey(f"{len(members)} keys, more than max_keys ({max_keys})")
    keys: list[Key] = []
    left: list[Left] = []
    for member in members:
        name = _name(member)
        try:
            if not isinstance(member, Mapping):
                raise UnusableKey("not a JSON object")
            keys.append(jwk_key(member, allowed, symmetric, issuer, source))
        except UnusableKey as error:
            left.append(Left(name, str(error)))
    return KeySet(tuple(keys), tuple(left))


def _name(member: Any) -> str:
    kid = member.get("kid") if isinstance(member, Mapping) else None
    return kid[:64] if isinstance(kid, str) else ""
