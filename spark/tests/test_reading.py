"""Test ``format("mqtt")`` in a real Spark, with a read API that can simulate failures."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakelog import START, FakeLog, record, serving
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark_mqtt.errors import DataLossError, OptionError
from pyspark_mqtt.offsets import Log
from pyspark_mqtt.options import reading
from pyspark_mqtt.progress import source_progress
from pyspark_mqtt.reader import MqttBatchReader
from pyspark_mqtt.schema import Column
from pyspark_mqtt.stream import MqttStreamReader
from queries import available_now, last_line


@pytest.fixture
def log() -> Iterator[FakeLog]:
    partitions = {
        p: [record(f"line/{p}", b"%d" % n, timestamp=START + n) for n in range(count)]
        for p, count in ((0, 500), (1, 250), (2, 0))
    }
    with serving(FakeLog(partitions)) as served:
        yield served


def batch(spark: SparkSession, log: FakeLog, **options: str) -> DataFrame:
    return spark.read.format("mqtt").options(**(log.options | options)).load()


def stream(spark: SparkSession, log: FakeLog, **options: str) -> DataFrame:
    given = log.options | {"startingOffsets": "earliest"} | options
    return spark.readStream.format("mqtt").options(**given).load()


def keys(spark: SparkSession, folder: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(folder / "table")).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


ALL = [(p, n) for p, count in ((0, 500), (1, 250)) for n in range(count)]


def test_a_batch(spark: SparkSession, log: FakeLog) -> None:
    frame = batch(spark, log)
    assert frame.dtypes == [
        ("topic", "string"),
        ("payload", "binary"),
        ("qos", "int"),
        ("retain", "boolean"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("client_id", "string"),
    ]
    rows = sorted(frame.collect(), key=lambda row: (row.partition, row.offset))
    assert [(row.partition, row.offset) for row in rows] == ALL
    assert all(row.payload == b"%d" % row.offset for row in rows)
    assert all(row.topic == f"line/{row.partition}" for row in rows)
    assert rows[7].timestamp.timestamp() * 1e6 == pytest.approx(START + 7, abs=1)
    assert {(row.qos, row.retain, row.client_id) for row in rows} == {(1, False, "device")}


def test_headers_and_properties(spark: SparkSession, log: FakeLog) -> None:
    log.block_rows = 2
    log.partitions = {
        0: [
            record("a", b""),
            record("a", b"\xff\x00", client_id=None, retain=1, qos=2),
            record("ä/b", b"x", content_type="text/plain", headers=[("k", b"1"), ("k", b"2")]),
            record("a", b"y", response_topic="r/t", correlation_data=b"\x00"),
        ]
    }
    frame = batch(spark, log, includeHeaders="true", includeProperties="true")
    rows = sorted(frame.collect(), key=lambda row: row.offset)
    assert [row.headers for row in rows] == [[], [], [("k", b"1"), ("k", b"2")], []]
    assert [row.payload for row in rows] == [b"", b"\xff\x00", b"x", b"y"]
    assert [row.content_type for row in rows] == [None, None, "text/plain", None]
    assert [row.response_topic for row in rows] == [None, None, None, "r/t"]
    assert [row.correlation_data for row in rows] == [None, None, None, b"\x00"]
    assert [row.client_id for row in rows] == ["device", None, "device", "device"]
    assert [(row.qos, row.retain) for row in rows] == [
        (1, False),
        (2, True),
        (1, False),
        (1, False),
    ]
    assert rows[2].topic == "ä/b"


def test_a_schema_chooses_what_crosses_the_network(spark: SparkSession, log: FakeLog) -> None:
    frame = (
        spark.read.format("mqtt").options(**log.options).schema("offset long, topic string").load()
    )
    assert frame.where("topic = 'line/1'").count() == 250
    assert all("columns=offset%2Ctopic&" in path for path in log.asked if "/records?" in path)
    assert frame.where("offset = 3").count() == 2


def test_columns_without_buffers(spark: SparkSession, log: FakeLog) -> None:
    frame = spark.read.format("mqtt").options(**log.options)
    rows = frame.schema("partition int").load().collect()
    assert sorted(row.partition for row in rows) == [0] * 500 + [1] * 250
    rows = frame.schema("log_id string, offset long").load().collect()
    assert {row.log_id for row in rows} == {log.log_id}
    assert sorted(row.offset for row in rows) == sorted(n for _, n in ALL)


def test_a_task_reads_several_partitions(spark: SparkSession, log: FakeLog) -> None:
    frame = batch(spark, log, minRecordsPerPartition="1000")
    assert frame.rdd.getNumPartitions() == 1
    rows = [(row.partition, row.offset) for row in frame.collect()]
    assert rows == ALL
    assert batch(spark, log).rdd.getNumPartitions() == 2


def test_a_batch_of_offsets(spark: SparkSession, log: FakeLog) -> None:
    frame = batch(
        spark,
        log,
        startingOffsets='{"0": 130, "1": -2, "2": 0}',
        endingOffsets='{"0": 333, "1": 1, "2": -1}',
        minPartitions="7",
    )
    assert frame.rdd.getNumPartitions() >= 7
    found = sorted((row.partition, row.offset) for row in frame.collect())
    assert found == [(0, n) for n in range(130, 333)] + [(1, 0)]


def test_a_batch_of_a_time(spark: SparkSession, log: FakeLog) -> None:
    for rows in log.partitions.values():
        for n, row in enumerate(rows):
            row["timestamp"] = START + n * 1_000_000
    begin = START // 1000
    frame = batch(
        spark,
        log,
        startingTimestamp=str(begin + 245_000),
        endingTimestamp=str(begin + 255_000),
        startingOffsetsByTimestampStrategy="latest",
    )
    found = sorted((row.partition, row.offset) for row in frame.collect())
    assert found == [(0, n) for n in range(245, 255)] + [(1, n) for n in range(245, 250)]


def test_nothing_to_read(spark: SparkSession, log: FakeLog) -> None:
    assert batch(spark, log, startingOffsets="latest").count() == 0


def test_rows_come_in_batches_of_a_size(log: FakeLog) -> None:
    options = reading(log.options | {"batchRows": "220"})
    reader = MqttStreamReader(options, [Column("offset")])
    end: dict[str, str | int] = {"log_id": log.log_id, "0": 500, "1": 250, "2": 0}
    [first, second] = reader.partitions(reader.source.edge("starting", "earliest")[0].json(), end)
    assert [b.num_rows for b in reader.read(first)] == [200, 200, 100]
    assert [b.num_rows for b in reader.read(second)] == [200, 50]
    log.block_rows = 500
    assert [b.num_rows for b in reader.read(first)] == [250, 250]
    reader.stop()


def rows(log: FakeLog, **options: str) -> list[tuple[int, int]]:
    """Read a batch without Spark. Return the partition and offset of each row."""
    reader = MqttBatchReader(
        reading(log.options | options), [Column("partition"), Column("offset")]
    )
    return [
        (row["partition"], row["offset"])
        for task in reader.partitions()
        for piece in reader.read(task)
        for row in piece.to_pylist()
    ]


def test_chosen_partitions(log: FakeLog) -> None:
    assert rows(log, assign='{"s": [1]}') == ALL[500:]
    given = {"assign": '{"s": [2, 1]}', "startingOffsets": '{"1": 248, "2": 0}'}
    assert rows(log, **given) == ALL[-2:]
    with pytest.raises(OptionError, match="partition 3, but stream s has 0 to 2"):
        rows(log, assign='{"s": [3]}')
    with pytest.raises(OptionError, match="names partitions 0, but stream s has 1, 2"):
        rows(log, **(given | {"startingOffsets": '{"0": 1}'}))
    reader = MqttStreamReader(reading(log.options | {"assign": '{"s": [0]}'}), [Column("offset")])
    end = reader.latestOffset({"log_id": log.log_id, "0": 7}, ReadAllAvailable())
    assert end == {"log_id": log.log_id, "0": 500}
    # A checkpoint of all partitions does not fit: nothing is skipped silently.
    with pytest.raises(DataLossError, match="`assign` was changed"):
        reader.latestOffset(zero(log), ReadAllAvailable())
    reader.stop()


def test_a_pattern_chooses_whole_topics(log: FakeLog) -> None:
    log.partitions[1][3]["topic"] = "line/10\nx"
    assert rows(log, subscribePattern="line/[1-9]") == [row for row in ALL[500:] if row != (1, 3)]
    assert rows(log, subscribePattern="line/1.+") == [(1, 3)]
    assert rows(log, subscribePattern="ine|/1") == []
    assert "topic" in log.asked[-1]


def test_a_time_for_each_partition(log: FakeLog) -> None:
    begin = START // 1000
    for found in log.partitions.values():
        for n, row in enumerate(found):
            row["timestamp"] = START + n * 1_000_000
    given = {
        "startingOffsetsByTimestamp": json.dumps(
            {"0": begin + 498_000, "1": begin + 247_000, "2": 0}
        ),
        "endingOffsetsByTimestamp": json.dumps({"0": begin + 499_000, "1": 2 * begin, "2": 0}),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert rows(log, **given) == [(0, 498), (1, 247), (1, 248), (1, 249)]
    with pytest.raises(OptionError, match="later than all of partition 2"):
        rows(log, **(given | {"startingOffsetsByTimestampStrategy": "error"}))
    with pytest.raises(OptionError, match="names partitions 0, but stream s has 0, 1, 2"):
        rows(log, startingOffsetsByTimestamp='{"0": 1}')


def test_available_now_reads_all_in_limited_batches(
    spark: SparkSession, log: FakeLog, tmp_path: Path
) -> None:
    frame = stream(spark, log, maxOffsetsPerTrigger="200")
    progress = available_now(frame, tmp_path)
    assert [one["numInputRows"] for one in progress] == [200, 200, 200, 150]
    assert keys(spark, tmp_path) == ALL
    assert progress[0]["sources"][0]["latestOffset"]["0"] == 500
    [first] = source_progress(progress[0])
    assert (first.log_id, sum(first.offsets.values())) == (log.log_id, 200)
    assert first.metrics["offsetsBehindLatest"] == sum(first.lag.values()) == 550
    assert first.metrics["numInputRows"] == 200
    assert first.batch_ms == progress[0]["durationMs"]["triggerExecution"]
    assert first.description == f"mqtt[log {log.log_id}, partitions 0, 1, 2]"
    [last] = source_progress(progress[-1])
    assert set(last.lag.values()) == {0}


@pytest.mark.parametrize(
    ("trigger", "said"),
    [
        ({"continuous": "1 second"}, "mqtt does not support continuous processing"),
        ({"realTime": "5 minutes"}, "STREAMING_REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED"),
    ],
)
def test_triggers_that_spark_refuses(
    spark: SparkSession, log: FakeLog, tmp_path: Path, trigger: dict[str, str], said: str
) -> None:
    writer = stream(spark, log).writeStream.format("console").outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException) as raised:
        writer.trigger(**trigger).start().awaitTermination(120)
    assert said in str(raised.value)


def test_a_query_goes_on_where_it_was(spark: SparkSession, log: FakeLog, tmp_path: Path) -> None:
    log.partitions[0], later = log.partitions[0][:100], log.partitions[0][100:]
    available_now(stream(spark, log, consumerGroup="etl"), tmp_path)
    log.partitions[0] += later
    # The checkpoint now decides where the query begins, regardless of the options.
    available_now(stream(spark, log, startingOffsets="latest", consumerGroup="etl"), tmp_path)
    assert keys(spark, tmp_path) == ALL
    # The last batch of AvailableNow is reported, too.
    assert log.commits[-1] == {"log_id": log.log_id, "offsets": {"0": 500, "1": 250, "2": 0}}
    available_now(stream(spark, log), tmp_path)
    assert keys(spark, tmp_path) == ALL


def test_a_new_query_begins_at_the_end(spark: SparkSession, log: FakeLog, tmp_path: Path) -> None:
    given = spark.readStream.format("mqtt").options(**log.options).load()
    available_now(given, tmp_path)
    log.partitions[2].append(record("line/2", b"0"))
    available_now(given, tmp_path)
    assert keys(spark, tmp_path) == [(2, 0)]


def test_a_broker_that_restarts_is_waited_for(
    spark: SparkSession, log: FakeLog, tmp_path: Path
) -> None:
    log.faults += ["drop", 503, None, "drop", None, -300, "drop", -300]
    available_now(stream(spark, log), tmp_path)
    assert keys(spark, tmp_path) == ALL


def test_a_log_that_was_made_anew(spark: SparkSession, log: FakeLog, tmp_path: Path) -> None:
    available_now(stream(spark, log), tmp_path)
    log.log_id = "f" * 32
    log.partitions = dict.fromkeys(log.partitions, log.partitions[0][:10])
    with pytest.raises(PySparkException) as raised:
        available_now(stream(spark, log), tmp_path)
    assert "is not the log that the checkpoint belongs to" in last_line(raised.value)
    assert "new checkpointLocation" in last_line(raised.value)
    assert "Traceback (most recent" not in str(raised.value)
    available_now(stream(spark, log, failOnDataLoss="false"), tmp_path)
    assert keys(spark, tmp_path) == sorted(ALL + [(p, n) for p in range(3) for n in range(10)])


def test_a_log_that_was_trimmed(spark: SparkSession, log: FakeLog, tmp_path: Path) -> None:
    limited = {"maxOffsetsPerTrigger": "3"}
    query = (
        stream(spark, log, **limited)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(once=True)
        .start(str(tmp_path / "table"))
    )
    query.awaitTermination()
    before = len(keys(spark, tmp_path))
    log.partitions[0] += [record("line/0", b"%d" % n) for n in range(500, 600)]
    log.earliest[0] = 550
    with pytest.raises(PySparkException) as raised:
        available_now(stream(spark, log), tmp_path)
    assert "has lost offsets 500 to 549 of partition 0" in last_line(raised.value)
    available_now(stream(spark, log, failOnDataLoss="false"), tmp_path)
    assert keys(spark, tmp_path)[before - 250 :][:50] == [(0, n) for n in range(550, 600)]


def test_the_broker_does_not_come_back(spark: SparkSession, log: FakeLog, tmp_path: Path) -> None:
    log.faults += ["drop"] * 20
    with pytest.raises(PySparkException) as raised:
        available_now(stream(spark, log, **{"fetchOffset.numRetries": "1"}), tmp_path)
    assert f"No answer from {log.url}, tried 2 times" in last_line(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"stream": "other"}, "no stream other"),
        ({"url": "broker"}, "must begin with http://"),
        ({"token": "wrong"}, "knows no such token"),
        ({"endingOffsets": '{"0": 501, "1": -1, "2": -1}'}, "holds 0 to 500"),
        ({"startingOffsets": "latest", "endingOffsets": '{"0": 5, "1": -1, "2": -1}'}, "before its start"),
        ({"maxOffsetsPerTrigger": "5"}, "is for readStream"),
    ],
)  # fmt: skip
def test_mistakes_of_a_batch(
    spark: SparkSession, log: FakeLog, options: dict[str, str], said: str
) -> None:
    log.token = "right" if "token" in options else ""
    with pytest.raises(PySparkException) as raised:
        batch(spark, log, **options).collect()
    assert said in last_line(raised.value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("topic string, payload string", "Column payload of mqtt is binary, not string"),
        ("topic string, key string", "Column key is not one of mqtt's: topic, payload"),
        ("offset int", "Column offset of mqtt is bigint, not int"),
        (
            "headers array<string>",
            "Column headers of mqtt is array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_a_schema_that_is_not_mqtts(
    spark: SparkSession, log: FakeLog, tmp_path: Path, schema: str, said: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        spark.read.format("mqtt").options(**log.options).schema(schema).load().collect()
    assert said in last_line(raised.value)
    frame = spark.readStream.format("mqtt").options(**log.options).schema(schema).load()
    with pytest.raises(PySparkException) as raised:
        available_now(frame, tmp_path)
    assert said in last_line(raised.value)


# The stream reader by itself


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HIDE_TRACEBACK", "")  # Whatever a test makes of it goes when it ends.
        patch.delenv("SPARK_HIDE_TRACEBACK")
        yield


@pytest.fixture
def reader(log: FakeLog) -> Iterator[MqttStreamReader]:
    made = MqttStreamReader(reading(log.options), [Column("offset")])
    yield made
    made.stop()


def zero(log: FakeLog) -> dict[str, str | int]:
    return {"log_id": log.log_id, "0": 0, "1": 0, "2": 0}


def test_limits_are_those_of_the_engine(log: FakeLog, reader: MqttStreamReader) -> None:
    everything = reader.latestOffset(zero(log), ReadAllAvailable())
    assert everything == {"log_id": log.log_id, "0": 500, "1": 250, "2": 0}
    assert reader.latestOffset(zero(log), ReadMaxRows(3)) == zero(log) | {"0": 2, "1": 1}
    assert json.dumps(reader.latestOffset(everything, ReadAllAvailable())) == json.dumps(everything)


def test_default_limits(log: FakeLog) -> None:
    for given, expected in (
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"maxOffsetsPerTrigger": "7", "minOffsetsPerTrigger": "5"}, ReadMinRows(5)),
    ):
        made = MqttStreamReader(reading(log.options | given), [Column("offset")])
        assert made.getDefaultReadLimit() == expected


def test_a_batch_waits_for_enough_but_not_for_ever(log: FakeLog) -> None:
    options = {
        "minOffsetsPerTrigger": "751",
        "maxOffsetsPerTrigger": "800",
        "maxTriggerDelay": "10s",
    }
    made = MqttStreamReader(reading(log.options | options), [Column("offset")])
    now = time.monotonic()
    made.clock = lambda: now
    start = made.initialOffset() | zero(log)
    limit = made.getDefaultReadLimit()
    assert made.latestOffset(start, limit) == start
    now += 10
    end = made.latestOffset(start, limit)
    assert end["0"] == 500
    log.partitions[0] += [record("a", b"")] * 3000
    assert made.latestOffset(end, limit) == end | {"0": 1300}
    made.prepareForTriggerAvailableNow()
    end |= {"0": 3000}
    assert made.latestOffset(end, limit) == end | {"0": 3500}
    made.stop()


def test_available_now_does_not_go_beyond_what_there_was(
    log: FakeLog, reader: MqttStreamReader
) -> None:
    reader.prepareForTriggerAvailableNow()
    log.partitions[2].append(record("a", b""))
    assert reader.latestOffset(zero(log), ReadAllAvailable())["2"] == 0
    ahead = zero(log) | {"0": 500, "1": 250}
    assert reader.latestOffset(ahead, ReadAllAvailable()) == ahead


def test_a_replayed_batch_is_the_same(log: FakeLog, reader: MqttStreamReader) -> None:
    end = zero(log) | {"0": 120}
    first = reader.partitions(zero(log), end)
    log.partitions[0] += [record("a", b"")] * 10
    assert repr(reader.partitions(zero(log), end)) == repr(first)
    assert reader.partitions(end, end) == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_replayed_batch_across_logs_needs_leave(log: FakeLog, reader: MqttStreamReader) -> None:
    old = zero(log) | {"log_id": "f" * 32, "0": 70}
    end = zero(log) | {"0": 120}
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        reader.partitions(old, end)
    lenient = MqttStreamReader(
        reading(log.options | {"failOnDataLoss": "false"}), [Column("offset")]
    )
    [task] = lenient.partitions(old, end)
    assert sum(b.num_rows for b in lenient.read(task)) == 120
    lenient.stop()


def test_a_report_that_fails_ends_nothing(log: FakeLog) -> None:
    made = MqttStreamReader(reading(log.options | {"consumerGroup": "etl"}), [Column("offset")])
    log.faults += [503]
    made.commit(zero(log))
    assert not log.commits
    made.commit(zero(log) | {"0": 5})
    assert [one["offsets"]["0"] for one in log.commits] == [5]
    made.stop()


def test_the_lag_is_reported(log: FakeLog, reader: MqttStreamReader) -> None:
    assert reader.reportLatestOffset() is None
    reader.latestOffset(zero(log), ReadMaxRows(1))
    assert reader.reportLatestOffset() == zero(log) | {"0": 500, "1": 250}


def test_a_schema_without_columns(log: FakeLog) -> None:
    from pyspark.sql.types import StructType
    from pyspark_mqtt.schema import columns

    with pytest.raises(OptionError, match="without columns"):
        columns(StructType([]))
    assert Log("s", "x", {}, {}).latest == {}
