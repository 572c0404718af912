"""This package's errors. All of them are QueueClientErrors."""

from typing import Final


class QueueClientError(Exception):
    """The base class of all errors in this package."""


class ConnectionLost(QueueClientError):
    """The connection ended before the broker answered."""


class BrokerUnavailable(QueueClientError):
    """The broker did not answer in time, or cannot be reached."""


class NotAvailable(QueueClientError):
    """The message's group settles by PUBACK, so the message can be neither given back nor rejected."""


class AlreadySettled(QueueClientError):
    """This process has already settled the message."""


class Refused(QueueClientError):
    """The broker refused a request. `code` is the MQTT reason code, and `reason` its explanation, which may be
    empty."""

    def __init__(self, request: str, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"the broker refused to {request}: 0x{code:02X}, {reason or 'no reason'}")


class QueueFull(Refused):
    """The queue is full and refuses messages: 0x97, Quota exceeded."""


class UnknownQueue(Refused):
    """There is no such queue or group: 0x90, Topic name invalid, or 0x8F, Topic filter invalid."""


class NotAuthorized(Refused):
    """The client may not do this: 0x87."""


class ConnectionRefused(Refused):
    """The broker refused the connection, for example because of a wrong password."""


_CLASSES: Final[dict[int, type[Refused]]] = {
    0x87: NotAuthorized,
    0x8F: UnknownQueue,
    0x90: UnknownQueue,
    0x97: QueueFull,
}


def refused(request: str, code: int, reason: str) -> Refused:
    """Return the error for a reason code of a PUBACK, SUBACK or UNSUBACK."""
    if code == 0x97 and request.startswith("subscribe"):
        return Refused(request, code, reason)  # too many consumers
    return _CLASSES.get(code, Refused)(request, code, reason)
