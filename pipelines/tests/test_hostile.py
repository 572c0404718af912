"""Test that no message ends a query. Hostile names, payloads, numbers, times and depths go through each job and format.

Each message is either in a table or in the dead letters, exactly once. One stream of three batches feeds each query. By
default, only the format `files` is tested. `make fuzz-spark` tests every format with its jobs.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hostile import hostile, land
from mqtt_pipelines import run
from mqtt_pipelines.build import build
from mqtt_pipelines.conf import Tables, load
from mqtt_pipelines.transforms.parse import REASONS
from mqtt_pipelines.transforms.stateful import PROVIDER
from pyspark.sql import SparkSession
from rows import Message

SCHEMA = (
    "n int, celsius double, price decimal(10,2), name string, at bigint, day date, seen timestamp, "
    "pos struct<lat: double, far: struct<x: decimal(38,10)>>, all array<float>, tags map<string, int>"
)
JOBS = {
    "files": ("bronze", "silver", "presence"),
    "delta": ("bronze", "silver", "gold", "sparkplug"),
    "iceberg": ("bronze", "silver", "anomaly"),
}
"""The jobs that run with each format. Each job runs at least once; `bronze` and `silver` run with all formats."""
CONF = """\
version: 1
name: hostile
source: {files: FOLDER/in, max_files_per_trigger: 1}
checkpoints: FOLDER/c
trigger: 0s
silver: {schema: "SCHEMA", device: {topic_level: 1}, deduplicate: DEDUPLICATE}
gold: {metrics: [celsius, n], window: 1s}
presence: {device: {topic_level: 1}, gap: 1s, slack: 0s}
anomaly: {metrics: [celsius], warmup: 2}
sparkplug: {}
tables:
"""
PARTITIONS = {
    "bronze": "topic",
    "silver": "device, name, celsius",
    "dead_letter": "reason, topic",
    "gold": "device",
    "presence": "device",
    "metrics": "device",
    "alerts": "device",
}


def configuration(folder: Path, format: str, deduplicate: str) -> str:
    """Return a configuration in which every table has the given format."""
    text = CONF
    for name, columns in PARTITIONS.items():
        path, options = f"{folder}/{name}", ""
        if format == "iceberg":
            path = f"h.{name}"
            options = f", options: {{uri: 'sqlite:///{folder}/catalog.db', warehouse: 'file://{folder}/warehouse'}}"
        text += (
            f"  {name}: {{path: {path}, format: {format}, partition_by: [{columns}]{options}}}\n"
        )
    text = text.replace("FOLDER", str(folder)).replace("SCHEMA", SCHEMA)
    return text.replace("DEDUPLICATE", deduplicate)


def held(spark: SparkSession, table: Any) -> Sequence[Any]:
    """Return a table's rows, or an empty list if the table does not exist."""
    from mqtt_pipelines.sinks import open_sink
    from mqtt_pipelines.sinks.delta import DeltaSink
    from mqtt_pipelines.sinks.iceberg import IcebergSink

    sink: Any = open_sink(table)
    if isinstance(sink, DeltaSink):
        state: Any = sink.look()
        return [] if state is None else state.table.to_pyarrow_table().to_pylist()
    if isinstance(sink, IcebergSink):
        state = sink.look()
        return [] if state is None else state.table.scan().to_arrow().to_pylist()
    if not Path(table.path).exists():
        return []
    return spark.read.parquet(table.path).collect()


@pytest.mark.parametrize("format", os.environ.get("HOSTILE_FORMATS", "files").split())
def test_no_message_ends_a_query(spark: SparkSession, tmp_path: Path, format: str) -> None:
    batches = hostile(17)
    messages = {m["offset"]: m for batch in batches for m in batch}
    land(spark, tmp_path, *batches)
    deduplicate = "[]" if format == "files" else "[message_id]"
    (tmp_path / "p.yaml").write_text(configuration(tmp_path, format, deduplicate))
    conf = load(tmp_path / "p.yaml", (), JOBS[format])
    try:
        run.run(spark, build(spark, conf, JOBS[format]), conf.name, once=True)
    finally:
        spark.conf.unset(PROVIDER)
    check(spark, conf.tables, messages, format)


def check(spark: SparkSession, tables: Tables, messages: dict[int, Message], format: str) -> None:
    """Check that each message is in bronze, and is also in silver or the dead letters, as it was sent."""
    bronze = held(spark, tables.bronze)
    assert Counter(row["offset"] for row in bronze) == Counter(list(messages))
    for row in bronze:
        sent = messages[row["offset"]]
        assert (row["topic"], bytes(row["payload"])) == (sent["topic"], bytes(sent["payload"]))
    good = held(spark, tables.silver)
    # The job sparkplug has dead letters of its own in the same table.
    dead = [row for row in held(spark, tables.dead_letter) if row["reason"] in REASONS]
    assert Counter(row["offset"] for row in [*good, *dead]) == Counter(list(messages))
    assert len(good) > 20
    assert len(dead) > 100
    for row in dead:
        assert bytes(row["payload"]) == bytes(messages[row["offset"]]["payload"])
        assert row["reason"] != "wrong_type" or row["detail"]
    for row in good:
        sent = messages[row["offset"]]
        name = json.loads(sent["payload"]).get("name")
        assert row["device"] == sent["topic"].split("/")[1]
        # Half of a surrogate pair is no text. In Delta, an empty text is null in a partition's column.
        if isinstance(name, str) and name != "\ud800" and (name or format != "delta"):
            assert row["name"] == name
