"""Test that each sink stores each row once despite repeated batches, killed drivers, lost checkpoints and concurrent
writers.

To show that these tests can fail, one sink has a bug: it only appends.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broker import Broker, running
from landing import DDL, LOG, faults, keys, land, messages, query
from mqtt_pipelines import run
from mqtt_pipelines.cli import cause
from mqtt_pipelines.sinks import Sink, StreamSink, Written
from mqtt_pipelines.sinks.append import TRIES
from mqtt_pipelines.sinks.delta import DeltaSink, DeltaState
from mqtt_pipelines.sinks.iceberg import IcebergSink, IcebergState
from mqtt_pipelines.sinks.ledger import Span
from mqtt_pipelines.sinks.mqtt import MqttSink
from mqtt_pipelines.sinks.parts import Part
from pyiceberg.exceptions import CommitStateUnknownException
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark_mqtt.errors import MqttError
from restcatalog import serving
from sinking import TABLES, delta, held, iceberg, made, table

each_table = pytest.mark.parametrize("format", TABLES)


def frame(spark: SparkSession, number: int) -> DataFrame:
    """Return a file's rows as a batch."""
    return spark.createDataFrame(messages(number), DDL)


def finish(
    spark: SparkSession, folder: Path, name: str, sink: Sink | StreamSink, app: str = "killed"
) -> None:
    """Run a query that reads the files in `folder`, until it ends."""
    asked = query(spark, folder / "landed", sink, folder / "checkpoints" / name, name)
    run.start(spark, asked, app, once=True).awaitTermination()


# A batch that comes again


