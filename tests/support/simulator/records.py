"""The records of the ledger: messages, subscriptions, deliveries and sessions, as their clients know them."""

from hookmq.mqtt import topics

from simulator.network import Link


class Sent:
    """A message. `topic` is the topic of the PUBLISH, `target` the topic to which plugins redirect it.

    `excused` contains the clients and groups for which it was dropped with a reason, with the time of the last drop.
    `lost` is True if it was dropped before routing.
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
        """Whether its payload is empty, so that nothing names it."""
        self.order = 0
        self.first_sent = -1.0
        self.attempts = 0
        self.acked_at = -1.0
        self.refused = False
        self.lost = False
        self.trusted = True
        """Whether its publisher keeps the rules, and nobody else uses its client id."""
        self.excused: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"#{self.uid} {self.topic} QoS {self.qos} of client {self.publisher}"


class Sub:
    """A subscription as its client knows it. It exists certainly from SUBACK on, and possibly from SUBSCRIBE on."""

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
    """The newest delivery of one message to one session."""

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
        """Whose it is: see `Peer.vouched`."""
        self.started_at = now
        self.link = link
        """The newest connection that CONNACK confirmed."""
        self.links = [link]
        """It and those tried since."""
        self.expiry_min = self.expiry_max = 0.0
        """Bounds of its expiry, as far as it is known which of the attempts to connect were heard."""
        self.asked = 0.0
        """What the newest attempt asks for."""
        self.restarted_at = -1.0
        """When a broker started that did not know that its connection had ended."""
        self.subs: list[Sub] = []
        self.got: dict[int, Receipt] = {}
        self.seen: set[int] = set()
        """What came as retained, and may have been on its ordinary way."""
        self.order: dict[tuple[int, str, int, int], int] = {}
