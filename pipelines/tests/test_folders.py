"""Test that any value of a partition column gets a folder, and is unchanged when read back."""

from pathlib import Path

from hostile import HOSTILE
from mqtt_pipelines import run
from mqtt_pipelines.query import Query
from mqtt_pipelines.settings import Table
from mqtt_pipelines.sinks.files import FilesSink
from mqtt_pipelines.sinks.folders import placed
from pyspark.sql import SparkSession


def test_every_value_has_a_folder_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    many = [*HOSTILE, *(f"device-{n}" for n in range(100)), None]
    schema = "device string, n int, value double"
    rows = [(device, n % 2, float("nan") if n % 3 else -0.0) for n, device in enumerate(many)]
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    table = Table(path=str(tmp_path / "out"), partition_by=("n", "device"))
    query = Query("q", stream, FilesSink(table), str(tmp_path / "c"), 0.0)
    run.run(spark, [query], "app", once=True)
    found = spark.read.parquet(table.path)
    assert sorted(map(repr, found.select("device", "n", "value").collect())) == sorted(
        map(repr, spark.createDataFrame(rows, schema).collect())
    )
    # Equal values share a folder, others do not, and each file system has such names.
    folders = {row.device: row.device_folder for row in found.collect()}
    assert len(set(folders.values())) == len(many)
    assert (folders["Device"], folders[None]) == ("Device", None)
    for folder in filter(None, folders.values()):
        assert folder.isascii()
        assert len(folder) <= 65
        assert not set(folder) & set("/\\:*?\"<>|%='")
    frame, names = placed(found, ("value", "n"))
    assert names == ["value_folder", "n"]
    assert len({row.value_folder for row in frame.collect()}) == 2
