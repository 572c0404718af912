"""Clients with wills, and the client that watches for them.

A will is published at most once. It is published if its connection ends without DISCONNECT and its client does not come
back. It is not published before its delay or its session has ended, nor after its client has come back in time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from hookmq.mqtt.packets import Publish, WillFields
from hookmq.mqtt.properties import Properties

from cluster_simulator.clients import Client, Connection, Subscriber, goodbye
from cluster_simulator.clock import NodeClock
from cluster_simulator.world import World

MARGIN = 1.0
"""Seconds by which clients and nodes may see an event at different times, without skew."""


@dataclass(slots=True)
class Will:
    """The will of one connection. `ended` is when the client's connection ended, or None."""

    client: str
    number: int
    delay: float
    clock: NodeClock
    """The clock of the node that the client was connected to."""
    begun: float
    """When the client sent CONNECT."""
    armed: bool = False
    ended: float | None = None
    normal: bool = False
    """Whether the client has sent DISCONNECT."""
    attempts: int = 0
    """How often the client has connected since."""
    cancelled: bool = False
    """Whether the client has come back in time."""


class Watcher(Subscriber):
    """A client that receives all wills. `fired` has the time at which each one arrived, by client and number."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "watcher", [], "w/#")
        self.fired: dict[tuple[str, int], float] = {}

    def message(self, packet: Publish) -> None:
        super().message(packet)
        client, number = packet.payload.decode().split()
        self.fired.setdefault((client, int(number)), self.world.clock.now())


class WillClient(Client):
    """A client with a will, which has a delay in seconds."""

    def __init__(self, world: World, client_id: str, expiry: int, delay: int) -> None:
        super().__init__(world, client_id, expiry)
        self.delay = delay
        self.wills: list[Will] = []

    def connect(self, node: str) -> None:
        now = self.world.clock.now()
        for will in self.wills:
            will.attempts += 1
            if will.ended is None:
                will.ended = now
        delay = min(self.delay, self.expiry)
        number, clock = len(self.wills) + 1, self.world.clocks[node]
        self.wills.append(Will(self.client_id, number, delay, clock, now))
        super().connect(node)

    def will(self) -> WillFields:
        payload = f"{self.client_id} {len(self.wills)}".encode()
        properties = Properties(will_delay_interval=self.delay)
        return WillFields(f"w/{self.client_id}", payload, 2, False, properties)

    def resumed(self, present: bool) -> None:
        now = self.world.clock.now()
        *former, current = self.wills
        current.armed = True
        for will in former:
            assert will.ended is not None
            due = will.ended + will.delay - 2 * self.world.skew - MARGIN
            if present and will.armed and now < due:
                will.cancelled = True

    def leave(self) -> None:
        """Disconnect, which discards the will."""
        if self.online and self.connection is not None:
            self.wills[-1].normal = True
            self.send(goodbye())
            self.drop()

    def ended(self, connection: Connection) -> None:
        if self.wills and self.wills[-1].ended is None:
            self.wills[-1].ended = self.world.clock.now()

    def problems(self, watcher: Watcher) -> Iterator[str]:
        """Yield each broken promise about these wills, at the end of a run."""
        times = watcher.messages.get(self.client_id, [])
        for will in self.wills:
            name = f"will {will.number} of {self.client_id}"
            fired = watcher.fired.get((self.client_id, will.number))
            if times.count(will.number) > 1:
                yield f"{name} was published {times.count(will.number)} times"
            if fired is None:
                # A node may read an earlier CONNECT late. That connection then takes over.
                armed = all(one.armed for one in self.wills) and not will.normal
                if armed and not will.attempts and will.ended is not None:
                    yield f"{name} was never published"
                continue
            # A stopped node tells the client late that its connection has ended, and passes DISCONNECT on late.
            sure = not self._given_up() and not will.clock.was_paused(will.begun, will.ended or inf)
            if will.cancelled and sure:
                yield f"{name} was published although its client came back in time"
            if will.normal and sure:
                yield f"{name} was published after DISCONNECT"
            if will.ended is None:
                yield f"{name} was published while its client was connected"
            elif not will.attempts:
                due = will.ended + will.delay - 2 * self.world.skew - MARGIN
                if fired < due and sure:
                    yield f"{name} was published at {fired:.1f}, due at {due:.1f}"

    def _given_up(self) -> bool:
        """Return whether a node may have died, so that it did not record a client's last step."""
        return bool(self.world.past or self.world.departures())
