"""Packet ids and messages in flight: an outgoing message, its deliveries, and their packet ids.

Client and server use separate sets of packet ids. An outbound id is in use until its delivery is finished
[MQTT-2.2.1-4]:

    QoS 1:  PUBLISH --PUBACK--> free
    QoS 2:  PUBLISH --PUBREC--> PUBREL --PUBCOMP--> free;  PUBREC of 0x80 or above frees at once [MQTT-4.3.3-9]
"""

from collections.abc import Callable
from typing import Final, Protocol

from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.properties import EMPTY

_EMPTY: Final = EMPTY  # compiled code reads a module's own constants directly
PACKET_IDS: Final = tuple(number.to_bytes(2, "big") for number in range(65536))
"""Every packet id, encoded in two bytes."""

PUBACK: Final = b"\x40\x02"
PUBREC: Final = b"\x50\x02"
PUBREL: Final = b"\x62\x02"
PUBCOMP: Final = b"\x70\x02"
"""The fixed headers of successful acknowledgements. The packet id follows the header."""


class Outgoing:
    """A message and its encodings, shared by all sessions that receive it.

    `id` is the message's id in the store, or 0 if the message is not stored. `uses` counts the message's queue entries.
    `record_index` is the index of its record in the batch being collected (see `group_commit`). `forms` caches each
    encoding as (head, tail), so that it is made only once. The key is (version is 5, QoS is above 0, retain, identifiers,
    seconds to expiry).
    """

    __slots__ = ("forms", "id", "message", "record_index", "size", "uses")

    def __init__(self, message: Message, id: int = 0) -> None:
        self.message = message
        self.id = id
        self.uses = 0
        self.record_index = 0
        # Count everything that the sender can make large, not just the payload.
        self.size = len(message.payload) + len(message.topic)
        if message.properties is not _EMPTY:
            self.size += message.properties.extent()
        self.forms: dict[tuple[bool, int, bool, tuple[int, ...], int], tuple[bytes, bytes]] | None
        self.forms = None

    def without_id(self) -> "Outgoing":
        """Return a copy without an id, for later recipients. It needs a new id, because the store deletes the old one
        along with its last queue entry.
        """
        if self.forms is None:
            self.forms = {}
        other = Outgoing(self.message)
        other.forms = self.forms
        return other


class Acknowledgement:
    """An acknowledgement that waits until `left` conditions are met and all earlier acknowledgements have been sent.

    The conditions are the commit it depends on, the last slice of a fan-out, and the start of deliveries under
    back-pressure. When all are met, `release` is called.
    """

    __slots__ = ("data", "left", "publishes", "release", "then")

    def __init__(self, release: Callable[[], None], data: bytes = b"", publishes: int = 0) -> None:
        self.left = 0
        self.data = data
        self.publishes = publishes
        """Number of QoS 1 PUBLISH packets it acknowledges. Until it is sent, they count against Receive Maximum."""
        self.release = release
        self.then: Callable[[], None] | None = None
        """Called after the acknowledgement was sent, to send packets that must not precede it."""

    def add_condition(self) -> None:
        """Wait for one more condition."""
        self.left += 1

    def met(self) -> None:
        """Mark one condition as met."""
        self.left -= 1
        if self.left == 0:
            self.release()


class QueueOwner(Protocol):
    """The shared subscription that a delivery came from."""

    owner: str


class Delivery:
    """One message for one session: queued, in flight or released.

    `seq` is the delivery's position in the durable queue, or 0 if it has none. `group` is the shared subscription that
    the message came from. The message returns there if the session ends before acknowledging it [MQTT-4.8.2-4]. `batch`
    is the commit that contains its queue entry, at index `position`; 0 if there is none. Without records, `position` is
    the position in the queue. `owner` is the owner of the queue if the records have not been created yet.
    """

    __slots__ = (
        "batch", "group", "identifiers", "original", "outgoing", "owner", "packet_id", "position", "qos",
        "released", "retain", "sent_at", "seq", "subscription", "waiter", "weight",
    )  # fmt: skip

    def __init__(
        self,
        outgoing: Outgoing,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        subscription: Subscription,
        group: QueueOwner | None = None,
        seq: int = 0,
    ) -> None:
        self.outgoing = outgoing
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.subscription = subscription
        self.group = group
        self.seq = seq
        self.weight = outgoing.size + 4 * len(identifiers) if identifiers else outgoing.size
        """Bytes that count against limits while this waits. Its own identifiers may be larger than the message."""
        self.packet_id = 0
        self.owner = ""
        self.batch = 0
        self.position = 0
        self.released = False
        self.sent_at = 0.0
        """When the delivery was last sent, for retransmission; infinite while it waits for its record."""
        self.waiter: Acknowledgement | None = None
        self.original: Message | None = None
        """The original message, if a plugin changed it for this session; otherwise None."""


_NO_SUBSCRIPTION: Final = Subscription("", "")
_NOTHING: Final = Outgoing(Message("", b""))
VOLATILE_1: Final = Delivery(_NOTHING, 1, False, (), _NO_SUBSCRIPTION)
VOLATILE_2: Final = Delivery(_NOTHING, 2, False, (), _NO_SUBSCRIPTION)
VOLATILE_RELEASED: Final = Delivery(_NOTHING, 2, False, (), _NO_SUBSCRIPTION)
"""Deliveries in flight to clean sessions, whose messages are never needed again. All such deliveries share these three
objects.
"""


def take_packet_id(inflight: dict[int, Delivery], last: int) -> int:
    """Return the next free packet id after `last`, in 1 to 65535 [MQTT-2.2.1-3, 2.2.1-4]. An id is always free,
    because the window is smaller than the range.
    """
    number = last + 1 if last < 65535 else 1
    while number in inflight:
        number = number + 1 if number < 65535 else 1
    return number