@each_table
def test_a_batch_that_comes_again_is_there_once(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    sink = table(format, tmp_path)
    one, two = frame(spark, 0), frame(spark, 1)
    first = sink.write(one, 0, "p.rows.a")
    assert (first.rows, first.repeated) == (20, False)
    again = sink.write(one, 0, "p.rows.a")
    assert (again.rows, again.repeated, again.version) == (0, True, first.version)
    # By another driver that knows nothing of this one's table, and with the next batch in between.
    other = table(format, tmp_path)
    assert other.write(two, 1, "p.rows.a").rows == 20
    assert [sink.write(rows, n, "p.rows.a").repeated for n, rows in ((0, one), (1, two))] == [
        True,
        True,
    ]
    assert list(faults(held(sink), keys([0, 1]))) == []
    assert sink.write(one.where("false"), 2, "p.rows.a") == Written(0, False, sink_version(sink))


def sink_version(sink: DeltaSink | IcebergSink) -> str:
    state = sink.look()
    assert state is not None
    return state.version


@each_table
def test_two_applications_write_to_one_table(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    sink = table(format, tmp_path)
    one = frame(spark, 0)
    for app in ("p.rows.a", "other.rows.a"):
        assert [sink.write(one, 0, app).rows for _ in range(2)] == [20, 0]
    assert list(faults(held(sink), keys([0, 0]))) == []


class BareDelta(DeltaSink):
    """A sink with a deliberate bug: it appends without a transaction."""

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        from deltalake import write_deltalake

        write_deltalake(self.root, batch.toArrow(), mode="append")
        return Written(batch.count())


def test_the_proof_notices_a_sink_that_only_appends(spark: SparkSession, tmp_path: Path) -> None:
    sink = BareDelta(delta(tmp_path).table)
    one = frame(spark, 0)
    for _ in range(2):
        sink.write(one, 0, "p.rows.a")
    found = list(faults(held(sink), keys([0])))
    assert len(found) == 20
    assert found[0] == f"{(LOG, 0, 0)}: 2 times instead of 1"


# A driver that is killed between write and commit


@dataclass
class Crime:
    """The files and tables that a killed driver has left behind."""

    folder: Path
    broker: Broker
    sinks: Mapping[str, Sink | StreamSink]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crime]:
    """Run a driver that is killed after writing the second of two batches to every sink but before recording it."""
    folder = tmp_path_factory.mktemp("killed")
    land(folder / "landed", [0, 1])
    with running(tmp_path_factory.mktemp("broker"), stream={"partitions": 1}) as broker:
        program = Path(__file__).parent / "support" / "killed.py"
        done = subprocess.run(
            [sys.executable, program, folder, json.dumps(broker.write)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            timeout=280,
        )
        assert done.returncode == -signal.SIGKILL, done.stdout
        yield Crime(folder, broker, made(folder, broker.write))


def committed(folder: Path, name: str) -> list[str]:
    """Return the batches that Spark has recorded as done."""
    commits = folder / "checkpoints" / name / "commits"
    return sorted(file.name for file in commits.iterdir() if file.name.isdecimal())


@pytest.mark.parametrize("name", [*TABLES, "files"])
def test_what_a_killed_driver_had_written_is_there_once(
    spark: SparkSession, killed: Crime, name: str
) -> None:
    sink = killed.sinks[name]
    # It was killed where it hurts: the rows are there, and Spark does not know.
    assert list(faults(held(sink, spark), keys([0, 1]))) == []
    assert (killed.folder / "checkpoints" / name / "offsets" / "1").exists()
    # But for files, where the moment between is Spark's own: a machine that is busy may miss it.
    assert committed(killed.folder, name) in (["0"], ["0", "1"] if name == "files" else [])
    land(killed.folder / "landed", [2])
    finish(spark, killed.folder, name, sink)
    assert committed(killed.folder, name) == ["0", "1", "2"]
    assert list(faults(held(sink, spark), keys([0, 1, 2]))) == []
    # What is left where it is not missed.
    for file in (killed.folder / "checkpoints" / name / "commits").glob("*2*"):
        file.unlink()
    assert committed(killed.folder, name) == ["0", "1"]
    finish(spark, killed.folder, name, sink)
    assert committed(killed.folder, name) == ["0", "1", "2"]
    assert list(faults(held(sink, spark), keys([0, 1, 2]))) == []


def test_what_a_killed_driver_had_published_has_the_same_ids(
    spark: SparkSession, killed: Crime
) -> None:
    land(killed.folder / "landed", [2])
    finish(spark, killed.folder, "mqtt", killed.sinks["mqtt"])
    read = killed.broker.read | {"includeHeaders": "true"}
    rows = spark.read.format("mqtt").options(**read).load().collect()
    found: dict[str, set[tuple[str, bytes]]] = {}
    for row in rows:
        [(_, message_id)] = row.headers
        found.setdefault(message_id.decode(), set()).add((row.topic, bytes(row.payload)))
    assert len(rows) == 80  # Batch 1 was published twice ...
    assert {(log, int(p), int(o)) for log, p, o in (name.split("-") for name in found)} == set(
        keys([0, 1, 2])
    )
    assert all(len(messages) == 1 for messages in found.values())  # ... as the same messages.


# A checkpoint that is lost


@each_table
def test_a_lost_checkpoint_does_not_write_again(
    spark: SparkSession, tmp_path: Path, format: str, caplog: pytest.LogCaptureFixture
) -> None:
    land(tmp_path / "landed", [0, 1])
    finish(spark, tmp_path, "rows", table(format, tmp_path))
    shutil.rmtree(tmp_path / "checkpoints")
    # Batches that have both what is there and what is new, only what is new, and something between.
    landed = tmp_path / "landed"
    land(landed, [3])
    pq.write_table(pa.concat_tables([messages(1), messages(2)]), landed / "1.parquet")
    sink = table(format, tmp_path)
    finish(spark, tmp_path, "rows", sink)
    assert list(faults(held(sink), keys([0, 1, 2, 3]))) == []
    assert "what is there already is left out" in caplog.text


@each_table
def test_rows_without_offsets_are_not_written_again_with_another_checkpoint(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    sink = table(format, tmp_path, partition_by=())
    gold = spark.sql("select 'd' as device, 1.5D as avg")
    sink.write(gold, 0, "p.gold.a")
    with pytest.raises(MqttError, match=r"p\.gold wrote to this table with another checkpoint"):
        sink.write(gold, 0, "p.gold.b")
    assert sink.write(gold, 0, "other.gold.b").rows == 1


@each_table
def test_an_older_checkpoint_loses_nothing(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    """If the checkpoint is restored from a backup, no row is lost or duplicated. The new batches have numbers that the
    table has already recorded.
    """
    sink = table(format, tmp_path)
    for number in range(3):
        sink.write(frame(spark, number), number, "p.rows.a")
    both = frame(spark, 1).union(frame(spark, 3))
    assert sink.write(both, 1, "p.rows.a").rows == 20
    assert sink.write(frame(spark, 4), 2, "p.rows.a").rows == 20
    assert sink.write(frame(spark, 4), 2, "p.rows.a").repeated
    assert sink.write(frame(spark, 5), 3, "p.rows.a").rows == 20
    assert list(faults(held(sink), keys(range(6)))) == []


@each_table
def test_an_older_checkpoint_with_smaller_batches_and_a_second_driver(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    """With an older checkpoint, existing rows arrive again in smaller batches. Some of these batches have numbers that
    are new to the table. No row is written twice.
    """
    sink = table(format, tmp_path)
    for number in range(3):
        sink.write(frame(spark, number), number, "p.rows.a")
    halves = [
        frame(spark, number).where(f"offset % 2 = {half}" if number == 1 else f"partition = {half}")
        for number in (1, 2)
        for half in (0, 1)
    ]
    for number, half in enumerate(halves):
        assert table(format, tmp_path).write(half, 1 + number, "p.rows.a").rows == 0
    assert sink.write(frame(spark, 3), 5, "p.rows.a").rows == 20
    # Another driver, with a checkpoint of its own.
    assert sink.write(frame(spark, 4), 0, "p.rows.b").rows == 20
    files = sorted(tmp_path.rglob("part-*"))
    with pytest.raises(MqttError, match=r"p\.rows has .* with a newer checkpoint than a since"):
        sink.write(frame(spark, 4), 6, "p.rows.a")
    assert sorted(tmp_path.rglob("part-*")) == files
    assert list(faults(held(sink), keys(range(5)))) == []


def test_a_folder_is_not_written_with_another_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    land(tmp_path / "landed", [0])
    sink = made(tmp_path)["files"]
    finish(spark, tmp_path, "rows", sink)
    land(tmp_path / "landed", [1])
    finish(spark, tmp_path, "rows", sink)
    (tmp_path / "checkpoints").rename(tmp_path / "lost")
    land(tmp_path / "landed", [2])
    # What Spark would do of itself: take the new batches for written.
    with pytest.raises(MqttError, match=r"has batches up to 1, and the checkpoint .* is at none"):
        finish(spark, tmp_path, "rows", sink)
    (tmp_path / "lost").rename(tmp_path / "checkpoints")
    finish(spark, tmp_path, "rows", sink)
    assert list(faults(held(sink, spark), keys([0, 1, 2]))) == []


# Commits that fail, and others that come first


@each_table
def test_a_commit_that_fails_is_made_when_the_query_starts_again(
    spark: SparkSession, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = {"delta": DeltaState, "iceberg": IcebergState}[format]
    right = state.commit
    land(tmp_path / "landed", [0])
    sink = table(format, tmp_path)

    def fail(*_: object) -> bool:
        raise OSError("the disk is full")

    def lost(*given: Any) -> bool:
        right(*given)
        raise OSError("the answer was lost")

    for broken in (fail, lost):
        monkeypatch.setattr(state, "commit", broken)
        with pytest.raises(StreamingQueryException) as raised:
            finish(spark, tmp_path, "rows", sink)
        assert re.fullmatch(
            rf"{format} .* could not be written \((the disk is full|the answer was lost)\)\. Nothing .* this batch\.",
            cause(raised.value),
        )
    monkeypatch.setattr(state, "commit", right)
    finish(spark, tmp_path, "rows", sink)
    assert list(faults(held(sink), keys([0]))) == []


def test_files_that_executors_cannot_write(spark: SparkSession, tmp_path: Path) -> None:
    sink = delta(tmp_path)
    sink.write(frame(spark, 0), 0, "p.rows.a")
    (tmp_path / "delta" / "ingest_date=2020-02-02").touch()  # where a folder is to be
    other = frame(spark, 1).withColumn("ingest_date", lit("2020-02-02").cast("date"))
    with pytest.raises(PySparkException) as raised:
        sink.write(other, 1, "p.rows.a")
    said = cause(raised.value)
    assert said.startswith(f"Files cannot be written to {tmp_path}/delta (")
    assert said.endswith("Nothing is lost; after a restart, the query continues with this batch.")
    assert list(faults(held(sink), keys([0]))) == []


@each_table
def test_who_comes_first_is_no_harm(
    spark: SparkSession, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another writer commits first, the commit is retried. The other writer may add the same batch or a different
    one.
    """
    sink, other = table(format, tmp_path), table(format, tmp_path)
    one, two, three = (frame(spark, n) for n in range(3))
    sink.write(one, 0, "p.rows.a")
    state: Any = {"delta": DeltaState, "iceberg": IcebergState}[format]
    right = state.commit
    tries: list[str] = []

    def after(rows: DataFrame, batch_id: int, app: str) -> None:
        def commit(self: Any, parts: Sequence[Part], entries: Mapping[str, int], name: str) -> bool:
            monkeypatch.setattr(state, "commit", right)
            other.write(rows, batch_id, app)
            done: bool = right(self, parts, entries, name)
            tries.append(f"{app} {done}")
            return done

        monkeypatch.setattr(state, "commit", commit)

    after(two, 0, "other.rows.b")
    assert sink.write(two, 1, "p.rows.a").rows == 20
    # Delta lets an append follow an append; Iceberg refuses it, and it is made again.
    assert tries == [f"other.rows.b {format == 'delta'}"]
    after(three, 2, "p.rows.a")
    assert sink.write(three, 2, "p.rows.a").repeated
    assert tries[1:] == ["p.rows.a False"]
    assert list(faults(held(sink), keys([0, 1, 1, 2]))) == []


@each_table
def test_who_always_comes_last_says_so_and_leaves_nothing_behind(
    spark: SparkSession, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = {"delta": DeltaState, "iceberg": IcebergState}[format]
    sink = table(format, tmp_path)
    sink.write(frame(spark, 0), 0, "p.rows.a")
    files = sorted(tmp_path.rglob("part-*"))
    monkeypatch.setattr(state, "commit", lambda *_: False)
    with pytest.raises(MqttError, match=f"other writers came first {TRIES} times in a row"):
        sink.write(frame(spark, 1), 1, "p.rows.a")
    assert sorted(tmp_path.rglob("part-*")) == files


def test_a_rest_catalog(spark: SparkSession, tmp_path: Path) -> None:
    with serving(tmp_path) as catalog:
        options = {"uri": catalog.uri}
        sink, other = (iceberg(tmp_path, options=options) for _ in range(2))
        assert sink.write(frame(spark, 0), 0, "p.rows.a").rows == 20
        assert other.write(frame(spark, 0), 0, "p.rows.a").repeated
        before = catalog.commits
        catalog.answers += [409]  # Done, and the client's library asked twice: now it is there.
        assert sink.write(frame(spark, 1), 1, "p.rows.a").rows == 20
        catalog.answers += [504]  # Done, and nobody was told.
        with pytest.raises(MqttError, match=r"could not be written \(Lost: lost\)") as raised:
            sink.write(frame(spark, 2), 2, "p.rows.a")
        assert isinstance(raised.value.__cause__, CommitStateUnknownException)
        assert sink.write(frame(spark, 2), 2, "p.rows.a").repeated
        assert catalog.commits == before + 2
        assert list(faults(held(sink), keys([0, 1, 2]))) == []


# Columns


@each_table
def test_columns_that_a_table_lacks(spark: SparkSession, tmp_path: Path, format: str) -> None:
    sink = table(format, tmp_path)
    one, two = frame(spark, 0), frame(spark, 1)
    sink.write(one, 0, "p.rows.a")
    two = two.selectExpr("*", "1 as qos")
    wider = frame(spark, 1).selectExpr("*", "1.5D as celsius", "array(struct('k' as key)) as tags")
    with pytest.raises(MqttError, match=r"has no column celsius \(double\), tags .*new_columns"):
        sink.write(wider, 1, "p.rows.a")
    open_ = table(format, tmp_path, new_columns="add")
    assert open_.write(wider, 1, "p.rows.a").rows == 20
    # What a batch lacks is null; who may not add columns may still write those that are there.
    assert sink.write(frame(spark, 2).drop("payload"), 2, "p.rows.a").rows == 20
    state: Any = sink.look()
    rows = state.keys(["celsius", "payload"], [Span(LOG, 0, 0, 99)]).to_pylist()
    assert sum(row["celsius"] == 1.5 for row in rows) == 10
    assert sum(row["payload"] is None for row in rows) == 10
    with pytest.raises(
        MqttError, match=r"Column topic of .* is string, and .* makes it int32: cast"
    ):
        sink.write(two.drop("topic").withColumnRenamed("qos", "topic"), 3, "p.rows.a")
    with pytest.raises(MqttError, match="is partitioned by ingest_date, and `partition_by` says"):
        table(format, tmp_path, partition_by=("topic",)).write(two, 3, "p.rows.a")
    with pytest.raises(MqttError, match="is partitioned by ingest_date, which is none of"):
        table(format, tmp_path, partition_by=()).write(two.drop("ingest_date"), 3, "p.rows.a")
    assert list(faults(held(sink), keys([0, 1, 2]))) == []


@each_table
def test_whatever_a_table_is_partitioned_by(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    sink = table(format, tmp_path, partition_by=("topic", "ingest_date"))
    topics = ["x" * 60 + "1", "x" * 60 + "2", "../a b/%20=ü", None]
    rows = messages(0)[: len(topics)].drop_columns("topic")
    rows = rows.append_column(pa.field("topic", pa.string()), pa.array(topics))
    sink.write(spark.createDataFrame(rows), 0, "p.rows.a")
    state: Any = sink.look()
    found = state.keys(["topic", "ingest_date", "offset"], [Span(LOG, 0, 0, 9), Span(LOG, 1, 0, 9)])
    wanted = rows.select(["topic", "ingest_date", "offset"]).to_pylist()
    assert sorted(found.to_pylist(), key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_where_a_delta_table_is(tmp_path: Path, prefix: str) -> None:
    assert delta(tmp_path, path=f"{prefix}{tmp_path}/t").root == f"{tmp_path}/t"
    assert delta(tmp_path, path="s3://b/t").root == "s3://b/t"


def test_what_an_iceberg_table_needs_to_be_found(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(MqttError, match=r"NAMESPACE|such as mqtt\.bronze"):
        iceberg(tmp_path, path="rows").look()
    with pytest.raises(MqttError, match="see `options` of the table, such as uri and warehouse"):
        iceberg(tmp_path, options={"uri": "nothing://"}).look()


def test_a_table_that_needs_more_than_this_sink_can(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    sink = delta(tmp_path)
    configuration = {"delta.enableChangeDataFeed": "true"}
    DeltaTable.create(sink.root, messages(0).schema, configuration=configuration)
    with pytest.raises(MqttError, match=r"property delta\.enableChangeDataFeed"):
        sink.write(frame(spark, 0), 0, "p.rows.a")


# MQTT


def test_ids_of_other_columns_and_rows_without(spark: SparkSession) -> None:
    options = {"brokerUrl": "mqtt://127.0.0.1:1"}
    rows = spark.sql("select 'a' as topic, 'x' as payload, 'd1' as device, 7L as window")
    sink = MqttSink(options, key=("device", "window"), prefix="alerts")
    made = sink.messages(rows)
    assert (made.columns, made.first()["message_id"]) == (  # type: ignore[index]
        ["topic", "payload", "message_id"],
        "alerts-d1-7",
    )
    with pytest.raises(MqttError, match="the rows have no log_id, partition, offset: keep them"):
        MqttSink(options).messages(rows)
    nameless = spark.sql("select 'a' as topic, 'x' as payload, cast(null as string) as device")
    with pytest.raises(PySparkException, match="a row's device is null"):
        MqttSink(options, key=("device",)).messages(nameless).collect()
