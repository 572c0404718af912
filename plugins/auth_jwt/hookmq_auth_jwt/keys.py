"""Read keys, determine their algorithms, and refuse weak keys.

A key's type determines its algorithms; a token never does. A public key never verifies an HMAC, and a secret never
verifies a signature. The algorithm `none` is not supported.
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
"""Longest RSA modulus, in bits. A longer modulus makes verification slow, which an attacker could exploit."""
MAX_EXPONENT: Final = 64
"""Longest RSA exponent, in bits: OpenSSL's limit for long keys."""

_KNOWN: Final = jwt_algorithms()
_VERIFIERS: Final[Mapping[str, Any]] = {
    **{name: _KNOWN[name] for name in (*HMAC, *RSA, *CURVES.values(), "EdDSA")},
    # RFC 9864 names the curve
    "Ed25519": _KNOWN["EdDSA"],
    "Ed448": _KNOWN["EdDSA"],
}
ALGORITHMS: Final = frozenset(_VERIFIERS)


class UnusableKey(Exception):
    """A key that cannot or must not be used. The message gives the reason, but never quotes the key."""


class Key:
    """A key that verifies tokens.

    `kind` is the type, such as ``RSA 2048``. `kid` is the key's name, or None. `issuer` is the only issuer whose tokens
    the key verifies; '' means any. `source` is the label of its source. `fingerprint` identifies the key.
    """

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
        """Return whether `signature` was made with this key. Never raises."""
        if algorithm not in self.algorithms:
            return False
        try:
            return bool(_VERIFIERS[algorithm].verify(signed, self._material, signature))
        except Exception:  # an unreadable signature is not verified
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
    """Return the key for a shared secret. Raises UnusableKey. Public keys, JWKs and certificates are refused too,
    because they are not secret.
    """
    if encoding == "base64":
        try:
            data = b64decode(
                secret.replace("-", "+").replace("_", "/") + "=" * (-len(secret) % 4), validate=True
            )
        except ValueError:
            raise UnusableKey("not valid base64") from None
    else:
        data = secret.encode()
    return _hmac(data, allowed, kid, issuer, source)


def _hmac(data: bytes, allowed: frozenset[str], kid: str | None, issuer: str, source: str) -> Key:
    try:
        _KNOWN["HS256"].prepare_key(data)
    except Exception:
        raise UnusableKey("empty, or a public key or certificate instead of a secret") from None
    wanted = sorted(allowed.intersection(HMAC))
    # RFC 7518, 3.2: at least as long as the hash
    algorithms = [name for name in wanted if len(data) >= HASH_BYTES[name]]
    if wanted and not algorithms:
        least = min(HASH_BYTES[name] for name in wanted)
        raise UnusableKey(
            f"a secret of {len(data)} bytes is too short: {wanted[0]} needs {least} or more"
        )
    return _key(data, "secret", algorithms, hashlib.sha256(b"hookmq" + data), kid, issuer, source)


_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----", re.S)
_PUBLIC: Final = (b"PUBLIC KEY", b"RSA PUBLIC KEY")


def pem_keys(
    data: bytes, allowed: frozenset[str], kid: str | None, issuer: str, source: str
) -> list[Key]:
    """Return the public keys and certificates in a PEM file. Raises UnusableKey if there are none or any is weak. Also
    raises it if the file contains a private key.
    """
    found = []
    for block in _BLOCK.finditer(data):
        name = block[1]
        if b"PRIVATE" in name:
            raise UnusableKey("contains a private key; the broker needs the public key only")
        try:
            if name == b"CERTIFICATE":
                public: Any = x509.load_pem_x509_certificate(block[0]).public_key()
            elif name in _PUBLIC:
                public = load_pem_public_key(block[0])
            else:
                raise UnusableKey(f"contains an unexpected PEM block {name.decode()!r}")
        except UnusableKey:
            raise
        except Exception:
            raise UnusableKey("contains an unreadable public key or certificate") from None
        found.append(_public(public, allowed, kid, issuer, source))
    if not found:
        raise UnusableKey("contains no public key and no certificate in PEM")
    return found


def jwk_key(
    jwk: Mapping[str, Any], allowed: frozenset[str], symmetric: bool, issuer: str, source: str
) -> Key:
    """Return the key in a JWK. Raises UnusableKey for a key that is weak, private or not intended for verification.

    Unless `symmetric` is set, secrets are refused, because anyone can fetch the set.
    """
    kind, kid, named = jwk.get("kty"), jwk.get("kid"), jwk.get("alg")
    if kid is not None and (not isinstance(kid, str) or not kid):
        raise UnusableKey("kid is not a string")
    if jwk.get("use", "sig") != "sig":
        raise UnusableKey("not for signatures (use)")
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise UnusableKey("not for verifying (key_ops)")
    if named is not None:
        if not isinstance(named, str) or named not in ALGORITHMS:
            raise UnusableKey("alg is not supported")
        allowed = allowed.intersection({named})
    if kind == "oct":
        if not symmetric:
            raise UnusableKey("a secret behind a URL is not secret")
        return _hmac(_material(HMACAlgorithm, jwk), allowed, kid, issuer, source)
    if "d" in jwk:
        raise UnusableKey("a private key")
    reader = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}.get(str(kind))
    if reader is None:
        raise UnusableKey("kty is not supported")
    return _public(_material(reader, jwk), allowed, kid, issuer, source)


def _material(reader: Any, jwk: Mapping[str, Any]) -> Any:
    try:
        return reader.from_jwk(dict(jwk))
    except Exception:
        raise UnusableKey("its parameters are not a valid key") from None


def _public(public: Any, allowed: frozenset[str], kid: str | None, issuer: str, source: str) -> Key:
    fitting: tuple[str, ...]
    if isinstance(public, rsa.RSAPublicKey):
        if not MIN_RSA <= public.key_size <= MAX_RSA:
            raise UnusableKey(f"RSA with {public.key_size} bits, expected {MIN_RSA} to {MAX_RSA}")
        if public.public_numbers().e.bit_length() > MAX_EXPONENT:
            raise UnusableKey(f"RSA exponent of more than {MAX_EXPONENT} bits")
        kind, fitting = f"RSA {public.key_size}", RSA
    elif isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name in CURVES:
        kind, fitting = f"EC {public.curve.name}", (CURVES[public.curve.name],)
    elif isinstance(public, ed25519.Ed25519PublicKey):
        kind, fitting = "Ed25519", ("EdDSA", "Ed25519")
    elif isinstance(public, ed448.Ed448PublicKey):
        kind, fitting = "Ed448", ("EdDSA", "Ed448")
    else:
        raise UnusableKey("this type of key is not supported")
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
        raise UnusableKey(f"none of the allowed algorithms is for a key of type {kind}")
    return key
