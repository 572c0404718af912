"""Test a real broker's landing mode. Spark must read the same rows from the landed files as from the log."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import WAIT, Broker, running
from hookmq_spark_sink.export.exporter import Exporter, Rules
from hookmq_spark_sink.export.parquet import Parquet
from hookmq_spark_sink.export.places import open_place
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructField, StructType
from pyspark_mqtt.publisher import Message
from pyspark_mqtt.schema import READABLE

SCHEMA = StructType([StructField(name, kind) for name, kind in READABLE.items()])
HOOKMQ = Path(sys.executable).with_name("hookmq")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    # Segments so small that most of what is exported is of sealed ones, merged or not.
    stream = {"segment_size": "32KiB", "consumers": ["landing"]}
    with running(tmp_path_factory.mktemp("broker"), stream=stream) as made:
        yield made


def command(broker: Broker, target: str | Path, *words: str) -> list[str]:
    return [str(HOOKMQ), "spark", "export", str(broker.folder / "streams"), str(target), *words]


def export(broker: Broker, target: str | Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(broker, target, *words), capture_output=True, text=True, check=False, timeout=WAIT
    )


def messages(first: int, count: int) -> Iterator[Message]:
    """Yield messages with every field that a PUBLISH may have, and messages without any."""
    for number in range(first, first + count):
        more: dict[str, Any] = {}
        if number % 3 == 0:
            more = {
                "content_type": "application/json",
                "response_topic": f"answer/{number}",
                "correlation_data": b"\xff\x00%d" % number,
                "headers": (("message-id", str(number)), ("", "ü")),
            }
        payload = b"" if number % 50 == 1 else b"\x00\xff%d" % number * (number % 40)
        yield Message(f"plant/{number % 7}/größe", payload, number % 2, False, **more)


def ordered(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.partition, row.offset))


def test_the_same_rows_as_the_log(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish(messages(0, 600))
    done = export(broker, tmp_path, "--tail", "--metrics", str(tmp_path / "metrics"))
    assert done.returncode == 0, done.stderr
    assert "600 messages in" in done.stderr
    [folder] = (tmp_path / "all").iterdir()
    log = spark.read.format("mqtt").schema(SCHEMA).options(**broker.read).load()
    landed = spark.read.schema(SCHEMA).parquet(str(folder))
    expected = ordered(log)
    assert len(expected) == 600
    assert len({row.topic for row in expected}) == 7
    assert ordered(landed) == expected
    # What the files say of themselves is the same, so that a schema need not be given.
    own = spark.read.parquet(f"{tmp_path}/all/*")
    assert [(f.name, f.dataType) for f in own.schema] == [(f.name, f.dataType) for f in SCHEMA]
    assert ordered(own) == expected
    assert own.agg({"timestamp": "min"}).collect() == log.agg({"timestamp": "min"}).collect()
    for line in ("files_total", 'rows_total{stream="all"} 600', 'waiting_messages{stream="all"} 0'):
        assert f"hookmq_spark_export_{line}" in (tmp_path / "metrics").read_text()
    assert export(broker, tmp_path, "--tail").returncode == 0
    assert ordered(spark.read.schema(SCHEMA).parquet(str(folder))) == expected


@pytest.mark.parametrize("compression", ["snappy", "gzip", "none"])
def test_any_compression_and_any_place(broker: Broker, compression: str) -> None:
    """Files can be written with any compression to any target. This process writes them through fsspec, and Arrow reads
    them.
    """
    import fsspec  # type: ignore[import-untyped]
    import pyarrow.parquet

    broker.publish(messages(0, 10))
    place = open_place(f"memory://{compression}/mqtt")
    one = Exporter(
        broker.folder / "streams" / "all", place, Parquet(compression), Rules(tail=True, once=True), print
    )  # fmt: skip
    while one.round(0.0):
        pass
    assert one.manifest is not None
    names = [f"/{compression}/mqtt/all/{one.manifest.log_id}/{f.name}" for f in one.manifest.files]
    tables = [
        pyarrow.parquet.read_table(name, filesystem=fsspec.filesystem("memory")) for name in names
    ]
    assert sum(table.num_rows for table in tables) == one.manifest.totals.rows > 0
    for table, file in zip(tables, one.manifest.files, strict=True):
        assert table["offset"].to_pylist() == list(range(file.first, file.last + 1))
        assert set(table["log_id"].to_pylist()) == {one.manifest.log_id}
    # Somebody who begins anew finds them.
    again = Exporter(one.folder, place, Parquet(compression), Rules(tail=True, once=True), print)
    assert again.round(0.0) == 0


def test_killed_while_messages_come(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """No row is lost or duplicated if an exporter with --follow is killed repeatedly while a Spark stream reads the
    folder.
    """
    words = ("--follow", "--tail", "--roll-time", "0", "--file-size", "8KiB")
    target, total = tmp_path / "lake", 0

    def read() -> int:
        query = (
            spark.readStream.schema(SCHEMA)
            .parquet(f"{target}/all/*")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        query.awaitTermination()
        return spark.read.parquet(str(tmp_path / "table")).count()

    for kill in range(4):
        with subprocess.Popen(
            command(broker, target, *words, "--consumer", "landing"),
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            broker.publish(messages(total, 100))
            line = process.stderr.readline()
            assert "files" in line, line
            # What comes now is being exported as it is killed.
            broker.publish(messages(total + 100, 200 + 50 * kill))
            total += 300 + 50 * kill
            process.send_signal(signal.SIGKILL)
        if kill == 1:
            assert read() > 0
    assert export(broker, target, "--tail", "--consumer", "landing").returncode == 0
    log = spark.read.format("mqtt").schema(SCHEMA).options(**broker.read).load()
    expected = ordered(log)
    assert len(expected) >= total
    assert read() == len(expected)
    assert ordered(spark.read.schema(SCHEMA).parquet(str(tmp_path / "table"))) == expected
    known = json.loads((broker.folder / "streams" / "all" / "consumers.json").read_text())
    ends = {str(p): 0 for p in range(3)}
    for row in expected:
        ends[str(row.partition)] = row.offset + 1
    assert known["consumers"]["landing"]["offsets"] == ends


def test_it_ends_when_it_is_told_to(broker: Broker, tmp_path: Path) -> None:
    broker.publish(messages(0, 3))
    with subprocess.Popen(
        command(broker, tmp_path, "--follow", "--tail", "--roll-time", "0"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "files" in process.stderr.readline()
        second = export(broker, tmp_path)
        assert second.returncode == 2
        assert "another hookmq spark export is writing there" in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        ("nosuch://bucket", (), "Protocol not known: nosuch"),
        ("s3://bucket/mqtt", (), "s3fs"),
        ("lake", ("--stream", "nope"), "contains no stream nope"),
        ("lake", ("--consumer", "a b"), "--consumer 'a b': letters, digits"),
    ],
)
def test_mistakes_are_one_line(
    broker: Broker, tmp_path: Path, target: str, words: tuple[str, ...], message: str
) -> None:
    done = export(broker, target if "://" in target else tmp_path / target, *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr


def test_a_folder_that_cannot_be_written(broker: Broker, tmp_path: Path) -> None:
    broker.publish(messages(0, 3))
    (tmp_path / "file").write_bytes(b"")
    done = export(broker, tmp_path / "file")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert str(tmp_path / "file") in done.stderr
    assert os.listdir(tmp_path) == ["file"]
