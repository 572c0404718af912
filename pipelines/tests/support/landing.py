"""Messages in Parquet files, one batch per file, and checks of the resulting tables."""

import datetime
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import Sink, StreamSink
from pyspark.sql import DataFrame, SparkSession

LOG = "0" * 32
START = datetime.datetime(2026, 11, 20, 23, 59, 59, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("log_id", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("ingest_date", pa.date32()),
    ]
)
DDL = (
    "topic string, payload binary, partition int, offset long, log_id string, timestamp timestamp, "
    "ingest_date date"
)
ROWS = 20
"""Rows per file, in two partitions and on two days."""

Key = tuple[str, int, int]


def messages(number: int, rows: int = ROWS) -> pa.Table:
    """Return the rows of file `number`. Their offsets continue from the previous file."""
    made = []
    for i in range(rows):
        offset = (number * rows + i) // 2
        stamp = START + datetime.timedelta(milliseconds=150 * i, microseconds=7)
        made.append(
            {
                "topic": f"sensors/{i % 2}",
                "payload": b"%d" % i,
                "partition": i % 2,
                "offset": offset,
                "log_id": LOG,
                "timestamp": stamp,
                "ingest_date": stamp.date(),
            }
        )
    return pa.Table.from_pylist(made, SCHEMA)


def land(folder: Path, numbers: Iterable[int]) -> None:
    """Write files. A stream reads one file per batch, in order."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        file = folder / f"{number}.parquet"
        pq.write_table(messages(number), file)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a stream that reads the files."""
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder))


def query(
    spark: SparkSession, folder: Path, sink: Sink | StreamSink, checkpoint: Path, name: str = "rows"
) -> Query:
    """Return a query that reads the files and writes to a sink. The mqtt sink does not receive the day column."""
    frame = stream(spark, folder)
    frame = frame.drop("ingest_date") if name == "mqtt" else frame
    return Query(name, frame, sink, str(checkpoint), 0.0)


def keys(files: Iterable[int]) -> list[Key]:
    """Return the keys that a table made from these files must contain."""
    return [key for number in files for key in of(messages(number))]


def of(table: pa.Table) -> list[Key]:
    """Return the keys that a table contains."""
    columns = [table.column(name).to_pylist() for name in ("log_id", "partition", "offset")]
    return list(zip(*columns, strict=True))


def faults(found: Iterable[Key], wanted: Iterable[Key]) -> Iterator[str]:
    """Describe and yield each error in a table: rows that are missing, duplicated or unknown."""
    has, needs = Counter(found), Counter(wanted)
    for key in sorted(needs.keys() | has.keys()):
        if has[key] != needs[key]:
            yield f"{key}: {has[key]} times instead of {needs[key]}"
