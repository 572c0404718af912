"""Password hashes: supported schemes, cost limits, verification and creation.

A hash is recognized by its complete form. Its cost is checked before any computation, so that a file cannot make the
broker spend minutes or gigabytes on one login. No error message contains a hash or a password.
"""

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from hookmq.plugin import Size, setting

Format = Literal["yaml", "mosquitto"]

MAX_TEXT: Final = 512
"""Longest hash, in characters."""
MAX_PASSWORD: Final = 4096
"""Longest password for any scheme, in bytes."""
MAX_MEMORY: Final = 256 << 20
"""Maximum memory for verifying one password, in bytes."""
MAX_ITERATIONS: Final = 5_000_000
MAX_BCRYPT: Final = 14
MAX_SHA512_ROUNDS: Final = 2_000_000
MAX_PASSES: Final = 16
MAX_LANES: Final = 16
MOSQUITTO_ITERATIONS: Final = 210_000
"""Iterations for new hashes in a mosquitto file. mosquitto 2.0 and newer can verify them."""
_BCRYPT_BYTES: Final = 72


@dataclass(frozen=True)
class Argon2:
    """The cost of a new argon2id hash. The defaults are the second option that RFC 9106 recommends."""

    memory: Size = setting(64 << 20, "memory for one hash", minimum=1 << 20, maximum=MAX_MEMORY)
    passes: int = setting(3, "passes over the memory", minimum=1, maximum=MAX_PASSES)
    lanes: int = setting(4, "lanes of the memory", minimum=1, maximum=MAX_LANES)

    def __post_init__(self) -> None:
        if _too_dear(self.memory >> 10, self.passes):
            raise ValueError("memory times passes is more than 1GiB")


@dataclass(frozen=True, slots=True)
class Hash:
    """A recognized hash within the cost limits. `cost` holds the scheme's parameters."""

    text: str = field(repr=False)
    scheme: str
    cost: tuple[int, ...]


_B64: Final = r"[A-Za-z0-9+/]+={0,2}"
_AB64: Final = r"[./A-Za-z0-9]"
_FORMS: Final[dict[str, re.Pattern[str]]] = {
    scheme: re.compile(pattern, re.ASCII)
    for scheme, pattern in {
        "argon2": r"\$argon2(?:id|i|d)\$v=19\$m=(\d{1,9}),t=(\d{1,9}),p=(\d{1,9})\$"
        r"[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{16,172}",
        "bcrypt": rf"\$2[aby]\$(\d\d)\${_AB64}{{53}}",
        "pbkdf2-sha1": rf"\$pbkdf2\$(\d{{1,9}})\${_AB64}{{0,171}}\${_AB64}{{27}}",
        "pbkdf2-sha256": rf"\$pbkdf2-sha256\$(\d{{1,9}})\${_AB64}{{0,171}}\${_AB64}{{43}}",
        "pbkdf2-sha512": rf"\$pbkdf2-sha512\$(\d{{1,9}})\${_AB64}{{0,171}}\${_AB64}{{86}}",
        "scrypt": r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,9}),p=(\d{1,9})\$[A-Za-z0-9+/]{0,171}\$[A-Za-z0-9+/]{43}",
        "sha512-crypt": rf"\$6\$(?:rounds=(\d{{1,9}})\$)?{_AB64}{{0,16}}\${_AB64}{{86}}",
        "salted-sha512": rf"\{{SSHA512\}}({_B64})",
        "mosquitto-sha512": rf"\$6\$({_B64})\$([A-Za-z0-9+/]{{86}}==)",
        "mosquitto-pbkdf2": rf"\$7\$(\d{{1,9}})\$({_B64})\$([A-Za-z0-9+/]{{86}}==)",
    }.items()
}
SCHEMES: Final[dict[Format, tuple[str, ...]]] = {
    "yaml": (
        "argon2", "bcrypt", "pbkdf2-sha512", "pbkdf2-sha256", "pbkdf2-sha1", "scrypt", "sha512-crypt", "salted-sha512",
    ),
    "mosquitto": ("mosquitto-pbkdf2", "mosquitto-sha512", "argon2"),
}  # fmt: skip
"""The schemes of each file format. `$6$` means a different scheme in each format."""


