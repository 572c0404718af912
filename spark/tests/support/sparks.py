"""The Spark session for tests: one per process, as small as possible, and stopped when the tests end."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

SETTINGS = {
    "spark.master": "local[2]",
    "spark.app.name": "tests",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.stopTimeout": "20s",
}


STATUS = pytest.StashKey[int]()


def start(folder: Path, **settings: str) -> SparkSession:
    """Return a session that keeps its files in a folder. It finds ``format("mqtt")`` without registration."""
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    builder = SparkSession.builder
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the session and stop it at the end."""
    session = start(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Store the exit status."""
    session.config.stash[STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Exit immediately after the report. During a normal exit, threads of Rust or C++ libraries may abort the
    interpreter.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if STATUS in config.stash:
        os._exit(config.stash[STATUS])
