"""Describe why a remote broker cannot be used, and determine whether an operator must act."""

import asyncio
import errno
import socket
import ssl
from typing import Final

from hookmq.mqtt_api import Connack, ReasonCode
from hookmq.plugin import HookMQError

_V3: Final = {
    1: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    2: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    3: ReasonCode.SERVER_UNAVAILABLE,
    4: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    5: ReasonCode.NOT_AUTHORIZED,
}
_OPERATOR: Final = frozenset(
    {
        ReasonCode.MALFORMED_PACKET,
        ReasonCode.PROTOCOL_ERROR,
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BANNED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
        ReasonCode.SESSION_TAKEN_OVER,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.RETAIN_NOT_SUPPORTED,
        ReasonCode.QOS_NOT_SUPPORTED,
        ReasonCode.SERVER_MOVED,
    }
)
REFUSED: Final = frozenset(
    {
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    }
)
"""Reason codes of acknowledgements that mean the same message would be refused again."""


class LinkError(HookMQError):
    """The remote broker cannot be used. `permanent` is True if an operator must act."""

    def __init__(self, reason: str, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent


def code_text(code: int) -> str:
    """Describe a reason code in words."""
    try:
        return f"{ReasonCode(code).text} (0x{code:02X})"
    except ValueError:
        return f"reason code 0x{code:02X}"


def refused_connack(connack: Connack, version: int) -> LinkError:
    """Return the error for a CONNACK that refuses the bridge."""
    code = connack.code if version == 5 else _V3.get(connack.code, connack.code)
    text = f"the remote broker refused the bridge: {code_text(code)}"
    if connack.properties.reason_string:
        text += f": {connack.properties.reason_string[:200]}"
    if connack.properties.server_reference:
        text += f"; it names another server: {connack.properties.server_reference[:200]}"
    return LinkError(text, code in _OPERATOR)


def disconnected(code: int, reason: str | None) -> LinkError:
    """Return the error for a DISCONNECT from the remote broker."""
    text = f"the remote broker closed the connection: {code_text(code)}"
    if code == ReasonCode.SESSION_TAKEN_OVER:
        text += "; does another bridge use the same client id?"
    if reason:
        text += f": {reason[:200]}"
    return LinkError(text, code in _OPERATOR)


def network_error(error: BaseException) -> LinkError:
    """Return the error for an exception raised while connecting."""
    if isinstance(error, LinkError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return LinkError(f"certificate: {error.verify_message}", True)
    if isinstance(error, ssl.SSLError):
        return LinkError(f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}", True)
    if isinstance(error, socket.gaierror):
        return LinkError("unknown host")
    if isinstance(error, asyncio.TimeoutError):
        return LinkError("no answer in time")
    if isinstance(error, ConnectionRefusedError):
        return LinkError("connection refused")
    if isinstance(error, OSError):
        text = errno.errorcode.get(error.errno or 0, "")
        known = {
            "ENETUNREACH": "network unreachable",
            "EHOSTUNREACH": "host unreachable",
            "ECONNRESET": "connection reset",
        }
        return LinkError(
            known.get(text, (error.strerror or str(error) or type(error).__name__).lower())
        )
    return LinkError(f"{type(error).__name__}: {error}")
