"""Queries that end, and what Spark says of them."""

import json
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

BUSY = "Python worker failed to connect back"
"""What Spark says, before anything is read, where a machine is too busy to start Python within the 10 s it waits."""
STARTS = 20


def available_now(frame: DataFrame, folder: Path) -> list[dict[str, Any]]:
    """Run a query to its end into Parquet; the progress of its batches that had rows."""
    for left in reversed(range(STARTS)):
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "table"))
        )
        try:
            query.awaitTermination()
        except PySparkException as error:
            if BUSY not in str(error) or not left:
                raise
        else:
            break
    return [json.loads(p.json) for p in query.recentProgress if p.numInputRows]


def last_line(error: BaseException) -> str:
    """The line that says what went wrong, in what Spark makes of it."""
    return [line for line in str(error).splitlines() if "pyspark_mqtt.errors." in line][-1]
