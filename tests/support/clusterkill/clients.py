"""Clients that add their operations to a history, and connect to any broker of a cluster.

They notice silent brokers as real clients do: if an answer takes too long, they connect again, to a random broker.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Final

from hookmq.mqtt.packets import Connack, Packet, Publish
from hookmq_testing import AsyncioClient, will
from killing.client import EXPIRY, GONE, OK, Will, number_of
from killing.ledger import Stream

from clusterkill.history import History

RETRY: Final = 0.1
PATIENCE: Final = 3.0
"""Seconds for which a client waits for an answer before it connects again."""
TICK: Final = 0.02


class World:
    """What all clients of a run share: the history, the streams, and the ports of the brokers."""

    def __init__(self, history: History, ports: list[int], seed: int) -> None:
        self.history = history
        self.ports = ports
        self.seed = seed
        self.streams: dict[str, Stream] = {}
        self.refusals: dict[str, int] = {}
        """How often brokers refused something, by packet and code."""
        self.finished = asyncio.Event()
        """Set once publishers have stopped, and all durable clients must be connected."""

    @property
    def over(self) -> bool:
        """Return whether publishers have stopped."""
        return self.finished.is_set()

    def refuse(self, packet: str, code: int) -> None:
        """Count a refusal."""
        name = f"{packet} 0x{code:02X}"
        self.refusals[name] = self.refusals.get(name, 0) + 1


class ChaosClient:
    """A client of a random broker."""

    def __init__(self, world: World, name: str, level: int = 5, durable: bool = True) -> None:
        self.world = world
        self.history = world.history
        self.name = name
        self.durable = durable
        self.rng = Random(f"{world.seed} {name}")
        self.mqtt = AsyncioClient(
            name,
            level,
            not durable,
            session_expiry_interval=EXPIRY if level == 5 and durable else None,
            on_packet=self._packet,
            on_message=self._message,
            on_acknowledged=self._acknowledged,
            on_closed=self._closed,
        )

    @property
    def connected(self) -> bool:
        """Return whether the client is connected."""
        return self.mqtt.connected

    async def connect(self, last: Will | None = None, port: int = 0) -> bool:
        """Connect to a random broker. Return False if that fails."""
        made = None
        if last is not None:
            topic, payload, qos, delay = last
            made = will(topic, payload, qos, delay=delay if self.mqtt.version == 5 else None)
        self.mqtt.connect_packet = replace(self.mqtt.connect_packet, will=made)
        try:
            async with asyncio.timeout(PATIENCE):
                await self.mqtt.connect(port or self.rng.choice(self.world.ports), expect=None)
        except (OSError, TimeoutError):
            await self.leave(abort=True)
        return self.connected

    async def leave(self, abort: bool) -> None:
        """Close the connection, with or without DISCONNECT."""
        if abort:
            self.mqtt.drop()
        else:
            self.mqtt.disconnect()
        await self.mqtt.until(lambda: self.mqtt.closed)

    async def subscribe(self, *filters: str) -> bool:
        """Subscribe. Return whether SUBACK arrived."""
        kind = "durable" if self.durable else "volatile"
        for filter in filters:
            self.history.add(self.name, "invoke", "subscribe", filter, detail=kind)
        try:
            async with asyncio.timeout(PATIENCE):
                codes = (await self.mqtt.subscribe(filters, 2)).codes
        except (OSError, TimeoutError):
            await self.leave(abort=True)
            return False
        for filter, code in zip(filters, codes, strict=True):
            if code >= OK:
                self.world.refuse("SUBACK", code)
                return False
            self.history.add(self.name, "ok", "subscribe", filter, detail=kind)
        return True

    async def alive(self) -> None:
        """Leave if the broker does not answer a ping."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.mqtt.ping()
        except (OSError, TimeoutError):
            await self.leave(abort=True)

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            if packet.code:
                self.world.refuse("CONNACK", packet.code)
                return
            state = "resumed" if packet.session_present else "new"
            self.history.add(self.name, "ok", "connect", detail=state if self.durable else "clean")
            if not packet.session_present:
                self.forget()

    def _message(self, packet: Publish) -> None:
        number = 1
        if not packet.topic.startswith("w/"):
            number = number_of(self.world.streams.get(packet.topic), packet.payload)
        self.history.add(self.name, "ok", "receive", packet.topic, number, packet.qos)

    def _closed(self) -> None:
        self.history.add(self.name, "ok", "close")

    def forget(self) -> None:
        """Handle that the broker has no session of this client."""

    def _acknowledged(self, message: Publish, answer: Packet) -> None:
        """Handle the last acknowledgement of a message."""


