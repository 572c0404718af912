"""Create and verify Standard Webhooks signatures (standardwebhooks.com).

``webhook-signature`` is ``v1,`` followed by the HMAC-SHA256 of ``id.timestamp.body`` in base64. While a secret is being
replaced, requests are signed with both secrets. The signatures are separated by a space, and one valid signature is
enough. This module does not import anything else from HookMQ.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Final

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
PREFIX: Final = "whsec_"
SHORTEST: Final = 24
"""Minimum length of a secret in bytes."""
MAX_SIGNATURES: Final = 32
_ID: Final = re.compile(r"[!-\-/-~]{1,256}")
"""Valid ids. Dots are excluded because they separate the signed parts."""
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


class VerificationError(Exception):
    """The request was not signed with a known secret, was modified, or is too old or too new.

    The message never contains a secret.
    """


def new_secret() -> str:
    """Return a random 32-byte secret in the format that the configuration expects."""
    return PREFIX + base64.b64encode(os.urandom(32)).decode()


def key_of(secret: str | bytes) -> bytes:
    """Return a secret's bytes. `secret` is a string of ``whsec_`` and base64, or already the bytes.

    Raises ValueError with a message that does not contain the secret.
    """
    if isinstance(secret, str):
        text = secret.strip().removeprefix(PREFIX)
        try:
            secret = base64.b64decode(text.encode("ascii"), validate=True)
        except (UnicodeEncodeError, binascii.Error):
            raise ValueError(f"expected a secret of {PREFIX} and base64") from None
    if len(secret) < SHORTEST:
        raise ValueError(
            f"a secret of {len(secret)} bytes is too short, expected {SHORTEST} or more"
        )
    return secret


def sign(id: str, timestamp: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """Return the three signature headers for a request.

    `keys` come from `key_of`, newest first. Raises ValueError for an invalid id.
    """
    if not _ID.fullmatch(id):
        raise ValueError(f"invalid id {id!r}")
    content = b"%b.%d.%b" % (id.encode(), timestamp, body)
    return {
        ID: id,
        TIMESTAMP: str(timestamp),
        SIGNATURE: " ".join(f"v1,{_mac(key, content)}" for key in keys),
    }


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | bytes | Iterable[str | bytes],
    tolerance: float = 300,
    now: float | None = None,
) -> None:
    """Verify that a request was signed with one of `secrets`.

    The timestamp must be within `tolerance` seconds of `now`, which is in seconds since 1970 and by default the current
    time. `headers` are the request's headers, with names in any case. `body` is the raw body as received. Signatures are
    compared in constant time. Raises VerificationError, and ValueError for an invalid secret.
    """
    keys = [key_of(one) for one in ([secrets] if isinstance(secrets, str | bytes) else secrets)]
    if not keys:
        raise ValueError("no secrets")
    found = _headers(headers)
    id, timestamp, signatures = found[ID], found[TIMESTAMP], found[SIGNATURE]
    if not _ID.fullmatch(id):
        raise VerificationError(f"{ID}: invalid id")
    if not _DIGITS.fullmatch(timestamp):
        raise VerificationError(f"{TIMESTAMP}: expected a number of seconds")
    given = [one[3:] for one in signatures.split(" ") if one.startswith("v1,")]
    if not given:
        raise VerificationError(f"{SIGNATURE}: no signature of version v1")
    if len(given) > MAX_SIGNATURES:
        raise VerificationError(f"{SIGNATURE}: more than {MAX_SIGNATURES} signatures")
    content = f"{id}.{timestamp}.".encode() + body
    fits = False
    for key in keys:
        made = _mac(key, content).encode()
        for one in given:
            fits |= hmac.compare_digest(made, one.encode("utf-8", "replace"))
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


def _mac(key: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
