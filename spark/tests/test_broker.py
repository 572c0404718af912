"""Test the data source with a real broker. Acknowledged messages are read once and in order, even if processes are
killed in the meantime.
"""

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import Broker, running
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark_mqtt.publisher import Message
from queries import available_now, last_line

TOPICS = [f"site/{n % 7}/temperature" for n in range(21)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path) as started:
        yield started


def numbered(first: int, count: int) -> list[Message]:
    return [Message(TOPICS[n % len(TOPICS)], b"%d" % n) for n in range(first, first + count)]


def batch(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    return spark.read.format("mqtt").options(**(broker.read | options)).load()


def stream(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    return spark.readStream.format("mqtt").options(**(broker.read | options)).load()


def table(spark: SparkSession, folder: Path) -> list[int]:
    """Return all numbers in a table, sorted. Assert that each topic's numbers are in the order of their offsets."""
    rows = spark.read.parquet(str(folder / "table")).collect()
    rows.sort(key=lambda row: (row.partition, row.offset))
    last: dict[str, int] = {}
    for row in rows:
        number = int(row.payload)
        assert last.get(row.topic, -1) < number
        last[row.topic] = number
    return sorted(int(row.payload) for row in rows)


def test_a_message_as_it_was_published(spark: SparkSession, broker: Broker) -> None:
    broker.publish(
        [
            Message("plain", b"\x00\xff"),
            Message(
                "ä/$weird topic",
                "grüße".encode(),
                qos=0,
                content_type="text/plain",
                response_topic="answers/1",
                correlation_data=b"\x01\x00",
                headers=(("unit", "°C"), ("unit", "K")),
            ),
            Message("plain", b"", retain=True),
        ]
    )
    frame = batch(spark, broker, includeHeaders="true", includeProperties="true")
    rows = {bytes(row.payload): row for row in frame.collect()}
    assert set(rows) == {b"\x00\xff", "grüße".encode(), b""}
    full = rows["grüße".encode()]
    assert (full.topic, full.qos, full.retain) == ("ä/$weird topic", 0, False)
    assert (full.content_type, full.response_topic) == ("text/plain", "answers/1")
    assert full.correlation_data == b"\x01\x00"
    assert full.headers == [("unit", "°C".encode()), ("unit", b"K")]
    assert full.client_id.startswith("test-")
    plain = rows[b"\x00\xff"]
    assert (plain.qos, plain.content_type, plain.headers) == (1, None, [])
    assert rows[b""].retain


def test_any_payload_and_topics_of_every_legal_character(
    spark: SparkSession, broker: Broker
) -> None:
    payloads = [b"", b"\x00", b"{", b"\xff\xfe\x80", b'"\xed\xa0\x80"', "\U0010ffff".encode()]
    characters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    # Not those that a broker refuses by default: control characters and non-characters.
    refused = re.compile(r"[+#\x01-\x1f\x7f-\x9f\ufdd0-\ufdef]")
    legal = [one for one in characters if not refused.match(one) and ord(one) & 0xFFFE != 0xFFFE]
    topics = ["".join(legal[at : at + 16_000]) for at in range(0, len(legal), 16_000)]
    topics += ["/", "//", " ", "a" * 65_535]
    broker.publish(Message("payloads", payload) for payload in payloads)
    broker.publish(Message(topic, b"%d" % n) for n, topic in enumerate(topics))
    rows = batch(spark, broker).orderBy("partition", "offset").collect()
    assert [bytes(row.payload) for row in rows if row.topic == "payloads"] == payloads
    found = {row.topic: int(row.payload) for row in rows if row.topic != "payloads"}
    assert found == {topic: n for n, topic in enumerate(topics)}


def test_filters_are_the_brokers(spark: SparkSession, broker: Broker) -> None:
    broker.publish(numbered(0, 210))
    frame = batch(spark, broker, topics="site/3/+,site/5/#")
    rows = frame.collect()
    assert sorted(int(row.payload) for row in rows) == [n for n in range(210) if n % 7 in (3, 5)]
    everything = {
        (row.partition, row.offset): row.payload for row in batch(spark, broker).collect()
    }
    assert all(everything[row.partition, row.offset] == row.payload for row in rows)
    assert batch(spark, broker, topics="none").count() == 0
    assert frame.select("offset").count() == 60


def test_ranges_within_blocks(spark: SparkSession, broker: Broker) -> None:
    broker.publish(numbered(0, 300))
    last = batch(spark, broker).groupBy("partition").max("offset").collect()
    ends = {row[0]: row[1] + 1 for row in last}
    start = "{" + ", ".join(f'"{p}": {min(17, ends.get(p, 0))}' for p in range(3)) + "}"
    end = "{" + ", ".join(f'"{p}": {ends.get(p, 0)}' for p in range(3)) + "}"
    frame = batch(spark, broker, startingOffsets=start, endingOffsets=end, minPartitions="8")
    found = sorted((row.partition, row.offset) for row in frame.collect())
    assert found == [(p, n) for p in sorted(ends) for n in range(17, ends[p])]


def test_a_broker_is_killed_while_spark_reads(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish(numbered(0, 3000))
    killed = threading.Event()

    def kill_and_start() -> None:
        broker.kill()
        killed.set()
        broker.start()

    frame = stream(spark, broker, maxOffsetsPerTrigger="300")
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "table"))
    )
    thread = threading.Thread(target=kill_and_start)
    try:
        while not any(p.numInputRows for p in query.recentProgress):
            assert query.exception() is None
            query.awaitTermination(1)
        thread.start()
        killed.wait(30)
        thread.join()
        broker.publish(numbered(3000, 500))
        query.processAllAvailable()
    finally:
        query.stop()
    assert table(spark, tmp_path) == list(range(3500))


