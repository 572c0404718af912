"""Direct deliveries: messages that a plugin sends to single clients, without routing them."""

from collections.abc import Sequence
from typing import Protocol

from hookmq.model.message import Message


class DirectDeliveries(Protocol):
    """Sends messages to single online clients, as returned by `BrokerHandle.deliveries`."""

    def send(self, client_id: str, filter: str, message: Message, token: object) -> bool:
        """Send a message at QoS 1 to the client's subscription `filter`. Return False if it cannot be sent now.

        It cannot be sent if the client is offline, has no such subscription, or granted it only QoS 0. It also cannot
        be sent if the client's Receive Maximum is used up, or if earlier messages are waiting for the client.
        Otherwise, the function passed to `deliveries` is called once with `token`, when the delivery has ended.

        `filter` is written as the client sent it. Nothing is stored: after the connection has ended, the broker does not
        send the message again. `on_deliver` and `authorize` with DELIVER decide on it as on any other message. Raises
        PluginError in a thread, and for an invalid topic.
        """

    def send_run(
        self, client_id: str, filter: str, run: Sequence[tuple[Message, bytes, object]]
    ) -> int:
        """Send messages in order, as `send` does. Return how many were sent: the first that cannot be sent now and those
        after it are not.

        An item is (message, properties, token). `properties` are user properties that MQTT 5 clients get after those
        of the message, encoded without the length of the section; it may be empty. They are not checked.
        """
