"""The sinks under test, and the contents of their tables."""

from collections.abc import Mapping
from pathlib import Path

from landing import Key, of
from mqtt_pipelines.settings import Table
from mqtt_pipelines.sinks import Sink, StreamSink
from mqtt_pipelines.sinks.delta import DeltaSink
from mqtt_pipelines.sinks.files import FilesSink
from mqtt_pipelines.sinks.iceberg import IcebergSink
from mqtt_pipelines.sinks.mqtt import MqttSink
from pyspark.sql import SparkSession

TABLES = ("delta", "iceberg")


def no_wait(_: float) -> None:
    """Return at once instead of waiting before a retry."""


def delta(folder: Path, **more: object) -> DeltaSink:
    """Return a sink for a Delta table in a folder."""
    given = {"path": str(folder / "delta"), "partition_by": ("ingest_date",), **more}
    return DeltaSink(Table(format="delta", **given), no_wait)  # type: ignore[arg-type]


def iceberg(folder: Path, **more: object) -> IcebergSink:
    """Return a sink for an Iceberg table whose catalog is in a file."""
    options = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    given = {
        "path": "mqtt.rows",
        "partition_by": ("ingest_date",),
        "options": options,
        **more,
    }
    return IcebergSink(Table(format="iceberg", **given), no_wait)  # type: ignore[arg-type]


def on_s3(name: str, folder: Path, options: Mapping[str, str]) -> DeltaSink | IcebergSink:
    """Return a sink for a table in the bucket `lake`. Its Iceberg catalog, if any, is in a file."""
    place = f"s3://lake/{folder.name}"
    if name == "delta":
        return delta(folder, path=f"{place}/delta", options=options)
    catalog = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{place}/warehouse"}
    return iceberg(folder, options=catalog | dict(options))


def table(name: str, folder: Path, **more: object) -> DeltaSink | IcebergSink:
    """Return a sink for a table of the given format."""
    return delta(folder, **more) if name == "delta" else iceberg(folder, **more)


def made(folder: Path, mqtt: Mapping[str, str] | None = None) -> dict[str, Sink | StreamSink]:
    """Return one sink of each kind, each with its table in its own subfolder."""
    files = FilesSink(Table(path=str(folder / "files"), partition_by=("ingest_date",)))
    found: dict[str, Sink | StreamSink] = {
        "delta": delta(folder),
        "iceberg": iceberg(folder),
        "files": files,
    }
    if mqtt is not None:
        found["mqtt"] = MqttSink(mqtt)
    return found


def held(sink: Sink | StreamSink, spark: SparkSession | None = None) -> list[Key]:
    """Return the keys of the rows that a sink's table contains."""
    if isinstance(sink, DeltaSink):
        state = sink.look()
        return [] if state is None else of(state.table.to_pyarrow_table())
    if isinstance(sink, IcebergSink):
        found = sink.look()
        return [] if found is None else of(found.table.scan().to_arrow())
    assert isinstance(sink, FilesSink)
    assert spark is not None
    return of(spark.read.parquet(sink.table.path).toArrow())
