"""Queries that end, and what Spark says of them."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame


def available_now(frame: DataFrame, folder: Path) -> list[dict[str, Any]]:
    """Run a query to its end into Parquet; the progress of its batches that had rows."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    query.awaitTermination()
    return [json.loads(p.json) for p in query.recentProgress if p.numInputRows]


def last_line(error: BaseException) -> str:
    """The line that says what went wrong, in what Spark makes of it."""
    return [line for line in str(error).splitlines() if "pyspark_mqtt.errors." in line][-1]
