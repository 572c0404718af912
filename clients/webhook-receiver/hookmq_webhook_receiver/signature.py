"""Create and verify Standard Webhooks signatures (standardwebhooks.com).

There are two kinds of signatures, and both cover ``id.timestamp.body``. ``v1`` is an HMAC-SHA256 with a shared secret.
``v1a`` is an ed25519 signature with a private key. While a secret or a key is being replaced, requests are signed with
the old one and the new one. Signatures are separated by spaces, and one valid signature is enough.

Ed25519 needs the package cryptography, which the extra ``asymmetric`` installs.
"""

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping
from typing import Final

from hookmq_webhook_receiver.keys import Key, PrivateKey, PublicKey, parse_key

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE: Final = 300.0
"""Maximum age of a request in seconds."""
MAX_SIGNATURES: Final = 32
_ID: Final = re.compile(r"[!-\-/-~]{1,256}")
"""Valid ids. Dots are excluded because they separate the signed parts."""
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


class VerificationError(Exception):
    """The request was not signed with a known key, was modified, or is too old or too new.

    The message never contains a secret.
    """


def sign(
    id: str, timestamp: int, body: bytes, keys: Iterable[bytes | PrivateKey]
) -> dict[str, str]:
    """Return the three signature headers for a request.

    `keys` come from `hookmq_webhook_receiver.keys`, newest first. Secrets (bytes) create ``v1`` signatures, and private
    keys create ``v1a`` signatures. Raises ValueError for an invalid id.
    """
    if not _ID.fullmatch(id):
        raise ValueError(f"invalid id {id!r}")
    content = b"%b.%d.%b" % (id.encode(), timestamp, body)
    made = [
        f"v1,{_mac(key, content)}" if isinstance(key, bytes) else f"v1a,{_text(key.sign(content))}"
        for key in keys
    ]
    return {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(made)}


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | bytes | Iterable[str | bytes],
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> None:
    """Verify that a request was signed with one of `secrets`: shared secrets (``whsec_``) or public keys (``whpk_``).

    The timestamp must be within `tolerance` seconds of `now`, which is in seconds since 1970 and defaults to the current
    time. `headers` are the request's headers, with names in any case. `body` is the raw body as received. Signatures are
    compared in constant time. Raises VerificationError, and ValueError for an invalid secret.
    """
    found = [parse_key(one) for one in ([secrets] if isinstance(secrets, str | bytes) else secrets)]
    verify_with(headers, body, found, tolerance, now)


def verify_with(
    headers: Mapping[str, str],
    body: bytes,
    keys: Iterable[Key],
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> None:
    """Verify a request like `verify`, with keys that `parse_key` returned."""
    secrets: list[bytes] = []
    public: list[PublicKey] = []
    for key in keys:
        if isinstance(key, bytes):
            secrets.append(key)
        else:
            public.append(key)
    if not secrets and not public:
        raise ValueError("no secrets")
    found = _headers(headers)
    id, timestamp, signatures = found[ID], found[TIMESTAMP], found[SIGNATURE]
    if not _ID.fullmatch(id):
        raise VerificationError(f"{ID}: invalid id")
    if not _DIGITS.fullmatch(timestamp):
        raise VerificationError(f"{TIMESTAMP}: expected a number of seconds")
    versions = (["v1"] if secrets else []) + (["v1a"] if public else [])
    given = [one.partition(",") for one in signatures.split(" ")]
    usable = [(version, text) for version, _, text in given if version in versions]
    if not usable:
        raise VerificationError(f"{SIGNATURE}: no signature of version {' or '.join(versions)}")
    if len(usable) > MAX_SIGNATURES:
        raise VerificationError(f"{SIGNATURE}: more than {MAX_SIGNATURES} signatures")
    content = f"{id}.{timestamp}.".encode() + body
    fits = False
    for secret in secrets:
        made = _mac(secret, content).encode()
        for version, text in usable:
            if version == "v1":
                fits |= hmac.compare_digest(made, text.encode("utf-8", "replace"))
    for one in public:
        for version, text in usable:
            fits = fits or (version == "v1a" and _signed(one, text, content))
    if not fits:
        raise VerificationError(f"{SIGNATURE}: made with another secret, or for another body")
    age = (time.time() if now is None else now) - int(timestamp)
    if abs(age) > tolerance:
        when = f"{age:.0f} s old" if age > 0 else f"{-age:.0f} s ahead"
        raise VerificationError(f"{TIMESTAMP}: {when}, more than {tolerance:g} s")


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the three signature headers of a request. Raises VerificationError if one is missing or repeated."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()
        if name in (ID, TIMESTAMP, SIGNATURE):
            if name in found:
                raise VerificationError(f"{name}: repeated")
            found[name] = value
    for name in (ID, TIMESTAMP, SIGNATURE):
        if not found.get(name):
            raise VerificationError(f"{name}: missing")
    return found


def _signed(key: PublicKey, text: str, content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(base64.b64decode(text.encode("ascii"), validate=True), content)
    except (UnicodeEncodeError, binascii.Error, InvalidSignature):
        return False
    return True


def _mac(key: bytes, content: bytes) -> str:
    return _text(hmac.digest(key, content, hashlib.sha256))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
