"""Test reading a queue of type `stream`: Spark sees the same offsets as MQTT consumers do."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import WAIT, Broker, running
from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark_mqtt.publisher import Message
from queries import available_now, last_line

KEYS = 10


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    queue = {
        "name": "measurements",
        "type": "stream",
        "bindings": ["site/#"],
        "compact": "key",
        "groups_on_first_use": True,
        "memory": 0,
        "retention": {"bytes": "1MiB"},
    }
    config = {"path": str(tmp_path / "queues"), "queues": [queue]}
    stream = {"name": "all", "queue": "measurements", "topics": [], "partitions": 1}
    with running(tmp_path, stream=stream, plugins=[{"use": "queues", "config": config}]) as started:
        yield started


def numbered(first: int, count: int) -> list[Message]:
    """Return 2 KB messages. Each key has many of them, so that compaction leaves gaps."""
    return [
        Message(f"site/{n % 7}", b"%d " % n + bytes(2000), headers=(("key", f"k{n % KEYS}"),))
        for n in range(first, first + count)
    ]


def consumed(broker: Broker, group: str, last: int) -> dict[int, int]:
    """Consume in a new group, from the first message until number `last` arrives. Return the message numbers, keyed by
    the user property `offset`.
    """
    found: dict[int, int] = {}
    ended = threading.Event()

    def received(_: Any, __: Any, message: MQTTMessage) -> None:
        sent: Any = message.properties
        found[int(dict(sent.UserProperty)["offset"])] = int(message.payload.split()[0])
        if last in found.values():
            ended.set()

    client = Client(CallbackAPIVersion.VERSION2, f"consumer-{group}", protocol=MQTTv5)
    client.on_message = received
    client.connect("127.0.0.1", broker.mqtt_port)
    properties: Any = Properties(PacketTypes.SUBSCRIBE)
    properties.UserProperty = [("consumer-group", group), ("start", "first")]
    options = SubscribeOptions(qos=1)
    client.subscribe("$queue/measurements", options=options, properties=properties)
    client.loop_start()
    assert ended.wait(WAIT)
    client.disconnect()
    client.loop_stop()
    return found


def numbers(frame: DataFrame) -> dict[int, int]:
    """Return the message numbers, keyed by offset. No offset may occur twice."""
    rows = frame.select("partition", "offset", "payload").collect()
    assert {row.partition for row in rows} == {0}
    found = {row.offset: int(row.payload.split()[0]) for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_batch_and_a_stream_have_the_offsets_of_mqtt_consumers(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    expected: dict[int, int] = {}
    stream = spark.readStream.format("mqtt").options(**broker.read, maxOffsetsPerTrigger="150")
    for round_ in range(3):
        broker.publish(numbered(round_ * 300, 300))
        seen = consumed(broker, f"g{round_}", round_ * 300 + 299)
        assert all(offset == number for offset, number in seen.items())
        assert len(seen) < (round_ + 1) * 300 or round_ == 0  # compaction has left gaps
        batch = spark.read.format("mqtt").options(**broker.read, includeHeaders="true").load()
        found = numbers(batch)
        # Compaction may remove messages between the two.
        assert found.items() <= seen.items()
        newest = {number % KEYS: number for number in range(round_ * 300 + 300)}
        assert set(newest.values()) <= set(found)
        row = batch.where(f"offset = {newest[3]}").collect()[0]
        assert (row.topic, row.headers[0]) == (f"site/{newest[3] % 7}", ("key", b"k3"))
        filtered = spark.read.format("mqtt").options(**broker.read, topics="site/3").load()
        assert numbers(filtered).items() <= {o: n for o, n in seen.items() if n % 7 == 3}.items()
        available_now(stream.load(), tmp_path)
        expected |= seen
        broker.kill()
        broker.start()
    table = numbers(spark.read.parquet(str(tmp_path / "table")))
    assert table.items() <= expected.items()
    assert set(range(900 - KEYS, 900)) <= set(table)  # the newest of each key


def test_a_queue_that_does_not_exist(spark: SparkSession, tmp_path: Path) -> None:
    stream = {"name": "all", "queue": "measurements", "topics": [], "partitions": 1}
    plugins = [{"use": "queues", "config": {"path": str(tmp_path / "queues")}}]
    with running(tmp_path, stream=stream, plugins=plugins) as broker:
        with pytest.raises(PySparkException) as raised:
            spark.read.format("mqtt").options(**broker.read).load().collect()
        assert "there is no queue 'measurements'" in last_line(raised.value)