def test_a_query_is_run_again_and_again(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    for round_ in range(3):
        broker.publish(numbered(round_ * 400, 400))
        available_now(stream(spark, broker, maxOffsetsPerTrigger="250"), tmp_path)
        broker.kill()
        broker.start()
    assert table(spark, tmp_path) == list(range(1200))


def test_a_log_that_was_deleted(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish(numbered(0, 50))
    available_now(stream(spark, broker), tmp_path)
    broker.kill()
    shutil.rmtree(tmp_path / "streams")
    shutil.rmtree(tmp_path / "state")
    broker.start()
    broker.publish(numbered(50, 10))
    with pytest.raises(PySparkException) as raised:
        available_now(stream(spark, broker), tmp_path)
    assert "is not the log that the checkpoint belongs to" in last_line(raised.value)
    available_now(stream(spark, broker, failOnDataLoss="false"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(int(row.payload) for row in rows) == list(range(60))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": "not the token 123"}, "knows no such token"),
        ({"stream": "other"}, "other"),
        ({"endingOffsets": '{"0": 5, "1": 0, "2": 0}'}, "holds 0 to 0"),
        ({"fetchOffset.numRetries": "0", "url": "http://127.0.0.1:1"}, "Connection refused"),
    ],
)
def test_mistakes(spark: SparkSession, broker: Broker, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException) as raised:
        batch(spark, broker, **options).collect()
    assert said in last_line(raised.value)


def test_the_port_of_mqtt_is_not_the_read_api(spark: SparkSession, broker: Broker) -> None:
    url = f"http://127.0.0.1:{broker.mqtt_port}"
    with pytest.raises(PySparkException) as raised:
        batch(spark, broker, url=url, **{"fetchOffset.numRetries": "1"}).collect()
    assert "is `url` the address of its read API" in last_line(raised.value)


def test_progress_is_reported_to_the_broker(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    import json
    import urllib.request

    broker.publish(numbered(0, 100))
    available_now(stream(spark, broker, consumerGroup="etl"), tmp_path)
    request = urllib.request.Request(
        f"{broker.read['url']}/v1/streams/all/consumers/etl",
        headers={"Authorization": f"Bearer {broker.read['token']}"},
    )
    with urllib.request.urlopen(request) as response:
        partitions = json.load(response)["partitions"].values()
    assert sum(one["committed"] for one in partitions) == 100
    assert all(one["lag"] == 0 for one in partitions)
