"""Queue consumers in one process, which a test kills with SIGKILL.

    python worker.py PORT SEED '[{"name": "one", "filter": "$queue/jobs/#", "level": 5, "hold": 0.1}]'

Each line of standard output is a JSON list that begins with a kind, a time in monotonic seconds, the consumer's name and
the number of its connection. The consumer writes it before doing anything else:

- ``D``: a delivery; queue, group, offset, source topic, number of the message, delivery count, id of the dead letter
- ``A``: the consumer is about to acknowledge; queue, group, offset, source topic, number
- ``C``: the broker has processed the acknowledgement, because it answered a later PINGREQ; as ``A``
- ``N``: a new connection was accepted

An MQTT 3.1.1 consumer does not know the offset and the delivery count, so they are -1. It takes the queue and group
from its filter.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hookmq.mqtt.packets import Connack, Packet, Pingreq, Pingresp, Publish
from hookmq.mqtt.topics import parse_share
from hookmq_testing import AsyncioClient
from killing.ledger import Stream

Place = tuple[str, str, int, str, int]
"""Queue, group, offset, source topic and number of a message."""
HELD = 3
"""How many messages a consumer leaves unacknowledged before it drops its connection."""


class Consumer:
    """A consumer that acknowledges most messages at once, some later, and a fraction `hold` never."""

    def __init__(
        self,
        name: str,
        filter: str,
        rng: random.Random,
        level: int = 5,
        hold: float = 0.0,
        durable: bool = False,
    ) -> None:
        self.name = name
        self.filter = filter
        self.hold = hold
        self.rng = rng
        self.connection = 0
        self.held = 0
        self.pings: deque[list[Place]] = deque()
        self.acked: list[Place] = []
        share, plain = parse_share(filter)
        self.queue = plain.split("/")[1]
        self.group = share or "default"
        expiry: dict[str, Any] = {"session_expiry_interval": 3600} if durable else {}
        self.mqtt = AsyncioClient(
            name,
            level,
            not durable,
            auto_ack=False,
            on_packet=self._packet,
            on_message=self._message,
            **expiry,
        )

    async def run(self, port: int) -> None:
        """Consume until the process is killed."""
        asyncio.get_running_loop().create_task(self.mqtt.stay_connected(port))
        while True:
            await self.mqtt.until(lambda: self.mqtt.connected, float("inf"))
            connection = self.connection
            try:
                await self.mqtt.subscribe(self.filter, 1)
            except ConnectionError:
                continue
            await self.mqtt.until(partial(self._is_after, connection), float("inf"))

    def _is_after(self, connection: int) -> bool:
        return self.connection > connection

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Connack) and not packet.code:
            self.connection += 1
            self.held = 0
            self.pings.clear()
            self.acked = []
            self._say("N")
        elif isinstance(packet, Pingresp):
            for place in self.pings.popleft():
                self._say("C", *place)

    def _message(self, packet: Publish) -> None:
        properties = dict(packet.properties.user_property or ())
        source = properties.get("dead-letter-topic") or properties.get("source-topic", "")
        if not source:  # MQTT 3.1.1: a captured message has its topic after the queue's name
            rest = packet.topic.removeprefix(f"$queue/{self.queue}/")
            source = rest if "/" in rest else packet.topic
        number = number_of(source, packet.payload)
        offset = int(properties.get("offset", -1))
        count = int(properties.get("delivery-count", -1))
        dead = properties.get("dead-letter-id", "")
        group = properties.get("group", self.group)
        place = (self.queue, group, offset, source, number)
        self._say("D", *place, count, dead)
        luck = self.rng.random()
        if luck < self.hold:
            self.held += 1
            if self.held == HELD:
                self.mqtt.drop()
        elif luck < self.hold + 0.1:
            delay = self.rng.random() * 0.1
            loop = asyncio.get_running_loop()
            loop.call_later(delay, self._ack, packet, place, self.connection)
        else:
            self._ack(packet, place, self.connection)

    def _ack(self, packet: Publish, place: Place, connection: int) -> None:
        if connection != self.connection or not self.mqtt.connected:
            return
        self._say("A", *place)
        try:
            self.mqtt.ack(packet)
        except ConnectionError:
            return
        if not self.acked:
            asyncio.get_running_loop().call_soon(self._ping, connection)
        self.acked.append(place)

    def _ping(self, connection: int) -> None:
        if connection == self.connection and self.mqtt.connected:
            self.mqtt.send(Pingreq())
            self.pings.append(self.acked)
            self.acked = []

    def _say(self, kind: str, *more: object) -> None:
        line = json.dumps([kind, time.monotonic(), self.name, self.connection, *more])
        os.write(1, line.encode() + b"\n")


def number_of(topic: str, payload: bytes) -> int:
    """Return the number of a stream's message, or 0 if its payload is not the one that was published."""
    try:
        number = int(payload.partition(b" ")[0])
    except ValueError:
        return 0
    return number if Stream(topic, 1).body(number) == payload else 0


async def main(port: int, seed: int, consumers: list[dict[str, Any]]) -> None:
    """Run all consumers."""
    rng = random.Random(seed)
    made = [Consumer(rng=random.Random(rng.random()), **one) for one in consumers]
    await asyncio.gather(*(one.run(port) for one in made))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])))
