"""A fan-out too large for one turn: its message, its recipients and its progress."""

from hookmq.mqtt.encoder import encode_publish_parts
from hookmq.mqtt.property_section import encode_properties
from hookmq.routing.route import Recipient, Route
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.inflight import Acknowledgement, Outgoing
from hookmq.session.session import Session


class FanOutJob:
    """The delivery of one message to many recipients. `done` is the number of recipients served so far.

    The first `kept` recipients are shared subscriptions and durable sessions.
    """

    __slots__ = (
        "acknowledgement", "done", "kept", "outgoing", "packets", "recipients", "route", "sender", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        outgoing: Outgoing,
        route: Route,
        sender: Session | None,
        acknowledgement: Acknowledgement | None,
        waiter: Acknowledgement | None,
    ) -> None:
        self.outgoing = outgoing
        self.route = route
        self.recipients: tuple[Recipient | SharedSubscription, ...] = route.recipients
        self.sender = sender
        self.acknowledgement = acknowledgement
        self.waiter = waiter
        self.done = 0
        self.kept = 0
        message = outgoing.message
        shared = not (message.qos or message.retain or message.expires_at is not None)
        self.packets: dict[int, bytes] | None = {} if shared else None
        """The packet for plain receivers, by encoding version; None if receivers may get different messages."""

    def packet(self, version: int, largest: int) -> bytes:
        """Return the packet for plain receivers that use encoding version 3 or 5. The result is empty if each receiver
        needs its own packet.

        `largest` is the largest packet size in bytes that every connection accepts.
        """
        if self.packets is None:
            return b""
        found = self.packets.get(version)
        if found is None:
            message = self.outgoing.message
            section = encode_properties(message.properties) if version == 5 else None
            head, tail = encode_publish_parts(
                message.topic.encode(), message.payload, 0, False, False, section
            )
            found = head + tail
            if len(found) > largest:  # a plugin enlarged it
                found = b""
            self.packets[version] = found
        return found
