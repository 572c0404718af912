"""Test that Delta and Iceberg tables on S3 contain each row once, even if a driver is killed, credentials are wrong, or
the bucket is gone.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3
from landing import faults, keys, land, query
from mqtt_pipelines import run
from mqtt_pipelines.cli import cause
from mqtt_pipelines.sinks.delta import DeltaSink
from mqtt_pipelines.sinks.errors import brief
from mqtt_pipelines.sinks.iceberg import IcebergSink
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sinking import TABLES, held, on_s3

WRONG = {"AWS_SECRET_ACCESS_KEY": "wrong", "s3.secret-access-key": "wrong"}

each_table = pytest.mark.parametrize("format", TABLES)


@pytest.fixture(scope="module")
def store() -> Iterator[s3.Store]:
    with s3.serving() as store:
        yield store


@pytest.fixture(scope="module")
def killed(store: s3.Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a driver that is killed after writing the second of two batches to S3 but before recording it."""
    folder = tmp_path_factory.mktemp("killed-s3")
    land(folder / "landed", [0, 1])
    program = Path(__file__).parent / "support" / "killed_s3.py"
    done = subprocess.run(
        [sys.executable, program, folder],
        env={**s3.clean(), **store.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        timeout=280,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout
    return folder


def right(format: str, folder: Path, store: s3.Store) -> DeltaSink | IcebergSink:
    """Return a sink whose options contain the right credentials."""
    return on_s3(format, folder, store.delta() if format == "delta" else store.iceberg())


def finish(spark: SparkSession, folder: Path, format: str, sink: DeltaSink | IcebergSink) -> None:
    """Run a query that reads the files in `folder`, until it ends."""
    asked = query(spark, folder / "landed", sink, folder / "checkpoints" / format, format)
    run.start(spark, asked, "killed", once=True).awaitTermination()


@pytest.mark.long  # It starts a driver of its own.
@each_table
def test_what_a_killed_driver_had_written_to_s3_is_there_once(
    spark: SparkSession, store: s3.Store, killed: Path, format: str
) -> None:
    sink = right(format, killed, store)
    assert list(faults(held(sink), keys([0, 1]))) == []
    assert not (killed / "checkpoints" / format / "commits" / "1").exists()
    land(killed / "landed", [2])
    finish(spark, killed, format, sink)
    assert list(faults(held(sink), keys([0, 1, 2]))) == []


@each_table
def test_wrong_credentials_and_a_bucket_that_is_gone_lose_nothing(
    spark: SparkSession, store: s3.Store, tmp_path: Path, format: str
) -> None:
    def refused(sink: DeltaSink | IcebergSink) -> str:
        with pytest.raises(PySparkException) as raised:
            finish(spark, tmp_path, format, sink)
        said = cause(raised.value)
        assert "\n" not in said
        assert re.match(rf"{format} \S+ cannot be opened \(", said), said
        return said

    land(tmp_path / "landed", [0])
    finish(spark, tmp_path, format, right(format, tmp_path, store))
    land(tmp_path / "landed", [1])
    options = store.delta(**WRONG) if format == "delta" else store.iceberg(**WRONG)
    said = refused(on_s3(format, tmp_path, options))
    assert re.search("(?i)signature.?does.?not.?match|access.?denied", said), said
    objects = store.take()
    try:
        said = refused(right(format, tmp_path, store))
        assert re.search("(?i)no.?such.?bucket|does not exist|not found", said), said
    finally:
        store.give(objects)
    finish(spark, tmp_path, format, right(format, tmp_path, store))
    sink = right(format, tmp_path, store)
    assert list(faults(held(sink), keys([0, 1]))) == []


def test_errors_are_one_line() -> None:
    assert brief(OSError("\x1b[31mGeneric\x1b[0m error\n more")) == "Generic error"
    assert brief(OSError()) == "OSError"
    answer = "Kernel error\n<Error><Code>NoSuchBucket</Code><Message>It is gone</Message></Error>"
    assert brief(OSError(answer)) == "Kernel error: NoSuchBucket: It is gone"
