"""Keys: what each may verify, and what is too weak to verify anything.

A key belongs to one family of algorithms by what it is, not by what a token says: a public key never verifies an HMAC, a
secret never a signature, and ``none`` is no algorithm at all.
"""

import hashlib
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.algorithms import get_default_algorithms as jwt_algorithms

Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "ES256K", "EdDSA", "Ed25519", "Ed448",
]  # fmt: skip

HMAC: Final = ("HS256", "HS384", "HS512")
RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES: Final[Mapping[str, str]] = {
    "secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512", "secp256k1": "ES256K",
}  # fmt: skip
HASH_BYTES: Final[Mapping[str, int]] = {"HS256": 32, "HS384": 48, "HS512": 64}
MIN_RSA: Final = 2048
MAX_RSA: Final = 8192
"""Bits. A longer modulus costs more than it is worth, and whoever serves it may mean harm."""
MAX_EXPONENT: Final = 64
"""Bits; as OpenSSL has it for long keys."""

_KNOWN: Final = jwt_algorithms()
_VERIFIERS: Final[Mapping[str, Any]] = {
    **{name: _KNOWN[name] for name in (*HMAC, *RSA, *CURVES.values(), "EdDSA")},
    # RFC 9864 names the curve
    "Ed25519": _KNOWN["EdDSA"],
    "Ed448": _KNOWN["EdDSA"],
}
ALGORITHMS: Final = frozenset(_VERIFIERS)


class UnusableKey(Exception):
    """A key that must not or cannot be used; the message says why and holds nothing of the key."""


class Key:
    """One key. `kid` is None where it has no name, `issuer` the only one whose tokens it verifies ('' for every),
    `source` where it came from, `kind` what it is (``RSA 2048``), `fingerprint` tells it from others."""

    __slots__ = ("_material", "algorithms", "fingerprint", "issuer", "kid", "kind", "source")

    def __init__(
        self,
        material: Any,
        kind: str,
        algorithms: Iterable[str],
        fingerprint: str,
        kid: str | None,
        issuer: str,
        source: str,
    ) -> None:
        self._material = material
        self.kind = kind
        self.algorithms = frozenset(algorithms)
        self.fingerprint = fingerprint
        self.kid = kid
        self.issuer = issuer
        self.source = source

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether `signature` is this key's. Never raises."""
        if algorithm not in self.algorithms:
            return False
        try:
            return bool(_VERIFIERS[algorithm].verify(signed, self._material, signature))
        except Exception:  # a library that cannot read a signature has not verified it
            return False

    def __repr__(self) -> str:
        return f"Key(kid={self.kid!r}, {self.kind}, {', '.join(sorted(self.algorithms))}, {self.source!r})"


def secret_key(
    secret: str,
    encoding: str,
    allowed: frozenset[str],
    kid: str | None,
    issuer: str,
    source: str,
) -> Key:
    """The key of a shared secret. Raises UnusableKey, also for a public key, a JWK or a certificate in a secret's place:
    those are known to everybody."""
    if encoding == "base64":
        try:
            data = b64decode(
                secret.replace("-", "+").replace("_", "/") + "=" * (-len(secret) % 4), validate=True
            )
        except ValueError:
            raise UnusableKey("it is not base64") from None
    else:
        data = secret.encode()
    return _hmac(data, allowed, kid, issuer, source)


def _hmac(data: bytes, allowed: frozenset[str], kid: str | None, issuer: str, source: str) -> Key:
    try:
        _KNOWN["HS256"].prepare_key(data)
    except Exception:
        raise UnusableKey("it is empty, or no secret but a key or certificate") from None
    wanted = sorted(allowed.intersection(HMAC))
    # RFC 7518 3.2: a key of the hash's size at least
    algorithms = [name for name in wanted if len(data) >= HASH_BYTES[name]]
    if wanted and not algorithms:
        least = min(HASH_BYTES[name] for name in wanted)
        raise UnusableKey(
            f"a secret of {len(data)} bytes is weak: {wanted[0]} needs {least} or more"
        )
    return _key(data, "secret", algorithms, hashlib.sha256(b"hookmq" + data), kid, issuer, source)


_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----", re.S)
_PUBLIC: Final = (b"PUBLIC KEY", b"RSA PUBLIC KEY")


