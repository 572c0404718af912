"""Kill a broker repeatedly under a load that uses all of its durable state.

Four publishers (QoS 1 and 2, MQTT 3.1.1 and 5.0) each use three topics. Two more publish retained messages and clear
some of them. Two publish with a delay, so that a plugin keeps each message as a timer and a state key.

One subscriber is always online, one comes and goes, and one is mostly offline. Each round adds a session that must still
exist two rounds later. It also adds six clients with wills, two of which have no durable session.

The broker is killed after a random number of acknowledgements, with or without its storage writer. Sometimes it is
killed again while it is starting. One seed determines all choices, but the exact moment of a kill also depends on
the machine.
"""

import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from killing.brokers import Broker, HookMQ
from killing.client import Checker, Client, Publisher, Subscriber
from killing.ledger import Counts, Ledger, Stream

EACH = 300
"""Maximum number of messages that each publisher sends between two kills."""
STUCK = 60.0
"""Seconds without an acknowledgement after which the broker is considered dead."""
EARLY = 0.15
"""Probability that a broker is killed again while it is starting."""
FETCH = 25
"""How many rounds pass before the offline subscriber fetches its queue. Without this, a long run would measure long
queues."""
MOURNED = (
    ("connected", 4, 0, False), ("dropped", 5, 0, False), ("delayed", 5, 1, False), ("taken back", 5, 3600, False),
    ("connected clean", 4, 0, True), ("connected expiry-0", 5, 30, True),
)  # fmt: skip
"""Clients with a will: how they end, the MQTT version, the will's delay, and whether the session ends with them."""
Say = Callable[[str], None]


class Broken(AssertionError):
    """A broken guarantee."""


class Guest:
    """A session that is created in one round and checked two rounds later."""

    def __init__(self, client: Subscriber, number: int) -> None:
        self.client = client
        self.number = number


