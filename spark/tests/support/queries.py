"""Run streaming queries until all available data is read, and return the progress that Spark reports."""

import json
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

BUSY = "Python worker failed to connect back"
"""Spark's message if a busy machine cannot start Python within 10 s. In that case, nothing has been read."""
STARTS = 20


def available_now(frame: DataFrame, folder: Path) -> list[dict[str, Any]]:
    """Run a query that writes Parquet files, and wait until it ends. Return the progress of each batch that had rows."""
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
    """Return the line of a Spark error that describes the cause."""
    return [line for line in str(error).splitlines() if "pyspark_mqtt.errors." in line][-1]
