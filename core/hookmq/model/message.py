"""Messages and wills. Both are immutable. Times are epoch seconds (`float`); intervals are seconds."""

from dataclasses import dataclass, replace
from typing import Any

from hookmq.mqtt.fast_constructor import fast_constructor
from hookmq.mqtt.properties import EMPTY, Properties, UserProperty


class _Slots:
    """The fields of a message. `fast_constructor` uses a different subclass of this class to set them."""

    __slots__ = (
        "expires_at", "origin", "payload", "properties", "qos", "received_at", "retain", "sender", "topic",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Message(_Slots):
    """A message on its way through the broker.

    - `properties`: the PUBLISH properties, except the topic alias and subscription identifiers, which apply to a
      single connection.
    - `sender`: the publisher's client id; None if the broker or a plugin publishes the message.
    - `origin`: where the message comes from: ``client``, ``will`` or ``plugin:ID``.
    - `received_at`: epoch seconds.
    - `expires_at`: epoch seconds; None for never [MQTT-3.3.2-5].
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = EMPTY
    sender: str | None = None
    origin: str = "client"
    received_at: float = 0.0
    expires_at: float | None = None

    @property
    def user_property(self) -> UserProperty:
        """The publisher's user properties, in order."""
        return self.properties.user_property or ()

    def replace(self, **changes: Any) -> "Message":
        """Return a copy with changed fields, for use in transform hooks."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, qos={self.qos}, retain={self.retain}, "
            f"payload=<{len(self.payload)} bytes>, sender={self.sender!r}, origin={self.origin!r})"
        )


make_message = fast_constructor(Message)
"""Construct a `Message` quickly. Used for every PUBLISH."""


@dataclass(frozen=True, slots=True)
class Will:
    """A will, and its delay in seconds after the connection ends [MQTT-3.1.2-8]."""

    message: Message
    delay: int = 0