class Run:
    """A broker that is killed repeatedly, with all its clients.

    Missing messages count as lost after `patience` seconds without a delivery, or after `last` seconds at the end of the
    run. A `strict` run raises Broken at the first broken guarantee.
    """

    def __init__(
        self,
        broker: Broker,
        seed: int,
        patience: float,
        strict: bool,
        say: Say | None = None,
        last: float | None = None,
    ) -> None:
        self.broker = broker
        self.rng = random.Random(seed)
        self.seed = seed
        self.patience = patience
        self.last = patience if last is None else last
        self.strict = strict
        self.say = say
        ledger = self.ledger = Ledger()
        self.kill = 0
        self.publishers: list[Publisher] = []
        for number, (qos, level) in enumerate(((1, 5), (1, 4), (2, 5), (2, 4))):
            streams = [ledger.stream(f"d/{number}/{topic}", qos) for topic in range(3)]
            self.publishers.append(Publisher(ledger, f"publisher-{number}", streams, level))
        if broker.delays:
            for level in (4, 5):
                streams = [ledger.stream(f"d/delayed-{level}", 1, delay=1)]
                self.publishers.append(Publisher(ledger, f"delayer-{level}", streams, level, 4))
        self.messages = list(ledger.streams.values())
        for qos, level in ((1, 5), (2, 4)):
            streams = [
                ledger.stream(f"r/{qos}/{topic}", qos, True, topic % 2 == 1) for topic in range(4)
            ]
            self.publishers.append(Publisher(ledger, f"retainer-{qos}", streams, level, 8))
        self.retained = [stream for stream in ledger.streams.values() if stream.retained]
        filters = ("d/#", "w/#")
        self.online = Subscriber(ledger, "online", 5, filters)
        self.coming = Subscriber(ledger, "coming", 5, filters)
        self.offline = Subscriber(ledger, "offline", 4, filters)
        self.guests: list[Guest] = []
        self.up = asyncio.Event()
        self.over = False

    @property
    def counts(self) -> Counts:
        """Return the counts so far."""
        return self.ledger.counts

    # running all rounds

    async def run(self, kills: int) -> Counts:
        """Kill the broker `kills` times and return the counts."""
        await self._start()
        mains = (self.online, self.coming, self.offline)
        for client in mains:
            assert await client.join(self.broker.port, self.messages)
        self.offline.disconnect()
        await self.offline.ended()
        tasks = [asyncio.create_task(self._keep(client)) for client in self.publishers]
        tasks.append(asyncio.create_task(self._keep(self.online)))
        coming = asyncio.create_task(self._come_and_go(self.coming))
        began = time.monotonic()
        try:
            for self.kill in range(1, kills + 1):
                await self._round(tasks)
                self._check_now()
                if self.say is not None:
                    self._progress(kills, time.monotonic() - began)
            self.over = True
            self.ledger.changed()
            assert await self._reach(lambda: all(one.idle for one in self.publishers), tasks)
            await coming
            await self._die()
            self.counts.kills += 1
            await self._start()
            await self._settle(mains)
        finally:
            tasks.append(coming)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            everyone: list[Client] = [
                *mains,
                *self.publishers,
                *(guest.client for guest in self.guests),
            ]
            for one in everyone:
                one.abort()
            await asyncio.gather(*(one.ended() for one in everyone))
            if sys.exc_info()[1] is not None:
                self.broker.kill(self.rng)
        if self.broker.stop():
            raise Broken("the broker did not end well")
        self._check_now()
        return self.counts

    async def _start(self) -> None:
        self.broker.spawn()
        if self.kill and self.rng.random() < EARLY:
            await asyncio.sleep(self.rng.random() * 0.6)
            self.broker.kill(self.rng)
            self.counts.early += 1
            self.broker.spawn()
        await asyncio.to_thread(self.broker.ready)
        self.ledger.dying = False
        if self.kill:
            await self._look()  # check the state before anything new is published
        self.up.set()

    async def _die(self) -> None:
        self.up.clear()
        self.ledger.dying = True
        self.broker.kill(self.rng)

    async def _round(self, tasks: list["asyncio.Task[None]"]) -> None:
        counts = self.counts
        for publisher in self.publishers:
            publisher.allow(EACH)
        most = EACH * len(self.publishers)
        target = counts.acknowledged + self.rng.randrange(1, most)
        pause = self.rng.random() * 0.01
        others = [self._guests(), *(self._mourned(*one) for one in MOURNED)]
        if self.kill % FETCH == 0:
            others.append(self._fetch())
        beside = [asyncio.create_task(one) for one in others]

        def done() -> bool:
            # A broker that lost messages may leave all publishers idle below the target.
            return counts.acknowledged >= target or all(one.idle for one in self.publishers)

        try:
            assert await self._reach(done, tasks)
            # Not in every round: most kills also hit work other than publishing.
            if self.rng.random() < 0.7:
                _, late = await asyncio.wait(beside, timeout=STUCK)
                assert not late, late
            await asyncio.sleep(pause)
        finally:
            await self._die()
            counts.kills += 1
            for task in beside:
                task.cancel()
            ended = await asyncio.gather(*beside, return_exceptions=True)
        for one in ended:
            if isinstance(one, Exception):
                raise one
        await self._start()

    async def _reach(self, done: Callable[[], bool], tasks: list["asyncio.Task[None]"]) -> bool:
        """Wait until `done()` is true. Return False if progress stops. Raise the error of a failed client."""
        while True:
            before = self.counts.acknowledged
            if await self.ledger.until(lambda: done() or any(t.done() for t in tasks), STUCK):
                for task in tasks:
                    if task.done():
                        task.result()
                return True
            if before == self.counts.acknowledged:
                return False

    def _progress(self, kills: int, seconds: float) -> None:
        assert self.say is not None
        left = seconds / self.kill * (kills - self.kill)
        broken = ", ".join(f"{count} {name}" for name, count in self.counts.broken().items())
        self.say(
            f"kill {self.kill}/{kills}: {self.counts.acknowledged} acknowledged, {broken or 'nothing broken'};"
            f" {left:.0f} s left"
        )

    def _check_now(self) -> None:
        """Check those guarantees that can be checked without waiting for more messages."""
        seen = [
            one
            for client in (self.online, self.coming, self.offline)
            for one in client.seen.values()
        ]
        counts = self.counts
        counts.reordered = sum(one.reordered for one in seen)
        counts.duplicated = sum(one.again() for one in seen if one.stream.qos == 2)
        counts.repeated = sum(one.again() for one in seen if one.stream.qos == 1)
        if self.strict and counts.broken():
            raise Broken(
                f"seed {self.seed}, kill {self.kill}: {counts.broken()} {self.ledger.refusals}"
            )

    # clients

    async def _keep(self, client: Publisher | Subscriber) -> None:
        """Keep a client connected whenever the broker is up."""
        while True:
            await self.up.wait()
            come = client.come if isinstance(client, Subscriber) else client.connect
            if client.connected or await come(self.broker.port):
                await client.ended(seconds=math.inf)
            else:  # the broker was killed meanwhile
                await self.ledger.until(lambda: not self.up.is_set(), 0.2)

    async def _come_and_go(self, client: Subscriber) -> None:
        while True:
            await self.up.wait()
            if client.connected or await client.come(self.broker.port):
                enough = client.got + self.rng.randrange(500)
                await self.ledger.until(partial(self._has, client, enough), STUCK)
                if self.rng.random() < 0.5:
                    client.disconnect()
                else:
                    client.abort()
                await client.ended()
            if self.over:
                return
            later = self.counts.acknowledged + self.rng.randrange(500)
            await self.ledger.until(partial(self._progressed, later), 1.0)

    def _has(self, client: Subscriber, count: int) -> bool:
        return self.over or client.got >= count or not client.connected

    def _progressed(self, acknowledged: int) -> bool:
        return self.over or self.counts.acknowledged >= acknowledged

    async def _mourned(self, kind: str, level: int, delay: int, clean: bool) -> None:
        """Run a client that leaves a will when its connection ends."""
        topic = f"w/{kind}/{self.kill}"
        client = Client(self.ledger, topic, level, clean)
        if not await client.connect(self.broker.port, (topic, b"gone", 2, delay)):
            return
        if kind.startswith("connected"):
            self.ledger.wills[topic] = True
            return  # it ends with the broker
        if kind != "taken back":
            self.ledger.wills[topic] = True
        client.abort()
        await client.ended()
        if kind == "taken back" and await client.connect(self.broker.port):
            self.ledger.wills[topic] = False
            client.disconnect()
            await client.ended()

    async def _guests(self) -> None:
        """Check the session that was created two rounds ago, and create a new one."""
        port = self.broker.port
        if self.guests and self.guests[0].number <= self.kill - 2:
            guest = self.guests[0].client
            if await guest.come(port):
                await self._drain([guest])
                if guest.connected:
                    self.guests.pop(0)
                    self._judge(guest)
                    guest.disconnect()
            else:
                guest.abort()
            await guest.ended()
        stream = self.messages[self.kill % len(self.messages)]
        made = Subscriber(self.ledger, f"guest-{self.kill}", 4 + self.kill % 2, (stream.topic,))
        if await made.join(port, [stream]):
            self.guests.append(Guest(made, self.kill))
        made.abort()
        await made.ended()

    async def _fetch(self) -> None:
        """Let the offline subscriber fetch the messages in its queue."""
        if await self.offline.come(self.broker.port):
            await self._drain([self.offline])
            self.offline.disconnect()
        else:
            self.offline.abort()
        await self.offline.ended()

    async def _look(self) -> None:
        """Compare the retained messages with those that were acknowledged."""
        checker = Checker(self.ledger, f"checker-{self.kill}")
        if not await checker.connect(self.broker.port):
            return
        last = {stream: stream.last for stream in self.retained}
        try:
            if not await checker.subscribe("r/#"):
                return
            needed = [one for one in self.retained if not _may_be_absent(one, last[one])]
            found = checker.found
            await self.ledger.until(
                lambda: all(one.topic in found for one in needed) or not checker.connected,
                self.patience if self.strict else 0.3,
            )
            if checker.connected:
                for stream in self.retained:
                    self.counts.retained_checks += 1
                    there = found.get(stream.topic)
                    if there is None:
                        wrong = not _may_be_absent(stream, last[stream])
                    else:
                        wrong = not last[stream] <= there <= stream.sent
                    self.counts.retained_wrong += wrong
        finally:
            checker.abort()
            await checker.ended()

    # the end

    async def _settle(self, mains: tuple[Subscriber, ...]) -> None:
        """Let all clients receive their messages. Then check the guarantees."""
        self.patience = max(self.patience, self.last)
        port = self.broker.port
        for client in (self.coming, self.offline):
            assert await client.come(port)
        assert await self.ledger.until(lambda: self.online.connected, STUCK)
        guests = [guest.client for guest in self.guests]
        for client in guests:
            assert await client.come(port)
        await self._drain([*mains, *guests])
        for client in (*mains, *guests):
            self._judge(client)
        for client in mains:
            for topic, due in self.ledger.wills.items():
                times = client.wills.get(topic, 0)
                self.counts.wills += due
                self.counts.wills_lost += due and not times
                self.counts.wills_wrong += max(0, times - due)

    async def _drain(self, clients: list[Subscriber]) -> None:
        """Wait until the clients have received everything that they are owed, or until nothing more arrives."""
        while any(one.owed() for one in clients if one.connected):
            before = [one.got for one in clients]
            await self.ledger.until(lambda: not any(one.owed() for one in clients), 0.3)
            if not _changed(clients, before) and not await self.ledger.until(
                partial(_changed, clients, before), self.patience
            ):
                return

    def _judge(self, client: Subscriber) -> None:
        for seen in client.seen.values():
            self.counts.due += sum(1 for _ in seen.due())
            self.counts.lost += seen.lost()


def _changed(clients: list[Subscriber], before: list[int]) -> bool:
    return [one.got for one in clients] != before


def _may_be_absent(stream: Stream, last: int) -> bool:
    """Return whether the retained message may be missing. `last` is the number of the newest acknowledged message."""
    return not last or any(stream.clears(number) for number in range(last, stream.sent + 1))


def kill_and_check(
    folder: Path,
    kills: int,
    durability: str = "group",
    seed: int | None = None,
    say: Say | None = None,
    patience: float = 60.0,
) -> Counts:
    """Kill HookMQ `kills` times. Raise Broken if it breaks a guarantee. `patience` is as in `Run`."""
    seed = seed if seed is not None else int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"{kills} kills, SEED={seed}", file=sys.stderr, flush=True)
    return asyncio.run(Run(HookMQ(folder, durability), seed, patience, True, say).run(kills))