def read(text: str, format: Format) -> Hash:
    """Parse the hash in `text`, from a file in the given format. Raises ValueError, without quoting `text`."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"the hash is longer than {MAX_TEXT} characters")
    for scheme in SCHEMES[format]:
        match = _FORMS[scheme].fullmatch(text)
        if match is not None:
            found = _hash(scheme, match)
            problem = _excess(found)
            if problem:
                raise ValueError(problem)
            return found
    raise ValueError(_unknown(text, format))


def _hash(scheme: str, match: re.Match[str]) -> Hash:
    if scheme == "argon2":
        scheme = "argon2id" if match[0].startswith("$argon2id$") else "argon2"
    if scheme == "sha512-crypt":
        return Hash(match[0], scheme, (int(match[1] or 5000),))
    if scheme in ("salted-sha512", "mosquitto-sha512"):
        return Hash(match[0], scheme, ())
    numbers = tuple(int(part) for part in match.groups() if part and part.isdecimal())
    if scheme == "mosquitto-pbkdf2":
        numbers = (int(match[1]),)
    return Hash(match[0], scheme, numbers)


def _too_dear(kibibytes: int, passes: int) -> bool:
    return kibibytes * passes > 1 << 20


def _excess(hash: Hash) -> str | None:
    """Return the problem with the cost or the encoding of a hash, or None if there is none."""
    scheme, cost = hash.scheme, hash.cost
    if scheme.startswith("argon2"):
        memory, passes, lanes = cost
        if not (1 <= passes <= MAX_PASSES and 1 <= lanes <= MAX_LANES):
            return f"argon2 with t={passes},p={lanes}: both must be 1 to 16"
        if not 8 * lanes <= memory <= MAX_MEMORY >> 10:
            return f"argon2 with m={memory}: m must be {8 * lanes} to {MAX_MEMORY >> 10}"
        if _too_dear(memory, passes):
            return f"argon2 with m={memory},t={passes}: the cost is too high"
    elif scheme == "bcrypt":
        if not 4 <= cost[0] <= MAX_BCRYPT:
            return f"bcrypt with cost {cost[0]}: must be 4 to {MAX_BCRYPT}"
    elif scheme == "scrypt":
        logarithm, block, lanes = cost
        if not (1 <= logarithm <= 20 and block >= 1 and 1 <= lanes <= MAX_LANES):
            return f"scrypt with ln={logarithm},r={block},p={lanes}: out of range"
        if (128 * block << logarithm) * lanes > MAX_MEMORY:
            return f"scrypt with ln={logarithm},r={block},p={lanes}: the cost is too high"
    elif scheme == "sha512-crypt":
        if not 1000 <= cost[0] <= MAX_SHA512_ROUNDS:
            return f"sha512-crypt with {cost[0]} rounds: must be 1000 to {MAX_SHA512_ROUNDS}"
    elif "pbkdf2" in scheme and not 1 <= cost[0] <= MAX_ITERATIONS:
        return f"PBKDF2 with {cost[0]} iterations: must be 1 to {MAX_ITERATIONS}"
    return _undecodable(hash)


def _undecodable(hash: Hash) -> str | None:
    try:
        if hash.scheme in ("salted-sha512", "mosquitto-sha512", "mosquitto-pbkdf2"):
            _, digest = _parts(hash)
            if len(digest) != 64:
                return "the digest must have 64 bytes"
        else:
            handler(hash.scheme).from_string(hash.text)
    except ValueError:
        return f"malformed {hash.scheme} hash"
    return None


def _unknown(text: str, format: Format) -> str:
    other: Format = "mosquitto" if format == "yaml" else "yaml"
    for scheme in SCHEMES[other]:
        if _FORMS[scheme].fullmatch(text):
            return (
                "this is a mosquitto hash; convert the file with hookmq passwd import"
                if other == "mosquitto"
                else f"this is a {scheme} hash, which mosquitto's format does not have; use format: yaml"
            )
    if text.startswith(("$", "{")):
        return "unknown or incomplete hash"
    return "this is not a hash; create one with hookmq passwd add"


# verifying -------------------------------------------------------------------------------------------------------


@cache
def handler(scheme: str) -> Any:
    """Return passlib's implementation of a scheme."""
    from passlib import hash as schemes  # type: ignore[import-untyped]

    return {
        "argon2": schemes.argon2,
        "argon2id": schemes.argon2,
        "bcrypt": schemes.bcrypt,
        "pbkdf2-sha1": schemes.pbkdf2_sha1,
        "pbkdf2-sha256": schemes.pbkdf2_sha256,
        "pbkdf2-sha512": schemes.pbkdf2_sha512,
        "scrypt": schemes.scrypt,
        "sha512-crypt": schemes.sha512_crypt,
    }[scheme]


