"""Devices: clients of MQTT 5 that publish what says by itself which message it is, over any number of connections."""

import asyncio
import json
import math
import random
from collections.abc import Iterable
from typing import Final

import mqttbytes as m
from killing.client import GONE, OK, Publisher
from killing.ledger import Ledger, Stream

TOPICS: Final = 3
"""Of each device."""
TICK: Final = 0.05
"""Seconds between two portions of messages."""


class Topic(Stream):
    """The messages of one device on one topic, numbered from 1: JSON, and now and then what is none."""

    def good(self, number: int) -> bool:
        """Whether it is JSON."""
        return number % 50 != 7

    def body(self, number: int) -> bytes:
        """As Stream."""
        filling = "x" * (20_000 if number % 997 == 0 else number * 7919 % 200)
        if not self.good(number):
            return f"ERR {number} {filling}".encode()
        return json.dumps({"n": number, "value": number % 50 / 2, "note": filling}).encode()

    def message_id(self, number: int) -> str:
        """What its user property `message-id` says, each time that it is sent."""
        return f"{self.topic}:{number}"


class Device(Publisher):
    """Publishes on its topics in turn. A message is acknowledged by PUBACK or PUBREC: from then on the broker has it."""

    def _send(self, stream: Stream, index: int, number: int, dup: bool) -> None:
        assert isinstance(stream, Topic)
        self._write(
            m.publish(
                stream.topic,
                stream.body(index),
                stream.qos,
                number,
                dup=dup,
                properties=m.user("message-id", stream.message_id(index)),
            )
        )

    def acknowledged(self, kind: int, number: int, code: int) -> None:
        """As Client."""
        found = self._inflight.get(number)
        if kind == 5 and found is not None and (code < OK or code == GONE):
            found[0].acknowledge(found[1])
        super().acknowledged(kind, number, code)


class Fleet:
    """All devices, half of them of QoS 1, half of QoS 2, with `rate` messages a second together."""

    def __init__(self, devices: int, rate: float, seed: int) -> None:
        self.ledger = Ledger()
        self.rate = rate
        self.devices: list[Device] = []
        self.port = 0
        self.flowing = True
        self._draw = random.Random(seed)
        self._tasks: list[asyncio.Task[None]] = []
        for number in range(devices):
            topics: list[Stream] = []
            for name in range(TOPICS):
                topic = Topic(f"d/{number}/{name}", 1 + number % 2)
                self.ledger.streams[topic.topic] = topic
                topics.append(topic)
            self.devices.append(Device(self.ledger, f"device-{number}", topics, 5))

    @property
    def topics(self) -> Iterable[Topic]:
        """What all of them sent."""
        return (one for one in self.ledger.streams.values() if isinstance(one, Topic))

    @property
    def acknowledged(self) -> int:
        """Messages."""
        return sum(sum(one.acked) for one in self.topics)

    @property
    def sent(self) -> int:
        """Messages, each once."""
        return sum(one.sent for one in self.topics)

    def start(self, port: int) -> None:
        """Begin."""
        self.port = port
        self._tasks = [asyncio.create_task(self._keep(one)) for one in self.devices]
        self._tasks.append(asyncio.create_task(self._flow()))

    def look(self) -> None:
        """Raises what one of them failed with."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def idle(self, seconds: float) -> None:
        """Send nothing new, and wait until all that was sent is acknowledged. Raises AssertionError if it is not."""
        self.flowing = False
        done = await self.ledger.until(lambda: all(one.idle for one in self.devices), seconds)
        self.look()
        assert done, f"{self.sent - self.acknowledged} messages are not acknowledged"

    async def stop(self) -> None:
        """Leave."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self.devices:
            one.abort()
        await asyncio.gather(*(one.ended() for one in self.devices))

    async def _keep(self, device: Device) -> None:
        """Be there whenever the broker is; lose the connection now and then, and with it what was on its way."""
        while True:
            if device.connected or await device.connect(self.port):
                life = self._draw.uniform(2, 20) if self.flowing else math.inf
                if not await self.ledger.until(lambda: not device.connected, life):
                    device.abort()
                await device.ended(math.inf)
            else:
                await asyncio.sleep(0.1)

    async def _flow(self) -> None:
        """So many messages a second; what the broker was not there for is made up for, bounded by the window."""
        owed = 0.0
        while True:
            await asyncio.sleep(TICK)
            if not self.flowing:
                continue
            owed += self.rate * TICK
            each = int(owed / len(self.devices))
            owed -= each * len(self.devices)
            for device in self.devices:
                if device.allowed - device.sent < 2 * device.window:
                    device.allow(each)
