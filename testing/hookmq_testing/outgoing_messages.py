"""The messages that `AsyncioClient` publishes: those waiting, and those in flight."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from hookmq.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel

FAILURE: Final = 0x80
"""Reason codes from this value up are failures."""


class OutgoingMessages:
    """A client's QoS 1 and 2 messages by packet id, over a series of connections."""

    def __init__(self) -> None:
        self.queued: dict[int, Publish] = {}
        self.inflight: dict[int, Publish] = {}
        """The messages in flight, in the order in which they were sent."""
        self._released: set[int] = set()
        """Packet ids in flight for which PUBREC arrived."""

    def take(self, window: int) -> Iterator[Publish]:
        """Mark queued messages as in flight and yield them. At most `window` messages are in
        flight.
        """
        while self.queued and len(self.inflight) < window:
            number = next(iter(self.queued))
            self.inflight[number] = message = self.queued.pop(number)
            yield message

    def resume(self, present: bool) -> list[Packet]:
        """Return the packets to resend after CONNACK. Discard messages in flight if the session is not `present`."""
        if not present:
            self.inflight.clear()
            self._released.clear()
        return [
            Pubrel(number) if number in self._released else replace(message, dup=True)
            for number, message in self.inflight.items()
        ]

    def expects(self, packet: Puback | Pubrec | Pubcomp) -> bool:
        """Return whether `packet` may be the next acknowledgement of a message in flight."""
        message = self.inflight.get(packet.packet_id)
        if message is None:
            return False
        due: Any = Puback
        if message.qos == 2:
            due = (Pubrec, Pubcomp) if packet.packet_id in self._released else Pubrec
        return isinstance(packet, due)

    def acknowledge(self, packet: Puback | Pubrec | Pubcomp) -> Publish | None:
        """Handle an expected acknowledgement. Return the message if this is its last
        acknowledgement.
        """
        number = packet.packet_id
        if isinstance(packet, Pubrec) and packet.code < FAILURE:
            self._released.add(number)
            return None
        self._released.discard(number)
        return self.inflight.pop(number)
