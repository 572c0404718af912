"""Packet identifiers and what is in flight: a message on its way out, its deliveries, and the ids they travel under.

Server and client ids are independent spaces. An outbound id is taken while its delivery is unfinished [MQTT-2.2.1-4]:

    QoS 1:  PUBLISH --PUBACK--> free
    QoS 2:  PUBLISH --PUBREC--> PUBREL --PUBCOMP--> free;  PUBREC of 0x80 or above frees at once [MQTT-4.3.3-9]
"""

from collections.abc import Callable
from typing import Final, Protocol

from hookmq.properties import EMPTY
from hookmq.types import Message, Subscription

PACKET_IDS: Final = tuple(number.to_bytes(2, "big") for number in range(65536))
"""Every packet id as it stands on the wire."""

PUBACK: Final = b"\x40\x02"
PUBREC: Final = b"\x50\x02"
PUBREL: Final = b"\x62\x02"
PUBCOMP: Final = b"\x70\x02"
"""Fixed headers of successful acknowledgements, to be followed by the packet id."""


class Outgoing:
    """A message and its encodings, shared by every session that gets it.

    `id` is its id in the store, 0 where no durable queue holds it; `uses` counts the queue entries recorded of it, and
    `place` is where the batch that collects has it (see `broker.committer`). `forms` caches (head, tail) by (version is
    5, QoS is above 0, retain, identifiers, seconds to expiry): encoded once however many subscribers.
    """

    __slots__ = ("forms", "id", "message", "place", "size", "uses")

    def __init__(self, message: Message, id: int = 0) -> None:
        self.message = message
        self.id = id
        self.uses = 0
        self.place = 0
        # Everything that its sender may make large: an empty payload does not make a message small.
        self.size = len(message.payload) + len(message.topic)
        if message.properties is not EMPTY:
            self.size += message.properties.extent()
        self.forms: dict[tuple[bool, int, bool, tuple[int, ...], int], tuple[bytes, bytes]] | None
        self.forms = None

    def anew(self) -> "Outgoing":
        """The same message for whoever comes later: once the last queue entry of the others is gone the store has
        forgotten its id, so that it must be kept under another."""
        if self.forms is None:
            self.forms = {}
        other = Outgoing(self.message)
        other.forms = self.forms
        return other


class Acknowledgement:
    """An answer to a client that leaves when `left` conditions are met, and not before the answers ahead of it: the
    commit it relies on, the last slice of a fan-out, the start of deliveries under back-pressure. `release` is called
    when the last one is."""

    __slots__ = ("data", "left", "publishes", "release", "then")

    def __init__(self, release: Callable[[], None], data: bytes = b"", publishes: int = 0) -> None:
        self.left = 0
        self.data = data
        self.publishes = publishes
        """How many QoS 1 PUBLISHes it answers, which count against the receive maximum until then."""
        self.release = release
        self.then: Callable[[], None] | None = None
        """What follows it, and must not leave before it."""

    def hold(self) -> None:
        """Wait for one condition more."""
        self.left += 1

    def met(self) -> None:
        """One condition is met."""
        self.left -= 1
        if self.left == 0:
            self.release()


class Owner(Protocol):
    """A shared subscription as a delivery knows it: what owned the message before the session did."""

    owner: str


class Delivery:
    """One message for one session: waiting, in flight or being released.

    `seq` is its place in the durable queue, 0 where none holds it. `group` is the shared subscription it came from and
    goes back to when the session leaves before it was acknowledged [MQTT-4.8.2-4]. `batch` is the commit that collects
    its queue entry, at `place`, and 0 where none does; `owner` is whose queue that is, where the records are still to be
    made.
    """

    __slots__ = (
        "batch",
        "group",
        "identifiers",
        "original",
        "outgoing",
        "owner",
        "packet_id",
        "place",
        "qos",
        "released",
        "retain",
        "sent_at",
        "seq",
        "subscription",
        "waiter",
        "weight",
    )  # fmt: skip

    def __init__(
        self,
        outgoing: Outgoing,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        subscription: Subscription,
        group: Owner | None = None,
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
        """Bytes that it counts as while it waits: what is its own may be larger than the message."""
        self.packet_id = 0
        self.owner = ""
        self.batch = 0
        self.place = 0
        self.released = False
        self.sent_at = 0.0
        """When it left last, for who sends again what is overdue; infinite while it waits for its record."""
        self.waiter: Acknowledgement | None = None
        self.original: Message | None = None
        """The message before a plugin changed it for this session; None if none did."""


_NO_SUBSCRIPTION: Final = Subscription("", "")
_NOTHING: Final = Outgoing(Message("", b""))
VOLATILE_1: Final = Delivery(_NOTHING, 1, False, (), _NO_SUBSCRIPTION)
VOLATILE_2: Final = Delivery(_NOTHING, 2, False, (), _NO_SUBSCRIPTION)
VOLATILE_RELEASED: Final = Delivery(_NOTHING, 2, False, (), _NO_SUBSCRIPTION)
"""In flight to a session that ends with its connection: nobody will ask again what the message was, so that all such
deliveries share these three."""


def take_packet_id(inflight: dict[int, Delivery], last: int) -> int:
    """The next free packet id after `last`, in 1 to 65535 [MQTT-2.2.1-3, 2.2.1-4]. The caller keeps the window below
    65535, so that one is free."""
    number = last + 1 if last < 65535 else 1
    while number in inflight:
        number = number + 1 if number < 65535 else 1
    return number