def pem_keys(
    data: bytes, allowed: frozenset[str], kid: str | None, issuer: str, source: str
) -> list[Key]:
    """The public keys and certificates of a PEM file. Raises UnusableKey for a file that holds none, a private key, or a
    key that is too weak."""
    found = []
    for block in _BLOCK.finditer(data):
        name = block[1]
        if b"PRIVATE" in name:
            raise UnusableKey("it holds a private key: give the broker the public one alone")
        try:
            if name == b"CERTIFICATE":
                public: Any = x509.load_pem_x509_certificate(block[0]).public_key()
            elif name in _PUBLIC:
                public = load_pem_public_key(block[0])
            else:
                raise UnusableKey(f"what is a {name.decode()!r} to do here?")
        except UnusableKey:
            raise
        except Exception:
            raise UnusableKey("it holds a block that is no public key or certificate") from None
        found.append(_public(public, allowed, kid, issuer, source))
    if not found:
        raise UnusableKey("it holds no PEM block of a public key or a certificate")
    return found


def jwk_key(
    jwk: Mapping[str, Any], allowed: frozenset[str], symmetric: bool, issuer: str, source: str
) -> Key:
    """The key of a member of a JWK Set. Raises UnusableKey for one that is not for verifying, is too weak, is private, or
    is a secret where none may be (`symmetric` false: what everybody can fetch)."""
    kind, kid, named = jwk.get("kty"), jwk.get("kid"), jwk.get("alg")
    if kid is not None and (not isinstance(kid, str) or not kid):
        raise UnusableKey("its kid is no text")
    if jwk.get("use", "sig") != "sig":
        raise UnusableKey("it is not for signatures (use)")
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise UnusableKey("it is not for verifying (key_ops)")
    if named is not None:
        if not isinstance(named, str) or named not in ALGORITHMS:
            raise UnusableKey("its alg is not supported")
        allowed = allowed.intersection({named})
    if kind == "oct":
        if not symmetric:
            raise UnusableKey("a secret that everybody can fetch is none")
        return _hmac(_material(HMACAlgorithm, jwk), allowed, kid, issuer, source)
    if "d" in jwk:
        raise UnusableKey("it is a private key")
    reader = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}.get(str(kind))
    if reader is None:
        raise UnusableKey("its kty is not supported")
    return _public(_material(reader, jwk), allowed, kid, issuer, source)


def _material(reader: Any, jwk: Mapping[str, Any]) -> Any:
    try:
        return reader.from_jwk(dict(jwk))
    except Exception:
        raise UnusableKey("its parameters make no key") from None


def _public(public: Any, allowed: frozenset[str], kid: str | None, issuer: str, source: str) -> Key:
    fitting: tuple[str, ...]
    if isinstance(public, rsa.RSAPublicKey):
        if not MIN_RSA <= public.key_size <= MAX_RSA:
            raise UnusableKey(f"RSA of {public.key_size} bits: {MIN_RSA} to {MAX_RSA} are taken")
        if public.public_numbers().e.bit_length() > MAX_EXPONENT:
            raise UnusableKey(f"its exponent is longer than {MAX_EXPONENT} bits")
        kind, fitting = f"RSA {public.key_size}", RSA
    elif isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name in CURVES:
        kind, fitting = f"EC {public.curve.name}", (CURVES[public.curve.name],)
    elif isinstance(public, ed25519.Ed25519PublicKey):
        kind, fitting = "Ed25519", ("EdDSA", "Ed25519")
    elif isinstance(public, ed448.Ed448PublicKey):
        kind, fitting = "Ed448", ("EdDSA", "Ed448")
    else:
        raise UnusableKey("its kind is not supported")
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    algorithms = allowed.intersection(fitting)
    return _key(public, kind, algorithms, hashlib.sha256(der), kid, issuer, source)


def _key(
    material: Any,
    kind: str,
    algorithms: Iterable[str],
    digest: Any,
    kid: str | None,
    issuer: str,
    source: str,
) -> Key:
    key = Key(material, kind, algorithms, digest.hexdigest(), kid, issuer, source)
    if not key.algorithms:
        raise UnusableKey(f"none of the algorithms that are allowed is for a key of kind {kind}")
    return key
