"""Test DataFrames written to MQTT: the messages that a real broker receives or refuses, and lost
connections.
"""

import base64
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from broker import Broker, running
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark_mqtt.errors import MqttError
from pyspark_mqtt.options import writing
from pyspark_mqtt.publisher import Message, Publisher
from queries import last_line

RULES = """\
rules:
  - deny: publish
    topic: forbidden/#
  - allow: all
    topic: "#"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    (folder / "acl.yaml").write_text(RULES)
    acl = {"use": "acl_file", "config": {"path": str(folder / "acl.yaml")}}
    with running(folder, plugins=[acl]) as started:
        yield started


def arrived(spark: SparkSession, broker: Broker, topic: str) -> list[Row]:
    """Return the messages that the broker received on topics that match a filter, with headers and properties."""
    given = broker.read | {"includeHeaders": "true", "includeProperties": "true", "topics": topic}
    return (
        spark.read.format("mqtt").options(**given).load().orderBy("partition", "offset").collect()
    )


def test_rows_become_messages(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql(
        """select * from values
        ('w/a', binary('one'), 0, true, array(struct('unit', binary('K'))), 'text/plain', 'r', binary('c'), 3, 70L),
        ('w/b', binary(''), 2, false, null, null, null, null, 4, 80L)
        as t(topic, payload, qos, retain, headers, content_type, response_topic, correlation_data, partition, offset)"""
    )
    kind = "array<struct<key:string,value:binary>>"
    frame = frame.withColumn("headers", frame.headers.cast(kind))
    frame.write.format("mqtt").mode("append").options(**broker.write).save()
    [one] = arrived(spark, broker, "w/a")
    assert (bytes(one.payload), one.qos, one.retain) == (b"one", 0, True)
    assert one.headers == [("unit", b"K"), ("message-id", b"spark-3-70")]
    assert (one.content_type, one.response_topic) == ("text/plain", "r")
    assert bytes(one.correlation_data) == b"c"
    assert one.client_id.startswith("spark-")
    [two] = arrived(spark, broker, "w/b")
    assert (bytes(two.payload), two.qos, two.retain) == (b"", 1, False)
    assert two.headers == [("message-id", b"spark-4-80")]


def test_a_topic_for_all_and_ids_of_ones_own(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(50).selectExpr(
        "cast(id as string) as value", "concat('n', id) as message_id"
    )
    frame = frame.repartition(3)
    options = broker.write | {"topic": "w/numbers", "maxInflight": "4"}
    frame.write.format("mqtt").mode("append").options(**options).save()
    rows = arrived(spark, broker, "w/numbers")
    assert sorted(int(row.payload) for row in rows) == list(range(50))
    assert all(row.headers == [("message-id", b"n" + bytes(row.payload))] for row in rows)
    assert len({row.client_id for row in rows}) == 3


def test_an_older_protocol(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql("select 'w/311' as topic, 'x' as value, 0 as partition, 1L as offset")
    options = broker.write | {"mqttVersion": "3.1.1"}
    frame.write.format("mqtt").mode("append").options(**options).save()
    [row] = arrived(spark, broker, "w/311")
    assert row.headers == []


def test_a_stream_goes_back(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish([Message("in/x", b"%d" % n) for n in range(40)])
    given = broker.read | {"topics": "in/#"}
    frame = spark.readStream.format("mqtt").options(**given).load()
    doubled = frame.selectExpr(
        "'out/x' as topic", "cast(cast(cast(payload as string) as int) * 2 as string) as payload",
        "partition", "offset",
    )  # fmt: skip
    for _ in range(2):
        query = (
            doubled.writeStream.format("mqtt")
            .options(**broker.write)
            .option("messageIdPrefix", "doubled")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    rows = arrived(spark, broker, "out/x")
    assert [int(row.payload) for row in rows] == [2 * n for n in range(40)]
    ids = {bytes(row.headers[0].value).decode() for row in rows}
    sources = arrived(spark, broker, "in/x")
    assert ids == {f"doubled-{row.partition}-{row.offset}" for row in sources}


@pytest.mark.parametrize(
    ("query", "options", "said"),
    [
        ("select 'x' as payload", {}, "has no column topic (payload)"),
        ("select 'a' as topic", {}, "needs a column payload"),
        ("select 'a' as topic, 1 as payload", {}, "Column payload is int, and must be binary or string"),
        ("select 'a' as topic, 'x' as payload, 5.0 as price", {}, "Column price is not one that is published"),
        ("select 'a/#' as topic, 'x' as payload", {}, "Topic 'a/#' has a wildcard"),
        ("select '' as topic, 'x' as payload", {}, "Topic '' is empty"),
        ("select 'a' as topic, 'x' as payload, 3 as qos", {}, "A row has qos 3"),
        ("select 'a' as topic, 'x' as payload", {"brokerURL": "mqtt"}, "must begin with mqtt://"),
        ("select 'a' as topic, 'x' as payload", {"maxInFlights": "1"}, "did you mean maxInflight"),
        ("select 'forbidden/a' as topic, 'x' as payload", {}, "refused a message to topic 'forbidden/a': Not authorized"),
        (
            "select 'a' as topic, 'x' as payload",
            {"brokerUrl": "mqtt://127.0.0.1:1", "publishTimeoutMs": "50"},
            "cannot be reached",
        ),
    ],
)  # fmt: skip
def test_mistakes(
    spark: SparkSession, broker: Broker, query: str, options: dict[str, str], said: str
) -> None:
    given = {name.lower(): value for name, value in (broker.write | options).items()}
    with pytest.raises(PySparkException) as raised:
        spark.sql(query).write.format("mqtt").mode("append").options(**given).save()
    assert said in last_line(raised.value)


def test_there_is_nothing_to_overwrite(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql("select 'a' as topic, 'x' as payload")
    with pytest.raises(PySparkException) as raised:
        frame.write.format("mqtt").mode("overwrite").options(**broker.write).save()
    assert 'use .mode("append")' in last_line(raised.value)


def test_a_header_that_is_no_text(spark: SparkSession, broker: Broker) -> None:
    frame = spark.createDataFrame(
        [("a", "x", [(base64.b64decode("aw==").decode(), b"\xff")])],
        "topic string, payload string, headers array<struct<key:string,value:binary>>",
    )
    with pytest.raises(PySparkException) as raised:
        frame.write.format("mqtt").mode("append").options(**broker.write).save()
    assert "Header 'k' is not UTF-8" in last_line(raised.value)


# The connection by itself


def test_a_broker_that_restarts_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        with Publisher(writing(broker.write), "patient") as publisher:
            for n in range(20):
                publisher.publish(Message("p", b"%d" % n))
            broker.kill()
            starting = threading.Thread(target=broker.start)
            starting.start()
            for n in range(20, 60):
                publisher.publish(Message("p", b"%d" % n))
            publisher.finish()
            starting.join()
        rows = arrived(spark, broker, "p")
    assert {int(row.payload) for row in rows} == set(range(60))


def publish(publisher: Publisher, messages: Iterable[Message]) -> None:
    for message in messages:
        publisher.publish(message)
    publisher.finish()


def test_a_broker_that_stays_away(tmp_path: Path) -> None:
    with running(tmp_path) as mortal:
        options = writing(mortal.write | {"publishTimeoutMs": "300"})
        with Publisher(options, "impatient") as publisher:
            mortal.kill()
            messages = [Message("p", b"%d" % n) for n in range(1000)]
            with pytest.raises(MqttError, match="acknowledged nothing for publishTimeoutMs"):
                publish(publisher, messages)
        with pytest.raises(MqttError, match="cannot be reached"), Publisher(options, "late"):
            pass


def test_a_second_connection_with_its_name_ends_it(broker: Broker) -> None:
    options = writing(broker.write)
    with Publisher(options, "twin") as first:
        publish(first, [Message("p", b"1")])
        with Publisher(options, "twin"), pytest.raises(MqttError, match="Session taken over"):
            publish(first, [Message("p", b"2")])


def test_a_message_that_is_too_large(broker: Broker) -> None:
    message = Message("p", bytes(1 << 28))
    with (
        Publisher(writing(broker.write), "large") as publisher,
        pytest.raises(MqttError, match="cannot be sent: Payload too large"),
    ):
        publish(publisher, [message])
