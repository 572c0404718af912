"""Messages that are delivered to a plugin client.

PluginDelivery     what the plugin sees
  QueuedDelivery   a delivery that the broker tracks, such as one with a record
  PlainDelivery    a message that needed no decision, record or encoding; the broker keeps only its packet id
"""

from typing import TYPE_CHECKING, Any, Final

from hookmq.broker.plugin_batch import EACH
from hookmq.broker.published_events import client_message
from hookmq.model.client import ClientInfo
from hookmq.model.message import Message
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.inflight import Delivery

if TYPE_CHECKING:
    from hookmq.broker.plugin_mailbox import PluginMailbox

# Compiled code reads a module's own constants directly, and imported ones by name.
_EMPTY: Final = EMPTY
_SUCCESS: Final = ReasonCode.SUCCESS


class PluginDelivery:
    """A message for a plugin client; see `hookmq.hooks.clients.Delivery`."""

    __slots__ = ("mailbox", "payload", "qos", "topic", "weight")

    mailbox: "PluginMailbox"
    weight: int
    """The number of bytes to count for the message while it waits for the client."""
    topic: str
    """The topic, without the mount point."""
    payload: bytes
    """The payload."""
    qos: int
    """The QoS of the delivery."""

    @property
    def message(self) -> Message:
        """The message, with its topic as the client sees it."""
        raise NotImplementedError

    @property
    def dup(self) -> bool:
        """Whether the message may have been delivered before."""
        return False

    @property
    def retain(self) -> bool:
        """The RETAIN flag of the delivery."""
        return False

    @property
    def identifiers(self) -> tuple[int, ...]:
        """The identifiers of all matching subscriptions."""
        return ()

    def acknowledge(self, code: Any = _SUCCESS) -> None:
        """Acknowledge a QoS 1 or 2 message; see `hookmq.hooks.clients.Delivery`."""
        mailbox = self.mailbox
        if not mailbox.state.runtime.on_loop():
            mailbox.only_on_loop("acknowledge()")
        if code is not _SUCCESS and not isinstance(code, ReasonCode):
            raise mailbox.error(
                f"cannot acknowledge: the code is {type(code).__name__}, not ReasonCode"
            )
        if self.qos:
            self.settle(code)

    def settle(self, code: int) -> None:
        """Complete a QoS 1 or 2 delivery with this reason code."""
        raise NotImplementedError


class QueuedDelivery(PluginDelivery):
    """A delivery that the broker keeps until it is acknowledged. `message` is the message as the client sees it."""

    __slots__ = ("_delivery", "_dup", "_message")

    def __init__(
        self, mailbox: "PluginMailbox", delivery: Delivery, message: Message, dup: bool
    ) -> None:
        self.mailbox = mailbox
        self.weight = delivery.weight + EACH
        self.topic = message.topic
        self.payload = message.payload
        self.qos = delivery.qos
        self._message = message
        self._dup = dup
        self._delivery = delivery

    @property
    def message(self) -> Message:
        return self._message

    @property
    def dup(self) -> bool:
        return self._dup

    @property
    def retain(self) -> bool:
        return self._delivery.retain

    @property
    def identifiers(self) -> tuple[int, ...]:
        return self._delivery.identifiers

    def settle(self, code: int) -> None:
        self.mailbox.take_acknowledgement(self._delivery, code)


class PlainDelivery(PluginDelivery):
    """A delivery for which the broker keeps only the packet id (0 at QoS 0). The `Message` is created only when
    needed.
    """

    __slots__ = ("_at", "_made", "_message_qos", "_properties", "_sender", "number")

    def __init__(
        self, mailbox: "PluginMailbox", sender: ClientInfo, topic: str, payload: bytes, message_qos: int,
        properties: Properties, at: float, qos: int, number: int, message: Message | None,
    ) -> None:  # fmt: skip
        self.mailbox = mailbox
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.number = number
        """The packet id; 0 once it is free."""
        weight = len(topic) + len(payload) + EACH
        if properties is not _EMPTY:
            weight += properties.extent()
        self.weight = weight
        self._sender = sender
        self._message_qos = message_qos
        self._properties = properties
        self._at = at
        self._made = message

    @property
    def message(self) -> Message:
        made = self._made
        if made is None:
            made = self._made = client_message(
                self._at, self._sender, self.topic, self.payload, self._message_qos, self._properties,
            )  # fmt: skip
        return made

    def settle(self, code: int) -> None:
        number = self.number
        if number:
            self.number = 0
            self.mailbox.free(number, code, self)
