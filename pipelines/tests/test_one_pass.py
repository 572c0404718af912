"""Test that silver reads and parses each message only once, including dead letters. It keeps state only for messages
that have an id. Both tables are complete even if the driver fails between them.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hostile import land
from mqtt_pipelines import run
from mqtt_pipelines.build import build
from mqtt_pipelines.conf import Conf, load
from mqtt_pipelines.sinks import Written
from mqtt_pipelines.sinks.delta import DeltaSink
from mqtt_pipelines.sinks.files import LOG, FileBatches, latest
from mqtt_pipelines.sinks.fork import Fork
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rows import Log

SILVER = """\
version: 1
name: p
source: {files: FOLDER/in, max_files_per_trigger: 1}
checkpoints: FOLDER/c
trigger: 0s
silver: {schema: "n int not null", device: {topic_level: 1}}
tables:
  silver: {path: FOLDER/silver, format: FORMAT, partition_by: [device]}
  dead_letter: {path: FOLDER/dead, format: OTHER, partition_by: [reason]}
"""


def conf(folder: Path, format: str = "files", other: str = "delta") -> Conf:
    """Return a pipeline that reads one file from `folder` in each batch."""
    text = SILVER.replace("FORMAT", format).replace("OTHER", other).replace("FOLDER", str(folder))
    (folder / "silver.yaml").write_text(text)
    return load(folder / "silver.yaml", (), ["silver"])


def go(spark: SparkSession, given: Conf) -> list[StreamingQuery]:
    """Run silver until it ends. Return its query in a list."""
    [query] = build(spark, given, ["silver"])
    begun = run.start(spark, query, given.name, once=True)
    begun.awaitTermination()
    return [begun]


def offsets(rows: DataFrame) -> Counter[int]:
    return Counter(row.offset for row in rows.select("offset").collect())


def delta(spark: SparkSession, folder: Path) -> DataFrame:
    state = DeltaSink(load_table(folder)).look()
    assert state is not None
    return spark.createDataFrame(state.table.to_pyarrow_table(columns=["offset"]))


def load_table(folder: Path):  # type: ignore[no-untyped-def]
    from mqtt_pipelines.settings import Table

    return Table(path=str(folder), format="delta")


def test_one_pass_with_state_for_ids_alone(spark: SparkSession, tmp_path: Path) -> None:
    log = Log()
    first = [log.message({"n": n}, n / 100, topic=f"p/d{n % 3}/s") for n in range(30)]
    first += [log.message({"n": n}, 1, message_id=f"m{n // 2}") for n in range(4)]  # two twice
    first += [log.message("no JSON", 1), log.message({"n": "x"}, 1, message_id="m0")]
    second = [log.message({"n": n}, 2) for n in range(10)]
    second += [log.message({"n": 1}, 2, message_id="m1"), log.message(b"\xff", 2)]
    land(spark, tmp_path, first, second)
    [query] = go(spark, conf(tmp_path))
    told = [json.loads(one.json) for one in query.recentProgress]
    read = [one["numInputRows"] for one in told if one["numInputRows"]]
    assert read == [len(first), len(second)]
    states = [state for one in told for state in one["stateOperators"]]
    assert max(state["numRowsTotal"] for state in states) == 2
    assert sum(state["numRowsUpdated"] for state in states) == 2
    assert sum(s["customMetrics"]["numDroppedDuplicateRows"] for s in states) == 3
    good = offsets(spark.read.parquet(str(tmp_path / "silver")))
    dead = offsets(delta(spark, tmp_path / "dead"))
    assert set((good + dead).values()) == {1}
    assert len(good) == 30 + 2 + 10
    assert sorted(dead) == [34, 35, 47]


@pytest.mark.parametrize("other", ["files", "delta"])
def test_a_batch_without_dead_letters_is_not_computed_for_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    log = Log()
    texts: list[list[Any]] = [[{"n": 1}], [{"n": 2}], [{"n": 3}, "no JSON"], [{"n": 4}]]
    land(spark, tmp_path, *([log.message(one, n) for one in some] for n, some in enumerate(texts)))
    computed: list[int] = []
    kind = DeltaSink if other == "delta" else FileBatches
    whole = kind.write

    def write(self: Any, batch: DataFrame, batch_id: int, app: str) -> Written:
        if ".dead_letter." in app:
            computed.append(batch_id)
        return whole(self, batch, batch_id, app)

    monkeypatch.setattr(kind, "write", write)
    go(spark, conf(tmp_path, "files", other))
    assert computed == [0, 2]  # The first creates the table.
    dead = tmp_path / "dead"
    if other == "delta":
        assert offsets(delta(spark, dead)) == Counter([3])
    else:
        assert offsets(spark.read.parquet(str(dead))) == Counter([3])
        assert latest(spark, f"{dead}/{LOG}") == 3
    assert offsets(spark.read.parquet(str(tmp_path / "silver"))) == Counter([0, 1, 2, 4])


@pytest.mark.parametrize(("format", "other"), [("files", "delta"), ("delta", "files")])
def test_a_driver_that_fails_between_the_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, other: str
) -> None:
    """If the driver fails between the tables, the batch runs again, and each table still has each row once. This works
    only if each table keeps its own record of the batch.
    """
    log = Log()
    batches = [
        [log.message({"n": 1}, n, message_id="a"), log.message({"n": 2}, n), log.message("x", n)]
        for n in range(3)
    ]
    land(spark, tmp_path, *batches)
    given = conf(tmp_path, format, other)
    whole = Fork.write

    def fails(self: Fork, batch: DataFrame, batch_id: int, app: str) -> Written:
        if batch_id == 1:
            whole(Fork(self.branches[:1]), batch, batch_id, app)
            raise RuntimeError("killed between the tables")
        return whole(self, batch, batch_id, app)

    with monkeypatch.context() as patched:
        patched.setattr(Fork, "write", fails)
        with pytest.raises(PySparkException, match="killed between"):
            go(spark, given)
    go(spark, given)

    def held(name: str, kind: str) -> Counter[int]:
        folder = tmp_path / name
        return offsets(spark.read.parquet(str(folder)) if kind == "files" else delta(spark, folder))

    assert held("silver", format) == Counter([0, 1, 4, 7])
    assert held("dead", other) == Counter([2, 5, 8])
