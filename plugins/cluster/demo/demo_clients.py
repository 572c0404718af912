"""The demo's publishers and subscribers, with the counts of their messages.

All clients connect through the load balancer, have durable sessions, and connect again if a connection ends.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hookmq.mqtt_api import Packet, Publish
from hookmq_testing import AsyncioClient

EXPIRY: Final = 3600
WINDOW: Final = 100
"""Messages that a publisher may have in flight."""
TICK: Final = 0.05
RETRY: Final = 0.2
"""Seconds between two attempts to connect."""
CONNACK: Final = 10.0
"""Seconds to wait for the broker's answer to CONNECT."""
VISIT: Final = 4.0
"""Seconds for which a client that comes and goes is online, and then offline, on average."""


Key = tuple[str, int]
"""A message: its topic and its number."""


def _key(message: Publish) -> Key:
    return message.topic, int(message.payload)


class Client:
    """A client with a durable session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reconnections = -1
        self.sessions_lost = 0
        self.mqtt = AsyncioClient(
            name, clean_start=False, session_expiry_interval=EXPIRY, max_inflight=WINDOW,
            on_message=self.received, on_acknowledged=self.acknowledged,
        )  # fmt: skip

    async def connect(self, port: int) -> None:
        """Connect, and repeat this until a broker accepts the client."""
        while True:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNACK):
                    await self.mqtt.connect(port, expect=None)
                if self.mqtt.connected:
                    break
            await asyncio.sleep(RETRY)
        self.reconnections += 1
        if self.reconnections and not self.mqtt.session_present:
            self.sessions_lost += 1
            print("LOST", self.name, time.time())

    async def stay(self, port: int) -> None:
        """Connect again whenever the connection has ended. Run this as a task."""
        while True:
            await self.mqtt.until(lambda: self.mqtt.closed, float("inf"))
            await self.connect(port)

    def received(self, message: Publish) -> None:
        """Count a message."""

    def acknowledged(self, message: Publish, answer: Packet) -> None:
        """Count an acknowledgement."""


class Publisher(Client):
    """Publishes numbers to the topic `demo/NAME`."""

    def __init__(self, name: str, qos: int) -> None:
        super().__init__(name)
        self.qos = qos
        self.topic = f"demo/{name}"
        self.sent = 0
        self.refused = 0
        self.stored = 0
        """Messages that were acknowledged."""
        self.receivers: Sequence[Receiver] = ()
        self.newest = time.monotonic()
        """When the newest acknowledgement arrived."""
        self.longest_pause = 0.0

    async def run(self, rate: float) -> None:
        """Publish `rate` messages a second, as long as not too many wait for their acknowledgement."""
        due = 0.0
        while True:
            due = min(due + rate * TICK, WINDOW)
            while due >= 1 and len(self.mqtt.inflight) + len(self.mqtt.queued) < WINDOW:
                due -= 1
                self.sent += 1
                self.mqtt.send_publish(self.topic, b"%d" % self.sent, self.qos)
            await asyncio.sleep(TICK)

    @property
    def waiting(self) -> int:
        """How many messages wait for their acknowledgement."""
        return len(self.mqtt.inflight) + len(self.mqtt.queued)

    def acknowledged(self, message: Publish, answer: Packet) -> None:
        now = time.monotonic()
        self.longest_pause = max(self.longest_pause, now - self.newest)
        self.newest = now
        if getattr(answer, "code", 0) >= 0x80:
            self.refused += 1
        else:
            self.stored += 1
            for one in self.receivers:
                one.expect(message)


@dataclass
class Receiver:
    """The messages of one subscriber, or of all members of a shared subscription."""

    title: str
    members: Sequence["Subscriber"] = ()

    def __post_init__(self) -> None:
        self.got: set[Key] = set()
        self.missing: set[Key] = set()
        """Messages that were acknowledged and have not arrived."""
        self.repeated = 0
        """QoS 1 messages that arrived again, which is allowed."""
        self.doubled = 0
        """QoS 2 messages that arrived again, which is not."""

    def expect(self, message: Publish) -> None:
        """Note that a message was acknowledged, so that it must arrive."""
        if (key := _key(message)) not in self.got:
            self.missing.add(key)

    def take(self, message: Publish) -> None:
        """Count a message."""
        key = _key(message)
        if key not in self.got:
            self.got.add(key)
            self.missing.discard(key)
        elif message.qos == 2:
            self.doubled += 1
        else:
            self.repeated += 1


class Subscriber(Client):
    """Subscribes to `filter_`, and gives all messages to a receiver."""

    def __init__(self, name: str, filter_: str, qos: int, receiver: Receiver) -> None:
        super().__init__(name)
        self._filter = filter_
        self._qos = qos
        self._receiver = receiver

    def received(self, message: Publish) -> None:
        self._receiver.take(message)

    async def join(self, port: int) -> None:
        """Connect and subscribe. Messages that are published after that must arrive."""
        while True:
            await self.connect(port)
            with suppress(ConnectionError):
                if (await self.mqtt.subscribe(self._filter, self._qos)).codes[0] < 0x80:
                    return
            self.mqtt.drop()
            await self.mqtt.wait_closed()

    async def come_and_go(self, port: int) -> None:
        """Disconnect and connect again, now and then. Run this as a task."""
        while True:
            await asyncio.sleep(random.uniform(0, 2 * VISIT))
            self.mqtt.disconnect()
            await self.mqtt.wait_closed()
            await asyncio.sleep(random.uniform(0, 2 * VISIT))
            await self.connect(port)


class Clients:
    """All clients of the demo."""

    def __init__(self, publishers: int, members: int) -> None:
        self.publishers = [
            Publisher(f"publisher-{number}", number % 2 + 1) for number in range(publishers)
        ]
        titles = ("always online", "comes and goes", "shared subscription")
        online, visitor, group = self.receivers = [Receiver(title) for title in titles]
        self.online = Subscriber("online", "demo/#", 2, online)
        self.visitor = Subscriber("visitor", "demo/#", 2, visitor)
        self.members = [
            Subscriber(f"member-{number}", "$share/demo/demo/#", 1, group)
            for number in range(members)
        ]
        for publisher in self.publishers:
            publisher.receivers = self.receivers
        self._tasks: list[asyncio.Task[None]] = []
        self._sending: list[asyncio.Task[None]] = []
        self._port = 0

    @property
    def everyone(self) -> list[Client]:
        """All clients."""
        return [*self.publishers, self.online, self.visitor, *self.members]

    @property
    def stored(self) -> int:
        """How many messages were acknowledged."""
        return sum(one.stored for one in self.publishers)

    @property
    def sessions_lost(self) -> int:
        """How often a client did not find its session."""
        return sum(one.sessions_lost for one in self.everyone)

    @property
    def refused(self) -> int:
        """How many messages were refused."""
        return sum(one.refused for one in self.publishers)

    def connected(self) -> bool:
        """Return whether all clients are connected, except the one that comes and goes."""
        return all(one.mqtt.connected for one in self.everyone if one is not self.visitor)

    async def start(self, port: int, rate: float) -> None:
        """Connect all clients to the load balancer, and begin to publish."""
        self._port = port
        for one in (self.online, self.visitor, *self.members):
            await one.join(port)
        for publisher in self.publishers:
            await publisher.connect(port)
        start = asyncio.create_task
        share = rate / len(self.publishers)
        self._sending = [start(one.run(share)) for one in self.publishers]
        self._tasks = [start(one.stay(port)) for one in self.everyone if one is not self.visitor]
        self._tasks.append(start(self.visitor.come_and_go(port)))

    def check(self) -> None:
        """Raise the error of a client, such as a violation of MQTT by a broker."""
        for task in (*self._sending, *self._tasks):
            if task.done():
                task.result()

    def begin_round(self) -> None:
        """Measure pauses between acknowledgements from now on."""
        for one in self.publishers:
            one.newest, one.longest_pause = time.monotonic(), 0.0

    def longest_pause(self) -> float:
        """Return the longest time without an acknowledgement for any publisher, in this round."""
        now = time.monotonic()
        return max(max(one.longest_pause, now - one.newest) for one in self.publishers)

    async def finish(self) -> None:
        """Stop publishing, and let the client that comes and goes stay."""
        for task in self._sending:
            task.cancel()
        visits = self._tasks.pop()
        visits.cancel()
        await asyncio.gather(*self._sending, visits, return_exceptions=True)
        self._sending.clear()
        self._tasks.append(asyncio.create_task(self.visitor.stay(self._port)))

    def finished(self) -> bool:
        """Return whether each message was acknowledged, and has arrived at each receiver."""
        waiting = any(one.waiting for one in self.publishers)
        return not waiting and not any(one.missing for one in self.receivers)

    async def close(self) -> None:
        """Close all connections."""
        tasks = [*self._sending, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self.everyone:
            one.mqtt.disconnect()
