"""A run's plan: its load, and which process runs each client."""

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hookmq.cli_api import ConnectTarget
from hookmq.plugin import EMPTY, Properties

STAMP: Final = struct.Struct(">QQQ")
"""The layout of the stamp at the start of every payload: the publisher's key (`Plan.key`), the message number (from 0),
and when the message was due (nanoseconds since 1970)."""
TOPIC: Final = "hookmq-bench/{run}/{i}"
MAGIC: Final = 0x484B
"""The upper 16 bits of every key. They are followed by 24 bits for the run and 24 for the publisher."""
SECOND: Final = 1_000_000_000
NAMES: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}


class Scenario(NamedTuple):
    """A kind of load, and its default numbers of clients.

    If `paired`, each subscriber receives one publisher's messages. Otherwise, each receives the messages of all
    publishers.
    """

    help: str
    publishers: int = 0
    subscribers: int = 0
    clients: int = 0
    paired: bool = False

    @property
    def connects(self) -> bool:
        """Whether the scenario only opens connections and sends no messages."""
        return bool(self.clients)


SCENARIOS: Final[dict[str, Scenario]] = {
    "pub": Scenario("publishers only", publishers=10),
    "sub": Scenario("subscribers only; another `hookmq bench pub` sends", subscribers=10),
    "pair": Scenario("each publisher has its own subscriber", 50, 50, paired=True),
    "fanin": Scenario("many publishers, one subscriber to all of them", 50, 1),
    "fanout": Scenario("one publisher, many subscribers", 1, 100),
    "connect": Scenario("open connections and hold them", clients=1000),
    "churn": Scenario("connect and disconnect repeatedly, or all at once (--storm)", clients=100),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that determines a run. Durations are in seconds.

    `rate` and `connect_rate` are per second; 0 means as fast as possible. A `window` of 0 means no limit. If `count` is
    0, only `duration` ends the run. `native` selects the engine written in C.
    """

    scenario: str
    target: ConnectTarget
    run: int
    publishers: int
    subscribers: int
    clients: int
    processes: int
    rate: float
    window: int
    qos: int
    payload: bytes = field(repr=False)
    topic: str
    retain: bool
    shared: bool
    duration: float
    count: int
    warm_up: float
    ramp_up: float
    drain: float
    connect_rate: float
    connecting: int
    storm: float
    abrupt: bool
    keep: bool
    prefix: str
    properties: dict[str, Properties] = field(default_factory=dict)
    timeout: float = 30.0
    native: bool = False

    @property
    def kind(self) -> Scenario:
        """The scenario of this plan."""
        return SCENARIOS[self.scenario]

    @property
    def size(self) -> int:
        """The payload size in bytes, including the stamp."""
        return STAMP.size + len(self.payload)

    def key(self, publisher: int) -> int:
        """Return a publisher's key, with which all its payloads start."""
        return MAGIC << 48 | self.run << 24 | publisher

    def properties_of(self, packet: str) -> Properties:
        """Return the properties given with ``-D PACKET``."""
        return self.properties.get(packet, EMPTY)

    def topic_of(self, publisher: int) -> str:
        """Return a publisher's topic."""
        return fill(self.topic, str(publisher), self.run)

    def filter_of(self, subscriber: int) -> str:
        """Return a subscriber's topic filter."""
        alone = self.kind.paired or not self.publishers
        found = fill(self.topic, str(subscriber) if alone else "+", self.run)
        return f"$share/{self.prefix}/{found}" if self.shared else found

    def sources_of(self, subscriber: int) -> range:
        """Return the publishers whose messages a subscriber must receive. The result is empty if this run publishes
        nothing.
        """
        if self.kind.paired:
            return range(subscriber, subscriber + 1)
        return range(self.publishers)

    @property
    def copies(self) -> int:
        """How many of this run's subscribers receive each message."""
        if self.kind.paired or self.shared:
            return min(self.subscribers, 1)
        return self.subscribers

    def homes(self) -> "Homes":
        """Assign publishers and subscribers to processes."""
        count, publishers, subscribers = self.processes, self.publishers, self.subscribers
        if self.kind.paired or not (publishers and subscribers):
            return Homes(range(count), range(count))
        # If one side has few clients, give them their own processes.
        if self.shared:
            subscribers = 1
        if subscribers < count:
            return Homes(range(subscribers, count), range(subscribers))
        if publishers < count:
            return Homes(range(publishers), range(publishers, count))
        return Homes(range(count), range(count))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a run must meet to pass; None means no limit. Latencies are in seconds, the rate is per second."""

    fail_on_loss: bool = False
    p50: float | None = None
    p99: float | None = None
    p999: float | None = None
    rate: float | None = None


class Homes(NamedTuple):
    """Which processes run publishers, and which run subscribers. Clients are assigned in turn."""

    publishers: range
    subscribers: range

    def publisher(self, number: int) -> int:
        """Return the index of the process that runs a publisher."""
        return self.publishers[number % len(self.publishers)]

    def subscriber(self, number: int) -> int:
        """Return the index of the process that runs a subscriber."""
        return self.subscribers[number % len(self.subscribers)]


def fill(template: str, number: str, run: int) -> str:
    """Replace ``{i}`` and ``{run}`` in a topic template."""
    return template.replace("{i}", number).replace("{run}", f"{run:06x}")


def share(count: int, parts: int, part: int) -> int:
    """Deal `count` items out in turn to `parts` parts. Return how many items part number `part` gets."""
    return count // parts + (part < count % parts)
