"""The tables that tests/crash/devices checks, as lines of JSON: partition, offset, topic, payload, message-id.

    python tables.py FOLDER

Spark reads `bronze`, because it knows which files are valid. delta-rs reads `silver` and `dead_letter`.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

PLACE = ["partition", "offset", "topic"]


def write(file: Path, rows: Iterable[tuple[Any, ...]]) -> None:
    """Write a line for each row."""
    with file.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row) + "\n")


def message_id(headers: list[dict[str, Any]]) -> str:
    """Return the message id that the publisher sent."""
    return next(str(one["value"], "utf-8") for one in headers if one["key"] == "message-id")


def main(folder: Path) -> None:
    """Dump the three tables in a folder."""
    spark = SparkSession.builder.master("local[2]").appName("tables").getOrCreate()
    bronze = spark.read.parquet(str(folder / "bronze"))
    headers = "cast(filter(headers, h -> h.key = 'message-id')[0].value as string) as message_id"
    chosen = bronze.selectExpr(*PLACE, "cast(payload as string) as payload", headers).toArrow()
    write(folder / "bronze.json", zip(*(one.to_pylist() for one in chosen.columns), strict=True))
    spark.stop()
    silver = DeltaTable(folder / "silver").to_pyarrow_table()
    write(
        folder / "silver.json",
        (
            (
                *(row[name] for name in PLACE),
                json.dumps({name: row[name] for name in ("n", "value", "note")}),
                row["message_id"],
            )
            for row in silver.to_pylist()
        ),
    )
    dead = DeltaTable(folder / "dead_letter").to_pyarrow_table()
    write(
        folder / "dead_letter.json",
        (
            (*(row[name] for name in PLACE), row["payload"].decode(), message_id(row["headers"]))
            for row in dead.to_pylist()
        ),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    # All is written; a thread of deltalake may abort an interpreter that ends by itself.
    os._exit(0)
