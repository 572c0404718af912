"""The Spark part of bench/spark_sink.py. It prints one line of JSON.

    python benching.py throughput '{"read": {...}, "folder": ..., "rounds": 3}'
    python benching.py comparison '{"read": {...}, "folder": ..., "rounds": 5, "reader": PID}'
    python benching.py latency '{"read": ..., "landed": ..., "folder": ..., "seconds": 30, "warm": 3}'

For `latency`, either "read" or "landed" is null.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructField, StructType
from pyspark_mqtt.arrow import arrow_schema
from pyspark_mqtt.schema import BASE, columns

HERTZ = os.sysconf("SC_CLK_TCK")
SCHEMA = StructType([StructField(name, kind) for name, kind in BASE.items()])


BATCH = 10_000
"""Rows in each prepared Arrow batch, as in those of the log's reader."""


class Prepared(DataSource):
    """A Python data source that does nothing but pass on Arrow batches that are already in memory.

    It shows the limit for any Python data source. `prepare` writes its files, one for each task.
    """

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PreparedReader(self.options["path"])


class PreparedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `Prepared`: a stream with a single batch."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def initialOffset(self) -> dict[str, Any]:
        return {"end": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"end": 1}

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self.folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            # The file is in the system's cache, and its pages are passed on without a copy.
            file = pa.ipc.open_file(pa.memory_map(partition.value))
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


