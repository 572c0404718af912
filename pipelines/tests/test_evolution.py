"""Test how tables change over time: columns change, and one day is rewritten."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from fakelog import START, FakeLog, record, serving
from mqtt_pipelines import cli_maintain, run
from mqtt_pipelines.build import build
from mqtt_pipelines.cli import main
from mqtt_pipelines.conf import load
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

DAY = 86_400
NARROW = "celsius double not null, battery int"
Row = dict[str, Any]


@pytest.fixture
def log() -> Iterator[FakeLog]:
    with serving(FakeLog({0: [], 1: []})) as served:
        yield served


class Pipeline:
    """A pipeline whose configuration changes between runs."""

    def __init__(self, spark: SparkSession, log: FakeLog, folder: Path) -> None:
        self.spark = spark
        self.log = log
        self.folder = folder
        self.file = folder / "plant.yaml"
        self.configure(NARROW)

    def configure(self, schema: str, new_columns: str = "fail") -> None:
        """Change silver's schema, and what happens to new columns."""
        table = {"format": "delta", "new_columns": new_columns}
        conf = {
            "version": 1,
            "name": "plant",
            "source": {"mqtt": {**self.log.options, "startingOffsets": "earliest"}},
            "checkpoints": str(self.folder / "checkpoints"),
            "trigger": "0s",
            "silver": {"schema": schema, "device": {"topic_level": 1}},
            "tables": {
                "silver": {**table, "path": str(self.folder / "silver")},
                "dead_letter": {**table, "path": str(self.folder / "dead_letter")},
            },
        }
        self.file.write_text(json.dumps(conf))

    def grow(self, count: int, day: int = 0) -> None:
        """Add messages from one day to both partitions."""
        for partition, records in self.log.partitions.items():
            for n in range(len(records), len(records) + count):
                payload = b'{"celsius": %d.5, "battery": 3000000000, "humidity": 40}' % n
                if "battery int" in self.file.read_text():
                    payload = payload.replace(b"3000000000", b"70")
                time = START + (day * DAY + n) * 1_000_000
                ids = [("message-id", b"%d" % n)]
                made = record(f"plant/d{partition}/state", payload, timestamp=time, headers=ids)
                records.append(made)

    def once(self) -> None:
        """Read all available messages."""
        conf = load(self.file, [], ["silver"])
        run.run(self.spark, build(self.spark, conf, ["silver"]), "plant", once=True)

    def rows(self) -> dict[tuple[int, int], Row]:
        """Return silver's rows by partition and offset. Fails if any row occurs twice."""
        every: list[Row] = DeltaTable(self.folder / "silver").to_pyarrow_table().to_pylist()
        places = Counter((row["partition"], row["offset"]) for row in every)
        assert set(places.values()) <= {1}
        return {(row["partition"], row["offset"]): row for row in every}


@pytest.fixture
def pipeline(spark: SparkSession, log: FakeLog, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, log, tmp_path)


def every(count: int) -> set[tuple[int, int]]:
    return {(partition, n) for partition in (0, 1) for n in range(count)}


def test_columns_are_added_and_removed(pipeline: Pipeline) -> None:
    pipeline.grow(4)
    pipeline.once()

    pipeline.configure(f"{NARROW}, humidity double")
    pipeline.grow(3)
    with pytest.raises(PySparkException, match=r"has no column humidity \(double\)"):
        pipeline.once()
    assert set(pipeline.rows()) == every(4)
    pipeline.configure(f"{NARROW}, humidity double", new_columns="add")
    pipeline.once()

    pipeline.configure("celsius double not null, humidity double")
    pipeline.grow(2)
    pipeline.once()

    rows = pipeline.rows()
    assert set(rows) == every(9)
    found = [
        (rows[1, n]["celsius"], rows[1, n]["battery"], rows[1, n]["humidity"]) for n in range(9)
    ]
    assert found == [
        *((n + 0.5, 70, None) for n in range(4)),
        *((n + 0.5, 70, 40.0) for n in range(4, 7)),
        *((n + 0.5, None, 40.0) for n in range(7, 9)),
    ]


def test_a_wider_column_needs_another_name(pipeline: Pipeline) -> None:
    pipeline.grow(4)
    pipeline.once()
    pipeline.configure("celsius double not null, battery bigint", new_columns="add")
    pipeline.grow(3)
    with pytest.raises(
        PySparkException,
        match=r"Column battery of delta .* is int32, and the pipeline makes it int64: cast",
    ):
        pipeline.once()
    assert set(pipeline.rows()) == every(4)

    # Messages that no longer fit can have a column of their own, and none is lost meanwhile.
    pipeline.configure("celsius double not null, humidity bigint", new_columns="add")
    pipeline.once()
    rows = pipeline.rows()
    assert set(rows) == every(7)
    assert [rows[0, n]["humidity"] for n in range(7)] == [None] * 4 + [40] * 3


def test_a_day_is_written_again_while_the_query_goes_on(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spark = pipeline.spark

    class Shared:
        """The Spark session that all tests share. The command must not stop it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(cli_maintain, "_session", lambda _: Shared())
    for day in range(3):
        pipeline.grow(10, day)
    conf = load(pipeline.file, [], ["silver"])
    [query] = build(spark, conf, ["silver"])
    live = run.start(spark, query, "plant", once=False)
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(0.05):
            pipeline.grow(1, 3)

    live.processAllAvailable()
    before = pipeline.rows()
    second = {place for place, row in before.items() if row["offset"] in range(10, 20)}
    assert len(second) == 20
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        assert (
            DeltaTable(pipeline.folder / "silver").delete('"offset" between 10 and 19')[
                "num_deleted_rows"
            ]
            == 20
        )
        assert main(["backfill", "silver", "-c", str(pipeline.file)]) == 0
        assert capsys.readouterr().out.splitlines()[0] == "added: 20"
        pipeline.grow(5, 3)
    finally:
        stop.set()
        publisher.join()
        live.processAllAvailable()
        live.stop()
    after = pipeline.rows()
    assert set(after) == every(len(pipeline.log.partitions[0]))
    assert len(after) > len(before) + 10
    assert {place: row for place, row in after.items() if place in before} == before
