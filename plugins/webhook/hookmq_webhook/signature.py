"""Signatures as Standard Webhooks has them (standardwebhooks.com): made here, and verified by receivers.

``webhook-signature`` is ``v1,`` and the base64 of HMAC-SHA256 over ``id.timestamp.body``. While a secret is changed for
another both sign, separated by a space, and whoever knows one of them is satisfied. Nothing of HookMQ is imported.
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
"""Bytes of a secret, at least."""
MAX_SIGNATURES: Final = 32
_ID: Final = re.compile(r"[!-\-/-~]{1,256}")
"""Without dots: they are between what is signed, and one in the id would let the rest be read as other parts."""
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


class VerificationError(Exception):
    """The request is not from who knows the secret, was changed, or is an old one sent again. It never holds a secret."""


def new_secret() -> str:
    """A secret of 32 random bytes, as it is written in a configuration."""
    return PREFIX + base64.b64encode(os.urandom(32)).decode()


def key_of(secret: str | bytes) -> bytes:
    """The bytes of a secret: ``whsec_`` and base64, or the bytes themselves. Raises ValueError, without the secret."""
    if isinstance(secret, str):
        text = secret.strip().removeprefix(PREFIX)
        try:
            secret = base64.b64decode(text.encode("ascii"), validate=True)
        except (UnicodeEncodeError, binascii.Error):
            raise ValueError(f"a secret is {PREFIX} and base64") from None
    if len(secret) < SHORTEST:
        raise ValueError(f"a secret of {len(secret)} bytes: {SHORTEST} at least")
    return secret


def sign(id: str, timestamp: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """The three headers; `keys` as `key_of` gives them, the newest first. Raises ValueError for an id that is none."""
    if not _ID.fullmatch(id):
        raise ValueError(f"not an id to sign: {id!r}")
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
    """Return if the request was signed with one of `secrets` at most `tolerance` seconds ago, or ahead.

    `headers` are the request's, in any case; `body` is what came, byte for byte, before any parsing. `now` is in seconds
    since 1970. Takes the same time whichever secret fits. Raises VerificationError otherwise, ValueError for a secret
    that is none.
    """
    keys = [key_of(one) for one in ([secrets] if isinstance(secrets, str | bytes) else secrets)]
    if not keys:
        raise ValueError("no secrets")
    found = _headers(headers)
    id, timestamp, signatures = found[ID], found[TIMESTAMP], found[SIGNATURE]
    if not _ID.fullmatch(id):
        raise VerificationError(f"{ID}: not an id")
    if not _DIGITS.fullmatch(timestamp):
        raise VerificationError(f"{TIMESTAMP}: not a number of seconds")
    given = [one[3:] for one in signatures.split(" ") if one.startswith("v1,")]
    if not given:
        raise VerificationError(f"{SIGNATURE}: none of version v1")
    if len(given) > MAX_SIGNATURES:
        raise VerificationError(f"{SIGNATURE}: more than {MAX_SIGNATURES}")
    content = f"{id}.{timestamp}.".encode() + body
    fits = False
    for key in keys:
        made = _mac(key, content).encode()
        for one in given:
            fits |= hmac.compare_digest(made, one.encode("utf-8", "replace"))
    if not fits:
        raise VerificationError(f"{SIGNATURE}: made with another secret, or of another body")
    age = (time.time() if now is None else now) - int(timestamp)
    if abs(age) > tolerance:
        when = f"{age:.0f} s old" if age > 0 else f"{-age:.0f} s ahead"
        raise VerificationError(f"{TIMESTAMP}: {when}, more than {tolerance:g} s")


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The three, each there once."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()
        if name in (ID, TIMESTAMP, SIGNATURE):
            if name in found:
                raise VerificationError(f"{name}: there twice")
            found[name] = value
    for name in (ID, TIMESTAMP, SIGNATURE):
        if not found.get(name):
            raise VerificationError(f"{name}: missing")
    return found


def _mac(key: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
