"""Direct deliveries: messages that a plugin sends to single clients, without routing them."""

from collections.abc import Sequence
from typing import Protocol

from hookmq.model.message import Message


class DirectDeliveries(Protocol):
    """Sends messages to single online clients. `BrokerHandle.deliveries` returns this object."""

    def send(self, client_id: str, filter: str, message: Message, token: object) -> bool:
        """Send a message at QoS 1 to the client's subscription `filter`. Return False if it cannot be sent now.

        It cannot be sent if the client is offline, has no such subscription, or has it only at QoS 0. It also cannot be
        sent if the client's Receive Maximum is used up, or if earlier messages are waiting for the client. Otherwise, the
        function passed to `deliveries` is called once with `token`, when the delivery has ended.

        Write `filter` as the client sent it. Nothing is stored: once the connection ends, the broker does not resend
        the message. `on_deliver` and `authorize` with DELIVER apply as for any other message. Raises PluginError in a
        thread, and for an invalid topic.
        """

    def send_run(
        self, client_id: str, filter: str, run: Sequence[tuple[Message, bytes, object]]
    ) -> int:
        """Send messages in order, as `send` does. Return how many were sent. Sending stops at the first message that
        cannot be sent now.

        Each item is (message, properties, token). `properties` contains extra user properties for MQTT 5 clients, to be
        sent after the message's own. They must be encoded without the section length. They may be empty, and are not
        checked.
        """
