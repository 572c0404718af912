"""Test batches read from a stream, with offsets from the configuration or from the caller, and batches read from
Parquet.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakelog import FakeLog, record, serving
from mqtt_pipelines import schemas
from mqtt_pipelines.sources import Source, open_batch, open_stream
from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def log() -> Iterator[FakeLog]:
    made = {p: [record("a", b"%d" % n) for n in range(count)] for p, count in ((0, 9), (1, 5))}
    with serving(FakeLog(made)) as served:
        yield served


def offsets(found: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in found.collect())


def test_batches(spark: SparkSession, log: FakeLog, tmp_path: Path) -> None:
    start = '{"0": 7, "1": 4}'
    source = Source(mqtt={**log.options, "STARTINGOFFSETS": start, "maxOffsetsPerTrigger": 3})
    found = open_batch(spark, source)
    assert found.schema == schemas.RAW
    assert {row.log_id for row in found.collect()} == {log.log_id}
    assert offsets(found) == [(0, 7), (0, 8), (1, 4)]
    assert offsets(open_batch(spark, source, end='{"0": 8, "1": 4}')) == [(0, 7)]
    some = open_batch(spark, source, '{"0": 2, "1": -2}', '{"0": 4, "1": 1}')
    assert offsets(some) == [(0, 2), (0, 3), (1, 0)]
    assert open_stream(spark, source, "q").schema == schemas.RAW

    folder = str(tmp_path / "landed")
    some.write.parquet(folder)
    files = Source(files=folder)
    assert offsets(open_batch(spark, files)) == offsets(some)
    assert open_stream(spark, files, "q").schema == schemas.RAW


def test_each_query_is_a_consumer_of_its_own(
    spark: SparkSession, log: FakeLog, tmp_path: Path
) -> None:
    source = Source(mqtt={**log.options, "consumerGroup": "plant"})
    for name in ("bronze", "silver"):
        writer = open_stream(spark, source, name).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        writer.trigger(availableNow=True).start().awaitTermination()
    told = {path.partition("/consumers/")[2] for path in log.asked if "/consumers/" in path}
    assert told == {"plant.bronze/commit", "plant.silver/commit"}
