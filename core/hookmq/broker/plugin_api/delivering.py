"""The call that plugins use to deliver messages to single clients."""

from collections.abc import Callable, Sequence

from hookmq.broker.direct_deliveries import DirectSender
from hookmq.broker.plugin_api.base import HandleBase
from hookmq.hooks.direct_deliveries import DirectDeliveries
from hookmq.model.events import DeliveryEnd
from hookmq.model.message import Message
from hookmq.mqtt.topics import MAX_BYTES


class Delivering(HandleBase):
    """The method of a plugin's handle that delivers messages directly to clients."""

    __slots__ = ()

    def deliveries(
        self, ended: Callable[[list[tuple[object, DeliveryEnd]]], None]
    ) -> DirectDeliveries:
        """Return an object that delivers messages directly to single clients."""
        self._only_on_loop("deliveries()")

        def failed(error: Exception) -> None:
            self._instance.kept.callbacks.failed(f"ended: {error!r}", cause=error)

        return CheckedDeliveries(self, DirectSender(self._state, ended, failed))


class CheckedDeliveries:
    """Checks a plugin's arguments; see `hookmq.hooks.direct_deliveries.DirectDeliveries`."""

    __slots__ = ("_handle", "_sender")

    def __init__(self, handle: Delivering, sender: DirectSender) -> None:
        self._handle = handle
        self._sender = sender

    def send(self, client_id: str, filter: str, message: Message, token: object) -> bool:
        """Send a message to one subscription of a client. Return False if it cannot be sent now."""
        handle = self._handle
        handle._only_on_loop("deliveries().send()")
        handle._check_types(
            "deliver", ("client_id", client_id, str), ("filter", filter, str), ("message", message, Message)
        )  # fmt: skip
        handle._check_topic(message.topic, "deliver", MAX_BYTES)
        return self._sender.send(client_id, filter, message, token)

    def send_run(
        self, client_id: str, filter: str, run: Sequence[tuple[Message, bytes, object]]
    ) -> int:
        """Send messages to one subscription of a client. Return how many were sent."""
        handle = self._handle
        handle._only_on_loop("deliveries().send_run()")
        handle._check_types("deliver", ("client_id", client_id, str), ("filter", filter, str))
        topic = ""
        for message, properties, _ in run:
            if type(message) is not Message or type(properties) is not bytes:
                handle._check_types(
                    "deliver", ("message", message, Message), ("properties", properties, bytes)
                )
            if message.topic != topic:
                topic = message.topic
                handle._check_topic(topic, "deliver", MAX_BYTES)
        return self._sender.send_run(client_id, filter, run)