class Publisher(ChaosClient):
    """A client that publishes to its streams in turn, about `rate` messages in each second."""

    def __init__(
        self, world: World, name: str, streams: list[Stream], level: int, durable: bool, rate: float
    ) -> None:
        super().__init__(world, name, level, durable)
        self.streams = streams
        self.rate = rate
        self.window = self.rng.choice((1, 10, 30))
        self.unfinished: dict[int, tuple[Stream, int]] = {}
        """The stream and the number of each message without an outcome, by packet id."""
        self._part = 0
        self._sent = 0
        self._progress = time.monotonic()
        for stream in streams:
            world.streams[stream.topic] = stream

    @property
    def idle(self) -> bool:
        """Return whether all messages have an outcome."""
        return not self.unfinished

    async def run(self) -> None:
        """Publish until the run is over, and then wait for outcomes. Cancel the call to end it."""
        due = time.monotonic()
        while True:
            if not self.connected:
                self._progress = time.monotonic()
                if not await self.connect():
                    await asyncio.sleep(RETRY)
                    continue
            now = time.monotonic()
            if self.idle:
                self._progress = now
            elif now - self._progress > PATIENCE:
                await self.leave(abort=True)
                continue
            while self.connected and not self.world.over and due <= now:
                if len(self.unfinished) < self.window:
                    self._send()
                due += 1 / self.rate
            await asyncio.sleep(TICK)

    def _send(self) -> None:
        stream = self.streams[self._sent % len(self.streams)]
        self._sent += 1
        number = stream.next()
        detail = "clear" if stream.clears(number) else ""
        self.history.add(
            self.name, "invoke", "publish", stream.topic, number, stream.qos, self._part, detail
        )
        packet = self.mqtt.send_publish(
            stream.topic, stream.body(number), stream.qos, stream.retained
        )
        if stream.qos:
            self.unfinished[packet] = stream, number
        else:
            self._outcome("ok", stream, number)

    def _outcome(self, outcome: str, stream: Stream, number: int) -> None:
        self.history.add(
            self.name, outcome, "publish", stream.topic, number, stream.qos, self._part  # type: ignore[arg-type]
        )  # fmt: skip

    def _acknowledged(self, message: Publish, answer: Packet) -> None:
        self._progress = time.monotonic()
        stream, number = self.unfinished.pop(message.packet_id)
        code = getattr(answer, "code", 0)
        if code >= OK and code != GONE:
            self.world.refuse(type(answer).__name__.upper(), code)
            self._outcome("fail", stream, number)
        else:
            self._outcome("ok", stream, number)

    def forget(self) -> None:
        """The client discards its messages in flight, so their outcomes remain unknown."""
        for packet in [*self.mqtt.inflight]:
            self._outcome("unknown", *self.unfinished.pop(packet))

    def _closed(self) -> None:
        super()._closed()
        if not self.durable:
            for stream, number in self.unfinished.values():
                self._outcome("unknown", stream, number)
            self.unfinished.clear()
            self.mqtt.inflight.clear()
            self.mqtt.queued.clear()
            self._part += 1


class Subscriber(ChaosClient):
    """A client that subscribes, and stays or comes and goes.

    `stays` and `away` return the seconds of each visit and of each absence.
    """

    def __init__(
        self,
        world: World,
        name: str,
        filters: tuple[str, ...],
        level: int = 5,
        durable: bool = True,
        stays: Callable[[Random], float] = lambda rng: 3600.0,
        away: Callable[[Random], float] = lambda rng: RETRY,
    ) -> None:
        super().__init__(world, name, level, durable)
        self.filters = filters
        self.joined = False
        self._stays = stays
        self._away = away

    async def come(self) -> bool:
        """Connect, and subscribe unless the session has done so."""
        if not await self.connect():
            return False
        if not self.durable or not self.joined:
            self.joined = await self.subscribe(*self.filters)
            return self.joined
        return True

    def forget(self) -> None:
        """Handle that the broker has no session of this client."""
        self.joined = False

    async def run(self) -> None:
        """Come and go until the run is over, and then stay. Cancel the call to end it."""
        while True:
            if not self.connected and not await self.come():
                await asyncio.sleep(RETRY)
                continue
            end = time.monotonic() + self._stays(self.rng)
            while self.connected and (self.world.over or time.monotonic() < end):
                await asyncio.sleep(0.2)
                if self.connected:
                    await self.alive()
            if self.connected:
                await self.leave(abort=self.rng.random() < 0.5)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.world.finished.wait(), self._away(self.rng))


async def leave_a_will(world: World, name: str, delay: int, returns: bool) -> None:
    """Connect a client with a will, and drop its connection. If it `returns`, that takes the will back."""
    client = ChaosClient(world, name, 5)
    topic = f"w/{name}"
    world.history.add(name, "invoke", "will", topic)
    if not await client.connect((topic, b"gone", 2, delay)):
        return
    await asyncio.sleep(client.rng.uniform(0, 1))
    if not returns:
        world.history.add(name, "ok", "will", topic)
    await client.leave(abort=True)
    if returns and await client.connect():
        world.history.add(name, "fail", "will", topic)
        await client.leave(abort=False)


async def read_retained(
    world: World, node: str, port: int, topics: list[str]
) -> dict[str, int] | None:
    """Return the numbers of the retained messages on a broker, which are 0 for absent ones. Return None if the broker
    does not accept a client."""
    found = dict.fromkeys(topics, 0)
    client = ChaosClient(world, f"reader-{node}", 5, durable=False)

    def take(packet: Publish) -> None:
        number = number_of(world.streams.get(packet.topic), packet.payload)
        found[packet.topic] = number if number or not packet.payload else -1

    client.mqtt.on_message = take
    if not await client.connect(port=port):
        return None
    try:
        async with asyncio.timeout(PATIENCE):
            await client.mqtt.subscribe("r/#", 2)
            await client.mqtt.ping()
            await client.mqtt.ping()
    except (OSError, TimeoutError):
        return None
    finally:
        await client.leave(abort=True)
    return found
