"""The driver of the proof in tests/crash/devices: two tables of what devices publish.

python tables.py run|drain|dump FOLDER OPTIONS-AS-JSON
"""

import json
import sys
from pathlib import Path
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

COLUMNS = ["partition", "offset", "topic", "cast(payload as string) as payload"]
MESSAGE_ID = "cast(filter(headers, h -> h.key = 'message-id')[0].value as string) as message_id"


def append(table: Path, batch: DataFrame, batch_id: int) -> None:
    """In one transaction with the batch's number, unless the table has it."""
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query is not None
    if DeltaTable.is_deltatable(str(table)):
        done = DeltaTable(table).transaction_version(query)
        if done is not None and done >= batch_id:
            print("known", batch_id, flush=True)
            return
    properties = CommitProperties(app_transactions=[Transaction(query, batch_id)])
    write_deltalake(table, batch.toArrow(), mode="append", commit_properties=properties)


def write(folder: Path, options: dict[str, str], once: bool) -> None:
    """Until it is killed, or what there is."""
    spark = SparkSession.builder.appName("devices").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.format("mqtt").options(**options).load()
    rows = rows.selectExpr(*COLUMNS, "timestamp", MESSAGE_ID)
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": "1 second"}
    raw = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "raw-checkpoint"))
        .trigger(**trigger)
        .start(str(folder / "raw"))
    )
    known = rows.withWatermark("timestamp", "30 minutes")
    distinct = known.dropDuplicatesWithinWatermark(["message_id"]).drop("timestamp")
    table = folder / "once"
    without = (
        distinct.writeStream.foreachBatch(lambda batch, number: append(table, batch, number))
        .option("checkpointLocation", str(folder / "once-checkpoint"))
        .trigger(**trigger)
        .start()
    )
    for query in (raw, without) if once else ():
        query.awaitTermination()
    if not once:
        spark.streams.awaitAnyTermination()
    spark.stop()


def dump(folder: Path) -> None:
    """Both tables as lines of JSON: the files through Spark, which knows which of them count."""
    spark = SparkSession.builder.master("local[2]").appName("dump").getOrCreate()
    columns = ["partition", "offset", "topic", "payload", "message_id"]
    raw = spark.read.parquet(str(folder / "raw")).select(*map(f.col, columns)).toArrow()
    once = DeltaTable(folder / "once").to_pyarrow_table(columns=columns)
    for name, table in (("raw", raw), ("once", once)):
        with (folder / f"{name}.json").open("w", encoding="utf-8") as file:
            for row in zip(*(table[column].to_pylist() for column in columns), strict=True):
                file.write(json.dumps(row) + "\n")
    spark.stop()


if __name__ == "__main__":
    what, where, given = sys.argv[1:4]
    if what == "dump":
        dump(Path(where))
    else:
        write(Path(where), json.loads(given), what == "drain")
