"""Describe why requests fail, for the log, dead letters and metric labels.

A reason begins with one of `WORDS`. A colon and details may follow. If the reason is a status, it includes the number,
as in ``status 503``.
"""

from typing import Final

from hookmq_toolkit.network_errors import TIMEOUT, network_reason, reason_word
from hookmq_toolkit.network_errors import WORDS as NETWORK

from hookmq_webhook.auth import Unauthorized
from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.destinations import Refused
from hookmq_webhook.http_client import ConnectTimeout
from hookmq_webhook.http_connection import ExchangeFailed

STATUS: Final = "status"
REDIRECT: Final = "too many redirects"
DESTINATION: Final = "destination"
TOKEN: Final = "token"
UNSENDABLE: Final = "cannot be sent"
_OURS: Final = frozenset({STATUS, REDIRECT, DESTINATION, TOKEN, UNSENDABLE})
WORDS: Final = NETWORK | _OURS


def failure(error: BaseException, config: WebhookConfig) -> str:
    """Return why a request failed. The text never contains the request, the response or a token."""
    if isinstance(error, Unauthorized):
        return f"{TOKEN}: {error}"
    if isinstance(error, Refused):
        return f"{DESTINATION}: {error}"
    if isinstance(error, ExchangeFailed):
        return str(error)
    if isinstance(error, ConnectTimeout):
        return f"{TIMEOUT}: no connection within {config.connect_timeout:g} s"
    reason = network_reason(error)
    if reason == TIMEOUT and isinstance(error, TimeoutError):
        return f"{TIMEOUT}: no answer within {config.timeout:g} s"
    return reason


def word_of(reason: str) -> str:
    """Return the word in `WORDS` that a reason begins with, for use as a metric label."""
    return STATUS if reason.startswith(f"{STATUS} ") else reason_word(reason, _OURS)
