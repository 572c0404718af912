"""The Spark part of bench/spark_sink.py. It prints one line of JSON.

python benching.py throughput '{"read": {...}, "folder": ..., "rounds": 3}' python benching.py latency '{"read": {...}
or null, "landed": ... or null, "folder": ..., "seconds": 30, "warm": 3}'
"""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType
from pyspark_mqtt.schema import BASE

SCHEMA = StructType([StructField(name, kind) for name, kind in BASE.items()])


def session() -> SparkSession:
    """Return a session with two cores and minimal overhead."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stream(spark: SparkSession, read: dict[str, str] | None, files: str) -> DataFrame:
    """Return a stream of the same columns from the log, or from Parquet files with Spark's own source."""
    if read is not None:
        return spark.readStream.format("mqtt").schema(SCHEMA).options(**read).load()
    return spark.readStream.schema(SCHEMA).parquet(files)


def throughput(given: dict[str, Any]) -> dict[str, list[float]]:
    """Measure rows per second of AvailableNow into Parquet. The source is alternately the log and Parquet files with
    the same rows.
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


def latency(given: dict[str, Any]) -> dict[str, Any]:
    """Measure the milliseconds from PUBLISH to the end of its batch's write. The payload's first 8 bytes are the time
    of PUBLISH.
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
    work = {"throughput": throughput, "latency": latency}[sys.argv[1]]
    print(json.dumps(work(json.loads(sys.argv[2]))), flush=True)
