"""Describe why a connection or an HTTP request failed, for logs, status pages and metric labels.

`network_reason` returns one of `WORDS`, sometimes followed by a colon and details. `reason_word` returns the word
alone, so the number of metric labels is bounded. No reason contains data from the request or the response.
"""

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Final

REFUSED: Final = "connection refused"
RESET: Final = "connection reset"
CLOSED: Final = "connection closed"
UNREACHABLE: Final = "unreachable"
UNKNOWN_HOST: Final = "unknown host"
TIMEOUT: Final = "timeout"
EXPIRED: Final = "certificate expired"
NOT_YET_VALID: Final = "certificate not yet valid"
REVOKED: Final = "certificate revoked"
NOT_TRUSTED: Final = "certificate not trusted"
WRONG_HOST: Final = "wrong host"
TLS: Final = "TLS"
MALFORMED: Final = "malformed answer"
OTHER: Final = "other"
WORDS: Final = frozenset(
    {
        REFUSED, RESET, CLOSED, UNREACHABLE, UNKNOWN_HOST, TIMEOUT, EXPIRED, NOT_YET_VALID, REVOKED, NOT_TRUSTED,
        WRONG_HOST, TLS, MALFORMED, OTHER,
    }
)  # fmt: skip
"""The words that a reason can begin with."""

# OpenSSL's X509_V_ERR_* codes, which the module `ssl` does not name.
_VERIFY_CODES: Final = {9: NOT_YET_VALID, 10: EXPIRED, 23: REVOKED, 62: WRONG_HOST, 64: WRONG_HOST}
_ERRNO: Final = {
    errno.ECONNREFUSED: REFUSED,
    errno.ECONNRESET: RESET,
    errno.ECONNABORTED: RESET,
    errno.EPIPE: RESET,
    errno.ENETUNREACH: UNREACHABLE,
    errno.EHOSTUNREACH: UNREACHABLE,
    errno.ENETDOWN: UNREACHABLE,
    errno.ETIMEDOUT: TIMEOUT,
}
# aiohttp's errors without a cause to examine. They are identified by name, so that this module does not import aiohttp.
_NAMES: Final = {
    "ServerDisconnectedError": f"{CLOSED}: before the answer",
    "ClientPayloadError": f"{CLOSED}: the answer is incomplete",
    "ClientConnectionResetError": RESET,
    "ConnectionTimeoutError": f"{TIMEOUT}: no connection",
    "ClientResponseError": MALFORMED,
}


def network_reason(error: BaseException) -> str:
    """Return why a connection or a request failed. `error` is an exception from asyncio, `ssl`, `socket` or aiohttp."""
    chain = list(_chain(error))
    # The most specific cause is the innermost one.
    for one in reversed(chain):
        found = _socket_reason(one)
        if found:
            return found
    for one in chain:
        for kind in type(one).__mro__:
            if kind.__name__ in _NAMES:
                return _NAMES[kind.__name__]
    if any(isinstance(one, TimeoutError) for one in chain):
        return TIMEOUT
    return f"{OTHER}: {type(error).__name__}"


def reason_word(reason: str, more: frozenset[str] = frozenset()) -> str:
    """Return the word at the start of `reason` if it is in `WORDS` or `more`, and otherwise ``other``."""
    word = reason.partition(":")[0]
    return word if word in WORDS or word in more else OTHER


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes, including those that aiohttp stores in attributes."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [getattr(one, "certificate_error", None), getattr(one, "os_error", None)]
        waiting.append(one.__cause__)


def _socket_reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        found = _VERIFY_CODES.get(error.verify_code)
        return found or f"{NOT_TRUSTED}: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        text = (error.reason or type(error).__name__).lower().replace("_", " ")
        return f"{TLS}: {text}"
    if isinstance(error, socket.gaierror):
        temporary = error.errno == socket.EAI_AGAIN
        return f"{UNKNOWN_HOST}: the name service does not answer" if temporary else UNKNOWN_HOST
    if isinstance(error, OSError) and type(error).__module__ == "builtins":
        return _ERRNO.get(error.errno or 0, "")
    return _ERRNO.get(getattr(error, "errno", None) or 0, "")