def prepare(rows: Path, folder: Path, tasks: int = 2) -> None:
    """Write the rows of a Parquet table as uncompressed Arrow batches, for `Prepared`."""
    import pyarrow.parquet as pq

    table = pq.read_table(rows, coerce_int96_timestamp_unit="us")
    table = table.cast(arrow_schema(columns(SCHEMA))).combine_chunks()
    folder.mkdir()
    share = -(-table.num_rows // tasks)
    for task in range(tasks):
        part = table.slice(task * share, share)
        with pa.ipc.new_file(str(folder / f"{task}.arrow"), part.schema) as file:
            file.write_table(part, BATCH)


def session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with two cores, minimal overhead and these additional settings."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stream(spark: SparkSession, read: dict[str, str] | None, files: str) -> DataFrame:
    """Return a stream from the log or, with Spark's own source, from Parquet files. Both have the same columns."""
    if read is not None:
        return spark.readStream.format("mqtt").schema(SCHEMA).options(**read).load()
    return spark.readStream.schema(SCHEMA).parquet(files)


def throughput(given: dict[str, Any]) -> dict[str, list[float]]:
    """Measure how many rows per second an AvailableNow query writes to Parquet. The source alternates between the log
    and Parquet files with the same rows.
    """
    spark, folder = session(), Path(given["folder"])
    source = str(folder / "source")
    log = spark.read.format("mqtt").schema(SCHEMA).options(**given["read"]).load()
    log.repartition(20).write.parquet(source)
    rows = spark.read.parquet(source).count()
    found: dict[str, list[float]] = {"log": [], "files": []}
    for number in range(given["rounds"] + 1):
        for name in found:
            target = folder / f"{name}-{number}"
            frame = stream(spark, given["read"] if name == "log" else None, source)
            began = time.perf_counter()
            query = (
                frame.writeStream.format("parquet")
                .option("checkpointLocation", f"{target}-checkpoint")
                .trigger(availableNow=True)
                .start(str(target))
            )
            query.awaitTermination()
            took = time.perf_counter() - began
            written = spark.read.parquet(str(target)).count()
            assert written == rows, f"{written} of {rows} rows are in the table"
            shutil.rmtree(target)
            if number:  # the first warms up
                found[name].append(rows / took)
    spark.stop()
    return {"rows": [float(rows)], **found}


def source(spark: SparkSession, name: str, given: dict[str, Any]) -> DataFrame:
    """Return a stream from one of the sources that `comparison` compares. All of them contain the same messages."""
    chosen, _, columns = name.partition(" ")
    some = StructType([SCHEMA[one] for one in columns.split(",")]) if columns else SCHEMA
    if chosen == "log":
        return spark.readStream.format("mqtt").schema(some).options(**given["read"]).load()
    folder = f"{given['folder']}/{chosen}"
    if chosen == "prepared":
        return spark.readStream.format(chosen).load(folder)
    frame = spark.readStream.format(chosen).schema(SCHEMA).load(folder)
    return frame.select(*some.names) if columns else frame


def ticks(pid: int) -> tuple[int, int, int]:
    """Return a process's CPU time, the CPU time of its children that have ended, and its parent's id."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]), int(fields[1])


def cpu(reader: int) -> dict[tuple[str, int], float]:
    """Return the CPU seconds of Java, Spark's Python processes and the log's reader process, by kind and process.

    The time of ended processes counts as Python's, because Java waits only for its Python processes.
    """
    known: dict[int, tuple[int, int, int]] = {}
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with suppress(OSError):  # It has just ended.
                known[int(one.name)] = ticks(int(one.name))
    found = {("reader", reader): known[reader][0] / HERTZ}
    for pid, (own, ended, parent) in known.items():
        while parent in known and parent != os.getpid():
            parent = known[parent][2]
        if parent == os.getpid():
            with suppress(OSError):
                java = Path(f"/proc/{pid}/comm").read_text().strip() == "java"
                found["java" if java else "python", pid] = own / HERTZ
                found["python", -pid] = ended / HERTZ
    return found


def used(
    before: dict[tuple[str, int], float], after: dict[tuple[str, int], float]
) -> dict[str, float]:
    """Return the CPU seconds used between two calls of `cpu`, by kind. Ended processes that no parent waited for are
    left out.
    """
    found = {"java": 0.0, "python": 0.0, "reader": 0.0}
    for key, seconds in after.items():
        found[key[0]] += seconds - before.get(key, 0.0)
    return found


def comparison(given: dict[str, Any]) -> dict[str, Any]:
    """Measure the elapsed and CPU seconds of AvailableNow queries that write to Parquet. They read the log, Parquet
    files, JSON files and prepared Arrow batches in turn.
    """
    spark, folder = session(given["settings"]), Path(given["folder"])
    log = spark.read.format("mqtt").schema(SCHEMA).options(**given["read"]).load()
    log.repartition(20).write.parquet(str(folder / "parquet"))
    files = spark.read.parquet(str(folder / "parquet"))
    files.write.json(str(folder / "json"))
    rows = files.count()
    prepare(folder / "parquet", folder / "prepared")
    spark.dataSource.register(Prepared)
    names = ("log", "parquet", "json", "prepared", "log payload,topic", "parquet payload,topic")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(given["rounds"] + given["warm"]):
        for name in names if number % 2 else reversed(names):
            target = folder / f"table-{number}"
            frame = source(spark, name, given)
            before, began = cpu(given["reader"]), time.perf_counter()
            writer = frame.writeStream.format("parquet").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", f"{target}-checkpoint")
            query = writer.start(str(target))
            query.awaitTermination()
            took = time.perf_counter() - began
            after = cpu(given["reader"])
            written = spark.read.parquet(str(target)).count()
            assert written == rows, f"{written} of {rows} rows are in the table"
            shutil.rmtree(target)
            shutil.rmtree(f"{target}-checkpoint")
            if number >= given["warm"]:
                batches = sum(one.durationMs["triggerExecution"] for one in query.recentProgress)
                found[name].append(
                    {"seconds": took, "batches": batches / 1000, **used(before, after)}
                )
    spark.stop()
    return {"rows": rows, "runs": found}


def latency(given: dict[str, Any]) -> dict[str, Any]:
    """Measure the milliseconds from each PUBLISH until its batch has been written. The payload's first 8 bytes contain
    the time of PUBLISH.
    """
    spark, folder = session(), Path(given["folder"])
    since = time.time()
    ends: dict[int, float] = {}
    table = str(folder / "table")

    def write(batch: DataFrame, number: int) -> None:
        batch.withColumn("batch", f.lit(number)).write.mode("append").parquet(table)
        ends[number] = time.time()

    frame = stream(spark, given["read"], given["landed"] or "")
    query = (
        frame.where(f.col("timestamp") >= f.lit(since).cast("timestamp"))
        .select("offset", "payload")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    print(json.dumps("started"), flush=True)
    query.awaitTermination(given["seconds"])
    query.stop()
    done = spark.createDataFrame(list(ends.items()), "batch int, ended double")
    sent = f.conv(f.hex(f.substring("payload", 1, 8)), 16, 10).cast("double") / 1e9
    rows = (
        spark.read.parquet(table)
        .join(f.broadcast(done), "batch")
        .select(((f.col("ended") - sent) * 1000).alias("ms"), sent.alias("sent"))
    )
    # What was sent while the first batches ran does not count: they start Python and warm Java up, for seconds, and the
    # ones behind them hold what came meanwhile. Those seconds are told beside.
    begun = sorted(ends.values())
    assert len(begun) > given["warm"], f"there were {len(begun)} batches in time"
    late = rows.where(f.col("sent") > begun[given["warm"] - 1])
    [row] = late.selectExpr(
        "count(*) n", "percentile(ms, array(0.5, 0.99)) p", "max(ms) m"
    ).collect()
    spark.stop()
    return {
        "rows": row.n,
        "p50": row.p[0],
        "p99": row.p[1],
        "max": row.m,
        "batches": len(ends) - given["warm"],
        "first_batch": begun[0] - since,
    }


if __name__ == "__main__":
    work = {"throughput": throughput, "latency": latency, "comparison": comparison}[sys.argv[1]]
    print(json.dumps(work(json.loads(sys.argv[2]))), flush=True)