def prepare(schemes: set[str]) -> None:
    """Make passlib choose its backends now. Otherwise, it would do so on first use, which is not thread-safe."""
    for scheme in schemes:
        if scheme not in ("salted-sha512", "mosquitto-sha512", "mosquitto-pbkdf2"):
            get_backend: Callable[[], object] | None = getattr(handler(scheme), "get_backend", None)
            if get_backend is not None:
                get_backend()


def _parts(hash: Hash) -> tuple[bytes, bytes]:
    """Return the salt and the digest of a hash whose scheme passlib does not support."""
    match = _FORMS[hash.scheme].fullmatch(hash.text)
    assert match is not None
    if hash.scheme == "salted-sha512":
        both = b64decode(match[1], validate=True)
        return both[64:], both[:64]
    groups = match.groups()
    return b64decode(groups[-2], validate=True), b64decode(groups[-1], validate=True)


def verify(hash: Hash, password: bytes) -> bool:
    """Return whether the password is right. Blocks for as long as the hash takes to compute.

    `password` has at most `MAX_PASSWORD` bytes. Digests are compared in constant time. A password that the scheme
    cannot process is treated as wrong, after the same time.
    """
    scheme = hash.scheme
    if scheme in ("salted-sha512", "mosquitto-sha512"):
        salt, digest = _parts(hash)
        return hmac.compare_digest(hashlib.sha512(password + salt).digest(), digest)
    if scheme == "mosquitto-pbkdf2":
        salt, digest = _parts(hash)
        made = hashlib.pbkdf2_hmac("sha512", password, salt, hash.cost[0], 64)
        return hmac.compare_digest(made, digest)
    possible = True
    if scheme == "bcrypt":
        # bcrypt uses only the first bytes. This implementation would raise an error for longer passwords.
        password = password[:_BCRYPT_BYTES]
    if b"\0" in password and scheme in ("bcrypt", "sha512-crypt"):
        possible, password = False, password.replace(b"\0", b"0")
    return bool(handler(scheme).verify(password, hash.text)) and possible


# creating --------------------------------------------------------------------------------------------------------


def make(password: bytes, format: Format, argon2: Argon2) -> str:
    """Return a new hash for a file in the given format: argon2id, or PBKDF2 for mosquitto 2.0 and newer. This call
    blocks.
    """
    if format == "mosquitto":
        salt = secrets.token_bytes(12)
        digest = hashlib.pbkdf2_hmac("sha512", password, salt, MOSQUITTO_ITERATIONS, 64)
        return f"$7${MOSQUITTO_ITERATIONS}${b64encode(salt).decode()}${b64encode(digest).decode()}"
    chosen = handler("argon2id").using(
        type="ID",
        memory_cost=argon2.memory >> 10,
        rounds=argon2.passes,
        parallelism=argon2.lanes,
    )
    return str(chosen.hash(password))


def outdated(hash: Hash, format: Format, argon2: Argon2) -> bool:
    """Return whether a hash is weaker than a newly created one."""
    if hash.scheme == "argon2id":
        return format == "yaml" and (
            hash.cost[0] < argon2.memory >> 10 or hash.cost[1] < argon2.passes
        )
    return hash.scheme != "mosquitto-pbkdf2" or hash.cost[0] < MOSQUITTO_ITERATIONS


def to_yaml(hash: Hash) -> str:
    """Return the same hash in the notation of a YAML file. mosquitto's schemes have other names in YAML files."""
    if hash.scheme == "mosquitto-sha512":
        salt, digest = _parts(hash)
        return "{SSHA512}" + b64encode(digest + salt).decode()
    if hash.scheme == "mosquitto-pbkdf2":
        salt, digest = _parts(hash)
        return f"$pbkdf2-sha512${hash.cost[0]}${_ab64(salt)}${_ab64(digest)}"
    return hash.text


def _ab64(data: bytes) -> str:
    """Encode in passlib's variant of base64, without padding and with a dot instead of a plus sign."""
    return b64encode(data).decode().rstrip("=").replace("+", ".")
