"""Devices: MQTT 5 clients that publish distinguishable messages, and reconnect as often as necessary."""

import asyncio
import json
import math
import random
from collections.abc import Iterable
from typing import Final

from hookmq.mqtt.packets import Packet, Pubrec
from killing.client import OK, Publisher
from killing.ledger import Ledger, Stream

TOPICS: Final = 3
"""Number of topics per device."""
TICK: Final = 0.05
"""Seconds between two batches of messages."""


class Topic(Stream):
    """The messages of one device on one topic, numbered from 1. Most messages are JSON; some are deliberately invalid."""

    def good(self, number: int) -> bool:
        """Return whether the message is JSON."""
        return number % 50 != 7

    def body(self, number: int) -> bytes:
        """Return the payload of a message, as `Stream.body` does."""
        filling = "x" * (20_000 if number % 997 == 0 else number * 7919 % 200)
        if not self.good(number):
            return f"ERR {number} {filling}".encode()
        return json.dumps({"n": number, "value": number % 50 / 2, "note": filling}).encode()

    def message_id(self, number: int) -> str:
        """Return the message's user property `message-id`, which is the same each time the message is sent."""
        return f"{self.topic}:{number}"


class Device(Publisher):
    """A client that publishes on each of its topics in turn. Once the broker has sent PUBACK or PUBREC for a message,
    the broker is responsible for it.
    """

    def send(self, stream: Stream, index: int) -> int:
        """Send a topic's next message and return its packet id."""
        assert isinstance(stream, Topic)
        named = ("message-id", stream.message_id(index))
        return self.mqtt.send_publish(
            stream.topic, stream.body(index), stream.qos, user_property=(named,)
        )

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Pubrec) and packet.code < OK:
            found = self._unfinished.get(packet.packet_id)
            if found is not None:
                found[0].acknowledge(found[1])
        super()._packet(packet)


class Fleet:
    """All devices, half using QoS 1 and half using QoS 2. Together they publish `rate` messages per second."""

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
        """Return the topics of all devices."""
        return (one for one in self.ledger.streams.values() if isinstance(one, Topic))

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledged messages."""
        return sum(sum(one.acked) for one in self.topics)

    @property
    def sent(self) -> int:
        """Return the number of messages sent, not counting retransmissions."""
        return sum(one.sent for one in self.topics)

    def start(self, port: int) -> None:
        """Connect the devices and start publishing."""
        self.port = port
        self._tasks = [asyncio.create_task(self._keep(one)) for one in self.devices]
        self._tasks.append(asyncio.create_task(self._flow()))

    def look(self) -> None:
        """Raise the exception of a failed task, if any."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def idle(self, seconds: float) -> None:
        """Stop publishing and wait until all messages are acknowledged.

        Raise AssertionError if that takes longer than `seconds`.
        """
        self.flowing = False
        done = await self.ledger.until(lambda: all(one.idle for one in self.devices), seconds)
        self.look()
        assert done, f"{self.sent - self.acknowledged} messages are not acknowledged"

    async def stop(self) -> None:
        """Stop all devices."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self.devices:
            one.abort()
        await asyncio.gather(*(one.ended() for one in self.devices))

    async def _keep(self, device: Device) -> None:
        """Keep a device connected whenever the broker is up. Drop its connection at random moments, so that packets in
        transit are lost.
        """
        while True:
            if device.connected or await device.connect(self.port):
                life = self._draw.uniform(2, 20) if self.flowing else math.inf
                if not await self.ledger.until(lambda: not device.connected, life):
                    device.abort()
                await device.ended(math.inf)
            else:
                await asyncio.sleep(0.1)

    async def _flow(self) -> None:
        """Publish at the given rate. After an outage, catch up as far as the window allows."""
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
