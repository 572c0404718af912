"""Parse tokens. Sizes are checked before anything is read. Wherever JWT parsers differ, this one is strict.

The RFC 7515 envelope is parsed here, not by the JWT library. Size, nesting, duplicate names and `crit` are therefore
checked first. The library verifies signatures; see `hookmq_auth_jwt.keys`.
"""

import json
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from hookmq_auth_jwt.refusal import Refused

MAX_DEPTH: Final = 16
"""Maximum depth of nesting in the header and claims."""
_TO_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_ALPHABET: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_MAX_KID: Final = 256


class Token(NamedTuple):
    """The parts of a token that has not been verified yet."""

    algorithm: str
    kid: str | None
    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    signed: bytes
    """The bytes that the signature covers."""
    signature: bytes

    def __repr__(self) -> str:
        return f"Token(algorithm={self.algorithm!r}, kid={self.kid!r})"


def looks_like_token(data: bytes) -> bool:
    """Return whether `data` looks like a token: three parts, of which the first begins like a JSON object."""
    return data.count(b".") == 2 and data.startswith(b"eyJ")


def parse(data: bytes, max_size: int) -> Token:
    """Split a compact token into its parts. Raises Refused if `data` is not one."""
    if len(data) > max_size:
        raise Refused("malformed", f"{len(data)} bytes, more than max_size ({max_size})")
    parts = data.split(b".")
    if len(parts) != 3:
        raise Refused("malformed", f"{len(parts)} parts, expected three")
    header = read_object(decode(parts[0], "header"), "header")
    if "crit" in header:
        # RFC 7515, 4.1.11: critical extensions must be understood, and this parser supports none.
        raise Refused("malformed", "the header has 'crit', and no critical extension is supported")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or len(algorithm) > 32:
        raise Refused("malformed", "the header has no valid 'alg'")
    if kid is not None and (not isinstance(kid, str) or len(kid) > _MAX_KID):
        raise Refused("malformed", f"'kid': expected a string of at most {_MAX_KID} characters")
    claims = read_object(decode(parts[1], "claims"), "claims")
    signature = decode(parts[2], "signature")
    return Token(algorithm, kid, header, claims, data[: data.rindex(b".")], signature)


def decode(part: bytes, what: str) -> bytes:
    """Decode canonical base64url without padding. Raises Refused."""
    rest = len(part) % 4
    if not _ALPHABET.issuperset(part) or rest == 1:
        raise Refused("malformed", f"the {what} is not base64url")
    data = a2b_base64(part.translate(_TO_STANDARD) + b"=" * (-rest % 4))
    if rest and _VALUE[part[-1]] & (15 if rest == 2 else 3):
        # Unused bits are set, so the same token could be written in several ways.
        raise Refused("malformed", f"the {what} is not canonical base64url")
    return data


_VALUE: Final = {
    letter: value
    for value, letter in enumerate(
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    )
}


def read_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object in UTF-8. Raises Refused, including for duplicate names, NaN, lone surrogates and deep
    nesting."""
    try:
        text = data.decode()
        found = _STRICT.decode(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise Refused("malformed", f"the {what} is nested too deeply") from None
    except ValueError:
        # The parser's error would quote the token.
        raise Refused("malformed", f"the {what} is not valid, unambiguous JSON") from None
    if not isinstance(found, dict):
        raise Refused("malformed", f"the {what} is not a JSON object")
    if text.count("{") + text.count("[") > MAX_DEPTH and too_deep(found):
        raise Refused("malformed", f"the {what} is nested too deeply")
    return found


def too_deep(value: Any) -> bool:
    """Return whether a value is nested more than `MAX_DEPTH` levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below.extend(one.values())
            elif isinstance(one, list):
                below.extend(one)
        if not below:
            return False
        level = below
    return any(isinstance(one, dict | list) for one in level)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate name")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_STRICT: Final = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
