"""Batches of a stream: as the configuration says, or from one offset to another; and of Parquet."""

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
    assert open_stream(spark, source).schema == schemas.RAW

    folder = str(tmp_path / "landed")
    some.write.parquet(folder)
    files = Source(files=folder)
    assert offsets(open_batch(spark, files)) == offsets(some)
    assert open_stream(spark, files).schema == schemas.RAW
