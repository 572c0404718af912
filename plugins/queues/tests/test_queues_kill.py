"""Kill a broker with SIGKILL while clients publish to a queue and consume from it.

Every acknowledged message is delivered. A message that is delivered again has a delivery count above 1.
"""

import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from crashing import Client, Crashing, crashing
from hookmq.mqtt_api import Publish
from hookmq_testing import AsyncioClient

pytestmark = pytest.mark.slow

KILLS = 3
EACH = 60
QOS = {"one": 1, "two": 2}
QUEUES = """\
  - use: queues
    config:
      path: "{path}"
      queues: [{{name: jobs, prefetch: 8, memory: 2KiB}}]
"""


WANTED = {f"$queue/jobs/{name} {number}" for name in QOS for number in range((KILLS + 1) * EACH)}


class Heard:
    """The topic and payload of each message that a consumer got, with the delivery count."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int]] = []
        self.complete = threading.Event()
        self._missing = set(WANTED)

    def add(self, key: str, count: int) -> None:
        self.all.append((key, count))
        self._missing.discard(key)
        if not self._missing:
            self.complete.set()


class Worker:
    """A consumer that acknowledges what it gets, and returns after each kill."""

    def __init__(self, broker: Crashing, name: str, heard: Heard) -> None:
        self._heard = heard
        self._thread = broker.thread
        self._mqtt = AsyncioClient(
            name, clean_start=False, session_expiry_interval=3600, on_message=self._hear
        )
        self._staying = self._thread.start(self._mqtt.stay_connected(broker.port))

        async def subscribe() -> tuple[int, ...]:
            assert await self._mqtt.until(lambda: self._mqtt.connack is not None, 60)
            return tuple((await self._mqtt.subscribe("$queue/jobs/#", 1)).codes)

        assert self._thread.run(subscribe()) == (1,)

    def _hear(self, message: Publish) -> None:
        properties = dict(message.properties.user_property or ())
        key = f"{message.topic} {message.payload.decode()}"
        self._heard.add(key, int(properties["delivery-count"]))

    def close(self) -> None:
        self._staying.cancel()
        self._thread.call(self._mqtt.disconnect)
        self._thread.run(self._mqtt.wait_closed())


def test_acknowledged_messages_survive_kills(tmp_path: Path) -> None:
    rng = random.Random(18)
    heard = Heard()
    with crashing(tmp_path, more=QUEUES.format(path=tmp_path / "queues")) as broker:
        publishers = {name: Client(broker, name) for name in QOS}
        workers = [Worker(broker, f"worker{number}", heard) for number in range(2)]
        for kill in range(KILLS + 1):
            for name, client in publishers.items():
                for number in range(kill * EACH, (kill + 1) * EACH):
                    client.publish(number, f"$queue/jobs/{name}", QOS[name])
            if kill == KILLS:
                break
            some = kill * EACH + rng.randrange(1, EACH)
            one = publishers[rng.choice(list(QOS))]
            one.wait(lambda one=one, some=some: len(one.acked) >= some)
            times = {name: len(client.present) for name, client in publishers.items()}
            broker.kill()
            broker.start()
            for name, client in publishers.items():
                client.back(times[name])
        for client in publishers.values():
            client.wait(lambda client=client: len(client.acked) == (KILLS + 1) * EACH)
        assert heard.complete.wait(60)
        for worker in workers:
            worker.close()
        for client in publishers.values():
            client.close()
        broker.clients.clear()
        assert broker.stop() == 0
    assert {key for key, _ in heard.all} == WANTED
    firsts: Counter[str] = Counter(key for key, count in heard.all if count == 1)
    # A publisher at QoS 1 may have sent a message again, which is then another message.
    assert not [key for key, count in firsts.items() if count > 1 and " two" in key]
