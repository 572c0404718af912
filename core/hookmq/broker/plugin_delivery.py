"""Messages that are delivered to a plugin client."""

from typing import TYPE_CHECKING, Any, Final

from hookmq.model.message import Message
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.inflight import Delivery

if TYPE_CHECKING:
    from hookmq.broker.plugin_mailbox import PluginMailbox

EACH: Final = 64
"""Bytes to count for each waiting packet or message in addition to its content."""


class PluginDelivery:
    """A message for a plugin client; see `hookmq.hooks.clients.Delivery`."""

    __slots__ = ("_connection", "_delivery", "dup", "message")

    def __init__(
        self, connection: "PluginMailbox", delivery: Delivery, message: Message, dup: bool
    ) -> None:
        self.message = message
        self.dup = dup
        self._delivery = delivery
        self._connection = connection

    @property
    def qos(self) -> int:
        """The QoS of the delivery."""
        return self._delivery.qos

    @property
    def retain(self) -> bool:
        """The RETAIN flag of the delivery."""
        return self._delivery.retain

    @property
    def identifiers(self) -> tuple[int, ...]:
        """The identifiers of the matching subscriptions."""
        return self._delivery.identifiers

    @property
    def weight(self) -> int:
        """The number of bytes to count for the message while it waits for the client."""
        return self._delivery.weight + EACH

    def acknowledge(self, code: Any = ReasonCode.SUCCESS) -> None:
        """Acknowledge a QoS 1 or 2 message; see `hookmq.hooks.clients.Delivery`."""
        connection = self._connection
        connection.only_on_loop("acknowledge()")
        if not isinstance(code, ReasonCode):
            raise connection.error(
                f"cannot acknowledge: the code is {type(code).__name__}, not ReasonCode"
            )
        if self._delivery.qos:
            connection.take_acknowledgement(self._delivery, code)
