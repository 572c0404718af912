"""Make and parse secrets and keys, in the forms of Standard Webhooks.

| text | key |
|---|---|
| ``whsec_`` and base64 | a secret that the broker and the receiver share |
| ``whsk_`` and base64 | an ed25519 private key for the broker alone: 32 bytes of the seed, 32 of the public key |
| ``whpk_`` and base64 | the matching public key, which receivers need: 32 bytes |
"""

import base64
import binascii
import os
from typing import Final, Protocol


class PublicKey(Protocol):
    """The part of cryptography's Ed25519PublicKey that this package uses."""

    def verify(self, signature: bytes, data: bytes, /) -> None:
        """Raise cryptography.exceptions.InvalidSignature if the signature is wrong."""

    def public_bytes_raw(self) -> bytes:
        """Return the 32 bytes of the key."""


class PrivateKey(Protocol):
    """The part of cryptography's Ed25519PrivateKey that this package uses."""

    def sign(self, data: bytes, /) -> bytes:
        """Return the signature of `data`."""

    def public_key(self) -> PublicKey:
        """Return the public key."""


Key = bytes | PublicKey
"""A key with which a receiver verifies requests: a secret's bytes, or a public key."""
SECRET: Final = "whsec_"
PRIVATE: Final = "whsk_"
PUBLIC: Final = "whpk_"
SHORTEST: Final = 24
"""Minimum length of a secret in bytes."""
_SIZE: Final = 32


def new_secret() -> str:
    """Return a random 32-byte secret in the format that the configuration expects."""
    return SECRET + base64.b64encode(os.urandom(32)).decode()


def new_private_key() -> str:
    """Return a random private key in the format that the configuration expects. Requires the package cryptography."""
    seed = os.urandom(_SIZE)
    return PRIVATE + base64.b64encode(seed + _raw(_private(seed))).decode()


def public_key(private: str) -> str:
    """Return the public key that belongs to a private key, for receivers. Raises ValueError."""
    return PUBLIC + base64.b64encode(_raw(private_key_of(private))).decode()


def key_of(secret: str | bytes) -> bytes:
    """Return a secret's bytes. `secret` is ``whsec_`` followed by base64, or the bytes themselves.

    Raises ValueError with a message that does not contain the secret.
    """
    if isinstance(secret, str):
        secret = _decoded(secret, SECRET, "a secret")
    if len(secret) < SHORTEST:
        raise ValueError(
            f"a secret of {len(secret)} bytes is too short, expected {SHORTEST} or more"
        )
    return secret


def private_key_of(text: str) -> PrivateKey:
    """Parse a private key: ``whsk_`` followed by base64.

    Raises ValueError with a message that does not contain the key.
    """
    data = _decoded(text, PRIVATE, "a private key")
    if len(data) not in (_SIZE, 2 * _SIZE):
        raise ValueError(
            f"a private key of {len(data)} bytes, expected 64 (or 32 without the public key)"
        )
    made = _private(data[:_SIZE])
    if data[_SIZE:] not in (b"", _raw(made)):
        raise ValueError("the two halves of the private key do not belong together")
    return made


def public_key_of(text: str) -> PublicKey:
    """Parse a public key: ``whpk_`` followed by base64. Raises ValueError."""
    data = _decoded(text, PUBLIC, "a public key")
    if len(data) != _SIZE:
        raise ValueError(f"a public key of {len(data)} bytes, expected {_SIZE}")
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise _missing() from None
    return Ed25519PublicKey.from_public_bytes(data)


def parse_key(text: str | bytes) -> Key:
    """Parse a secret or a public key, for verifying requests. Raises ValueError."""
    if isinstance(text, str):
        if text.strip().startswith(PUBLIC):
            return public_key_of(text)
        if text.strip().startswith(PRIVATE):
            raise ValueError(f"expected a secret or the public key ({PUBLIC}), not the private key")
    return key_of(text)


def _decoded(text: str, prefix: str, what: str) -> bytes:
    try:
        return base64.b64decode(text.strip().removeprefix(prefix).encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise ValueError(f"expected {what} of {prefix} and base64") from None


def _private(seed: bytes) -> PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise _missing() from None
    return Ed25519PrivateKey.from_private_bytes(seed)


def _raw(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _missing() -> ValueError:
    return ValueError(
        f"keys of {PRIVATE} and {PUBLIC} need the package cryptography: install hookmq-webhook-receiver[asymmetric]"
    )
