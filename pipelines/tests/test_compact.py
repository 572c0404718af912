"""Test how small files are merged. Rows and records of batches are kept, and readers are not disturbed."""

import json
import os
from pathlib import Path

import pytest
from landing import DDL, faults, keys, land, messages, of, query
from mqtt_pipelines import compact, run
from mqtt_pipelines.settings import Table
from mqtt_pipelines.sinks.delta import DeltaState
from mqtt_pipelines.sinks.files import FilesSink
from pyspark.sql import DataFrame, SparkSession
from pyspark_mqtt.errors import MqttError
from sinking import delta, held, iceberg, no_wait

WEEK = 7 * 86400.0
SIZE = 1 << 20


def frame(spark: SparkSession, number: int) -> DataFrame:
    return spark.createDataFrame(messages(number), DDL)


def test_delta(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = delta(tmp_path)
    with pytest.raises(MqttError, match="is not there"):
        compact.compact_delta(sink, SIZE, WEEK)
    for number in range(3):
        sink.write(frame(spark, number), number, "p.rows.a")
    before = sink.look()
    assert before is not None
    old = [sink.root + "/" + name for name in ("part-dead.parquet", "part-young.parquet")]
    for file in old:
        Path(file).write_bytes(b"of a driver that was killed")
    os.utime(old[0], (1, 1))
    dry = compact.compact_delta(sink, SIZE, WEEK, dry_run=True)
    assert (dry["small_files"], dry["files_deleted"], "files_added" in dry) == (6, 1, False)
    assert Path(old[0]).exists()

    tries = []
    right = type(before.table.optimize).compact

    def busy(self: object, **given: object) -> object:
        from deltalake.exceptions import CommitFailedError

        tries.append(1)
        if len(tries) == 1:
            raise CommitFailedError("others")
        return right(self, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(type(before.table.optimize), "compact", busy)
    report = compact.compact_delta(sink, SIZE, WEEK, wait=no_wait)
    assert (report["files_removed"], report["files_added"], report["files_deleted"]) == (6, 2, 1)
    assert len(tries) == 2
    assert [Path(file).exists() for file in old] == [False, True]
    # Who reads the version from before still can, and a batch that comes again is still known.
    assert list(faults(of(before.table.to_pyarrow_table()), keys([0, 1, 2]))) == []
    assert list(faults(held(sink), keys([0, 1, 2]))) == []
    assert sink.write(frame(spark, 2), 2, "p.rows.a").repeated
    assert sink.write(frame(spark, 3), 3, "p.rows.a").rows == 20
    assert list(faults(held(sink), keys([0, 1, 2, 3]))) == []
    for keep in (WEEK / 2, 60.0):
        with pytest.raises(MqttError, match=r"old files were not deleted|at least an hour"):
            compact.compact_delta(sink, SIZE, keep)
    assert isinstance(sink.look(), DeltaState)


def test_iceberg(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = iceberg(tmp_path)
    with pytest.raises(MqttError, match="is not there"):
        compact.compact_iceberg(sink, SIZE, WEEK)
    for number in range(3):
        sink.write(frame(spark, number), number, "p.rows.a")
    state = sink.look()
    assert state is not None
    data = Path(state.table.location().removeprefix("file://")) / "data"
    dead, young = data / "ingest_date=x" / "part-dead.parquet", data / "part-young.parquet"
    dead.parent.mkdir()
    for file in (dead, young):
        file.write_bytes(b"of a driver that was killed")
    os.utime(dead, (1, 1))
    report = compact.compact_iceberg(sink, SIZE, WEEK)
    assert (report["small_files"], report["snapshots_expired"], report["files_deleted"]) == (
        6,
        0,
        1,
    )
    assert "rewrite_data_files" in report["note"]
    assert [file.exists() for file in (dead, young)] == [False, True]
    with pytest.raises(MqttError, match="at least an hour"):
        compact.compact_iceberg(sink, SIZE, 60.0)
    monkeypatch.setattr(compact, "SHORTEST", -WEEK)
    dry = compact.compact_iceberg(sink, SIZE, -1.0, dry_run=True)
    assert (dry["snapshots_expired"], dry["files_deleted"]) == (2, 1)
    compact.compact_iceberg(sink, SIZE, -1.0)
    state = sink.look()
    assert state is not None
    assert len(state.table.snapshots()) == 1
    assert not young.exists()
    # The snapshots that named the batches are gone; the batches are known.
    assert [sink.write(frame(spark, n), n, "p.rows.a").repeated for n in (0, 2)] == [True, True]
    assert list(faults(held(sink), keys([0, 1, 2]))) == []


def test_files(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    sink = FilesSink(Table(path=str(folder), partition_by=("ingest_date",)))

    def go_on() -> None:
        asked = query(spark, tmp_path / "landed", sink, tmp_path / "checkpoint")
        run.start(spark, asked, "p", once=True).awaitTermination()

    def compacted(name: str) -> compact.Report:
        return compact.compact_files(spark, sink, str(tmp_path / name), SIZE)

    with pytest.raises(MqttError, match="holds nothing that Spark's file sink has written"):
        compacted("large")
    land(tmp_path / "landed", [0, 1, 2])
    go_on()
    (folder / "ingest_date=2026-11-20" / "part-orphan.parquet").write_bytes(b"")
    before = sorted(str(file) for file in folder.rglob("*"))
    dry = compact.compact_files(spark, sink, str(tmp_path / "large"), SIZE, dry_run=True)
    assert (dry["batches"], dry["small_files"]) == (2, 6)
    assert not (tmp_path / "large").exists()

    report = compacted("large")
    assert (report["batches"], report["rows"], report["files_added"]) == (2, 60, 2)
    assert sorted(str(file) for file in folder.rglob("*")) == before
    large = spark.read.parquet(str(tmp_path / "large" / "data"))
    assert list(faults(of(large.toArrow()), keys([0, 1, 2]))) == []
    manifest = json.loads((tmp_path / "large" / "_manifest.json").read_text())
    assert (manifest["batches"], manifest["rows"], len(manifest["files"])) == (2, 60, 2)
    # Again: nothing. A killed one, which has no manifest: anew. A folder of somebody else: not touched.
    assert compacted("large")["files_added"] == 0
    (tmp_path / "large" / "_manifest.json").unlink()
    assert compacted("large")["files_added"] == 2
    (tmp_path / "mine").mkdir()
    with pytest.raises(MqttError, match="is there, and not ours"):
        compacted("mine")
    land(tmp_path / "landed", [3])
    go_on()
    with pytest.raises(MqttError, match=r"holds batches up to 2 of .*: name a folder that is not"):
        compacted("large")
    assert compacted("larger")["rows"] == 80
    assert list(faults(held(sink, spark), keys([0, 1, 2, 3]))) == []


def test_the_log_of_the_file_sink_is_read_with_its_own_compaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()

    def entries(name: str, *files: tuple[str, str]) -> None:
        lines = [json.dumps({"path": path, "size": 7, "action": action}) for path, action in files]
        (log / name).write_text("\n".join(["v1", *lines]))

    entries("8", ("old", "add"))
    entries("9.compact", ("a", "add"), ("b", "add"))
    entries("10", ("b", "delete"), ("c", "add"))
    entries("11")
    assert compact.committed_files(spark, str(tmp_path)) == (11, [("a", 7), ("c", 7)])
