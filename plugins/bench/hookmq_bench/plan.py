"""What a run does: the load, checked, and who of its clients lives in which process."""

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hookmq.cli.options import Target
from hookmq.properties import EMPTY, Properties

STAMP: Final = struct.Struct(">QQQ")
"""What every payload begins with: whose message it is (`Plan.key`), its number (from 0), when it was due (nanoseconds
since 1970)."""
MAGIC: Final = 0x484B
"""The upper 16 bits of every key; then come 24 bits for the run and 24 for the publisher."""
SECOND: Final = 1_000_000_000
NAMES: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}


class Scenario(NamedTuple):
    """A kind of load: what it is, how many clients it has unless told otherwise, whether its subscribers get the
    messages of one publisher each (`paired`) or of all."""

    help: str
    publishers: int = 0
    subscribers: int = 0
    clients: int = 0
    paired: bool = False

    @property
    def connects(self) -> bool:
        """Whether it is about connections, without messages."""
        return bool(self.clients)


SCENARIOS: Final[dict[str, Scenario]] = {
    "pub": Scenario("publishers alone", publishers=10),
    "sub": Scenario("subscribers alone; another `hookmq bench pub` sends", subscribers=10),
    "pair": Scenario("as many subscribers as publishers, one each", 50, 50, paired=True),
    "fanin": Scenario("many publishers, a subscriber to all of them", 50, 1),
    "fanout": Scenario("a publisher, many subscribers", 1, 100),
    "connect": Scenario("open connections and hold them", clients=1000),
    "churn": Scenario(
        "connect, disconnect, again and again; or all at once (--storm)", clients=100
    ),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A run. Durations are in seconds, `rate` and `connect_rate` per second and 0 for as fast as it goes. `window` is 0
    for no bound, `count` 0 for no end but that of `duration`."""

    scenario: str
    target: Target
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

    @property
    def kind(self) -> Scenario:
        """Its scenario."""
        return SCENARIOS[self.scenario]

    @property
    def size(self) -> int:
        """Bytes of a payload."""
        return STAMP.size + len(self.payload)

    def key(self, publisher: int) -> int:
        """What the payloads of a publisher begin with."""
        return MAGIC << 48 | self.run << 24 | publisher

    def properties_of(self, packet: str) -> Properties:
        """What ``-D PACKET`` gave."""
        return self.properties.get(packet, EMPTY)

    def topic_of(self, publisher: int) -> str:
        """What a publisher publishes to."""
        return fill(self.topic, str(publisher), self.run)

    def filter_of(self, subscriber: int) -> str:
        """What a subscriber subscribes to."""
        alone = self.kind.paired or not self.publishers
        found = fill(self.topic, str(subscriber) if alone else "+", self.run)
        return f"$share/{self.prefix}/{found}" if self.shared else found

    def sources_of(self, subscriber: int) -> range:
        """The publishers whose messages a subscriber must get; none is known where others publish."""
        if self.kind.paired:
            return range(subscriber, subscriber + 1)
        return range(self.publishers)

    @property
    def copies(self) -> int:
        """How often a message is delivered."""
        if self.kind.paired or self.shared:
            return min(self.subscribers, 1)
        return self.subscribers

    def homes(self) -> "Homes":
        """Where the clients live."""
        count, publishers, subscribers = self.processes, self.publishers, self.subscribers
        if self.kind.paired or not (publishers and subscribers):
            return Homes(range(count), range(count))
        # A few on one side have processes of their own, so that both sides have one to themselves.
        if self.shared:
            subscribers = 1
        if subscribers < count:
            return Homes(range(subscribers, count), range(subscribers))
        if publishers < count:
            return Homes(range(publishers), range(publishers, count))
        return Homes(range(count), range(count))


@dataclass(frozen=True, slots=True)
class Limits:
    """What makes a run a failure; None for no limit. Latencies in seconds, the rate per second."""

    fail_on_loss: bool = False
    p50: float | None = None
    p99: float | None = None
    p999: float | None = None
    rate: float | None = None


class Homes(NamedTuple):
    """The processes in which publishers and subscribers live, in turn."""

    publishers: range
    subscribers: range

    def publisher(self, number: int) -> int:
        """The process of a publisher."""
        return self.publishers[number % len(self.publishers)]

    def subscriber(self, number: int) -> int:
        """The process of a subscriber."""
        return self.subscribers[number % len(self.subscribers)]


def fill(template: str, number: str, run: int) -> str:
    """A topic with its ``{i}`` and ``{run}`` filled in."""
    return template.replace("{i}", number).replace("{run}", f"{run:06x}")


def share(count: int, parts: int, part: int) -> int:
    """How many of `count` things fall to one of `parts`, dealt in turn."""
    return count // parts + (part < count % parts)
