"""The records of the ledger: messages, subscriptions, deliveries and sessions, as their clients know them."""

from hookmq.mqtt import topics

from simulator.network import Link


class Sent:
    """A message. `topic` is the topic of the PUBLISH, `target` the topic to which plugins redirect it.

    `excused` maps each client or group for which the message was dropped with a reason to the time of the last drop.
    `lost` is True if the message was dropped before routing.
    """

    __slots__ = (
        "acked_at", "attempts", "clear", "excused", "expiry", "first_sent", "lost", "order", "origin", "publisher", "qos",
        "refused", "retain", "target", "topic", "trusted", "uid",
    )  # fmt: skip

    def __init__(
        self, uid: int, publisher: int, topic: str, qos: int, retain: bool, expiry: int, origin: str
    ) -> None:
        self.uid = uid
        self.publisher = publisher
        self.topic = topic
        self.target = topic
        self.qos = qos
        self.retain = retain
        self.expiry = expiry
        self.origin = origin
        self.clear = False
        """Whether the payload is empty, so that it cannot identify the message."""
        self.order = 0
        self.first_sent = -1.0
        self.attempts = 0
        self.acked_at = -1.0
        self.refused = False
        self.lost = False
        self.trusted = True
        """Whether the publisher follows the protocol and no other client uses its client id."""
        self.excused: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"#{self.uid} {self.topic} QoS {self.qos} of client {self.publisher}"


class Sub:
    """A subscription as its client knows it. It certainly exists after SUBACK, and possibly after SUBSCRIBE."""

    __slots__ = (
        "as_published", "certain_from", "certain_until", "filter", "no_local", "possible_from", "possible_until", "qos",
        "shared", "text",
    )  # fmt: skip

    def __init__(self, text: str, no_local: bool, as_published: bool, now: float) -> None:
        self.text = text
        share, self.filter = topics.parse_share(text)
        self.shared = share is not None
        self.no_local = no_local
        self.as_published = as_published
        self.qos = 0
        self.possible_from = now
        self.certain_from = -1.0
        self.certain_until: float | None = None
        self.possible_until: float | None = None


class Receipt:
    """The latest delivery of one message to one session."""

    __slots__ = ("at", "count", "link", "qos", "written_at")

    def __init__(self, at: float, link: Link, qos: int) -> None:
        self.at = at
        self.written_at = link.written_at
        self.link = link
        self.qos = qos
        self.count = 1


class Life:
    """One session, from the CONNACK that started it."""

    __slots__ = (
        "asked", "client", "client_id", "expiry_max", "expiry_min", "got", "link", "links", "order", "restarted_at",
        "seen", "started_at", "subs", "version", "vouched",
    )  # fmt: skip

    def __init__(
        self, client: int, client_id: str, version: int, vouched: bool, now: float, link: Link
    ) -> None:
        self.client = client
        self.client_id = client_id
        self.version = version
        self.vouched = vouched
        """The owner of the session, as a value of `Peer.vouched`."""
        self.started_at = now
        self.link = link
        """The newest connection on which CONNACK arrived."""
        self.links = [link]
        """`link` and all connections attempted since."""
        self.expiry_min = self.expiry_max = 0.0
        """Bounds of the session expiry. They differ while it is unknown which connection attempts reached the broker."""
        self.asked = 0.0
        """The session expiry that the newest connection attempt requested."""
        self.restarted_at = -1.0
        """When the connection ended, as far as a restarted broker knows; -1 if no broker was restarted."""
        self.subs: list[Sub] = []
        self.got: dict[int, Receipt] = {}
        self.seen: set[int] = set()
        """Ids of messages that arrived with the RETAIN flag, but may have been ordinary deliveries."""
        self.order: dict[tuple[int, str, int, int], int] = {}
