"""Read landed files with the installed Spark's built-in source, as a batch and as a stream.

python landed.py FILES SCRATCH

It prints one line of JSON. It needs only pyspark 3.5 or newer.
"""

import json
import sys

from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic string, payload binary, qos int, retain boolean, partition int, offset long, timestamp timestamp, "
    "client_id string, content_type string, response_topic string, correlation_data binary, "
    "headers array<struct<key: string, value: binary>>, log_id string"
)
SHOWN = (
    "topic", "hex(payload) payload", "qos", "retain", "partition", "offset", "unix_micros(timestamp) timestamp",
    "client_id", "content_type", "response_topic", "hex(correlation_data) correlation_data",
    "transform(headers, one -> concat(one.key, '=', hex(one.value))) headers", "log_id",
)  # fmt: skip


def rows(frame: DataFrame) -> list[dict[str, object]]:
    """Return the rows in order, with bytes converted to text."""
    found = frame.selectExpr(*SHOWN).orderBy("partition", "offset").collect()
    return [row.asDict() for row in found]


if __name__ == "__main__":
    files, scratch = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.schema(SCHEMA).parquet(files)
    (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{scratch}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{scratch}/table")
        .awaitTermination()
    )
    own = spark.read.parquet(files)
    told = {
        "version": spark.version,
        "types": {field.name: field.dataType.simpleString() for field in own.schema},
        "batch": rows(spark.read.schema(SCHEMA).parquet(files)),
        "inferred": rows(own),
        "stream": rows(spark.read.parquet(f"{scratch}/table")),
    }
    spark.stop()
    print(json.dumps(told))
