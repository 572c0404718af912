"""Types of hook arguments: actions, dropped messages, session events and disconnect reasons."""

from dataclasses import dataclass
from enum import StrEnum

from hookmq.mqtt.reason_codes import ReasonCode


class Action(StrEnum):
    """An action that `authorize` decides on."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    DELIVER = "deliver"
    WILL = "will"


class DeliveryEnd(StrEnum):
    """How a direct delivery ended; see `BrokerHandle.deliveries`.

    ACKNOWLEDGED: the client has acknowledged the message. LOST: the connection or the session ended first. DROPPED: the
    message was not sent, because it had expired, was too large for the client, or was refused by a plugin.
    """

    ACKNOWLEDGED = "acknowledged"
    LOST = "lost"
    DROPPED = "dropped"


class DropReason(StrEnum):
    """The reason why a message was dropped. Every dropped message is counted under one reason."""

    DENIED = "denied"
    UNDECIDED = "undecided"
    PLUGIN = "plugin"
    QUEUE_FULL = "queue_full"
    QUEUE_BYTES = "queue_bytes"
    OFFLINE_QOS0 = "offline_qos0"
    EXPIRED = "expired"
    TOO_LARGE = "too_large"
    REVOKED = "revoked"
    SESSION_ENDED = "session_ended"
    CLIENT_LEFT = "client_left"
    REFUSED = "refused"
    """The subscriber acknowledged the message with a reason code of 0x80 or above."""
    RETAIN_LIMIT = "retain_limit"
    RATE_LIMITED = "rate_limited"
    DEPTH = "depth"
    """Plugins published messages in response to messages more than ``broker.publish_depth`` times in a row."""


class Direction(StrEnum):
    """Whether a dropped message was on its way into the broker or out of it."""

    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class Dropped:
    """The reason and direction of a dropped message. `client_id` is the publisher's (in) or the
    subscriber's (out).
    """

    reason: DropReason
    direction: Direction
    client_id: str | None
    detail: str = ""


class SessionEvent(StrEnum):
    """An event in a session's lifetime, for `on_session`."""

    CREATED = "created"
    RESUMED = "resumed"
    TAKEN_OVER = "taken_over"
    EXPIRED = "expired"
    ENDED = "ended"


class EndedBy(StrEnum):
    """What ended a connection."""

    CLIENT = "client"
    SERVER = "server"
    NETWORK = "network"
    TAKEOVER = "takeover"


@dataclass(frozen=True, slots=True)
class DisconnectReason:
    """How a connection ended.

    `code` is the reason code that was received or sent. `will` is True if a will was published or
    is still due. `error` describes the failure, if any.
    """

    code: ReasonCode
    by: EndedBy
    will: bool = False
    error: str = ""
