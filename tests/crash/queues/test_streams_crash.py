"""Test kills of a broker while it compacts and trims a stream, with paho as the client."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killing.brokers import HookMQ
from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

KILLS = 3
EACH = 500
KEYS = 40
TOPIC = "$queue/log"
STREAM = """\
  - use: queues
    config:
      path: "{path}"
      queues:
        - name: log
          type: stream
          compact: key
          memory: 0
          groups_on_first_use: true
          retention: {{bytes: 512KiB}}
"""


def user_properties(packet: int, *pairs: tuple[str, str]) -> Any:
    """Return a packet's user properties."""
    made: Any = Properties(packet)  # type: ignore[no-untyped-call]
    made.UserProperty = list(pairs)
    return made


class Publisher:
    """Publishes numbered messages with keys, and remembers which ones were acknowledged."""

    def __init__(self) -> None:
        self.number = 0
        self.acknowledged: set[int] = set()
        self.changed = threading.Condition()

    def publish_until(self, port: int, acknowledged: int) -> None:
        """Publish `EACH` messages on a new connection. Return once enough of them are acknowledged."""
        client = Client(CallbackAPIVersion.VERSION2, "p", protocol=MQTTv5)
        client.max_inflight_messages_set(50)
        numbers: dict[int, int] = {}
        before = len(self.acknowledged)

        def acked(_: Any, __: Any, packet: int, ___: Any, ____: Any) -> None:
            with self.changed:
                self.acknowledged.add(numbers[packet])
                self.changed.notify()

        client.on_publish = acked
        client.connect("127.0.0.1", port)
        with self.changed:  # so that `numbers` is there before the first acknowledgement is taken
            for _ in range(EACH):
                properties = user_properties(PacketTypes.PUBLISH, ("key", f"k{self.number % KEYS}"))
                payload = b"%d " % self.number + bytes(1000)
                numbers[client.publish(TOPIC, payload, 1, properties=properties).mid] = self.number
                self.number += 1
        client.loop_start()
        with self.changed:
            wanted = before + acknowledged
            assert self.changed.wait_for(lambda: len(self.acknowledged) >= wanted, 30)
        threading.Thread(target=client.loop_stop, daemon=True).start()


def read(port: int, group: str, last: int) -> dict[int, int]:
    """Consume in a new group, from the first message until the message with number `last` arrives. Return the message
    numbers, keyed by offset.
    """
    found: dict[int, int] = {}
    ended = threading.Event()

    def received(_: Any, __: Any, message: MQTTMessage) -> None:
        sent: Any = message.properties
        properties = dict(sent.UserProperty)
        number = int(message.payload.split()[0])
        assert properties["key"] == f"k{number % KEYS}"
        found[int(properties["offset"])] = number
        if number == last:
            ended.set()

    client = Client(CallbackAPIVersion.VERSION2, f"reader-{group}", protocol=MQTTv5)
    client.on_message = received
    client.connect("127.0.0.1", port)
    wanted = [("consumer-group", group), ("start", "first")]
    properties = user_properties(PacketTypes.SUBSCRIBE, *wanted)
    client.subscribe(TOPIC, options=SubscribeOptions(qos=1), properties=properties)
    client.loop_start()
    assert ended.wait(30), f"{len(found)} messages, but not {last}"
    client.disconnect()
    client.loop_stop()
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[HookMQ]:
    made = HookMQ(tmp_path, "group", STREAM.format(path=tmp_path / "queues"))
    made.spawn()
    made.ready()
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_stream_survives_kills_while_it_is_compacted(broker: HookMQ, tmp_path: Path) -> None:
    rng = random.Random(7)
    publisher = Publisher()
    known: dict[int, int] = {}
    for kill in range(KILLS):
        publisher.publish_until(broker.port, EACH // 2 + rng.randrange(EACH // 2))
        broker.kill(rng)
        broker.spawn()
        broker.ready()
        publisher.publish_until(broker.port, EACH)
        found = read(broker.port, f"audit-{kill}", publisher.number - 1)
        offsets = sorted(found)
        numbers = [found[one] for one in offsets]
        assert numbers == sorted(numbers)  # in order, and no message twice
        assert all(known.get(offset, number) == number for offset, number in found.items())
        known |= found
        newest = {number % KEYS: number for number in sorted(publisher.acknowledged)}
        last = {number % KEYS: number for number in numbers}
        assert last == {key: max(number, last[key]) for key, number in newest.items()}
        assert len(found) < publisher.number - 100  # some were removed
        assert len(known) > len(found) or not kill
    segments = list((tmp_path / "queues" / "log").glob("*.segment"))
    # Compaction may have removed so much that no segment had to be deleted.
    assert sum(one.stat().st_size for one in segments) < 1 << 20
